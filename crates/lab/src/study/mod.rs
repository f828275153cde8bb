//! Studies: what they are made of, and how they are run, compared and shown.
//!
//! A [`Study`] has *cells*, each a run of the engine in a world of its own, and *rows*, each one
//! figure of the comparison. A cell runs once for each seed ([`Study::run`]) on as many threads as
//! there are processors; which thread runs it and when changes nothing, so equal seeds give equal
//! [`Results`]. A row computes its figure from the runs of one seed, so that ratios compare runs of
//! the same seed; its mean over the seeds gets a [`Verdict`] by the row's [`Rule`]. The
//! [`Report`] is the table, as text and as JSON; [`html::page`] shows it with [`plot`]s on one page
//! that needs no network.
//!
//! A study that was stopped goes on: finished runs are lines of a [`State`] file, found again by
//! the cell's parameters, the seed and the program ([`Study::key`]).

pub mod html;
pub mod plot;
mod report;
mod run;
mod state;
mod stats;

use std::collections::BTreeMap;

use base::Result;

pub use plot::Plot;
pub use report::{Report, Rule, Verdict};
pub use run::{MEMORY_MAX, Progress, RunOpts};
pub use state::State;
pub use stats::Spread;

/// What a run saw.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Seen {
    /// Figures by name.
    pub values: BTreeMap<String, f64>,
    /// Curves by name: points of x and y.
    pub series: BTreeMap<String, Vec<(f64, f64)>>,
}

impl Seen {
    /// Adds a figure.
    pub fn set(&mut self, name: &str, value: f64) {
        self.values.insert(name.to_string(), value);
    }
}

/// Runs a cell with a seed.
pub type Run = Box<dyn Fn(u64) -> Result<Seen> + Send + Sync>;

/// One configuration of a study.
pub struct Cell {
    /// Its name, unique in the study.
    pub name: String,
    /// Everything besides seed and program that the result depends on, as text.
    pub params: String,
    /// Bytes of memory that a run needs at most, estimated.
    pub memory: u64,
    /// Time that a run takes, relative to the other cells.
    pub weight: u64,
    /// Runs it.
    pub run: Run,
}

/// Looks up a figure of a run: cell, name.
pub type Lookup<'a> = &'a dyn Fn(&str, &str) -> Option<f64>;

/// Computes a row's figure from the runs of one seed.
pub type Measure = Box<dyn Fn(Lookup) -> Option<f64> + Send + Sync>;

/// One figure of the comparison.
pub struct Row {
    /// What it is.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// Digits behind the point.
    pub digits: usize,
    /// The published figure.
    pub published: Option<f64>,
    /// Who published it, or how it is computed.
    pub source: String,
    /// What is claimed.
    pub rule: Rule,
    /// Computes it.
    pub measure: Measure,
}

impl Row {
    /// The row of a figure of one cell, without a published one.
    pub fn of(name: impl Into<String>, cell: impl Into<String>, value: &'static str, unit: &'static str) -> Row {
        let cell = cell.into();
        Row {
            name: name.into(),
            unit,
            digits: 1,
            published: None,
            source: String::new(),
            rule: Rule::None,
            measure: Box::new(move |look| look(&cell, value)),
        }
    }
    /// The same with the published figure, its source and what is claimed.
    pub fn published(mut self, figure: f64, source: impl Into<String>, rule: Rule) -> Row {
        (self.published, self.source, self.rule) = (Some(figure), source.into(), rule);
        self
    }
    /// The same with a published shape.
    pub fn shape(mut self, source: impl Into<String>, least: f64, most: f64) -> Row {
        (self.source, self.rule) = (source.into(), Rule::Shape { least, most });
        self
    }
    /// The same with so many digits behind the point.
    pub fn digits(mut self, digits: usize) -> Row {
        self.digits = digits;
        self
    }
}

/// Headings of a study of what was published.
pub const PUBLISHED: [&str; 2] = ["published", "measured"];

/// Draws the plots of a study.
pub type Draw = Box<dyn Fn(&Results) -> Vec<Plot> + Send + Sync>;

/// A study.
pub struct Study {
    /// The word behind `weir lab`.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What it does, in some sentences.
    pub about: String,
    /// Its cells.
    pub cells: Vec<Cell>,
    /// Its rows.
    pub rows: Vec<Row>,
    /// Headings of the two columns of figures, [`PUBLISHED`] or others.
    pub headings: [&'static str; 2],
    /// Its plots.
    pub draw: Draw,
}

/// All runs: by cell in order, then by seed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Results {
    /// The seeds in order.
    pub seeds: Vec<u64>,
    /// Names and runs of the cells.
    pub cells: Vec<(String, Vec<Seen>)>,
}

impl Results {
    fn runs(&self, cell: &str) -> &[Seen] {
        self.cells.iter().find(|(name, _)| name == cell).map_or(&[], |(_, runs)| runs)
    }
    /// A figure of a cell over the seeds.
    pub fn spread(&self, cell: &str, value: &str) -> Option<Spread> {
        Spread::of(&self.runs(cell).iter().filter_map(|s| s.values.get(value).copied()).collect::<Vec<_>>())
    }
    /// A curve of a cell with the first seed.
    pub fn series(&self, cell: &str, name: &str) -> Vec<(f64, f64)> {
        self.runs(cell).first().and_then(|s| s.series.get(name)).cloned().unwrap_or_default()
    }
    /// A row's figure for each seed that has one.
    pub fn of_row(&self, row: &Row) -> Vec<f64> {
        let of_seed = |i: usize| (row.measure)(&|cell, value| self.runs(cell).get(i)?.values.get(value).copied());
        (0..self.seeds.len()).filter_map(of_seed).collect()
    }
}
