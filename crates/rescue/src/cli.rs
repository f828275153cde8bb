//! The command `weir rescue`.
//!
//! Exit status: 0 everything was copied as it was last, 1 something is missing (the report says
//! what), 2 wrong use, no way to the pool, or a target that cannot be written.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::{Error, NiceNum, Result};
use zdb::device::{Labeled, candidates};

use crate::copy::Progress;
use crate::report::printable;
use crate::rescue::{Opts, ScanWhen, rescue};

/// Pause between two lines of progress.
const PERIOD: Duration = Duration::from_millis(250);

/// The parsed command line.
#[derive(Default, Debug)]
struct Args {
    opts: Opts,
    /// Files, devices and folders.
    paths: Vec<PathBuf>,
    quiet: bool,
    help: bool,
}

/// Whether a word begins a layout in words.
fn is_layout(word: &str) -> bool {
    matches!(word, "mirror" | "raidz" | "raidz1" | "raidz2" | "raidz3" | "stripe")
        || word.starts_with("draid") && !word.contains(['/', '.'])
}

impl Args {
    fn parse(args: &[String]) -> Result<Args> {
        let mut a = Args::default();
        let mut words: Vec<String> = Vec::new();
        let mut it = args.iter();
        let mut options = true;
        while let Some(arg) = it.next() {
            let (name, joined) = match arg.split_once('=') {
                Some((n, v)) if n.starts_with("--") => (n, Some(v.to_owned())),
                _ => (arg.as_str(), None),
            };
            let mut value = |name: &str| {
                let v = joined.clone().or_else(|| it.next().cloned());
                v.ok_or_else(|| Error::invalid(format!("option {name} needs a value")))
            };
            let number =
                |text: String| text.parse::<u64>().map_err(|_| Error::invalid(format!("{name} {text}: not a number")));
            if !options || !name.starts_with('-') || name == "-" {
                words.push(arg.clone());
                continue;
            }
            match name {
                "--" => options = false,
                "-o" | "--output" => a.opts.dir = value(name)?.into(),
                "-s" | "--snapshots" => a.opts.snapshots = true,
                "-n" | "--dry-run" => a.opts.dry_run = true,
                "-q" | "--quiet" => a.quiet = true,
                "-h" | "--help" => a.help = true,
                "-d" | "--dataset" => a.opts.datasets.push(value(name)?),
                "-t" | "--txg" => a.opts.txg = Some(number(value(name)?)?),
                "-k" | "--key-file" => a.opts.key_files.push(value(name)?.into()),
                "--ashift" => {
                    let n = number(value(name)?)?;
                    let fits = u8::try_from(n).ok().filter(|n| (9..=16).contains(n));
                    a.opts.ashift = Some(fits.ok_or_else(|| Error::invalid("--ashift is 9 to 16"))?);
                }
                "--scan" => {
                    a.opts.scan = match value(name)?.as_str() {
                        "auto" => ScanWhen::Auto,
                        "always" => ScanWhen::Always,
                        "never" => ScanWhen::Never,
                        other => return Err(Error::invalid(format!("--scan {other}: it is auto, always or never"))),
                    }
                }
                _ => return Err(Error::invalid(format!("invalid option '{name}'"))),
            }
        }
        if a.help {
            return Ok(a);
        }
        if a.opts.dir.as_os_str().is_empty() {
            return Err(Error::invalid("where to? Give a folder with -o"));
        }
        a.place(words)?;
        Ok(a)
    }

    /// Tells the pool, devices and a layout apart.
    fn place(&mut self, words: Vec<String>) -> Result<()> {
        if words.iter().any(|w| is_layout(w)) {
            self.opts.layout = words;
            return Ok(());
        }
        for word in words {
            let path = Path::new(&word);
            if word.contains('/') || path.exists() {
                self.paths.push(path.to_owned());
            } else if self.opts.pool.is_none() {
                self.opts.pool = Some(word);
            } else {
                return Err(Error::not_found(format!("there is no file or device '{word}'")));
            }
        }
        if self.paths.is_empty() && self.opts.pool.is_none() {
            return Err(Error::invalid("which pool? Give its name, its devices, or the folder of its images"));
        }
        Ok(())
    }
}

/// Runs the command with `args` (without program and command name); `usage` is what follows a
/// mistake in them, `page` what `--help` prints. The exit status comes back.
pub fn main(args: &[String], (usage, page): (&str, &str), out: &mut dyn Write, err: &mut dyn Write) -> i32 {
    let a = match Args::parse(args) {
        Ok(a) => a,
        Err(e) => {
            let _ = write!(err, "{e}\n{usage}");
            return 2;
        }
    };
    if a.help {
        let _ = out.write_all(page.as_bytes());
        return 0;
    }
    match run(&a, out, err) {
        Ok(code) => code,
        Err(e) => {
            let _ = writeln!(err, "{e}");
            2
        }
    }
}

fn run(a: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<i32> {
    let mut devices = Vec::new();
    if a.opts.layout.is_empty() {
        let mut files = Vec::new();
        for p in &a.paths {
            files.extend(candidates(p)?);
        }
        let given = !files.is_empty();
        if !given {
            match a.paths.first() {
                Some(p) => return Err(Error::not_found(format!("{}: there are no devices in it", p.display()))),
                None => files = candidates(Path::new("/dev"))?,
            }
        }
        for f in files {
            match Labeled::open(&f) {
                // Of the machine's disks those without labels are not the pool's for all we know.
                Ok(found) => devices.extend(found.into_iter().filter(|d| given || d.best().is_some())),
                Err(e) if given => {
                    let _ = writeln!(err, "{e}");
                }
                Err(_) => {}
            }
        }
    }
    let mut line = Line { on: !a.quiet && std::io::stderr().is_terminal(), last: None, width: 0 };
    let done = rescue(devices, &mut |path| open_one(path), &a.opts, &mut |p| line.show(p, err));
    line.clear(err);
    let summary = done?;
    let _ = writeln!(out, "{}", summary.line());
    let _ = writeln!(out, "report: {} and {}", summary.text.display(), summary.json.display());
    Ok(i32::from(!summary.is_complete()))
}

/// One device of a layout in words.
fn open_one(path: &Path) -> Result<Labeled> {
    let mut found = Labeled::open(path)?;
    match found.len() {
        1 => Ok(found.remove(0)),
        n => Err(Error::invalid(format!("{} has {n} partitions of a pool: name one", path.display()))),
    }
}

/// A line of progress on a terminal.
struct Line {
    on: bool,
    last: Option<Instant>,
    width: usize,
}

impl Line {
    fn show(&mut self, p: &Progress, err: &mut dyn Write) {
        if !self.on || self.last.is_some_and(|t| t.elapsed() < PERIOD) {
            return;
        }
        self.last = Some(Instant::now());
        let text = picture(p);
        let pad = self.width.saturating_sub(text.chars().count());
        self.width = text.chars().count();
        let _ = write!(err, "\r{text}{:pad$}", "");
        let _ = err.flush();
    }
    fn clear(&mut self, err: &mut dyn Write) {
        if self.last.is_some() {
            let _ = write!(err, "\r{:1$}\r", "", self.width);
        }
    }
}

/// Progress as text of less than 80 characters.
fn picture(p: &Progress) -> String {
    let figures = match p.scanned {
        (_, 0) => format!("{} files, {}, {} findings", p.files, NiceNum(p.bytes), p.findings),
        (done, all) => format!("{}% of {}", done.min(all) * 100 / all, NiceNum(all)),
    };
    let room = 76usize.saturating_sub(figures.len());
    let what: String = printable(&p.what).chars().take(room).collect();
    format!("{what}: {figures}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args> {
        Args::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn command_lines() {
        let a = parse("tank -o /x -s --key-file=/k -d tank/a --txg 7 --scan never").unwrap();
        assert_eq!((a.opts.pool.as_deref(), a.opts.snapshots, a.opts.txg), (Some("tank"), true, Some(7)));
        assert_eq!((a.opts.key_files.len(), a.opts.datasets.len(), a.opts.scan), (1, 1, ScanWhen::Never));
        let a = parse("-o /x mirror /a - raidz1 /b /c /d").unwrap();
        assert_eq!(a.opts.layout.len(), 7);
        let a = parse("-o /x stripe /a").unwrap();
        assert_eq!(a.opts.layout, ["stripe", "/a"]);
        let a = parse("/dev /tmp tank -o /x").unwrap();
        assert_eq!((a.paths.len(), a.opts.pool.as_deref()), (2, Some("tank")));
        for bad in
            ["tank", "-o /x", "tank -o", "tank -o /x --frob", "tank -o /x --ashift 99", "a b -o /x", "-o /x a -t b"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn progress_fits_a_line() {
        let p = Progress { what: "x".repeat(200), scanned: (50, 100), ..Progress::default() };
        assert!(picture(&p).len() < 80 && picture(&p).ends_with("50% of 100"));
        let p = Progress { files: 3, bytes: 5 << 20, ..p };
        assert!(picture(&Progress { scanned: (0, 0), ..p }).contains("3 files"));
    }
}
