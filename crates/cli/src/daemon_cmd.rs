//! `weir daemon`: the daemon by hand.

use base::{Error, ErrorKind};
use daemon::metrics::Endpoint;
use daemon::tunables::Tunables;
use daemon::{Client, Paths, nice};

use crate::opts::Parsed;
use crate::zpool::parse_for;
use crate::{Done, Fail, print};

/// Runs `weir daemon ARGS`.
pub fn run(args: &[String]) -> Done {
    let Some(command) = args.first() else { return Err(Fail::Usage("missing command".into(), "")) };
    if matches!(command.as_str(), "help" | "--help" | "-h") {
        return crate::help::print_topic("daemon", &[]);
    }
    let p = parse_for("daemon", &args[1..], "fo:m:", &[("metrics", true, 'm')], "")?;
    if !p.operands.is_empty() {
        return Err(Fail::Usage("too many arguments".into(), ""));
    }
    match command.as_str() {
        "run" => {
            host::new_session();
            let paths = Paths::of_process();
            let tunables = tunables(&paths, &p)?;
            let metrics = p.value('m').map(Endpoint::parse).transpose()?;
            Ok(daemon::server::run(paths, tunables, metrics)?)
        }
        "start" => {
            // Checked here, so that a mistake is said here and not in a log.
            tunables(&Paths::of_process(), &p)?;
            p.value('m').map(Endpoint::parse).transpose()?;
            let given = p.options().iter().filter(|(l, _)| matches!(l, 'o' | 'm'));
            let args = given.flat_map(|(l, v)| [format!("-{l}"), v.clone()]).collect();
            if Client::of_process()?.with_args(args).start()? {
                return Ok(());
            }
            let why = "the daemon runs already: 'weir daemon stop' ends it";
            if p.value('o').is_some() || p.value('m').is_some() {
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
        "status" => status(),
        other => Err(Fail::Usage(format!("unrecognized command '{other}'"), "")),
    }
}

fn tunables(paths: &Paths, p: &Parsed) -> Result<Tunables, Fail> {
    let mut out = Tunables::for_memory(host::physmem_bytes());
    let file = paths.tunables_file();
    match std::fs::read_to_string(&file) {
        Ok(text) => out.set_file(&text).map_err(|e| e.at(file.display()))?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
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

fn status() -> Done {
    let Some(info) = Client::of_process()?.info()? else {
        print("no daemon is running\n");
        return Err(Fail::Said);
    };
    let mut out =
        format!("daemon {} (weir {}), peak memory {}\n", info.pid, info.version, nice::bytes(info.peak_memory));
    let pools = if info.pools.is_empty() { "none".to_string() } else { info.pools.join(" ") };
    out.push_str(&format!("pools: {pools}\n"));
    for (name, at) in &info.mounts {
        out.push_str(&format!("mount: {name} at {at}\n"));
    }
    for (name, value) in &info.tunables {
        out.push_str(&format!("tunable: {name}={value}\n"));
    }
    for failure in &info.failures {
        out.push_str(&format!("not imported at the start: {failure}\n"));
    }
    print(&out);
    Ok(())
}
