//! Block devices over files.

use std::path::Path;
use std::process::Command;

use super::outcome_of;

/// A loop device; removed when this is dropped and its last user closes it.
pub struct Loop {
    /// Its path.
    pub at: String,
}

impl Loop {
    /// None, with a message, if there are no loop devices.
    pub fn new(file: &Path, options: &[&str]) -> Option<Loop> {
        let s = outcome_of(Command::new("losetup").args(options).args(["-f", "--show"]).arg(file).output().ok()?);
        if s.code != 0 {
            eprintln!("NOT RUN: loop devices cannot be had: {}", s.err);
            return None;
        }
        Some(Loop { at: s.out.trim().to_string() })
    }

    /// Makes its first partition, without a partition table, which not every kernel reads: none,
    /// with a message, if there are no partitions. The device is one that may have them (`-P`).
    pub fn partition(&self, sectors: std::ops::Range<u64>) -> Option<String> {
        let (start, len) = (sectors.start.to_string(), (sectors.end - sectors.start).to_string());
        match Command::new("addpart").args([&self.at, "1", &start, &len]).output() {
            Ok(o) if o.status.success() => Some(format!("{}p1", self.at)),
            other => {
                eprintln!("NOT RUN: partitions cannot be had: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.at]).output();
    }
}
