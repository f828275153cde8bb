//! The text of a help page, taken apart: paragraphs, tables of terms, and samples.
//!
//! A table is indented by two blanks. A line of it begins with a term, which two blanks or more
//! keep apart from its meaning; lines with more blanks in front go on with that. Two blanks before
//! a `-` within a line begin another term.

/// A term of a table and its meaning.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Item {
    pub term: String,
    pub meaning: String,
}

impl Item {
    fn new(term: &str) -> Item {
        Item { term: term.to_string(), meaning: String::new() }
    }

    /// Whether it explains letters or long options.
    pub fn is_option(&self) -> bool {
        self.term.starts_with('-')
    }

    fn push(&mut self, text: &str) {
        if !self.meaning.is_empty() {
            self.meaning.push(' ');
        }
        self.meaning.push_str(text);
    }
}

/// A piece of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Block {
    /// Running text, in one line.
    Paragraph(String),
    /// A table.
    Items(Vec<Item>),
    /// Lines that stay as they are.
    Sample(String),
}

/// The pieces of a page, in order.
pub(super) fn blocks(text: &str) -> Vec<Block> {
    let mut out = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let indented = line.starts_with(' ');
        let mut run = vec![line];
        while let Some(next) = lines.next_if(|l| !l.is_empty() && l.starts_with(' ') == indented) {
            run.push(next);
        }
        out.push(match indented {
            false => Block::Paragraph(run.join(" ")),
            true if run.iter().any(|l| l.starts_with("  [")) => Block::Sample(run.join("\n")),
            true => Block::Items(items(&run)),
        });
    }
    out
}

/// The terms of all tables.
pub(super) fn items_of(text: &str) -> Vec<Item> {
    let items = |b| if let Block::Items(items) = b { items } else { Vec::new() };
    blocks(text).into_iter().flat_map(items).collect()
}

/// The columns of a line.
fn columns(line: &str) -> impl Iterator<Item = &str> {
    line.split("  ").map(str::trim).filter(|c| !c.is_empty())
}

/// How many bytes of a line are the words with a `-` in front that it begins with.
fn dashes(line: &str) -> usize {
    let words = line.split_inclusive(' ').take_while(|w| w.starts_with('-'));
    words.map(str::len).sum()
}

fn items(lines: &[&str]) -> Vec<Item> {
    let mut out: Vec<Item> = Vec::new();
    for line in lines {
        let begins = !line.starts_with("   ");
        // A long option alone, behind the meaning of a letter: `--name: what it does`.
        let long = line.trim().strip_prefix("--").and_then(|l| l.split_once(": "));
        if let Some((name, meaning)) = long.filter(|(name, _)| !name.contains(' ')) {
            out.push(Item { term: format!("--{name}"), meaning: meaning.to_string() });
            continue;
        }
        let mut rest = columns(line);
        if begins {
            let first = rest.next().unwrap_or_default();
            // Terms without a column of their own.
            let (term, meaning) = first.split_at(if line.trim() == first { dashes(first) } else { 0 });
            if term.is_empty() {
                out.push(Item::new(first));
            } else {
                out.push(Item { term: term.trim_end_matches([':', ' ']).to_string(), meaning: meaning.to_string() });
            }
        }
        // Behind a term comes its meaning, and a line goes on with one, even if that begins with
        // `-`.
        let mut is_meaning = true;
        for column in rest {
            match out.last_mut() {
                Some(last) if is_meaning || !column.starts_with('-') => last.push(column),
                _ => {
                    out.push(Item::new(column));
                    is_meaning = true;
                    continue;
                }
            }
            is_meaning = false;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let Some(Block::Items(all)) = blocks(text).pop() else { panic!("{text} is no table") };
        all.into_iter().map(|i| (i.term, i.meaning)).collect()
    }

    fn pair(term: &str, meaning: &str) -> (String, String) {
        (term.to_string(), meaning.to_string())
    }

    #[test]
    fn terms_stand_in_columns() {
        let two = "  -a  one\n      and more    -b  two\n  -c, -d\n      three\n";
        assert_eq!(pairs(two), [pair("-a", "one and more"), pair("-b", "two"), pair("-c, -d", "three")]);
        let tight = "  -n, --dry-run only say\n  --x, --y: see there\n  -t  for now\n      --k: long\n";
        let want = [pair("-n, --dry-run", "only say"), pair("--x, --y", "see there"), pair("-t", "for now")];
        assert_eq!(pairs(tight)[..3], want);
        assert_eq!(pairs(tight)[3], pair("--k", "long"));
        assert_eq!(pairs("  dirty   the data\n          of it\n"), [pair("dirty", "the data of it")]);
        assert_eq!(pairs("  -v  with\n      -w, and\n"), [pair("-v", "with -w, and")]);
    }

    #[test]
    fn a_page_is_paragraphs_tables_and_samples() {
        let all = blocks("One\ntwo.\n\n  [pool]\n  a = 1  # b\n\nThree:\n  -a  b\n");
        let item = Item { term: "-a".into(), meaning: "b".into() };
        let sample = Block::Sample("  [pool]\n  a = 1  # b".into());
        let [one, three] = ["One two.", "Three:"].map(|t| Block::Paragraph(t.into()));
        assert_eq!(all, [one, sample, three, Block::Items(vec![item])]);
    }
}
