//! Advice on the real engine, small: what surely helps is found, what does nothing is left.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use lab::advise::knob::{Change, Kind, changes};
use lab::advise::{Advice, Load, Means, Search, Settings};
use lab::device::Device;
use lab::layout::LayoutSpec;
use lab::workload::Workload;
use spa::EngineOpts;

/// Two settings that these loads do not depend on, and a log device.
fn search(toml: &str, goal: &str, log: bool) -> (Search, u64) {
    let workload = Workload::parse("small.toml", toml).unwrap();
    let layout = workload.pool.layout.clone();
    let now = |kind, name: &str| match (kind, name) {
        (Kind::Tunable, "zfs_txg_timeout") => Some(5),
        (Kind::Tunable, "zfs_delay_scale") => Some(500_000),
        _ => None,
    };
    let layouts: Vec<LayoutSpec> = log.then(|| layout.clone().with_log()).into_iter().collect();
    let memory = workload.pool.memory;
    let settings: Settings = Arc::new(move |changes: &[Change]| {
        let mut opts = EngineOpts::for_memory(memory);
        for change in changes {
            let value: u64 = change.value.parse().unwrap_or(0);
            match change.name.as_str() {
                "zfs_txg_timeout" => opts.txg.txg_timeout = base::Nanos::from_secs(value),
                "zfs_delay_scale" => opts.txg.delay_scale = value,
                _ => {}
            }
        }
        Ok(opts)
    });
    let search = Search {
        what: toml.into(),
        goal: goal.into(),
        names: ("tank".into(), "tank/data".into()),
        changes: changes(&now, &layout, &layouts),
        load: Load::Workload(Box::new(workload), Some(Box::new(Device::of("fixed:50:500").unwrap()))),
        settings,
        first: 0,
        seeds: 3,
    };
    let count = search.changes.len() as u64;
    (search, count)
}

fn run(search: &Search, jobs: usize) -> Advice {
    let mut ended = (0, 0);
    let mut progress = |done, total| ended = (done, total);
    let advice = search.run(Means { jobs, engine: "test", state: None, progress: &mut progress }).unwrap();
    assert!(ended.0 <= ended.1 && ended.0 > 0, "{ended:?}");
    eprintln!("{}", advice.text());
    advice
}

const SLOW: &str = "[pool]\ndevice = 'fixed 5ms 100M'\nmemory = '512M'\n[run]\nseconds = 2\nwarmup = 0\n";

#[test]
fn a_log_device_is_found_for_synchronous_writers() {
    let toml = format!("{SLOW}[[job]]\nthreads = 2\nblock = '4k'\nsize = '1M'\nsync = 'each'\n");
    let (search, count) = search(&toml, "write p99<2ms,throughput", true);
    let advice = run(&search, 2);
    let names: Vec<&str> = advice.changes.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["layout"], "what does not help is left out");
    let only = &advice.changes[0];
    assert_eq!((only.value.as_str(), only.before.as_str()), ("single,log-single", "single"));
    assert!(only.cost.contains("1 more device") && only.lines[0].contains("zpool create"), "{only:?}");
    // 5 ms become 50 us.
    let ops = advice.figures.iter().find(|f| f.name == "ops_per_s").unwrap();
    assert!(ops.then > ops.now * 5.0, "{ops:?}");
    assert_eq!(advice.missed_now, ["write p99<2ms"]);
    assert_eq!(only.needed_for, advice.missed_now);
    // A gain is one of throughput, without what a missed limit counts.
    assert!((advice.gain_percent / 100.0 + 1.0 - ops.then / ops.now).abs() < 0.2 * ops.then / ops.now);
    assert!(advice.missed_then.is_empty() && advice.better == 3 && advice.runs > count);
    // Most of a write's time is that of the log.
    let said = advice.sentences();
    assert!(
        said.len() == 3 && said[0] == "Change layout from single to single,log-single, which is another pool.",
        "{said:?}"
    );
    assert!(
        said[1].starts_with("The limit write p99<2ms, missed now, holds then; operations a second rise"),
        "{said:?}"
    );
    assert!(said[2].starts_with("The reason: ") && said[2].contains(" in place of "), "{said:?}");
    // Whatever runs at once.
    assert_eq!(run(&search, 1), advice);
}

#[test]
fn what_nothing_helps_is_left_as_it_is() {
    // Readers of a cached file at a fixed rate.
    let toml = format!("{SLOW}[[job]]\nthreads = 2\nread = 100\nblock = '4k'\nsize = '1M'\nrate = 'fixed 50'\n");
    let (search, _) = search(&toml, "throughput", true);
    let advice = run(&search, 2);
    assert!(advice.changes.is_empty(), "{advice:?}");
    assert!(advice.text().contains("leave it"), "{}", advice.text());
    let said = advice.sentences();
    assert!(said.len() == 1 && said[0].starts_with("Leave it: "), "{said:?}");
    assert!(advice.figures.iter().all(|f| f.now == f.then));
}

#[test]
fn a_search_without_a_goal_or_changes_is_refused() {
    let (mut search, _) = search(&format!("{SLOW}[[job]]\n"), "fast", false);
    let refused = |search: &Search| {
        let means = Means { jobs: 1, engine: "test", state: None, progress: &mut |_, _| {} };
        search.run(means).unwrap_err().to_string()
    };
    assert!(refused(&search).contains("'fast'"));
    search.goal = "p99".into();
    search.changes.clear();
    assert!(refused(&search).contains("nothing that could be changed"));
}
