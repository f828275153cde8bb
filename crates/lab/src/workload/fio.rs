//! Job files of fio: the part that has a meaning here.
//!
//! | fio | here |
//! |---|---|
//! | `rw` | `pattern`, `read` |
//! | `rwmixread`, `rwmixwrite` | `read` |
//! | `bs` | `block` |
//! | `numjobs` | `threads` |
//! | `size` | `size` |
//! | `filename` | `shared` |
//! | `sync=1`, `fsync=N` | `sync` |
//! | `rate_iops`, `rate_process` | `rate` |
//! | `buffer_compress_percentage` | `compressible` |
//! | `runtime`, `ramp_time` | `seconds`, `warmup` |
//!
//! Options that say how fio does its work (engine, directory, reporting) are passed over where they
//! change nothing here; an option that would change the load is a mistake. `[global]` holds for the
//! jobs behind it.

use base::Result;

use super::syntax::{Entry, Place, Section};

/// Options that change nothing here.
const PASSED_OVER: [&str; 17] = [
    "ioengine",
    "directory",
    "filename_format",
    "group_reporting",
    "time_based",
    "thread",
    "create_serialize",
    "fallocate",
    "randrepeat",
    "norandommap",
    "direct",
    "invalidate",
    "end_fsync",
    "refill_buffers",
    "unlink",
    "description",
    "random_generator",
];

/// The sections of a job file.
pub fn sections(file: &str, text: &str) -> Result<Vec<Section>> {
    let (mut global, mut jobs): (Vec<Entry>, Vec<Section>) = (Vec::new(), Vec::new());
    let mut in_global = None;
    for (n, line) in text.lines().enumerate() {
        let at = n + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            in_global = Some(name == "global");
            if name != "global" {
                jobs.push(Section { line: at, name: name.to_string(), entries: global.clone() });
            }
            continue;
        }
        let (key, value) = line.split_once('=').map_or((line, "1"), |(k, v)| (k.trim(), v.trim()));
        let entry = Entry { line: at, key: key.to_string(), value: value.to_string() };
        match (in_global, jobs.last_mut()) {
            (Some(true), _) => global.push(entry),
            (Some(false), Some(job)) => job.entries.push(entry),
            _ => return Err(Place { file, line: at, key }.error("it stands before the first [job]")),
        }
    }
    let mut run = Section { line: 1, name: "run".into(), entries: Vec::new() };
    let mut out = Vec::new();
    for job in jobs {
        out.push(translated(file, job, &mut run)?);
    }
    out.insert(0, run);
    Ok(out)
}

/// A job with the keys of a workload; what belongs to the run goes there.
fn translated(file: &str, job: Section, run: &mut Section) -> Result<Section> {
    let mut entries = vec![Entry { line: job.line, key: "name".into(), value: job.name.clone() }];
    let last = |key: &str| job.entries.iter().rev().find(|e| e.key == key).map(|e| e.value.as_str());
    let (mut mixed, mut process) = (false, "fixed");
    if let Some("poisson") = last("rate_process") {
        process = "poisson";
    }
    for entry in &job.entries {
        let place = Place { file, line: entry.line, key: &entry.key };
        let value = entry.value.as_str();
        let mut add = |key: &str, value: String| entries.push(Entry { line: entry.line, key: key.into(), value });
        match entry.key.as_str() {
            "rw" | "readwrite" => {
                let (pattern, read) = match value {
                    "read" => ("sequential", "100"),
                    "write" => ("sequential", "0"),
                    "rw" | "readwrite" => ("sequential", "50"),
                    "randread" => ("random", "100"),
                    "randwrite" => ("random", "0"),
                    "randrw" => ("random", "50"),
                    _ => {
                        return Err(
                            place.error(format!("'{value}' is none of: read, write, rw, randread, randwrite, randrw"))
                        );
                    }
                };
                mixed = read == "50";
                add("pattern", pattern.into());
                add("read", read.into());
            }
            "rwmixread" | "rwmixwrite" => {}
            "bs" | "blocksize" => add("block", value.into()),
            "numjobs" => add("threads", value.into()),
            "size" | "filesize" => add("size", value.into()),
            // The processes of a job with a file name share that file.
            "filename" if value.contains(':') => {
                return Err(place.error("a job has one file here, or one for each thread without this option"));
            }
            "filename" => add("shared", "true".into()),
            "sync" => match value {
                "0" | "none" => add("sync", "none".into()),
                "1" | "sync" | "dsync" => add("sync", "each".into()),
                _ => return Err(place.error(format!("'{value}' is none of: 0, 1, none, sync, dsync"))),
            },
            "fsync" | "fdatasync" => match place.number(value, 0, 1_000_000)? {
                0 => add("sync", "none".into()),
                n => add("sync", format!("after {n}")),
            },
            "rate_iops" => add("rate", format!("{process} {value}")),
            "rate_process" => match value {
                "linear" | "poisson" => {}
                _ => return Err(place.error(format!("'{value}' is neither linear nor poisson"))),
            },
            "buffer_compress_percentage" => {
                let percent = place.number(value, 0, 99)?;
                add("compressible", format!("{}", 100.0 / (100 - percent) as f64));
            }
            "runtime" | "ramp_time" => {
                let key = if entry.key == "runtime" { "seconds" } else { "warmup" };
                let value = value.strip_suffix('s').unwrap_or(value).to_string();
                run.entries.push(Entry { line: entry.line, key: key.into(), value });
            }
            "iodepth" if value == "1" => {}
            "iodepth" => return Err(place.error("threads here have one operation at a time: use numjobs")),
            key if PASSED_OVER.contains(&key) => {}
            _ => return Err(place.error("this option of fio has no meaning here")),
        }
    }
    // The mix belongs to mixed patterns, wherever it stands.
    for entry in job.entries.iter().filter(|e| mixed && (e.key == "rwmixread" || e.key == "rwmixwrite")) {
        let place = Place { file, line: entry.line, key: &entry.key };
        let percent = place.number(&entry.value, 0, 100)?;
        let read = if entry.key == "rwmixread" { percent } else { 100 - percent };
        entries.push(Entry { line: entry.line, key: "read".into(), value: read.to_string() });
    }
    Ok(Section { line: job.line, name: "job".into(), entries })
}
