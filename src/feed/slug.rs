//! A feed's name as a part of file names and ids.

use xxhash_rust::xxh3::xxh3_64;

/// The most of a name that stays readable.
const READABLE_MAX: usize = 80;

/// Gives a name that is safe in a file name and in an id. What is not a letter, a digit, `.`, `-`
/// or `_` becomes one `-`; a digest of the whole keeps apart what then looks alike.
pub(super) fn slug(name: &str) -> String {
    let mut slug = String::new();
    for character in name.chars() {
        let is_plain = character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_');
        match is_plain {
            true if character != '-' => slug.push(character),
            _ if slug.is_empty() || slug.ends_with('-') => {}
            _ => slug.push('-'),
        }
    }
    slug.truncate(READABLE_MAX);
    let digest = xxh3_64(name.as_bytes()) >> 32;
    format!("{}-{digest:08x}", slug.trim_end_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, readable: &str) {
        let slug = slug(name);
        let (left, digest) = slug.rsplit_once('-').unwrap();
        assert_eq!((left, digest.len()), (readable, 8), "{name:?}");
    }

    #[test]
    fn a_name_stays_readable_and_becomes_harmless() {
        check(
            "examples/tasks.jsonl -> words",
            "examples-tasks.jsonl-words",
        );
        check("../../etc/x -> q", "..-..-etc-x-q");
        check("/abs/ü\n\u{202e}.jsonl -> q", "abs-.jsonl-q");
        check("", "");
        check(&"x".repeat(5000), &"x".repeat(READABLE_MAX));
    }

    #[test]
    fn names_that_look_alike_are_kept_apart() {
        assert_ne!(slug("a/b -> q"), slug("a-b -> q"));
    }
}
