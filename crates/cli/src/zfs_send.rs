//! `zfs send`.
//!
//! The bytes of the stream go to standard output as they come: through this process where it prints
//! lines of progress, else from the daemon. What `-n`, `-v`, `-P` and `-V` say
//! is OpenZFS's, letter by letter, since tools read it (format page 25 section 2): on standard
//! output in a dry run, else on standard error. [`item_of`] makes a request of the command line;
//! `send_progress` follows the stream for the lines of progress.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

use admin::request::{PackageLetters, SendItem, SendPlan, SendSize, SendStream, SendWhat};
use admin::view::fmt::bytes;
use base::{Error, ErrorKind, NiceNum};

use crate::opts::Parsed;
use crate::send_progress::{Progress, Says};
use crate::{Done, Fail, ask, ask_bytes, ask_with_output, print};

/// The letters.
pub const LETTERS: &str = "DLPRSVbcehnpsvwi:I:t:d:X:";

/// The long options: the letters that they stand for.
pub const LONG: &[(&str, bool, char)] = &[
    ("large-block", false, 'L'),
    ("embed", false, 'e'),
    ("compressed", false, 'c'),
    ("raw", false, 'w'),
    ("dryrun", false, 'n'),
    ("verbose", false, 'v'),
    ("parsable", false, 'P'),
    ("proctitle", false, 'V'),
    ("dedup", false, 'D'),
    ("replicate", false, 'R'),
    ("skip-missing", false, 's'),
    ("exclude", true, 'X'),
    ("props", false, 'p'),
    ("backup", false, 'b'),
    ("holds", false, 'h'),
    ("resume", true, 't'),
    ("saved", false, 'S'),
    ("redact", true, 'd'),
];

fn usage<T>(what: &str) -> Result<T, Fail> {
    Err(Fail::Usage(what.into(), "send"))
}

/// `zfs send`
pub fn send(p: &Parsed) -> Done {
    let item = item_of(p)?;
    let dry = p.has('n');
    if !dry && std::io::stdout().is_terminal() {
        let text = "Error: Stream can not be written to a terminal.\nYou must redirect standard output.";
        eprintln!("{text}");
        return Err(Fail::AlreadyReported);
    }
    if p.has('D') {
        eprintln!(
            "WARNING: deduplicated send is no longer supported.  A regular, non-deduplicated stream will be generated.\n"
        );
    }
    let letters = |letters: &str| letters.chars().any(|c| p.has(c));
    let what = SendWhat {
        item,
        large_blocks: letters("Lw"),
        embedded: letters("ew"),
        compressed: letters("cw"),
        raw: p.has('w'),
    };
    let mut told = false;
    let mut total = 0;
    if dry || letters("vPV") {
        let plan = ask(&SendSize(what.clone()))?;
        total = plan.parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add);
        plan.asides.iter().filter(|_| letters("vPV")).chain(&plan.notes).for_each(|note| eprintln!("{note}"));
        told = true;
        let text = before(p, &what.item, &plan);
        if dry {
            print(&text);
            return if plan.incomplete { Err(Fail::AlreadyReported) } else { Ok(()) };
        }
        eprint!("{text}");
    }
    let says = match (p.has('v'), p.has('P')) {
        (false, _) => Says::Nothing,
        (true, false) => Says::Text,
        (true, true) => Says::Parsable,
    };
    let gone = |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot write the stream: {e}"));
    // Without the buffer of lines that standard output has.
    let mut out = std::fs::File::from(std::io::stdout().as_fd().try_clone_to_owned().map_err(gone)?);
    let sent = if letters("vV") {
        let mut progress = Progress::new(says, p.has('V').then_some(total));
        ask_bytes(&SendStream(what), &mut |bytes| {
            // Before they are written: a full pipe holds even the first, and lines need their name.
            progress.sent(bytes);
            out.write_all(bytes).map_err(gone)
        })?
    } else {
        ask_with_output(&SendStream(what), out)?
    };
    sent.notes.iter().filter(|_| !told).for_each(|note| eprintln!("{note}"));
    if sent.incomplete { Err(Fail::AlreadyReported) } else { Ok(()) }
}

/// What the command line asks for. The checks and their order are OpenZFS's.
fn item_of(p: &Parsed) -> Result<SendItem, Fail> {
    let any = |letters: &str| letters.chars().any(|c| p.has(c));
    let mut exclude = Vec::new();
    for name in p.values('X').flat_map(|v| v.split(',')) {
        if !name.contains('/') || dsl::check_name(name).is_err() {
            return usage(&format!("-X {name}: not a valid non-root dataset name."));
        }
        exclude.push(name.to_string());
    }
    if p.options().iter().filter(|(letter, _)| matches!(letter, 'i' | 'I')).count() > 1 {
        return usage("only one incremental source is possible (-i, -I)");
    }
    if !exclude.is_empty() && !p.has('R') {
        return Err(Error::invalid("Cannot specify dataset exclusion (-X) on a non-recursive send.").into());
    }
    if let Some(token) = p.value('t') {
        return match p.operands.is_empty() {
            _ if any("iIRpbhSd") => usage("invalid flags combined with -t"),
            true => Ok(SendItem::Token(token.to_string())),
            false => usage("too many arguments"),
        };
    }
    let [name] = p.operands.as_slice() else {
        return usage(if p.operands.is_empty() { "missing snapshot argument" } else { "too many arguments" });
    };
    if p.has('S') {
        return match name.contains('@') {
            _ if any("iIRpbhLecwd") => usage("incompatible flags combined with saved send flag"),
            true => usage("saved send must specify the dataset with partially-received state"),
            false => Ok(SendItem::Saved(name.clone())),
        };
    }
    if p.has('d') && p.has('w') {
        return Err(Error::unsupported("Error: raw sends may not be redacted.").into());
    }
    if p.has('s') && !p.has('R') {
        return usage("skip-missing flag can only be used in conjunction with replicate");
    }
    let several = any("RI");
    let from = p.value('I').or(p.value('i'));
    if several && from.is_some_and(|from| from.contains('#')) {
        return Err(Error::invalid("Error: multiple snapshots cannot be sent from a bookmark.").into());
    }
    if several && p.has('d') {
        return Err(Error::invalid("Error: multiple snapshots cannot be sent redacted.").into());
    }
    if !name.contains('@') && any("RIpbhd") {
        return Err(Error::unsupported("Error: Unsupported flag with filesystem or bookmark.").into());
    }
    if !several && from.is_some_and(|from| !from.contains(['@', '#'])) {
        eprintln!(
            "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' prefix to avoid ambiguity."
        );
    }
    let (name, from) = (name.clone(), from.map(|from| source(name, from)));
    let redact = p.value('d').map(str::to_string);
    if !any("RIpbh") {
        return Ok(SendItem::Snapshot { name, from, redact });
    }
    let letters = PackageLetters {
        replicate: p.has('R'),
        all: p.has('I'),
        props: p.has('p'),
        backup: p.has('b'),
        holds: p.has('h'),
        skip_missing: p.has('s'),
        exclude,
    };
    Ok(SendItem::Package { name, from, letters, redact })
}

/// The full name of the snapshot or bookmark that `-i` names for a stream of `to`.
fn source(to: &str, from: &str) -> String {
    let fs = to.split('@').next().unwrap_or_default();
    if from.starts_with(['@', '#']) {
        return format!("{fs}{from}");
    }
    if from.contains(['@', '#']) {
        return from.to_string();
    }
    format!("{fs}@{from}")
}

/// What is said before anything is sent.
fn before(p: &Parsed, item: &SendItem, plan: &SendPlan) -> String {
    let mut out = String::new();
    if let Some(token) = &plan.token
        && ['v', 'P', 'V'].iter().any(|c| p.has(*c))
    {
        out.push_str("resume token contents:\n");
        out.push_str(token);
    }
    let several = matches!(item, SendItem::Package { letters, .. } if letters.replicate || letters.all);
    if !(p.has('v') || p.has('P') || (several && p.has('V'))) {
        return out;
    }
    for part in &plan.parts {
        let line = match (&part.from, p.has('P')) {
            (None, true) => format!("full\t{}\t{}", part.name, part.bytes),
            (Some(from), true) => format!("incremental\t{from}\t{}\t{}", part.name, part.bytes),
            (from, false) => {
                let what = match from {
                    None => format!("full send of {}", part.name),
                    Some(from) if from.contains(['@', '#']) => format!("send from {from} to {}", part.name),
                    Some(from) => format!("send from @{from} to {}", part.name),
                };
                match part.bytes {
                    0 => what,
                    n => format!("{what} estimated size is {}", bytes(n)),
                }
            }
        };
        out.push_str(&line);
        out.push('\n');
    }
    let total = plan.parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add);
    match (p.has('P'), several) {
        (true, _) => out.push_str(&format!("size\t{total}\n")),
        (false, true) => out.push_str(&format!("total estimated size is {}\n", bytes(total))),
        (false, false) => out.push_str(&format!("total estimated size is {}\n", NiceNum(total))),
    }
    out
}

#[cfg(test)]
mod tests {
    use admin::request::PartView;

    use super::*;
    use crate::opts::Spec;

    fn parsed(line: &str) -> Parsed {
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        Spec { letters: LETTERS, long: LONG }.parse(&args).unwrap()
    }

    #[test]
    fn the_source_is_of_the_same_file_system_unless_it_says_another() {
        for (from, full) in [("@a", "p/f@a"), ("a", "p/f@a"), ("p/g@a", "p/g@a"), ("#a", "p/f#a"), ("p/g#a", "p/g#a")] {
            assert_eq!(source("p/f@b", from), full);
        }
    }

    #[test]
    fn command_lines_are_requests() {
        let package = |name: &str, from: Option<&str>, letters| SendItem::Package {
            name: name.into(),
            from: from.map(str::to_string),
            letters,
            redact: None,
        };
        let one = |from: Option<&str>, redact: Option<&str>| SendItem::Snapshot {
            name: "p@b".into(),
            from: from.map(str::to_string),
            redact: redact.map(str::to_string),
        };
        let letters = PackageLetters::default;
        let two = vec!["p/x".to_string(), "p/y".to_string()];
        for (line, want) in [
            ("-i @a p@b", one(Some("p@a"), None)),
            ("-i p#a p@b -Lec", one(Some("p#a"), None)),
            ("--redact book p@b -i #a", one(Some("p#a"), Some("book"))),
            ("-R p@b", package("p@b", None, PackageLetters { replicate: true, ..letters() })),
            ("--replicate -X p/x,p/y -i a p@b", {
                package("p@b", Some("p@a"), PackageLetters { replicate: true, exclude: two, ..letters() })
            }),
            ("-I @a p@b", package("p@b", Some("p@a"), PackageLetters { all: true, ..letters() })),
            ("-pbh p@b", {
                package("p@b", None, PackageLetters { props: true, backup: true, holds: true, ..letters() })
            }),
            ("-Rs p@b", package("p@b", None, PackageLetters { replicate: true, skip_missing: true, ..letters() })),
            ("-t 1-2-3-4 -nv", SendItem::Token("1-2-3-4".into())),
            ("-S p/f", SendItem::Saved("p/f".into())),
            ("-i @a p/f", SendItem::Snapshot { name: "p/f".into(), from: Some("p/f@a".into()), redact: None }),
        ] {
            assert_eq!(item_of(&parsed(line)).unwrap(), want, "{line}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        for (line, want) in [
            ("", "missing snapshot argument"),
            ("p@a p@b", "too many arguments"),
            ("-t x p@a", "too many arguments"),
            ("-t x -R", "invalid flags combined with -t"),
            ("-S p@a", "saved send must specify the dataset with partially-received state"),
            ("-S -p p", "incompatible flags combined with saved send flag"),
            ("-i a -I b p@c", "only one incremental source is possible (-i, -I)"),
            ("-s p@a", "skip-missing flag can only be used in conjunction with replicate"),
            ("-R -X p p@a", "-X p: not a valid non-root dataset name."),
            ("-X p/x p@a", "Cannot specify dataset exclusion (-X) on a non-recursive send."),
            ("-wd b p@a", "Error: raw sends may not be redacted."),
            ("-R --redact b p@a", "Error: multiple snapshots cannot be sent redacted."),
            ("--redact b -t x", "invalid flags combined with -t"),
            ("-I #a p@b", "Error: multiple snapshots cannot be sent from a bookmark."),
            ("-R p", "Error: Unsupported flag with filesystem or bookmark."),
            ("-p p", "Error: Unsupported flag with filesystem or bookmark."),
        ] {
            let said = match item_of(&parsed(line)) {
                Err(Fail::Usage(what, "send")) => what,
                Err(Fail::Error(e)) => e.to_string(),
                other => panic!("{line}: {:?}", other.is_ok()),
            };
            assert_eq!(said, want, "{line}");
        }
    }

    #[test]
    fn what_tools_read_is_what_openzfs_says() {
        let plan = |parts: &[(&str, Option<&str>, u64)]| SendPlan {
            parts: parts
                .iter()
                .map(|(name, from, bytes)| PartView {
                    name: name.to_string(),
                    from: from.map(str::to_string),
                    bytes: *bytes,
                })
                .collect(),
            ..SendPlan::default()
        };
        let said = |line: &str, plan: &SendPlan| {
            let p = parsed(line);
            before(&p, &item_of(&p).unwrap(), plan)
        };
        let full = plan(&[("p/f@b", None, 624)]);
        let part = plan(&[("p/f@b", Some("p/f@a"), 1_258_291)]);
        let two = plan(&[("p@b", Some("a"), 1_258_291), ("p@c", Some("b"), 624), ("p/f@c", None, 0)]);
        for (line, plan, want) in [
            ("-nP p/f@b", &full, "full\tp/f@b\t624\nsize\t624\n"),
            ("-nP p/f@b", &part, "incremental\tp/f@a\tp/f@b\t1258291\nsize\t1258291\n"),
            ("-v p/f@b", &full, "full send of p/f@b estimated size is 624B\ntotal estimated size is 624\n"),
            ("-v p@b", &part, "send from p/f@a to p/f@b estimated size is 1.20M\ntotal estimated size is 1.20M\n"),
            ("-nP -I a p@c", &two, {
                "incremental\ta\tp@b\t1258291\nincremental\tb\tp@c\t624\nfull\tp/f@c\t0\nsize\t1258915\n"
            }),
            ("-nv -R p@c", &two, {
                "send from @a to p@b estimated size is 1.20M\nsend from @b to p@c estimated size is 624B\n\
                 full send of p/f@c\ntotal estimated size is 1.20M\n"
            }),
            ("-V p/f@b", &full, ""),
            ("-n p/f@b", &full, ""),
        ] {
            assert_eq!(said(line, plan), want, "{line}");
        }
        let token = SendPlan { token: Some("list\n".into()), ..full };
        let want =
            "resume token contents:\nlist\nfull send of p/f@b estimated size is 624B\ntotal estimated size is 624\n";
        assert_eq!(said("-nv -t x", &token), want);
    }
}
