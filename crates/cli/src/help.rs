//! Help: usage lines for mistakes, and a page for each command.
//!
//! A [`Page`] has the usage lines of a command and the text behind them; the pages of a program are
//! in a file each. Help shows the whole page, a mistake in a command line only its usage lines, and
//! the overview lists the commands. Every command has a page, and usage names every letter that the
//! command takes: tests compare both with the sources. Manual pages ([`man`]) and what shells
//! complete ([`completion`]) are made of the same text.

pub mod completion;
pub mod man;
mod text;
mod weir;
mod zfs;
mod zpool;
mod zstream;

use dsl::props::{PROPS, PropKind};

/// A command: its name (`zpool create`), its usage lines, and its page.
struct Page {
    name: &'static str,
    usage: &'static [&'static str],
    text: &'static str,
}

/// All pages, by program.
const PAGES: [&[Page]; 4] = [zpool::PAGES, zfs::PAGES, zstream::PAGES, weir::PAGES];

/// The programs that have commands, and what each is about.
const PROGRAMS: &[(&str, &str)] =
    &[("zpool", "pools and their devices"), ("zfs", "file systems and snapshots"), ("zstream", "send streams")];

/// The group of commands of weir itself.
const LAB: (&str, &str) = ("lab", "studies in virtual time");

/// The commands of weir itself, in the order of the overview, and what each does.
const OWN: &[(&str, &str)] = &[
    ("zdb", "look into and check pools that are not imported"),
    ("rescue", "copy what can be read from a pool that does not import"),
    ("defrag", "which files to rewrite for faster reads or longer free segments"),
    ("cp", "copy files by sharing their blocks"),
    ("daemon", "start, stop, status of the daemon that owns imported pools"),
    ("nbd", "serve volumes as network block devices"),
    ("mount.zfs", "what mount(8) calls for 'mount -t zfs'"),
    ("quickstart", "a tour on a scratch pool"),
    ("tune", "settings, at run time"),
    ("kstat", "counters as OpenZFS's kernel module shows them"),
    ("top", "how data flow through pools, drawn anew every second"),
    ("trace", "what a pool does, live"),
    ("advise", "settings that would serve what a pool does better"),
    ("zinject", "errors and delays of devices and data, on purpose"),
    ("zed", "run programs for what happens to pools"),
    ("man", "write the manual pages"),
    ("completions", "print what completes commands in bash, zsh and fish"),
];

/// Other names of commands.
const ALIASES: &[(&str, &str)] =
    &[("zfs recv", "zfs receive"), ("zfs snap", "zfs snapshot"), ("zfs umount", "zfs unmount")];

impl Page {
    /// A usage line with the whole command.
    fn line(&self, usage: &str) -> String {
        let name = self.name;
        match name.split_once(' ') {
            Some((program @ ("zpool" | "zfs" | "zstream"), _)) => format!("{program} {usage}"),
            Some((group, _)) => format!("weir {group} {usage}"),
            // The names of OpenZFS, by which mount(8) and init scripts call them.
            None if name == "mount.zfs" || name == "zed" => format!("{name} {usage}"),
            None if usage == name || usage.starts_with(&format!("{name} ")) => format!("weir {usage}"),
            None => format!("weir {name} {usage}"),
        }
    }

    /// The words that call the command: `zpool create`, `weir daemon`, `weir lab zil`.
    fn words(&self) -> String {
        match self.name.split_once(' ') {
            Some(("zpool" | "zfs" | "zstream", _)) => self.name.to_string(),
            None if self.name == "mount.zfs" || self.name == "zed" => self.name.to_string(),
            _ => format!("weir {}", self.name),
        }
    }

    /// What the command does, in a few words: its line in the overview, or the beginning of its
    /// page.
    fn summary(&self) -> String {
        if let Some((_, what)) = OWN.iter().find(|(name, _)| *name == self.name) {
            return what.to_string();
        }
        let first = self.text.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        let sentence = first.split(". ").next().unwrap_or_default().trim_end_matches(['.', ':']);
        match sentence.split_once([':', ';']) {
            Some((short, _)) if sentence.len() > 72 => short.to_string(),
            _ => sentence.to_string(),
        }
    }

    /// The text, with what is added to it from other tables.
    fn whole_text(&self) -> String {
        let tunables = if self.name == "daemon" { tunables() } else { String::new() };
        format!("{}{tunables}", self.text)
    }
}

fn pages() -> impl Iterator<Item = &'static Page> {
    PAGES.into_iter().flatten()
}

fn page(name: &str) -> Option<&'static Page> {
    let name = ALIASES.iter().find(|(other, _)| *other == name).map_or(name, |(_, real)| real);
    pages().find(|p| p.name == name)
}

/// The commands of `zpool`, `zfs`, `zstream` or `lab`, in order.
fn commands(group: &str) -> Vec<&'static str> {
    let mut all: Vec<&str> = pages().filter_map(|p| p.name.strip_prefix(group)?.strip_prefix(' ')).collect();
    all.sort_unstable();
    all
}

/// Words with commas, in lines of at most 80 characters that begin with `indent` spaces (the first
/// line has its own).
fn wrapped(words: &[&str], indent: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for (i, word) in words.iter().enumerate() {
        let last = i + 1 == words.len();
        let width = word.len() + usize::from(!last);
        if column > indent && column + 1 + width > 80 {
            out.push_str(&format!("\n{:indent$}", ""));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        out.push_str(if last { "" } else { "," });
        column += width;
    }
    out
}

/// The text after a mistake in a command line: the usage of a command, or the names of all
/// commands.
pub fn usage(name: &str) -> String {
    let name = name.trim();
    if let Some(page) = page(name) {
        return page.usage.iter().fold("usage:\n".to_string(), |out, u| out + "\t" + &page.line(u) + "\n");
    }
    let all = wrapped(&commands(name), 2);
    let command = if name == "lab" { "weir lab <study>" } else { name };
    format!(
        "usage: {command} command args ...\nwith one of these commands:\n  {all}\n'weir help {name} <command>' says more\n"
    )
}

/// The properties of datasets, as OpenZFS lists them where a command lacks the name of one.
pub fn properties() -> String {
    let mut out =
        String::from("\nThe following properties are supported:\n\n\tPROPERTY              EDIT  INHERIT   VALUES\n\n");
    let mut all: Vec<_> = PROPS.iter().filter(|p| p.kind != PropKind::Shown).collect();
    all.sort_by_key(|p| (p.kind != PropKind::ReadOnly, p.name));
    for p in all {
        let word = |is_so: bool| if is_so { "YES" } else { "NO" };
        let (edit, inherit) = (word(p.kind != PropKind::ReadOnly), word(p.kind == PropKind::Inherit));
        out += &format!("\t{:<20}   {edit:>3}      {inherit:>3}   {}\n", p.name, p.values);
    }
    out + "\nSizes take the units K, M, G and so on. A name with a colon (:) is that of a property\nof users.\n"
}

/// Prints the page of a command of `program`, or with no command the usage of all.
pub fn print_topic(program: &'static str, command: &[String]) -> crate::Done {
    let name = format!("{program} {}", command.join(" "));
    let Some(text) = topic(&name) else {
        return Err(crate::Fail::Usage(format!("unrecognized command '{}'", command.join(" ")), ""));
    };
    crate::print(&text);
    Ok(())
}

/// The page of `zpool create`, the commands of `zpool`, or everything for an empty topic.
pub fn topic(name: &str) -> Option<String> {
    let name = name.trim();
    if name.is_empty() {
        return Some(overview());
    }
    if let Some(page) = page(name) {
        let lines: String = page.usage.iter().map(|u| format!("  {}\n", page.line(u))).collect();
        return Some(format!("usage:\n{lines}\n{}", page.whole_text()));
    }
    matches!(name, "zpool" | "zfs" | "zstream" | "lab").then(|| {
        let group = format!("{name} ");
        let pages = pages().filter(|p| p.name.starts_with(&group));
        let lines: String = pages.flat_map(|p| p.usage.iter().map(|u| format!("  {}\n", p.line(u)))).collect();
        format!("usage:\n{lines}\n'weir help {name} <command>' says more\n")
    })
}

fn tunables() -> String {
    let lines = admin::tunables::Tunables::meanings().map(|(n, m)| format!("  {n:<30}  {m}\n"));
    format!("\ntunables:\n{}", lines.collect::<String>())
}

/// The overview of all commands.
pub fn overview() -> String {
    let row = |name: &str, text: &str| format!("  {name:<12}{text}\n");
    let list = |groups: &[(&str, &str)]| {
        let text = |what: &str, name: &str| format!("{what}:\n{:14}{}", "", wrapped(&commands(name), 14));
        groups.iter().map(|(name, what)| row(name, &text(what, name))).collect::<String>()
    };
    let mut out = "\
weir: OpenZFS in user space

usage: weir <command> ...

"
    .to_string();
    out += &list(PROGRAMS);
    out.extend(OWN.iter().map(|(name, what)| row(name, what)));
    out += &list(&[LAB]);
    out.push_str(&row("version", "the version"));
    out.push_str(&row("help", "this, or 'weir help zpool create' and the like"));
    out + "\nCalled through a symbolic link named zpool, zfs, zdb, zstream, zinject, zed
or mount.zfs it is that command.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_listed_as_openzfs_does() {
        let list = properties();
        let row = |name: &str| {
            let of = |l: &&str| l.split_whitespace().next() == Some(name);
            list.lines().find(of).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("used"), "used NO NO <size>");
        assert_eq!(row("readonly"), "readonly YES YES on | off");
        assert!(row("quota").starts_with("quota YES NO "), "{list}");
        assert!(list.find("\tused ") < list.find("\taclinherit "), "what can be set comes last");
    }

    /// The names in the match of a command's `run`, read from its source.
    fn taken(source: &str) -> Vec<&str> {
        let body = source.split("match command.as_str() {").nth(1).unwrap().split("        other => ").next().unwrap();
        let arms = body.lines().filter_map(|l| l.strip_prefix("        \"")?.split_once(" =>"));
        arms.flat_map(|(names, _)| names.split(" | ").map(|n| n.trim_matches('"'))).collect()
    }

    #[test]
    fn every_command_that_is_taken_has_a_page_and_is_listed() {
        let no_page = ["help", "-h", "--help", "-?", "-V", "--version"];
        for (program, source) in [("zpool", include_str!("zpool.rs")), ("zfs", include_str!("zfs.rs"))] {
            // Both programs take `version` in `zpool::run_other`.
            let taken = taken(source).into_iter().chain(["version"]);
            let taken: Vec<&str> = taken.filter(|n| !no_page.contains(n)).collect();
            assert!(taken.len() > 20, "{program}: {taken:?}");
            for name in &taken {
                let page = page(&format!("{program} {name}")).unwrap_or_else(|| panic!("no page of {program} {name}"));
                for text in [overview(), usage(program), topic(program).unwrap()] {
                    let listed = page.name.split(' ').nth(1).unwrap();
                    assert!(text.contains(&format!(" {listed}")), "{program} {name} is not in {text}");
                }
                assert!(page.usage.iter().all(|u| u.split(' ').next() == page.name.split(' ').nth(1)), "{name}");
            }
            assert!(commands(program).iter().all(|c| taken.contains(c)), "{program}: a page of no command");
        }
        assert!(overview().lines().chain(usage("zpool").lines()).all(|l| l.len() <= 80), "{}", overview());
    }

    #[test]
    fn every_command_of_zstream_has_a_page() {
        let taken: Vec<&str> =
            taken(include_str!("zstream.rs")).into_iter().filter(|n| !n.starts_with('-') && *n != "help").collect();
        assert_eq!(taken.len(), 6, "{taken:?}");
        assert!(taken.iter().all(|name| page(&format!("zstream {name}")).is_some()), "{taken:?}");
        assert!(commands("zstream").iter().all(|c| taken.contains(c)));
    }

    #[test]
    fn every_page_has_usage_and_fits_a_terminal() {
        for page in pages() {
            assert!(!page.usage.is_empty() && !page.text.is_empty(), "{}", page.name);
            assert!(topic(page.name).is_some_and(|t| t.starts_with("usage:\n  ")), "{}", page.name);
            for line in page.text.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", page.name);
            }
        }
        assert!(topic("nonsense").is_none());
        assert!(topic("").is_some_and(|t| t.contains("quickstart")));
        assert!(usage("zpool create").contains("create [-fnd]"));
        assert!(usage("zfs").contains("inherit"));
        assert!(topic("tune").is_some_and(|t| t.starts_with("usage:\n  weir tune [-v] ")));
        assert!(topic("top").is_some_and(|t| t.starts_with("usage:\n  weir top [-i ")));
        assert!(topic("daemon").is_some_and(|t| t.contains("  weir daemon status")));
        assert!(topic("zfs umount").is_some_and(|t| t.starts_with("usage:\n  zfs unmount ")));
        assert!(topic("zfs create").is_some_and(|t| t.contains("  zfs create [-Pnpuv]")));
        assert!(topic("quickstart").is_some_and(|t| t.contains("  weir quickstart [--dir")));
        assert!(topic("trace").is_some_and(|t| t.contains("  weir trace dirty|")));
        assert!(topic("zstream dump").is_some_and(|t| t.starts_with("usage:\n  zstream dump [-vCd] ")));
        assert!(topic("lab zil").is_some_and(|t| t.contains("  weir lab zil [--disks")));
        assert!(topic("lab").is_some_and(|t| t.contains("throttle [--policy") && t.contains("zil [--disks")));
    }
}
