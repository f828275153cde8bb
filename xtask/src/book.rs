//! `cargo xtask book`: the book of `docs/` is complete, and its links lead somewhere.
//!
//! **Page**: a Markdown file of `docs/`, of the root or of a crate. **Anchor**: the link target of
//! a heading, made from its text as mdBook and GitHub make it.
//!
//! Checked: every page of `docs/` is in `docs/SUMMARY.md` once and everything named there exists;
//! every relative link of every page names a file that exists and, behind `#`, a heading of it. A
//! page of the book may only link to pages of the book, since the others are not there when it is
//! built. Where mdBook is installed the book is built as well, into `target/book`. mdBook as a
//! library is 112 crates and a minute of compiling, for the checks of this file.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the book is, below the root of the workspace.
const BOOK: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks the book; the error lists each mistake on a line.
pub(crate) fn run() -> Result<(), String> {
    let root = crate::root();
    let mut mistakes = Vec::new();
    let summary = read(&root, SUMMARY)?;
    let pages = pages(&root);
    let listed: Vec<String> = links(&summary).into_iter().map(|(_, to)| format!("{BOOK}/{to}")).collect();
    mistakes.extend(incomplete(&listed, &pages));
    for page in pages.iter().map(String::as_str).chain([SUMMARY]) {
        let text = read(&root, page)?;
        for (n, to) in links(&text) {
            let anchors = |path: &str| match path.ends_with(".md") {
                true => read(&root, path).ok().map(|text| Some(headings(&text))),
                false => root.join(path).exists().then_some(None),
            };
            if let Some(why) = broken(page, &to, anchors) {
                mistakes.push(format!("{page}:{n}: {to}: {why}"));
            }
        }
    }
    if !mistakes.is_empty() {
        return Err(format!("the book is not in order:\n  {}", mistakes.join("\n  ")));
    }
    if has_mdbook() { build(&root) } else { Ok(()) }
}

/// Whether mdBook is installed.
pub(crate) fn has_mdbook() -> bool {
    let quiet = Command::new("mdbook").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|s| s.success())
}

fn build(root: &Path) -> Result<(), String> {
    let out = Command::new("mdbook").args(["build", BOOK]).current_dir(root).output();
    let out = out.map_err(|e| format!("mdbook: {e}"))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("mdbook build: {}", String::from_utf8_lossy(&out.stderr))),
    }
}

fn read(root: &Path, page: &str) -> Result<String, String> {
    std::fs::read_to_string(root.join(page)).map_err(|e| format!("{page}: {e}"))
}

/// All pages but the summary, below the root of the workspace.
fn pages(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![PathBuf::from(BOOK)];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(root.join(&dir)).into_iter().flatten().flatten() {
            let path = dir.join(entry.file_name());
            if entry.path().is_dir() {
                todo.push(path);
            } else {
                found.push(path);
            }
        }
    }
    let folders = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    found.extend(folders.map(|e| Path::new("crates").join(e.file_name()).join("README.md")));
    let top = std::fs::read_dir(root).into_iter().flatten().flatten();
    found.extend(top.map(|e| PathBuf::from(e.file_name())));
    let page = |p: &PathBuf| p.extension().is_some_and(|e| e == "md") && root.join(p).is_file();
    let mut names: Vec<String> = found.iter().filter(|p| page(p)).map(|p| p.to_string_lossy().into_owned()).collect();
    names.retain(|p| p != SUMMARY);
    names.sort();
    names
}

/// Pages of the book that the summary lacks or names twice. A missing page that it names is a
/// broken link.
fn incomplete(listed: &[String], pages: &[String]) -> Vec<String> {
    let inside = pages.iter().filter(|p| p.starts_with(&format!("{BOOK}/")));
    let lacking = inside.filter(|p| !listed.contains(p)).map(|p| format!("{SUMMARY}: {p} is not in it"));
    let mut seen = BTreeSet::new();
    let twice = listed.iter().filter(move |p| !seen.insert(*p)).map(|p| format!("{SUMMARY}: {p} is in it twice"));
    lacking.chain(twice).collect()
}

/// The lines of a page that are text, with their numbers: no blocks of code.
fn text_lines(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    page.lines().zip(1..).filter_map(move |(line, n)| {
        let start = line.trim_start();
        match fence {
            Some(open) if start.starts_with(open) => fence = None,
            Some(_) => {}
            None if start.starts_with("```") || start.starts_with("~~~") => fence = Some(&start[..3]),
            None => return Some((n, line)),
        }
        None
    })
}

/// `line` without its spans of code.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Where the links of a page lead, with the numbers of their lines. Addresses with a scheme are
/// left out.
fn links(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (n, line) in text_lines(page) {
        let line = without_code(line);
        let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        // `[name]: where` at the start of a line.
        let definition = line.strip_prefix('[').and_then(|l| l.split_once("]: ")).map(|(_, to)| to.trim());
        let all = inline.chain(definition).filter(|to| !to.is_empty() && !to.contains(':'));
        found.extend(all.map(|to| (n, to.to_string())));
    }
    found
}

/// The anchors of a page.
fn headings(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in text_lines(page) {
        let text = line.trim_start_matches('#');
        let level = line.len() - text.len();
        if (1..=6).contains(&level) && text.starts_with(' ') {
            let plain = anchor(text.trim());
            let same = std::iter::once(plain.clone()).chain((1..).map(|n| format!("{plain}-{n}")));
            found.extend(same.into_iter().find(|a| !found.contains(a)));
        }
    }
    found
}

/// The anchor of a heading: letters and digits in small, hyphens for blanks, nothing for the rest.
fn anchor(heading: &str) -> String {
    // Of a link only the text counts.
    let mut text = String::new();
    for (n, part) in heading.split("](").enumerate() {
        text.push_str(if n == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) });
    }
    let keep = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    };
    text.to_lowercase().chars().filter_map(keep).collect()
}

/// Why a link of `page` leads nowhere. `anchors` returns whether a path exists and, for pages, its
/// anchors.
fn broken(page: &str, to: &str, anchors: impl Fn(&str) -> Option<Option<BTreeSet<String>>>) -> Option<String> {
    let (file, anchor) = to.split_once('#').map_or((to, None), |(file, anchor)| (file, Some(anchor)));
    let path = match file {
        "" => page.to_string(),
        file => resolved(page, file)?,
    };
    if page.starts_with(&format!("{BOOK}/")) && !path.starts_with(&format!("{BOOK}/")) {
        return Some("the book does not hold it: name it, do not link to it".to_string());
    }
    match (anchors(&path), anchor) {
        (None, _) => Some(format!("there is no {path}")),
        (Some(Some(known)), Some(anchor)) if !known.contains(anchor) => Some(format!("{path} has no such heading")),
        _ => None,
    }
}

/// `file`, as `page` names it, below the root of the workspace; none if it leads out of it.
fn resolved(page: &str, file: &str) -> Option<String> {
    let mut out = PathBuf::new();
    for part in Path::new(page).parent()?.join(file).components() {
        match part {
            Component::ParentDir if !out.pop() => return Some("..".to_string()),
            Component::ParentDir | Component::CurDir => {}
            part => out.push(part),
        }
    }
    Some(out.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_and_code_is_not() {
        let page = "See [a](b.md#c), [d](https://e) and `[f](g)`.\n```\n[h](i)\n```\n[j]: k.md\n[l](m.md \"n\")\n";
        let found = links(page);
        let want = [(1, "b.md#c"), (5, "k.md"), (6, "m.md")];
        assert_eq!(found.iter().map(|(n, to)| (*n, to.as_str())).collect::<Vec<_>>(), want);
    }

    #[test]
    fn anchors_are_those_of_mdbook() {
        let page =
            "# A `b` c\n## 1. The ring, and more\n## Same\n## Same\n```\n# not\n```\n### [Link](x.md) here\n#hash\n";
        let want = ["1-the-ring-and-more", "a-b-c", "link-here", "same", "same-1"];
        assert_eq!(headings(page).iter().map(String::as_str).collect::<Vec<_>>(), want.map(|w| w.trim_matches('-')));
    }

    #[test]
    fn links_that_lead_nowhere_are_broken() {
        let know = |path: &str| match path {
            "docs/b.md" | "docs/x/a.md" => Some(Some(BTreeSet::from(["h".to_string()]))),
            "README.md" => Some(Some(BTreeSet::new())),
            "docs/s.sh" => Some(None),
            _ => None,
        };
        for good in ["../b.md", "../b.md#h", "#h", "a.md", "../s.sh"] {
            assert_eq!(broken("docs/x/a.md", good, know), None, "{good}");
        }
        for bad in ["b.md", "../b.md#i", "#i", "../../README.md", "../../../../x"] {
            assert!(broken("docs/x/a.md", bad, know).is_some(), "{bad}");
        }
        assert_eq!(broken("README.md", "docs/b.md", know), None);
    }

    #[test]
    fn the_summary_names_each_page_once() {
        let list = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let pages = list(&["README.md", "docs/a.md", "docs/b.md"]);
        assert!(incomplete(&list(&["docs/a.md", "docs/b.md"]), &pages).is_empty());
        assert_eq!(incomplete(&list(&["docs/a.md", "docs/a.md"]), &pages).len(), 2);
    }
}
