//! `cargo xtask width`: comments are at most 100 columns wide, so that two files fit beside each
//! other on a screen.
//!
//! **Paragraph**: lines of a comment that follow each other with one indent and one marker (`//`,
//! `///`, `//!`) and are one run of text in Markdown. **Unit**: text that is never broken: a word,
//! a span of code, a word with what must not begin a line.
//!
//! The check names every comment that is wider, but for tables, blocks of code and units that are
//! too long by themselves (addresses). `--fix` wraps paragraphs that have such a line, and only
//! those; list items are wrapped one by one. Kept as they are: tables, headings, blocks of code,
//! indented text, quotations, definitions of links, columns (two blanks within a line), hard
//! breaks. Comments behind code on a line are named, not wrapped. Code is never touched: `fix`
//! gives up on a file whose code would change.

use std::path::{Path, PathBuf};

use crate::source::{self, Class};

/// Columns of a line with a comment.
const WIDTH: usize = 100;
/// Spans of code up to this length stay on one line.
const SPAN_MAX: usize = 40;

/// Runs the command: `[--fix] [FOLDER...]`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let fix = args.iter().any(|a| a == "--fix");
    if let Some(odd) = args.iter().find(|a| a.starts_with('-') && *a != "--fix") {
        return Err(format!("width knows no argument {odd}; it takes --fix and folders"));
    }
    let mut folders: Vec<PathBuf> = args.iter().filter(|a| !a.starts_with('-')).map(PathBuf::from).collect();
    if folders.is_empty() {
        folders = ["crates", "xtask", "fuzz"].iter().map(|f| crate::root().join(f)).collect();
    }
    let (mut wide, mut mended, mut failed) = (0, 0, None);
    for folder in &folders {
        source::each_file(folder, &mut |path, text| {
            let mut text = text.to_string();
            if fix {
                let new = fixed(&text);
                if new != text {
                    match write(path, &text, &new) {
                        Ok(()) => mended += 1,
                        Err(why) => failed = Some(why),
                    }
                    text = new;
                }
            }
            for n in too_wide(&text) {
                println!("{}:{n}", path.strip_prefix(crate::root()).unwrap_or(path).display());
                wide += 1;
            }
        });
    }
    if fix {
        println!("files wrapped={mended}");
    }
    match (failed, wide) {
        (Some(why), _) => Err(why),
        (None, 0) => Ok(()),
        (None, n) => Err(format!("{n} comments are wider than {WIDTH} columns")),
    }
}

fn write(path: &Path, old: &str, new: &str) -> Result<(), String> {
    let code = |text: &str| source::code(text).split_whitespace().collect::<String>();
    if code(old) != code(new) {
        return Err(format!("{}: wrapping would change code; the file is as it was", path.display()));
    }
    std::fs::write(path, new).map_err(|e| format!("{}: {e}", path.display()))
}

/// A line of a source file.
struct Line<'a> {
    text: &'a str,
    /// The blanks and the marker before the text, if the line holds nothing but a comment.
    prefix: Option<&'a str>,
    /// Whether a comment stands behind code.
    trailing: bool,
}

impl Line<'_> {
    /// The text behind the marker.
    fn content(&self) -> &str {
        &self.text[self.prefix.map_or(0, str::len)..]
    }
}

fn lines(text: &str) -> Vec<Line<'_>> {
    let classes = source::classes(text);
    let mut at = 0;
    let mut out = Vec::new();
    for full in text.split_inclusive('\n') {
        let line = full.trim_end_matches(['\n', '\r']);
        let start = line.len() - line.trim_start().len();
        let comment = |n: usize| classes.get(at + n).is_some_and(|c| *c == Class::LineComment);
        let begins = start < line.len() && comment(start);
        let slashes = line[start..].bytes().take_while(|b| *b == b'/').count();
        // Four slashes and more are a rule across the page.
        let marker = match (slashes, line.as_bytes().get(start + 2)) {
            (2, Some(b'!')) => 3,
            (2 | 3, _) => slashes,
            _ => 0,
        };
        let prefix = (begins && marker > 0).then(|| &line[..start + marker]);
        let trailing = !begins && (start..line.len()).any(comment);
        out.push(Line { text: line, prefix, trailing });
        at += full.len();
    }
    out
}

/// The Markdown kind of a comment line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Stays as it is, however wide.
    Free,
    /// Stays as it is.
    Fixed,
    /// Begins a list item: columns of its blanks, columns up to its text.
    Item(usize, usize),
    /// Text with so many blanks before it.
    Text(usize),
}

/// The kinds of the lines of one comment, whose contents are `text`.
fn kinds(text: &[&str]) -> Vec<Kind> {
    let mut fence: Option<&str> = None;
    let mut item: Option<usize> = None;
    let mut blank = true;
    let mut out = Vec::new();
    for content in text {
        // A blank belongs to the marker.
        let body = content.strip_prefix(' ').unwrap_or(content);
        let word = body.trim_start();
        let indent = body.len() - word.len();
        let kind = if let Some(open) = fence {
            if word.starts_with(open) {
                fence = None;
            }
            Kind::Free
        } else if word.starts_with("```") || word.starts_with("~~~") {
            fence = Some(&word[..3]);
            Kind::Free
        } else if word.starts_with('|') {
            Kind::Free
        } else if word.is_empty() || !content.starts_with(' ') || is_placed(body, word, blank) {
            Kind::Fixed
        } else if let Some(n) = list_marker(word) {
            Kind::Item(indent, indent + n)
        } else if item.is_none_or(|hang| indent > hang) && indent > 0 {
            // Code by its indent, or text that is placed by hand.
            Kind::Fixed
        } else {
            Kind::Text(indent)
        };
        match kind {
            Kind::Item(_, hang) => item = Some(hang),
            Kind::Text(0) if item.is_some() => item = None,
            Kind::Text(_) => {}
            _ if word.is_empty() => {}
            _ => item = item.filter(|_| indent > 0),
        }
        blank = word.is_empty();
        out.push(kind);
    }
    out
}

/// Whether a line is placed by hand: `body` is its text, `word` the same without its blanks.
fn is_placed(body: &str, word: &str, after_blank: bool) -> bool {
    let markup = word.starts_with(['#', '>']) || after_blank && word.starts_with('<') || is_definition(word);
    markup || is_columns(word) || body.ends_with("  ") || body.ends_with('\\')
}

/// Length of the mark of a list item with the blanks behind it.
fn list_marker(word: &str) -> Option<usize> {
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    let mark = match word.as_bytes().get(digits)? {
        b'*' | b'-' | b'+' if digits == 0 => 1,
        b'.' | b')' if (1..=9).contains(&digits) => digits + 1,
        _ => return None,
    };
    let blanks = word[mark..].bytes().take_while(|b| *b == b' ').count();
    (1..=4).contains(&blanks).then_some(mark + blanks)
}

/// `[name]: where it leads`, with a title at most.
fn is_definition(word: &str) -> bool {
    let Some((_, to)) = word.strip_prefix('[').and_then(|w| w.split_once("]:")) else { return false };
    let mut rest = to.split_whitespace().skip(1);
    rest.next().is_none_or(|title| title.starts_with(['"', '\'', '(']))
}

/// Whether blanks within a line align the text after them.
fn is_columns(word: &str) -> bool {
    let text = list_marker(word).map_or(word, |n| &word[n..]);
    text.trim_end().contains("  ")
}

/// The units of a text, in order.
fn units(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut out: Vec<String> = Vec::new();
    let mut i = 0;
    while i < words.len() {
        // A span of code that is open at the end of a word goes on to the word that ends it.
        let mut end = i + 1;
        if words[i].matches('`').count() % 2 == 1 {
            let close = words[end..].iter().position(|w| w.matches('`').count() % 2 == 1);
            if let Some(close) = close.map(|n| end + n + 1)
                && words[i..close].join(" ").chars().count() <= SPAN_MAX
            {
                end = close;
            }
        }
        let unit = words[i..end].join(" ");
        // A word that would begin a list, a heading, a quotation or a table stays behind the word
        // before it.
        match out.last_mut() {
            Some(last) if must_not_begin(words[i]) => {
                last.push(' ');
                last.push_str(&unit);
            }
            _ => out.push(unit),
        }
        i = end;
    }
    out
}

fn must_not_begin(word: &str) -> bool {
    list_marker(&format!("{word} ")).is_some()
        || ["#", ">", "|", "```", "~~~", "</", "<!"].iter().any(|s| word.starts_with(s))
        || word == "="
        || word.len() >= 2 && word.bytes().all(|b| b == b'=' || b == b'-')
        || is_definition(word)
        || is_tag(word)
}

/// `SAFETY:` and the like, which begin a paragraph of their own.
fn is_tag(word: &str) -> bool {
    word.strip_suffix(':').is_some_and(|t| t.len() >= 3 && t.bytes().all(|b| b.is_ascii_uppercase()))
}

/// `text` in lines of at most [`WIDTH`] columns, the first behind `first`, the others behind
/// `next`.
fn wrap(text: &str, first: &str, next: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut line = first.to_string();
    let mut empty = true;
    for unit in units(text) {
        if !empty && line.chars().count() + 1 + unit.chars().count() > WIDTH {
            out.push(std::mem::replace(&mut line, next.to_string()));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(&unit);
        empty = false;
    }
    out.push(line);
    out
}

/// The comments of a file: ranges of lines that have the same prefix.
fn comments(lines: &[Line]) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = Vec::new();
    for (n, line) in lines.iter().enumerate().filter(|(_, l)| l.prefix.is_some()) {
        match out.last_mut() {
            Some((from, to)) if *to == n && lines[*from].prefix == line.prefix => *to = n + 1,
            _ => out.push((n, n + 1)),
        }
    }
    out
}

/// The source with its wide paragraphs wrapped.
fn fixed(text: &str) -> String {
    let lines = lines(text);
    let mut out: Vec<String> = Vec::new();
    let mut done = 0;
    for (from, to) in comments(&lines) {
        out.extend(lines[done..from].iter().map(|l| l.text.to_string()));
        done = to;
        let prefix = lines[from].prefix.unwrap_or_default();
        let contents: Vec<&str> = lines[from..to].iter().map(Line::content).collect();
        let kinds = kinds(&contents);
        let mut i = 0;
        while i < contents.len() {
            let line = |n: usize| lines[from + n].text;
            let (indent, hang) = match kinds[i] {
                Kind::Item(indent, hang) => (indent, hang),
                Kind::Text(indent) => (indent, indent),
                _ => {
                    out.push(line(i).to_string());
                    i += 1;
                    continue;
                }
            };
            let follows = |n: &usize| {
                let word = contents[*n].split_whitespace().next().unwrap_or_default();
                kinds[*n] == Kind::Text(hang) && !is_tag(word)
            };
            let end = (i + 1..contents.len()).take_while(follows).last().map_or(i + 1, |n| n + 1);
            if (i..end).any(|n| line(n).chars().count() > WIDTH) {
                let blanks = |n: usize| format!("{prefix} {}", " ".repeat(n));
                let head = contents[i].strip_prefix(' ').unwrap_or(contents[i]);
                let first = format!("{prefix} {}", &head[..hang.max(indent)]);
                let text = [&head[hang..], &contents[i + 1..end].join(" ")].join(" ");
                out.extend(wrap(&text, &first, &blanks(hang)));
            } else {
                out.extend((i..end).map(|n| line(n).to_string()));
            }
            i = end;
        }
    }
    out.extend(lines[done..].iter().map(|l| l.text.to_string()));
    let mut new = out.join("\n");
    if text.ends_with('\n') {
        new.push('\n');
    }
    new
}

/// The numbers (from 1) of lines whose comment is too wide.
fn too_wide(text: &str) -> Vec<usize> {
    let lines = lines(text);
    let wide = |line: &str| line.chars().count() > WIDTH;
    let mut out: Vec<usize> = Vec::new();
    for (from, to) in comments(&lines) {
        let contents: Vec<&str> = lines[from..to].iter().map(Line::content).collect();
        for (i, kind) in kinds(&contents).into_iter().enumerate().filter(|(_, k)| *k != Kind::Free) {
            let hang = if let Kind::Item(_, hang) = kind { hang + 1 } else { 0 };
            let prefix = lines[from].prefix.map_or(0, |p| p.chars().count());
            let first = units(contents[i].get(hang..).unwrap_or_default()).first().map_or(0, |u| u.chars().count());
            if wide(lines[from + i].text) && prefix + hang.max(1) + first <= WIDTH {
                out.push(from + i + 1);
            }
        }
    }
    out.extend((0..lines.len()).filter(|n| lines[*n].trailing && wide(lines[*n].text)).map(|n| n + 1));
    out.sort_unstable();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen \
                        sixteen seventeen eighteen nineteen twenty";

    #[test]
    fn a_wide_paragraph_is_wrapped_with_what_follows_it() {
        let text =
            format!("    /// {LONG}\n    /// and more.\n    ///\n    /// Short\n    /// lines.\n    fn f() {{}}\n");
        let want = "    /// one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen\n    \
                    /// sixteen seventeen eighteen nineteen twenty and more.\n    ///\n    /// Short\n    /// lines.\n    \
                    fn f() {}\n";
        assert_eq!(too_wide(&text), [1]);
        assert_eq!(fixed(&text), want);
        assert_eq!(fixed(want), want);
        assert!(too_wide(want).is_empty());
    }

    #[test]
    fn list_items_are_wrapped_one_by_one() {
        let text = format!("//! * {LONG}\n//! * b\n//!   c\n//!  1. {LONG}\n//! d\n");
        let got = fixed(&text);
        let lines: Vec<&str> = got.lines().collect();
        assert_eq!(lines.len(), 7, "{got}");
        assert!(lines[0].starts_with("//! * one") && lines[1].starts_with("//!   sixteen"), "{got}");
        assert_eq!(lines[2..4], ["//! * b", "//!   c"]);
        assert!(lines[4].starts_with("//!  1. one") && lines[5].starts_with("//!     s"), "{got}");
        assert_eq!(lines[6], "//! d");
        assert_eq!(fixed(&got), got);
    }

    #[test]
    fn what_was_placed_is_kept() {
        for text in [
            format!("//! | a | {LONG} |\n//! |---|---|\n"),
            format!("//! ```\n//! {LONG}\n//! # hidden\n//! ```\n"),
            format!("/// # {LONG}\n"),
            format!("/// > {LONG}\n"),
            format!("///     {LONG}\n"),
            format!("// #[allow({LONG})]\n"),
            format!("// a    b {LONG}\n"),
            format!("/// {LONG}  \n/// hard break\n"),
            format!("/// [name]: {} \"{LONG}\"\n", "a".repeat(60)),
            format!("//{LONG}\n"),
            format!("//// {LONG}\n"),
            format!("let s = \"\n// {LONG}\n\";\n"),
            format!("let x = 1; // {LONG}\n"),
            format!("/* {LONG}\n {LONG} */\n"),
            format!("/// <table> {LONG}\n"),
        ] {
            assert_eq!(fixed(&text), text);
        }
    }

    #[test]
    fn tables_code_and_addresses_may_be_wide() {
        let url = format!("https://example.org/{}", "a".repeat(100));
        for text in [
            format!("//! | a | {LONG} |\n"),
            format!("//! ```text\n//! {LONG}\n//! ```\n"),
            format!("//! {url}\n"),
            format!("//! * {url}\n"),
        ] {
            assert_eq!(too_wide(&text), Vec::<usize>::new(), "{text}");
            assert_eq!(fixed(&text), text);
        }
        assert_eq!(fixed(&format!("// See {url} there\n")), format!("// See\n// {url}\n// there\n"));
        assert_eq!(too_wide(&format!("let x = 1; // {LONG}\n")), [1]);
        assert_eq!(too_wide(&format!("let x = \"// {LONG}\";\n")), Vec::<usize>::new());
    }

    #[test]
    fn no_line_begins_with_what_would_be_markup() {
        for mark in ["-", "*", "+", "1.", "12)", "#", ">", "|", "=", "SAFETY:"] {
            for pad in 60..100 {
                let text = format!("// {} {mark} {LONG}\n", "a ".repeat(pad / 2));
                let got = fixed(&text);
                assert!(got.lines().all(|l| !l.starts_with(&format!("// {mark}"))), "{got}");
                assert_eq!(fixed(&got), got);
                let words = |t: &str| t.replace("//", "").split_whitespace().map(str::to_string).collect::<Vec<_>>();
                assert_eq!(words(&got), words(&text));
            }
        }
    }

    #[test]
    fn spans_of_code_stay_whole_and_tags_begin_paragraphs() {
        let text = format!("// {} `let a = b`, {LONG}\n// SAFETY: it is.\n", "word ".repeat(18));
        let got = fixed(&text);
        assert!(got.contains("`let a = b`,") && got.ends_with("\n// SAFETY: it is.\n"), "{got}");
    }

    #[test]
    fn markers_are_never_mixed() {
        let text = format!("//! {LONG}\n// {LONG}\n/// {LONG}\n    // {LONG}\n");
        let got = fixed(&text);
        let markers: Vec<&str> = got.lines().filter_map(|l| l.trim_start().split(' ').next()).collect();
        assert_eq!(markers, ["//!", "//!", "//", "//", "///", "///", "//", "//"]);
    }
}
