//! Looking at the dead letters of a RabbitMQ, and running them again: for an operator, on a
//! connection of its own.
//!
//! AMQP cannot look at a message without taking it. A look takes up to a bounded number of letters
//! one by one, holds them, and gives back what it leaves by closing its channel. **On a quorum queue
//! with a delivery limit each look counts as a return, before RabbitMQ 4.3**: a letter that was
//! looked at too often is dropped by its broker. So a look takes no more letters than it needs.
//!
//! A replay publishes the copy and waits for the broker's confirm before it acknowledges the letter.
//! Whatever ends it in between leaves both: two messages with one id and one replay number.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use acquit_actors::model::{Generation, MessageId, PartitionId, QueueName};
use lapin::Acker;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Connection};
use tokio::time::{Instant, sleep_until};

use super::super::letters::{Letter, LetterFilter};
use super::classify::classify;
use super::connection::{Opener, connect};
use super::convert::{self, Unpublishable, properties, short};
use super::error::{AmqpError, Right};
use super::options::AmqpOptions;
use super::partitions::Partitions;

/// No look takes more letters than this: they all stay unacknowledged until it ends.
pub const LOOK_MAX: u64 = 100_000;

/// The dead letters of a RabbitMQ.
#[derive(Debug)]
pub struct DeadLetters {
    connection: Connection,
    partitions: Partitions,
    answer_timeout: Duration,
}

/// What a look found.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Found {
    /// The letters that are meant, without their bodies.
    pub letters: Vec<Letter>,
    /// How many letters were taken and given back.
    pub seen: u64,
    /// How many more the queue held.
    pub left: u64,
}

/// What is replayed, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Replay {
    /// Which letters.
    pub filter: LetterFilter,
    /// At most so many; `None`: all that were there when it began.
    pub limit: Option<u64>,
    /// The time from one publish to the next; zero: none.
    pub pause: Duration,
    /// Say what would be replayed, and publish nothing.
    pub dry_run: bool,
}

/// What became of a letter that a replay meant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// It would be replayed.
    Would,
    /// Its copy is in its queue, and it is acknowledged.
    Replayed,
    /// It is still there, since it names no origin.
    WithoutOrigin,
    /// It is still there, since its copy was not taken; why.
    NotTaken(String),
}

/// What a replay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Replayed {
    /// How many letters were taken, whether they were meant or not.
    pub seen: u64,
    /// How many more the queue held when it ended.
    pub left: u64,
}

impl DeadLetters {
    /// Connects to the first address that answers.
    ///
    /// # Errors
    /// The last address's, when none can be connected to, or that of one that answered and refused.
    pub async fn connect(options: &AmqpOptions) -> Result<Self, AmqpError> {
        let options = Arc::new(options.clone());
        let runtime = tokio::runtime::Handle::current();
        let opener = Opener::new(Arc::clone(&options), "dead letters", &runtime);
        let mut failure = None;
        for uri in &options.uris {
            match connect(&opener, uri, |_| {}).await {
                Ok(connection) => {
                    return Ok(Self {
                        connection,
                        partitions: Partitions::of(&options),
                        answer_timeout: options.answer_timeout,
                    });
                }
                Err(error) => {
                    let silent = matches!(
                        error,
                        AmqpError::Unreachable { .. } | AmqpError::Timeout { .. }
                    );
                    // A broker that answers and refuses tells more than one that is not there.
                    if failure.is_none() || !silent {
                        failure = Some(error);
                    }
                }
            }
        }
        Err(failure.unwrap_or(AmqpError::Unreachable {
            text: "`broker.url` names no address".to_owned(),
        }))
    }

    /// Lists at most `limit` letters that are meant, in the queue's order.
    ///
    /// # Errors
    /// [`AmqpError::Missing`] where there is no such queue, and whatever else the broker refuses.
    ///
    /// # Cancel safety
    /// What was taken goes back when its channel is dropped with the connection.
    pub async fn list(
        &self,
        queue: &QueueName,
        filter: &LetterFilter,
        limit: usize,
    ) -> Result<Found, AmqpError> {
        let mut look = Look::begin(self, queue).await?;
        let mut letters = Vec::new();
        while letters.len() < limit
            && let Some((letter, _)) = look.next().await?
        {
            if filter.matches(&letter, SystemTime::now()) {
                letters.push(letter.without_body());
            }
        }
        let (seen, left) = look.end().await?;
        Ok(Found {
            letters,
            seen,
            left,
        })
    }

    /// Finds the first letter with an id, with its body.
    ///
    /// # Errors
    /// As [`DeadLetters::list`].
    ///
    /// # Cancel safety
    /// As [`DeadLetters::list`].
    pub async fn show(
        &self,
        queue: &QueueName,
        id: &MessageId,
    ) -> Result<Option<Letter>, AmqpError> {
        let mut look = Look::begin(self, queue).await?;
        let mut found = None;
        while found.is_none()
            && let Some((letter, _)) = look.next().await?
        {
            found = (letter.delivery.id.as_ref() == Some(id)).then_some(letter);
        }
        look.end().await?;
        Ok(found)
    }

    /// Publishes the letters that are meant to where they came from, and takes them out of the
    /// queue; tells the fate of each as soon as it is known. Letters that arrive meanwhile are left
    /// alone: one that fails again at once is not replayed twice.
    ///
    /// # Errors
    /// As [`DeadLetters::list`]; what was told before an error stays true. After an error while the
    /// channel is closed the last acknowledgements may not have arrived: those letters are there,
    /// and so are their copies.
    ///
    /// # Cancel safety
    /// A letter whose copy was confirmed may still be there, as after a crash.
    pub async fn replay(
        &self,
        queue: &QueueName,
        replay: &Replay,
        mut tell: impl FnMut(&Letter, Fate),
    ) -> Result<Replayed, AmqpError> {
        let mut look = Look::begin(self, queue).await?;
        let mut publisher = None;
        let mut due = Instant::now();
        let mut done = 0;
        while replay.limit.is_none_or(|limit| done < limit)
            && let Some((letter, acker)) = look.next().await?
        {
            if !replay.filter.matches(&letter, SystemTime::now()) {
                continue;
            }
            if letter.origin.is_none() {
                tell(&letter, Fate::WithoutOrigin);
                continue;
            }
            done += 1;
            if replay.dry_run {
                tell(&letter, Fate::Would);
                continue;
            }
            sleep_until(due).await;
            due = Instant::now() + replay.pause;
            let channel = match &publisher {
                Some(channel) => channel,
                None => publisher.insert(self.publisher().await?),
            };
            let fate = match self.publish(channel, &letter).await? {
                None => {
                    look.ack(&acker).await?;
                    Fate::Replayed
                }
                Some(why) => Fate::NotTaken(why),
            };
            tell(&letter, fate);
        }
        let (seen, left) = look.end().await?;
        Ok(Replayed { seen, left })
    }

    /// Disconnects.
    pub async fn close(self) {
        let closing = self.connection.close(200, "done".into());
        // The socket closes with the connection at the latest.
        let _ = self.within("connection.close", closing).await;
    }

    async fn publisher(&self) -> Result<Channel, AmqpError> {
        let channel = self
            .within("channel.open", self.connection.create_channel())
            .await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        self.within("confirm.select", select).await?;
        Ok(channel)
    }

    /// Publishes a copy. `Some`: the broker has not taken it, and why.
    async fn publish(
        &self,
        channel: &Channel,
        letter: &Letter,
    ) -> Result<Option<String>, AmqpError> {
        let Some(copy) = letter.replayed() else {
            return Ok(Some("it names no origin".to_owned()));
        };
        let written = || {
            let to = short("origin", self.partitions.route(&copy).as_str())?;
            let id = match &copy.id {
                Some(id) => short("message id", id.as_str())?,
                None => ShortString::from(format!("{:032x}", rand::random::<u128>())),
            };
            let frame_max = self.connection.configuration().frame_max();
            let frame_max = usize::try_from(frame_max).unwrap_or(usize::MAX);
            Ok((to, properties(&copy, &id, frame_max)?))
        };
        let (to, properties) = match written() {
            Ok(written) => written,
            Err(Unpublishable(why)) => return Ok(Some(why)),
        };
        let options = BasicPublishOptions {
            mandatory: true,
            immediate: false,
        };
        let sending =
            channel.basic_publish(ShortString::default(), to, options, &copy.body, properties);
        let sending = self.within("basic.publish", sending).await;
        let confirm = sending.map_err(|error| error.needing(Right::Write))?;
        let confirming = self.within("the confirm of a publish", confirm).await;
        let confirmation = confirming.map_err(|error| error.needing(Right::Write))?;
        let taken = confirmation.is_ack();
        // One publish is under way at a time: what came back is this one.
        Ok(if confirmation.take_message().is_some() {
            Some("its origin is not there: the broker returned the copy".to_owned())
        } else if taken {
            None
        } else {
            let why = "the broker does not take the copy now (a full queue, or one that is down)";
            Some(why.to_owned())
        })
    }

    async fn within<T>(
        &self,
        what: &'static str,
        answer: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, AmqpError> {
        let after = self.answer_timeout;
        match tokio::time::timeout(after, answer).await {
            Ok(answer) => answer.map_err(|error| classify(&error)),
            Err(_) => Err(AmqpError::Timeout { what, after }),
        }
    }
}

/// One look: what it has taken and not acknowledged goes back when its channel closes.
struct Look<'a> {
    letters: &'a DeadLetters,
    channel: Channel,
    place: convert::Place,
    queue: ShortString,
    seen: u64,
    /// How many were behind the last one taken, of those that were there at the beginning.
    left: Option<u64>,
}

impl<'a> Look<'a> {
    async fn begin(letters: &'a DeadLetters, queue: &QueueName) -> Result<Self, AmqpError> {
        let name = short("name", queue.as_str()).map_err(|Unpublishable(why)| {
            let text = format!("the queue cannot be named: {why}");
            AmqpError::Client { text }
        })?;
        let opening = letters.connection.create_channel();
        Ok(Self {
            letters,
            channel: letters.within("channel.open", opening).await?,
            place: convert::Place {
                queue: queue.clone(),
                partition: PartitionId(0),
                generation: Generation(0),
            },
            queue: name,
            seen: 0,
            left: None,
        })
    }

    /// Takes the next letter of those that were there at the beginning.
    async fn next(&mut self) -> Result<Option<(Letter, Acker)>, AmqpError> {
        if self.left == Some(0) || self.seen == LOOK_MAX {
            return Ok(None);
        }
        let options = BasicGetOptions { no_ack: false };
        let getting = self.channel.basic_get(self.queue.clone(), options);
        let got = self.letters.within("basic.get", getting).await;
        let Some(got) = got.map_err(|error| error.needing(Right::Read))? else {
            self.left = Some(0);
            return Ok(None);
        };
        let behind = u64::from(got.message_count);
        self.left = Some(self.left.map_or(behind, |left| (left - 1).min(behind)));
        self.seen += 1;
        let taken = got.delivery;
        let delivery = convert::delivery(
            &self.place,
            &taken.properties,
            taken.data,
            taken.redelivered,
        );
        Ok(Some((Letter::new(self.seen, delivery), taken.acker)))
    }

    async fn ack(&self, acker: &Acker) -> Result<(), AmqpError> {
        let acking = acker.ack(BasicAckOptions::default());
        // An ack that cannot be sent any more says so; its letter goes back.
        if self.letters.within("basic.ack", acking).await? {
            return Ok(());
        }
        Err(AmqpError::Client {
            text: "the channel ended before a replayed letter was acknowledged".to_owned(),
        })
    }

    /// Closes the channel; the broker answers when it has read every ack before.
    async fn end(self) -> Result<(u64, u64), AmqpError> {
        let closing = self.channel.close(200, "done".into());
        self.letters.within("channel.close", closing).await?;
        Ok((self.seen, self.left.unwrap_or(0)))
    }
}
