//! `acquit dlq`: looks at dead letters, and has them run again.

use std::io::{self, Write};
use std::time::SystemTime;

use base64::Engine as _;
use serde_json::{Value, json};

use super::args::{DlqAction, FilterArgs, LetterArgs, ListArgs, ReplayArgs};
use super::view::words::age;
use super::{Exit, whole};
use crate::app::{self, AppError, Broker, amqp_options};
use crate::config::{BrokerUrl, Plan};
use crate::model::{HeaderValue, MessageId, QueueName};
use crate::telemetry::{Escaped, escape_cut};
use crate::transport::amqp::{
    AmqpError, AmqpOptions, DeadLetters, Fate, Found, LOOK_MAX, Replay, Replayed,
};
use crate::transport::embedded::{DeadMessage, EmbeddedTransport};
use crate::transport::{Letter, LetterFilter};

/// A short field is cut to this many bytes.
const FIELD_MAX: usize = 60;

/// Performs an action on a dead-letter queue of the configured broker, on a connection of its own:
/// no process of the configuration has to run. On an embedded broker it is a queue's own dead list,
/// and none may run.
///
/// | exit | when |
/// |---|---|
/// | 0 | shown, or every letter that was meant is replayed |
/// | 1 | `show`: there is no such letter; `replay`: one that was meant is still there |
/// | 2 | the broker keeps no letters that this command reaches |
/// | 11 | there is no such queue, or it cannot be read |
/// | 14 | no connection, handshake or credentials; or it was lost |
/// | 15 | the broker gave no permission |
///
/// # Errors
/// When `out` or `err` cannot be written. A replay goes on meanwhile: what it does does not hang on
/// who reads it.
pub async fn dlq(
    plan: &Plan,
    action: &DlqAction,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    if let Some(options) = amqp_options(plan) {
        return show_dlq(&options, action, json, out, err).await;
    }
    if plan.broker.url == BrokerUrl::Memory {
        let text = "the dead letters of memory: are seen by its process alone: acquit get QUEUE --dead asks it";
        writeln!(err, "acquit: dlq: {text}")?;
        return Ok(Exit::Usage);
    }
    let show = Show { json, out };
    match embedded(plan, action, show).await {
        Ok(exit) => exit,
        Err(error) => {
            writeln!(err, "acquit: dlq: {}", whole(&error))?;
            let text = "an embedded store has one owner: stop the process that runs, or look with acquit get QUEUE --dead";
            writeln!(err, "{text}")?;
            Ok(Exit::from(&error))
        }
    }
}

/// Performs an action with a RabbitMQ; see [`dlq`].
///
/// # Errors
/// When `out` or `err` cannot be written.
pub async fn show_dlq(
    options: &AmqpOptions,
    action: &DlqAction,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    let mut show = Show { json, out };
    let done = match DeadLetters::connect(options).await {
        Ok(letters) => {
            let done = on(&letters, action, &mut show).await;
            letters.close().await;
            done
        }
        Err(error) => Err(error),
    };
    done.unwrap_or_else(|error| {
        writeln!(err, "acquit: dlq: {error}")?;
        Ok(Exit::from_engine(error.exit_code()))
    })
}

async fn on(
    letters: &DeadLetters,
    action: &DlqAction,
    show: &mut Show<'_>,
) -> Result<io::Result<Exit>, AmqpError> {
    match action {
        DlqAction::List(args) => {
            let queue = QueueName::from(args.queue.as_str());
            let limit = limit(args);
            let found = letters.list(&queue, &filter(&args.filter), limit).await?;
            Ok(show.list(&found))
        }
        DlqAction::Show(args) => {
            let queue = QueueName::from(args.queue.as_str());
            let id = MessageId::new(args.id.as_str());
            let found = letters.show(&queue, &id).await?;
            Ok(show.letter(found.as_ref(), args))
        }
        DlqAction::Replay(args) => {
            let queue = QueueName::from(args.queue.as_str());
            let mut tally = Tally::default();
            let tell = |letter: &Letter, fate| tally.note(show.fate(letter, &fate), &fate);
            let done = letters.replay(&queue, &replay(args), tell).await;
            let ended = *done.as_ref().unwrap_or(&Replayed::default());
            let told = show.tally(&tally, ended, done.is_ok());
            done.map(|_| told.and(tally.exit()))
        }
    }
}

fn limit(args: &ListArgs) -> usize {
    usize::try_from(args.limit).unwrap_or(usize::MAX)
}

fn filter(args: &FilterArgs) -> LetterFilter {
    let mut filter = LetterFilter::default();
    filter.reason.clone_from(&args.reason);
    filter.id = args.id.as_deref().map(MessageId::new);
    filter.older_than = args.older_than;
    let headers = args.headers.iter();
    filter.headers = headers
        .map(|header| (header.name.clone(), header.value.clone()))
        .collect();
    filter
}

fn replay(args: &ReplayArgs) -> Replay {
    Replay {
        filter: filter(&args.filter),
        limit: args.limit,
        pause: args.rate.map(|rate| rate.pause()).unwrap_or_default(),
        dry_run: args.dry_run,
    }
}

/// The dead list of a queue in the embedded store, which nobody else has open.
async fn embedded(
    plan: &Plan,
    action: &DlqAction,
    mut show: Show<'_>,
) -> Result<io::Result<Exit>, AppError> {
    let broker = app::open_broker(plan)?;
    app::make_ready(plan, &broker).await?;
    let Broker::Embedded(store) = &broker else {
        return Ok(Ok(Exit::Usage));
    };
    match action {
        DlqAction::List(args) => {
            let dead = dead_list(store, &args.queue).await?;
            let (filter, mut found) = (filter(&args.filter), Found::default());
            found.seen = dead.len() as u64;
            let letters = dead.into_iter().map(|(letter, _)| letter.without_body());
            found.letters = letters
                .filter(|letter| filter.matches(letter, SystemTime::now()))
                .take(limit(args))
                .collect();
            Ok(show.list(&found))
        }
        DlqAction::Show(args) => {
            let dead = dead_list(store, &args.queue).await?;
            let id = MessageId::new(args.id.as_str());
            let mut letters = dead.into_iter().map(|(letter, _)| letter);
            let found = letters.find(|letter| letter.delivery.id.as_ref() == Some(&id));
            Ok(show.letter(found.as_ref(), args))
        }
        DlqAction::Replay(args) => {
            let (queue, replay) = (QueueName::from(args.queue.as_str()), replay(args));
            let mut tally = Tally::default();
            let (mut done, mut ended) = (0, Replayed::default());
            for (letter, dead) in dead_list(store, &args.queue).await? {
                ended.seen += 1;
                if replay.limit == Some(done) {
                    break;
                }
                if !replay.filter.matches(&letter, SystemTime::now()) {
                    continue;
                }
                let fate = if replay.dry_run {
                    Fate::Would
                } else {
                    if done > 0 {
                        tokio::time::sleep(replay.pause).await;
                    }
                    store.replay_dead(&queue, &dead).await?;
                    Fate::Replayed
                };
                done += 1;
                tally.note(show.fate(&letter, &fate), &fate);
            }
            Ok(show.tally(&tally, ended, true).and(tally.exit()))
        }
    }
}

async fn dead_list(
    store: &EmbeddedTransport,
    queue: &str,
) -> Result<Vec<(Letter, DeadMessage)>, AppError> {
    let max = usize::try_from(LOOK_MAX).unwrap_or(usize::MAX);
    let queue = QueueName::from(queue);
    let list = store.dead_list(&queue, max).await?;
    let letter = |(position, dead): (u64, DeadMessage)| {
        let mut letter = Letter::new(position, dead.delivery.clone());
        letter.reason = Some(dead.reason.clone());
        letter.origin = Some(queue.clone());
        (letter, dead)
    };
    Ok((1..).zip(list).map(letter).collect())
}

/// How many letters had which fate.
#[derive(Debug, Default)]
struct Tally {
    would: u64,
    replayed: u64,
    without_origin: u64,
    not_taken: u64,
    /// The first time that nothing could be written.
    unwritten: Option<io::Error>,
}

impl Tally {
    fn note(&mut self, written: io::Result<()>, fate: &Fate) {
        match fate {
            Fate::Would => self.would += 1,
            Fate::Replayed => self.replayed += 1,
            Fate::WithoutOrigin => self.without_origin += 1,
            _ => self.not_taken += 1,
        }
        if let Err(error) = written {
            self.unwritten.get_or_insert(error);
        }
    }

    fn exit(self) -> io::Result<Exit> {
        match self.unwritten {
            Some(error) => Err(error),
            None if self.without_origin + self.not_taken > 0 => Ok(Exit::Failure),
            None => Ok(Exit::Clean),
        }
    }
}

/// Where results go, and for whom.
struct Show<'a> {
    json: bool,
    out: &'a mut dyn Write,
}

impl Show<'_> {
    fn list(&mut self, found: &Found) -> io::Result<Exit> {
        if self.json {
            for letter in &found.letters {
                writeln!(self.out, "{}", to_json(letter))?;
            }
            return Ok(Exit::Clean);
        }
        if !found.letters.is_empty() {
            writeln!(
                self.out,
                "{:<36} {:<12} {:>7} {:>8} {:>7} {:>8} {:>9}  {:<20} last error",
                "id", "reason", "attempt", "replayed", "returns", "age", "bytes", "origin"
            )?;
        }
        for letter in &found.letters {
            let delivery = &letter.delivery;
            writeln!(
                self.out,
                "{:<36} {:<12} {:>7} {:>8} {:>7} {:>8} {:>9}  {:<20} {}",
                id(letter),
                field(letter.reason.as_deref()),
                delivery.attempt.get(),
                delivery.replay.0,
                returns(letter).map_or("-".to_owned(), |returns| returns.to_string()),
                letter.age(SystemTime::now()).map_or("-".to_owned(), age),
                letter.body_bytes,
                field(letter.origin.as_ref().map(QueueName::as_str)),
                field(letter.last_error()),
            )?;
        }
        let (shown, seen, left) = (found.letters.len(), found.seen, found.left);
        writeln!(
            self.out,
            "{shown} shown, {seen} looked at, {left} not looked at"
        )?;
        Ok(Exit::Clean)
    }

    fn letter(&mut self, letter: Option<&Letter>, args: &LetterArgs) -> io::Result<Exit> {
        let Some(letter) = letter else {
            let (queue, id) = (&args.queue, escape_cut(&args.id, 300));
            if !self.json {
                let queue = escape_cut(queue, 300);
                writeln!(self.out, "there is no letter {id} in {queue}")?;
            }
            return Ok(Exit::Failure);
        };
        let delivery = &letter.delivery;
        if self.json {
            let mut value = to_json(letter);
            match std::str::from_utf8(&delivery.body) {
                Ok(text) => value["body"] = json!(text),
                Err(_) => value["body-base64"] = json!(encoded(letter)),
            }
            writeln!(self.out, "{value}")?;
            return Ok(Exit::Clean);
        }
        let lines = [
            ("id", delivery.id.as_ref().map(|id| id.as_str().to_owned())),
            ("reason", letter.reason.clone()),
            ("origin", letter.origin.as_ref().map(ToString::to_string)),
            ("attempt", Some(delivery.attempt.get().to_string())),
            ("replayed", Some(delivery.replay.0.to_string())),
            (
                "returns",
                returns(letter).map(|returns| returns.to_string()),
            ),
            ("published", delivery.published_at.map(timestamp)),
            ("died", letter.died_at.map(timestamp)),
            ("content-type", delivery.content_type.clone()),
            ("correlation-id", delivery.correlation_id.clone()),
            ("bytes", Some(letter.body_bytes.to_string())),
        ];
        for (name, value) in lines {
            if let Some(value) = value {
                writeln!(self.out, "{name}: {}", Escaped(&value))?;
            }
        }
        for (name, value) in delivery.headers.iter() {
            let value = match value {
                HeaderValue::Text(text) => text.clone(),
                other => json!(other).to_string(),
            };
            writeln!(self.out, "header {}: {}", Escaped(name), Escaped(&value))?;
        }
        writeln!(self.out)?;
        match std::str::from_utf8(&delivery.body) {
            Ok(text) => {
                for line in text.lines() {
                    writeln!(self.out, "{}", Escaped(line))?;
                }
            }
            Err(_) => {
                writeln!(self.out, "(not text; base64)")?;
                writeln!(self.out, "{}", encoded(letter))?;
            }
        }
        Ok(Exit::Clean)
    }

    fn fate(&mut self, letter: &Letter, fate: &Fate) -> io::Result<()> {
        let (word, why) = match fate {
            Fate::Would => ("would replay", None),
            Fate::Replayed => ("replayed", None),
            Fate::WithoutOrigin => (
                "skipped",
                Some("no x-acquit-origin-queue says where it came from"),
            ),
            Fate::NotTaken(why) => ("not replayed", Some(why.as_str())),
        };
        if self.json {
            let value = json!({
                "id": letter.delivery.id,
                "position": letter.position,
                "origin": letter.origin,
                "fate": word.replace(' ', "-"),
                "why": why,
            });
            writeln!(self.out, "{value}")?;
        } else {
            write!(self.out, "{word} {}", id(letter))?;
            if let Some(origin) = &letter.origin {
                write!(self.out, " to {}", escape_cut(origin.as_str(), 300))?;
            }
            match why {
                Some(why) => writeln!(self.out, ": {}", escape_cut(why, 1000))?,
                None => writeln!(self.out)?,
            }
        }
        self.out.flush()
    }

    fn tally(&mut self, tally: &Tally, ended: Replayed, is_whole: bool) -> io::Result<()> {
        let Tally {
            would,
            replayed,
            without_origin,
            not_taken,
            ..
        } = tally;
        if self.json {
            let value = json!({
                "would-replay": would,
                "replayed": replayed,
                "skipped": without_origin,
                "not-replayed": not_taken,
                "whole": is_whole,
            });
            return writeln!(self.out, "{value}");
        }
        if *would > 0 {
            write!(self.out, "{would} would be replayed, ")?;
        }
        write!(
            self.out,
            "{replayed} replayed, {without_origin} skipped, {not_taken} not replayed"
        )?;
        if is_whole {
            writeln!(self.out, "; {} looked at", ended.seen)
        } else {
            writeln!(self.out, "; then it broke off")
        }
    }
}

fn to_json(letter: &Letter) -> Value {
    let delivery = &letter.delivery;
    json!({
        "position": letter.position,
        "id": delivery.id,
        "reason": letter.reason,
        "origin": letter.origin,
        "attempt": delivery.attempt,
        "replayed": delivery.replay.0,
        "returns": returns(letter),
        "published-at": delivery.published_at.map(timestamp),
        "died-at": letter.died_at.map(timestamp),
        "content-type": delivery.content_type,
        "correlation-id": delivery.correlation_id,
        "bytes": letter.body_bytes,
        "headers": delivery.headers,
    })
}

/// How often it was taken and given back, as far as its broker counts that.
fn returns(letter: &Letter) -> Option<u32> {
    let count = letter.delivery.delivery_count?;
    Some(count.saturating_sub(1))
}

fn timestamp(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

fn encoded(letter: &Letter) -> String {
    base64::engine::general_purpose::STANDARD.encode(&letter.delivery.body)
}

fn id(letter: &Letter) -> String {
    match &letter.delivery.id {
        Some(id) => escape_cut(id.as_str(), FIELD_MAX),
        None => format!("(no id, number {})", letter.position),
    }
}

fn field(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| escape_cut(text, FIELD_MAX))
}

#[cfg(test)]
#[path = "dlq_tests.rs"]
mod tests;
