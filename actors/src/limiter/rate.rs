//! Rates: how they are written, and the token bucket that keeps them.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

/// At most `count` permits in `per`, and at most `burst` at once.
///
/// Timers tick in milliseconds, so a rate is only reached if its burst covers about 2 ms of it.
///
/// ```
/// use acquit_actors::limiter::Rate;
/// use std::time::Duration;
///
/// let rate: Rate = "5/min".parse()?;
/// assert_eq!((rate.count.get(), rate.per, rate.burst.get()), (5, Duration::from_secs(60), 5));
/// let rate: Rate = "100/s burst 20".parse()?;
/// assert_eq!(rate.burst.get(), 20);
/// # Ok::<(), acquit_actors::limiter::RateError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Rate {
    /// How many permits in [`per`](Self::per).
    pub count: NonZeroU32,
    /// In how long; zero reads as 1 ns.
    pub per: Duration,
    /// How many at once after a pause. Written as `burst N`; without it the same as the count.
    pub burst: NonZeroU32,
}

impl Rate {
    /// Makes a rate whose burst is its count.
    pub fn new(count: NonZeroU32, per: Duration) -> Self {
        Self {
            count,
            per,
            burst: count,
        }
    }

    /// Sets how many are allowed at once.
    #[must_use]
    pub fn with_burst(mut self, burst: NonZeroU32) -> Self {
        self.burst = burst;
        self
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, per)| *per == self.per) {
            Some((unit, _)) => write!(f, "{}/{unit}", self.count)?,
            None => write!(f, "{}/{:?}", self.count, self.per)?,
        }
        if self.burst != self.count {
            write!(f, " burst {}", self.burst)?;
        }
        Ok(())
    }
}

/// The first name of each length is the one we write.
const UNITS: [(&str, Duration); 11] = [
    ("s", Duration::from_secs(1)),
    ("sec", Duration::from_secs(1)),
    ("second", Duration::from_secs(1)),
    ("min", Duration::from_secs(60)),
    ("m", Duration::from_secs(60)),
    ("minute", Duration::from_secs(60)),
    ("h", Duration::from_secs(3_600)),
    ("hour", Duration::from_secs(3_600)),
    ("d", Duration::from_secs(86_400)),
    ("day", Duration::from_secs(86_400)),
    ("ms", Duration::from_millis(1)),
];

/// A text that is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not a rate: {fault}; expected a rate such as \"100/s\", \"5/min\", \"10/h\" or \"100/s burst 20\""
)]
pub struct RateError {
    /// What was written.
    pub given: String,
    /// What is wrong with it.
    pub fault: RateFault,
}

/// What is wrong with a text that should be a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RateFault {
    /// There is no `/`.
    #[error("there is no \"/\" between the count and the unit")]
    NoSlash,
    /// What stands before the `/` is no count.
    #[error("the count before \"/\" must be a whole number from 1 to 4294967295")]
    BadCount,
    /// What stands after the `/` is no unit.
    #[error("the unit after \"/\" must be ms, s, min, h or d")]
    BadUnit,
    /// What follows the unit is not `burst N`.
    #[error("only \"burst\" and a whole number from 1 to 4294967295 may follow the unit")]
    BadBurst,
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|fault| RateError {
            given: text.to_owned(),
            fault,
        })
    }
}

fn parse(text: &str) -> Result<Rate, RateFault> {
    let (count, rest) = text.split_once('/').ok_or(RateFault::NoSlash)?;
    let count: NonZeroU32 = count.trim().parse().map_err(|_| RateFault::BadCount)?;
    let mut words = rest.split_whitespace();
    let unit = words.next().ok_or(RateFault::BadUnit)?;
    let (_, per) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or(RateFault::BadUnit)?;
    let rate = Rate::new(count, *per);
    match (words.next(), words.next(), words.next()) {
        (None, _, _) => Ok(rate),
        (Some("burst"), Some(burst), None) => burst
            .parse()
            .map(|burst| rate.with_burst(burst))
            .map_err(|_| RateFault::BadBurst),
        _ => Err(RateFault::BadBurst),
    }
}

/// A token bucket without rounding: a token weighs `per` in nanoseconds, and every nanosecond
/// brings `count`.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    rate: Rate,
    level: u128,
    at: Duration,
}

impl Bucket {
    /// A full bucket.
    pub(super) fn new(rate: Rate, now: Duration) -> Self {
        let mut bucket = Self {
            rate,
            level: 0,
            at: now,
        };
        bucket.level = bucket.level_max();
        bucket
    }

    pub(super) fn rate(&self) -> Rate {
        self.rate
    }

    /// The same number of tokens under another rate, so that resizing brings no new burst.
    pub(super) fn resized(mut self, rate: Rate, now: Duration) -> Self {
        self.refill(now);
        let mut bucket = Self::new(rate, now);
        let tokens_scaled = self.level.saturating_mul(bucket.weight()) / self.weight();
        bucket.level = bucket.level.min(tokens_scaled);
        bucket
    }

    /// `Ok` if there is a token at `now`, else the time at which there will be one.
    pub(super) fn check(&mut self, now: Duration) -> Result<(), Duration> {
        self.refill(now);
        let weight = self.weight();
        if self.level >= weight {
            return Ok(());
        }
        let wait_nanos = (weight - self.level).div_ceil(u128::from(self.rate.count.get()));
        let wait = Duration::from_nanos(u64::try_from(wait_nanos).unwrap_or(u64::MAX));
        Err(self.at.saturating_add(wait))
    }

    /// Spends a token that [`check`](Self::check) has seen.
    pub(super) fn spend(&mut self) {
        debug_assert!(
            self.level >= self.weight(),
            "spent a token that is not there"
        );
        self.level = self.level.saturating_sub(self.weight());
    }

    /// Gives back a token that was set aside for what was not granted in the end.
    pub(super) fn refund(&mut self) {
        self.level = (self.level + self.weight()).min(self.level_max());
    }

    fn refill(&mut self, now: Duration) {
        if let Some(elapsed) = now.checked_sub(self.at) {
            let brought = elapsed
                .as_nanos()
                .saturating_mul(u128::from(self.rate.count.get()));
            self.level = self.level.saturating_add(brought).min(self.level_max());
            self.at = now;
        }
    }

    fn weight(&self) -> u128 {
        self.rate.per.as_nanos().max(1)
    }

    fn level_max(&self) -> u128 {
        self.weight()
            .saturating_mul(u128::from(self.rate.burst.get()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn check(text: &str, count: u32, seconds: u64, burst: u32) {
        let rate: Rate = text.parse().unwrap();
        let read = (rate.count.get(), rate.per, rate.burst.get());
        assert_eq!(read, (count, Duration::from_secs(seconds), burst), "{text}");
        assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate, "{text}");
    }

    fn check_fault(text: &str, fault: RateFault) {
        let error = text.parse::<Rate>().unwrap_err();
        assert_eq!(error.fault, fault, "{text}");
        assert!(error.to_string().contains("100/s"), "{error}");
    }

    #[test]
    fn a_rate_is_read_and_written() {
        check("100/s", 100, 1, 100);
        check("5/min", 5, 60, 5);
        check("10/h", 10, 3_600, 10);
        check(" 7 / minute ", 7, 60, 7);
        check("100/s burst 20", 100, 1, 20);
    }

    #[test]
    fn what_is_no_rate_is_refused_with_an_example() {
        check_fault("100", RateFault::NoSlash);
        check_fault("", RateFault::NoSlash);
        check_fault("0/s", RateFault::BadCount);
        check_fault("-1/s", RateFault::BadCount);
        check_fault("5000000000/s", RateFault::BadCount);
        check_fault("1/", RateFault::BadUnit);
        check_fault("1/fortnight", RateFault::BadUnit);
        check_fault("1/s burst", RateFault::BadBurst);
        check_fault("1/s burst 0", RateFault::BadBurst);
        check_fault("1/s burst 1 2", RateFault::BadBurst);
        check_fault("1/s bursts 1", RateFault::BadBurst);
    }

    fn spend_all(bucket: &mut Bucket, now: Duration) -> (u32, Duration) {
        let mut spent = 0;
        loop {
            match bucket.check(now) {
                Ok(()) => bucket.spend(),
                Err(at) => return (spent, at),
            }
            spent += 1;
        }
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = Bucket::new("3/s burst 2".parse().unwrap(), Duration::ZERO);
        let (spent, mut at) = spend_all(&mut bucket, Duration::ZERO);
        assert_eq!((spent, at), (2, Duration::from_nanos(333_333_334)));
        let mut total = 0;
        while at <= Duration::from_secs(100) {
            let (spent, next) = spend_all(&mut bucket, at);
            assert_eq!(spent, 1);
            total += spent;
            at = next;
        }
        assert_eq!(total, 300, "no rounding adds up");
    }

    #[test]
    fn a_resized_bucket_keeps_its_tokens_and_a_clock_that_steps_back_brings_none() {
        let mut bucket = Bucket::new("10/s".parse().unwrap(), Duration::from_secs(1));
        spend_all(&mut bucket, Duration::from_secs(1));
        let mut bucket = bucket.resized("100/min".parse().unwrap(), Duration::from_millis(1_200));
        assert_eq!(spend_all(&mut bucket, Duration::ZERO).0, 2);
        bucket.refund();
        assert_eq!(spend_all(&mut bucket, Duration::ZERO).0, 1);
    }
}
