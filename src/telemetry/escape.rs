//! Makes text from outside safe to show on one line.

use std::fmt::{self, Write};

/// Shows text with everything escaped that could break a line or fool a terminal: control
/// characters, ESC, Unicode line breaks, and the characters that reorder or hide text.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(is_unsafe) {
            f.write_str(&rest[..at])?;
            let mut tail = rest[at..].chars();
            if let Some(bad) = tail.next() {
                write_escaped(f, bad)?;
            }
            rest = tail.as_str();
        }
        f.write_str(rest)
    }
}

/// Escapes `text` as [`Escaped`] does and cuts it to at most `max` bytes, an ellipsis included.
///
/// ```
/// use acquit::telemetry::escape_cut;
///
/// assert_eq!(escape_cut("two\nlines", 100), "two\\nlines");
/// assert_eq!(escape_cut("0123456789", 8), "01234…");
/// ```
pub fn escape_cut(text: &str, max: usize) -> String {
    const ELLIPSIS: &str = "…";
    let mut out = String::with_capacity(text.len().min(max));
    // Where a cut is possible: after the last whole character that leaves room for the ellipsis.
    let mut cut = 0;
    for character in text.chars() {
        let before = out.len();
        if is_unsafe(character) {
            // Writing to a string cannot fail.
            let _ = write_escaped(&mut out, character);
        } else {
            out.push(character);
        }
        if out.len() > max {
            out.truncate(before.min(cut));
            if max >= ELLIPSIS.len() {
                out.push_str(ELLIPSIS);
            }
            return out;
        }
        if out.len() + ELLIPSIS.len() <= max {
            cut = out.len();
        }
    }
    out
}

/// Tells whether nothing of it would be escaped.
pub(super) fn is_clean(text: &str) -> bool {
    !text.contains(is_unsafe)
}

/// Writes a line of JSON with what is unsafe as JSON's own escapes. Such characters stand only
/// inside strings, so the values stay the same.
pub(super) fn escape_json(out: &mut impl Write, json: &str) -> fmt::Result {
    let mut rest = json;
    while let Some(at) = rest.find(is_unsafe) {
        out.write_str(&rest[..at])?;
        let mut tail = rest[at..].chars();
        if let Some(bad) = tail.next() {
            for unit in bad.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        rest = tail.as_str();
    }
    out.write_str(rest)
}

/// Tells whether a character must not reach a terminal or a line as it is.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{2028}' | '\u{2029}'                        // line and paragraph separators
            | '\u{061C}' | '\u{200E}' | '\u{200F}'         // bidi marks
            | '\u{202A}'..='\u{202E}'                      // bidi embeddings and overrides
            | '\u{2066}'..='\u{2069}'                      // bidi isolates
            | '\u{200B}' | '\u{2060}' | '\u{FEFF}'         // invisible
            | '\u{FFF9}'..='\u{FFFB}'                      // interlinear annotations
            | '\u{E0000}'..='\u{E007F}') // tags
}

fn write_escaped(out: &mut impl Write, character: char) -> fmt::Result {
    match character {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        other => write!(out, "\\u{{{:x}}}", u32::from(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, max: usize, expected: &str) {
        let out = escape_cut(input, max);
        assert_eq!(out, expected);
        assert!(out.len() <= max, "{out:?} is longer than {max}");
    }

    #[test]
    fn what_breaks_a_line_or_fools_a_terminal_is_escaped() {
        check("a\r\nb\tc", 99, "a\\r\\nb\\tc");
        check("\x1b[31mred\x07", 99, "\\u{1b}[31mred\\u{7}");
        check("\u{9b}31m\u{7f}", 99, "\\u{9b}31m\\u{7f}");
        check(
            "a\u{202e}b\u{2066}c\u{200f}",
            99,
            "a\\u{202e}b\\u{2066}c\\u{200f}",
        );
        check("a\u{2028}b\u{feff}", 99, "a\\u{2028}b\\u{feff}");
        check("Grüße, 世界 👋", 99, "Grüße, 世界 👋");
    }

    #[test]
    fn a_cut_never_splits_a_character_or_an_escape() {
        check("Grüße", 99, "Grüße");
        check("Grüße", 7, "Grüße");
        check("Grüße", 6, "Gr…");
        check("abcd", 4, "abcd");
        check("abcde", 4, "a…");
        check("ab\x1b", 7, "ab…");
        check("abc", 2, "");
        check("", 0, "");
        for max in 0..40 {
            let out = escape_cut("x\x1b[2Jé\u{202e}世界 and more of it", max);
            assert!(out.len() <= max);
        }
    }
}
