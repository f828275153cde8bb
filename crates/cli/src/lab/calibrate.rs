//! `weir lab calibrate DEVICE`: a model of a real device.

use base::{Error, Nanos};
use host::{Engine, EngineConfig};
use lab::calibrate::{Report, fit, measure_all, usable};

use super::print_report;
use super::real::{self, SIZE_MIN};
use super::study::{number, size};
use crate::progress::Bar;
use crate::zpool::parse_for;
use crate::{Done, Fail};

/// The most of a device that is used if nothing is said.
const SIZE: u64 = 4 << 30;

/// Runs `weir lab calibrate ARGS`.
pub fn run(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] = &[
        ("output", true, 'o'),
        ("size", true, 'z'),
        ("overwrite", false, 'O'),
        ("seconds", true, 's'),
        ("json", false, 'j'),
    ];
    let p = parse_for("lab", args, "o:z:Os:j", long, "calibrate")?;
    let [path] = &p.operands[..] else {
        return Err(Fail::Usage("it takes one device or file".into(), "calibrate"));
    };
    let seconds = number(&p, 's', "seconds", 3, 1, 3600)?;
    let asked = p.value('z').map(|_| size(&p, 'z', "size", 0)).transpose()?;
    if asked.is_some_and(|size| size < SIZE_MIN) {
        return Err(Error::invalid("--size: a calibration needs at least 64M").into());
    }
    let _made = real::make(&[path], asked, p.has('O'))?;
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    let dev = real::open(&rt, path, "calibrated")?;
    let size = usable(&*dev, asked.unwrap_or(SIZE));
    let mut bar = Bar::new();
    let mut at = |what: &str, share: f64| bar.show(what, (share * 1000.0) as u64, 1000);
    let time = Nanos::from_secs(seconds);
    let busy = || rt.worked();
    let mut show = |share| at("measuring", share);
    let measured = engine.block_on(measure_all(&rt, &*dev, size, time, &busy, &mut show))?;
    let (model, figures) = fit(&measured, size, &mut |share| at("fitting", share))?;
    bar.clear();
    let report = Report::of(path, size, &measured.points, &figures);
    if let Some(output) = p.value('o') {
        std::fs::write(output, report.file(&model)?)
            .map_err(|e| Error::invalid(format!("the model file {output} cannot be written: {e}")))?;
    }
    print_report(&p, || serde_json::to_string(&report), || report.text())
}
