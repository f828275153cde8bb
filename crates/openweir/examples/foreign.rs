//! Reads a foreign pool: opens its images without writing to them, lists everything, and reads
//! every file.
//!
//! `cargo run -p openweir --example foreign -- FOLDER|IMAGE...`; without an argument it makes a
//! small pool and reads that.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};

use openweir::{
    CreateOptions, Device, Engine, Error, ErrorKind, FileKind, FileSystem, ImportOptions, OpenOptions, Result,
};

/// The content found.
#[derive(Default, Debug)]
pub struct Found {
    pub datasets: usize,
    pub directories: u64,
    pub files: u64,
    pub bytes: u64,
    /// Read failures, with the reason.
    pub failed: Vec<String>,
}

fn visit(fs: &FileSystem, dir: &Path, found: &mut Found) -> Result<()> {
    for entry in fs.readdir(dir).wait()? {
        use std::os::unix::ffi::OsStrExt;
        let path = dir.join(std::ffi::OsStr::from_bytes(&entry.name));
        match entry.kind {
            FileKind::Dir => {
                found.directories += 1;
                visit(fs, &path, found)?;
            }
            FileKind::File => match read_through(fs, &path) {
                Ok(bytes) => (found.files, found.bytes) = (found.files + 1, found.bytes + bytes),
                Err(e) => found.failed.push(format!("{}: {e}", fs.name())),
            },
            _ => {}
        }
    }
    Ok(())
}

/// Reads a file a megabyte at a time, holes left out; the bytes read.
fn read_through(fs: &FileSystem, path: &Path) -> Result<u64> {
    let file = fs.open(path, OpenOptions::new()).wait()?;
    let (mut at, mut bytes) = (0, 0);
    while let Some(data) = file.next_data(at).wait()? {
        let part = file.read_at(data, 1 << 20).wait()?;
        bytes += part.len() as u64;
        at = data + (1 << 20);
    }
    Ok(bytes)
}

/// Reads the pool on these devices.
pub fn read_pool(devices: Vec<Device>) -> Result<Found> {
    let engine = Engine::start()?;
    let pools = engine.find_pools(devices.clone()).wait()?;
    let Some(first) = pools.first() else {
        return Err(Error::new(ErrorKind::NotFound, "no pool is on these devices"));
    };
    // Nothing is written, so it does not matter whether another host had it last.
    let options = ImportOptions { pool: Some(first.guid.to_string()), force: true, ..ImportOptions::readonly() };
    let pool = engine.import_pool(devices, options).wait()?;
    let mut found = Found::default();
    let mut names: Vec<String> = Vec::new();
    for dataset in pool.datasets().wait()? {
        for snapshot in pool.snapshots(dataset.name.as_str()).wait()? {
            names.push(snapshot.name);
        }
        names.push(dataset.name);
    }
    for name in names {
        found.datasets += 1;
        // Volumes, and encrypted file systems without their key, are only counted.
        match pool.filesystem(name.as_str()).wait() {
            Ok(fs) => visit(&fs, Path::new(""), &mut found)?,
            Err(e) => found.failed.push(format!("{name}: {e}")),
        }
    }
    pool.export().wait()?;
    Ok(found)
}

/// Makes an image in `folder` with a file system, a snapshot and a few files, and reads it as a
/// foreign pool.
pub fn run(folder: &Path) -> Result<Found> {
    let image = folder.join("openweir-foreign.img");
    let engine = Engine::start()?;
    let layout = Device::new_file(&image, 128 << 20);
    let pool = engine.create_pool("theirs", layout, CreateOptions::default()).wait()?;
    pool.create_filesystem("theirs/photos", &[("compression", "zstd")]).wait()?;
    let fs = pool.filesystem("theirs/photos").wait()?;
    fs.mkdir_all("2024/may").wait()?;
    fs.write("2024/may/a.jpg", vec![1; 3_000_000]).wait()?;
    pool.snapshot(&["theirs/photos@first"], false).wait()?;
    fs.write("2024/b.jpg", vec![2; 10_000]).wait()?;
    drop(fs);
    pool.export().wait()?;
    let found = read_pool(Device::in_folder(folder)?);
    let _ = std::fs::remove_file(image);
    found
}

#[allow(dead_code)]
fn main() -> Result<()> {
    let paths: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    let found = match paths.as_slice() {
        [] => {
            let folder = std::env::temp_dir().join(format!("openweir-foreign-{}", std::process::id()));
            std::fs::create_dir_all(&folder).map_err(|e| Error::new(ErrorKind::Io, e.to_string()))?;
            let found = run(&folder);
            let _ = std::fs::remove_dir(&folder);
            found?
        }
        [folder] if folder.is_dir() => read_pool(Device::in_folder(folder)?)?,
        images => read_pool(images.iter().map(Device::path).collect())?,
    };
    println!(
        "{} datasets, {} directories, {} files, {} bytes",
        found.datasets, found.directories, found.files, found.bytes
    );
    found.failed.iter().for_each(|why| println!("{why}"));
    Ok(())
}
