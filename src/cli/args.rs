//! What can be said on the command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};

use super::Exit;
use crate::telemetry::{LogFormat, LogLevel};

/// Where the help shows what every command takes.
const HEADING: &str = "Options of every command";

/// Runs consumers: every delivery settled once, and the truth.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "acquit",
    version,
    about,
    long_about = "Runs the consumers of a configuration: takes each message from its queue, runs \
                  its handler, and tells the broker once what became of it. Without a command: run.",
    after_long_help = Exit::table(),
    max_term_width = 100
)]
pub struct Args {
    /// The configuration
    #[arg(
        long,
        short = 'c',
        global = true,
        env = "ACQUIT_CONFIG",
        hide_env_values = true,
        help_heading = HEADING,
        value_name = "FILE",
        default_value = "config.toml"
    )]
    pub config: PathBuf,

    /// How log lines are written, text or json; wins over log.format
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        hide_possible_values = true,
        help_heading = HEADING
    )]
    pub log_format: Option<LogFormat>,

    /// Log this and worse: off, error, warn, info, debug or trace; wins over log.level
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        hide_possible_values = true,
        help_heading = HEADING
    )]
    pub log_level: Option<LogLevel>,

    /// Write results as JSON
    #[arg(long, global = true, help_heading = HEADING)]
    pub json: bool,

    /// What to do; nothing: run
    #[command(subcommand)]
    command: Option<Command>,
}

impl Args {
    /// Gives what to do.
    pub fn action(&self) -> Command {
        self.command
            .clone()
            .unwrap_or_else(|| Command::Run(RunArgs::default()))
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// Run the consumers until TERM or INT, which drains (the default)
    Run(RunArgs),
    /// Say what is wrong with the configuration, and start nothing
    Check(CheckArgs),
    /// Publish a message
    Publish(PublishArgs),
    /// Show messages of a queue as JSON lines, or take them out of it
    Get(GetArgs),
    /// Show what the running process does
    Status,
    /// Stop the running process: finish what runs, start nothing new
    Drain(DrainArgs),
    /// Stop taking messages for a consumer
    Pause(ConsumerArgs),
    /// Take messages for a paused consumer again
    Resume(ConsumerArgs),
    /// Change how many deliveries of a consumer are in flight at once
    Scale(ScaleArgs),
    /// Show each delivery in flight
    Inflight,
    /// Stop a delivery in flight for good: it is rejected
    Cancel(CancelArgs),
    /// Look at dead letters, and have them run again
    Dlq(DlqArgs),
    /// Compare the broker's queues with the configuration, and declare what is missing
    Topology(TopologyArgs),
    /// Measure how fast a part is on this machine
    Bench(BenchArgs),
}

/// Arguments of `run`.
#[derive(Debug, Clone, Default, PartialEq, Eq, ClapArgs)]
pub struct RunArgs {
    /// End, with 0, when all feeds are read, all queues are empty and nothing is in flight
    #[arg(long)]
    pub until_idle: bool,

    /// End, with 0, after this many deliveries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_deliveries: Option<u64>,
}

/// Arguments of `check`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ClapArgs)]
pub struct CheckArgs {
    /// Ask the broker too: whether it takes us, what it is, and what is missing or otherwise there
    #[arg(long)]
    pub connect: bool,
}

/// Arguments of `publish`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct PublishArgs {
    /// The queue it goes to
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub queue: String,

    /// Take messages from a file, one JSON object a line, as a feed does; "-", or neither this nor
    /// --body: from standard input
    #[arg(long, short = 'f', value_name = "FILE", conflicts_with = "body")]
    pub file: Option<PathBuf>,

    /// The body
    #[arg(long, short = 'b', value_name = "TEXT", allow_hyphen_values = true)]
    pub body: Option<String>,

    /// The key that chooses the partition; without one they take turns
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,

    /// The message's id; without one it gets one
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,

    /// A header; may be given more than once
    #[arg(long = "header", short = 'H', value_name = "NAME=VALUE")]
    pub headers: Vec<HeaderArg>,
}

/// A header given as `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderArg {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl FromStr for HeaderArg {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok(Self {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err("expected a header such as source=shop"),
        }
    }
}

/// Arguments of `get`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct GetArgs {
    /// The queue
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub queue: String,

    /// Take the messages out of the queue, one by one as they are written; otherwise they stay in it
    #[arg(long)]
    pub take: bool,

    /// Show at most this many
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// Show the queue's dead list instead
    #[arg(long)]
    pub dead: bool,
}

/// Arguments of `drain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, ClapArgs)]
pub struct DrainArgs {
    /// Wait until the process has ended, and show its report
    #[arg(long)]
    pub wait: bool,
}

/// Arguments of `pause` and `resume`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct ConsumerArgs {
    /// The consumer's name
    pub consumer: String,
}

/// Arguments of `scale`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct ScaleArgs {
    /// The consumer's name
    pub consumer: String,

    /// How many deliveries in flight at once
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub permits: u32,
}

/// Arguments of `cancel`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct CancelArgs {
    /// The delivery's number, as `inflight` shows it
    pub id: u64,
}

/// Arguments of `topology`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct TopologyArgs {
    /// What to do with it
    #[command(subcommand)]
    pub action: TopologyAction,
}

/// What `topology` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum TopologyAction {
    /// Say what `apply` would declare, and what is there otherwise; changes nothing
    Plan,
    /// Declare what is missing; what is there is never changed or deleted
    Apply,
    /// End with 1 if anything is missing or otherwise, with 15 if a permission is missing
    Check,
}

/// Arguments of `dlq`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
#[command(after_long_help = LOOKING)]
pub struct DlqArgs {
    /// What to do with them
    #[command(subcommand)]
    pub action: DlqAction,
}

/// What an operator has to know before looking.
const LOOKING: &str = "RabbitMQ hands a letter out to show it. Each command takes the letters that it \
    looks at one by one and gives back what it leaves. On a quorum queue with a delivery limit each \
    look counts as one return before RabbitMQ 4.3, and a letter past the limit is dropped by its \
    broker: `returns` shows how far each is. A list looks at no more letters than it needs for its \
    limit. While letters are looked at, others do not see them.\n\n\
    On an embedded broker QUEUE is a queue whose own dead list is meant, and no process may run.";

/// What `dlq` does.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum DlqAction {
    /// List letters without their bodies
    #[command(after_long_help = LOOKING)]
    List(ListArgs),
    /// Show one letter with its body
    #[command(after_long_help = LOOKING)]
    Show(LetterArgs),
    /// Publish letters to the queues they came from, and take them out
    #[command(after_long_help = REPLAYING)]
    Replay(ReplayArgs),
}

/// What an operator has to know before replaying.
const REPLAYING: &str = "A copy is published with the same id, as a first attempt, with \
    x-acquit-replayed one higher. Once the broker has confirmed it, the letter is taken out. What ends \
    the command in between leaves both. Letters that arrive meanwhile are left alone. A letter that \
    does not say where it came from is named and skipped.";

/// Arguments of `dlq list`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct ListArgs {
    /// The dead-letter queue
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub queue: String,

    /// Which letters
    #[command(flatten)]
    pub filter: FilterArgs,

    /// List at most this many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
}

/// Arguments of `dlq show`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct LetterArgs {
    /// The dead-letter queue
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub queue: String,

    /// The message's id, as `list` shows it
    pub id: String,
}

/// Arguments of `dlq replay`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct ReplayArgs {
    /// The dead-letter queue
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub queue: String,

    /// Which letters
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Replay at most this many; without it all that are there now
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// No faster than this, such as 10/s, 600/m or 50/h
    #[arg(long, value_name = "RATE")]
    pub rate: Option<RateArg>,

    /// Say what would be replayed, and publish nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Which dead letters are meant; all of them without an option.
#[derive(Debug, Clone, Default, PartialEq, Eq, ClapArgs)]
pub struct FilterArgs {
    /// Died for this reason, such as exhausted or rejected
    #[arg(long, value_name = "REASON")]
    pub reason: Option<String>,

    /// With this message id
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,

    /// With this header; may be given more than once
    #[arg(long = "header", short = 'H', value_name = "NAME=VALUE")]
    pub headers: Vec<HeaderArg>,

    /// Dead for longer than this, such as 2h; published, where nobody wrote down when it died
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub older_than: Option<Duration>,
}

/// A rate given as `10/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateArg(Duration);

impl RateArg {
    /// Gives the time from one to the next.
    pub const fn pause(self) -> Duration {
        self.0
    }
}

impl FromStr for RateArg {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected a rate above zero such as 10/s, 600/m or 50/h";
        let (count, unit) = text.split_once('/').ok_or(EXPECTED)?;
        let period = match unit.trim() {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err(EXPECTED),
        };
        let count: u32 = count.trim().parse().map_err(|_| EXPECTED)?;
        let pause = Duration::from_secs(period).checked_div(count);
        pause.map(Self).ok_or(EXPECTED)
    }
}

/// Arguments of `bench`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct BenchArgs {
    /// What to measure: engine, memory, drain or idle; or broker, a RabbitMQ of yours
    pub name: String,

    /// broker: its URL
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// broker: the size of a body
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub body_bytes: usize,

    /// broker: how many deliveries it may push ahead
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..))]
    pub prefetch: u16,

    /// broker: the type of the queue that is made and deleted
    #[arg(long, value_name = "TYPE", default_value = "quorum", value_parser = ["quorum", "classic"])]
    pub queue_type: String,

    /// broker: hold the first delivery until all others are done, as a task that takes long does
    #[arg(long)]
    pub held_head: bool,

    /// broker: which loops are run; for the memory of one alone, too
    #[arg(long, value_name = "WHICH", default_value = "all", value_parser = ["all", "acquit", "bare"])]
    pub only: String,

    /// broker: how often all loops are run, by turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,

    /// How many deliveries; each benchmark has its own default
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn nothing_means_run_with_the_file_here() {
        let args = parse("acquit").expect("valid");
        assert_eq!(args.action(), Command::Run(RunArgs::default()));
        assert!(!args.json);
    }

    #[test]
    fn global_options_stand_before_or_after_the_command() {
        for line in [
            "acquit --config a.toml --json --log-format json status",
            "acquit status -c a.toml --json --log-format json",
        ] {
            let args = parse(line).expect(line);
            assert_eq!(args.config, PathBuf::from("a.toml"));
            assert_eq!(args.log_format, Some(LogFormat::Json));
            assert_eq!((args.action(), args.json), (Command::Status, true));
        }
    }

    #[test]
    fn a_publish_takes_headers_and_one_body() {
        let args = parse("acquit publish words --body -x- --key k --header a=1 --header b==");
        let Ok(Command::Publish(publish)) = args.map(|args| args.action()) else {
            panic!("no publish");
        };
        assert_eq!(publish.body.as_deref(), Some("-x-"));
        let headers: Vec<_> = publish
            .headers
            .iter()
            .map(|h| (&*h.name, &*h.value))
            .collect();
        assert_eq!(headers, [("a", "1"), ("b", "=")]);
    }

    #[test]
    fn a_replay_takes_a_filter_and_a_rate() {
        let line =
            "acquit dlq replay dead --reason exhausted -H a=1 --older-than 2h --rate 4/m -n 3";
        let Ok(Command::Dlq(dlq)) = parse(line).map(|args| args.action()) else {
            panic!("no dlq");
        };
        let DlqAction::Replay(replay) = dlq.action else {
            panic!("no replay");
        };
        assert_eq!(
            replay.rate.map(RateArg::pause),
            Some(Duration::from_secs(15))
        );
        assert_eq!(replay.filter.older_than, Some(Duration::from_secs(7200)));
        assert_eq!((replay.limit, replay.dry_run), (Some(3), false));
    }

    #[test]
    fn usage_errors_end_with_the_code_of_usage() {
        for line in [
            "acquit nonsense",
            "acquit publish",
            "acquit publish q --body a --file b",
            "acquit publish q --header novalue",
            "acquit scale words 0",
            "acquit run --max-deliveries 0",
            "acquit cancel abc",
            "acquit topology",
            "acquit dlq",
            "acquit dlq list",
            "acquit dlq show dead",
            "acquit dlq replay dead --rate 0/s",
            "acquit dlq replay dead --rate 5",
            "acquit dlq list dead --older-than soon",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), i32::from(Exit::Usage.code()), "{line}");
        }
    }

    #[test]
    fn the_long_help_tells_every_exit_code() {
        let help = Args::command().render_long_help().to_string();
        assert!(
            help.contains(&Exit::table().trim_end().to_owned()),
            "{help}"
        );
    }
}
