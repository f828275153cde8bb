//! `zpool wait` and `zfs wait`: wait until a pool or file system has no more background work of
//! some kinds.

use std::time::{Duration, Instant};

use admin::request::{FsDeleteQueue, PoolActivity};
use admin::view::ActivityView;
use base::{Error, ErrorKind};

use crate::opts::Parsed;
use crate::{Done, Fail, ask, print};

/// The activities, in the order of the columns.
const KINDS: [&str; 9] =
    ["discard", "free", "initialize", "replace", "remove", "resilver", "scrub", "trim", "raidz_expand"];
/// Interval of the requests to the daemon.
const PERIOD: Duration = Duration::from_millis(200);

/// Runs `zpool wait ARGS`.
pub fn run(p: &Parsed) -> Done {
    if p.has('T') {
        return Err(Error::unsupported("cannot wait: weir prints no time stamps there (-T)").into());
    }
    let (pool, interval) = match p.operands.as_slice() {
        [] => return Err(Fail::Usage("missing 'pool' argument".into(), "wait")),
        [pool] => (pool, None),
        [pool, seconds] => match seconds.parse::<f64>() {
            Ok(s) if (0.1..=86_400.0).contains(&s) => (pool, Some(Duration::from_secs_f64(s))),
            _ => return Err(Fail::Usage(format!("invalid interval '{seconds}'"), "wait")),
        },
        _ => return Err(Fail::Usage("too many arguments".into(), "wait")),
    };
    let mut kinds: Vec<&str> = Vec::new();
    for kind in p.values('t').flat_map(|v| v.split(',')) {
        let known = KINDS.iter().find(|k| **k == kind);
        kinds.push(known.ok_or_else(|| Fail::Usage(format!("invalid activity '{kind}'"), "wait"))?);
    }
    if kinds.is_empty() {
        kinds = KINDS.to_vec();
    }
    let mut next = Instant::now();
    let mut first = true;
    loop {
        let mut all: Vec<ActivityView> = match ask(&PoolActivity { pool: pool.clone() }) {
            // The pool was exported or destroyed meanwhile.
            Err(Fail::Error(e)) if !first && e.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        all.retain(|a| kinds.contains(&a.name.as_str()));
        let busy = all.iter().any(|a| a.busy);
        if let Some(interval) = interval.filter(|_| Instant::now() >= next) {
            if first && !p.has('H') {
                print(&row(all.iter().map(|a| a.name.clone()), false));
            }
            let number = |a: &ActivityView| match (a.busy, p.has('p')) {
                (false, false) => "-".to_string(),
                (_, true) => a.left.to_string(),
                _ => admin::view::fmt::bytes(a.left),
            };
            print(&row(all.iter().map(number), p.has('H')));
            next = Instant::now() + interval;
        }
        if !busy {
            return Ok(());
        }
        first = false;
        std::thread::sleep(PERIOD);
    }
}

fn row(cells: impl Iterator<Item = String>, scripted: bool) -> String {
    let cells: Vec<String> = cells.map(|c| if scripted { c } else { format!("{c:>10}") }).collect();
    cells.join(if scripted { "\t" } else { "  " }) + "\n"
}

/// Runs `zfs wait ARGS`.
pub fn delete_queue(p: &Parsed) -> Done {
    if let Some(other) = p.values('t').flat_map(|v| v.split(',')).find(|kind| *kind != "deleteq") {
        return Err(Fail::Usage(format!("invalid activity '{other}'"), "wait"));
    }
    let name = match p.operands.as_slice() {
        [] => return Err(Fail::Usage("missing 'filesystem' argument".into(), "wait")),
        [name] => name,
        _ => return Err(Fail::Usage("too many arguments".into(), "wait")),
    };
    let mut first = true;
    loop {
        match ask(&FsDeleteQueue { name: name.clone() }) {
            Ok(0) => return Ok(()),
            // It went meanwhile.
            Err(Fail::Error(e)) if !first && e.kind() == ErrorKind::NotFound => return Ok(()),
            other => other.map(drop)?,
        }
        first = false;
        std::thread::sleep(PERIOD);
    }
}

/// Waits until the pool has no more work of these kinds, or is not imported any more.
pub fn until_idle(pool: &str, kinds: &[&str]) -> Done {
    loop {
        let all: Vec<ActivityView> = match ask(&PoolActivity { pool: pool.to_string() }) {
            Err(Fail::Error(e)) if e.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        if !all.iter().any(|a| a.busy && kinds.contains(&a.name.as_str())) {
            return Ok(());
        }
        std::thread::sleep(PERIOD);
    }
}
