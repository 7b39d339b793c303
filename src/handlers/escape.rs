//! Foreign bytes as one line of text that can do no harm in a log, a terminal or a header.

use std::fmt::Write;

/// Makes one harmless line of any bytes: control characters (line ends and ESC among them),
/// invisible marks and marks that turn the direction of text are written out, bytes that are not
/// UTF-8 become `\xNN`, and a text over `max` bytes is cut with its full length shown.
///
/// ```
/// use acquit::handlers::escape_line;
///
/// assert_eq!(escape_line(b"a\r\nERROR forged \x1b[31m", 64), "a\\r\\nERROR forged \\u{1b}[31m");
/// assert_eq!(escape_line(b"0123456789", 4), "0123… (10 bytes)");
/// ```
pub fn escape_line(bytes: &[u8], max: usize) -> String {
    let mut line = String::with_capacity(bytes.len().min(max));
    if push_escaped(&mut line, bytes, max).is_err() {
        // Writing to a String cannot fail: the only error is our own, for a text that is too long.
        let _ = write!(line, "… ({} bytes)", bytes.len());
    }
    line
}

/// The same, of the end of a text, marked where its beginning is missing: because it `is_cut`
/// already, or because only `max` bytes are kept.
pub(crate) fn escape_tail(bytes: &[u8], is_cut: bool, max: usize) -> String {
    // Escaping makes text longer, never shorter: what does not fit is looked for from the end.
    let mut from = bytes.len().saturating_sub(max);
    loop {
        while from < bytes.len() && bytes[from] & 0xC0 == 0x80 {
            from += 1;
        }
        let mut line = String::with_capacity((bytes.len() - from).min(max));
        if push_escaped(&mut line, &bytes[from..], max).is_ok() {
            return if from == 0 && !is_cut {
                line
            } else {
                format!("…{line}")
            };
        }
        from += (bytes.len() - from).div_ceil(4).max(1);
    }
}

/// The text would be longer than its limit; what fits has been written.
struct TooLong;

fn push_escaped(line: &mut String, bytes: &[u8], max: usize) -> Result<(), TooLong> {
    let mut piece = String::new();
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_harmless(character) {
                if line.len() + character.len_utf8() > max {
                    return Err(TooLong);
                }
                line.push(character);
                continue;
            }
            piece.clear();
            match character {
                '\n' => piece.push_str("\\n"),
                '\r' => piece.push_str("\\r"),
                '\t' => piece.push_str("\\t"),
                other => {
                    let _ = write!(piece, "\\u{{{:x}}}", u32::from(other));
                }
            }
            append(line, &piece, max)?;
        }
        for byte in chunk.invalid() {
            piece.clear();
            let _ = write!(piece, "\\x{byte:02x}");
            append(line, &piece, max)?;
        }
    }
    Ok(())
}

fn append(line: &mut String, piece: &str, max: usize) -> Result<(), TooLong> {
    if line.len() + piece.len() > max {
        return Err(TooLong);
    }
    line.push_str(piece);
    Ok(())
}

fn is_harmless(character: char) -> bool {
    !character.is_control()
        && !matches!(
            u32::from(character),
            0x00AD | 0x061C // soft hyphen, Arabic letter mark
            | 0x200B..=0x200F | 0x2028..=0x202E // zero width, marks, separators, embeddings
            | 0x2060..=0x206F // joiners, isolates
            | 0xFEFF | 0xFFF9..=0xFFFB // byte order mark, annotations
            | 0xE0000..=0xE007F // tags
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_a_cursor_or_turns_text_gets_through() {
        let check = |input: &str, expected| assert_eq!(escape_line(input.as_bytes(), 99), expected);
        check("plain ünï ✓", "plain ünï ✓");
        check("a\r\n2026 ERROR forged", "a\\r\\n2026 ERROR forged");
        check("\u{1b}[31m", "\\u{1b}[31m");
        check("\u{9b}31m", "\\u{9b}31m");
        check(
            "a\u{202e}b\u{2066}c\u{2028}d",
            "a\\u{202e}b\\u{2066}c\\u{2028}d",
        );
        check("\0\u{7f}", "\\u{0}\\u{7f}");
        assert_eq!(escape_line(b"\xff\xfeok", 99), "\\xff\\xfeok");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_and_says_so() {
        assert_eq!(escape_line("ääää".as_bytes(), 5), "ää… (8 bytes)");
        assert_eq!(escape_line(b"ab\x1bcd", 5), "ab… (5 bytes)");
    }

    #[test]
    fn a_tail_keeps_the_end_within_its_limit() {
        assert_eq!(escape_tail(b"short", false, 8), "short");
        assert_eq!(escape_tail(b"short", true, 8), "…short");
        assert_eq!(escape_tail(b"0123456789", false, 4), "…6789");
        assert_eq!(escape_tail("xäää".as_bytes(), false, 5), "…ää");
        let noisy = [0x1b_u8; 4096];
        let tail = escape_tail(&noisy, false, 100);
        assert!(tail.len() <= 100 + '…'.len_utf8() && tail.ends_with("\\u{1b}"));
    }
}
