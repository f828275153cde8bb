//! `zfs send`.
//!
//! The bytes of the stream go to standard output as they come. What `-n`, `-v` and `-P` say is
//! OpenZFS's, letter by letter, since tools read it (format page 25 section 2): on standard output
//! in a dry run, else on standard error.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admin::request::{SendRest, SendRestSize, SendSize, SendStream, SendWhat};
use base::{Error, ErrorKind, NiceNum};
use ondisk::stream::Token;

use crate::opts::Parsed;
use crate::{Done, Fail, ask, ask_bytes, print};

/// Pause between two lines of progress, as in OpenZFS.
const PERIOD: Duration = Duration::from_secs(1);

/// The long options: the letters that they stand for.
pub const LONG: &[(&str, bool, char)] = &[
    ("large-block", false, 'L'),
    ("embed", false, 'e'),
    ("compressed", false, 'c'),
    ("raw", false, 'w'),
    ("dryrun", false, 'n'),
    ("verbose", false, 'v'),
    ("parsable", false, 'P'),
    ("dedup", false, 'D'),
];

/// `zfs send`
pub fn send(p: &Parsed) -> Done {
    if let Some(token) = p.value('t') {
        return send_rest(p, token);
    }
    let [name] = p.operands.as_slice() else {
        let what = if p.operands.is_empty() { "missing snapshot argument" } else { "too many arguments" };
        return Err(Fail::Usage(what.into(), "send"));
    };
    let dry = p.has('n');
    if !dry && std::io::stdout().is_terminal() {
        let text = "Error: Stream can not be written to a terminal.\nYou must redirect standard output.";
        eprintln!("{text}");
        return Err(Fail::AlreadyReported);
    }
    if !name.contains('@') {
        let text = format!("cannot send '{name}': weir sends snapshots only, not file systems");
        return Err(Error::unsupported(text).into());
    }
    if p.has('D') {
        eprintln!(
            "WARNING: deduplicated send is no longer supported.  A regular, non-deduplicated stream will be generated.\n"
        );
    }
    let what = SendWhat {
        name: name.clone(),
        from: p.value('i').map(|from| source(name, from)),
        large_blocks: p.has('L'),
        embedded: p.has('e'),
        compressed: p.has('c'),
        raw: p.has('w'),
    };
    let says = if p.has('P') { Some(Says::Parsable) } else { p.has('v').then_some(Says::Text) };
    let gone = |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot send '{name}': {e}"));
    if dry || says.is_some() {
        let size = ask(&SendSize(what.clone()))?;
        let text = says.map(|says| says.before(&what, size)).unwrap_or_default();
        if dry {
            print(&text);
            return Ok(());
        }
        eprint!("{text}");
    }
    let mut lines = says.map(|says| Lines::new(says, name));
    let mut out = std::io::stdout().lock();
    ask_bytes(&SendStream(what), &mut |bytes| {
        out.write_all(bytes).map_err(gone)?;
        if let Some(lines) = &mut lines {
            lines.sent(bytes.len() as u64);
        }
        Ok(())
    })?;
    out.flush().map_err(gone)?;
    Ok(())
}

/// `zfs send -t`
fn send_rest(p: &Parsed, token: &str) -> Done {
    if !p.operands.is_empty() {
        return Err(Fail::Usage("too many arguments".into(), "send"));
    }
    if p.has('i') {
        return Err(Fail::Usage("invalid flags combined with -t".into(), "send"));
    }
    let contents = Token::list_of(token).map_err(|e| e.at("cannot resume send"))?;
    let name = Token::parse(token).map_err(|e| e.at("cannot resume send"))?.to_name;
    let dry = p.has('n');
    if !dry && std::io::stdout().is_terminal() {
        eprintln!("Error: Stream can not be written to a terminal.\nYou must redirect standard output.");
        return Err(Fail::AlreadyReported);
    }
    let token = token.to_string();
    let says = if p.has('P') { Some(Says::Parsable) } else { p.has('v').then_some(Says::Text) };
    if dry || says.is_some() {
        let size = ask(&SendRestSize { token: token.clone() })?;
        let what = SendWhat { name: name.clone(), ..SendWhat::default() };
        let text =
            says.map(|says| format!("resume token contents:\n{}{}", contents.tabbed(), says.before(&what, size)));
        let text = text.unwrap_or_default();
        if dry {
            print(&text);
            return Ok(());
        }
        eprint!("{text}");
    }
    let gone = |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot send '{name}': {e}"));
    let mut out = std::io::stdout().lock();
    ask_bytes(&SendRest { token }, &mut |bytes| out.write_all(bytes).map_err(gone))?;
    out.flush().map_err(gone)?;
    Ok(())
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
    eprintln!("WARNING: implied prefix '@' for incremental source '{from}'");
    format!("{fs}@{from}")
}

/// How it speaks about what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Says {
    /// `-v`: for people.
    Text,
    /// `-P`: for programs.
    Parsable,
}

impl Says {
    /// What it says before it sends `what`, of about `size` bytes.
    fn before(self, what: &SendWhat, size: u64) -> String {
        let SendWhat { name, from, .. } = what;
        match (self, from) {
            (Says::Parsable, None) => format!("full\t{name}\t{size}\nsize\t{size}\n"),
            (Says::Parsable, Some(from)) => format!("incremental\t{from}\t{name}\t{size}\nsize\t{size}\n"),
            (Says::Text, from) => {
                let size = NiceNum(size);
                let part = match from {
                    None => format!("full send of {name}"),
                    Some(from) => format!("send from {from} to {name}"),
                };
                format!("{part} estimated size is {size}\ntotal estimated size is {size}\n")
            }
        }
    }
}

/// The lines of progress while it sends.
struct Lines<'a> {
    says: Says,
    name: &'a str,
    bytes: u64,
    next: Instant,
    begun: bool,
}

impl<'a> Lines<'a> {
    fn new(says: Says, name: &'a str) -> Lines<'a> {
        Lines { says, name, bytes: 0, next: Instant::now() + PERIOD, begun: false }
    }

    /// More bytes are out.
    fn sent(&mut self, more: u64) {
        self.bytes += more;
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + PERIOD;
        if !std::mem::replace(&mut self.begun, true) && self.says == Says::Text {
            eprintln!("TIME        SENT   SNAPSHOT {}", self.name);
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let t = host::local_time(since_1970.as_secs() as i64);
        let time = format!("{:02}:{:02}:{:02}", t.hour, t.minute, t.second);
        match self.says {
            Says::Parsable => eprintln!("{time}\t{}\t{}", self.bytes, self.name),
            Says::Text => eprintln!("{time}   {:>5}   {}", NiceNum(self.bytes), self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_of_the_same_file_system_unless_it_says_another() {
        for (from, full) in [("@a", "p/f@a"), ("a", "p/f@a"), ("p/g@a", "p/g@a"), ("#a", "p/f#a"), ("p/g#a", "p/g#a")] {
            assert_eq!(source("p/f@b", from), full);
        }
    }

    #[test]
    fn what_tools_read_is_what_openzfs_says() {
        let full = SendWhat {
            name: "p/f@b".into(),
            from: None,
            large_blocks: false,
            embedded: false,
            compressed: false,
            raw: false,
        };
        let part = SendWhat { from: Some("p/f@a".into()), ..full.clone() };
        assert_eq!(Says::Parsable.before(&full, 624), "full\tp/f@b\t624\nsize\t624\n");
        assert_eq!(Says::Parsable.before(&part, 2048), "incremental\tp/f@a\tp/f@b\t2048\nsize\t2048\n");
        assert_eq!(
            Says::Text.before(&full, 624),
            "full send of p/f@b estimated size is 624\ntotal estimated size is 624\n"
        );
        assert_eq!(
            Says::Text.before(&part, 1_258_291),
            "send from p/f@a to p/f@b estimated size is 1.20M\ntotal estimated size is 1.20M\n"
        );
    }
}
