//! Finished runs in a file, so that a study that was stopped goes on where it was.
//!
//! Each run is a line: a JSON object with the key of the run and its figures as the bits of the
//! floating-point numbers, so that what comes back is what was put in. A line is written at once,
//! behind the others; one that was cut off, or is no run, is passed over. Runs of other studies,
//! parameters and programs may stand in the same file: they have other keys.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use base::{Error, Result};
use serde::{Deserialize, Serialize};

use super::Seen;

/// A line.
#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    values: BTreeMap<String, u64>,
    series: BTreeMap<String, Vec<(u64, u64)>>,
}

/// The file and what is in it.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    file: File,
    runs: BTreeMap<String, Seen>,
}

impl State {
    /// Opens the file, or makes it with the folders above it.
    pub fn open(path: &Path) -> Result<State> {
        let bad = |e: std::io::Error| Error::invalid(format!("the state file {} cannot be used: {e}", path.display()));
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(bad)?;
        }
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path).map_err(bad)?;
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(bad)?;
        if bytes.last().is_some_and(|&b| b != b'\n') {
            // The rest of a line that was cut off must not swallow the next one.
            file.write_all(b"\n").map_err(bad)?;
        }
        let mut runs = BTreeMap::new();
        for line in bytes.split(|&b| b == b'\n') {
            if let Ok(line) = serde_json::from_slice::<Line>(line) {
                runs.insert(line.key.clone(), line.seen());
            }
        }
        Ok(State { path: path.to_path_buf(), file, runs })
    }

    /// A finished run.
    pub fn get(&self, key: &str) -> Option<&Seen> {
        self.runs.get(key)
    }

    /// Keeps a finished run.
    pub fn put(&mut self, key: &str, seen: &Seen) -> Result<()> {
        let bad = |e: String| Error::invalid(format!("the state file {} cannot be written: {e}", self.path.display()));
        let mut text = serde_json::to_vec(&Line::of(key, seen)).map_err(|e| bad(e.to_string()))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(|e| bad(e.to_string()))
    }

    /// Removes the file: the study is over.
    pub fn remove(self) -> Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(Error::invalid(format!("the state file {} cannot be removed: {e}", self.path.display())))
            }
            _ => Ok(()),
        }
    }
}

impl Line {
    fn of(key: &str, seen: &Seen) -> Line {
        let points = |p: &Vec<(f64, f64)>| p.iter().map(|(x, y)| (x.to_bits(), y.to_bits())).collect();
        Line {
            key: key.to_string(),
            values: seen.values.iter().map(|(n, v)| (n.clone(), v.to_bits())).collect(),
            series: seen.series.iter().map(|(n, p)| (n.clone(), points(p))).collect(),
        }
    }
    fn seen(self) -> Seen {
        let points = |p: Vec<(u64, u64)>| p.into_iter().map(|(x, y)| (f64::from_bits(x), f64::from_bits(y))).collect();
        Seen {
            values: self.values.into_iter().map(|(n, v)| (n, f64::from_bits(v))).collect(),
            series: self.series.into_iter().map(|(n, p)| (n, points(p))).collect(),
        }
    }
}
