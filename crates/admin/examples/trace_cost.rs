//! The cost of full tracing: `cargo run --release -p openweir-admin --example trace_cost [ROUNDS]`.
//!
//! The same study runs in turn without a listener and with all six instruments of `weir trace`
//! started. The device is modelled, so the time is that of the engine alone: with a real device or
//! clients the share is smaller. With `trace_cost one off|on BLOCK WRITES` it runs once and prints
//! only the count of events, for counts of instructions (`valgrind --tool=callgrind`), which do not
//! depend on other load.

use std::time::Instant;

use admin::pool::trace::Traces;
use base::Result;
use bdev::Bytes;
use lab::throttle::Study;

/// The instruments.
const INSTRUMENTS: [&str; 6] = ["dirty", "txg", "io", "queue", "delay", "zil"];

/// Seconds of one run, and the events counted.
fn run(block: u64, writes: u64, traced: bool) -> Result<(f64, u64)> {
    let study = Study { bandwidth: 2 << 30, block, mem: 4 << 30, ..Study::default() };
    let stage = study.stage()?;
    let files = stage.sim.block_on(stage.files(4))?;
    let (traces, rt) = (Traces::default(), stage.sim.rt());
    let wanted = if traced { &INSTRUMENTS[..] } else { &[] };
    let listening: Vec<u64> = wanted.iter().map(|what| traces.start(&rt, what)).collect::<Result<_>>()?;
    let (fs, pool) = (stage.fs.clone(), stage.pool.clone());
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
    // "dirty", "txg" and "queue" share groups: an event counts once.
    let heard = |i: &usize| traces.take(rt.now(), listening[*i], true).map_or(0, |v| v.events);
    Ok((seconds, [1, 2, 4].iter().filter(|i| **i < listening.len()).map(heard).sum()))
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [one, on, block, writes] = args.as_slice()
        && one == "one"
    {
        let number = |s: &String| s.parse::<u64>().unwrap_or(8192);
        println!("{}", run(number(block), number(writes), on == "on")?.1);
        return Ok(());
    }
    let rounds: usize = args.first().and_then(|a| a.parse().ok()).unwrap_or(5);
    for block in [8 << 10, 128 << 10] {
        let (mut off, mut on) = (Vec::new(), Vec::new());
        let (writes, mut events) = ((1u64 << 30) / block, 0);
        for round in 0..2 * rounds {
            // Off, on, on, off: so that drift affects both alike.
            let traced = round % 4 == 1 || round % 4 == 2;
            let (seconds, heard) = run(block, writes, traced)?;
            if traced {
                on.push(seconds);
                events = heard;
            } else {
                off.push(seconds);
            }
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
