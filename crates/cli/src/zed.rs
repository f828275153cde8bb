//! `zed`: runs programs for what happens to pools, as OpenZFS's event daemon does.
//!
//! The words: a *zedlet* is a program of a folder whose name says for which events it is run
//! ([`zedlets`]); an event is in its environment ([`environment`]); the *state file* has the event
//! that was handled last, so that none is handled twice and those that were missed are handled
//! ([`state`]).
//!
//! In order: the command line; in the background a copy of this process, which reports when it is
//! ready; the folder, the PID file, the state file; then one thread follows the events of the
//! daemon of pools, and the main thread waits for signals: HUP reads the folder again, TERM and INT
//! end everything. The daemon of pools may end, begin anew, or not be there yet: it is looked for
//! again and again, and never started by this.
//!
//! As in OpenZFS, zedlets get a small environment and no descriptors but /dev/null, four times.

mod environment;
mod log;
mod state;
mod zedlets;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admin::request::Events;
use admin::view::EventView;
use base::{Error, ErrorKind, Result};
use daemon::{Client, Paths};
use host::Signals;

use crate::opts::Spec;
use crate::{Done, Fail, help, print, version};
use environment::Around;
use log::{Level, Log};
use state::{Mark, StateFile};
use zedlets::Run;

const SPEC: Spec = Spec {
    letters: "hLVvfFMZIp:P:s:d:j:b:",
    // For the copy in the background.
    long: &[("help", false, 'h'), ("tell-when-ready", false, 'R')],
};
/// The folder, as in OpenZFS.
const ZEDLETS: &str = "/etc/zfs/zed.d";
/// Zedlets at once, as in OpenZFS.
const JOBS: usize = 16;
/// Most zedlets at once that can be asked for, as in OpenZFS.
const JOBS_MAX: usize = i16::MAX as usize;
/// Time between two looks for the daemon of pools.
const RETRY: Duration = Duration::from_millis(500);
/// Time for the event in hand when the end is asked for.
const LAST: Duration = Duration::from_secs(10);
/// Commands that zedlets call by variables.
const NAMES: [&str; 5] = ["zdb", "zed", "zfs", "zinject", "zpool"];
/// What the copy in the background writes when it is ready.
const READY: &[u8] = b"ready";

/// A parsed command line.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Config {
    verbose: bool,
    force: bool,
    foreground: bool,
    lock_memory: bool,
    zero: bool,
    tell_when_ready: bool,
    zedlets: PathBuf,
    pid_file: PathBuf,
    state_file: PathBuf,
    /// `PATH` for zedlets, which find the commands there then.
    path: Option<String>,
    jobs: usize,
}

/// What a command line asks for.
#[derive(PartialEq, Eq, Debug)]
enum Asked {
    Help,
    License,
    Version,
    Run(Config),
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `zed ARGS`; returns the exit code, 1 for every mistake as in OpenZFS.
pub fn run(args: &[String]) -> u8 {
    let done = parse(args, &default_folder()).map_err(|what| Fail::Usage(what, "")).and_then(|asked| match asked {
        Asked::Help => {
            print(&help::topic("zed").unwrap_or_default());
            Ok(())
        }
        Asked::License => {
            print("weir is licensed under either of MIT and Apache-2.0, at your option\n");
            Ok(())
        }
        Asked::Version => {
            print(&format!("{}\n", version::alias()));
            Ok(())
        }
        Asked::Run(config) if config.foreground || config.tell_when_ready => Ok(serve(config)?),
        Asked::Run(config) => background(&config),
    });
    crate::report("zed", done).min(1)
}

/// The folder of the PID file and the state file: /run, as in OpenZFS, for root.
fn default_folder() -> PathBuf {
    if host::effective_uid() == 0 { PathBuf::from("/run") } else { Paths::of_process().runtime().to_path_buf() }
}

fn parse(args: &[String], run: &Path) -> std::result::Result<Asked, String> {
    let p = SPEC.parse(args)?;
    if let Some((letter, _)) = p.options().iter().find(|(l, _)| matches!(l, 'h' | 'L' | 'V')) {
        return Ok(match letter {
            'h' => Asked::Help,
            'L' => Asked::License,
            _ => Asked::Version,
        });
    }
    if let Some(operand) = p.operands.first() {
        return Err(format!("'{operand}' is not an option, and zed takes nothing else"));
    }
    let path = |letter, default: PathBuf| match p.value(letter) {
        Some(path) => std::path::absolute(path).map_err(|e| format!("'{path}' is not a path: {e}")),
        None => Ok(default),
    };
    let jobs = match p.value('j') {
        None => JOBS,
        Some(text) => match text.parse() {
            Ok(jobs @ 1..=JOBS_MAX) => jobs,
            _ => return Err(format!("'{text}' is not a number of zedlets from 1 to {JOBS_MAX}")),
        },
    };
    if let Some(text) = p.value('b').filter(|text| text.parse::<u32>().is_err()) {
        return Err(format!("'{text}' is not a number of events"));
    }
    Ok(Asked::Run(Config {
        verbose: p.has('v'),
        force: p.has('f'),
        foreground: p.has('F'),
        lock_memory: p.has('M'),
        zero: p.has('Z'),
        tell_when_ready: p.has('R'),
        zedlets: path('d', PathBuf::from(ZEDLETS))?,
        pid_file: path('p', run.join("zed.pid"))?,
        state_file: path('s', run.join("zed.state"))?,
        path: p.value('P').map(str::to_string),
        jobs,
    }))
}

/// Starts a copy of this process and waits until it is ready or has ended.
fn background(config: &Config) -> Done {
    let failed =
        |e: std::io::Error| Fail::Error(Error::new(ErrorKind::Io, format!("zed cannot start in the background: {e}")));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["zed", "--tell-when-ready"]).stdin(Stdio::null()).stdout(Stdio::piped());
    for (letter, on) in [("-v", config.verbose), ("-f", config.force), ("-M", config.lock_memory), ("-Z", config.zero)]
    {
        command.args(on.then_some(letter));
    }
    command.arg("-d").arg(&config.zedlets).arg("-p").arg(&config.pid_file).arg("-s").arg(&config.state_file);
    command.args(["-j", &config.jobs.to_string()]);
    if let Some(path) = &config.path {
        command.args(["-P", path]);
    }
    let mut copy = command.spawn().map_err(failed)?;
    let mut said = Vec::new();
    if let Some(mut out) = copy.stdout.take() {
        out.read_to_end(&mut said).map_err(failed)?;
    }
    if said == READY {
        return Ok(());
    }
    // It has said why.
    let _ = copy.wait();
    Err(Fail::AlreadyReported)
}

/// What all threads share.
struct Zed {
    config: Config,
    log: Log,
    around: Around,
    /// Names of the zedlets, in order.
    zedlets: Mutex<Vec<String>>,
    /// Those that run.
    running: Mutex<usize>,
    ended: Condvar,
    /// Held while an event is handled; true from the end on.
    stopped: Mutex<bool>,
}

/// The event daemon, until a signal ends it.
fn serve(config: Config) -> Result<()> {
    host::shed_inheritance(environment::is_kept, zedlets::PATH);
    host::set_process_name("zed");
    let signals = Signals::hold();
    let null = || File::options().read(true).write(true).open("/dev/null");
    let failed = |e: std::io::Error| Error::new(ErrorKind::Io, format!("'/dev/null' cannot be opened: {e}"));
    host::inherit_null().map_err(failed)?;
    let mut log = Log::to_stderr(config.verbose);
    let zedlets = zedlets::scan(&config.zedlets, config.force, &log)?;
    if config.lock_memory {
        let failed = |e| Error::new(ErrorKind::NoSpace, format!("memory cannot be locked: {e}"));
        host::lock_memory().map_err(failed)?;
    }
    // Kept open: its lock is what a second one finds.
    let pid_file = match state::take_pid_file(&config.pid_file) {
        Ok(file) => Some(file),
        Err(e) if config.force => {
            log.say(Level::Warning, &e.to_string());
            None
        }
        Err(e) => return Err(e),
    };
    let mut state = StateFile::open(&config.state_file, config.zero)?;
    let commands = match &config.path {
        Some(_) => NAMES.map(|name| (name, name.to_string())).into(),
        None => commands(&Paths::of_process())?,
    };
    let around = Around::of_process(&config.zedlets, config.path.as_deref(), commands);
    if config.tell_when_ready {
        log = Log::to_syslog(config.verbose);
        host::new_session();
        let mut out = std::io::stdout();
        let told = out.write_all(READY).and_then(|()| out.flush());
        told.map_err(|e| Error::new(ErrorKind::Io, format!("zed cannot leave the terminal: {e}")))?;
        host::redirect_output(&null().map_err(failed)?);
    }
    log.say(Level::Notice, &format!("{} begins (process {})", version::alias(), std::process::id()));
    let pid_path = config.pid_file.clone();
    let zed = Arc::new(Zed {
        config,
        log,
        around,
        zedlets: Mutex::new(zedlets),
        running: Mutex::new(0),
        ended: Condvar::new(),
        stopped: Mutex::new(false),
    });
    let theirs = zed.clone();
    let follower = std::thread::Builder::new().name("events".into()).spawn(move || theirs.follow(&mut state));
    follower.map_err(|e| Error::new(ErrorKind::Io, format!("zed cannot begin a thread: {e}")))?;
    while signals.wait_for_hangup() {
        match zedlets::scan(&zed.config.zedlets, zed.config.force, &zed.log) {
            Ok(found) => *lock(&zed.zedlets) = found,
            Err(e) => zed.log.say(Level::Warning, &e.to_string()),
        }
    }
    zed.stop();
    if pid_file.is_some() {
        let _ = std::fs::remove_file(&pid_path);
    }
    zed.log.say(Level::Notice, "zed ends");
    Ok(())
}

/// The commands for zedlets, by links to this program: the names in the path may be those of
/// another OpenZFS, which knows nothing of the pools of weir.
fn commands(paths: &Paths) -> Result<BTreeMap<&'static str, String>> {
    paths.make_runtime()?;
    let folder = paths.runtime().join("zed-commands");
    let failed = |e: std::io::Error| {
        Error::new(ErrorKind::Io, format!("links to this program cannot be made in '{}': {e}", folder.display()))
    };
    let program = std::env::current_exe().map_err(failed)?;
    std::fs::create_dir_all(&folder).map_err(failed)?;
    let mut out = BTreeMap::new();
    for name in NAMES {
        let link = folder.join(name);
        if std::fs::read_link(&link).ok().as_ref() != Some(&program) {
            let new = folder.join(format!("{name}.{}", std::process::id()));
            std::os::unix::fs::symlink(&program, &new).map_err(failed)?;
            std::fs::rename(&new, &link).map_err(failed)?;
        }
        out.insert(name, link.display().to_string());
    }
    Ok(out)
}

impl Zed {
    /// Handles the events of the daemon of pools, again whenever there is one.
    fn follow(self: &Arc<Zed>, state: &mut StateFile) {
        let mut told = String::new();
        loop {
            let done = Client::of_process().and_then(|client| self.read(&client.of_running(), state, &mut told));
            if *lock(&self.stopped) {
                return;
            }
            let why = done.err().map_or_else(|| "the daemon of pools has ended".to_string(), |e| e.to_string());
            // Once, not at every look.
            if why != told {
                self.log.say(Level::Notice, &format!("zed waits: {why}"));
                told = why;
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Handles the events of one daemon of pools, until it ends.
    fn read(self: &Arc<Zed>, client: &Client, state: &mut StateFile, told: &mut String) -> Result<()> {
        let mut all: Vec<Mark> = Vec::new();
        let quiet: &mut dyn FnMut(&str, u64, u64) = &mut |_, _, _| {};
        client.ask_each(&Events { pool: None, follow: false }, quiet, &mut |e| {
            all.extend(e.map(|e| Mark::of(&e)));
            true
        })?;
        let after = state::handled(state.mark(), &all);
        *told = String::new();
        self.log.say(Level::Notice, &format!("zed follows the events after number {after}"));
        let mut last = after;
        client.ask_each(&Events { pool: None, follow: true }, quiet, &mut |e| {
            let Some(e) = e.filter(|e| e.eid > last) else { return true };
            // With no event before, all that there are count.
            let missed = if last > 0 { e.eid - last - 1 } else { 0 };
            if missed > 0 {
                let text =
                    format!("{missed} events before number {} were dropped or cleared before zed saw them", e.eid);
                self.log.say(Level::Notice, &text);
            }
            last = e.eid;
            self.handle(&e, state)
        })
    }

    /// Starts the zedlets of an event; false if the end is asked for.
    fn handle(self: &Arc<Zed>, e: &EventView, state: &mut StateFile) -> bool {
        let stopped = lock(&self.stopped);
        if *stopped {
            return false;
        }
        let (vars, left_out) = environment::of_event(e, &self.around);
        for name in left_out {
            self.log.say(Level::Warning, &format!("event {} has more in '{name}' than a variable takes", e.eid));
        }
        let names = lock(&self.zedlets).clone();
        let chosen = names.iter().filter_map(|n| Some((n, zedlets::matching(n, &e.class)?)));
        for (name, how) in chosen {
            self.wait_until_fewer(if how == Run::Alone { 1 } else { self.config.jobs });
            self.start(name, e.eid, &vars);
            if how == Run::Alone {
                self.wait_until_fewer(1);
            }
        }
        if let Err(e) = state.write(Mark::of(e)) {
            self.log.say(Level::Warning, &e.to_string());
        }
        true
    }

    /// Waits until fewer than `n` zedlets run.
    fn wait_until_fewer(&self, n: usize) {
        let running = lock(&self.running);
        drop(self.ended.wait_while(running, |running| *running >= n).unwrap_or_else(PoisonError::into_inner));
    }

    /// Starts a zedlet.
    fn start(self: &Arc<Zed>, name: &str, eid: u64, vars: &BTreeMap<String, String>) {
        let mut command = Command::new(self.config.zedlets.join(name));
        command.env_clear().envs(vars).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        host::release_signals(&mut command);
        let failed = |e: std::io::Error| {
            self.log.say(Level::Warning, &format!("zedlet '{name}' cannot be run for event {eid}: {e}"));
        };
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => return failed(e),
        };
        self.log.say(Level::Info, &format!("zedlet '{name}' runs for event {eid} (process {})", child.id()));
        *lock(&self.running) += 1;
        let (theirs, their_name) = (self.clone(), name.to_string());
        let reap = move || {
            let said = match child.wait() {
                Ok(status) if status.success() => (Level::Info, "has ended".to_string()),
                // To zedlets of OpenZFS that means mostly that there was nothing to do.
                Ok(status) if status.code().is_some() => (Level::Info, format!("ended with {status}")),
                Ok(status) => (Level::Notice, format!("ended by {status}")),
                Err(e) => (Level::Warning, format!("cannot be waited for: {e}")),
            };
            theirs.log.say(said.0, &format!("zedlet '{their_name}' of event {eid} {}", said.1));
            *lock(&theirs.running) -= 1;
            theirs.ended.notify_all();
        };
        if let Err(e) = std::thread::Builder::new().name("zedlet".into()).spawn(reap) {
            // It runs all the same, uncounted.
            *lock(&self.running) -= 1;
            failed(e);
        }
    }

    /// Handles nothing more. The event in hand is finished, unless its zedlets take too long.
    fn stop(&self) {
        let end = std::time::Instant::now() + LAST;
        loop {
            if let Ok(mut stopped) = self.stopped.try_lock() {
                *stopped = true;
                return;
            }
            if std::time::Instant::now() > end {
                return self.log.say(Level::Warning, "zed ends while it waits for zedlets of an event");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> std::result::Result<Asked, String> {
        parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>(), Path::new("/run"))
    }

    #[test]
    fn the_letters_are_those_of_openzfs() {
        let Ok(Asked::Run(c)) = of("-vFfMZI -d /d -p /p -s s -j 3 -b 100 -P /a:/b") else { panic!() };
        assert!(c.verbose && c.foreground && c.force && c.lock_memory && c.zero && !c.tell_when_ready);
        assert_eq!((c.zedlets, c.pid_file, c.jobs), ("/d".into(), "/p".into(), 3));
        assert_eq!(c.state_file, std::env::current_dir().unwrap().join("s"));
        assert_eq!(c.path.as_deref(), Some("/a:/b"));
        let Ok(Asked::Run(c)) = of("") else { panic!() };
        assert_eq!((c.zedlets, c.pid_file, c.jobs), (ZEDLETS.into(), "/run/zed.pid".into(), 16));
        assert_eq!((c.state_file, c.path, c.foreground), ("/run/zed.state".into(), None, false));
        assert_eq!([of("-v -h"), of("-L"), of("-FV")], [Ok(Asked::Help), Ok(Asked::License), Ok(Asked::Version)]);
        for (line, want) in [
            ("-x", "invalid option 'x'"),
            ("-d", "missing argument for 'd' option"),
            ("tank", "'tank' is not an option, and zed takes nothing else"),
            ("-j 0", "'0' is not a number of zedlets from 1 to 32767"),
            ("-j 32768", "'32768' is not a number of zedlets from 1 to 32767"),
            ("-b x", "'x' is not a number of events"),
        ] {
            assert_eq!(of(line).unwrap_err(), want);
        }
    }
}
