//! `weir lab calibrate DEVICE`: a model of a real device.

use std::path::{Path, PathBuf};

use base::{Error, Nanos, Result};
use host::{Engine, EngineConfig, HostDev, OpenOpts};
use lab::calibrate::{Report, fit, measure_all, usable};

use super::print_report;
use super::study::{number, size};
use crate::progress::Bar;
use crate::zpool::parse_for;
use crate::{Done, Fail};

/// The least of a device that is used: caches must not hold all of it.
const SIZE_MIN: u64 = 64 << 20;
/// The most of a device that is used if nothing is said.
const SIZE: u64 = 4 << 30;

/// A file that was made for the measurement and goes away after it.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

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
    let _made = match (asked, p.has('O')) {
        (_, true) => None,
        (Some(size), false) => Some(make(path, size)?),
        (None, false) => {
            let what = "either --size for a new file, which is removed at the end, or --overwrite for a device or file whose contents may be lost";
            return Err(Error::invalid(format!("'{path}' needs {what}")).into());
        }
    };
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    let dev = HostDev::open_dev(&rt, path, OpenOpts { write: true, ..OpenOpts::default() })?;
    if !dev.is_direct() {
        let why = "it takes no direct I/O, so that the page cache would be measured";
        return Err(Error::invalid(format!("'{path}' cannot be calibrated: {why}")).into());
    }
    let size = usable(&*dev, asked.unwrap_or(SIZE));
    if size < SIZE_MIN {
        return Err(Error::invalid(format!("'{path}' cannot be calibrated: it has less than 64M")).into());
    }
    let mut bar = Bar::new();
    let mut at = |what: &str, share: f64| bar.show(what, (share * 1000.0) as u64, 1000);
    let time = Nanos::from_secs(seconds);
    let measured = engine.block_on(measure_all(&rt, &*dev, size, time, &mut |share| at("measuring", share)))?;
    let (model, figures) = fit(&measured, size, &mut |share| at("fitting", share))?;
    bar.clear();
    let report = Report::of(path, size, &measured, &figures);
    if let Some(output) = p.value('o') {
        std::fs::write(output, report.file(&model)?)
            .map_err(|e| Error::invalid(format!("the model file {output} cannot be written: {e}")))?;
    }
    print_report(&p, || serde_json::to_string(&report), || report.text())
}

/// Makes a file of `size` bytes.
fn make(path: &str, size: u64) -> Result<Made> {
    let bad = |e: std::io::Error| Error::invalid(format!("'{path}' cannot be made: {e}"));
    let file = std::fs::File::create_new(Path::new(path)).map_err(bad)?;
    let made = Made(path.into());
    file.set_len(size).map_err(bad)?;
    Ok(made)
}
