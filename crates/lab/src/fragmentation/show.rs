//! Rows and plots of the study of fragmentation.

use super::{COLUMNS, Config, plain};
use crate::study::plot::{Axis, Body, Curve};
use crate::study::{Lookup, Plot, Results, Row, Rule};

/// Mean I/O while the file was made, as published (7.3 ms, 79 % of them of 128 KB).
const FILL_IO_KIB: f64 = 109.0;
/// Metaslabs used after 30 minutes for each one before, at 25 %, as published.
const GROWTH: f64 = 2.5;

/// The plain configurations, at every occupancy.
fn plains(configs: &[Config]) -> Vec<Config> {
    configs.iter().copied().filter(|c| *c == plain(c.fill)).collect()
}

/// The table.
pub(super) fn rows(configs: &[Config]) -> Vec<Row> {
    let mut rows = Vec::new();
    for c in configs {
        let name = c.name();
        let mut row = |what: &str, value, unit, digits| {
            rows.push(Row::of(format!("{name}: {what}"), name.clone(), value, unit).digits(digits));
        };
        row("steady throughput", "steady_mib_per_s", "MiB/s", 2);
        row("throughput while filled", "fill_mib_per_s", "MiB/s", 1);
        row("writes of a txg at the disk", "random_io_kib", "KiB", 1);
        row("free segments before", "free_segment_before_kib", "KiB", 1);
        row("free segments after", "free_segment_after_kib", "KiB", 1);
        row("fragmentation after", "fragmentation_after_percent", "%", 0);
        row("steady after", "steady_after_s", "s", 0);
        row("it was steady in time", "is_steady", "", 0);
    }
    let plains = plains(configs);
    let Some(&first) = plains.first() else { return rows };
    let all = |title: &str, measure: fn(&[(f64, f64)]) -> Option<f64>| {
        let names: Vec<(f64, String)> = plains.iter().map(|c| (100.0 - f64::from(c.fill), c.name())).collect();
        let points = move |look: Lookup| {
            let one = |(free, name): &(f64, String)| Some((*free, look(name, "steady_mib_per_s")?));
            measure(&names.iter().map(one).collect::<Option<Vec<_>>>()?)
        };
        Row { name: title.into(), digits: 2, measure: Box::new(points), ..Row::of("", "", "", "") }
    };
    let middle = plains[plains.len() / 2].name();
    rows.push(Row::of("mean write at the disk while the file is made", middle, "fill_io_kib", "KiB").published(
        FILL_IO_KIB,
        "on another disk, writes of at most 128 KB",
        Rule::None,
    ));
    if let Some(quarter) = plains.iter().find(|c| c.fill == 25) {
        rows.push(
            Row::of("25 %: metaslabs used after, for each before", quarter.name(), "metaslabs_growth", "").published(
                GROWTH,
                "32 of them, and 2.5 times as many after 30 minutes",
                Rule::Shape { least: 1.5, most: 4.0 },
            ),
        );
    }
    if plains.len() >= 3 {
        rows.push(all("steady throughput and free space at the start: correlation", correlation).shape(
            "the one is said to be proportional to the other",
            0.8,
            1.0,
        ));
    }
    rows.push(Row {
        name: format!("{}: steady for each byte a second while filled", first.name()),
        digits: 2,
        measure: Box::new(move |look| {
            Some(look(&first.name(), "steady_mib_per_s")? / look(&first.name(), "fill_mib_per_s")?)
        }),
        ..Row::of("", "", "", "")
    });
    rows
}

/// Pearson's correlation; None for points that do not vary.
fn correlation(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), p| (x + p.0 / n, y + p.1 / n));
    let sum = |f: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>();
    let both = sum(&|p| (p.0 - x) * (p.1 - y));
    let spread = (sum(&|p| (p.0 - x).powi(2)) * sum(&|p| (p.1 - y).powi(2))).sqrt();
    (spread > 0.0).then(|| both / spread)
}

/// The plots.
pub(super) fn draw(results: &Results, configs: &[Config]) -> Vec<Plot> {
    let plot = |title: &str, x: Axis, y: Axis, body| Plot { title: title.into(), x, y, body };
    let plains = plains(configs);
    let curves = |of: &[Config], series: &str, name: &dyn Fn(&Config) -> String| {
        let curve = |c: &Config| Curve { name: name(c), points: results.series(&c.name(), series), dots: false };
        Body::Curves(of.iter().map(curve).collect())
    };
    let fill = |c: &Config| format!("{} %", c.fill);
    let mut variants: Vec<String> = Vec::new();
    configs.iter().for_each(|c| {
        if !variants.contains(&c.variant()) {
            variants.push(c.variant());
        }
    });
    let against = |variant: &String| {
        let own = configs.iter().filter(|c| c.variant() == *variant);
        let point = |c: &Config| Some((f64::from(c.fill), results.spread(&c.name(), "steady_mib_per_s")?.mean));
        let mut points: Vec<(f64, f64)> = own.filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve { name: variant.clone(), points, dots: false }
    };
    let mut plots = vec![
        plot(
            "Steady throughput against occupancy",
            Axis::linear("% full at the start"),
            Axis::linear("MiB/s"),
            Body::Curves(variants.iter().map(against).collect()),
        ),
        plot("Throughput over time", Axis::linear("s"), Axis::linear("MiB/s"), curves(&plains, "mib_per_s", &fill)),
        plot(
            "Writes of txgs at the disk, while it is written at random",
            Axis::log("bytes"),
            Axis::log("writes"),
            curves(&plains, "random_io", &fill),
        ),
        plot(
            "Writes of txgs at the disk, while the file is made",
            Axis::log("bytes"),
            Axis::log("writes"),
            curves(&plains, "fill_io", &fill),
        ),
        plot("Free segments before", Axis::log("bytes"), Axis::log("segments"), curves(&plains, "free_before", &fill)),
        plot("Free segments after", Axis::log("bytes"), Axis::log("segments"), curves(&plains, "free_after", &fill)),
    ];
    let last = plains.last().map_or(0, |c| c.fill);
    let full: Vec<Config> = configs.iter().copied().filter(|c| c.fill == last && c.disks == 1).collect();
    plots.push(plot(
        &format!("Free segments after, {last} %"),
        Axis::log("bytes"),
        Axis::log("segments"),
        curves(&full, "free_after", &|c| c.variant()),
    ));
    for c in plains.iter().chain(full.iter().filter(|c| **c != plain(c.fill))) {
        for when in ["before", "after"] {
            let cells = results.series(&c.name(), &format!("map_{when}"));
            let rows = cells.chunks(COLUMNS).map(|row| row.iter().map(|p| p.1).collect()).collect();
            plots.push(plot(
                &format!("Metaslabs {when}: {}", c.name()),
                Axis::linear("from the first byte to the last"),
                Axis::linear("metaslabs, the first above"),
                Body::Heat { rows },
            ));
        }
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlation_of_lines_and_of_nothing() {
        assert_eq!(correlation(&[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]), Some(1.0));
        assert_eq!(correlation(&[(1.0, 6.0), (2.0, 4.0), (3.0, 2.0)]), Some(-1.0));
        assert_eq!(correlation(&[(1.0, 2.0), (2.0, 2.0)]), None);
        assert!(correlation(&[(0.0, 1.0), (1.0, 0.0), (2.0, 1.0)]).unwrap().abs() < 1e-9);
    }
}
