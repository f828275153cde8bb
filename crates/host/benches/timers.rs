//! How late timers of 300 us fire, on each driver of this machine: `cargo bench -p openweir-host
//! --bench timers`.
#![allow(missing_docs)]

use base::Nanos;
use host::{BackendChoice, Engine, EngineConfig};

const TIMERS: usize = 2000;

fn main() {
    for backend in [BackendChoice::Ring, BackendChoice::Threads] {
        let config = EngineConfig { backend, cpu_threads: 1, ..EngineConfig::default() };
        let Ok(engine) = Engine::new(config) else {
            println!("{backend:?}: not on this machine");
            continue;
        };
        let rt = engine.rt();
        let mut late_ns = engine.block_on(async move {
            let mut late_ns = Vec::with_capacity(TIMERS);
            for _ in 0..TIMERS {
                let at = rt.now() + Nanos::from_us(300);
                rt.sleep_until(at).await;
                late_ns.push(rt.now().since(at).0);
            }
            late_ns
        });
        late_ns.sort_unstable();
        let us = |part: usize| late_ns[(TIMERS - 1) * part / 100] as f64 / 1000.0;
        println!(
            "{}: late by {:.1} us at best, {:.1} in the middle, {:.1} at p99",
            engine.backend(),
            us(0),
            us(50),
            us(99)
        );
    }
}
