//! Imports a pool read-only and lists its datasets: `cargo run -p openweir-spa --example lspool --
//! FILE...`.

use host::{Engine, EngineConfig, HostDev, OpenOpts};
use spa::{EngineOpts, ImportOpts, Pool, scan};

fn main() -> base::Result<()> {
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    engine.block_on(async {
        let mut devices = Vec::new();
        for file in std::env::args().skip(1) {
            devices.push(HostDev::open(&rt, file, OpenOpts::default())?);
        }
        for found in scan(devices).await {
            let (name, import) = (found.name.clone(), ImportOpts { readonly: true, ..ImportOpts::default() });
            let pool = match Pool::import(rt.clone(), found, import, EngineOpts::for_memory(1 << 30)).await {
                Ok(pool) => pool,
                Err(e) => {
                    println!("{name}: {e}");
                    continue;
                }
            };
            for ds in pool.dsl().all() {
                let what = match ds.objset().await {
                    Ok(os) => format!("{:?}, {} objects", os.os_type(), os.used_objects()),
                    Err(e) => e.to_string(),
                };
                println!("{} refer {} {what}", ds.name(), ds.phys().referenced_bytes);
                for snap in pool.dsl().snapshots(&ds).await? {
                    println!("  {}", snap.name());
                }
            }
        }
        Ok(())
    })
}
