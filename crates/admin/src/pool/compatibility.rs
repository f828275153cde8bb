//! `compatibility`: the features that a pool may get, as sets that are known by name or in files.
//!
//! A value is `off` (all), `legacy` (none), or names with commas between them, of which all must
//! allow a feature. A name is that of a file: an absolute path, or in the first of [`LOCAL`], the
//! sets that weir knows ([`compatibility_set`]) and [`SHARED`] that has it. A file lists features,
//! with blanks or commas between them; `#` begins a comment (`zpool-features(7)` of OpenZFS 2.4).
//! Features that are unknown are an error, but not in [`SHARED`]: its files come with a release and
//! name what other systems have.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use base::{Error, Result};
use ondisk::feature::{FeatureId, compatibility_set};

/// Files of the machine.
const LOCAL: &str = "/etc/zfs/compatibility.d";
/// Files of the system's packages.
const SHARED: &str = "/usr/share/zfs/compatibility.d";
/// Bytes of a file at most, as in OpenZFS.
const FILE_MAX: u64 = 16 << 10;

/// The features that a value of the property allows.
///
/// # Errors
/// `Invalid` for a name that is no set, and a file that cannot be read or names no known feature.
pub(crate) fn allowed_features(value: &str) -> Result<Vec<FeatureId>> {
    allowed_from(value, Path::new(LOCAL), Path::new(SHARED))
}

fn allowed_from(value: &str, local: &Path, shared: &Path) -> Result<Vec<FeatureId>> {
    let mut out: Option<Vec<FeatureId>> = None;
    for name in value.split(',') {
        let set = set_of(name, local, shared).map_err(|e| e.at(format!("compatibility={value}")))?;
        out = Some(match out {
            None => set,
            Some(old) => old.into_iter().filter(|f| set.contains(f)).collect(),
        });
    }
    Ok(out.unwrap_or_default())
}

fn set_of(name: &str, local: &Path, shared: &Path) -> Result<Vec<FeatureId>> {
    if name.starts_with('/') {
        return read(Path::new(name), true);
    }
    let is_word = name == "off" || name == "legacy";
    // A name leads to no other folder.
    let at = |folder: &Path| -> Option<PathBuf> {
        let is_name = !is_word && !name.is_empty() && !name.starts_with('.') && !name.contains('/');
        is_name.then(|| folder.join(name)).filter(|path| path.is_file())
    };
    if let Some(path) = at(local) {
        return read(&path, true);
    }
    if let Some(set) = compatibility_set(name) {
        return Ok(set);
    }
    match at(shared) {
        Some(path) => read(&path, false),
        None => Err(Error::invalid(format!(
            "'{name}' is no set of features: it must be off, legacy, a name such as openzfs-2.1-linux or that of a file in {LOCAL}, or an absolute path"
        ))),
    }
}

fn read(path: &Path, is_strict: bool) -> Result<Vec<FeatureId>> {
    let bad = |why: String| Error::invalid(format!("the file '{}' {why}", path.display()));
    // Opening a pipe would wait for its other end.
    let kind = path.metadata().map_err(|e| bad(format!("cannot be read: {e}")))?;
    if !kind.is_file() {
        return Err(bad("is no regular file".into()));
    }
    let mut text = Vec::new();
    let file = File::open(path).and_then(|f| f.take(FILE_MAX + 1).read_to_end(&mut text));
    file.map_err(|e| bad(format!("cannot be read: {e}")))?;
    if text.len() as u64 > FILE_MAX {
        return Err(bad(format!("has more than {FILE_MAX} bytes")));
    }
    let text = String::from_utf8(text).map_err(|_| bad("is no text".into()))?;
    parse(&text, is_strict).map_err(|unknown| bad(format!("names '{unknown}', which is no feature")))
}

/// The features that a file lists, in the order of their table; or the first unknown one.
fn parse(text: &str, is_strict: bool) -> std::result::Result<Vec<FeatureId>, String> {
    let words = text.lines().flat_map(|line| {
        let listed = line.split_once('#').map_or(line, |(before, _)| before);
        listed.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty())
    });
    let mut out = Vec::new();
    for word in words {
        match FeatureId::lookup(word) {
            Some(id) => out.push(id),
            None if is_strict => return Err(word.to_string()),
            None => {}
        }
    }
    out.sort_unstable();
    out.dedup();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use FeatureId::{Bookmarks, LargeBlocks, Lz4Compress};
    use host::TempDir;

    use super::*;

    #[test]
    fn files_are_parsed() {
        let text = "# all of it\nlz4_compress, bookmarks\tlz4_compress#large_blocks\n\n,\nlarge_blocks";
        assert_eq!(parse(text, true), Ok(vec![Lz4Compress, Bookmarks, LargeBlocks]));
        assert_eq!(parse("lz4_compress lz5", true), Err("lz5".into()));
        assert_eq!(parse("lz4_compress lz5", false), Ok(vec![Lz4Compress]));
        assert_eq!(parse("#", true), Ok(vec![]));
    }

    #[test]
    fn names_lead_to_files_and_known_sets() {
        let dir = TempDir::new("compatibility").unwrap();
        let (local, shared) = (dir.join("local"), dir.join("shared"));
        std::fs::create_dir(&local).unwrap();
        std::fs::create_dir(&shared).unwrap();
        let of = |value: &str| allowed_from(value, &local, &shared).map_err(|e| e.to_string());
        let known = compatibility_set("openzfs-2.1-linux").unwrap();
        for folder in [&local, &shared] {
            std::fs::write(folder.join("mine"), "lz4_compress lz5 bookmarks").unwrap();
        }
        // What the machine's own file says counts, and it may name no unknown feature.
        assert!(of("mine").unwrap_err().contains("'lz5', which is no feature"));
        std::fs::remove_file(local.join("mine")).unwrap();
        assert_eq!(of("mine"), Ok(vec![Lz4Compress, Bookmarks]));
        assert_eq!(of("openzfs-2.1-linux"), Ok(known.clone()));
        assert_eq!(of("openzfs-2.1-linux,mine"), Ok(vec![Lz4Compress, Bookmarks]));
        std::fs::write(shared.join("openzfs-2.1-linux"), "bookmarks").unwrap();
        assert_eq!(of("openzfs-2.1-linux"), Ok(known), "a package does not change the sets");
        std::fs::write(local.join("openzfs-2.1-linux"), "bookmarks").unwrap();
        assert_eq!(of("openzfs-2.1-linux"), Ok(vec![Bookmarks]));
        std::fs::write(local.join("off"), "").unwrap();
        assert_eq!(of("off"), Ok(compatibility_set("off").unwrap()));
        assert_eq!(of("legacy,off"), Ok(vec![]));
        let path = dir.join("own");
        assert!(of(path.to_str().unwrap()).unwrap_err().contains("cannot be read"));
        std::fs::write(&path, vec![b' '; FILE_MAX as usize]).unwrap();
        assert_eq!(of(path.to_str().unwrap()), Ok(vec![]));
        std::fs::write(&path, vec![b' '; FILE_MAX as usize + 1]).unwrap();
        assert!(of(path.to_str().unwrap()).unwrap_err().contains("more than"));
        std::fs::write(&path, [0xff]).unwrap();
        assert!(of(path.to_str().unwrap()).unwrap_err().contains("no text"));
        assert!(of(dir.path().to_str().unwrap()).unwrap_err().contains("no regular file"));
        for bad in ["", "nonsense", "../shared/mine", ".", "mine,", "shared/mine"] {
            assert!(of(bad).unwrap_err().contains("is no set of features"), "{bad}");
        }
    }
}
