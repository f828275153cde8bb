//! The files of the event daemon: its PID file, whose lock only one process has, and the state file
//! with the event that was handled last.
//!
//! The state file has one line: number, seconds and nanoseconds of the event. One that makes no
//! sense counts as empty.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use admin::view::EventView;
use base::{Error, ErrorKind, Result};

/// Bytes of these files that mean something.
const LEN_MAX: u64 = 128;

/// An event: numbers begin anew with each daemon of pools, so its time belongs to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    eid: u64,
    secs: i64,
    nanos: u32,
}

impl Mark {
    /// The mark of an event.
    pub fn of(e: &EventView) -> Mark {
        Mark { eid: e.eid, secs: e.secs, nanos: e.nanos }
    }

    fn parse(text: &str) -> Option<Mark> {
        let mut words = text.split_whitespace();
        let (eid, secs, nanos) = (words.next()?, words.next()?, words.next()?);
        let mark = Mark { eid: eid.parse().ok()?, secs: secs.parse().ok()?, nanos: nanos.parse().ok()? };
        words.next().is_none().then_some(mark)
    }
}

/// Up to which number the events of a daemon of pools were handled, if `last` was handled last and
/// `all` are those that it still has: all of them are new if that one is not among them.
pub fn handled(last: Option<Mark>, all: &[Mark]) -> u64 {
    last.filter(|last| all.contains(last)).map_or(0, |last| last.eid)
}

/// The state file, open and locked.
pub struct StateFile {
    file: File,
    path: PathBuf,
    mark: Option<Mark>,
}

impl StateFile {
    /// Opens the file, which is made if it is not there; empties it if `zero`.
    pub fn open(path: &Path, zero: bool) -> Result<StateFile> {
        let file = open_and_lock(path, "state file")?;
        let failed = |e: std::io::Error| Error::new(ErrorKind::Io, format!("state file '{}': {e}", path.display()));
        if zero {
            file.set_len(0).map_err(failed)?;
        }
        let mut bytes = Vec::new();
        (&file).take(LEN_MAX).read_to_end(&mut bytes).map_err(failed)?;
        let mark = std::str::from_utf8(&bytes).ok().and_then(Mark::parse);
        Ok(StateFile { file, path: path.to_path_buf(), mark })
    }

    /// The event that was handled last.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// An event was handled.
    pub fn write(&mut self, mark: Mark) -> Result<()> {
        self.mark = Some(mark);
        let line = format!("{} {} {}\n", mark.eid, mark.secs, mark.nanos);
        let written = self.file.write_all_at(line.as_bytes(), 0);
        let done = written.and_then(|()| self.file.set_len(line.len() as u64)).and_then(|()| self.file.sync_data());
        done.map_err(|e| {
            Error::new(ErrorKind::Io, format!("state file '{}' cannot be written: {e}", self.path.display()))
        })
    }
}

/// Makes the PID file this process's. It is until the file that is returned is closed.
pub fn take_pid_file(path: &Path) -> Result<File> {
    let mut file = open_and_lock(path, "PID file")?;
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(|e| Error::new(ErrorKind::Io, format!("PID file '{}' cannot be written: {e}", path.display())))?;
    Ok(file)
}

/// Opens a file, with the folders before it, and locks it against other processes.
fn open_and_lock(path: &Path, what: &str) -> Result<File> {
    let at = path.display();
    let failed = |e: std::io::Error| Error::new(ErrorKind::Io, format!("{what} '{at}' cannot be opened: {e}"));
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o644).open(path);
    let mut file = open.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let _ = Read::by_ref(&mut file).take(LEN_MAX).read_to_string(&mut text);
            let other = text.trim().parse::<u32>().map_or(String::new(), |pid| format!(", process {pid}"));
            Err(Error::new(ErrorKind::Busy, format!("{what} '{at}' is that of another zed{other}")))
        }
        Err(TryLockError::Error(e)) => Err(failed(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_known_by_number_and_time() {
        let mark = |eid, secs| Mark { eid, secs, nanos: 5 };
        let all = [mark(3, 10), mark(4, 9), mark(5, 11)];
        assert_eq!(handled(None, &all), 0);
        assert_eq!(handled(Some(mark(4, 9)), &all), 4);
        // Of another daemon, or dropped since.
        assert_eq!(handled(Some(mark(4, 8)), &all), 0);
        assert_eq!(handled(Some(mark(900, 8)), &all), 0);
    }

    #[test]
    fn files_have_one_owner_and_nonsense_in_them_is_nothing() {
        let dir = host::TempDir::new("zed-state").unwrap();
        let path = dir.join("new/state");
        let mut state = StateFile::open(&path, false).unwrap();
        assert_eq!(state.mark(), None);
        let refused = StateFile::open(&path, false).map(|_| ()).unwrap_err().to_string();
        assert_eq!(refused, format!("state file '{}' is that of another zed", path.display()));
        let mark = Mark { eid: u64::MAX, secs: i64::MIN, nanos: 7 };
        state.write(Mark { eid: 1, secs: 1_700_000_000, nanos: 999_999_999 }).unwrap();
        state.write(mark).unwrap();
        drop(state);
        assert_eq!(StateFile::open(&path, false).unwrap().mark(), Some(mark));
        assert_eq!(StateFile::open(&path, true).unwrap().mark(), None);
        for nonsense in [&b"1 2"[..], b"1 2 3 4", b"\xff\0", b"-1 2 3", b"1 2 99999999999"] {
            std::fs::write(&path, nonsense).unwrap();
            assert_eq!(StateFile::open(&path, false).unwrap().mark(), None, "{nonsense:?}");
        }
        let pid = dir.join("zed.pid");
        let held = take_pid_file(&pid).unwrap();
        let refused = take_pid_file(&pid).unwrap_err().to_string();
        assert!(refused.ends_with(&format!("another zed, process {}", std::process::id())), "{refused}");
        drop(held);
        take_pid_file(&pid).unwrap();
    }
}
