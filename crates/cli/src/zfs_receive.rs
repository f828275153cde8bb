//! `zfs receive`.
//!
//! The stream is standard input, which goes to the daemon as it comes. What `-v` says is OpenZFS's.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use admin::request::{Naming, ReceiveAbort, ReceiveStream, ReceiveView, ReceiveWhat, ReceivedView, Secret};
use base::NiceNum;

use crate::opts::Parsed;
use crate::{Done, Fail, ask, ask_with_input, assignment, print, unique};

/// `zfs receive`
pub fn receive(p: &Parsed) -> Done {
    let [target] = p.operands.as_slice() else {
        let what = if p.operands.is_empty() { "missing snapshot argument" } else { "too many arguments" };
        return Err(Fail::Usage(what.into(), "receive"));
    };
    if p.has('A') {
        if !p.options().iter().all(|(letter, _)| *letter == 'A') {
            return Err(Fail::Usage("invalid option used with -A".into(), "receive"));
        }
        if target.contains('@') {
            return Err(base::Error::invalid(format!("cannot abort '{target}': it is not a file system")).into());
        }
        return ask(&ReceiveAbort { name: target.clone() });
    }
    if p.has('c')
        && let Some((letter, _)) = p.options().iter().find(|(letter, _)| !"cnv".contains(*letter))
    {
        let text =
            format!("cannot receive: corrective recv can not be used when combined with this flag: -c with -{letter}");
        return Err(base::Error::invalid(text).into());
    }
    if std::io::stdin().is_terminal() {
        eprintln!("Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.");
        return Err(Fail::AlreadyReported);
    }
    let mut what = wanted(p, target)?;
    what.key = key_for(&what)?;
    let stream = std::io::stdin().as_fd().try_clone_to_owned();
    let stream = stream.map_err(|e| base::Error::new(base::ErrorKind::Io, format!("cannot read the stream: {e}")))?;
    let view = ask_with_input(&ReceiveStream(what), stream.into())?;
    if p.has('v') {
        print(&view.snapshots.iter().map(|s| said(s, p.has('n'))).collect::<String>());
    }
    warn(&view)
}

/// The request of a command line.
fn wanted(p: &Parsed, target: &str) -> Result<ReceiveWhat, Fail> {
    let mut all = p.values('o').map(|v| assignment(v, "receive")).collect::<Result<Vec<_>, _>>()?;
    let origin = all.iter().position(|(name, _)| name == "origin").map(|at| all.remove(at).1);
    let exclude: Vec<String> = p.values('x').map(str::to_string).collect();
    if let Some(both) = all.iter().map(|(name, _)| name).find(|name| exclude.contains(name)) {
        return Err(Fail::Usage(format!("property '{both}' specified multiple times"), "receive"));
    }
    if let Some(name) = exclude.iter().enumerate().find_map(|(n, name)| exclude[..n].contains(name).then_some(name)) {
        return Err(Fail::Usage(format!("property '{name}' specified multiple times"), "receive"));
    }
    let naming = match (p.has('d'), p.has('e')) {
        (true, true) => return Err(Fail::Usage("-d and -e exclude each other".into(), "receive")),
        (true, false) => Naming::Prefix,
        (false, true) => Naming::Tail,
        (false, false) => Naming::Given,
    };
    Ok(ReceiveWhat {
        target: target.to_string(),
        naming,
        force: p.has('F'),
        resumable: p.has('s'),
        no_mount: p.has('u'),
        force_unmount: p.has('M'),
        heal: p.has('c'),
        dry_run: p.has('n'),
        no_holds: p.has('h'),
        origin,
        props: unique(all)?,
        exclude,
        key: None,
    })
}

/// The key of a new file system, if the properties ask for one: from a file, since standard input
/// is the stream.
fn key_for(what: &ReceiveWhat) -> Result<Option<Secret>, Fail> {
    let given = |wanted: &str| what.props.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    if given("keyformat").is_some() && matches!(given("keylocation"), None | Some("prompt")) {
        let text =
            "cannot receive: Cannot use 'prompt' keylocation because stdin is in use: give keylocation=file:///PATH";
        return Err(base::Error::invalid(text).into());
    }
    crate::zfs_key::key_for_new(&what.target, &what.props)
}

/// What `-v` says about a snapshot.
fn said(s: &ReceivedView, dry: bool) -> String {
    let doing = if dry { "would receive" } else { "receiving" };
    let corrective = if s.healed.is_some() { "corrective " } else { "" };
    let kind = if s.incremental { "incremental" } else { "full" };
    let begin = format!("{doing} {corrective}{kind} stream of {} into {}\n", s.sent_as, s.snapshot);
    if s.was_here {
        return format!("{begin}snap {} already exists; ignoring\n", s.snapshot);
    }
    if dry {
        return begin;
    }
    let seconds = s.nanos.max(1) as f64 / 1e9;
    let bytes = |n: u64| if n < 1024 { format!("{n}B") } else { NiceNum(n).to_string() };
    let rate = bytes((s.bytes as f64 / seconds) as u64);
    let healed = match s.healed {
        Some(1) => "healed 1 block\n".into(),
        Some(n) => format!("healed {n} blocks\n"),
        None => String::new(),
    };
    format!("{begin}received {} stream in {seconds:.2} seconds ({rate}/sec)\n{healed}", bytes(s.bytes))
}

/// What could not be done beside the snapshots is an error of the command, as in OpenZFS.
fn warn(view: &ReceiveView) -> Done {
    view.refused.iter().chain(&view.warnings).for_each(|w| eprintln!("{w}"));
    if view.warnings.is_empty() { Ok(()) } else { Err(Fail::AlreadyReported) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_openzfs_says() {
        let one = ReceivedView {
            incremental: false,
            sent_as: "p/f@a".into(),
            snapshot: "t/f@a".into(),
            was_here: false,
            healed: None,
            bytes: 1_258_291,
            nanos: 500_000_000,
        };
        let want = "receiving full stream of p/f@a into t/f@a\nreceived 1.20M stream in 0.50 seconds (2.40M/sec)\n";
        assert_eq!(said(&one, false), want);
        let part = ReceivedView { incremental: true, ..one.clone() };
        assert_eq!(said(&part, true), "would receive incremental stream of p/f@a into t/f@a\n");
        let healed = ReceivedView { healed: Some(2), ..part.clone() };
        let want = "would receive corrective incremental stream of p/f@a into t/f@a\n";
        assert_eq!(said(&healed, true), want);
        assert!(said(&healed, false).ends_with("(2.40M/sec)\nhealed 2 blocks\n"));
        let was = ReceivedView { was_here: true, ..one.clone() };
        assert!(said(&was, false).ends_with("snap t/f@a already exists; ignoring\n"));
        assert!(said(&ReceivedView { bytes: 624, ..one }, false).contains("received 624B stream"));
    }

    #[test]
    fn options_become_a_request() {
        let spec = crate::opts::Spec { letters: "vMnsFhdeuAo:x:", long: &[] };
        let parse = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
            wanted(&spec.parse(&words).unwrap(), "t/f")
        };
        let what = parse("-Fsud -o origin=p/f@a -o compression=lz4 -x atime").map_err(|_| ()).unwrap();
        assert!(what.force && what.resumable && what.no_mount && !what.dry_run);
        assert_eq!(what.naming, Naming::Prefix);
        assert_eq!(what.origin.as_deref(), Some("p/f@a"));
        assert_eq!((what.props, what.exclude), (vec![("compression".into(), "lz4".into())], vec!["atime".into()]));
        for bad in ["-d -e", "-o compression", "-o atime=on -o atime=off", "-o atime=on -x atime", "-x atime -x atime"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
