//! The table of a study: published, measured, verdict.
//!
//! A verdict is about the mean over the seeds. What was published as a figure is judged as a
//! figure; what was published as a shape, or without its hardware, is judged as a shape: between
//! two bounds that only the shape keeps.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::{Results, Spread, Study};

/// What is claimed of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rule {
    /// Nothing: it is shown.
    None,
    /// The mean is within so many units of the published figure.
    Within(f64),
    /// The mean is within so many percent of it.
    WithinPercent(f64),
    /// The mean is at most so many times the figure, and at least that part of it.
    WithinFactor(f64),
    /// Only the shape: the mean is between the two.
    Shape {
        /// At least.
        least: f64,
        /// At most.
        most: f64,
    },
}

/// Whether the claim holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The figure is as published.
    Agrees,
    /// The shape is as published.
    Shape,
    /// It is not.
    Differs,
    /// Nothing is claimed, or nothing was measured.
    None,
}

impl Rule {
    /// The verdict on a mean.
    pub fn judge(self, published: Option<f64>, mean: Option<f64>) -> Verdict {
        let Some(mean) = mean else { return Verdict::None };
        let near = |distance: f64| match published {
            None => Verdict::None,
            Some(p) if (mean - p).abs() <= distance => Verdict::Agrees,
            Some(_) => Verdict::Differs,
        };
        match self {
            Rule::None => Verdict::None,
            Rule::Within(d) => near(d),
            Rule::WithinPercent(percent) => near(published.unwrap_or(0.0).abs() * percent / 100.0),
            Rule::WithinFactor(f) => match published {
                None => Verdict::None,
                Some(p) if (p / f..=p * f).contains(&mean) => Verdict::Agrees,
                Some(_) => Verdict::Differs,
            },
            Rule::Shape { least, most } if (least..=most).contains(&mean) => Verdict::Shape,
            Rule::Shape { .. } => Verdict::Differs,
        }
    }
    /// The claim in words.
    fn words(self, unit: &str) -> String {
        match self {
            Rule::None => String::new(),
            Rule::Within(d) if unit == "%" => format!("within {d} points"),
            Rule::Within(d) => format!("within {d} {unit}"),
            Rule::WithinPercent(d) => format!("within {d} %"),
            Rule::WithinFactor(f) => format!("within a factor of {f}"),
            Rule::Shape { least, most } if most == f64::INFINITY => format!("at least {least}"),
            Rule::Shape { least, most } if least == f64::NEG_INFINITY => format!("at most {most}"),
            Rule::Shape { least, most } => format!("{least} to {most}"),
        }
    }
}

impl Verdict {
    /// As it stands in the table.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Agrees => "agrees",
            Verdict::Shape => "agrees (shape)",
            Verdict::Differs => "differs",
            Verdict::None => "-",
        }
    }
}

/// A line of the table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Line {
    /// What it is.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// The published figure.
    pub published: Option<f64>,
    /// Its source.
    pub source: String,
    /// Mean and spread over the seeds.
    pub measured: Option<Spread>,
    /// What is claimed.
    pub claim: String,
    /// Whether it holds.
    pub verdict: Verdict,
    /// Digits behind the point.
    #[serde(skip)]
    pub digits: usize,
}

/// A cell with all its runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CellReport {
    /// Its name.
    pub name: String,
    /// Its parameters.
    pub params: String,
    /// Figures over the seeds.
    pub values: BTreeMap<String, Vec<f64>>,
    /// Curves with the first seed.
    pub series: BTreeMap<String, Vec<(f64, f64)>>,
}

/// The report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The study.
    pub study: &'static str,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// The table.
    pub rows: Vec<Line>,
    /// Headings of the figures: what is compared with, and what was measured.
    #[serde(skip)]
    pub headings: [&'static str; 2],
    /// Every run.
    pub cells: Vec<CellReport>,
}

impl Report {
    /// The report on these results.
    pub fn of(study: &Study, results: &Results) -> Report {
        let rows = study.rows.iter().map(|row| {
            let measured = Spread::of(&results.of_row(row));
            Line {
                name: row.name.clone(),
                unit: row.unit,
                published: row.published,
                source: row.source.clone(),
                measured,
                claim: row.rule.words(row.unit),
                verdict: row.rule.judge(row.published, measured.map(|m| m.mean)),
                digits: row.digits,
            }
        });
        let cells = study.cells.iter().zip(&results.cells).map(|(cell, (_, runs))| {
            let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            for (name, value) in runs.iter().flat_map(|seen| &seen.values) {
                values.entry(name.clone()).or_default().push(*value);
            }
            let series = runs.first().map(|seen| seen.series.clone()).unwrap_or_default();
            CellReport { name: cell.name.clone(), params: cell.params.clone(), values, series }
        });
        Report {
            study: study.name,
            seeds: results.seeds.clone(),
            rows: rows.collect(),
            headings: study.headings,
            cells: cells.collect(),
        }
    }

    /// One JSON object on a line.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// The table as text, and how many rows agree.
    pub fn text(&self) -> String {
        let [against, figure] = self.headings;
        let mut rows = vec![["".into(), against.into(), figure.into(), "spread".into(), "verdict".into()]];
        rows.extend(
            self.rows.iter().map(|row| [row.name.clone(), row.published(), row.mean(), row.spread(), row.verdict()]),
        );
        let width = |i: usize| rows.iter().map(|r: &[String; 5]| r[i].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        let mut out = String::new();
        for [name, published, mean, spread, verdict] in &rows {
            let line = format!(
                "{name:<0$}  {published:>1$}  {mean:>2$}  {spread:>3$}  {verdict}",
                widths[0], widths[1], widths[2], widths[3]
            );
            let _ = writeln!(out, "{}", line.trim_end());
        }
        let _ = writeln!(out, "\n{}", self.summary());
        out
    }

    /// How many rows agree.
    pub fn summary(&self) -> String {
        let count = |v: Verdict| self.rows.iter().filter(|row| row.verdict == v).count();
        let judged = self.rows.len() - count(Verdict::None);
        let n = self.seeds.len();
        let agree = count(Verdict::Agrees) + count(Verdict::Shape);
        let seeds = format!("{n} seed{}", if n == 1 { "" } else { "s" });
        match judged {
            0 => format!("{seeds}; nothing is claimed"),
            _ => format!("{agree} of {judged} claims hold over {seeds}"),
        }
    }
}

impl Line {
    /// The published figure with its unit.
    pub fn published(&self) -> String {
        let figure = |v: f64| format!("{v:.0$} {1}", self.digits, self.unit);
        match (self.published, self.verdict) {
            (Some(v), _) => figure(v),
            (None, _) if !self.claim.is_empty() => self.claim.clone(),
            _ => "-".into(),
        }
    }
    /// The mean with its unit.
    pub fn mean(&self) -> String {
        self.measured.map_or("-".into(), |m| format!("{:.*} {}", self.digits, m.mean, self.unit))
    }
    /// The spread over the seeds.
    pub fn spread(&self) -> String {
        let d = self.digits;
        match self.measured {
            Some(m) if m.count > 1 => format!("+-{:.d$} ({:.d$} to {:.d$})", m.deviation, m.min, m.max),
            _ => "-".into(),
        }
    }
    /// The verdict, with the rule if a figure is judged.
    pub fn verdict(&self) -> String {
        match (self.published, self.verdict) {
            (Some(_), Verdict::Agrees | Verdict::Differs) => format!("{} ({})", self.verdict.words(), self.claim),
            _ => self.verdict.words().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_about_means() {
        let inf = f64::INFINITY;
        for (rule, published, mean, want) in [
            (Rule::None, Some(1.0), Some(1.0), Verdict::None),
            (Rule::Within(5.0), Some(50.0), Some(55.0), Verdict::Agrees),
            (Rule::Within(5.0), Some(50.0), Some(44.9), Verdict::Differs),
            (Rule::Within(5.0), Some(50.0), None, Verdict::None),
            (Rule::Within(5.0), None, Some(1.0), Verdict::None),
            (Rule::WithinPercent(10.0), Some(-50.0), Some(-54.0), Verdict::Agrees),
            (Rule::WithinPercent(10.0), Some(50.0), Some(56.0), Verdict::Differs),
            (Rule::WithinFactor(2.0), Some(10.0), Some(5.0), Verdict::Agrees),
            (Rule::WithinFactor(2.0), Some(10.0), Some(20.0), Verdict::Agrees),
            (Rule::WithinFactor(2.0), Some(10.0), Some(4.9), Verdict::Differs),
            (Rule::WithinFactor(2.0), Some(10.0), Some(20.1), Verdict::Differs),
            (Rule::WithinFactor(2.0), None, Some(20.1), Verdict::None),
            (Rule::Shape { least: 90.0, most: inf }, None, Some(90.0), Verdict::Shape),
            (Rule::Shape { least: 90.0, most: inf }, None, Some(89.0), Verdict::Differs),
            (Rule::Shape { least: 90.0, most: inf }, None, Some(f64::NAN), Verdict::Differs),
            (Rule::Within(5.0), Some(1.0), Some(f64::NAN), Verdict::Differs),
        ] {
            assert_eq!(rule.judge(published, mean), want, "{rule:?} {published:?} {mean:?}");
        }
    }
}
