//! Enough of Rust's grammar to read source as text: what is code, what is test code, which paths are named.

use std::iter;

/// The code with comments, strings and characters replaced by spaces; line breaks stay, so line numbers hold.
pub(crate) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = end_of_non_code(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(
                chars[at..end]
                    .iter()
                    .map(|&c| if c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    out
}

/// Where the comment, string or character that starts here ends; `at` itself if none starts here.
fn end_of_non_code(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => position(chars, at, |c| c == '\n'),
        '/' if next == Some('*') => end_of_block_comment(chars, at),
        '"' => end_of_string(chars, at),
        'r' if !follows_word(chars, at) || follows_byte_prefix(chars, at) => {
            end_of_raw_string(chars, at)
        }
        '\'' => end_of_char(chars, at),
        _ => at,
    }
}

fn position(chars: &[char], from: usize, found: impl Fn(char) -> bool) -> usize {
    chars[from..]
        .iter()
        .position(|&c| found(c))
        .map_or(chars.len(), |offset| from + offset)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn follows_word(chars: &[char], at: usize) -> bool {
    at > 0 && is_word(chars[at - 1])
}

fn follows_byte_prefix(chars: &[char], at: usize) -> bool {
    at > 0 && matches!(chars[at - 1], 'b' | 'c') && !follows_word(chars, at - 1)
}

fn end_of_block_comment(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn end_of_string(chars: &[char], at: usize) -> usize {
    let mut at = at + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    chars.len().min(at + 1)
}

fn end_of_raw_string(chars: &[char], at: usize) -> usize {
    let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return at;
    }
    let close: Vec<char> = iter::once('"').chain(iter::repeat_n('#', hashes)).collect();
    let end = chars[open + 1..]
        .windows(close.len())
        .position(|window| window == close);
    end.map_or(chars.len(), |offset| open + 1 + offset + close.len())
}

/// A lifetime starts like a character, but no quote closes it.
fn end_of_char(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => chars.len().min(position(chars, at + 3, |c| c == '\'') + 1),
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

/// For each line of code-only text, whether it belongs to an item under `#[cfg(test)]` or to a `#[test]` function.
pub(crate) fn test_lines(code: &str) -> Vec<bool> {
    let mut marked = vec![false; code.lines().count() + 1];
    for marker in [
        "#[cfg(test)]",
        "#[cfg(all(test",
        "#[cfg(any(test",
        "#[test]",
        "#[tokio::test",
        "#[actix_rt::test",
    ] {
        for (start, _) in code.match_indices(marker) {
            let end = end_of_item(code, start + marker.len());
            marked[line_of(code, start) - 1..line_of(code, end)].fill(true);
        }
    }
    marked
}

/// The modules with files of their own that this file declares under `#[cfg(test)]`, as paths
/// without `.rs`.
pub(crate) fn test_modules(path: &str, text: &str) -> Vec<String> {
    let stem = path.trim_end_matches(".rs");
    let folder = ["/mod", "/lib", "/main"]
        .iter()
        .find_map(|name| stem.strip_suffix(name))
        .unwrap_or(stem);
    let code = code_only(text);
    let in_test = test_lines(&code);
    let test_code = code.lines().zip(in_test).filter(|(_, in_test)| *in_test);
    test_code
        .filter_map(|(line, _)| line.trim().strip_suffix(';')?.rsplit_once("mod "))
        .map(|(_, name)| format!("{folder}/{name}"))
        .collect()
}

/// The end of the item whose attributes begin before `from`: its closing brace, or its semicolon.
fn end_of_item(code: &str, from: usize) -> usize {
    let (mut braces, mut brackets) = (0_usize, 0_isize);
    for (offset, c) in code[from..].char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            '{' => braces += 1,
            '}' if braces <= 1 => return from + offset,
            '}' => braces -= 1,
            ';' if braces == 0 && brackets <= 0 => return from + offset,
            _ => {}
        }
    }
    code.len()
}

pub(crate) fn line_of(code: &str, at: usize) -> usize {
    1 + code[..at].matches('\n').count()
}

/// Every use of `root::` in code-only text, as the line and the path below it; groups are spread out:
/// `crate::{model::Phase, ports}` gives `model::Phase` and `ports`.
pub(crate) fn paths_below(code: &str, root: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (start, _) in code.match_indices(&format!("{root}::")) {
        if starts_path(&code[..start]) {
            spread(code, start + root.len() + 2, String::new(), &mut found);
        }
    }
    found
}

/// Whether a name that stands after `before` begins a path of its own.
fn starts_path(before: &str) -> bool {
    let trimmed = before.trim_end_matches('$');
    !trimmed.ends_with("::") && !trimmed.ends_with(|c: char| is_word(c) || c == '.' || c == '\'')
}

/// Reads the path at `at`, and each path of a group in its braces; returns where it ends.
fn spread(code: &str, at: usize, prefix: String, found: &mut Vec<(usize, String)>) -> usize {
    let mut at = skip_spaces(code, at);
    if code[at..].starts_with('{') {
        at += 1;
        loop {
            at = skip_spaces(code, at);
            match code[at..].chars().next() {
                Some(',') => at += 1,
                Some('}') => return at + 1,
                Some(c) if is_word(c) || matches!(c, '*' | '{') => {
                    at = spread(code, at, prefix.clone(), found)
                }
                _ => return at,
            }
        }
    }
    let end = at
        + code[at..]
            .find(|c: char| !is_word(c))
            .unwrap_or(code.len() - at);
    let name = if end == at { "*" } else { &code[at..end] };
    let path = if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}::{name}")
    };
    if code[end..].starts_with("::") {
        return spread(code, end + 2, path, found);
    }
    found.push((line_of(code, at), path));
    let after = skip_spaces(code, end.max(at + usize::from(name == "*")));
    // `name as other` inside a group
    match code[after..].strip_prefix("as ") {
        Some(rest) => after + 3 + rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()),
        None => after,
    }
}

fn skip_spaces(code: &str, at: usize) -> usize {
    at + code[at..]
        .find(|c: char| !c.is_whitespace())
        .unwrap_or(code.len() - at)
}

#[test]
fn comments_strings_and_characters_are_not_code() {
    let check = |text: &str, expected: &str| assert_eq!(code_only(text), expected, "{text}");
    check("a // b\nc", "a     \nc");
    check("a /* /* b */ \n */ c", "a            \n    c");
    check(r#"f("x\"y") g"#, "f(      ) g");
    check("f(r#\"a\"b\"#) g", "f(        ) g");
    check(r"f('\'', 'x', b'\n') g", "f(    ,    , b    ) g");
    check("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}");
    check("for r in rows { r.x }", "for r in rows { r.x }");
}

#[test]
fn paths_are_found_in_groups_over_lines_and_inline() {
    let code = "use crate::{\n    model::{Phase, self as m},\n    ports,\n};\nfn f() { x.crate::no; crate::limiter::go() }";
    let found = paths_below(code, "crate");
    let expected = [
        (2, "model::Phase"),
        (2, "model::self"),
        (3, "ports"),
        (5, "limiter::go"),
    ];
    assert_eq!(found, expected.map(|(line, path)| (line, path.to_owned())));
    assert_eq!(
        paths_below("use tokio::time::*; a::tokio::b; my_tokio::c;", "tokio"),
        [(1, "time::*".to_owned())]
    );
}

#[test]
fn test_code_ends_with_its_item() {
    let code = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nmod other;\nfn d() {}\n";
    let lines: Vec<usize> = (1..)
        .zip(test_lines(code))
        .filter(|(_, test)| *test)
        .map(|(line, _)| line)
        .collect();
    assert_eq!(lines, [2, 3, 4, 5, 7, 8]);
}

#[test]
fn a_test_module_can_have_a_file_of_its_own() {
    let text = "mod core;\n#[cfg(test)]\nmod properties;\n#[cfg(test)]\npub(crate) mod script;\n";
    let check = |path: &str, expected: [&str; 2]| assert_eq!(test_modules(path, text), expected);
    check(
        "actors/src/a/mod.rs",
        ["actors/src/a/properties", "actors/src/a/script"],
    );
    check("src/app.rs", ["src/app/properties", "src/app/script"]);
}
