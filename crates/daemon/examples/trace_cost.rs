//! What full tracing costs: `cargo run --release -p daemon --example trace_cost [ROUNDS]`.
//!
//! The same study runs in turn without a listener and with the instrument of `weir trace` on every event. The device is modelled, so the time is that of the engine
//! alone: where a device or clients take time as well the share is smaller.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use base::{Nanos, Result};
use bdev::Bytes;
use daemon::trace::Counting;
use lab::throttle::Study;
use rt::trace::Groups;

/// Seconds of one run, writes, and the events that were heard.
fn run(block: u64, traced: bool) -> Result<(f64, u64, u64)> {
    let study = Study { bandwidth: 2 << 30, block, mem: 4 << 30, ..Study::default() };
    let stage = study.stage()?;
    let files = stage.sim.block_on(stage.files(4))?;
    let counting: Rc<RefCell<Counting>> = Rc::default();
    let c = counting.clone();
    let rt = stage.sim.rt();
    let listening = traced.then(|| rt.tracer().listen(Groups::ALL, move |now, event| c.borrow_mut().note(now, event)));
    let (fs, pool) = (stage.fs.clone(), stage.pool.clone());
    let writes = (1u64 << 30) / block;
    let data = Bytes::zeroed(block as usize);
    let begin = Instant::now();
    stage.sim.block_on(async {
        for n in 0..writes {
            let ino = files[(n % 4) as usize];
            fs.write(ino, n / 4 * block, vec![data.clone()], false).await?;
        }
        pool.sync().await
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    drop(listening);
    Ok((seconds, writes, counting.borrow_mut().take(Nanos(1)).events))
}

fn main() -> Result<()> {
    let rounds: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(5);
    for block in [8 << 10, 128 << 10] {
        let (mut off, mut on) = (Vec::new(), Vec::new());
        let (mut writes, mut events) = (0, 0);
        for _ in 0..rounds {
            off.push(run(block, false)?.0);
            let (seconds, w, e) = run(block, true)?;
            on.push(seconds);
            (writes, events) = (w, e);
        }
        off.sort_by(f64::total_cmp);
        on.sort_by(f64::total_cmp);
        let (a, b) = (off[rounds / 2], on[rounds / 2]);
        println!(
            "{:>4} KiB writes: {:.0}/s untraced, {:.0}/s with {:.2} events a write counted: {:+.2} % (median of {rounds}; least {:+.2} %)",
            block >> 10,
            writes as f64 / a,
            writes as f64 / b,
            events as f64 / writes as f64,
            (b / a - 1.0) * 100.0,
            (on[0] / off[0] - 1.0) * 100.0
        );
    }
    Ok(())
}
