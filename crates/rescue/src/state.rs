//! What was done, as lines of JSON in `DIR/.weir-rescue/state`: for going on after an interruption,
//! and for the report.
//!
//! One line for each file that is complete, with what is missing of it; one for each finding that
//! is about no single file; one for each dataset that is done. A line is written after the file, so
//! a file whose line is missing is copied again. The last line may be cut; it is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use base::{Error, Guid, Result};
use serde_json::{Value, json};

use crate::out::{record_error, record_file, record_folder};

/// Most missing ranges that are listed of a file; the last one then covers the rest.
const RANGES_MAX: usize = 4096;

/// What is wrong with a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Problem {
    /// Parts of it are missing.
    Damaged,
    /// It is there as of an older txg only.
    Older,
    /// It is gone, or its name is all that is left.
    Lost,
    /// It was found by its shape, and nothing proves that it belongs here.
    Found,
    /// It was not copied: its key is not known, or its kind cannot be.
    Skipped,
    /// Its content is there; some attributes could not be restored.
    Attributes,
    /// Names of a folder are lost.
    Names,
}

impl Problem {
    /// All of them, in the order of the report.
    pub const ALL: [Problem; 7] = [
        Problem::Lost,
        Problem::Damaged,
        Problem::Older,
        Problem::Found,
        Problem::Names,
        Problem::Skipped,
        Problem::Attributes,
    ];
    /// The word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Problem::Damaged => "damaged",
            Problem::Older => "older",
            Problem::Lost => "lost",
            Problem::Found => "found",
            Problem::Skipped => "skipped",
            Problem::Attributes => "attributes",
            Problem::Names => "names",
        }
    }
    fn parse(word: &str) -> Option<Problem> {
        Problem::ALL.into_iter().find(|p| p.word() == word)
    }
}

/// Something that is not as it was.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Name of the dataset.
    pub dataset: String,
    /// Path below the dataset; empty for the dataset itself.
    pub path: Vec<u8>,
    /// The object, 0 if it is not known.
    pub object: u64,
    /// What is wrong.
    pub problem: Problem,
    /// Bytes that the file should have.
    pub size: u64,
    /// Missing ranges: first byte and end.
    pub missing: Vec<(u64, u64)>,
    /// A sentence.
    pub note: String,
}

impl Finding {
    /// Adds a missing range.
    pub fn miss(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let full = self.missing.len() >= RANGES_MAX;
        match self.missing.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(to),
            Some(last) if full => last.1 = to,
            _ => self.missing.push((from, to)),
        }
    }
    /// As a JSON value.
    pub fn to_json(&self) -> Value {
        let mut v = json!({
            "dataset": self.dataset,
            "path": String::from_utf8_lossy(&self.path),
            "object": self.object,
            "problem": self.problem.word(),
        });
        if let Some(map) = v.as_object_mut() {
            if std::str::from_utf8(&self.path).is_err() {
                map.insert("path_hex".into(), hex(&self.path).into());
            }
            if !self.missing.is_empty() {
                map.insert("size".into(), self.size.into());
                let ranges: Vec<Value> = self.missing.iter().map(|(a, b)| json!([a, b])).collect();
                map.insert("missing".into(), ranges.into());
            }
            if !self.note.is_empty() {
                map.insert("note".into(), self.note.as_str().into());
            }
        }
        v
    }
    /// From a JSON value.
    pub fn from_json(v: &Value) -> Option<Finding> {
        let path = match v.get("path_hex").and_then(Value::as_str) {
            Some(text) => unhex(text)?,
            None => v.get("path")?.as_str()?.as_bytes().to_vec(),
        };
        let ranges = v.get("missing").and_then(Value::as_array).map(|a| a.iter().filter_map(range).collect());
        Some(Finding {
            dataset: v.get("dataset")?.as_str()?.to_owned(),
            path,
            object: v.get("object")?.as_u64()?,
            problem: Problem::parse(v.get("problem")?.as_str()?)?,
            size: v.get("size").and_then(Value::as_u64).unwrap_or(0),
            missing: ranges.unwrap_or_default(),
            note: v.get("note").and_then(Value::as_str).unwrap_or("").to_owned(),
        })
    }
}

fn range(v: &Value) -> Option<(u64, u64)> {
    Some((v.get(0)?.as_u64()?, v.get(1)?.as_u64()?))
}
fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    Some(digits?.chunks(2).map(|p| p.iter().fold(0, |n, d| n << 4 | d)).collect())
}

/// Sums over files.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Sums {
    /// Files, links and volumes that were copied, damaged ones included; no folders.
    pub files: u64,
    /// Bytes of content that were written.
    pub bytes: u64,
}

/// The record of a rescue.
pub struct State {
    path: PathBuf,
    file: File,
    /// Objects that are done, by dataset.
    done: BTreeMap<u64, BTreeSet<u64>>,
    /// Where the first name of a file with several is: folder and name, by dataset and object.
    first: BTreeMap<(u64, u64), Vec<Vec<u8>>>,
    /// Datasets that are done.
    datasets: BTreeSet<u64>,
    known: BTreeSet<(String, u64, Problem, Vec<u8>)>,
}

impl State {
    /// Opens the record in `dir`; that of a dry run is always new. Errors: it is of another pool,
    /// or it cannot be written.
    pub fn open(dir: &Path, pool: Guid, dry_run: bool) -> Result<State> {
        record_folder(dir)?;
        let path = dir.join(if dry_run { "dry-run" } else { "state" });
        let say = |e: std::io::Error| record_error(&path, &e);
        if dry_run && path.exists() {
            std::fs::remove_file(&path).map_err(say)?;
        }
        let mut lines: Vec<Value> = Vec::new();
        let mut good = 0u64;
        if let Ok(old) = File::open(&path) {
            each_line(old, &mut |v, end| {
                good = end;
                lines.push(v);
            })
            .map_err(say)?;
        }
        let file = record_file(&path, File::options().create(true).append(true))?;
        // A line that was cut goes away.
        file.set_len(good).map_err(say)?;
        let mut it = State {
            path,
            file,
            done: BTreeMap::new(),
            first: BTreeMap::new(),
            datasets: BTreeSet::new(),
            known: BTreeSet::new(),
        };
        match lines.first().map(|l| l.get("rescue").and_then(Value::as_u64)) {
            None => it.append(&json!({ "rescue": pool.0, "version": 1 }))?,
            Some(Some(guid)) if guid == pool.0 => {}
            Some(_) => {
                let why = format!("{} is the rescue of another pool: choose another folder", dir.display());
                return Err(Error::invalid(why));
            }
        }
        lines.into_iter().for_each(|l| it.take(&l));
        Ok(it)
    }

    fn take(&mut self, line: &Value) {
        if let Some(guid) = line.get("done").and_then(Value::as_u64) {
            self.datasets.insert(guid);
        }
        if let Some((guid, object)) = line.get("file").and_then(range) {
            self.done.entry(guid).or_default().insert(object);
            if let Some(names) = line.get("first").and_then(Value::as_array) {
                let names = names.iter().filter_map(|n| unhex(n.as_str()?)).collect();
                self.first.insert((guid, object), names);
            }
        }
        if let Some(f) = line.get("finding").and_then(Finding::from_json) {
            self.known.insert((f.dataset, f.object, f.problem, f.path));
        }
    }

    fn append(&mut self, line: &Value) -> Result<()> {
        let text = format!("{line}\n");
        let done = self.file.write_all(text.as_bytes());
        done.map_err(|e| record_error(&self.path, &e))
    }

    /// Whether a file is done.
    pub fn is_done(&self, dataset: u64, object: u64) -> bool {
        self.done.get(&dataset).is_some_and(|d| d.contains(&object))
    }
    /// Where the first name of a file with several is.
    pub fn first_name(&self, dataset: u64, object: u64) -> Option<&[Vec<u8>]> {
        self.first.get(&(dataset, object)).map(Vec::as_slice)
    }
    /// Whether a dataset is done.
    pub fn is_dataset_done(&self, dataset: u64) -> bool {
        self.datasets.contains(&dataset)
    }
    /// Records a complete file of `bytes` bytes; `first` is where it lies if it has several names.
    pub fn file_done(
        &mut self,
        (dataset, object): (u64, u64),
        bytes: u64,
        first: Option<Vec<Vec<u8>>>,
        finding: Option<&Finding>,
    ) -> Result<()> {
        let mut line = json!({ "file": [dataset, object], "bytes": bytes });
        if let Some(map) = line.as_object_mut() {
            if let Some(first) = &first {
                map.insert("first".into(), first.iter().map(|n| hex(n)).collect::<Vec<_>>().into());
            }
            if let Some(f) = finding.filter(|f| self.is_new(f)) {
                map.insert("finding".into(), f.to_json());
            }
        }
        self.append(&line)?;
        self.take(&line);
        Ok(())
    }
    fn is_new(&self, f: &Finding) -> bool {
        !self.known.contains(&(f.dataset.clone(), f.object, f.problem, f.path.clone()))
    }
    /// Records a finding.
    pub fn finding(&mut self, f: &Finding) -> Result<()> {
        if !self.is_new(f) {
            return Ok(());
        }
        let line = json!({ "finding": f.to_json() });
        self.append(&line)?;
        self.take(&line);
        Ok(())
    }
    /// Records that a dataset is done.
    pub fn dataset_done(&mut self, dataset: u64) -> Result<()> {
        self.append(&json!({ "done": dataset }))?;
        self.datasets.insert(dataset);
        Ok(())
    }
    /// The sums over all files, and each finding to `f`.
    pub fn replay(&self, f: &mut dyn FnMut(Finding) -> Result<()>) -> Result<Sums> {
        let say = |e: std::io::Error| record_error(&self.path, &e);
        let mut sums = Sums::default();
        let mut fault = Ok(());
        each_line(File::open(&self.path).map_err(say)?, &mut |line, _| {
            if line.get("file").is_some() {
                sums.files += 1;
                sums.bytes += line.get("bytes").and_then(Value::as_u64).unwrap_or(0);
            }
            if let Some(finding) = line.get("finding").and_then(Finding::from_json)
                && fault.is_ok()
            {
                fault = f(finding);
            }
        })
        .map_err(say)?;
        fault.map(|()| sums)
    }
}

/// Each complete line, and where it ends; stops at one that is no JSON.
fn each_line(file: File, f: &mut dyn FnMut(Value, u64)) -> std::io::Result<()> {
    let mut reader = BufReader::new(file);
    let (mut text, mut end) = (Vec::new(), 0);
    loop {
        text.clear();
        let n = reader.read_until(b'\n', &mut text)?;
        if n == 0 || text.last() != Some(&b'\n') {
            return Ok(());
        }
        let Ok(value) = serde_json::from_slice(&text) else { return Ok(()) };
        end += n as u64;
        f(value, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_after_a_cut_line() {
        let dir = std::env::temp_dir().join(format!("rescue-state-{}", std::process::id()));
        let mut f = Finding {
            dataset: "p/a".into(),
            path: b"x\xff".to_vec(),
            object: 7,
            problem: Problem::Damaged,
            size: 1 << 20,
            missing: Vec::new(),
            note: "bad".into(),
        };
        f.miss(0, 4096);
        f.miss(4096, 8192);
        f.miss(100_000, 100_001);
        assert_eq!(f.missing, [(0, 8192), (100_000, 100_001)]);
        let mut s = State::open(&dir, Guid(5), false).unwrap();
        s.file_done((1, 7), 10, Some(vec![b"d".to_vec(), b"x".to_vec()]), Some(&f)).unwrap();
        s.file_done((1, 8), 5, None, None).unwrap();
        drop(s);
        let path = dir.join("state");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(b"{\"file\":[1,9");
        std::fs::write(&path, &bytes).unwrap();
        let mut s = State::open(&dir, Guid(5), false).unwrap();
        assert!(s.is_done(1, 7) && s.is_done(1, 8) && !s.is_done(1, 9));
        assert_eq!(s.first_name(1, 7).unwrap(), [b"d".to_vec(), b"x".to_vec()]);
        s.finding(&f).unwrap();
        let mut seen = Vec::new();
        let sums = s
            .replay(&mut |f| {
                seen.push(f);
                Ok(())
            })
            .unwrap();
        assert_eq!((sums.files, sums.bytes, seen.len()), (2, 15, 1), "the same finding is not kept twice");
        assert_eq!((&seen[0].path, &seen[0].missing), (&f.path, &f.missing));
        assert!(State::open(&dir, Guid(6), false).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
