//! `weir lab throttle --html FILE` and `--sweep NAME`: the study of write throttles with a table
//! over seeds and the plots of the article (Leventhal, "The new OpenZFS write throttle", 2013).
//!
//! Each cell is a run of [`throttle::Study`]. The article's hardware and load are not published, so
//! its figures are judged as shapes: the old throttle has several modes of latency and its few
//! writes of a second and more take more time in total than all others; the new one has one mode,
//! and a mean that is smaller.

use base::{Error, Result};
use txg::ThrottlePolicy;
use vdev::Prio;

use crate::study::plot::{Axis, Body, Curve};
use crate::study::{Cell, Plot, Results, Row, Seen, Study};
use crate::throttle::{self, Report};

/// What is swept, besides the two throttles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sweep {
    /// Nothing: the throttles of 2008 and of OpenZFS.
    Policies,
    /// `zfs_dirty_data_max`.
    DirtyDataMax,
    /// `zfs_delay_scale`.
    DelayScale,
    /// `zfs_delay_min_dirty_percent`.
    DelayMinDirtyPercent,
    /// `zfs_vdev_async_write_min_active`.
    AsyncWriteMinActive,
    /// `zfs_vdev_async_write_max_active`.
    AsyncWriteMaxActive,
}

impl Sweep {
    /// By its name.
    pub fn parse(name: &str) -> Result<Sweep> {
        match name {
            "policies" => Ok(Sweep::Policies),
            "dirty_data_max" => Ok(Sweep::DirtyDataMax),
            "delay_scale" => Ok(Sweep::DelayScale),
            "delay_min_dirty_percent" => Ok(Sweep::DelayMinDirtyPercent),
            "async_write_min_active" => Ok(Sweep::AsyncWriteMinActive),
            "async_write_max_active" => Ok(Sweep::AsyncWriteMaxActive),
            _ => Err(Error::invalid(format!(
                "'{name}' cannot be swept: there are policies, dirty_data_max, delay_scale, delay_min_dirty_percent, async_write_min_active and async_write_max_active"
            ))),
        }
    }

    /// The runs: name and study.
    fn cells(self, base: &throttle::Study) -> Vec<(String, throttle::Study)> {
        let settings = base.settings();
        let with = |name: String, change: &dyn Fn(&mut txg::TxgTunables)| {
            let mut study = base.clone();
            let mut txg = settings;
            change(&mut txg);
            study.txg = Some(txg);
            (name, study)
        };
        match self {
            Sweep::Policies => [ThrottlePolicy::Legacy2008, ThrottlePolicy::OpenZfs]
                .map(|policy| (policy.name().to_string(), throttle::Study { policy, ..base.clone() }))
                .to_vec(),
            Sweep::DirtyDataMax => [25, 50, 100, 200]
                .map(|percent| {
                    let max = settings.dirty_data_max * percent / 100;
                    with(format!("{} MiB", max >> 20), &|t| t.dirty_data_max = max)
                })
                .to_vec(),
            Sweep::DelayScale => [50_000, 500_000, 5_000_000]
                .map(|scale| with(format!("scale {scale}"), &|t| t.delay_scale = scale))
                .to_vec(),
            Sweep::DelayMinDirtyPercent => [30, 60, 80]
                .map(|percent| with(format!("from {percent} %"), &|t| t.delay_min_dirty_percent = percent))
                .to_vec(),
            // The defaults are 2 and 10; the least is never above the most.
            Sweep::AsyncWriteMinActive => {
                [1, 2, 5, 10].map(|least| active(base, format!("least {least}"), least, 10.max(least))).to_vec()
            }
            Sweep::AsyncWriteMaxActive => {
                [1, 3, 10, 30].map(|most| active(base, format!("most {most}"), 2.min(most), most)).to_vec()
            }
        }
    }
}

/// A run with so many async writes at the device at least and at most.
fn active(base: &throttle::Study, name: String, least: u32, most: u32) -> (String, throttle::Study) {
    let mut study = base.clone();
    let class = &mut study.queue.classes[Prio::AsyncWrite.index()];
    (class.min_active, class.max_active) = (least, most);
    (name, study)
}

/// The study; policy and seed of `base` are not used for [`Sweep::Policies`].
pub fn study(base: &throttle::Study, sweep: Sweep) -> Result<Study> {
    base.check()?;
    let cells = sweep.cells(base);
    let names: Vec<String> = cells.iter().map(|(name, _)| name.clone()).collect();
    let mut rows = Vec::new();
    for name in &names {
        for (what, value, unit, digits) in [
            ("dirty, steady", "dirty_percent", "%", 1),
            ("clients", "mib_per_s", "MiB/s", 1),
            ("mean latency", "mean_ms", "ms", 2),
            ("99.9th percentile", "p999_ms", "ms", 2),
            ("modes of the latency", "modes", "", 0),
            ("writes at the device", "active", "", 1),
            ("unevenness of the device", "cv_device", "", 3),
            ("share of the time in writes of 1 s and more", "long_percent", "%", 1),
        ] {
            rows.push(Row::of(format!("{name}: {what}"), name.clone(), value, unit).digits(digits));
        }
    }
    if sweep == Sweep::Policies {
        let [old, new] = [ThrottlePolicy::Legacy2008, ThrottlePolicy::OpenZfs].map(|p| p.name());
        let modes = |name: &str, least: f64, most: f64| {
            let row = Row::of(format!("{name}: modes of the latency, as a shape"), name, "modes", "").digits(0);
            row.shape("three modes before, one after", least, most)
        };
        rows.push(modes(old, 2.0, f64::INFINITY));
        rows.push(modes(new, 1.0, 1.0));
        rows.push(Row::of(format!("{old}: time in writes of 1 s and more"), old, "long_percent", "%").shape(
            "110 writes of a second and more outweigh 16,000 others",
            50.0,
            100.0,
        ));
    }
    let cell = |(name, study): (String, throttle::Study)| Cell {
        params: format!("{study:?}"),
        name,
        memory: 512 << 20,
        weight: 1,
        run: Box::new(move |seed| Ok(seen(&throttle::Study { seed, ..study.clone() }.run()?))),
    };
    Ok(Study {
        name: "throttle",
        title: "Write throttles",
        about: format!(
            "{} threads write {} bytes at a time, up to {} MiB a second, to a device of {} MiB a second, for {} s; the first quarter does not count.",
            base.threads,
            base.block,
            base.offered >> 20,
            base.bandwidth >> 20,
            base.seconds
        ),
        rows,
        headings: crate::study::PUBLISHED,
        cells: cells.into_iter().map(cell).collect(),
        draw: Box::new(move |results| draw(results, &names)),
    })
}

fn seen(r: &Report) -> Seen {
    let mut seen = Seen::default();
    seen.set("dirty_percent", r.dirty_percent_steady);
    seen.set("mib_per_s", r.throughput_bytes_per_s / f64::from(1 << 20));
    seen.set("mean_ms", r.latency_mean_us / 1000.0);
    seen.set("p999_ms", r.latency_p999_us / 1000.0);
    seen.set("modes", r.latency_modes as f64);
    // As the device's bytes, without the first quarter.
    let counts = &r.timeline[r.timeline.len() / 4..];
    seen.set("active", counts.iter().map(|b| b.queue_depth).sum::<f64>() / counts.len().max(1) as f64);
    seen.set("cv_device", r.cv_device);
    // The middle of a bucket stands for its writes.
    let time = |from: u64, count: u64| from.max(1) as f64 * 1.5 * count as f64;
    let all: f64 = r.latency_histogram.iter().map(|b| time(b.from_us, b.count)).sum();
    let long = r.latency_histogram.iter().filter(|b| b.from_us >= 1 << 20).map(|b| time(b.from_us, b.count));
    // From 0.0: the sum of nothing is -0.0.
    seen.set("long_percent", long.fold(0.0, |sum, time| sum + time) * 100.0 / all.max(1.0));
    let mut series = |name: &str, points: Vec<(f64, f64)>| seen.series.insert(name.into(), points);
    let buckets = || r.latency_histogram.iter().map(|b| (b.from_us.max(1) as f64, b));
    series("frequency", buckets().map(|(us, b)| (us, b.count as f64)).collect());
    series("time", buckets().map(|(us, b)| (us, time(b.from_us, b.count) / 1000.0)).collect());
    let bins = |of: &dyn Fn(&throttle::Bin) -> f64| {
        r.timeline.iter().enumerate().map(|(n, bin)| (n as f64 / 10.0, of(bin))).collect()
    };
    series("admitted", bins(&|b| b.admitted_bytes as f64 * 10.0 / f64::from(1 << 20)));
    series("device", bins(&|b| b.device_bytes as f64 * 10.0 / f64::from(1 << 20)));
    seen
}

fn draw(results: &Results, names: &[String]) -> Vec<Plot> {
    let curves = |series: &str| {
        let curve = |name: &String| Curve { name: name.clone(), points: results.series(name, series), dots: false };
        Body::Curves(names.iter().map(curve).collect())
    };
    let plot = |title: &str, x: Axis, y: Axis, body| Plot { title: title.into(), x, y, body };
    let time = || Axis::linear("s");
    vec![
        plot("Writes by latency", Axis::log("us"), Axis::log("writes"), curves("frequency")),
        plot("Total time by latency", Axis::log("us"), Axis::log("ms"), curves("time")),
        plot("Picket fences: what clients write", time(), Axis::linear("MiB/s"), curves("admitted")),
        plot("What the device writes", time(), Axis::linear("MiB/s"), curves("device")),
    ]
}
