//! `weir lab randwrite FILE`: random writes to a file of a real file system.

use std::fmt::Write as _;

use base::Error;
use lab::randwrite::{Params, Report};

use super::study::{number, size};
use super::{histogram, print_report};
use crate::progress::Bar;
use crate::zpool::parse_for;
use crate::{Done, Fail};

/// Runs `weir lab randwrite ARGS`.
pub fn run(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] = &[
        ("size", true, 'z'),
        ("overwrite", false, 'O'),
        ("threads", true, 't'),
        ("block", true, 'b'),
        ("seconds", true, 's'),
        ("sync", false, 'y'),
        ("seed", true, 'S'),
        ("json", false, 'j'),
    ];
    let p = parse_for("lab", args, "z:Ot:b:s:yS:j", long, "randwrite")?;
    let [file] = &p.operands[..] else {
        return Err(Fail::Usage("it takes one file".into(), "randwrite"));
    };
    let bytes = match (p.value('z'), p.has('O')) {
        (Some(_), false) => Some(size(&p, 'z', "size", 0)?),
        (None, true) => None,
        _ => {
            let what = "either --size for a new file, or --overwrite for one whose contents may be lost";
            return Err(Error::invalid(format!("'{file}' needs {what}")).into());
        }
    };
    let params = Params {
        file: file.into(),
        size: bytes,
        threads: number(&p, 't', "threads", 8, 1, 4096)? as u32,
        block: size(&p, 'b', "block", 8 << 10)?,
        seconds: number(&p, 's', "seconds", 30, 1, 86_400)?,
        sync: p.has('y'),
        seed: number(&p, 'S', "seed", 0, 0, u64::MAX)?,
    };
    if !(512..=16 << 20).contains(&params.block) {
        return Err(Error::invalid("--block: a write has 512 bytes to 16M").into());
    }
    let mut bar = Bar::new();
    let report = params.run(&mut |second| bar.show("writing", second, params.seconds))?;
    bar.clear();
    print_report(&p, || serde_json::to_string(&report), || show(&report))
}

fn show(r: &Report) -> String {
    let mut out = String::new();
    let mib = f64::from(1 << 20);
    let _ = writeln!(out, "{} writes, {:.0} a second, {:.1} MiB/s", r.writes, r.iops, r.bytes_per_s / mib);
    let _ = writeln!(
        out,
        "latency p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, max {:.0} us",
        r.latency_p50_us, r.latency_p99_us, r.latency_p999_us, r.latency_max_us
    );
    let seconds: Vec<String> = r.bytes_by_second.iter().map(|b| format!("{:.1}", *b as f64 / mib)).collect();
    let _ = writeln!(out, "MiB in each second: {}\n\n  write latency, us", seconds.join(" "));
    out + &histogram(&r.latency_histogram)
}
