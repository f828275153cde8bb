//! The report: what was copied and what is missing, as text and as JSON, from the record.
//!
//! Both are written anew at the end of each run. Findings are copied from the record one by one, so
//! that their number is not bounded by memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use base::{Guid, NiceNum, Result, Txg};
use serde_json::json;

use crate::out::{record_error, record_file};
use crate::state::{Finding, Problem, State, Sums};

/// The outcome of a rescue.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// What was copied, earlier runs into the same folder included.
    pub sums: Sums,
    /// How many findings of each kind there are.
    pub problems: BTreeMap<Problem, u64>,
    /// The datasets that were found.
    pub datasets: Vec<String>,
    /// The report as text.
    pub text: PathBuf,
    /// The report as JSON.
    pub json: PathBuf,
}

impl Summary {
    /// Whether all content was copied as it was last.
    pub fn is_complete(&self) -> bool {
        self.problems.keys().all(|p| *p == Problem::Attributes)
    }
    /// One line of figures.
    pub fn line(&self) -> String {
        let mut out = format!("{} files, {} bytes copied", self.sums.files, NiceNum(self.sums.bytes));
        for p in Problem::ALL {
            if let Some(n) = self.problems.get(&p) {
                out.push_str(&format!(", {n} {}", p.word()));
            }
        }
        out
    }
}

/// What a report says besides the findings.
pub struct Report<'a> {
    /// Name of the pool.
    pub pool: &'a str,
    /// Its guid.
    pub guid: Guid,
    /// Txg of the newest uberblock that is left.
    pub newest_uberblock: Option<Txg>,
    /// Txg of the newest state that can be opened.
    pub newest_state: Option<Txg>,
    /// How many states can be opened.
    pub states: u64,
    /// Whether the devices were searched.
    pub searched: bool,
    /// Anything else.
    pub notes: &'a [String],
    /// Names of the datasets.
    pub datasets: &'a [String],
    /// Datasets that were left out.
    pub skipped: &'a [Finding],
}

/// What a problem means, for the text.
fn meaning(p: Problem) -> &'static str {
    match p {
        Problem::Lost => "lost: nothing of it is left but its name or number",
        Problem::Damaged => "damaged: copied, with holes where ranges are missing, or without its length",
        Problem::Older => "older: copied as it was in an older state",
        Problem::Found => "found: copied; that it belongs there is not proved",
        Problem::Names => "names: names in a folder, or of a file, are lost",
        Problem::Skipped => "skipped: not copied",
        Problem::Attributes => "attributes: copied, some attributes are not restored",
    }
}

/// Text of the pool without what a terminal would take for commands.
pub(crate) fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "?")
}

/// A finding as a line of text.
fn line(f: &Finding) -> String {
    let path = printable(&String::from_utf8_lossy(&f.path));
    let mut out = printable(&f.dataset);
    if !path.is_empty() {
        out.push_str(": /");
        out.push_str(&path);
    }
    if !f.missing.is_empty() {
        let gone: u64 = f.missing.iter().map(|(a, b)| b - a).sum();
        let ranges: Vec<String> = f.missing.iter().take(8).map(|(a, b)| format!("{a}-{b}")).collect();
        let more = if f.missing.len() > 8 { " ..." } else { "" };
        out.push_str(&format!(" (missing {gone} of {} bytes: {}{more})", f.size, ranges.join(" ")));
    }
    if !f.note.is_empty() {
        out.push_str(" - ");
        out.push_str(&printable(&f.note));
    }
    out
}

fn new_file(path: &Path) -> Result<File> {
    record_file(path, File::options().create(true).write(true).truncate(true))
}

impl Report<'_> {
    /// Writes `report.txt` and `report.json` into `dir`.
    pub fn write(&self, dir: &Path, state: &State) -> Result<Summary> {
        let (text, json) = (dir.join("report.txt"), dir.join("report.json"));
        let mut summary = Summary { datasets: self.datasets.to_vec(), text, json, ..Summary::default() };
        let mut count = BTreeMap::new();
        summary.sums = self.each(state, &mut |f| {
            *count.entry(f.problem).or_insert(0) += 1;
            Ok(())
        })?;
        summary.problems = count;
        self.write_json(&summary, state)?;
        self.write_text(&summary, state)?;
        Ok(summary)
    }

    /// Every finding; the sums over all files come back.
    fn each(&self, state: &State, f: &mut dyn FnMut(Finding) -> Result<()>) -> Result<Sums> {
        self.skipped.iter().try_for_each(|s| f(s.clone()))?;
        state.replay(f)
    }

    fn write_json(&self, summary: &Summary, state: &State) -> Result<()> {
        let say = |e: std::io::Error| record_error(&summary.json, &e);
        let mut out = BufWriter::new(new_file(&summary.json)?);
        let problems: BTreeMap<&str, u64> = summary.problems.iter().map(|(p, n)| (p.word(), *n)).collect();
        let head = json!({
            "pool": self.pool,
            "guid": self.guid.0.to_string(),
            "newest_uberblock": self.newest_uberblock.map(|t| t.0),
            "newest_state": self.newest_state.map(|t| t.0),
            "states": self.states,
            "searched": self.searched,
            "complete": summary.is_complete(),
            "files": summary.sums.files,
            "bytes": summary.sums.bytes,
            "problems": problems,
            "notes": self.notes,
            "datasets": self.datasets,
        })
        .to_string();
        write!(out, "{},\n\"findings\": [", head.trim_end_matches('}')).map_err(say)?;
        let mut first = true;
        self.each(state, &mut |f| {
            let comma = if std::mem::take(&mut first) { "" } else { "," };
            write!(out, "{comma}\n{}", f.to_json()).map_err(say)
        })?;
        writeln!(out, "\n]}}").and_then(|()| out.flush()).map_err(say)
    }

    fn write_text(&self, summary: &Summary, state: &State) -> Result<()> {
        let say = |e: std::io::Error| record_error(&summary.text, &e);
        let mut out = BufWriter::new(new_file(&summary.text)?);
        let txg = |t: Option<Txg>| t.map_or_else(|| "none".to_owned(), |t| t.0.to_string());
        let mut head = format!("pool {} ({})\n{}\n", printable(self.pool), self.guid, summary.line());
        head.push_str(&format!(
            "newest uberblock: txg {}; newest state that opens: txg {}, of {}{}\n",
            txg(self.newest_uberblock),
            txg(self.newest_state),
            self.states,
            if self.searched { "; the devices were searched" } else { "" }
        ));
        self.notes.iter().for_each(|n| head.push_str(&format!("note: {}\n", printable(n))));
        self.datasets.iter().for_each(|d| head.push_str(&format!("dataset: {}\n", printable(d))));
        out.write_all(head.as_bytes()).map_err(say)?;
        for p in Problem::ALL.into_iter().filter(|p| summary.problems.contains_key(p)) {
            writeln!(out, "\n{}", meaning(p)).map_err(say)?;
            self.each(state, &mut |f| match f.problem == p {
                true => writeln!(out, "  {}", line(&f)).map_err(say),
                false => Ok(()),
            })
            .map(drop)?;
        }
        out.flush().map_err(say)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_findings() {
        let mut f = Finding {
            dataset: "p".into(),
            path: b"a\nb".to_vec(),
            object: 3,
            problem: Problem::Damaged,
            size: 4096,
            missing: Vec::new(),
            note: "no copy".into(),
        };
        f.miss(512, 1024);
        assert_eq!(line(&f), "p: /a?b (missing 512 of 4096 bytes: 512-1024) - no copy");
        f.dataset = "p/\x1b[2J".into();
        assert!(line(&f).starts_with("p/?[2J: /a?b"));
    }
}
