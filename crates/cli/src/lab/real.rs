//! Real devices of the laboratory: files made for a run, and devices whose contents may be lost.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{Error, Result};
use bdev::BlockDev as _;
use host::{HostDev, OpenOpts};
use rt::Rt;

/// The least of a device: caches must not hold all of it.
pub(super) const SIZE_MIN: u64 = 64 << 20;

/// A file that was made for a run and goes away after it.
pub(super) struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes a sparse file of `size` bytes at each path, if a size is given; with `overwrite` the paths
/// are there, and the size says how much of them is used.
pub(super) fn make(paths: &[&str], size: Option<u64>, overwrite: bool) -> Result<Vec<Made>> {
    match (size, overwrite) {
        (_, true) => Ok(Vec::new()),
        (Some(size), false) => paths.iter().map(|path| make_one(path, size)).collect(),
        (None, false) => {
            let what = "either --size for a new file, which is removed at the end, or --overwrite for a device or file whose contents may be lost";
            Err(Error::invalid(format!("'{}' needs {what}", paths.first().unwrap_or(&""))))
        }
    }
}

fn make_one(path: &str, size: u64) -> Result<Made> {
    let bad = |e: std::io::Error| Error::invalid(format!("'{path}' cannot be made: {e}"));
    let file = std::fs::File::create_new(Path::new(path)).map_err(bad)?;
    let made = Made(path.into());
    file.set_len(size).map_err(bad)?;
    Ok(made)
}

/// Opens a device or file for writing past the page cache; `done` says what it is for, as in
/// "calibrated".
pub(super) fn open(rt: &Rt, path: &str, done: &str) -> Result<Rc<HostDev>> {
    let dev = HostDev::open_dev(rt, path, OpenOpts { write: true, ..OpenOpts::default() })?;
    if !dev.is_direct() {
        let why = "it takes no direct I/O, so that the page cache would be measured";
        return Err(Error::invalid(format!("'{path}' cannot be {done}: {why}")));
    }
    if dev.size() < SIZE_MIN {
        return Err(Error::invalid(format!("'{path}' cannot be {done}: it has less than 64M")));
    }
    Ok(dev)
}
