//! The cost of a trace event without a listener, and with a listener that counts: `cargo bench -p
//! rt --bench trace`.
#![allow(missing_docs)]

use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Instant;

use base::Nanos;
use rt::trace::{Event, Groups};
use sim::{Sim, SimConfig};

const N: u32 = 20_000_000;

fn per_event(f: impl Fn(u64)) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for i in 0..u64::from(N) {
            f(black_box(i));
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(N));
    }
    best
}

fn main() {
    let sim = Sim::new(SimConfig::default());
    let rt = sim.rt();
    let event =
        |i: u64| Event::Done { leaf: i, class: 3, write: true, len: i, total: Nanos(i), disk: Nanos(i), ok: true };
    let empty = per_event(|_| {});
    let probe = |i: u64| rt.trace(Groups::IO, || event(i));
    println!("loop alone           {empty:.2} ns");
    println!("nobody listens       {:.2} ns", per_event(probe));
    let other = rt.tracer().listen(Groups::TXG, |_, _| {});
    println!("others are listened to {:.2} ns", per_event(probe));
    drop(other);
    let count: Rc<Cell<u64>> = Rc::default();
    let c = count.clone();
    let all = rt.tracer().listen(Groups::ALL, move |_, e| {
        if let Event::Done { len, .. } = e {
            c.set(c.get().wrapping_add(*len));
        }
    });
    println!("one listener counts  {:.2} ns ({})", per_event(probe), count.get());
    drop(all);
}
