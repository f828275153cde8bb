//! Plots as SVG inside a page: lines, bars, heat maps; linear and logarithmic axes.
//!
//! Colours are variables of the page (`--c0` to `--c5`, `--ink`, `--grid`), so that light, dark and
//! print are the page's affair; lines differ by dashes as well. The picture has its own coordinates
//! and takes the width that there is, so letters are chosen to be legible on a phone. Every mark
//! has its figures as a tooltip (`<title>`).

use std::fmt::Write as _;

use super::Spread;
use super::html::escape;

/// Size of the picture in its own units.
const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 270.0;
/// Margins around the area of the plot: left, right, top, bottom. Half of a mark of five characters
/// is to the right of the area.
const MARGIN: [f64; 4] = [52.0, 22.0, 10.0, 40.0];
/// Colours that a page has.
const COLOURS: usize = 6;
/// Most points that a line keeps: more are thinned out evenly.
const POINTS_MAX: usize = 600;

/// An axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: String,
    /// Logarithmic; values that are not above 0 are left out.
    pub log: bool,
    /// A linear one begins at 0 even if no value is there.
    pub from_zero: bool,
}

impl Axis {
    /// A linear axis from 0.
    pub fn linear(label: &str) -> Axis {
        Axis { label: label.into(), log: false, from_zero: true }
    }
    /// A logarithmic axis.
    pub fn log(label: &str) -> Axis {
        Axis { label: label.into(), log: true, from_zero: false }
    }
}

/// A curve.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
    /// Points as dots, without a line.
    pub dots: bool,
}

/// What a plot shows.
#[derive(Clone, PartialEq, Debug)]
pub enum Body {
    /// Curves.
    Curves(Vec<Curve>),
    /// Bars in groups, with the range over the seeds.
    Bars {
        /// Names of the groups.
        groups: Vec<String>,
        /// For each series its name and a bar in each group.
        series: Vec<(String, Vec<Option<Spread>>)>,
    },
    /// Cells coloured by value, 0 to 1, in rows from the top.
    Heat {
        /// Values row by row.
        rows: Vec<Vec<f64>>,
    },
}

/// A plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What it shows.
    pub body: Body,
}

/// An axis with the values that it has to hold.
struct Scale {
    log: bool,
    from: f64,
    to: f64,
    start: f64,
    length: f64,
}

impl Scale {
    /// An axis from `start` over `length` for these values.
    fn of(axis: &Axis, values: impl Iterator<Item = f64>, start: f64, length: f64) -> Scale {
        let (mut from, mut to) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.filter(|v| v.is_finite() && (!axis.log || *v > 0.0)) {
            (from, to) = (from.min(v), to.max(v));
        }
        if from > to {
            (from, to) = if axis.log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if axis.log {
            (from, to) = (from.log10().floor(), to.log10().ceil());
            if from == to {
                to += 1.0;
            }
        } else {
            if axis.from_zero {
                (from, to) = (from.min(0.0), to.max(0.0));
            }
            if from == to {
                to = from + 1.0;
            }
            let step = step(to - from);
            (from, to) = ((from / step).floor() * step, (to / step).ceil() * step);
        }
        Scale { log: axis.log, from, to, start, length }
    }

    /// The place of a value; None if it has none.
    fn place(&self, v: f64) -> Option<f64> {
        let v = if self.log { (v > 0.0).then(|| v.log10())? } else { v };
        v.is_finite().then(|| self.start + (v - self.from) / (self.to - self.from) * self.length)
    }

    /// Values to mark.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let every = ((self.to - self.from) / 6.0).ceil().max(1.0) as usize;
            return (self.from as i32..=self.to as i32).step_by(every).map(|e| 10f64.powi(e)).collect();
        }
        let step = step(self.to - self.from);
        let count = ((self.to - self.from) / step).round() as i64;
        (0..=count).map(|i| (self.from / step).round() * step + i as f64 * step).collect()
    }
}

/// The distance of marks that makes four to eight of them: 1, 2 or 5 times a power of ten.
fn step(range: f64) -> f64 {
    let rough = range / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let times = rough / power;
    power
        * if times < 1.5 {
            1.0
        } else if times < 3.5 {
            2.0
        } else if times < 7.5 {
            5.0
        } else {
            10.0
        }
}

/// A figure in few characters: 1.5k, 20M.
pub fn short(v: f64) -> String {
    let (scaled, suffix) = match v.abs() {
        a if a >= 1e9 => (v / 1e9, "G"),
        a if a >= 1e6 => (v / 1e6, "M"),
        a if a >= 1e4 => (v / 1e3, "k"),
        _ => (v, ""),
    };
    let digits = match scaled.abs() {
        a if a == 0.0 || a >= 100.0 => 0,
        a if a >= 1.0 => 2,
        a if a >= 0.01 => 4,
        _ => return format!("{scaled:.0e}{suffix}"),
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

impl Plot {
    /// The picture with its legend, as a figure of HTML.
    pub fn svg(&self) -> String {
        let mut out = String::new();
        let title = escape(&self.title);
        let _ = write!(
            out,
            "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">"
        );
        let names = match &self.body {
            Body::Curves(curves) => {
                self.curves(&mut out, curves);
                curves.iter().map(|c| c.name.clone()).collect()
            }
            Body::Bars { groups, series } => {
                self.bars(&mut out, groups, series);
                series.iter().map(|(name, _)| name.clone()).collect()
            }
            Body::Heat { rows } => {
                self.heat(&mut out, rows);
                Vec::new()
            }
        };
        out.push_str("</svg>");
        legend(&mut out, &names);
        out.push_str("</figure>\n");
        out
    }

    /// Left, top, width and height of the area.
    fn area() -> [f64; 4] {
        [MARGIN[0], MARGIN[2], WIDTH - MARGIN[0] - MARGIN[1], HEIGHT - MARGIN[2] - MARGIN[3]]
    }

    fn vertical(&self, values: impl Iterator<Item = f64>) -> Scale {
        let [_, top, _, height] = Plot::area();
        // Upwards.
        Scale::of(&self.y, values, top + height, -height)
    }

    /// Marks and labels of the vertical axis, the line below, and the labels of both.
    fn frame(&self, out: &mut String, y: &Scale) {
        let [left, top, width, height] = Plot::area();
        for tick in y.ticks() {
            let Some(at) = y.place(tick) else { continue };
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left + width,
                left - 5.0,
                at + 4.0,
                short(tick)
            );
        }
        self.labels(out);
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{left}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>",
            left + width,
            top + height
        );
    }

    fn labels(&self, out: &mut String) {
        let [left, top, width, height] = Plot::area();
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text transform=\"translate(12 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            left + width / 2.0,
            HEIGHT - 6.0,
            escape(&self.x.label),
            top + height / 2.0,
            escape(&self.y.label)
        );
    }

    fn curves(&self, out: &mut String, curves: &[Curve]) {
        let [left, top, width, height] = Plot::area();
        let all = || curves.iter().flat_map(|c| &c.points);
        let y = self.vertical(all().map(|p| p.1));
        let x = Scale::of(&self.x, all().map(|p| p.0), left, width);
        self.frame(out, &y);
        for tick in x.ticks() {
            let Some(at) = x.place(tick) else { continue };
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{:.1}\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                top + height,
                top + height + 15.0,
                short(tick)
            );
        }
        if curves.iter().all(|c| c.points.is_empty()) {
            let (x, y) = (left + width / 2.0, top + height / 2.0);
            let _ = write!(
                out,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">shorter than one interval: nothing to show</text>"
            );
        }
        for (i, curve) in curves.iter().enumerate() {
            let every = curve.points.len().div_ceil(POINTS_MAX).max(1);
            let places: Vec<(f64, f64, &(f64, f64))> =
                curve.points.iter().step_by(every).filter_map(|p| Some((x.place(p.0)?, y.place(p.1)?, p))).collect();
            let colour = i % COLOURS;
            if !curve.dots {
                let path: String = places.iter().map(|(x, y, _)| format!("{x:.1},{y:.1} ")).collect();
                let _ = write!(out, "<polyline class=\"line d{colour}\" points=\"{}\"/>", path.trim_end());
            }
            // Few points are measurements that one may want to read off.
            if curve.dots || places.len() <= 40 {
                for (x, y, p) in &places {
                    let _ = write!(
                        out,
                        "<circle class=\"f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{}\"><title>{}: {}, {}</title></circle>",
                        if curve.dots { 1.5 } else { 3.0 },
                        escape(&curve.name),
                        short(p.0),
                        short(p.1)
                    );
                }
            }
        }
    }

    fn bars(&self, out: &mut String, groups: &[String], series: &[(String, Vec<Option<Spread>>)]) {
        let [left, top, width, height] = Plot::area();
        let all = || series.iter().flat_map(|(_, bars)| bars.iter().flatten());
        let y = self.vertical(all().flat_map(|s| [s.min, s.max, s.mean]));
        self.frame(out, &y);
        let base = y.place(0.0).unwrap_or(top + height);
        let slot = width / groups.len().max(1) as f64;
        let bar = slot * 0.8 / series.len().max(1) as f64;
        for (g, group) in groups.iter().enumerate() {
            let from = left + slot * g as f64 + slot * 0.1;
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                from + slot * 0.4,
                top + height + 15.0,
                escape(group)
            );
            for (s, (name, bars)) in series.iter().enumerate() {
                let Some(Some(spread)) = bars.get(g) else { continue };
                let Some(at) = y.place(spread.mean) else { continue };
                let (x, colour) = (from + bar * s as f64, s % COLOURS);
                let _ = write!(
                    out,
                    "<rect class=\"f{colour}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}, {}: {}</title></rect>",
                    at.min(base),
                    (bar - 1.0).max(1.0),
                    (base - at).abs().max(0.5),
                    escape(name),
                    escape(group),
                    short(spread.mean)
                );
                if let (true, Some(low), Some(high)) = (spread.count > 1, y.place(spread.min), y.place(spread.max)) {
                    let middle = x + bar / 2.0;
                    let _ = write!(
                        out,
                        "<line class=\"range\" x1=\"{middle:.1}\" x2=\"{middle:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>"
                    );
                }
            }
        }
    }

    fn heat(&self, out: &mut String, rows: &[Vec<f64>]) {
        let [left, top, width, height] = Plot::area();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0).max(1) as f64;
        let (w, h) = (width / columns, height / rows.len().max(1) as f64);
        for (r, row) in rows.iter().enumerate() {
            for (c, value) in row.iter().enumerate() {
                let _ = write!(
                    out,
                    "<rect class=\"f0\" fill-opacity=\"{:.2}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{w:.1}\" height=\"{h:.1}\"><title>{}</title></rect>",
                    value.clamp(0.0, 1.0),
                    left + w * c as f64,
                    top + h * r as f64,
                    short(*value)
                );
            }
        }
        let _ =
            write!(out, "<rect class=\"frame\" x=\"{left}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height:.1}\"/>");
        self.labels(out);
    }
}

fn legend(out: &mut String, names: &[String]) {
    if names.len() < 2 {
        return;
    }
    out.push_str("<ul class=\"legend\">");
    for (i, name) in names.iter().enumerate() {
        let _ = write!(
            out,
            "<li><svg viewBox=\"0 0 24 8\" aria-hidden=\"true\"><line class=\"line d{}\" x1=\"0\" x2=\"24\" y1=\"4\" y2=\"4\"/></svg>{}</li>",
            i % COLOURS,
            escape(name)
        );
    }
    out.push_str("</ul>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_hold_all_values() {
        let scale = |axis: Axis, values: &[f64]| Scale::of(&axis, values.iter().copied(), 0.0, 100.0);
        let linear = scale(Axis::linear("x"), &[3.0, 97.0]);
        assert_eq!(linear.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!((linear.place(0.0), linear.place(50.0)), (Some(0.0), Some(50.0)));
        let log = scale(Axis::log("x"), &[0.0, 3.0, 900.0]);
        assert_eq!(log.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!((log.place(0.0), log.place(10.0).map(f64::round)), (None, Some(33.0)));
        // Nothing, one value, and no number at all still make an axis.
        for values in [&[][..], &[5.0], &[f64::NAN, f64::INFINITY]] {
            for axis in [Axis::linear("x"), Axis::log("x")] {
                let s = scale(axis, values);
                assert!(s.from < s.to && s.ticks().len() >= 2, "{values:?}");
            }
        }
        assert_eq!(
            [0.0, 1.5, 999.0, 1234.0, 12_345.0, 2.5e6, 3e9, 0.05, 0.0001].map(short),
            ["0", "1.5", "999", "1234", "12.35k", "2.5M", "3G", "0.05", "1e-4"]
        );
    }

    #[test]
    fn pictures_have_what_they_are_given() {
        let bars = Spread::of(&[1.0, 3.0]);
        let plot = Plot {
            title: "a < b".into(),
            x: Axis::linear("x & y"),
            y: Axis::linear("y"),
            body: Body::Bars {
                groups: vec!["one".into(), "two".into()],
                series: vec![("s".into(), vec![bars, None]), ("t".into(), vec![bars, bars])],
            },
        };
        let svg = plot.svg();
        assert_eq!((svg.matches("<rect").count(), svg.matches("class=\"range\"").count()), (3, 3));
        assert!(svg.contains("a &lt; b") && svg.contains("x &amp; y") && svg.contains("<ul"), "{svg}");
        let points: Vec<(f64, f64)> = (0..5000).map(|i| (f64::from(i), f64::NAN)).chain([(1.0, 2.0)]).collect();
        let curve = Curve { name: "c".into(), points, dots: false };
        let svg = Plot { body: Body::Curves(vec![curve]), ..plot.clone() }.svg();
        assert!(!svg.contains("NaN") && svg.contains("<polyline"), "{svg}");
        let curve = Curve { name: "c".into(), points: Vec::new(), dots: false };
        let svg = Plot { body: Body::Curves(vec![curve]), ..plot.clone() }.svg();
        assert!(svg.contains("nothing to show"), "{svg}");
        let svg = Plot { body: Body::Heat { rows: vec![vec![0.0, 2.0], vec![0.5]] }, ..plot }.svg();
        assert_eq!(svg.matches("fill-opacity").count(), 3);
        assert!(svg.contains("fill-opacity=\"1.00\""), "{svg}");
    }
}
