//! A folder that goes away with its value.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, ErrorKind, Result};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A fresh folder under the system's place for temporary files; removed with all that is in it when
/// dropped. For tests and measurements.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes a folder whose name starts with `weir-` and `tag`.
    pub fn new(tag: &str) -> Result<TempDir> {
        for _ in 0..1000 {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("weir-{tag}-{}-{n}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(TempDir(path)),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(Error::new(ErrorKind::Io, format!("{}: {e}", path.display()))),
            }
        }
        Err(Error::new(ErrorKind::Exists, "no free name for a temporary folder"))
    }
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// The path of `name` in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
