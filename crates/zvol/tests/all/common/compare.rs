//! Two manifests side by side: the kernel's and the engine's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

use super::manifest::Manifest;

/// Differences that are listed one by one.
const TOLD: usize = 30;
const CONTENT: [&str; 3] = ["sha256", "sha256_chunks", "sha256_ends"];

/// The result of a comparison.
#[derive(Default)]
pub struct Comparison {
    /// Objects that agree in every field.
    pub same: u64,
    pub differences: Vec<String>,
    /// Datasets that the engine does not open or read: dataset (without snapshot) to its first
    /// sentence and the number of objects.
    pub refused: BTreeMap<String, (String, u64)>,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} objects agree, {} differences", self.same, self.differences.len())?;
        for d in self.differences.iter().take(TOLD) {
            writeln!(f, "  {d}")?;
        }
        for (ds, (why, n)) in &self.refused {
            writeln!(f, "  refused in {ds}: {n} times: {why}")?;
        }
        Ok(())
    }
}

type Line<'a> = &'a Map<String, Value>;

fn text<'a>(l: Line<'a>, key: &str) -> &'a str {
    l.get(key).and_then(Value::as_str).unwrap_or("")
}

/// A name for the line: dataset, snapshot, path.
fn key(l: Line) -> String {
    let mut s = text(l, "dataset").to_string();
    if l.contains_key("snap") {
        s = s + "@" + text(l, "snap");
    }
    match (l.contains_key("path"), l.contains_key("path_hex")) {
        (true, _) => s + ":" + text(l, "path"),
        (_, true) => s + ":hex " + text(l, "path_hex"),
        _ => s,
    }
}

/// Reads lines of JSON.
pub fn parse(jsonl: &str) -> Vec<Value> {
    jsonl.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

pub fn compare(kernel: &[Value], ours: &Manifest) -> Comparison {
    let mut out = Comparison::default();
    let mut left = BTreeMap::new();
    for l in ours.lines.iter().filter_map(Value::as_object) {
        if left.insert(key(l), l).is_some() {
            out.differences.push(format!("{}: twice in weir's", key(l)));
        }
    }
    let refused: BTreeMap<&str, &str> = ours.refused.iter().map(|(n, why)| (n.as_str(), why.as_str())).collect();
    let mut unmounted = BTreeSet::new();
    let note = |out: &mut Comparison, ds: &str, why: &str| {
        out.refused.entry(ds.to_string()).or_insert_with(|| (why.to_string(), 0)).1 += 1;
    };
    for k in kernel.iter().filter_map(Value::as_object) {
        let (name, ds) = (key(k), text(k, "dataset"));
        let whole = if k.contains_key("snap") { format!("{ds}@{}", text(k, "snap")) } else { ds.to_string() };
        // A dataset that the kernel did not mount must not be in our manifest either.
        if text(k, "type") == "n" && !refused.contains_key(ds) {
            out.differences.push(format!("{name}: the kernel did not mount it, since it is {}", text(k, "why")));
            unmounted.insert(ds);
            continue;
        }
        if let Some(why) = refused.get(whole.as_str()) {
            note(&mut out, ds, why);
            continue;
        }
        let Some(o) = left.remove(&name) else {
            out.differences.push(format!("{name}: not in weir's"));
            continue;
        };
        let error = o.get("error").and_then(Value::as_str);
        if let Some(why) = error {
            note(&mut out, ds, why);
        }
        let fields: BTreeSet<&String> = k.keys().chain(o.keys()).collect();
        let before = out.differences.len();
        for f in fields {
            if error.is_some() && (f == "error" || CONTENT.contains(&f.as_str())) {
                continue;
            }
            let show = |l: Line| l.get(f).map_or("nothing".to_string(), |v| v.to_string());
            if k.get(f) != o.get(f) {
                out.differences.push(format!("{name}: {f}: the kernel says {}, weir {}", show(k), show(o)));
            }
        }
        if error.is_none() && out.differences.len() == before {
            out.same += 1;
        }
    }
    for (name, o) in left {
        // Snapshots of volumes are not in the kernel's, nor are datasets that it did not mount.
        let volume_snapshot = text(o, "type") == "v" && o.contains_key("snap");
        if volume_snapshot || unmounted.contains(text(o, "dataset")) {
            if let Some(why) = o.get("error").and_then(Value::as_str) {
                note(&mut out, text(o, "dataset"), why);
            }
            continue;
        }
        out.differences.push(format!("{name}: not in the kernel's"));
    }
    out
}
