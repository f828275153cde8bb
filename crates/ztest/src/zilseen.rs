//! The state after a crash and recovery, for the intent log's campaign, and whether it is legal.
//!
//! Looking ([`Seen::look`]) reads folders and files; judging ([`Seen::judge`]) is a pure comparison
//! with the records of the tasks. They are apart because one look serves many cuts: the result of
//! recovery depends only on the bytes that it reads from the disks. [`Memory`] keeps the last
//! crashes of a recording with the places that their recovery read; another crash with the same
//! bytes in all those places is not recovered again, only judged against its own moment.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::ObjectId;
use sim::DiskImage;
use zpl::Zfs;

use crate::Fault;
use crate::zilload::{Content, Names, Story, UNIT, whose};

/// The fault of a crash.
#[derive(Debug)]
pub(crate) enum Wrong {
    /// Something durable is not there.
    Lost(Fault),
    /// Data of no version, or a pool that does not work.
    Torn(Fault),
    /// Something that had not begun is there.
    Future(Fault),
}

impl Wrong {
    pub(crate) fn why(self) -> Fault {
        match self {
            Wrong::Lost(why) | Wrong::Torn(why) | Wrong::Future(why) => why,
        }
    }
}

/// A unit of data as it is there: file, place and version that it names, or nothing but zeros.
pub(crate) type Unit = Option<(u64, u64, u32)>;

/// A file as it is there.
#[derive(PartialEq, Eq, Debug)]
struct SeenFile {
    size: u64,
    /// Its units, or the fault of one.
    units: Result<Vec<Unit>, Fault>,
}

/// A folder as it is there.
#[derive(PartialEq, Eq, Debug)]
struct SeenFolder {
    names: BTreeMap<Vec<u8>, ObjectId>,
    files: BTreeMap<ObjectId, SeenFile>,
}

/// All folders, in the order of their stories.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Seen(Vec<SeenFolder>);

impl Seen {
    /// Reads everything.
    pub(crate) async fn look(stories: &[Rc<Story>], fs: &Zfs) -> Result<Seen, Wrong> {
        let torn = |what: &str, e: base::Error| Wrong::Torn(format!("{what}: {e:?}"));
        let mut folders = Vec::with_capacity(stories.len());
        for story in stories {
            let folder = String::from_utf8_lossy(&story.folder).into_owned();
            let dir = fs.lookup(fs.root(), &story.folder).await.map_err(|e| torn(&folder, e))?;
            let list = fs.readdir(dir.obj, 0, 1000).await.map_err(|e| torn(&folder, e))?;
            let names: BTreeMap<Vec<u8>, ObjectId> =
                list.into_iter().filter(|e| e.name != b"." && e.name != b"..").map(|e| (e.name, e.obj)).collect();
            let mut files = BTreeMap::new();
            for (name, &obj) in &names {
                if files.contains_key(&obj) {
                    continue;
                }
                let what = format!("{folder}/{}", String::from_utf8_lossy(name));
                let size = fs.getattr(obj).await.map_err(|e| torn(&what, e))?.size;
                let mut all = Vec::with_capacity(size as usize);
                for part in fs.read(obj, 0, size).await.map_err(|e| torn(&what, e))? {
                    all.extend_from_slice(&part);
                }
                let units = all.chunks(UNIT as usize).enumerate();
                let units = units.map(|(n, bytes)| whose(bytes).map_err(|e| format!("unit {n} {e}"))).collect();
                files.insert(obj, SeenFile { size, units });
            }
            folders.push(SeenFolder { names, files });
        }
        Ok(Seen(folders))
    }

    /// Compares it with the states allowed after a cut at `at`.
    pub(crate) fn judge(&self, stories: &[Rc<Story>], at: u64) -> Result<(), Wrong> {
        for (story, there) in stories.iter().zip(&self.0) {
            let names = story.names.borrow();
            let (low, high) = names.window(at);
            let same = |n: &Names| n.len() == there.names.len() && n.keys().all(|k| there.names.contains_key(k));
            let mut why = None;
            let mut good = false;
            for k in low..=high {
                if !same(&names.steps[k].2) {
                    continue;
                }
                match there.judge(story, &names.steps[k].2, at) {
                    Ok(()) => {
                        good = true;
                        break;
                    }
                    Err(e) => why = Some(e),
                }
            }
            if good {
                continue;
            }
            if let Some(why) = why {
                return Err(why);
            }
            let folder = String::from_utf8_lossy(&story.folder);
            let list: Vec<String> = there.names.keys().map(|n| String::from_utf8_lossy(n).into_owned()).collect();
            let what = format!("{folder} holds {list:?}, none of its states {low} to {high}");
            let later = names.steps.iter().skip(high + 1).any(|(_, _, n)| same(n));
            let earlier = names.steps.iter().take(low).any(|(_, _, n)| same(n));
            return Err(match (earlier, later) {
                (true, _) => Wrong::Lost(what),
                (false, true) => Wrong::Future(what),
                _ => Wrong::Torn(what),
            });
        }
        Ok(())
    }
}

impl SeenFolder {
    fn judge(&self, story: &Story, names: &Names, at: u64) -> Result<(), Wrong> {
        let files = story.files.borrow();
        for (name, file) in names {
            let what = format!("{}/{}", String::from_utf8_lossy(&story.folder), String::from_utf8_lossy(name));
            let there = self.names.get(name).and_then(|obj| self.files.get(obj));
            let (Some(h), Some(there)) = (files.get(file), there) else { continue };
            let (low, high) = h.window(at);
            let window = &h.steps[low..=high];
            // A large write is cut at block boundaries: of an unacknowledged one a part may be
            // there.
            let sizes: Vec<u64> = window.iter().map(|(_, _, u)| u.len() as u64 * UNIT).collect();
            let size = there.size;
            let partly = sizes.windows(2).any(|w| w[0].min(w[1]) <= size && size <= w[0].max(w[1]));
            if !sizes.contains(&size) && !partly {
                let why = format!("{what}: {size} bytes, in none of its states {low} to {high}");
                let later = h.steps.iter().skip(high + 1).any(|(_, _, u)| u.len() as u64 * UNIT == size);
                return Err(if later { Wrong::Future(why) } else { Wrong::Lost(why) });
            }
            let units = there.units.as_ref().map_err(|e| Wrong::Torn(format!("{what}: {e}")))?;
            for (n, unit) in units.iter().enumerate() {
                let of = |u: &Content| u.get(n).copied().flatten() == *unit;
                if window.iter().any(|(_, _, u)| of(u)) {
                    continue;
                }
                let (of_file, place, version) = unit.unwrap_or((*file, n as u64, 0));
                let is_own = (of_file, place) == (*file, n as u64);
                let is = match is_own {
                    true => format!("{what}: unit {n} is of version {version}"),
                    false => format!("{what}: unit {n} is unit {place} of file {of_file}, version {version}"),
                };
                // Only a clone brings a unit to another place.
                if !is_own && !h.steps.iter().any(|(_, _, u)| of(u)) {
                    return Err(Wrong::Torn(is));
                }
                let why = format!("{is}, in none of its states {low} to {high}");
                let later = h.steps.iter().skip(high + 1).any(|(_, _, u)| of(u));
                return Err(if later { Wrong::Future(why) } else { Wrong::Lost(why) });
            }
        }
        Ok(())
    }
}

/// A crash that was recovered.
struct Recovered<T> {
    images: Vec<DiskImage>,
    /// For each disk, offset and length of recovery's reads.
    reads: Vec<Vec<(u64, u64)>>,
    /// Where the last crash that was compared with it differed: looked at first.
    differs: Cell<(usize, usize)>,
    seen: Rc<T>,
    applied: u64,
}

impl<T> Recovered<T> {
    fn is_same(&self, images: &[DiskImage]) -> bool {
        let at = |disk: usize, n: usize| {
            let (offset, len) = self.reads[disk][n];
            self.images[disk].same_at(&images[disk], offset, len)
        };
        let (disk, n) = self.differs.get();
        if n < self.reads[disk].len() && !at(disk, n) {
            return false;
        }
        let mut all = (0..self.reads.len()).flat_map(|disk| (0..self.reads[disk].len()).map(move |n| (disk, n)));
        match all.find(|&(disk, n)| !at(disk, n)) {
            Some(place) => {
                self.differs.set(place);
                false
            }
            None => true,
        }
    }
}

/// The last crashes of a recording that were recovered.
pub(crate) struct Memory<T>(VecDeque<Recovered<T>>);

impl<T> Default for Memory<T> {
    fn default() -> Memory<T> {
        Memory(VecDeque::new())
    }
}

impl<T> Memory<T> {
    /// Crashes kept in memory: a crash is like one shortly before it, if like any.
    const CRASHES_MAX: usize = 48;

    /// The result of recovery from a crash and the number of replayed records, if known.
    pub(crate) fn find(&mut self, images: &[DiskImage]) -> Option<(Rc<T>, u64)> {
        let n = self.0.iter().position(|r| r.is_same(images))?;
        let found = self.0.remove(n)?;
        let out = (found.seen.clone(), found.applied);
        self.0.push_front(found);
        Some(out)
    }
    /// Stores the result of recovery from a crash.
    pub(crate) fn learn(&mut self, images: Vec<DiskImage>, mut reads: Vec<Vec<(u64, u64)>>, seen: Rc<T>, applied: u64) {
        for reads in &mut reads {
            reads.sort_unstable();
            reads.dedup();
        }
        self.0.truncate(Self::CRASHES_MAX - 1);
        self.0.push_front(Recovered { images, reads, differs: Cell::new((0, 0)), seen, applied });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_known_by_what_recovery_read() {
        let disk = |place: u64| {
            let mut image = DiskImage::zeroed(1 << 20);
            image.write(5000, b"read");
            image.write(place, b"other");
            vec![image.clone(), image]
        };
        let seen = Rc::new(Seen(Vec::new()));
        let mut memory = Memory::default();
        memory.learn(disk(100_000), vec![vec![(4096, 4096)], vec![(0, 512), (4096, 4096)]], seen.clone(), 3);
        // Unread bytes may differ; each byte that was read counts, on each disk.
        assert!(memory.find(&disk(200_000)).is_some_and(|(found, applied)| Rc::ptr_eq(&found, &seen) && applied == 3));
        for place in [4096 + 4095, 4092, 508, 0] {
            assert!(memory.find(&disk(place)).is_none(), "{place}");
        }
        assert!(memory.find(&disk(512)).is_some());
        let mut one = disk(200_000);
        one[1].write(511, b"x");
        assert!(memory.find(&one).is_none());
        assert!(memory.find(&disk(300_000)).is_some());
        // Old ones are forgotten.
        for n in 0..Memory::<Seen>::CRASHES_MAX as u64 {
            let mut images = disk(500_000);
            images[0].write(600_000, &n.to_le_bytes());
            memory.learn(images, vec![vec![(600_000, 8)], vec![]], seen.clone(), n);
        }
        assert!(memory.find(&disk(300_000)).is_some_and(|(_, applied)| applied == 0));
    }
}
