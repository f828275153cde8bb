//! Datasets made, changed, renamed and destroyed over several imports: `cargo run -p openweir-spa
//! --example poolops -- POOL FILE...`.

use dsl::Init;
use dsl::props::PropValue;
use host::{Engine, EngineConfig, HostDev, OpenOpts};
use rt::Rt;
use spa::{DevSpec, EngineOpts, ImportOpts, Pool, PoolSpec, scan};
use std::rc::Rc;

fn init() -> Init {
    Box::new(|_, _| Box::pin(async { Ok(()) }))
}

fn open(rt: &Rt, files: &[String]) -> base::Result<Vec<Rc<dyn bdev::BlockDev>>> {
    files.iter().map(|f| HostDev::open(rt, f, OpenOpts { write: true, ..OpenOpts::default() })).collect()
}

fn main() -> base::Result<()> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "tank".into());
    let files: Vec<String> = args.collect();
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    let opts = EngineOpts::for_memory(1 << 30);
    engine.block_on(async {
        let devices: Vec<DevSpec> = open(&rt, &files)?.into_iter().map(|dev| DevSpec { dev, is_disk: false }).collect();
        let spec = PoolSpec {
            version: None,
            name: name.clone(),
            devices: devices.into(),
            ashift: None,
            features: ondisk::feature::features_of_2_1(),
            comment: Some("made by poolops".into()),
            fs_props: Vec::new(),
            init: init(),
        };
        let pool = Pool::create(rt.clone(), spec, opts.clone()).await?;
        for i in 0..20 {
            let props = vec![
                ("reservation".to_string(), PropValue::Num(1 << 20)),
                ("mountpoint".into(), PropValue::Text("none".into())),
            ];
            pool.dsl().create_fs(&format!("{name}/fs{i}"), if i % 3 == 0 { props } else { Vec::new() }, init()).await?;
        }
        pool.dsl().create_fs(&format!("{name}/fs3/deep"), Vec::new(), init()).await?;
        pool.dsl().rename(&format!("{name}/fs3"), &format!("{name}/fs4/moved")).await?;
        pool.dsl().set_props(&format!("{name}/fs4"), vec![("quota".into(), PropValue::Num(20 << 20))]).await?;
        for i in 5..9 {
            pool.dsl().destroy_fs(&format!("{name}/fs{i}")).await?;
        }
        pool.export().await?;
        drop(pool);
        for round in 0..3 {
            let mut found = scan(open(&rt, &files)?).await;
            let pool = Pool::import(rt.clone(), found.remove(0), ImportOpts::default(), opts.clone()).await?;
            for ds in pool.dsl().all() {
                println!("{} used {} avail {}", ds.name(), ds.dir().phys().used_bytes, ds.available());
            }
            pool.dsl().create_fs(&format!("{name}/round{round}"), Vec::new(), init()).await?;
            pool.dsl().inherit(&format!("{name}/fs12"), "mountpoint", false).await?;
            pool.export().await?;
        }
        Ok(())
    })
}
