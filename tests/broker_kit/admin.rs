//! What an operator does to a broker, over the fast way in.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::control::{Control, EvalError, binary};

/// Far more than a test needs.
pub(super) const MEMORY_LIMIT: &str = "2GB";

/// Orders to one node. Each panics when the node cannot be asked or refuses.
#[derive(Debug)]
pub(crate) struct Admin {
    control: Mutex<Option<Control>>,
}

/// What a policy applies to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PolicyTarget {
    Queues,
    Exchanges,
    All,
}

/// A queue as the broker sees it. Counts of a queue without a leader are missing.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct QueueInfo {
    pub(crate) name: String,
    /// `classic`, `quorum` or `stream`.
    #[serde(rename = "type")]
    pub(crate) queue_type: String,
    /// Ready and unacknowledged together.
    pub(crate) messages: Option<u64>,
    pub(crate) ready: Option<u64>,
    pub(crate) unacked: Option<u64>,
    pub(crate) consumers: Option<u64>,
    /// The node of the leader, such as `n1@localhost`; none during an election.
    pub(crate) leader: Option<String>,
}

/// A client's connection.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct ConnectionInfo {
    /// Both addresses, as the broker's log names it.
    pub(crate) name: String,
    /// What the client calls itself.
    pub(crate) client_name: String,
    pub(crate) user: String,
    pub(crate) vhost: String,
    /// `running`, `blocked`, `blocking`, `flow`, …
    pub(crate) state: String,
    pub(crate) channels: u64,
}

/// A quorum queue is asked through whichever node runs: the recorded leader may be the one that was killed.
const QUEUES: &str = r#"
Servers = fun(Q) ->
  {Name, _} = amqqueue:get_pid(Q),
  [{Name, Node} || Node <- rabbit_nodes:all_running()]
end,
Number = fun(Query, Q) ->
  case catch ra:leader_query(Servers(Q), Query, 5000) of
    {ok, {_, N}, _} when is_integer(N) -> N;
    {ok, {_, N}, _} when is_map(N) -> map_size(N);
    _ -> null
  end
end,
Counts = fun(Q) ->
  case amqqueue:get_type(Q) of
    rabbit_quorum_queue ->
      Ready = Number(fun rabbit_fifo:query_messages_ready/1, Q),
      Total = Number(fun rabbit_fifo:query_messages_total/1, Q),
      Unacked = case {Total, Ready} of {T, R} when is_integer(T), is_integer(R) -> T - R; _ -> null end,
      {Ready, Unacked, Total, Number(fun rabbit_fifo:query_consumer_count/1, Q)};
    _ ->
      Items = [messages_ready, messages_unacknowledged, messages, consumers],
      case catch rabbit_amqqueue:info(Q, Items) of
        [{_, R}, {_, U}, {_, M}, {_, C}] when is_integer(R) -> {R, U, M, C};
        _ -> {null, null, null, null}
      end
  end
end,
Type = fun(Q) ->
  case amqqueue:get_type(Q) of
    rabbit_classic_queue -> <<"classic">>;
    rabbit_quorum_queue -> <<"quorum">>;
    rabbit_stream_queue -> <<"stream">>
  end
end,
Leader = fun(Q) ->
  case amqqueue:get_type(Q) of
    rabbit_quorum_queue ->
      case catch ra:members(Servers(Q), 5000) of
        {ok, _, {_, Node}} -> Node;
        _ -> null
      end;
    _ -> amqqueue:qnode(Q)
  end
end,
rabbit_json:encode([begin
  {R, U, M, C} = Counts(Q),
  #{name => element(4, amqqueue:get_name(Q)), type => Type(Q), leader => Leader(Q),
    ready => R, unacked => U, messages => M, consumers => C}
end || Q <- rabbit_amqqueue:list(VHost), IsWanted(element(4, amqqueue:get_name(Q)))])"#;

const CONNECTIONS: &str = r#"
Text = fun(T) when is_binary(T) -> T; (T) when is_atom(T) -> atom_to_binary(T); (T) -> iolist_to_binary(T) end,
Number = fun(N) when is_integer(N) -> N; (_) -> 0 end,
Name = fun(Table) when is_list(Table) ->
    case lists:keyfind(<<"connection_name">>, 1, Table) of {_, _, N} -> N; false -> <<>> end;
  (_) -> <<>>
end,
Items = [name, client_properties, user, vhost, state, channels],
rabbit_json:encode([#{name => Text(N), client_name => Name(P), user => Text(U), vhost => Text(V), state => Text(S),
    channels => Number(C)}
  || [{_, N}, {_, P}, {_, U}, {_, V}, {_, S}, {_, C}] <- rabbit_networking:connection_info_all(Items)])"#;

impl Admin {
    /// Of a node that has not started.
    pub(super) fn nowhere() -> Self {
        Self {
            control: Mutex::new(None),
        }
    }

    pub(super) fn at(control: Control) -> Self {
        Self {
            control: Mutex::new(Some(control)),
        }
    }

    pub(super) fn set_control(&self, control: Control) {
        *self.control.lock().unwrap_or_else(PoisonError::into_inner) = Some(control);
    }

    pub(crate) fn control(&self) -> Control {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        control.clone().expect("a node that has started")
    }

    /// The value of Erlang expressions, evaluated in the broker. See [`Control::eval`].
    pub(crate) async fn try_eval(&self, expressions: &str) -> Result<String, EvalError> {
        self.control().eval(expressions).await
    }

    /// The same, where failing is a failure of the test.
    pub(crate) async fn eval(&self, expressions: &str) -> String {
        match self.try_eval(expressions).await {
            Ok(value) => value,
            Err(error) => panic!("{expressions}: {error:?}"),
        }
    }

    /// Evaluates what returns `ok`, or `{ok, …}`.
    async fn order(&self, expressions: &str) {
        let value = self.eval(expressions).await;
        let is_ok = value == "ok" || value.starts_with("{ok,");
        assert!(is_ok, "{expressions}: {value}");
    }

    async fn json<T: DeserializeOwned>(&self, expressions: &str) -> T {
        let text = self.eval(expressions).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The broker has booted.
    pub(crate) async fn is_running(&self) -> bool {
        matches!(
            self.try_eval("rabbit:is_running()").await.as_deref(),
            Ok("true")
        )
    }

    /// Sets how long a delivery may stay unacknowledged, for channels that open from now on. The node looks once a
    /// second.
    pub(crate) async fn set_consumer_timeout(&self, timeout: Duration) {
        let ms = timeout.as_millis();
        self.order(&format!(
            "application:set_env(rabbit, consumer_timeout, {ms})"
        ))
        .await;
    }

    /// Raises or clears the memory alarm, which blocks connections that publish. On return it is in force.
    pub(crate) async fn memory_alarm(&self, on: bool) {
        let limit = if on {
            "0.00001".to_owned()
        } else {
            format!("{{absolute, \"{MEMORY_LIMIT}\"}}")
        };
        self.order(&format!(
            "vm_memory_monitor:set_vm_memory_high_watermark({limit}), ok"
        ))
        .await;
        let wanted = if on { "true" } else { "false" };
        super::eventually("the memory alarm", async || {
            let is_on = self
                .eval("lists:any(fun({{resource_limit, memory, N}, _}) -> N =:= node(); (_) -> false end, rabbit_alarm:get_alarms())")
                .await;
            (is_on == wanted).then_some(())
        })
        .await;
    }

    /// Adds a user without any permission.
    pub(crate) async fn add_user(&self, name: &str, password: &str) {
        let (name, password) = (binary(name), binary(password));
        self.order(&format!(
            "rabbit_auth_backend_internal:add_user({name}, {password}, <<\"test\">>)"
        ))
        .await;
    }

    /// Open connections stay.
    pub(crate) async fn change_password(&self, name: &str, password: &str) {
        let (name, password) = (binary(name), binary(password));
        self.order(&format!(
            "rabbit_auth_backend_internal:change_password({name}, {password}, <<\"test\">>)"
        ))
        .await;
    }

    /// Removes a user.
    pub(crate) async fn delete_user(&self, name: &str) {
        let name = binary(name);
        self.order(&format!(
            "rabbit_auth_backend_internal:delete_user({name}, <<\"test\">>)"
        ))
        .await;
    }

    /// Sets what a user may do in a virtual host: patterns for configure, write and read.
    pub(crate) async fn set_permissions(&self, user: &str, vhost: &str, patterns: [&str; 3]) {
        let (user, vhost) = (binary(user), binary(vhost));
        let [configure, write, read] = patterns.map(binary);
        self.order(&format!(
            "rabbit_auth_backend_internal:set_permissions({user}, {vhost}, {configure}, {write}, {read}, <<\"test\">>)"
        ))
        .await;
    }

    /// Takes a user's permissions in a virtual host away.
    pub(crate) async fn clear_permissions(&self, user: &str, vhost: &str) {
        let (user, vhost) = (binary(user), binary(vhost));
        self.order(&format!(
            "rabbit_auth_backend_internal:clear_permissions({user}, {vhost}, <<\"test\">>)"
        ))
        .await;
    }

    /// Adds a virtual host and lets guest do everything in it.
    pub(crate) async fn add_vhost(&self, name: &str) {
        let vhost = binary(name);
        self.order(&format!("rabbit_vhost:add({vhost}, <<\"test\">>)"))
            .await;
        self.set_permissions("guest", name, [".*", ".*", ".*"])
            .await;
    }

    /// Removes a virtual host with its queues; its connections are closed.
    pub(crate) async fn delete_vhost(&self, name: &str) {
        let vhost = binary(name);
        self.order(&format!("rabbit_vhost:delete({vhost}, <<\"test\">>), ok"))
            .await;
    }

    /// Sets a policy; `definition` is a JSON object, such as `{"delivery-limit": 3}`.
    pub(crate) async fn set_policy(
        &self,
        vhost: &str,
        name: &str,
        pattern: &str,
        definition: &str,
        target: PolicyTarget,
    ) {
        let target = match target {
            PolicyTarget::Queues => "queues",
            PolicyTarget::Exchanges => "exchanges",
            PolicyTarget::All => "all",
        };
        let [vhost, name, pattern, definition] = [vhost, name, pattern, definition].map(binary);
        self.order(&format!(
            "rabbit_policy:parse_set({vhost}, {name}, {pattern}, {definition}, <<\"0\">>, <<\"{target}\">>, <<\"test\">>)"
        ))
        .await;
    }

    /// Removes a policy.
    pub(crate) async fn clear_policy(&self, vhost: &str, name: &str) {
        let [vhost, name] = [vhost, name].map(binary);
        self.order(&format!(
            "rabbit_policy:delete({vhost}, {name}, <<\"test\">>)"
        ))
        .await;
    }

    /// Deletes a queue under its consumers.
    pub(crate) async fn delete_queue(&self, vhost: &str, queue: &str) {
        let [vhost, queue] = [vhost, queue].map(binary);
        self.order(&format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r({vhost}, queue, {queue})), \
             rabbit_amqqueue:delete(Q, false, false, <<\"test\">>)"
        ))
        .await;
    }

    /// Closes the connections to a virtual host as an operator does (320 CONNECTION_FORCED). Says how many
    /// there were; one that ends by itself meanwhile is no failure.
    pub(crate) async fn close_connections(&self, vhost: &str, reason: &str) -> u64 {
        let (vhost, reason) = (binary(vhost), binary(reason));
        self.json(&format!(
            "Found = [Pid || [{{pid, Pid}}, {{vhost, {vhost}}}] <- rabbit_networking:connection_info_all([pid, vhost])], \
             [catch rabbit_networking:close_connection(Pid, {reason}) || Pid <- Found], rabbit_json:encode(length(Found))"
        ))
        .await
    }

    /// Makes the broker close the channels of a virtual host with 406, as after a mistake of their clients: each
    /// takes an acknowledgement of an unknown tag for its client's. The connections stay. Says how many.
    pub(crate) async fn close_channels(&self, vhost: &str) -> u64 {
        let vhost = binary(vhost);
        self.json(&format!(
            "Found = [Pid || [{{pid, Pid}}, {{vhost, {vhost}}}] <- rabbit_channel:info_all([pid, vhost])], \
             [rabbit_channel:do(Pid, {{'basic.ack', 999999999999, false}}) || Pid <- Found], \
             rabbit_json:encode(length(Found))"
        ))
        .await
    }

    /// Closes every connection of the node as an operator does.
    pub(crate) async fn close_all_connections(&self, reason: &str) {
        let reason = binary(reason);
        self.order(&format!(
            "[catch rabbit_networking:close_connection(Pid, {reason}) || Pid <- rabbit_networking:connections()], ok"
        ))
        .await;
    }

    /// The queues of a virtual host. Counts are the queues' own at this moment, not the last statistics.
    pub(crate) async fn list_queues(&self, vhost: &str) -> Vec<QueueInfo> {
        self.queues(vhost, "fun(_) -> true end").await
    }

    async fn queues(&self, vhost: &str, is_wanted: &str) -> Vec<QueueInfo> {
        let vhost = binary(vhost);
        self.json(&format!("VHost = {vhost}, IsWanted = {is_wanted},{QUEUES}"))
            .await
    }

    /// One queue, if it is there.
    pub(crate) async fn queue(&self, vhost: &str, name: &str) -> Option<QueueInfo> {
        // A queue without a leader takes seconds to say nothing: the others are not asked.
        let is_wanted = format!("fun(N) -> N =:= {} end", binary(name));
        self.queues(vhost, &is_wanted).await.pop()
    }

    /// Waits until a queue's counts are these: ready, unacknowledged, consumers.
    pub(crate) async fn await_counts(&self, vhost: &str, queue: &str, counts: [u64; 3]) {
        super::eventually(&format!("{queue} at {counts:?}"), async || {
            let info = self.queue(vhost, queue).await?;
            let seen = [info.ready?, info.unacked?, info.consumers?];
            (seen == counts).then_some(())
        })
        .await;
    }

    /// All clients' connections.
    pub(crate) async fn list_connections(&self) -> Vec<ConnectionInfo> {
        self.json(CONNECTIONS).await
    }
}
