//! What operations cost in CPU time, on a pool in memory: `cargo run --release -p zpl --example speed`.

use std::rc::Rc;
use std::time::{Duration, Instant};

use base::{ObjectId, WallTime};
use bdev::{BlockDev, Bytes, MemDev};
use dsl::props::PropValue;
use host::{Engine, EngineConfig};
use spa::{DevSpec, EngineOpts, Pool, PoolSpec};
use zpl::{Cred, FsCreateProps, InitOwner, MountOpts, RenameFlags, SetAttr, SetTime, SetXattr, Zfs, init_fs};

const FILES: u64 = 20_000;
const OVERWRITES: u64 = 100_000;

fn report(what: &str, n: u64, fed: Duration, all: Duration) {
    let us = |d: Duration| d.as_secs_f64() * 1e6 / n as f64;
    println!("{what:32} {:8.2} us each, {:8.2} us with its sync", us(fed), us(all));
}

fn main() -> base::Result<()> {
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    engine.block_on(async {
        let dev: Rc<dyn BlockDev> = Rc::new(MemDev::new(&rt, 4 << 30));
        let owner = InitOwner { uid: 0, gid: 0, mode: 0o755, time: WallTime { secs: 1_700_000_000, nanos: 0 } };
        let spec = PoolSpec {
            name: "bench".into(),
            devices: vec![DevSpec { dev, is_disk: false }],
            ashift: Some(12),
            features: ondisk::feature::default_features(),
            comment: None,
            fs_props: [("recordsize", 8192), ("xattr", 2), ("compression", 2)]
                .map(|(k, v)| (k.to_string(), PropValue::Num(v)))
                .to_vec(),
            init: init_fs(owner, FsCreateProps::default()),
        };
        let pool = Pool::create(rt.clone(), spec, EngineOpts::for_memory(4 << 30)).await?;
        let ds = pool.dsl().find("bench")?;
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await?;
        let (root, cred) = (fs.root(), Cred::new(0, 0));
        let dir = fs.mkdir(root, b"files", 0o755, &cred).await?.obj;

        let name = |i: u64| format!("file-{i:06}").into_bytes();
        let start = Instant::now();
        for i in 0..FILES {
            fs.create(dir, &name(i), 0o644, &cred, true).await?;
        }
        let fed = start.elapsed();
        pool.sync().await?;
        report("create", FILES, fed, start.elapsed());

        let start = Instant::now();
        let small = Bytes::copy_from(&[7; 1000]);
        let mut ids: Vec<ObjectId> = Vec::new();
        for i in 0..FILES {
            let obj = fs.lookup(dir, &name(i)).await?.obj;
            fs.open_file(obj).await?;
            fs.write(obj, 0, vec![small.clone()], false).await?;
            fs.release(obj).await;
            ids.push(obj);
        }
        let fed = start.elapsed();
        pool.sync().await?;
        report("lookup, open, write 1000, close", FILES, fed, start.elapsed());

        let start = Instant::now();
        for &obj in &ids {
            fs.getattr(obj).await?;
        }
        report("getattr", FILES, start.elapsed(), start.elapsed());
        let start = Instant::now();
        for i in 0..FILES {
            fs.lookup(dir, &name(i)).await?;
        }
        report("lookup", FILES, start.elapsed(), start.elapsed());
        let start = Instant::now();
        let mut cookie = 0;
        loop {
            let list = fs.readdirplus(dir, cookie, 200).await?;
            let Some(last) = list.last() else { break };
            cookie = last.entry.next_cookie;
        }
        report("readdirplus, one entry", FILES, start.elapsed(), start.elapsed());
        let start = Instant::now();
        for &obj in &ids {
            let mtime = Some(SetTime::At(WallTime { secs: 5, nanos: 0 }));
            fs.setattr(obj, SetAttr { mtime, ..SetAttr::default() }).await?;
        }
        let fed = start.elapsed();
        pool.sync().await?;
        report("setattr", FILES, fed, start.elapsed());
        let start = Instant::now();
        for &obj in &ids {
            fs.setxattr(obj, b"user.a", b"value", SetXattr::Any).await?;
        }
        let fed = start.elapsed();
        pool.sync().await?;
        report("setxattr", FILES, fed, start.elapsed());
        let start = Instant::now();
        for i in 0..FILES {
            fs.rename(dir, &name(i), root, &name(i), RenameFlags::default()).await?;
        }
        let fed = start.elapsed();
        pool.sync().await?;
        report("rename", FILES, fed, start.elapsed());
        let start = Instant::now();
        for i in 0..FILES {
            fs.unlink(root, &name(i)).await?;
        }
        let fed = start.elapsed();
        pool.sync().await?;
        report("unlink", FILES, fed, start.elapsed());

        let f = fs.create(root, b"big", 0o644, &cred, true).await?.obj;
        let mib = Bytes::copy_from(&(0..1 << 20).map(|i: u32| (i * 7 >> 3) as u8).collect::<Vec<u8>>());
        for i in 0..256 {
            fs.write(f, i << 20, vec![mib.clone()], false).await?;
        }
        pool.sync().await?;
        let block = mib.slice(..8192);
        let start = Instant::now();
        for _ in 0..OVERWRITES {
            let at = rt.rng_below(256 << 7) << 13;
            fs.write(f, at, vec![block.clone()], false).await?;
        }
        let fed = start.elapsed();
        pool.sync().await?;
        report("8 KiB overwrite", OVERWRITES, fed, start.elapsed());
        let dn = fs.objset().hold(f).await?;
        let start = Instant::now();
        for _ in 0..OVERWRITES {
            let at = rt.rng_below(256 << 7) << 13;
            let tx = dmu::TxPlan::new(fs.objset()).write(&dn, at, 8192).assign().await?;
            dn.write_bytes(at, block.clone(), &tx).await?;
        }
        let fed = start.elapsed();
        pool.sync().await?;
        report("the same below this layer", OVERWRITES, fed, start.elapsed());
        let start = Instant::now();
        for _ in 0..OVERWRITES {
            fs.read(f, rt.rng_below(256 << 7) << 13, 8192).await?;
        }
        report("8 KiB cached read", OVERWRITES, start.elapsed(), start.elapsed());
        fs.unmount().await?;
        pool.export().await
    })
}
