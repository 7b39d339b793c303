%% Runs inside a test's private node: evaluates the expressions that a client with the token sends.
%% A frame is four bytes of length and the text; an answer starts with + or -.
spawn(fun() ->
  {ok, [Folder]} = init:get_argument(acquit_control),
  Path = fun(Name) -> filename:join(Folder, Name) end,
  {ok, Token} = file:read_file(Path("control.token")),
  {ok, Listener} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {packet, 4}, {active, false}, {backlog, 128}]),
  {ok, Port} = inet:port(Listener),
  Text = fun(Value) -> unicode:characters_to_binary(io_lib:format("~0tp", [Value])) end,
  Eval = fun(Source) ->
    try
      {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Source)),
      {ok, Expressions} = erl_parse:parse_exprs(Tokens),
      case erl_eval:exprs(Expressions, []) of
        {value, Value, _} when is_binary(Value) -> [$+, Value];
        {value, Value, _} -> [$+, Text(Value)]
      end
    catch
      Class:Reason:_ -> [$-, Text({Class, Reason})]
    end
  end,
  Serve = fun Serve(Socket) ->
    case gen_tcp:recv(Socket, 0) of
      {ok, Source} ->
        ok = gen_tcp:send(Socket, Eval(Source)),
        Serve(Socket);
      {error, _} ->
        gen_tcp:close(Socket)
    end
  end,
  Greet = fun(Socket) ->
    case gen_tcp:recv(Socket, 0, 5000) of
      {ok, Token} -> Serve(Socket);
      _ -> gen_tcp:close(Socket)
    end
  end,
  Accept = fun Accept() ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Pid = spawn(fun() -> receive go -> Greet(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Pid),
    Pid ! go,
    Accept()
  end,
  ok = file:write_file(Path("control.new"), integer_to_list(Port)),
  ok = file:rename(Path("control.new"), Path("control.port")),
  Accept()
end).
