//! Creates an empty pool on files and exports it: `cargo run -p openweir-spa --example mkpool --
//! POOL FILE...`.

use dsl::Init;
use host::{Engine, EngineConfig, HostDev, OpenOpts};
use spa::{DevSpec, EngineOpts, Pool, PoolSpec};

fn main() -> base::Result<()> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "tank".into());
    let files: Vec<String> = args.collect();
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    engine.block_on(async {
        let mut devices = Vec::new();
        for file in &files {
            let dev = HostDev::open(&rt, file, OpenOpts { write: true, ..OpenOpts::default() })?;
            devices.push(DevSpec { dev, is_disk: false });
        }
        let init: Init = Box::new(|_, _| Box::pin(async { Ok(()) }));
        let spec = PoolSpec {
            version: None,
            name,
            devices: devices.into(),
            ashift: None,
            features: ondisk::feature::features_of_2_1(),
            comment: None,
            fs_props: Vec::new(),
            init,
        };
        let pool = Pool::create(rt.clone(), spec, EngineOpts::for_memory(1 << 30)).await?;
        pool.export().await
    })
}
