//! The daemon's log: lines with times in a file of bounded size, and in the systemd journal if
//! there is one.
//!
//! A line is `2026-11-22T21:04:05Z warning: what happened`. The file is `daemon.log` in the runtime
//! folder, for the owner alone; when it would grow beyond [`LOG_MAX`] it becomes `daemon.log.1` in
//! place of the one before. Under systemd (`JOURNAL_STREAM` names our standard error) lines go to
//! standard error with sd-daemon(3)'s prefixes and no file is written; otherwise they also go to
//! the journal's socket, if there is one. Standard error is the same file, for the output of
//! libraries and panics.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admin::keeper::Level;
use ondisk::nvlist::NvList;

/// Bytes of the file at most; `daemon.log.1` has as many.
pub const LOG_MAX: u64 = 4 << 20;
/// The longest line in bytes; the rest is left out.
const LINE_MAX: usize = 2000;
/// Reports of single I/O errors in one [`REPORT_PERIOD`]; further ones are only counted.
const REPORTS_MAX: u32 = 20;
const REPORT_PERIOD: Duration = Duration::from_secs(10);
/// systemd's socket for native messages (systemd.journal-fields(7)).
const JOURNAL: &str = "/run/systemd/journal/socket";

/// The name of a level in a line.
fn word(level: Level) -> &'static str {
    match level {
        Level::Err => "error",
        Level::Warning => "warning",
        Level::Notice => "notice",
    }
}

struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
    /// Standard error is this file; a rotation redirects it to the new one.
    is_stderr: bool,
}

struct Inner {
    file: Option<LogFile>,
    /// Start of the current period, reports written in it, reports left out.
    reports: (Option<Instant>, u32, u32),
}

/// The log.
pub struct Log {
    inner: Mutex<Inner>,
    max: u64,
    /// Lines go to standard error: with systemd's prefix, or plain for a terminal.
    stderr: Option<Stderr>,
    journal: Option<UnixDatagram>,
}

#[derive(Clone, Copy)]
enum Stderr {
    Systemd,
    Plain,
}

fn same_file(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

impl Log {
    /// Opens the log at `path`. A file or journal that cannot be opened is left out: the daemon
    /// runs without it.
    pub fn open(path: &Path) -> Log {
        Log::open_with(path, LOG_MAX, Path::new(JOURNAL))
    }

    fn open_with(path: &Path, max: u64, journal: &Path) -> Log {
        let stderr = std::fs::metadata("/proc/self/fd/2").ok();
        let stream = std::env::var("JOURNAL_STREAM").ok();
        let systemd = match (&stderr, stream.as_deref().and_then(|s| s.split_once(':'))) {
            (Some(meta), Some((dev, ino))) => dev.parse() == Ok(meta.dev()) && ino.parse() == Ok(meta.ino()),
            _ => false,
        };
        if systemd {
            let inner = Mutex::new(Inner { file: None, reports: (None, 0, 0) });
            return Log { inner, max, stderr: Some(Stderr::Systemd), journal: None };
        }
        let file = open_file(path).map(|file| {
            let meta = file.metadata();
            let is_stderr = matches!((&meta, &stderr), (Ok(a), Some(b)) if same_file(a, b));
            LogFile { path: path.to_path_buf(), size: meta.map_or(0, |m| m.len()), file, is_stderr }
        });
        let plain = !file.as_ref().is_some_and(|f| f.is_stderr);
        let socket = UnixDatagram::unbound().ok().filter(|s| s.connect(journal).is_ok());
        let journal = socket.filter(|s| s.set_nonblocking(true).is_ok());
        let inner = Mutex::new(Inner { file, reports: (None, 0, 0) });
        Log { inner, max, stderr: plain.then_some(Stderr::Plain), journal }
    }

    /// Writes a line.
    pub fn say(&self, level: Level, text: &str) {
        self.write(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner), level, text);
    }

    /// Writes a line of a kind that may come very often, within [`REPORTS_MAX`].
    fn report(&self, level: Level, text: &str) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, written, left_out) = inner.reports;
        if since.is_none_or(|t| t.elapsed() >= REPORT_PERIOD) {
            if left_out > 0 {
                self.write(&mut inner, level, &format!("{left_out} more reports were left out: see 'zpool events'"));
            }
            inner.reports = (Some(Instant::now()), 1, 0);
        } else if written < REPORTS_MAX {
            inner.reports.1 += 1;
        } else {
            inner.reports.2 += 1;
            return;
        }
        self.write(&mut inner, level, text);
    }

    fn write(&self, inner: &mut Inner, level: Level, text: &str) {
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let text = &text[..text.floor_char_boundary(LINE_MAX)];
        let line = format!("{} {}: {text}\n", utc(now()), word(level));
        if let Some(f) = &mut inner.file {
            if f.size + line.len() as u64 > self.max {
                f.rotate();
            }
            if f.file.write_all(line.as_bytes()).is_ok() {
                f.size += line.len() as u64;
            }
        }
        match self.stderr {
            Some(Stderr::Systemd) => eprintln!("<{}>{text}", level as u8),
            Some(Stderr::Plain) => eprint!("{line}"),
            None => {}
        }
        if let Some(journal) = &self.journal {
            let message = format!("PRIORITY={}\nSYSLOG_IDENTIFIER=weir\nMESSAGE={text}\n", level as u8);
            let _ = journal.send(message.as_bytes());
        }
    }

    /// Writes a line for an event of a pool, if administrators need it.
    pub fn event(&self, class: &str, payload: &NvList) {
        if let Some((level, text, often)) = event_line(class, payload) {
            if often { self.report(level, &text) } else { self.say(level, &text) }
        }
    }
}

impl LogFile {
    /// Renames the file to `.1` and begins a new one.
    fn rotate(&mut self) {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        if std::fs::rename(&self.path, old).is_err() {
            // The file was removed: a new one is made all the same.
            self.size = 0;
        }
        if let Some(new) = open_file(&self.path) {
            self.size = new.metadata().map_or(0, |m| m.len());
            if self.is_stderr {
                host::redirect_output(&new);
            }
            self.file = new;
        }
    }
}

fn open_file(path: &Path) -> Option<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path).ok()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Seconds since 1970 as ISO 8601 in UTC.
fn utc(secs: u64) -> String {
    let (mut days, rest) = (secs / 86_400, secs % 86_400);
    let leap = |y: u64| (y.is_multiple_of(4) && !y.is_multiple_of(100)) || y.is_multiple_of(400);
    let mut year = 1970;
    while days >= if leap(year) { 366 } else { 365 } {
        days -= if leap(year) { 366 } else { 365 };
        year += 1;
    }
    let lengths = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for len in lengths {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{:02}T{h:02}:{m:02}:{s:02}Z", days + 1)
}

/// A line without its time and level: a command shows it if no daemon started.
pub fn text_of(line: &str) -> &str {
    match line.split_once(' ') {
        Some((time, rest)) if time.len() == 20 && time.ends_with('Z') => rest.split_once(": ").map_or(rest, |(_, t)| t),
        _ => line,
    }
}

/// The level and line of an event, and whether such events may come very often; none if the log
/// leaves the event out.
fn event_line(class: &str, payload: &NvList) -> Option<(Level, String, bool)> {
    let pool = payload.str("pool").unwrap_or("?");
    let device = payload.str("vdev_path").unwrap_or("a device");
    let state = || match payload.u64("vdev_state").unwrap_or(0) {
        // vdev_state_t of OpenZFS.
        1 => "CLOSED",
        2 => "OFFLINE",
        3 => "REMOVED",
        4 => "UNAVAIL",
        5 => "FAULTED",
        6 => "DEGRADED",
        7 => "ONLINE",
        _ => "UNKNOWN",
    };
    let notice = |text: String| Some((Level::Notice, text, false));
    let (_, name) = class.split_once(".fs.zfs.")?;
    match name {
        "io_failure" => {
            let advice = "'zpool status' says why, 'zpool clear' tries again";
            Some((Level::Err, format!("pool '{pool}' is suspended: {advice}"), false))
        }
        "statechange" | "removed" => {
            let level = if state() == "ONLINE" { Level::Notice } else { Level::Warning };
            let why = payload.str("vdev_reason").map(|why| format!(": {why}")).unwrap_or_default();
            Some((level, format!("pool '{pool}': {device} is {} now{why}", state()), false))
        }
        "vdev.open_failed" => Some((Level::Warning, format!("pool '{pool}': {device} cannot be opened"), false)),
        "data" => Some((Level::Err, format!("pool '{pool}': a damaged block was met: see 'zpool status -v'"), true)),
        "checksum" => Some((Level::Warning, format!("pool '{pool}': {device}: a block has a wrong checksum"), true)),
        _ if class.starts_with("ereport.") => {
            Some((Level::Warning, format!("pool '{pool}': {device}: an I/O operation failed ({name})"), true))
        }
        "pool_create" => notice(format!("pool '{pool}' was created")),
        "pool_import" => notice(format!("pool '{pool}' was imported")),
        "pool_export" => notice(format!("pool '{pool}' was exported")),
        "pool_destroy" => notice(format!("pool '{pool}' was destroyed")),
        "scrub_finish" => notice(format!("pool '{pool}': the scrub has ended")),
        "scrub_abort" => notice(format!("pool '{pool}': the scrub was stopped")),
        "resilver_finish" => notice(format!("pool '{pool}': the resilver has ended")),
        "vdev_clear" => notice(format!("pool '{pool}': the errors of {device} were cleared")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(secs), text);
        }
        assert_eq!(text_of("2000-02-29T00:00:00Z error: it is: so"), "it is: so");
        assert_eq!(text_of("it is: so"), "it is: so");
    }

    #[test]
    fn the_file_is_bounded_and_the_journal_hears_of_it() {
        let dir = host::TempDir::new("log").unwrap();
        let (path, journal) = (dir.join("daemon.log"), dir.join("journal"));
        let heard = UnixDatagram::bind(&journal).unwrap();
        let log = Log::open_with(&path, 1000, &journal);
        log.say(Level::Warning, "first\nline");
        let mut buf = [0; 500];
        let n = heard.recv(&mut buf).unwrap();
        assert_eq!(String::from_utf8_lossy(&buf[..n]), "PRIORITY=4\nSYSLOG_IDENTIFIER=weir\nMESSAGE=first line\n");
        drop(heard);
        for n in 0..100 {
            log.say(Level::Notice, &format!("line {n}"));
        }
        let text = |p: &str| std::fs::read_to_string(dir.join(p)).unwrap();
        let (new, old) = (text("daemon.log"), text("daemon.log.1"));
        assert!(new.len() <= 1000 && old.len() <= 1000 && old.len() > 900, "{} {}", new.len(), old.len());
        assert!(new.ends_with("Z notice: line 99\n"), "{new}");
        assert!(old.lines().chain(new.lines()).all(|l| l.as_bytes()[19] == b'Z'));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn very_many_reports_are_counted() {
        let dir = host::TempDir::new("log-many").unwrap();
        let path = dir.join("daemon.log");
        let log = Log::open_with(&path, LOG_MAX, Path::new("/nonexistent"));
        let payload = NvList::new().with_str("pool", "tank").with_str("vdev_path", "/d").with_u64("vdev_state", 5);
        for _ in 0..1000 {
            log.event("ereport.fs.zfs.checksum", &payload);
        }
        log.event("resource.fs.zfs.statechange", &payload);
        log.event("sysevent.fs.zfs.history_event", &payload);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count() as u32, REPORTS_MAX + 1);
        assert!(text.contains("warning: pool 'tank': /d: a block has a wrong checksum\n"), "{text}");
        assert!(text.ends_with("warning: pool 'tank': /d is FAULTED now\n"), "{text}");
    }
}
