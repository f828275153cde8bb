//! The journal of a run: the plan, and how far it has come.
//!
//! A file of lines. The first is the plan as JSON on one line; each other one says what became of a
//! file: `done DATASET OBJECT`, `at DATASET OBJECT OFFSET` (everything before that byte is written
//! anew), `left DATASET OBJECT REASON`. Lines are appended as things happen, so a run that is
//! killed at any moment goes on where it was; a last line without its end counts for nothing.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::report::VERSION;

/// Longest journal or plan in bytes.
const LONGEST: u64 = 256 << 20;
/// Most files of a plan that is read.
const FILES_MAX: usize = 1 << 20;

/// A file to rewrite.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    /// The name of its dataset.
    pub(crate) dataset: String,
    /// Its dataset's object, and its own.
    pub(crate) id: (u64, u64),
    /// Its path in the dataset; none without the key.
    pub(crate) path: Option<String>,
    /// Its allocated bytes.
    pub(crate) bytes: u64,
    /// Its runs.
    pub(crate) runs: u64,
    /// Its runs when it is written anew.
    pub(crate) runs_after: u64,
}

impl Item {
    /// Its name for people.
    pub(crate) fn name(&self) -> String {
        match &self.path {
            Some(path) => format!("{}:{path}", self.dataset),
            None => format!("{} object {}", self.dataset, self.id.1),
        }
    }
}

/// A plan as a run needs it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Orders {
    /// All of it.
    pub(crate) json: Value,
    /// The pool's name.
    pub(crate) pool: String,
    /// The pool's guid.
    pub(crate) guid: u64,
    /// The state that was planned for.
    pub(crate) txg: u64,
    /// Files in their order.
    pub(crate) files: Vec<Item>,
}

impl Orders {
    /// Of the JSON of a plan.
    ///
    /// # Errors
    /// `Invalid` if it is none.
    pub(crate) fn of(json: Value) -> Result<Orders> {
        let bad = |what: &str| Error::invalid(format!("this is no plan of 'weir defrag plan --json': {what}"));
        if json["version"].as_u64() != Some(u64::from(VERSION)) {
            return Err(bad(&format!("its version is not {VERSION}")));
        }
        let rows = json["files"].as_array().ok_or_else(|| bad("it has no files"))?;
        if rows.len() > FILES_MAX {
            return Err(bad("it has too many files"));
        }
        let mut files = Vec::new();
        for row in rows {
            let number = |k: &str| row[k].as_u64().ok_or_else(|| bad(&format!("a file has no '{k}'")));
            files.push(Item {
                dataset: row["dataset"].as_str().ok_or_else(|| bad("a file has no 'dataset'"))?.to_owned(),
                id: (number("dataset_object")?, number("object")?),
                path: row["path"].as_str().map(str::to_owned),
                bytes: number("bytes")?,
                runs: number("runs")?,
                runs_after: number("runs_after")?,
            });
        }
        let pool = json["pool"].as_str().ok_or_else(|| bad("it names no pool"))?.to_owned();
        let number = |k: &str| json[k].as_u64().ok_or_else(|| bad(&format!("it has no '{k}'")));
        Ok(Orders { pool, guid: number("guid")?, txg: number("txg")?, files, json })
    }

    /// Of a file with the JSON of a plan.
    ///
    /// # Errors
    /// `Io` if it cannot be read, `Invalid` if it is none.
    pub(crate) fn read(path: &Path) -> Result<Orders> {
        let text = read(path)?;
        let json = serde_json::from_str(&text);
        let json = json.map_err(|e| Error::invalid(format!("'{}' is not JSON: {e}", path.display())))?;
        Orders::of(json).map_err(|e| e.at(format!("'{}'", path.display())))
    }
}

/// What became of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// It is written anew up to this byte.
    At(u64),
    /// All of it is.
    Done,
    /// It was left out.
    Left(String),
}

/// A journal, open for more lines.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// The plan.
    pub(crate) orders: Orders,
    /// By dataset's object and object.
    pub(crate) progress: BTreeMap<(u64, u64), Progress>,
}

fn fail(path: &Path, what: &str, e: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("'{}' cannot be {what}: {e}", path.display()))
}

fn read(path: &Path) -> Result<String> {
    let length = std::fs::metadata(path).map_err(|e| fail(path, "read", &e))?.len();
    if length > LONGEST {
        return Err(Error::invalid(format!("'{}' has {length} bytes, too many for a plan", path.display())));
    }
    std::fs::read_to_string(path).map_err(|e| fail(path, "read", &e))
}

/// A line of progress.
fn parse(line: &str) -> Option<((u64, u64), Progress)> {
    let mut words = line.splitn(4, ' ');
    let kind = words.next()?;
    let id = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let progress = match kind {
        "done" => Progress::Done,
        "at" => Progress::At(words.next()?.parse().ok()?),
        "left" => Progress::Left(words.next()?.to_owned()),
        _ => return None,
    };
    Some((id, progress))
}

impl Journal {
    /// A new one at `path`, in place of an older one.
    ///
    /// # Errors
    /// `Io` if it cannot be written.
    pub(crate) fn create(path: &Path, orders: Orders) -> Result<Journal> {
        let part = path.with_extension("new");
        let mut file = File::create(&part).map_err(|e| fail(&part, "made", &e))?;
        let written = writeln!(file, "{}", orders.json).and_then(|()| file.sync_all());
        written.and_then(|()| std::fs::rename(&part, path)).map_err(|e| fail(path, "written", &e))?;
        Ok(Journal { path: path.to_owned(), file, orders, progress: BTreeMap::new() })
    }

    /// The one at `path`, if there is any.
    ///
    /// # Errors
    /// `Io` if it cannot be read, `Invalid` if it is none.
    pub(crate) fn open(path: &Path) -> Result<Option<Journal>> {
        if !path.exists() {
            return Ok(None);
        }
        let text = read(path)?;
        let at = || format!("'{}'", path.display());
        let whole = &text[..text.rfind('\n').map_or(0, |n| n + 1)];
        let mut lines = whole.lines();
        let json = serde_json::from_str(lines.next().unwrap_or_default());
        let json = json.map_err(|e| Error::invalid(format!("it is no journal of a run: {e}")).at(at()))?;
        let orders = Orders::of(json).map_err(|e| e.at(at()))?;
        let progress = lines.filter_map(parse).collect();
        let file = OpenOptions::new().write(true).open(path).map_err(|e| fail(path, "opened", &e))?;
        // What has no end was being written.
        file.set_len(whole.len() as u64).map_err(|e| fail(path, "written", &e))?;
        drop(file);
        let file = OpenOptions::new().append(true).open(path).map_err(|e| fail(path, "opened", &e))?;
        Ok(Some(Journal { path: path.to_owned(), file, orders, progress }))
    }

    /// Notes what became of a file.
    ///
    /// # Errors
    /// `Io` if it cannot be written.
    pub(crate) fn note(&mut self, id: (u64, u64), progress: Progress) -> Result<()> {
        let (dataset, object) = id;
        let line = match &progress {
            Progress::Done => format!("done {dataset} {object}\n"),
            Progress::At(offset) => format!("at {dataset} {object} {offset}\n"),
            Progress::Left(why) => format!("left {dataset} {object} {}\n", why.replace('\n', " ")),
        };
        self.file.write_all(line.as_bytes()).map_err(|e| fail(&self.path, "written", &e))?;
        self.progress.insert(id, progress);
        Ok(())
    }

    /// The files that are written anew.
    pub(crate) fn done(&self) -> impl Iterator<Item = &Item> {
        self.orders.files.iter().filter(|f| self.progress.get(&f.id) == Some(&Progress::Done))
    }

    /// The files that are not.
    pub(crate) fn rest(&self) -> impl Iterator<Item = &Item> {
        self.orders.files.iter().filter(|f| self.progress.get(&f.id) != Some(&Progress::Done))
    }

    /// Ends the run: the journal goes.
    ///
    /// # Errors
    /// `Io` if it cannot be removed.
    pub(crate) fn finish(self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(|e| fail(&self.path, "removed", &e))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan() -> Value {
        let file = |object: u64| {
            json!({ "dataset": "tank/a", "dataset_object": 54, "object": object, "path": "/x y", "bytes": 100,
                "runs": 10, "runs_after": 2 })
        };
        json!({ "version": VERSION, "pool": "tank", "guid": u64::MAX, "txg": 7, "files": [file(2), file(3)] })
    }

    #[test]
    fn a_run_goes_on_where_it_was() {
        let dir = host::TempDir::new("defrag-journal").unwrap();
        let path = dir.path().join("j");
        assert!(Journal::open(&path).unwrap().is_none());
        let mut j = Journal::create(&path, Orders::of(plan()).unwrap()).unwrap();
        j.note((54, 2), Progress::At(4096)).unwrap();
        j.note((54, 2), Progress::Done).unwrap();
        j.note((54, 3), Progress::Left("it is\ngone".into())).unwrap();
        drop(j);
        // Cut off within a line.
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"done 54 3").unwrap();
        let mut j = Journal::open(&path).unwrap().unwrap();
        assert_eq!((j.orders.guid, j.orders.files[0].name().as_str()), (u64::MAX, "tank/a:/x y"));
        assert_eq!(j.progress[&(54, 2)], Progress::Done);
        assert_eq!(j.progress[&(54, 3)], Progress::Left("it is gone".into()));
        j.note((54, 3), Progress::At(1)).unwrap();
        let j = Journal::open(&path).unwrap().unwrap();
        assert_eq!(j.progress[&(54, 3)], Progress::At(1));
        assert_eq!((j.done().count(), j.rest().count()), (1, 1));
        j.finish().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        let dir = host::TempDir::new("defrag-noplan").unwrap();
        let path = dir.path().join("p");
        for bad in
            ["", "{}", "[1]", "{\"version\":1}", "{\"version\":1,\"files\":[{}]}", "{\"version\":99,\"files\":[]}"]
        {
            std::fs::write(&path, format!("{bad}\n")).unwrap();
            let e = Orders::read(&path).unwrap_err().to_string();
            assert!(e.contains("/p'"), "{bad}: {e}");
            assert!(Journal::open(&path).is_err(), "{bad}");
        }
        std::fs::write(&path, plan().to_string()).unwrap();
        assert_eq!(Orders::read(&path).unwrap().files.len(), 2);
        assert!(Orders::read(&dir.path().join("none")).is_err());
        for bad in ["", "done", "done 1", "at 1 2", "at 1 2 x", "left 1 2", "gone 1 2"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
