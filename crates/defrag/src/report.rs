//! A plan as text and as JSON.
//!
//! The JSON is also what a later run reads: `files` are those to rewrite in their order, each named
//! by its dataset, its object and its path there (null without the key of its file system). Numbers
//! are bytes, nanoseconds or counts, as their names say. `version` changes when a field changes its
//! meaning.

use std::fmt::Write as _;

use base::NiceNum;
use serde_json::{Value, json};

use crate::extents::total;
use crate::journal::{Item, Journal};
use crate::measure::Measured;
use crate::plan::Goal;
use crate::pool_plan::{FreeSpace, PlannedFile, PoolPlan, Prediction};

/// Version of the JSON.
pub(crate) const VERSION: u32 = 1;
/// Files and metaslabs of the text.
const ROWS: usize = 10;
/// Characters of a name in the text.
pub(crate) const NAME: usize = 60;

impl PlannedFile {
    /// Dataset and path for people.
    fn name(&self) -> String {
        match &self.path {
            Some(path) => format!("{}:{path}", self.dataset),
            None => format!("{} object {}", self.dataset, self.file.object),
        }
    }
}

impl Prediction {
    /// Bytes of content a second, before and after.
    pub(crate) fn rates(&self) -> [f64; 2] {
        [self.now, self.after].map(|t| if t.0 == 0 { 0.0 } else { self.bytes as f64 / t.as_secs_f64() })
    }
}

/// A text on one line without what moves a terminal's cursor, at most so long.
pub(crate) fn tame(text: &str, most: usize) -> String {
    let one = |c: char| if c.is_control() { '?' } else { c };
    let count = text.chars().count();
    let skip = if count > most { count - most + 1 } else { 0 };
    let rest: String = text.chars().skip(skip).map(one).collect();
    if skip > 0 { format!("\u{2026}{rest}") } else { rest }
}

fn percent(n: Option<u64>) -> String {
    n.map_or("-".into(), |n| format!("{n}%"))
}

/// The mean of free segments.
fn mean(f: &FreeSpace) -> u64 {
    f.free().checked_div(f.count()).unwrap_or(0)
}

impl PoolPlan {
    /// Whether there is nothing to rewrite.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (files, bytes, runs) = self.all;
        let name = self.goal.name();
        let _ = writeln!(out, "Plan for {} at txg {} (goal: {name})", tame(&self.pool, NAME), self.txg);
        let _ = writeln!(out, "  {files} files of {} in {runs} runs\n", NiceNum(bytes));
        if self.files.is_empty() {
            let _ = writeln!(out, "  Nothing to rewrite: {}.", self.why_nothing());
        } else {
            self.figures(&mut out);
            self.rows(&mut out);
        }
        self.left_out(&mut out);
        out
    }

    fn why_nothing(&self) -> &'static str {
        match (self.choice.no_room, self.choice.beyond) {
            (0, 0) => "no file would gain enough (--min-gain)",
            (0, _) => "no file that gains enough is within the limit (--bytes)",
            _ => "there is no room for a second copy of any file; destroy snapshots or free some space first",
        }
    }

    fn figures(&self, out: &mut String) {
        let mut row = |what: &str, now: String, after: String| {
            let _ = writeln!(out, "  {what:<26}{now:>12}{after:>12}");
        };
        row("", "now".into(), "after".into());
        if let Some(p) = &self.prediction {
            let [now, after] = p.rates().map(|r| format!("{}/s", NiceNum(r as u64)));
            row("sequential read", now, after);
        }
        let sum = |f: fn(&PlannedFile) -> u64| total(self.files.iter().map(f)).to_string();
        row("runs of these files", sum(|f| f.file.runs.runs), sum(|f| f.after.runs));
        row("fragmentation", percent(self.before.fragmentation()), percent(self.after.fragmentation()));
        row("free segments", self.before.count().to_string(), self.after.count().to_string());
        row("mean free segment", NiceNum(mean(&self.before)).to_string(), NiceNum(mean(&self.after)).to_string());
        row("free", NiceNum(self.before.free()).to_string(), NiceNum(self.after.free()).to_string());
        let fragmented = |f: &FreeSpace| {
            let all = f.slabs.iter().filter(|s| s.fragmentation >= crate::space::FRAGMENTED).count();
            format!("{all} of {}", f.slabs.len())
        };
        row("fragmented metaslabs", fragmented(&self.before), fragmented(&self.after));
        let _ = writeln!(out);
        let _ = writeln!(out, "  to write: {} in {} files", NiceNum(self.choice.bytes), self.files.len());
        if self.choice.held > 0 {
            let held = NiceNum(self.choice.held);
            let _ = writeln!(out, "  held by snapshots and clones: {held}; the pool grows by as much");
        }
        if let Some(p) = &self.prediction {
            let (blocks, bytes, model) = (p.blocks, NiceNum(p.bytes), tame(&p.model, NAME));
            let _ = writeln!(out, "  read in the simulator: {blocks} blocks ({bytes}), disks like {model}");
        }
    }

    fn rows(&self, out: &mut String) {
        let _ = writeln!(out, "\n  {:>7} {:>9} {:>9} {:>7}  file", "bytes", "runs", "after", "held");
        for f in self.files.iter().take(ROWS) {
            let (bytes, held) = (NiceNum(f.file.runs.bytes), NiceNum(f.file.runs.held));
            let name = tame(&f.name(), NAME);
            let _ = writeln!(out, "  {bytes:>7} {:>9} {:>9} {held:>7}  {name}", f.file.runs.runs, f.after.runs);
        }
        if self.files.len() > ROWS {
            let _ = writeln!(out, "  ... and {} more files (--json has all)", self.files.len() - ROWS);
        }
        let mut slabs: Vec<_> =
            self.before.slabs.iter().zip(&self.after.slabs).filter(|(_, a)| a.emptied > 0).collect();
        slabs.sort_by_key(|(b, a)| (std::cmp::Reverse(a.emptied), b.vdev, b.index));
        if slabs.is_empty() {
            return;
        }
        let _ =
            writeln!(out, "\n  {:>7} {:>7} {:>7} {:>7} {:>7}  metaslab", "freed", "largest", "after", "frag", "after");
        for (b, a) in slabs.iter().take(ROWS) {
            let [freed, largest, then] = [a.emptied, b.largest, a.largest].map(|n| NiceNum(n).to_string());
            let [frag, later] = [b.fragmentation, a.fragmentation].map(|n| percent(Some(u64::from(n))));
            let (vdev, index) = (b.vdev, b.index);
            let _ = writeln!(out, "  {freed:>7} {largest:>7} {then:>7} {frag:>7} {later:>7}  vdev {vdev}, {index}");
        }
        if slabs.len() > ROWS {
            let _ = writeln!(out, "  ... and {} more metaslabs", slabs.len() - ROWS);
        }
    }

    fn left_out(&self, out: &mut String) {
        let mut lines = Vec::new();
        let c = &self.choice;
        for (n, what) in [
            (c.little, "little gain"),
            (c.beyond, "beyond the limit of bytes"),
            (c.no_room, "no room"),
            (self.unreadable, "unreadable"),
            (self.volumes, "volumes"),
        ] {
            if n > 0 {
                lines.push(format!("{what} {n}"));
            }
        }
        if !lines.is_empty() {
            let _ = writeln!(out, "\n  left out: {}", lines.join(", "));
        }
        self.notes.iter().for_each(|n| {
            let _ = writeln!(out, "  {}", tame(n, 400));
        });
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let files: Vec<Value> = self.files.iter().map(|f| file(f, self.goal)).collect();
        let (all, bytes, runs) = self.all;
        json!({
            "version": VERSION,
            "pool": self.pool,
            "guid": self.guid,
            "txg": self.txg,
            "goal": self.goal.name(),
            "pool_files": { "count": all, "bytes": bytes, "runs": runs },
            "write_bytes": self.choice.bytes,
            "held_bytes": self.choice.held,
            "read": self.prediction.as_ref().map(|p| {
                let [now, after] = p.rates();
                json!({
                    "model": p.model,
                    "sample_blocks": p.blocks,
                    "sample_bytes": p.bytes,
                    "now_ns": p.now.0,
                    "after_ns": p.after.0,
                    "now_bytes_per_s": now as u64,
                    "after_bytes_per_s": after as u64,
                })
            }),
            "free_space": { "now": free_space(&self.before), "after": free_space(&self.after) },
            "metaslabs": self.before.slabs.iter().zip(&self.after.slabs).filter(|(b, a)| b.fragmented || a.emptied > 0)
                .map(|(b, a)| json!({
                    "vdev": b.vdev,
                    "metaslab": b.index,
                    "size": b.size,
                    "freed_bytes": a.emptied,
                    "now": { "free": b.free, "largest": b.largest, "fragmentation": b.fragmentation },
                    "after": { "free": a.free, "largest": a.largest, "fragmentation": a.fragmentation },
                })).collect::<Vec<_>>(),
            "left_out": {
                "little": self.choice.little,
                "beyond_limit": self.choice.beyond,
                "no_room": self.choice.no_room,
                "volumes": self.volumes,
                "unreadable": self.unreadable,
            },
            "notes": self.notes,
            "files": files,
        })
    }
}

/// What was predicted for the files that are rewritten: runs, bytes.
fn predicted(journal: &Journal) -> (u64, u64) {
    (total(journal.done().map(|f| f.runs_after)), total(journal.done().map(|f| f.bytes)))
}

/// What a run gained, for people: what was before it, what was predicted and what is.
pub(crate) fn outcome(journal: &Journal, m: &Measured) -> String {
    let (mut out, json) = (String::new(), &journal.orders.json);
    let (done, all) = (journal.done().count(), journal.orders.files.len());
    let _ = writeln!(out, "\nRewritten: {done} of {all} files\n");
    let mut row = |what: &str, cells: [String; 3]| {
        let [before, predicted, measured] = cells;
        let _ = writeln!(out, "  {what:<26}{before:>12}{predicted:>12}{measured:>12}");
    };
    row("", ["before".into(), "predicted".into(), "measured".into()]);
    let number = |v: &Value| v.as_u64().map_or("-".into(), |n| n.to_string());
    let nice = |n: Option<u64>, unit: &str| n.map_or("-".into(), |n| format!("{}{unit}", NiceNum(n)));
    let read = &json["read"];
    let rate = m.read.as_ref().map(|r| r.rates()[0] as u64);
    let rates = [read["now_bytes_per_s"].as_u64(), read["after_bytes_per_s"].as_u64(), rate];
    row("sequential read", rates.map(|n| nice(n, "/s")));
    let (runs, bytes) = predicted(journal);
    let before = total(journal.done().map(|f| f.runs));
    row("runs of these files", [before, runs, m.runs].map(|n| n.to_string()));
    let [now, after] = ["now", "after"].map(|k| &json["free_space"][k]);
    let cells = |k: &str, own: String| [number(&now[k]), number(&after[k]), own];
    row("fragmentation", cells("fragmentation", number(&json!(m.free.fragmentation()))));
    row("free segments", cells("segments", m.free.count().to_string()));
    row("written", ["-".into(), nice(Some(bytes), ""), nice(Some(m.bytes), "")]);
    let _ = writeln!(out, "\n  measured: by the simulator on the places of now, and by the maps of the pool");
    out
}

/// The same for programs.
pub(crate) fn outcome_json(journal: &Journal, m: &Measured, left: &[(Item, String)]) -> Value {
    let (runs, bytes) = predicted(journal);
    let json = &journal.orders.json;
    let left =
        left.iter().map(|(f, why)| json!({ "dataset": f.dataset, "object": f.id.1, "path": f.path, "why": why }));
    json!({
        "version": VERSION,
        "pool": journal.orders.pool,
        "guid": journal.orders.guid,
        "planned_files": journal.orders.files.len(),
        "rewritten_files": journal.done().count(),
        "before": {
            "read_bytes_per_s": json["read"]["now_bytes_per_s"],
            "runs": total(journal.done().map(|f| f.runs)),
            "free_space": json["free_space"]["now"],
        },
        "predicted": {
            "read_bytes_per_s": json["read"]["after_bytes_per_s"],
            "runs": runs,
            "write_bytes": bytes,
            "free_space": json["free_space"]["after"],
        },
        "measured": {
            "read_bytes_per_s": m.read.as_ref().map(|r| r.rates()[0] as u64),
            "runs": m.runs,
            "write_bytes": m.bytes,
            "free_space": free_space(&m.free),
        },
        "left_out": left.collect::<Vec<_>>(),
    })
}

/// Files that were left out and why, for people.
pub(crate) fn left(files: &[(Item, String)], out: &mut dyn std::io::Write) {
    if files.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  left out: {}", files.len());
    for (item, why) in files.iter().take(ROWS) {
        let _ = writeln!(out, "  {}: {}", tame(&item.name(), NAME), tame(why, 200));
    }
    if files.len() > ROWS {
        let _ = writeln!(out, "  ... and {} more", files.len() - ROWS);
    }
}

fn file(f: &PlannedFile, goal: Goal) -> Value {
    let r = &f.file.runs;
    let mut v = json!({
        "dataset": f.dataset,
        "dataset_object": f.file.dataset,
        "object": f.file.object,
        "path": f.path,
        "bytes": r.bytes,
        "blocks": r.blocks,
        "runs": r.runs,
        "runs_after": f.after.runs,
        "held_bytes": r.held,
    });
    if goal == Goal::Space {
        v["fragmented_bytes"] = r.fragmented.into();
    }
    v
}

fn free_space(f: &FreeSpace) -> Value {
    let some = f.segments.iter().enumerate().filter(|(_, n)| **n > 0);
    json!({
        "free_bytes": f.free(),
        "segments": f.count(),
        "fragmentation": f.fragmentation(),
        "histogram": some.map(|(power, n)| json!({ "bytes": 1u64 << power, "count": n })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use base::Nanos;

    use super::*;
    use crate::extents::Runs;
    use crate::plan::{Candidate, Choice};
    use crate::space::{BUCKETS, SlabFigures};

    fn sample() -> PoolPlan {
        let mut segments = [0; BUCKETS];
        segments[17] = 8;
        let slab = |fragmentation, emptied| SlabFigures {
            vdev: 0,
            index: 3,
            size: 16 << 20,
            free: 1 << 20,
            largest: 1 << 17,
            fragmentation,
            fragmented: true,
            emptied,
        };
        let runs =
            Runs { blocks: 800, bytes: 100 << 20, stored: 100 << 20, runs: 700, held: 1 << 20, ..Runs::default() };
        let one = PlannedFile {
            dataset: "tank/a".into(),
            path: Some("/x\u{1b}[2J".into()),
            file: Candidate { dataset: 54, object: 2, runs, runs_after: 1 },
            after: Runs { runs: 2, ..runs },
        };
        PoolPlan {
            pool: "tank".into(),
            guid: u64::MAX,
            txg: 7,
            goal: Goal::Read,
            files: vec![one; ROWS + 2],
            choice: Choice { bytes: 100 << 20, held: 1 << 20, no_room: 4, ..Choice::default() },
            before: FreeSpace { segments, slabs: vec![slab(50, 0)] },
            after: FreeSpace { segments, slabs: vec![slab(10, 5 << 20)] },
            prediction: Some(Prediction {
                model: "hdd".into(),
                blocks: 800,
                bytes: 100 << 20,
                now: Nanos::from_secs(4),
                after: Nanos::from_secs(1),
            }),
            all: (12, 1 << 30, 9000),
            volumes: 1,
            unreadable: 0,
            notes: vec!["A sentence.".into()],
        }
    }

    #[test]
    fn text_is_short_and_says_what_happens() {
        let text = sample().text();
        for want in [
            "Plan for tank at txg 7 (goal: read)",
            "25M/s      100M/s",
            "to write: 100M in 12 files",
            "held by snapshots and clones: 1M",
            "tank/a:/x?[2J",
            "... and 2 more files",
            "1 of 1      0 of 1",
            "vdev 0, 3",
            "left out: no room 4, volumes 1",
            "A sentence.",
        ] {
            assert!(text.contains(want), "{want}:\n{text}");
        }
        assert!(!text.contains('\u{1b}') && text.lines().count() < 40);
        let none = PoolPlan { files: Vec::new(), ..sample() };
        assert!(none.text().contains("there is no room for a second copy of any file"), "{}", none.text());
        let none = PoolPlan { choice: Choice::default(), ..none };
        assert!(none.text().contains("no file would gain enough"));
        assert_eq!(tame("abcdef", 4), "\u{2026}def");
    }

    #[test]
    fn json_has_what_a_run_needs() {
        let v = sample().json();
        let f = &v["files"][0];
        assert_eq!(
            (f["dataset"].as_str(), f["object"].as_u64(), f["dataset_object"].as_u64()),
            (Some("tank/a"), Some(2), Some(54))
        );
        assert_eq!(
            (f["runs"].as_u64(), f["runs_after"].as_u64(), v["guid"].as_u64()),
            (Some(700), Some(2), Some(u64::MAX))
        );
        assert_eq!(v["read"]["now_bytes_per_s"].as_u64(), Some(25 << 20));
        assert_eq!(v["free_space"]["now"]["histogram"][0]["bytes"].as_u64(), Some(1 << 17));
        assert_eq!(v["metaslabs"][0]["freed_bytes"].as_u64(), Some(5 << 20));
        let none = PoolPlan { prediction: None, ..sample() };
        assert!(none.json()["read"].is_null());
    }
}
