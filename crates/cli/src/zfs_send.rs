//! `zfs send`.

use std::io::{IsTerminal, Write};

use admin::request::SnapSend;
use base::{Error, ErrorKind};
use daemon::Client;

use crate::opts::Parsed;
use crate::{Done, Fail, progress};

/// `zfs send`
pub fn send(p: &Parsed) -> Done {
    let [name] = p.operands.as_slice() else {
        let what = if p.operands.is_empty() { "missing snapshot argument" } else { "too many arguments" };
        return Err(Fail::Usage(what.into(), "send"));
    };
    if std::io::stdout().is_terminal() {
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
    let from = p.value('i').map(|from| source(name, from)).transpose()?;
    let request = SnapSend {
        name: name.clone(),
        from,
        large_blocks: p.has('L'),
        embedded: p.has('e'),
        compressed: p.has('c'),
        raw: p.has('w'),
    };
    let client = Client::of_process()?;
    let mut bar = progress::Bar::new();
    let mut out = std::io::stdout().lock();
    let gone = |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot send '{name}': {e}"));
    let sent = client.ask_bytes(&request, &mut |what, done, total| bar.show(what, done, total), &mut |bytes| {
        out.write_all(bytes).map_err(gone)
    });
    bar.clear();
    crate::print_failures(&client);
    sent?;
    out.flush().map_err(gone)?;
    Ok(())
}

/// The full name of the snapshot that `-i` names for a stream of `to`.
fn source(to: &str, from: &str) -> Result<String, Fail> {
    let fs = to.split('@').next().unwrap_or_default();
    if from.contains('#') {
        return Err(Error::unsupported(format!("cannot send '{to}': weir does not send from bookmarks yet")).into());
    }
    match from.split_once('@') {
        Some(("", snap)) => Ok(format!("{fs}@{snap}")),
        Some(_) => Ok(from.to_string()),
        None => {
            eprintln!("WARNING: implied prefix '@' for incremental source '{from}'");
            Ok(format!("{fs}@{from}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_a_snapshot_of_the_same_file_system_unless_it_says_another() {
        for (from, full) in [("@a", "p/f@a"), ("a", "p/f@a"), ("p/g@a", "p/g@a")] {
            assert_eq!(source("p/f@b", from).ok().as_deref(), Some(full));
        }
        assert!(source("p/f@b", "#mark").is_err());
    }
}
