//! Numbers and times as people read them, in little room.

use std::time::Duration;

/// A count of at most 7 characters: `12,345`, `1.23M`.
pub(super) fn count(number: u64) -> String {
    const UNITS: [&str; 5] = ["M", "G", "T", "P", "E"];
    if number < 1_000_000 {
        let thousands = number / 1000;
        return match thousands {
            0 => number.to_string(),
            _ => format!("{thousands},{:03}", number % 1000),
        };
    }
    let mut scaled = number as f64 / 1e6;
    let mut unit = 0;
    // Not 1000: what is nearly a thousand would be rounded up to it.
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    let digits = match scaled {
        s if s < 9.995 => 2,
        s if s < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$}{}", UNITS[unit])
}

/// A rate per second: with a decimal while it is small.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        // What dies away is not shown for ever.
        r if r < 0.05 => "0".to_owned(),
        r if r < 99.95 => format!("{r:.1}"),
        r => count(r.round() as u64),
    }
}

/// A length of time in at most two units: `0.2s`, `3m 4s`, `2h 3m`.
pub(in crate::cli) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..10 => format!("{}.{}s", seconds, age.subsec_millis() / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m {}s", seconds % 60),
        3600..86_400 => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

/// Pluralises: `1 bad line`, `2 bad lines`.
pub(super) fn some(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", count(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_keep_their_room() {
        let check = |number, expected| assert_eq!(count(number), expected);
        check(0, "0");
        check(999, "999");
        check(1000, "1,000");
        check(12_045, "12,045");
        check(999_999, "999,999");
        check(1_000_000, "1.00M");
        check(1_234_567, "1.23M");
        check(12_345_678, "12.3M");
        check(999_400_000, "999M");
        check(999_600_000, "1.00G");
        check(u64::MAX, "18.4E");
        for power in 0..64 {
            assert!(count((1 << power) - 1).len() <= 7);
        }
    }

    #[test]
    fn rates_have_a_decimal_while_they_are_small() {
        let check = |per_second, expected| assert_eq!(rate(per_second), expected);
        check(0.0, "0");
        check(0.04, "0");
        check(0.06, "0.1");
        check(99.94, "99.9");
        check(99.96, "100");
        check(123_456.7, "123,457");
        check(f64::NAN, "0");
    }

    #[test]
    fn ages_have_two_units_at_most() {
        let check = |millis, expected| assert_eq!(age(Duration::from_millis(millis)), expected);
        check(0, "0.0s");
        check(9_990, "9.9s");
        check(10_000, "10s");
        check(60_000, "1m 0s");
        check(3_599_999, "59m 59s");
        check(3_600_000, "1h 0m");
        check(86_400_000 * 3 + 3_600_000, "3d 1h");
    }
}
