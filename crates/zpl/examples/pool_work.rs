//! Imports the pool on some images for writing, runs operations in every writable file system of
//! it, and exports it: `pool_work [ROUNDS] IMAGE...`. For a later check of the written data. Failed
//! operations are printed; the exit status is that of the pool itself.

use std::rc::Rc;

use base::Result;
use bdev::{Buf, Bytes};
use host::{Engine, EngineConfig, HostDev, OpenOpts};
use rt::Rt;
use spa::{EngineOpts, ImportOpts, Pool, scan};
use zpl::{Cred, MountOpts, Zfs};

fn devices(rt: &Rt, files: &[String]) -> Result<Vec<Rc<dyn bdev::BlockDev>>> {
    files.iter().map(|f| HostDev::open(rt, f, OpenOpts { write: true, ..OpenOpts::default() })).collect()
}

fn noise(len: usize, seed: u64) -> Bytes {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut b = Buf::for_overwrite(len);
    for c in b.chunks_mut(8) {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let word = if seed.is_multiple_of(3) { x & 0xff } else { x ^ x >> 29 };
        c.copy_from_slice(&word.to_le_bytes()[..c.len()]);
    }
    b.freeze()
}

async fn work(fs: &Zfs, round: u64) -> Result<()> {
    let cred = Cred::new(0, 0);
    let dir = fs.mkdir(fs.root(), format!("work{round}").as_bytes(), 0o755, &cred).await?.obj;
    for n in 0..60u64 {
        let name = format!("file{n}");
        let obj = fs.create(dir, name.as_bytes(), 0o644, &cred, true).await?.obj;
        let len = [100, 5000, 70_000, 300_000][n as usize % 4] + n as usize * 7;
        fs.write(obj, 0, vec![noise(len, n)], false).await?;
        if n % 5 == 0 {
            fs.write(obj, len as u64 / 2, vec![noise(1000, n + 1)], false).await?;
        }
    }
    fs.sync_all().await?;
    for n in (0..60u64).step_by(3) {
        fs.unlink(dir, format!("file{n}").as_bytes()).await?;
    }
    // Files that were there before: overwrite, cut, remove.
    for entry in fs.readdir(fs.root(), 0, 1000).await? {
        let Ok(attr) = fs.getattr(entry.obj).await else { continue };
        if attr.kind != zpl::FileKind::Dir {
            continue;
        }
        let Ok(files) = fs.readdir(entry.obj, 0, 1000).await else { continue };
        for (i, file) in files.iter().enumerate().filter(|(_, f)| f.name != b"." && f.name != b"..") {
            let Ok(attr) = fs.getattr(file.obj).await else { continue };
            if attr.kind != zpl::FileKind::File || entry.name.starts_with(b"work") {
                continue;
            }
            let result = match i % 4 {
                0 => fs.write(file.obj, attr.size / 3, vec![noise(9000, attr.size)], false).await.map(|_| ()),
                1 => fs.truncate(file.obj, attr.size / 2).await,
                2 => fs.unlink(entry.obj, &file.name).await,
                _ => Ok(()),
            };
            if let Err(e) = result {
                println!("  {}/{}: {e}", String::from_utf8_lossy(&entry.name), String::from_utf8_lossy(&file.name));
            }
        }
    }
    fs.sync_all().await
}

fn main() -> Result<()> {
    let mut files: Vec<String> = std::env::args().skip(1).collect();
    let rounds = files.first().and_then(|f| f.parse::<u64>().ok());
    if rounds.is_some() {
        files.remove(0);
    }
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    engine.block_on(async {
        for candidate in scan(devices(&rt, &files)?).await {
            let import = ImportOpts { force: true, ..ImportOpts::default() };
            let pool = Pool::import(rt.clone(), candidate, import, EngineOpts::for_memory(1 << 30)).await?;
            pool.notices().iter().for_each(|n| println!("{n}"));
            for round in 0..rounds.unwrap_or(1) {
                for ds in pool.dsl().all() {
                    let opts = MountOpts { readonly: false, ..MountOpts::from_props(&ds) };
                    let fs = match Zfs::open(&ds, opts).await {
                        Ok(fs) => fs,
                        Err(e) => {
                            println!("{}: {e}", ds.name());
                            continue;
                        }
                    };
                    let round = rt.wall_clock().secs as u64 * 100 + round;
                    match work(&fs, round).await {
                        Ok(()) => println!("{}: written", ds.name()),
                        Err(e) => println!("{}: {e}", ds.name()),
                    }
                    fs.unmount().await?;
                }
            }
            pool.sync().await?;
            pool.export().await?;
            println!("{}: exported", pool.name());
        }
        Ok(())
    })
}
