//! The command `weir defrag`.
//!
//! Exit status of a plan: 0 there is one, 1 there is none (nothing gains enough, no room), 2 wrong
//! use, no way to the pool. Of a run: 0 all of its files are rewritten, 1 some are left out, 2 it
//! ended before its end.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use zdb::device::candidates;
use zdb::{OpenOpts, PoolReader};

use crate::journal::{Item, Journal, Orders};
use crate::measure::measure;
use crate::plan::Goal;
use crate::pool_plan::{Opts, PoolPlan, plan};
use crate::predict::Disk;
use crate::report::{self, NAME, tame};
use crate::run::{Meter, Mounts, look, rewrite_all};

/// Share of the time in percent that a run works.
const SHARE: u32 = 50;

/// The parsed command line.
#[derive(Default, Debug)]
struct Args {
    opts: Opts,
    paths: Vec<PathBuf>,
    pool: String,
    json: bool,
    quiet: bool,
    help: bool,
    /// Whether the plan is done, too.
    run: bool,
    /// Only what it would do.
    dry: bool,
    /// The plan to do.
    plan: Option<PathBuf>,
    share: Option<u32>,
    /// A run that was begun is forgotten.
    anew: bool,
    has_model: bool,
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
    /// Waits until everything that a pool was given is on disk.
    pub sync: &'a dyn Fn(&str) -> Result<()>,
    /// Where the file systems of the pool with a guid are mounted: another pool on this machine may
    /// have the same name.
    pub mounts: &'a dyn Fn(u64) -> Result<Mounts>,
    /// The folder of the journals of runs.
    pub state: &'a Path,
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
                "--model" => {
                    a.opts.disk = Some((around.disk)(&value()?)?);
                    a.has_model = true;
                }
                "--plan" => a.plan = Some(value()?.into()),
                "--share" => {
                    let v = value()?;
                    let n = v.strip_suffix('%').unwrap_or(&v).parse().ok().filter(|n| (1..=100).contains(n));
                    let bad = || Error::invalid(format!("--share {v}: it is 1 to 100 percent of the time"));
                    a.share = Some(n.ok_or_else(bad)?);
                }
                "--new" => a.anew = true,
                "-n" | "--dry-run" => a.dry = true,
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
        let [what, rest @ ..] = &words[..] else {
            return Err(Error::invalid("what to do? There are 'plan' and 'run'"));
        };
        a.run = match what.as_str() {
            "plan" => false,
            "run" => true,
            other => {
                return Err(Error::invalid(format!("'{other}' is no command of defrag: there are 'plan' and 'run'")));
            }
        };
        match rest {
            [pool] => a.pool.clone_from(pool),
            [] => return Err(Error::invalid("which pool? Give its name or guid")),
            _ => return Err(Error::invalid(format!("a {what} is for one pool"))),
        }
        let only = [("--plan", a.plan.is_some()), ("--share", a.share.is_some()), ("--new", a.anew), ("-n", a.dry)];
        if let Some((name, _)) = only.iter().find(|(_, given)| *given && !a.run) {
            return Err(Error::invalid(format!("{name} is for 'defrag run'")));
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
    let (done, what) = match a.run {
        true => (run(&a, around, out, err), "defragment"),
        false => (only_plan(&a, out, err), "plan for"),
    };
    match done {
        Ok(code) => code,
        Err(e) => {
            let _ = writeln!(err, "cannot {what} '{}': {e}", a.pool);
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

/// Makes a plan, with its progress on a terminal.
fn make(a: &Args, pool: &PoolReader, err: &mut dyn Write) -> Result<PoolPlan> {
    let shows = !a.quiet && std::io::stderr().is_terminal();
    let plan = plan(pool, &a.opts, &mut |what| {
        if shows {
            let what: String = what.chars().filter(|c| !c.is_control()).take(70).collect();
            let _ = write!(err, "\r\x1b[K{what}");
            let _ = err.flush();
        }
    });
    if shows {
        let _ = write!(err, "\r\x1b[K");
    }
    plan
}

fn only_plan(a: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<i32> {
    let plan = make(a, &open(a)?, err)?;
    // A reader that has seen enough closes the pipe; that is no fault.
    let _ = match a.json {
        true => writeln!(out, "{:#}", plan.json()),
        false => write!(out, "{}", plan.text()),
    };
    Ok(i32::from(plan.is_empty()))
}

/// Says what a run would rewrite.
fn would(files: &[Item], mounts: Mounts, out: &mut dyn Write) -> Result<()> {
    let (count, left) = look(files, mounts)?;
    let _ = writeln!(out, "Would rewrite {count} of {} files.", files.len());
    report::left(&left, out);
    Ok(())
}

/// The journal to go on with, or a new one; none if there is nothing to do.
fn begin(
    a: &Args,
    around: &Around<'_>,
    guid: u64,
    pool: &PoolReader,
    (out, err): (&mut dyn Write, &mut dyn Write),
) -> Result<Option<Journal>> {
    let path = around.state.join(format!("defrag-{guid}"));
    let given = a.plan.as_deref().map(Orders::read).transpose()?;
    if let Some(orders) = given.as_ref().filter(|o| o.guid != guid) {
        let (own, name) = (orders.guid, tame(&orders.pool, NAME));
        return Err(Error::invalid(format!("the plan is for another pool, '{name}' with the guid {own}")));
    }
    let begun = if a.anew { None } else { Journal::open(&path)? };
    if let Some(journal) = begun {
        if given.is_some_and(|g| g != journal.orders) {
            return Err(Error::new(
                ErrorKind::Exists,
                "a run of another plan is not at its end; go on with it without --plan, or forget it with --new",
            ));
        }
        let (done, all, txg) = (journal.done().count(), journal.orders.files.len(), journal.orders.txg);
        let going: &mut dyn Write = if a.json { &mut *err } else { &mut *out };
        let _ = writeln!(going, "Going on with the plan of txg {txg}: {done} of {all} files are done.");
        if a.dry {
            let rest: Vec<Item> = journal.rest().cloned().collect();
            would(&rest, (around.mounts)(guid)?, out)?;
            return Ok(None);
        }
        return Ok(Some(journal));
    }
    let orders = match given {
        Some(orders) => orders,
        None => {
            let plan = make(a, pool, err)?;
            if !a.json {
                let _ = writeln!(out, "{}", plan.text());
            }
            Orders::of(plan.json())?
        }
    };
    if orders.files.is_empty() {
        return Ok(None);
    }
    if a.dry {
        would(&orders.files, (around.mounts)(guid)?, out)?;
        return Ok(None);
    }
    std::fs::create_dir_all(around.state)
        .map_err(|e| Error::new(ErrorKind::Io, format!("'{}' cannot be made: {e}", around.state.display())))?;
    Journal::create(&path, orders).map(Some)
}

fn run(a: &Args, around: &Around<'_>, out: &mut dyn Write, err: &mut dyn Write) -> Result<i32> {
    let pool = open(a)?;
    let guid = pool.devices.iter().find_map(|d| d.pool_guid()).map_or(0, |g| g.0);
    let name = pool.name().to_owned();
    let journal = begin(a, around, guid, &pool, (&mut *out, &mut *err))?;
    drop(pool);
    let Some(mut journal) = journal else { return Ok(i32::from(!a.dry)) };
    let shows = std::io::stderr().is_terminal();
    let mounts = (around.mounts)(guid)?;
    let left = rewrite_all(&mut journal, mounts, a.share.unwrap_or(SHARE), &mut Meter::new(err, shows, a.quiet))?;

    let numbered = journal.orders.files.iter().enumerate().map(|(n, f)| (n, f.id));
    let done: Vec<(usize, (u64, u64))> = numbered.filter(|(_, id)| journal.done().any(|f| f.id == *id)).collect();
    let mut opts = a.opts.clone();
    if let (false, Some(model)) = (a.has_model, journal.orders.json["read"]["model"].as_str()) {
        opts.disk = opts.disk.and((around.disk)(model).ok());
    }
    // What was freed is in the maps when it is on disk.
    let measured = (around.sync)(&name).and_then(|()| measure(&open(a)?, &done, &opts));
    let _ = match (&measured, a.json) {
        (Ok(m), true) => writeln!(out, "{:#}", report::outcome_json(&journal, m, &left)),
        (Ok(m), false) => write!(out, "{}", report::outcome(&journal, m)),
        (Err(e), _) => writeln!(err, "what the run changed cannot be measured: {e}"),
    };
    if !a.json {
        report::left(&left, out);
    }
    journal.finish()?;
    Ok(i32::from(!left.is_empty()))
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
        let around = Around {
            usage: "",
            page: "",
            disk: &disk,
            dirty: 1 << 30,
            sync: &|_| Ok(()),
            mounts: &|_| Ok(Mounts::new()),
            state: Path::new("/none"),
        };
        Args::parse(&args, &around)
    }

    #[test]
    fn command_lines() {
        let a = parse("plan tank --goal space --bytes=1.5G --min-gain 20% --json -p /x -p /y --model hdd").unwrap();
        assert_eq!((a.pool.as_str(), a.opts.goal, a.opts.bytes), ("tank", Goal::Space, 3 << 29));
        assert_eq!((a.opts.min_gain, a.json, a.paths.len()), (20, true, 2));
        assert!(parse("--no-predict plan tank --model hdd").unwrap().opts.disk.is_none());
        assert!(parse("plan --help").unwrap().help);
        let r = parse("run tank --plan /p --share 20% -n --new").unwrap();
        assert_eq!((r.run, r.dry, r.anew, r.share), (true, true, true, Some(20)));
        for bad in [
            "",
            "plan",
            "tank",
            "run",
            "run a b",
            "stop tank",
            "run tank --share 0",
            "run tank --share 101",
            "plan tank -n",
            "plan tank --plan x",
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
