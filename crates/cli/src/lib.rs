//! The commands of `weir`: they parse the command line, send requests to the daemon, and print the
//! replies.
//!
//! [`run`] looks at the name that the program was called by: `zpool`, `zfs`, `zdb`, `zstream`,
//! `zinject`, `zed` and `mount.zfs` (symbolic links) are those commands, anything else is `weir`,
//! whose first argument chooses. Option letters, columns and exit codes are OpenZFS's (2.1): 0
//! success, 1 failure, 2 invalid command line.
//!
//! Reading order: [`opts`] (options), [`table`] (columns), `zpool` and `zfs` with their `_out`
//! modules (pure functions from views to text), `help`, `quickstart`.

mod advise;
mod color;
mod cp;
mod daemon_cmd;
mod dedup_out;
mod events;
mod help;
pub mod iostat;
mod json;
mod kstat;
mod lab;
mod lab_replay;
mod lab_zil;
mod mount_zfs;
mod nbd;
pub mod opts;
mod progress;
pub mod quantize;
mod quickstart;
mod scripts;
mod send_progress;
pub mod table;
pub mod top;
mod trace;
mod trace_record;
mod tree;
mod tune;
mod version;
mod wait;
mod zed;
mod zfs;
mod zfs_allow;
mod zfs_create;
mod zfs_diff;
pub mod zfs_key;
mod zfs_out;
mod zfs_owners;
mod zfs_program;
mod zfs_project;
mod zfs_receive;
mod zfs_rewrite;
mod zfs_send;
mod zfs_share;
mod zfs_snap;
mod zfs_upgrade;
mod zinject;
mod zpool;
pub mod zpool_out;
mod zpool_scrub;
mod zpool_upgrade;
mod zstream;

use std::io::Write;

use admin::request::{Changes, PoolSync, Pools, Report, Request};
use base::Error;
use daemon::Client;

/// Why a command failed.
#[derive(Debug)]
pub enum Fail {
    /// The command line is invalid: the mistake, and the command whose usage follows.
    Usage(String, &'static str),
    /// It failed.
    Error(Error),
    /// It failed and has printed the error already.
    AlreadyReported,
}

impl From<Error> for Fail {
    fn from(e: Error) -> Fail {
        Fail::Error(e)
    }
}

type Done = Result<(), Fail>;

/// Runs the command line and returns the exit code.
pub fn run(args: &[String]) -> u8 {
    let program = args.first().map_or("weir", String::as_str);
    let name = program.rsplit('/').next().unwrap_or(program);
    let rest = args.get(1..).unwrap_or_default();
    match name {
        "zpool" => dump_if_asked(report("zpool", zpool::run(rest))),
        "zfs" => dump_if_asked(report("zfs", zfs::run(rest))),
        "zdb" => zdb(rest),
        "zstream" => report("zstream", zstream::run(rest)),
        "zinject" => report("zinject", zinject::run(rest)),
        "zed" => zed::run(rest),
        "mount.zfs" => mount_zfs::run(rest),
        _ => weir(rest),
    }
}

/// As in OpenZFS: with `ZFS_ABORT` in the environment a finished command aborts, for a look at its
/// memory.
fn dump_if_asked(code: u8) -> u8 {
    if std::env::var_os("ZFS_ABORT").is_some() {
        print("dumping core by request\n");
        std::process::abort();
    }
    code
}

fn zdb(rest: &[String]) -> u8 {
    let (mut out, mut err) = (std::io::BufWriter::new(std::io::stdout().lock()), std::io::stderr().lock());
    let code = zdb::main(rest, &mut out, &mut err);
    let _ = out.flush();
    u8::try_from(code).unwrap_or(1)
}

fn rescue(rest: &[String]) -> u8 {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let texts = (help::usage("rescue"), help::topic("rescue").unwrap_or_default());
    let code = rescue::main(rest, (&texts.0, &texts.1), &mut out, &mut err);
    u8::try_from(code).unwrap_or(1)
}

/// Where the file systems of the pool with this guid are mounted; none if the daemon has no such
/// pool.
fn mounts_of(guid: u64) -> base::Result<defrag::Mounts> {
    let client = Client::of_process()?;
    let Some(info) = client.info()? else { return Ok(defrag::Mounts::new()) };
    let pools = client.ask(&Pools { names: Vec::new() }, None, &mut |_, _, _| {})?;
    let Some(pool) = pools.into_iter().find(|p| p.guid == guid) else { return Ok(defrag::Mounts::new()) };
    let is_its = |name: &str| name.strip_prefix(&pool.name).is_some_and(|r| r.is_empty() || r.starts_with('/'));
    Ok(info.mounts.into_iter().filter(|(name, _)| is_its(name)).map(|(name, at)| (name, at.into())).collect())
}

fn defrag(rest: &[String]) -> u8 {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let disk = |name: &str| {
        let ::lab::device::Device { name, model, host } = ::lab::device::Device::of(name)?;
        Ok(defrag::Disk { name, model, host })
    };
    let (usage, page) = (help::usage("defrag"), help::topic("defrag").unwrap_or_default());
    let dirty = txg::TxgTunables::for_memory(host::physmem_bytes()).dirty_data_max;
    let sync = |pool: &str| match ask(&PoolSync { names: vec![pool.to_owned()], force: false }) {
        Ok(_) => Ok(()),
        Err(Fail::Error(e)) => Err(e),
        Err(_) => Err(Error::invalid(format!("'{pool}' was not synced"))),
    };
    let paths = daemon::Paths::of_process();
    let around = defrag::Around {
        usage: &usage,
        page: &page,
        disk: &disk,
        dirty,
        sync: &sync,
        mounts: &mounts_of,
        state: paths.state(),
    };
    let code = defrag::main(rest, &around, &mut out, &mut err);
    u8::try_from(code).unwrap_or(1)
}

fn weir(args: &[String]) -> u8 {
    let rest = args.get(1..).unwrap_or_default();
    match args.first().map(String::as_str) {
        Some("zpool") => dump_if_asked(report("zpool", zpool::run(rest))),
        Some("zfs") => dump_if_asked(report("zfs", zfs::run(rest))),
        Some("zdb") => zdb(rest),
        Some("rescue") => rescue(rest),
        Some("defrag") => defrag(rest),
        Some("zstream") => report("zstream", zstream::run(rest)),
        Some("zinject") => report("zinject", zinject::run(rest)),
        Some("zed") => zed::run(rest),
        Some("mount.zfs") => mount_zfs::run(rest),
        Some("daemon") => report("daemon", daemon_cmd::run(rest)),
        Some("nbd") => report("nbd", nbd::run(rest)),
        Some("kstat") => report("kstat", kstat::run(rest)),
        Some("tune") => report("tune", tune::run(rest)),
        Some("advise") => report("advise", advise::run(rest)),
        Some("trace") => report("trace", trace::run(rest)),
        Some("cp") => report("cp", cp::run(rest)),
        Some("top") => report("top", top::run(rest)),
        Some("lab") => report("lab", lab::run(rest)),
        Some("completions") => report("completions", help::completion::run(rest)),
        Some("man") => report("man", help::man::run(rest)),
        Some("quickstart") => report("quickstart", quickstart::run(rest)),
        Some("version" | "--version" | "-V") => {
            print(&version::own());
            0
        }
        Some("help" | "--help" | "-h") => {
            let topic = rest.join(" ");
            match help::topic(&topic) {
                Some(text) => {
                    print(&text);
                    0
                }
                None => {
                    eprintln!("weir: there is no help on '{topic}': 'weir help' lists what there is");
                    2
                }
            }
        }
        Some(other) => {
            eprintln!("weir: '{other}' is not a command: 'weir help' lists those that there are");
            2
        }
        None => {
            eprint!("{}", help::overview());
            2
        }
    }
}

fn report(command: &str, done: Done) -> u8 {
    match done {
        Ok(()) => 0,
        Err(Fail::AlreadyReported) => 1,
        Err(Fail::Error(e)) => {
            eprintln!("{e}");
            1
        }
        Err(Fail::Usage(what, topic)) => {
            eprintln!("{what}");
            let full = if topic.is_empty() { command.to_string() } else { format!("{command} {topic}") };
            eprint!("{}", help::usage(&full));
            if command == "zfs" && what.starts_with("missing property") {
                eprint!("{}", help::properties());
            }
            2
        }
    }
}

/// Prints to standard output; a closed pipe is no error.
pub(crate) fn print(text: &str) {
    let _ = print_to_reader(text);
}

/// Prints to standard output; false if nobody reads it any more.
pub(crate) fn print_to_reader(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// Talks to the daemon, with a progress bar if that takes long.
fn talk<T>(ask: impl FnOnce(&Client, &mut dyn FnMut(&str, u64, u64)) -> base::Result<T>) -> Result<T, Fail> {
    let client = Client::of_process()?;
    let mut bar = progress::Bar::new();
    let answer = ask(&client, &mut |what, done, total| bar.show(what, done, total));
    bar.clear();
    print_failures(&client);
    Ok(answer?)
}

/// The command line, if the request changes something that records it.
fn recorded<R: Request>(request: &R) -> Option<String> {
    (request.changes() != Changes::Nothing).then(command_line)
}

/// Sends a request to the daemon.
pub(crate) fn ask<R: Request>(request: &R) -> Result<R::Reply, Fail> {
    talk(|client, progress| client.ask(request, recorded(request).as_deref(), progress))
}

/// Sends a request whose stream is bytes; `each` gets them as they come ([`Client::ask_bytes`]).
pub(crate) fn ask_bytes<R: Request>(
    request: &R,
    each: &mut dyn FnMut(&[u8]) -> base::Result<()>,
) -> Result<R::Reply, Fail> {
    talk(|client, progress| client.ask_bytes(request, recorded(request).as_deref(), progress, each))
}

/// Sends a request whose stream goes to `output` ([`Client::ask_with_output`]).
pub(crate) fn ask_with_output<R: Request>(request: &R, output: std::fs::File) -> Result<R::Reply, Fail> {
    talk(|client, progress| client.ask_with_output(request, progress, output))
}

/// Sends a request whose stream is what `input` gives ([`Client::ask_with_input`]).
pub(crate) fn ask_with_input<R: Request>(request: &R, input: std::fs::File) -> Result<R::Reply, Fail> {
    talk(|client, progress| client.ask_with_input(request, recorded(request).as_deref(), progress, input))
}

/// Sends a request for a report; `each` gets its items ([`Client::ask_each`]).
pub(crate) fn ask_each<R: Report>(request: &R, each: &mut dyn FnMut(Option<R::Item>) -> bool) -> Done {
    talk(|client, progress| client.ask_each(request, progress, each))
}

/// Prints the pools that a new daemon could not import: only the command that started it does.
fn print_failures(client: &Client) {
    if client.has_started()
        && let Ok(Some(info)) = client.info()
    {
        info.failures.iter().for_each(|f| eprintln!("{f}"));
    }
}

/// This program's command line, as histories record it.
fn command_line() -> String {
    let mut words: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    if let Some(program) = words.first_mut() {
        *program = program.rsplit('/').next().unwrap_or_default().to_string();
    }
    if words.first().is_some_and(|p| p != "zpool" && p != "zfs" && p != "zinject") {
        words.remove(0);
    }
    words.join(" ")
}

/// `name=value`
pub(crate) fn assignment(text: &str, topic: &'static str) -> Result<(String, String), Fail> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_string(), value.to_string())),
        _ => Err(Fail::Usage(format!("missing '=' for property=value argument '{text}'"), topic)),
    }
}

/// All values of `letter`, each `name=value`; a property given twice is a mistake, as in OpenZFS.
pub(crate) fn properties(p: &opts::Parsed, letter: char, topic: &'static str) -> Result<Vec<(String, String)>, Fail> {
    let list = p.values(letter).map(|v| assignment(v, topic)).collect::<Result<Vec<_>, _>>()?;
    unique(list)
}

/// Fails if a property is in the list twice.
pub(crate) fn unique(list: Vec<(String, String)>) -> Result<Vec<(String, String)>, Fail> {
    for (i, (name, _)) in list.iter().enumerate() {
        if list[..i].iter().any(|(other, _)| other == name) {
            return Err(Error::invalid(format!("property '{name}' specified multiple times")).into());
        }
    }
    Ok(list)
}

/// An absolute path without `.` and `..`. Symbolic links stay, except before `..`.
fn normalize(path: &std::path::Path) -> std::path::PathBuf {
    use std::path::Component;
    let mut out = std::path::PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out = std::fs::canonicalize(&out).unwrap_or(out);
                out.pop();
            }
            _ => {}
        }
    }
    out
}

/// Converts times of datasets to the time zone of this process; the daemon's may be another.
pub(crate) fn local_times(datasets: &mut [admin::view::DatasetView]) {
    use admin::view::fmt::{date, date_with_seconds};
    for prop in datasets.iter_mut().flat_map(|d| &mut d.props) {
        match (prop.name.as_str(), prop.exact.parse()) {
            ("creation", Ok(seconds)) => prop.value = date(seconds),
            ("snapshots_changed", Ok(seconds)) => prop.value = date_with_seconds(seconds),
            _ => {}
        }
    }
}

/// The absolute form of a path that a user gave.
pub(crate) fn absolute(path: &str) -> Result<String, Fail> {
    let path = std::path::absolute(path).map_err(|e| Error::invalid(format!("'{path}' is not a path: {e}")))?;
    normalize(&path)
        .into_os_string()
        .into_string()
        .map_err(|p| Fail::Error(Error::invalid(format!("'{}' is not UTF-8, which weir needs of paths", p.display()))))
}
