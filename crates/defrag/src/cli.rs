//! The command `weir defrag`.
//!
//! Exit status: 0 there is a plan, 1 there is none (nothing gains enough, no room), 2 wrong use, no
//! way to the pool.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use base::{Error, Result};
use zdb::device::candidates;
use zdb::{OpenOpts, PoolReader};

use crate::plan::Goal;
use crate::pool_plan::{Opts, plan};
use crate::predict::Disk;

/// The parsed command line.
#[derive(Default, Debug)]
struct Args {
    opts: Opts,
    paths: Vec<PathBuf>,
    pool: String,
    json: bool,
    quiet: bool,
    help: bool,
}

/// What the command needs from the program around it.
pub struct Around<'a> {
    /// What follows a mistake in the arguments.
    pub usage: &'a str,
    /// What `--help` prints.
    pub page: &'a str,
    /// The model of a disk by name or file.
    pub disk: &'a dyn Fn(&str) -> Result<Disk>,
    /// Most bytes of changes that an engine on this machine has in memory.
    pub dirty: u64,
}

/// Bytes in words: 500, 64K, 1.5T.
fn size(text: &str) -> Option<u64> {
    let units = ["K", "M", "G", "T", "P"];
    let upper = text.to_ascii_uppercase();
    let plain = upper.strip_suffix('B').unwrap_or(&upper);
    let unit = units.iter().position(|u| plain.ends_with(u));
    let (number, power) = match unit {
        Some(n) => (&plain[..plain.len() - 1], n as i32 + 1),
        None => (plain, 0),
    };
    let digits = number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let n: f64 = number.parse().ok().filter(|_| digits)?;
    let bytes = n * 1024f64.powi(power);
    (bytes >= 1.0 && bytes < 2f64.powi(63)).then_some(bytes as u64)
}

impl Args {
    fn parse(args: &[String], around: &Around<'_>) -> Result<Args> {
        let mut a = Args::default();
        a.opts.dirty = around.dirty;
        let mut words: Vec<&String> = Vec::new();
        let mut predict = true;
        let mut it = args.iter();
        while let Some(arg) = it.next() {
            let (name, joined) = match arg.split_once('=') {
                Some((n, v)) if n.starts_with("--") => (n, Some(v.to_owned())),
                _ => (arg.as_str(), None),
            };
            let mut value = || {
                let v = joined.clone().or_else(|| it.next().cloned());
                v.ok_or_else(|| Error::invalid(format!("option {name} needs a value")))
            };
            match name {
                "-p" | "--path" => a.paths.push(value()?.into()),
                "--goal" => {
                    a.opts.goal = match value()?.as_str() {
                        "read" => Goal::Read,
                        "space" => Goal::Space,
                        other => return Err(Error::invalid(format!("--goal {other}: it is read or space"))),
                    }
                }
                "--bytes" => {
                    let v = value()?;
                    let bad = || Error::invalid(format!("--bytes {v}: not a size such as 500M or 1.5T"));
                    a.opts.bytes = size(&v).ok_or_else(bad)?;
                }
                "--min-gain" => {
                    let v = value()?;
                    let n = v.strip_suffix('%').unwrap_or(&v).parse().ok().filter(|n| *n <= 100);
                    a.opts.min_gain =
                        n.ok_or_else(|| Error::invalid(format!("--min-gain {v}: it is 0 to 100 percent")))?;
                }
                "--sample" => {
                    let v = value()?;
                    let n = v.parse().ok().filter(|n| (1..=1 << 24).contains(n));
                    a.opts.sample =
                        n.ok_or_else(|| Error::invalid(format!("--sample {v}: it is 1 to 16777216 blocks")))?;
                }
                "--model" => a.opts.disk = Some((around.disk)(&value()?)?),
                "--no-predict" => predict = false,
                "--json" => a.json = true,
                "-q" | "--quiet" => a.quiet = true,
                "-h" | "--help" => a.help = true,
                _ if name.starts_with('-') => return Err(Error::invalid(format!("invalid option '{name}'"))),
                _ => words.push(arg),
            }
        }
        if !predict {
            a.opts.disk = None;
        }
        if a.help {
            return Ok(a);
        }
        match words[..] {
            [what, pool] if what == "plan" => a.pool.clone_from(pool),
            [what] if what == "plan" => return Err(Error::invalid("which pool? Give its name or guid")),
            [] => return Err(Error::invalid("what to do? There is 'plan'")),
            [what, ..] if what != "plan" => {
                return Err(Error::invalid(format!("'{what}' is no command of defrag: there is 'plan'")));
            }
            _ => return Err(Error::invalid("a plan is for one pool")),
        }
        Ok(a)
    }
}

/// Runs the command with `args` (without program and command name). The exit status comes back.
pub fn main(args: &[String], around: &Around<'_>, out: &mut dyn Write, err: &mut dyn Write) -> i32 {
    let a = match Args::parse(args, around) {
        Ok(a) => a,
        Err(e) => {
            let _ = write!(err, "{e}\n{}", around.usage);
            return 2;
        }
    };
    if a.help {
        let _ = out.write_all(around.page.as_bytes());
        return 0;
    }
    match run(&a, out, err) {
        Ok(code) => code,
        Err(e) => {
            let _ = writeln!(err, "cannot plan for '{}': {e}", a.pool);
            2
        }
    }
}

/// Opens the pool on the devices of the command line, or of this machine.
fn open(a: &Args) -> Result<PoolReader> {
    let mut files = Vec::new();
    for p in &a.paths {
        files.extend(candidates(p)?);
    }
    if let (Some(first), true) = (a.paths.first(), files.is_empty()) {
        return Err(Error::not_found(format!("there are no devices in {}", first.display())));
    }
    if files.is_empty() {
        files = candidates(Path::new("/dev"))?;
    }
    let opts = OpenOpts { pool: Some(a.pool.clone()), ..OpenOpts::default() };
    let opened = PoolReader::open_with(&files, &opts);
    opened.map_err(|e| match a.paths.is_empty() {
        true => e.at("name its devices or their folder with -p if it is on files"),
        false => e,
    })
}

fn run(a: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<i32> {
    let pool = open(a)?;
    let shows = !a.quiet && std::io::stderr().is_terminal();
    let plan = plan(&pool, &a.opts, &mut |what| {
        if shows {
            let what: String = what.chars().filter(|c| !c.is_control()).take(70).collect();
            let _ = write!(err, "\r\x1b[K{what}");
            let _ = err.flush();
        }
    });
    if shows {
        let _ = write!(err, "\r\x1b[K");
    }
    let plan = plan?;
    // A reader that has seen enough closes the pipe; that is no fault.
    let _ = match a.json {
        true => writeln!(out, "{:#}", plan.json()),
        false => write!(out, "{}", plan.text()),
    };
    Ok(i32::from(plan.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args> {
        let disk = |name: &str| match name {
            "hdd" => Ok(Disk::default()),
            _ => Err(Error::invalid("no such model")),
        };
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Args::parse(&args, &Around { usage: "", page: "", disk: &disk, dirty: 1 << 30 })
    }

    #[test]
    fn command_lines() {
        let a = parse("plan tank --goal space --bytes=1.5G --min-gain 20% --json -p /x -p /y --model hdd").unwrap();
        assert_eq!((a.pool.as_str(), a.opts.goal, a.opts.bytes), ("tank", Goal::Space, 3 << 29));
        assert_eq!((a.opts.min_gain, a.json, a.paths.len()), (20, true, 2));
        assert!(parse("--no-predict plan tank --model hdd").unwrap().opts.disk.is_none());
        assert!(parse("plan --help").unwrap().help);
        for bad in [
            "",
            "plan",
            "tank",
            "run tank",
            "plan a b",
            "plan tank --goal speed",
            "plan tank --bytes",
            "plan tank --bytes x",
            "plan tank --min-gain 101",
            "plan tank --sample 0",
            "plan tank --model tape",
            "plan tank --frob",
            "plan tank -x",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(
            ["1", "64K", "1.5t", "10MB", "7GB"].map(size),
            [Some(1), Some(65536), Some(3 << 39), Some(10 << 20), Some(7 << 30)]
        );
        for bad in ["", "K", "-1", "1e9", "0", "nan", "inf", "9999999P", "\u{e9}K"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }
}
