//! `zfs rewrite`: the blocks of files are written anew, with the properties of now.
//!
//! The file system is asked through each file, as OpenZFS's command does, so that its rights are
//! those of writing the file. Large files are asked for in parts, so that an interrupt ends soon.
//!
//! With `-P` the blocks keep their logical births. That needs a feature of the pool; the first file
//! of a pool without it ends the command.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::Error;

use crate::opts::Parsed;
use crate::{Done, Fail, print};

/// Bytes that one request writes anew.
const PART: u64 = 16 << 20;

/// The part of each file, and how folders are treated.
struct Rewrite {
    off: u64,
    /// 0: up to the end.
    len: u64,
    recurse: bool,
    verbose: bool,
    /// File systems within folders are left out.
    one_fs: bool,
    /// Blocks keep their logical births.
    physical: bool,
    failed: bool,
    /// A pool cannot do it: there is no use in asking for more files.
    refused: bool,
}

/// `zfs rewrite`
pub fn rewrite(p: &Parsed) -> Done {
    if p.operands.is_empty() {
        return Err(Fail::Usage("missing file or directory target(s)".into(), "rewrite"));
    }
    let mut run = Rewrite {
        off: number(p, 'o', "offset")?,
        len: number(p, 'l', "length")?,
        recurse: p.has('r'),
        verbose: p.has('v'),
        one_fs: p.has('x'),
        physical: p.has('P'),
        failed: false,
        refused: false,
    };
    for name in &p.operands {
        run.path(Path::new(name));
        if run.refused {
            break;
        }
    }
    if run.failed { Err(Fail::AlreadyReported) } else { Ok(()) }
}

/// The number of an option, 0 without it.
fn number(p: &Parsed, letter: char, what: &str) -> Result<u64, Fail> {
    let Some(text) = p.value(letter) else { return Ok(0) };
    dsl::props::parse_size(text)
        .map_err(|_| Error::invalid(format!("bad {what} '{text}': it is to be a number of bytes")).into())
}

/// The requests for a file of `size` bytes: offset and length of each.
fn parts(size: u64, off: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = if len == 0 { size } else { size.min(off.saturating_add(len)) };
    (off..end).step_by(PART as usize).map(move |at| (at, PART.min(end - at)))
}

impl Rewrite {
    /// Rewrites what a name of the command line names. As in OpenZFS, what is neither a file nor,
    /// with `-r`, a folder is passed over.
    fn path(&mut self, path: &Path) {
        match fs::symlink_metadata(path) {
            Err(e) => self.fail("look at", path, &e),
            Ok(m) if m.is_file() => self.file(path),
            Ok(m) if m.is_dir() && self.recurse => self.folder(path, &m),
            Ok(_) => {}
        }
    }

    /// Rewrites a folder and what is in it, one folder after the other.
    fn folder(&mut self, top: &Path, of: &Metadata) {
        let mut folders = vec![top.to_path_buf()];
        while let Some(folder) = folders.pop().filter(|_| !self.refused) {
            match fs::read_dir(&folder) {
                // It may have gone meanwhile.
                Err(e) if e.kind() == io::ErrorKind::NotFound && folder != top => {}
                Err(e) => self.fail("open", &folder, &e),
                Ok(entries) => self.entries(&folder, entries, of.dev(), &mut folders),
            }
        }
    }

    /// Rewrites the files of a folder, and adds its folders to `folders`.
    fn entries(&mut self, folder: &Path, entries: fs::ReadDir, dev: u64, folders: &mut Vec<PathBuf>) {
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => return self.fail("read", folder, &e),
            };
            let path = entry.path();
            match entry.metadata() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => self.fail("look at", &path, &e),
                Ok(m) if self.one_fs && m.dev() != dev => {}
                Ok(m) if m.is_file() => self.file(&path),
                Ok(m) if m.is_dir() => folders.push(path),
                Ok(_) => {}
            }
            if self.refused {
                return;
            }
        }
    }

    fn file(&mut self, path: &Path) {
        match self.rewritten(path) {
            // The system's own error comes from a file system that knows the request.
            Err(e) if e.kind() == io::ErrorKind::Unsupported && self.physical && e.raw_os_error().is_some() => {
                eprintln!(
                    "cannot rewrite '{}' with -P: feature 'physical_rewrite' is not enabled in its pool, which \
                     'zpool set feature@physical_rewrite=enabled' does",
                    path.display()
                );
                (self.failed, self.refused) = (true, true);
            }
            Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                eprintln!("cannot rewrite '{}': it is not on a file system of weir", path.display());
                self.failed = true;
            }
            Err(e) => self.fail("rewrite", path, &e),
            Ok(()) if self.verbose => print(&format!("{}\n", path.display())),
            Ok(()) => {}
        }
    }

    fn rewritten(&self, path: &Path) -> io::Result<()> {
        let file = host::open_to_rewrite(path)?;
        let size = file.metadata()?.len();
        let ask = if self.physical { host::rewrite_file_physically } else { host::rewrite_file };
        parts(size, self.off, self.len).try_for_each(|(off, len)| ask(&file, off, len))
    }

    /// Reports a failure; the other files are still done.
    fn fail(&mut self, what: &str, path: &Path, e: &io::Error) {
        eprintln!("cannot {what} '{}': {e}", path.display());
        self.failed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_range_within_the_file() {
        let all = |size, off, len| parts(size, off, len).collect::<Vec<_>>();
        assert_eq!(all(0, 0, 0), []);
        assert_eq!(all(100, 0, 0), [(0, 100)]);
        assert_eq!(all(100, 40, 20), [(40, 20)]);
        assert_eq!(all(100, 40, u64::MAX), [(40, 60)]);
        assert_eq!(all(100, 100, 5), []);
        assert_eq!(all(2 * PART + 1, 1, 0), [(1, PART), (1 + PART, PART)]);
        assert_eq!(all(2 * PART + 2, 1, 0), [(1, PART), (1 + PART, PART), (1 + 2 * PART, 1)]);
    }
}
