//! Pools for tests: a small one that is part of the repository, and the reference pools where they
//! are at hand.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ondisk::bytes::{le32, le64};

/// A folder that goes away with this value.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let dir = std::env::temp_dir().join(format!("zdbtest-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A fixture, decompressed.
pub fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let packed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut out = Vec::new();
    zstd::Decoder::new(&packed[..]).unwrap().read_to_end(&mut out).unwrap();
    out
}

/// The extents of a packed image: its size, then where each run of bytes that are not all zero
/// begins, and the bytes.
pub fn extents(packed: &[u8]) -> (u64, Vec<(u64, Vec<u8>)>) {
    let size = le64(packed, 0);
    let mut out = Vec::new();
    let mut at = 8;
    while at < packed.len() {
        let (off, len) = (le64(packed, at), le32(packed, at + 8) as usize);
        out.push((off, packed[at + 12..at + 12 + len].to_vec()));
        at += 12 + len;
    }
    (size, out)
}

/// Writes an image.
pub fn write_image(path: &Path, size: u64, extents: &[(u64, Vec<u8>)]) {
    let f = std::fs::File::create(path).unwrap();
    f.set_len(size).unwrap();
    for (off, b) in extents {
        f.write_all_at(b, *off).unwrap();
    }
}

/// A reference pool, unpacked; `None` with a word on standard error where they are not at hand.
pub fn reference(name: &str) -> Option<(Folder, PathBuf)> {
    let pools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pools");
    if !pools.is_dir() {
        eprintln!("SKIPPED: {} is not there, pool {name} is not compared", pools.display());
        return None;
    }
    let folder = Folder::new(name);
    let tar = Command::new("tar")
        .args(["--zstd", "-xf"])
        .arg(pools.join(format!("{name}.tar.zst")))
        .arg("-C")
        .arg(folder.path())
        .status()
        .unwrap();
    assert!(tar.success(), "{name} does not unpack");
    let dir = folder.path().join(name);
    Some((folder, dir))
}

/// Runs the command; its status and output.
pub fn zdb(args: &[&str]) -> (i32, String) {
    let args: Vec<String> = args.iter().map(|s| s.to_string()).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = zdb::main(&args, &mut out, &mut err);
    let text = String::from_utf8_lossy(&out).into_owned() + &String::from_utf8_lossy(&err);
    (code, text)
}

/// Fails with the first line that differs.
pub fn same_text(what: &str, have: &str, want: &str) {
    for (i, (h, w)) in have.lines().zip(want.lines()).enumerate() {
        assert_eq!(h, w, "{what} line {}", i + 1);
    }
    assert_eq!(have.lines().count(), want.lines().count(), "{what}: number of lines");
}
