//! What a search of the devices has found so far, in `DIR/.weir-rescue/scan`: a search over large
//! devices takes hours, and goes on where it was interrupted.
//!
//! Lines of words: `pool GUID`, `hit TOP OFFSET SIZE ALGORITHM LSIZE`, `at TOP OFFSET`, `complete`.
//! A line that was cut ends the file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use base::{Guid, Result};

use crate::out::{record_error, record_file};
use crate::scan::{Event, Hit};

/// The record of a search.
pub struct ScanState {
    path: PathBuf,
    file: File,
    hits: BTreeSet<Hit>,
    at: (u32, u64),
    complete: bool,
}

fn hit(words: &[&str]) -> Option<Hit> {
    let [top, off, size, algo, lsize] = words else { return None };
    Some(Hit {
        top: top.parse().ok()?,
        off: off.parse().ok()?,
        size: size.parse().ok().filter(|s| *s <= 16 << 20)?,
        algo: algo.parse().ok()?,
        lsize: lsize.parse().ok().filter(|s| *s <= 16 << 20)?,
    })
}

impl ScanState {
    /// Opens the record in `dir`; one of another pool is begun anew. `ashift`: the sector size that
    /// the search tries, if it is not known.
    pub fn open(dir: &Path, pool: Guid, ashift: Option<u8>) -> Result<ScanState> {
        let path = dir.join(ashift.map_or("scan".to_owned(), |a| format!("scan-{a}")));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let (mut hits, mut at, mut complete, mut good) = (BTreeSet::new(), (0, 0), false, 0);
        for (n, line) in text.split_inclusive('\n').enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let known = line.ends_with('\n')
                && match &words[..] {
                    ["pool", guid] => n == 0 && guid.parse() == Ok(pool.0),
                    _ if n == 0 => false,
                    ["hit", rest @ ..] => hit(rest).map(|h| hits.insert(h)).is_some(),
                    ["at", top, off] => match (top.parse(), off.parse()) {
                        (Ok(top), Ok(off)) => {
                            at = (top, off);
                            true
                        }
                        _ => false,
                    },
                    ["complete"] => {
                        complete = true;
                        true
                    }
                    _ => false,
                };
            if !known {
                break;
            }
            good += line.len() as u64;
        }
        let file = record_file(&path, File::options().create(true).append(true))?;
        file.set_len(good).map_err(|e| record_error(&path, &e))?;
        let mut it = ScanState { path, file, hits, at, complete };
        if good == 0 {
            it.append(&format!("pool {}\n", pool.0))?;
        }
        Ok(it)
    }

    fn append(&mut self, line: &str) -> Result<()> {
        let done = self.file.write_all(line.as_bytes());
        done.map_err(|e| record_error(&self.path, &e))
    }
    /// Whether the search is over.
    pub fn is_complete(&self) -> bool {
        self.complete
    }
    /// Where to go on: vdev and offset.
    pub fn position(&self) -> (u32, u64) {
        self.at
    }
    /// What was found.
    pub fn hits(&self) -> &BTreeSet<Hit> {
        &self.hits
    }
    /// Keeps an event.
    pub fn note(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Hit(h) => {
                // What was found after the last position is found again.
                if self.hits.insert(*h) {
                    self.append(&format!("hit {} {} {} {} {}\n", h.top, h.off, h.size, h.algo, h.lsize))?;
                }
                Ok(())
            }
            Event::At { top, off, .. } => {
                self.at = (*top, *off);
                self.append(&format!("at {top} {off}\n"))
            }
        }
    }
    /// The search is over.
    pub fn complete(&mut self) -> Result<()> {
        self.complete = true;
        self.append("complete\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_where_it_was() {
        let dir = std::env::temp_dir().join(format!("rescue-scan-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let hit = |off| Hit { top: 1, off, size: 1024, algo: 15, lsize: 4096 };
        let mut s = ScanState::open(&dir, Guid(5), None).unwrap();
        s.note(&Event::Hit(hit(512))).unwrap();
        s.note(&Event::At { top: 1, off: 4096, done: 1, total: 2 }).unwrap();
        s.note(&Event::Hit(hit(8192))).unwrap();
        drop(s);
        let path = dir.join("scan");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}hit 1 99")).unwrap();
        let s = ScanState::open(&dir, Guid(5), None).unwrap();
        assert_eq!((s.position(), s.hits().len(), s.is_complete()), ((1, 4096), 2, false));
        let s = ScanState::open(&dir, Guid(6), None).unwrap();
        assert_eq!((s.position(), s.hits().len()), ((0, 0), 0));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
