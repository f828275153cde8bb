//! `weir man`: the manual pages, made of the pages of help.
//!
//! Each program and group of commands has an overview (`zpool.8`), each command a page with the
//! name that it has in OpenZFS (`zpool-create.8`, `weir-lab-zil.8`), each other name of a command a
//! line that leads there.

use std::fmt::Write;
use std::path::Path;

use base::{Error, ErrorKind};

use super::text::{Block, blocks};
use super::{ALIASES, LAB, OWN, PROGRAMS, Page, pages};
use crate::zpool::parse_for;
use crate::{Done, Fail};

/// What has an overview.
fn groups() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    PROGRAMS.iter().chain(std::iter::once(&LAB))
}

const STATUS: &str = "0 success, 1 the command failed, 2 the command line is invalid.";

/// Runs `weir man ARGS`: writes all pages into a folder.
pub fn run(args: &[String]) -> Done {
    let p = parse_for("man", args, "", &[], "")?;
    let [folder] = p.operands.as_slice() else {
        let what = if p.operands.is_empty() { "missing folder" } else { "too many arguments" };
        return Err(Fail::Usage(what.into(), ""));
    };
    let failed =
        |e: std::io::Error, at: &Path| Error::new(ErrorKind::Io, format!("cannot write '{}': {e}", at.display()));
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder).map_err(|e| failed(e, folder))?;
    for (name, text) in all() {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(|e| failed(e, &file))?;
    }
    Ok(())
}

/// The pages: names of files and their text.
pub fn all() -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = vec![("weir.8".to_string(), weir())];
    out.extend(groups().map(|(name, what)| (format!("{}.8", of_group(name)), group(name, what))));
    out.extend(pages().map(|page| (format!("{}.8", name_of(page)), command(page))));
    let alias = |name: &str| format!("{}.8", name.replace(' ', "-"));
    out.extend(ALIASES.iter().map(|(other, real)| (alias(other), format!(".so man8/{}\n", alias(real)))));
    out
}

/// The manual page of a command: `zpool-create`, `weir-lab-zil`; `zdb` is one of OpenZFS's
/// programs.
fn name_of(page: &Page) -> String {
    if page.name == "zdb" { page.name.to_string() } else { page.words().replace(' ', "-") }
}

fn of_group(name: &str) -> String {
    if name == "lab" { "weir-lab".to_string() } else { name.to_string() }
}

/// Text for roff: nothing in it is a request, an escape or a letter of typography.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '"' => out.push_str("\\(dq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            '.' if out.is_empty() || out.ends_with('\n') => out.push_str("\\&."),
            c => out.push(c),
        }
    }
    out
}

fn head(name: &str, what: &str) -> String {
    let title = escaped(&name.to_uppercase());
    format!(
        ".\\\" Made by 'weir man'.\n.TH {title} 8 \"\" \"weir {}\" \"weir\"\n.SH NAME\n{} \\- {}\n",
        env!("CARGO_PKG_VERSION"),
        escaped(name),
        escaped(what)
    )
}

/// Usage lines; the words that call a command are bold.
fn synopsis<'a>(lines: impl Iterator<Item = (String, &'a str)>) -> String {
    let mut out = ".SH SYNOPSIS\n.nh\n.ad l\n".to_string();
    for (line, words) in lines {
        let rest = line.strip_prefix(words).unwrap_or(&line);
        let words = &line[..line.len() - rest.len()];
        let _ = writeln!(out, ".PP\n\\fB{}\\fR{}", escaped(words), escaped(rest));
    }
    out + ".ad\n.hy\n"
}

fn item(out: &mut String, term: &str, meaning: &str) {
    let _ = writeln!(out, ".TP\n.B {}\n{}", escaped(term), escaped(meaning));
}

fn block(out: &mut String, block: &Block) {
    match block {
        Block::Paragraph(text) => {
            let _ = writeln!(out, ".PP\n{}", escaped(text));
        }
        Block::Items(items) => items.iter().for_each(|i| item(out, &i.term, &i.meaning)),
        Block::Sample(text) => {
            let _ = writeln!(out, ".PP\n.nf\n{}\n.fi", escaped(text));
        }
    }
}

fn section(name: &str, blocks: &[Block]) -> String {
    let mut out = String::new();
    if !blocks.is_empty() {
        let _ = writeln!(out, ".SH {name}");
        blocks.iter().for_each(|b| block(&mut out, b));
    }
    out
}

fn see_also(names: &[String]) -> String {
    let mut out = ".SH SEE ALSO\n".to_string();
    for (i, name) in names.iter().enumerate() {
        let comma = if i + 1 < names.len() { "," } else { "" };
        let _ = writeln!(out, ".BR {} (8){comma}", escaped(name));
    }
    out
}

/// The page of a command. Options are the tables with letters and what stands between them; text
/// behind them goes on with the description, and what it says of the exit status has its section.
fn command(page: &Page) -> String {
    let text = page.whole_text();
    let (text, status) = match text.split_once("The exit status ") {
        Some((text, rest)) => (text.to_string(), format!("The exit status {}", rest.replace('\n', " ").trim_end())),
        None => (text, STATUS.to_string()),
    };
    let mut all = blocks(&text);
    let has_options = |b: &Block| matches!(b, Block::Items(i) if i.iter().any(|i| i.is_option()));
    let is_table = |b: &Block| !matches!(b, Block::Paragraph(_));
    let mut first = all.iter().position(has_options).unwrap_or(all.len());
    // A paragraph that announces them.
    let announces = |b: &Block| matches!(b, Block::Paragraph(t) if t.ends_with(':'));
    first -= usize::from(first < all.len() && first > 0 && announces(&all[first - 1]));
    let last = all.iter().rposition(is_table).map_or(first, |n| n + 1).max(first);
    let after = all.split_off(last);
    let options = all.split_off(first);
    all.extend(after);
    let words = page.words();
    let mut out = head(&name_of(page), &page.summary());
    out += &synopsis(page.usage.iter().map(|u| (page.line(u), words.as_str())));
    out += &section("DESCRIPTION", &all);
    out += &section("OPTIONS", &options);
    out += &section("EXIT STATUS", &[Block::Paragraph(status)]);
    out + &see_also(&others(page))
}

/// The pages that a command's page refers to: its program's, and those of commands that it names.
fn others(page: &Page) -> Vec<String> {
    let group = page.name.split_once(' ').map(|(group, _)| group);
    let mut out: Vec<String> = group.filter(|g| *g != "trace").map(of_group).into_iter().collect();
    out.extend((group.is_none_or(|g| g == "lab" || g == "trace")).then(|| "weir".to_string()));
    let is_word = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '='));
    for other in pages().filter(|p| p.name != page.name) {
        let named = |words: &str| page.text.match_indices(words).any(|(at, w)| is_word(&page.text[at + w.len()..]));
        let help = format!("weir help {}", other.name);
        if named(&other.words()) || named(&help) {
            out.push(name_of(other));
        }
    }
    out
}

/// The overview of a program or group.
fn group(name: &str, what: &str) -> String {
    let words = if name == "lab" { "weir lab" } else { name };
    let mut out = head(&of_group(name), what);
    out += &synopsis([(format!("{words} <command> ..."), words)].into_iter());
    let lab = "Studies run the engine in virtual time, on devices that are modelled.";
    let others = format!(
        "weir is OpenZFS in user space. Called through a symbolic link named {name} it is this command; \
         'weir {name}' is the same. 'weir help {name} COMMAND' shows what the page of a command says."
    );
    out += &section("DESCRIPTION", &[Block::Paragraph(if name == "lab" { lab.to_string() } else { others })]);
    out += ".SH COMMANDS\n";
    let prefix = format!("{name} ");
    let members: Vec<&Page> = pages().filter(|p| p.name.starts_with(&prefix)).collect();
    members.iter().for_each(|p| item(&mut out, p.name.trim_start_matches(&prefix), &p.summary()));
    out += &section("EXIT STATUS", &[Block::Paragraph(STATUS.to_string())]);
    let mut also = vec!["weir".to_string()];
    also.extend(groups().map(|(g, _)| of_group(g)).filter(|g| g != name && g != "weir-lab"));
    also.extend(members.iter().map(|p| name_of(p)));
    out + &see_also(&also)
}

/// The overview of all.
fn weir() -> String {
    let mut out = head("weir", "OpenZFS in user space");
    out += &synopsis([("weir <command> ...".to_string(), "weir")].into_iter());
    let texts = [
        "weir creates, imports, reads and writes pools in the on-disk format of OpenZFS without a kernel module. \
         File systems are mounted through FUSE.",
        "A daemon owns the imported pools and their mounts; the first command that needs it starts it. \
         Called through a symbolic link named zpool, zfs, zdb, zstream, zinject, \
         zed or mount.zfs the program is that command.",
    ];
    out += &section("DESCRIPTION", &texts.map(|t| Block::Paragraph(t.to_string())));
    out += ".SH COMMANDS\n";
    groups().chain(OWN).for_each(|(name, what)| item(&mut out, name, what));
    out += &section("EXIT STATUS", &[Block::Paragraph(STATUS.to_string())]);
    let mut also: Vec<String> = groups().map(|(g, _)| of_group(g)).collect();
    also.extend(pages().filter(|p| !p.name.contains(' ')).map(name_of));
    out + &see_also(&also)
}

#[cfg(test)]
mod tests {
    use super::super::{commands, overview};
    use super::*;

    /// What a reader sees of roff: without requests and escapes.
    fn plain(roff: &str) -> String {
        let mut out = String::new();
        for line in roff.lines() {
            let text = line.split_once(' ').map_or("", |(_, t)| t);
            out += if line.starts_with('.') { text } else { line };
            out.push('\n');
        }
        for (escape, c) in [("\\fB", ""), ("\\fR", ""), ("\\&", ""), ("\\(aq", "'"), ("\\(dq", "\""), ("\\(ti", "~")] {
            out = out.replace(escape, c);
        }
        out.replace("\\(ga", "`").replace("\\(ha", "^").replace("\\-", "-").replace("\\e", "\\")
    }

    #[test]
    fn every_command_that_help_lists_has_a_page_with_all_its_letters() {
        let all: std::collections::BTreeMap<String, String> = all().into_iter().collect();
        assert_eq!(all.len(), 1 + groups().count() + pages().count() + ALIASES.len(), "two pages have one name");
        for (program, _) in groups() {
            for command in commands(program) {
                let program = of_group(program);
                let page = &all[&format!("{program}-{command}.8")];
                let overview = &all[&format!("{program}.8")];
                assert!(overview.contains(&format!("\n.B {}\n", escaped(command))), "{program} {command}: {overview}");
                assert!(plain(page).contains(&format!("\n{program}-{command} - ")), "{page}");
            }
        }
        for (name, _) in OWN {
            assert!(overview().contains(&format!("\n  {name} ")), "{name}");
            assert!(
                all.contains_key(&format!("weir-{name}.8")) || ["zdb", "mount.zfs", "zed"].contains(name),
                "{name}"
            );
        }
        for page in pages() {
            let text = plain(&all[&format!("{}.8", name_of(page))]);
            for wanted in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"] {
                assert!(text.contains(&format!("\n{wanted}\n")), "{}: {text}", page.name);
            }
            assert!(page.usage.iter().all(|u| text.contains(&page.line(u))), "{text}");
            // No word of help is lost, whatever the pieces are.
            let words = |text: &str| text.split_whitespace().map(|w| w.trim_end_matches(':').to_string()).collect();
            let mut shown: Vec<String> = words(&text);
            for word in words(&page.whole_text()) as Vec<String> {
                let at = shown.iter().position(|w| *w == word);
                shown.remove(at.unwrap_or_else(|| panic!("{}: '{word}' is lost: {text}", page.name)));
            }
        }
    }

    #[test]
    fn each_explained_letter_is_a_term() {
        let page = plain(&command(super::super::page("zpool list").unwrap()));
        for letter in ["-H", "-p", "-v", "-P", "-g", "-o", "-L", "-j"] {
            assert!(page.contains(&format!("\n{letter}\n")), "{letter}: {page}");
        }
        let rescue = command(super::super::page("rescue").unwrap());
        assert!(rescue.contains("\n.SH EXIT STATUS\n.PP\nThe exit status is 0 if everything was copied"), "{rescue}");
        let scrub = command(super::super::page("zpool resilver").unwrap());
        assert!(!scrub.contains(".SH OPTIONS"), "{scrub}");
        let import = command(super::super::page("zpool checkpoint").unwrap());
        assert!(import.contains(".BR zpool\\-import (8)"), "{import}");
    }

    #[test]
    fn nothing_in_a_text_means_something_to_roff() {
        assert_eq!(escaped(".TH 'a' \\n -x"), "\\&.TH \\(aqa\\(aq \\en \\-x");
        assert_eq!(escaped("a\n.b ~^`\""), "a\n\\&.b \\(ti\\(ha\\(ga\\(dq");
        let requests = [".TH", ".SH", ".PP", ".TP", ".B", ".BR", ".nf", ".fi", ".nh", ".ad", ".hy", ".\\\"", ".so"];
        for (name, text) in all() {
            assert!(text.is_ascii(), "{name}");
            for line in text.lines() {
                let word = line.split(' ').next().unwrap();
                assert!(!line.starts_with('.') || requests.contains(&word), "{name}: {line}");
                assert!(!line.starts_with('\'') && !line.is_empty(), "{name}: {text}");
            }
        }
    }
}
