//! Does what a plan says: rewrites its files in their order, one part after the other.
//!
//! The normal path: the journal of an unfinished run, or a plan (a file, or made now), which begins
//! one; for each file its mount and the check that the name still leads to the planned object; then
//! parts of [`PART`] bytes, each asked of the file system as `zfs rewrite` does, and after each a
//! rest, so that the run works for a share of the time only and one part is in flight at most. At
//! the end the pool is synced and its new maps are read, and what was predicted stands beside what
//! they give.
//!
//! What cannot be done is left out with its reason, and the run goes on; only a full pool, or a
//! file system that is gone, ends it. The journal says at every moment what is done.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, NiceNum, Result};
use host::MountTable;

use crate::journal::{Item, Journal, Progress};
use crate::report::{NAME, tame};

/// Bytes that one request writes anew.
const PART: u64 = 4 << 20;
/// Bytes of a file after which the journal says how far it is.
const NOTE: u64 = 64 << 20;

/// The bits of an inode number that are the object's.
const OBJECT: u64 = (1 << 48) - 1;

/// Why a file is not rewritten.
#[derive(Debug)]
enum Stop {
    /// Only this one: the reason.
    Left(String),
    /// Nor the others.
    All(Error),
}

/// The time to rest after a part that took `took`, so that `percent` of the time is work.
fn rest(took: Duration, percent: u32) -> Duration {
    let percent = percent.clamp(1, 100);
    took * (100 - percent) / percent
}

/// Where the file systems of a pool are mounted, by their names.
pub type Mounts = BTreeMap<String, PathBuf>;

/// Those that are not covered by another mount.
fn uncovered(mut mounts: Mounts) -> Result<Mounts> {
    let table = MountTable::read()?;
    // A file system within the mount of another one has no line of its own.
    mounts.retain(|name, at| table.top_at(at).is_none_or(|top| top.fstype.ends_with("zfs") && top.source == *name));
    Ok(mounts)
}

/// What the program shows while it works.
pub(crate) struct Meter<'a> {
    pub(crate) err: &'a mut dyn Write,
    /// Whether that is a terminal.
    pub(crate) shows: bool,
    /// Whether nothing is wanted.
    pub(crate) quiet: bool,
    begin: Instant,
    /// Bytes that are done, of them in this run, and of all.
    bytes: (u64, u64, u64),
    /// Files that are done or left, and all.
    files: (usize, usize),
}

impl<'a> Meter<'a> {
    pub(crate) fn new(err: &'a mut dyn Write, shows: bool, quiet: bool) -> Meter<'a> {
        Meter { err, shows, quiet, begin: Instant::now(), bytes: (0, 0, 0), files: (0, 0) }
    }

    fn moved(&mut self, bytes: u64) {
        self.bytes.0 += bytes;
        self.bytes.1 += bytes;
    }

    /// The line on a terminal.
    fn line(&self, name: &str) -> String {
        let (done, here, all) = self.bytes;
        let part = if all == 0 { 20 } else { (done.min(all) as u128 * 20 / u128::from(all)) as usize };
        let bar: String = (0..20).map(|n| if n < part { '=' } else { ' ' }).collect();
        let secs = self.begin.elapsed().as_secs_f64();
        let left = match here {
            0 => String::new(),
            n => {
                let eta = (secs * all.saturating_sub(done) as f64 / n as f64) as u64;
                format!(", {}:{:02}:{:02} left", eta / 3600, eta / 60 % 60, eta % 60)
            }
        };
        let (files, of) = self.files;
        let (done, all) = (NiceNum(done), NiceNum(all));
        format!("[{bar}] {files}/{of} files, {done} of {all}{left}  {}", tame(name, 30))
    }

    fn show(&mut self, name: &str) {
        if self.shows && !self.quiet {
            let line = self.line(name);
            let _ = write!(self.err, "\r\x1b[K{line}");
            let _ = self.err.flush();
        }
    }

    /// A line that stays.
    fn say(&mut self, text: &str) {
        if self.shows && !self.quiet {
            let _ = write!(self.err, "\r\x1b[K");
        }
        let _ = writeln!(self.err, "{text}");
        let _ = self.err.flush();
    }
}

/// Where a dataset is: its mount, or its place below that of the nearest dataset above it. A plain
/// user's file systems within each other are one mount.
fn place(dataset: &str, mounts: &Mounts) -> Option<PathBuf> {
    let mut above = dataset;
    loop {
        if let Some(at) = mounts.get(above) {
            return Some(at.join(dataset[above.len()..].trim_start_matches('/')));
        }
        above = above.rsplit_once('/')?.0;
    }
}

/// The file of an item, if it still is that one.
fn find(item: &Item, mounts: &Mounts) -> std::result::Result<(PathBuf, Metadata), Stop> {
    let left = |why: String| Err(Stop::Left(why));
    let Some(path) = &item.path else { return left("its path is not known without the key of its file system".into()) };
    let Some(at) = place(&item.dataset, mounts) else { return left(format!("{} is not mounted", item.dataset)) };
    let full = at.join(path.trim_start_matches('/'));
    let meta = match std::fs::symlink_metadata(&full) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound && !mounts.contains_key(&item.dataset) => {
            return left(format!("{} is not mounted", item.dataset));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return left("it is gone".into()),
        Err(e) => return left(format!("it cannot be looked at: {e}")),
    };
    // Above an object's number is that of a file system within a mount.
    if !meta.is_file() || meta.ino() & OBJECT != item.id.1 {
        return left("its name leads to another file now".into());
    }
    Ok((full, meta))
}

/// What an error of a request means for the run.
fn stop(path: &Path, e: &io::Error) -> Stop {
    let what = format!("cannot rewrite '{}': {e}", path.display());
    match e.kind() {
        io::ErrorKind::StorageFull => {
            Stop::All(Error::new(ErrorKind::NoSpace, format!("{what}; make room, then run it again")))
        }
        io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted => {
            Stop::All(Error::new(ErrorKind::Io, format!("{what}; mount the file system, then run it again")))
        }
        io::ErrorKind::Unsupported => Stop::Left("it is not on a file system of weir".into()),
        _ => Stop::Left(format!("it cannot be rewritten: {e}")),
    }
}

/// Rewrites one file from where the journal says on.
fn rewrite(
    journal: &mut Journal,
    item: &Item,
    mounts: &Mounts,
    percent: u32,
    meter: &mut Meter<'_>,
) -> std::result::Result<(), Stop> {
    let (path, meta) = find(item, mounts)?;
    let file = host::open_to_rewrite(&path).map_err(|e| stop(&path, &e))?;
    let size = meta.len();
    let mut at = match journal.progress.get(&item.id) {
        Some(Progress::At(at)) => *at,
        _ => 0,
    };
    // Holes and compression: bytes of content are not those of the plan.
    let share = |n: u64| (u128::from(n) * u128::from(item.bytes) / u128::from(size.max(1))) as u64;
    meter.bytes.0 += share(at.min(size));
    let mut noted = at;
    while at < size {
        meter.show(&item.name());
        let begin = Instant::now();
        let len = PART.min(size - at);
        host::rewrite_file(&file, at, len).map_err(|e| stop(&path, &e))?;
        meter.moved(share(at + len) - share(at));
        at += len;
        if at - noted >= NOTE && at < size {
            journal.note(item.id, Progress::At(at)).map_err(Stop::All)?;
            noted = at;
        }
        std::thread::sleep(rest(begin.elapsed(), percent));
    }
    journal.note(item.id, Progress::Done).map_err(Stop::All)
}

/// Rewrites all files that are left to do; those left out come back with their reasons.
///
/// # Errors
/// Those that end a run: no space, a file system that is gone, the journal.
pub(crate) fn rewrite_all(
    journal: &mut Journal,
    mounts: Mounts,
    percent: u32,
    meter: &mut Meter<'_>,
) -> Result<Vec<(Item, String)>> {
    let mounts = uncovered(mounts)?;
    let files = journal.orders.files.clone();
    let is_done = |j: &Journal, f: &Item| j.progress.get(&f.id) == Some(&Progress::Done);
    let done: u64 = files.iter().filter(|f| is_done(journal, f)).map(|f| f.bytes).sum();
    meter.begin = Instant::now();
    meter.bytes = (done, 0, files.iter().map(|f| f.bytes).fold(0, u64::saturating_add));
    meter.files = (0, files.len());
    let mut left = Vec::new();
    for item in files {
        meter.files.0 += 1;
        if is_done(journal, &item) {
            continue;
        }
        let name = tame(&item.name(), NAME);
        match rewrite(journal, &item, &mounts, percent, meter) {
            Ok(()) if !meter.shows && !meter.quiet => {
                let (n, of) = meter.files;
                meter.say(&format!("{n}/{of} {name} {}", NiceNum(item.bytes)));
            }
            Ok(()) => {}
            Err(Stop::Left(why)) => {
                journal.note(item.id, Progress::Left(why.clone()))?;
                left.push((item, why));
            }
            Err(Stop::All(e)) => return Err(e),
        }
    }
    if meter.shows && !meter.quiet {
        let _ = write!(meter.err, "\r\x1b[K");
    }
    Ok(left)
}

/// What a run would do: files that can be rewritten, and those that cannot with their reasons.
///
/// # Errors
/// If there is no list of mounts.
pub(crate) fn look(journal: &[Item], mounts: Mounts) -> Result<(usize, Vec<(Item, String)>)> {
    let mounts = uncovered(mounts)?;
    let mut left = Vec::new();
    for item in journal {
        match find(item, &mounts) {
            Err(Stop::Left(why)) => left.push((item.clone(), why)),
            Err(Stop::All(e)) => return Err(e),
            Ok(_) => {}
        }
    }
    Ok((journal.len() - left.len(), left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(path: Option<&str>) -> Item {
        let path = path.map(str::to_owned);
        Item { dataset: "tank".into(), id: (54, 2), path, bytes: 8 << 20, runs: 10, runs_after: 1 }
    }

    #[test]
    fn a_share_of_the_time_is_work() {
        let took = Duration::from_millis(30);
        assert_eq!([100, 50, 25].map(|p| rest(took, p).as_millis()), [0, 30, 90]);
        assert_eq!(rest(took, 0), rest(took, 1));
    }

    #[test]
    fn files_that_are_not_what_they_were_are_left() {
        let dir = host::TempDir::new("defrag-find").unwrap();
        std::fs::write(dir.path().join("a"), "x").unwrap();
        let mounts = BTreeMap::from([("tank".to_owned(), dir.path().to_owned())]);
        let why = |item: &Item, mounts: &Mounts| match find(item, mounts) {
            Err(Stop::Left(why)) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(&item(Some("/b")), &mounts), "it is gone");
        assert_eq!(why(&item(Some("/a")), &mounts), "its name leads to another file now");
        assert_eq!(why(&item(Some("/a")), &BTreeMap::new()), "tank is not mounted");
        assert!(why(&item(None), &mounts).contains("without the key"));
        assert_eq!(why(&Item { dataset: "tank/b".into(), ..item(Some("/a")) }, &mounts), "tank/b is not mounted");
        assert_eq!(place("tank/b/c", &mounts), Some(dir.path().join("b/c")));
        let ino = std::fs::metadata(dir.path().join("a")).unwrap().ino();
        let same = Item { id: (54, ino), ..item(Some("/a")) };
        assert_eq!(find(&same, &mounts).unwrap().1.len(), 1);
        let errors = |kind: io::ErrorKind| stop(Path::new("/a"), &kind.into());
        assert!(matches!(errors(io::ErrorKind::StorageFull), Stop::All(_)));
        assert!(matches!(errors(io::ErrorKind::NotConnected), Stop::All(_)));
        assert!(matches!(errors(io::ErrorKind::PermissionDenied), Stop::Left(_)));
    }

    #[test]
    fn lines_for_people() {
        let mut out = Vec::new();
        let mut m = Meter::new(&mut out, true, false);
        (m.bytes, m.files) = ((2 << 20, 1 << 20, 4 << 20), (3, 12));
        let line = m.line("tank:/\u{1b}x");
        assert!(line.starts_with("[==========          ] 3/12 files, 2M of 4M, 0:00:00 left  tank:/?x"), "{line}");
        m.bytes = (0, 0, 0);
        assert!(m.line("x").contains("[====================]"));
    }
}
