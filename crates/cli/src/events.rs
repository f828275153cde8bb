//! `zpool events`: the events of pools and devices, in OpenZFS's layout.

use admin::request::{Events, EventsClear};
use admin::view::EventView;

use crate::opts::Parsed;
use crate::{Done, Fail, ask, ask_each, print, print_to_reader};

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Runs `zpool events ARGS`.
pub fn run(p: &Parsed) -> Done {
    let pool = match p.operands.as_slice() {
        [] => None,
        [_] if p.has('c') => return Err(Fail::Usage("-c cannot be used with a pool".into(), "events")),
        [pool] => Some(pool.clone()),
        _ => return Err(Fail::Usage("too many arguments".into(), "events")),
    };
    if p.has('c') && ['v', 'H', 'f'].iter().any(|letter| p.has(*letter)) {
        return Err(Fail::Usage("invalid options combined with -c".into(), "events"));
    }
    if p.has('c') {
        let n: u64 = ask(&EventsClear)?;
        print(&format!("cleared {n} events\n"));
        return Ok(());
    }
    ask_each(&Events { pool, follow: p.has('f') }, &mut |e| match e {
        Some(e) => print_to_reader(&event(&e, p.has('H'), p.has('v'))),
        None => p.has('H') || print_to_reader(&format!("{:<30} {}\n", "TIME", "CLASS")),
    })
}

/// An event: its line, with `verbose` followed by its payload.
pub fn event(e: &EventView, scripted: bool, verbose: bool) -> String {
    let t = host::local_time(e.secs);
    let month = MONTHS[(t.month as usize).clamp(1, 12) - 1];
    let time =
        format!("{month} {:>2} {:04} {:02}:{:02}:{:02}.{:09}", t.day, t.year, t.hour, t.minute, t.second, e.nanos);
    let mut out = format!("{time}{}{}\n", if scripted { '\t' } else { ' ' }, e.class);
    if verbose {
        e.detail.iter().for_each(|line| out += &format!("{line}\n"));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_openzfs() {
        let e = EventView {
            eid: 7,
            class: "sysevent.fs.zfs.scrub_start".into(),
            secs: 1_391_768_625,
            nanos: 5,
            pool: "tank".into(),
            detail: vec!["        version = 0x0".into()],
        };
        let plain = event(&e, false, false);
        let (time, class) = plain.split_at(30);
        // The hour depends on where the test runs.
        assert!(time.starts_with("Feb ") && time.contains(" 2014 ") && time.ends_with(":45.000000005"), "{time}");
        assert_eq!(class, " sysevent.fs.zfs.scrub_start\n");
        assert!(event(&e, true, false).contains("\tsysevent"));
        assert!(event(&e, false, true).ends_with("start\n        version = 0x0\n\n"));
    }
}
