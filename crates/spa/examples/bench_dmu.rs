//! Raw speed of the engine below the file layer: `cargo run --release -p spa --example bench_dmu -- FILE [MiB]`.

use bdev::{Buf, Bytes};
use dmu::{ObjSpec, TxPlan};
use host::{Engine, EngineConfig, HostDev, OpenOpts};
use ondisk::object_type::ObjectType;
use spa::{DevSpec, EngineOpts, Pool, PoolSpec};
use std::time::Instant;

fn main() -> base::Result<()> {
    let mut args = std::env::args().skip(1);
    let file = args.next().expect("a file");
    let mib: u64 = args.next().and_then(|s| s.parse().ok()).unwrap_or(1024);
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    engine.block_on(async {
        let dev = HostDev::open(&rt, &file, OpenOpts { write: true, ..OpenOpts::default() })?;
        let spec = PoolSpec {
            name: "bench".into(),
            devices: vec![DevSpec { dev, is_disk: false }],
            ashift: None,
            features: ondisk::feature::default_features(),
            comment: None,
            fs_props: Vec::new(),
            init: Box::new(|_, _| Box::pin(async { Ok(()) })),
        };
        let mut opts = EngineOpts::for_memory(4 << 30);
        opts.arc_max = 512 << 20;
        opts.txg.dirty_data_max = 256 << 20;
        let pool = Pool::create(rt.clone(), spec, opts).await?;
        let os = pool.dsl().find("bench")?.objset().await?;
        // How long the engine thread keeps others waiting.
        let gap = std::rc::Rc::new(std::cell::Cell::new(0u128));
        {
            let (gap, rt2) = (gap.clone(), rt.clone());
            rt.spawn("ticker", async move {
                let mut last = Instant::now();
                loop {
                    rt2.yield_now().await;
                    gap.set(gap.get().max(last.elapsed().as_micros()));
                    last = Instant::now();
                }
            });
        }
        let mut block = Buf::zeroed(128 << 10);
        let mut x = 1u64;
        for c in block.chunks_exact_mut(8) {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            c.copy_from_slice(&x.to_le_bytes());
        }
        let tx = TxPlan::new(&os).create(1).assign().await?;
        let dn = os.alloc(ObjSpec::new(ObjectType::PLAIN_FILE, 128 << 10), &tx).await?;
        let small = os.alloc(ObjSpec::new(ObjectType::PLAIN_FILE, 8 << 10), &tx).await?;
        drop(tx);
        let start = Instant::now();
        let n = mib * 8;
        for i in 0..n {
            let mut b = Buf::for_overwrite(128 << 10);
            b.copy_from_slice(&block);
            b[..8].copy_from_slice(&i.to_le_bytes());
            let tx = TxPlan::new(&os).write(&dn, i << 17, 128 << 10).assign().await?;
            dn.write_bytes(i << 17, b.freeze(), &tx).await?;
            drop(tx);
            rt.yield_now().await;
        }
        let fed = start.elapsed();
        pool.sync().await?;
        let t = start.elapsed().as_secs_f64();
        println!(
            "seq write {mib} MiB: {:.0} MB/s ({:.2} s, fed in {:.2} s)",
            (mib << 20) as f64 / 1e6 / t,
            t,
            fed.as_secs_f64()
        );
        let start = Instant::now();
        let mut sum = 0u64;
        for i in 0..n {
            dn.prefetch((i + 8) << 17, 128 << 10);
            let b: Bytes = dn.read_block(i).await?;
            sum += u64::from(b[0]);
        }
        let t = start.elapsed().as_secs_f64();
        println!("longest turn so far {} us", gap.replace(0));
        println!("seq read: {:.0} MB/s (sum {sum})", (mib << 20) as f64 / 1e6 / t);
        // 8 KiB: fill, then overwrite at random.
        let blocks = (mib << 20) / 4 / 8192;
        for i in 0..blocks {
            let tx = TxPlan::new(&os).write(&small, i << 13, 8 << 10).assign().await?;
            small.write(i << 13, &block[..8192], &tx).await?;
        }
        pool.sync().await?;
        println!("longest turn so far {} us", gap.replace(0));
        let start = Instant::now();
        let ops = 200_000u64;
        let mut worst = 0u128;
        for _ in 0..ops {
            let at = rt.rng_below(blocks) << 13;
            let one = Instant::now();
            let tx = TxPlan::new(&os).write(&small, at, 8 << 10).assign().await?;
            small.write(at, &block[64..8192 + 64], &tx).await?;
            drop(tx);
            rt.yield_now().await;
            worst = worst.max(one.elapsed().as_micros());
        }
        pool.sync().await?;
        let t = start.elapsed().as_secs_f64();
        println!("8 KiB overwrite: {:.0}/s, worst {worst} us, longest turn {} us", ops as f64 / t, gap.get());
        pool.export().await
    })
}
