//! `weir daemon`: start, stop and status of the daemon.

use std::path::PathBuf;

use admin::tunables::Tunables;
use admin::view::DaemonInfo;
use admin::view::fmt;
use base::{Error, ErrorKind};
use daemon::metrics::Endpoint;
use daemon::server::Outlets;
use daemon::{Client, Paths};

use crate::opts::Parsed;
use crate::zpool::parse_for;
use crate::{Done, Fail, print};

/// Options with long names.
const LONG: &[(&str, bool, char)] = &[("metrics", true, 'm'), ("kstat", true, 'k'), ("cachefile", true, 'c')];

/// Runs `weir daemon ARGS`.
pub fn run(args: &[String]) -> Done {
    let Some(command) = args.first() else { return Err(Fail::Usage("missing command".into(), "")) };
    if matches!(command.as_str(), "help" | "--help" | "-h") {
        return crate::help::print_topic("daemon", &[]);
    }
    let p = parse_for("daemon", &args[1..], "fvo:m:k:c:", LONG, "")?;
    if !p.operands.is_empty() {
        return Err(Fail::Usage("too many arguments".into(), ""));
    }
    match command.as_str() {
        "run" => {
            daemon::server::become_daemon();
            let paths = Paths::of_process();
            let tunables = tunables(&paths, &p)?;
            let outlets = outlets(&p)?;
            match daemon::server::run(paths, tunables, outlets)? {
                None => Ok(()),
                Some(_) => Err(Fail::AlreadyReported),
            }
        }
        "start" => {
            // Checked here, so that the command reports a mistake, not only the log.
            tunables(&Paths::of_process(), &p)?;
            outlets(&p)?;
            let given = p.options().iter().filter(|(l, _)| matches!(l, 'o' | 'm' | 'k' | 'c'));
            let args = given.flat_map(|(l, v)| [format!("-{l}"), v.clone()]).collect();
            if Client::of_process()?.with_args(args).start()? {
                return Ok(());
            }
            let why = "the daemon runs already: 'weir daemon stop' ends it";
            if ['o', 'm', 'k', 'c'].iter().any(|l| p.value(*l).is_some()) {
                Err(Error::new(ErrorKind::Exists, why).into())
            } else {
                Ok(())
            }
        }
        "stop" => {
            if !Client::of_process()?.stop(p.has('f'))? {
                print("no daemon is running\n");
            }
            Ok(())
        }
        "status" => status(p.has('v')),
        other => Err(Fail::Usage(format!("unrecognized command '{other}'"), "")),
    }
}

/// The variable that names the folder of kstats, where no option does.
const KSTAT: &str = "WEIR_KSTAT";

/// The variable that names the cache file, where no option does.
const CACHE_FILE: &str = "WEIR_CACHEFILE";

/// What the daemon is to give out.
fn outlets(p: &Parsed) -> Result<Outlets, Fail> {
    let metrics = p.value('m').map(Endpoint::parse).transpose()?;
    let kstat = path(p, 'k', "--kstat", KSTAT, "the folder of kstats")?;
    let cache_file = path(p, 'c', "--cachefile", CACHE_FILE, "the cache file")?;
    Ok(Outlets { metrics, kstat, cache_file })
}

/// The absolute path that an option gives, or a variable; nothing, if that is empty.
fn path(p: &Parsed, letter: char, long: &str, variable: &str, what: &str) -> Result<Option<PathBuf>, Fail> {
    let (at, from) = match p.value(letter) {
        Some(at) => (at.to_string(), long),
        None => (std::env::var(variable).unwrap_or_default(), variable),
    };
    match at.as_str() {
        "" => Ok(None),
        at if at.starts_with('/') => Ok(Some(PathBuf::from(at))),
        at => Err(Error::invalid(format!("{from} '{at}': {what} must be an absolute path")).into()),
    }
}

fn tunables(paths: &Paths, p: &Parsed) -> Result<Tunables, Fail> {
    let mut out = Tunables::for_memory(host::physmem_bytes());
    let file = paths.tunables_file();
    match std::fs::read_to_string(&file) {
        Ok(text) => out.set_file(&text).map_err(|e| e.at(file.display()))?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            let why = "belongs to another user: set WEIR_RUNTIME_DIR to a folder of your own";
            return Err(Error::new(ErrorKind::Denied, format!("permission denied: '{}' {why}", file.display())).into());
        }
        Err(e) => return Err(Error::new(ErrorKind::Io, format!("'{}' cannot be read: {e}", file.display())).into()),
    }
    if let Ok(list) = std::env::var("WEIR_TUNABLES") {
        out.set_list(&list).map_err(|e| e.at("WEIR_TUNABLES"))?;
    }
    for assignment in p.values('o') {
        out.set(assignment)?;
    }
    Ok(out)
}

fn status(verbose: bool) -> Done {
    let Some(info) = Client::of_process()?.info()? else {
        print("no daemon is running\n");
        return Err(Fail::AlreadyReported);
    };
    print(&status_text(&info, verbose));
    Ok(())
}

/// The most important first: the daemon, its pools, pools that could not be imported; then
/// requests; then the rest.
fn status_text(info: &DaemonInfo, verbose: bool) -> String {
    let mut out =
        format!("daemon {} (weir {}), peak memory {}\n", info.pid, info.version, fmt::bytes(info.peak_memory));
    out.push_str(&format!("socket: {}\nlog: {}\n", info.socket, info.log));
    let state = |n: usize| info.states.get(n).map_or("?", String::as_str);
    let pools: Vec<String> = info.pools.iter().enumerate().map(|(n, p)| format!("{p} ({})", state(n))).collect();
    out.push_str(&format!("pools: {}\n", if pools.is_empty() { "none".to_string() } else { pools.join(", ") }));
    for failure in &info.failures {
        out.push_str(&format!("not imported at the start: {failure}\n"));
    }
    for r in &info.requests {
        let progress = r.progress.as_ref().map_or(String::new(), |p| format!(" ({p})"));
        let (user, pid, age) = (r.uid, r.pid, r.age_ms / 1000);
        out.push_str(&format!("request: {}, {age} s, user {user}, process {pid}: {}{progress}\n", r.what, r.wait));
    }
    for (name, at) in &info.mounts {
        out.push_str(&format!("mount: {name} at {at}\n"));
    }
    for (name, value) in info.tunables.iter().filter(|_| verbose) {
        out.push_str(&format!("tunable: {name}={value}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use admin::view::RequestView;

    use super::*;

    #[test]
    fn what_counts_comes_first_and_tunables_on_request() {
        let info = DaemonInfo {
            pid: 7,
            version: "1".into(),
            pools: vec!["a".into(), "b".into()],
            states: vec!["ONLINE".into(), "SUSPENDED".into()],
            tunables: vec![("t".into(), "1".into())],
            failures: vec!["cannot import 'c': gone".into()],
            socket: "/r/weir.sock".into(),
            log: "/r/daemon.log".into(),
            requests: vec![RequestView {
                what: "zpool export b".into(),
                uid: 5,
                pid: 9,
                age_ms: 12_345,
                wait: "waits for pool 'b' to be resumed".into(),
                progress: Some("unmounting: 1 of 2".into()),
            }],
            ..DaemonInfo::default()
        };
        let short = "daemon 7 (weir 1), peak memory 0B\nsocket: /r/weir.sock\nlog: /r/daemon.log\n\
                     pools: a (ONLINE), b (SUSPENDED)\nnot imported at the start: cannot import 'c': gone\n\
                     request: zpool export b, 12 s, user 5, process 9: waits for pool 'b' to be resumed (unmounting: 1 of 2)\n";
        assert_eq!(status_text(&info, false), short);
        assert_eq!(status_text(&info, true), format!("{short}tunable: t=1\n"));
    }
}
