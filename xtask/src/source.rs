//! Rust sources as the checks of this crate see them: which bytes are code, which are comments,
//! which are the inside of a literal.
//!
//! [`classes`] is a small scanner, no parser: it recognises comments (nested ones too), strings of
//! every form, characters and lifetimes. [`code`] blanks everything that is not code, and
//! [`without_tests`] blanks the items behind `#[cfg(test)]` as well, so that lines and columns stay
//! as they were.

use std::path::Path;

/// The class of a byte of a source file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Code, quotes of literals included.
    Code,
    /// A line comment, from its slashes to the end of the line.
    LineComment,
    /// A block comment.
    BlockComment,
    /// The inside of a string or of a character.
    Literal,
}

/// The class of each byte of `text`.
pub(crate) fn classes(text: &str) -> Vec<Class> {
    let b = text.as_bytes();
    let mut out = vec![Class::Code; b.len()];
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let mut i = 0;
    while i < b.len() {
        let rest = &b[i..];
        let start = i;
        if rest.starts_with(b"//") {
            i += rest.iter().position(|c| *c == b'\n').unwrap_or(rest.len());
            out[start..i].fill(Class::LineComment);
        } else if rest.starts_with(b"/*") {
            let mut depth = 0;
            while i < b.len() {
                match (b[i], b.get(i + 1)) {
                    (b'/', Some(b'*')) => (depth, i) = (depth + 1, i + 2),
                    (b'*', Some(b'/')) => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 {
                    break;
                }
            }
            out[start..i].fill(Class::BlockComment);
        } else if rest[0] == b'"' {
            i += 1;
            while i < b.len() && b[i] != b'"' {
                i += if b[i] == b'\\' { 2 } else { 1 };
            }
            i = i.min(b.len());
            out[start + 1..i].fill(Class::Literal);
            i = (i + 1).min(b.len());
        } else if let Some(hashes) = raw_string(rest).filter(|_| i == 0 || !word(b[i - 1])) {
            let open = i + rest.iter().position(|c| *c == b'"').unwrap_or(0) + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            i = text[open..].find(&close).map_or(b.len(), |n| open + n);
            out[open..i].fill(Class::Literal);
            i = (i + close.len()).min(b.len());
        } else if rest[0] == b'\'' {
            // A character has its closing quote behind one character or behind a backslash;
            // anything else is a lifetime.
            let one = text[i + 1..].chars().next().map_or(0, char::len_utf8);
            if rest.get(1) == Some(&b'\\') {
                let end = rest.iter().skip(3).position(|c| *c == b'\'').map_or(rest.len(), |n| n + 3);
                out[i + 1..i + end].fill(Class::Literal);
                i += end + 1;
            } else if rest.get(1 + one) == Some(&b'\'') {
                out[i + 1..i + 1 + one].fill(Class::Literal);
                i += one + 2;
            } else {
                i += 1;
            }
        } else {
            i += 1;
        }
    }
    out
}

/// How many hashes the raw string has that begins here (`r"`, `br#"`), if one does.
fn raw_string(b: &[u8]) -> Option<usize> {
    let b = b.strip_prefix(b"b").or_else(|| b.strip_prefix(b"c")).unwrap_or(b);
    let b = b.strip_prefix(b"r")?;
    let hashes = b.iter().take_while(|c| **c == b'#').count();
    (b.get(hashes) == Some(&b'"')).then_some(hashes)
}

/// `text` with blanks in place of comments and of the inside of literals.
pub(crate) fn code(text: &str) -> String {
    let keep = |(b, class): (u8, Class)| if class == Class::Code || b == b'\n' { b } else { b' ' };
    let bytes = text.bytes().zip(classes(text)).map(keep).collect();
    String::from_utf8(bytes).unwrap_or_default()
}

/// `code`, which [`code`] made, with blanks in place of each item that only tests have.
pub(crate) fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut bytes = code.as_bytes().to_vec();
    let mut from = 0;
    while let Some(at) = code[from..].find(MARK).map(|n| from + n) {
        let (mut end, mut depth) = (at + MARK.len(), 0);
        for (n, c) in code[end..].bytes().enumerate() {
            match c {
                b'{' | b'(' | b'[' => depth += 1,
                b'}' | b')' | b']' => depth -= 1,
                _ => {}
            }
            if depth == 0 && (c == b'}' || c == b';') {
                end += n + 1;
                break;
            }
        }
        bytes[at..end].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        from = end;
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// The identifiers of `code`, each with the number of its line (from 1).
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines().enumerate().flat_map(|(n, line)| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).map(move |w| (n + 1, w))
    })
}

/// Calls `each` with every Rust file below `dir`, in the order of their names.
pub(crate) fn each_file(dir: &Path, each: &mut dyn FnMut(&Path, &str)) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if path.file_name().is_none_or(|n| n != "target") {
                each_file(&path, each);
            }
        } else if path.extension().is_some_and(|e| e == "rs")
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            each(&path, &text);
        }
    }
}

/// Whether a file holds nothing but tests, by the project's habit of naming.
pub(crate) fn only_tests(path: &Path) -> bool {
    path.components().any(|c| c.as_os_str() == "tests" || c.as_os_str() == "tests.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let text = "let a = \"// no\"; // yes\nlet b = 'x'; let c: &'static str = r#\"a \" b\"#; /* a /* b */ c */ d\n";
        let want = "let a = \"     \";       \nlet b = ' '; let c: &'static str = r#\"     \"#;                   d\n";
        assert_eq!(code(text), want);
    }

    #[test]
    fn quotes_within_literals_do_not_end_them() {
        assert_eq!(code(r#"f("a\"b", '\'', '"', b'\\', "\\") // x"#), r#"f("    ", '  ', ' ', b'  ', "  ")     "#);
        assert_eq!(code("let r = 1; for r in x {} \"r\""), "let r = 1; for r in x {} \" \"");
        assert_eq!(code("'é' + 'a"), "'  ' + 'a");
    }

    #[test]
    fn an_unfinished_literal_ends_with_the_file() {
        for text in ["\"a", "\"a\\", "'\\", "r#\"a", "/* a", "'"] {
            assert_eq!(code(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn items_of_tests_are_blanked_and_what_follows_is_not() {
        let text = "a;\n#[cfg(test)]\nfn t(x: [u8; 3]) { b }\nc;\n#[cfg(test)]\nmod tests;\nd";
        let left = without_tests(&code(text));
        assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["a;", "c;", "d"]);
        assert_eq!(left.lines().count(), text.lines().count());
    }

    #[test]
    fn words_know_their_lines() {
        assert_eq!(words("a.b_c(1)\n$d").collect::<Vec<_>>(), [(1, "a"), (1, "b_c"), (1, "1"), (2, "d")]);
    }
}
