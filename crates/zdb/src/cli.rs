//! The command `weir zdb`: zdb's option letters, and some options of its own.
//!
//! A pool is found among the devices of `-p` folders (or files), else, where the name is a file or
//! folder, there, else among the block devices of /dev. Nothing is ever written. Exit status: 0
//! good, 1 the check found errors, 2 wrong use or a pool that cannot be opened.

use std::io::Write;
use std::path::{Path, PathBuf};

use base::{Error, Result, ResultExt};

use crate::check::{CheckOpts, CheckReport, Finding, TypeStat, check};
use crate::device::{Labeled, candidates};
use crate::heatmap::HeatMap;
use crate::manifest::{ManifestOpts, tree_manifest};
use crate::pool::{OpenOpts, PoolReader, scan};
use crate::text::{io, nice};
use crate::{dump, text};

const USAGE: &str = "\
usage: weir zdb [-CdDhimuv...] [-bc...] [-e] [-p PATH]... [-t TXG] [POOL | FILE...] [DATASET [OBJECT...]]
       weir zdb --check [-v] [-p PATH]... [POOL | FILE...]
       weir zdb --manifest [-p PATH]... [POOL | FILE...] [DATASET]
       weir zdb -O [-p PATH]... POOL DATASET PATH
       weir zdb -m[m] --heatmap [--html FILE] [-p PATH]... [POOL | FILE...]
       weir zdb -l[u] DEVICE...

  -b  walk all blocks, look for leaks (-bb: a table by type)   -c  the same: checksums are always verified
  -C  configuration object     -d  datasets; -dd objects; -dddd everything in them
  -D  dedup tables (-DD: by references, -DDD: each class)
  -h  history (-hh: events)    -i  intent logs (-ii: records)
  -l  labels of devices        -m  metaslabs (-mm: space maps, -mmmm: entries)
  -O  a file's content, a folder's names                       -u  uberblock
  -e  the pool is not imported (always so)                     -t  the newest state up to this txg
  -p  folder with the pool's files, or one of them             -v  say more
  --check     recompute and compare everything; ends with `POOL: N blocks, M leaked, K errors`
  --heatmap   how full the metaslabs are, as a picture (-mm: each of its own); --html: as a page
  --manifest  every file of every file system and snapshot as a line of JSON
";

/// The parsed command line.
#[derive(Default)]
struct Args {
    letters: Vec<char>,
    paths: Vec<PathBuf>,
    txg: Option<u64>,
    check: bool,
    manifest: bool,
    heatmap: bool,
    html: Option<PathBuf>,
    rest: Vec<String>,
}

impl Args {
    fn parse(args: &[String]) -> Result<Args> {
        let mut a = Args::default();
        let mut it = args.iter();
        while let Some(s) = it.next() {
            let mut value =
                |what: &str| it.next().cloned().ok_or_else(|| Error::invalid(format!("{what} needs a value")));
            match s.as_str() {
                "--check" => a.check = true,
                "--manifest" => a.manifest = true,
                "--heatmap" => a.heatmap = true,
                "--html" => a.html = Some(value("--html")?.into()),
                s if s.starts_with("--html=") => a.html = Some(s["--html=".len()..].into()),
                "--help" => a.letters.push('?'),
                "--" => {
                    a.rest.extend(it.by_ref().cloned());
                }
                s if s.starts_with("--") => return Err(Error::invalid(format!("unknown option {s}"))),
                s if s.len() > 1 && s.starts_with('-') => {
                    let letters: Vec<char> = s[1..].chars().collect();
                    for (i, &c) in letters.iter().enumerate() {
                        match c {
                            'p' | 't' => {
                                let rest: String = letters[i + 1..].iter().collect();
                                let v = if rest.is_empty() { value(&format!("-{c}"))? } else { rest };
                                if c == 'p' {
                                    a.paths.push(v.into());
                                } else {
                                    let n = v.parse().map_err(|_| Error::invalid(format!("-t {v}: not a number")))?;
                                    a.txg = Some(n);
                                }
                                break;
                            }
                            'b' | 'c' | 'C' | 'd' | 'D' | 'e' | 'h' | 'i' | 'l' | 'm' | 'O' | 'u' | 'v' | 'A' | 'F'
                            | 'G' | 'L' | 'P' | 's' | 'Y' => a.letters.push(c),
                            c => return Err(Error::invalid(format!("unknown option -{c}"))),
                        }
                    }
                }
                _ => a.rest.push(s.clone()),
            }
        }
        if a.html.is_some() && !a.heatmap {
            return Err(Error::invalid("--html is the page of --heatmap, which is missing"));
        }
        Ok(a)
    }
    fn count(&self, c: char) -> u32 {
        self.letters.iter().filter(|l| **l == c).count() as u32
    }
}

/// Runs the command with `args` (without program and command name). The exit status comes back.
pub fn main(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> i32 {
    let mut a = match Args::parse(args) {
        Ok(a) => a,
        Err(e) => {
            let _ = write!(err, "zdb: {e}\n{USAGE}");
            return 2;
        }
    };
    if a.count('?') > 0 {
        let _ = out.write_all(USAGE.as_bytes());
        return 0;
    }
    match run(&mut a, out, err) {
        Ok(code) => code,
        Err(e) => {
            // A reader that has seen enough closes the pipe; that is no fault.
            if !e.to_string().starts_with("writing") {
                let _ = writeln!(err, "zdb: {e}");
            }
            2
        }
    }
}

fn run(a: &mut Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<i32> {
    if a.count('l') > 0 {
        return labels(a, out, err);
    }
    let pool = open(a)?;
    if a.manifest {
        let opts = ManifestOpts { dataset: a.rest.first().cloned(), no_content: false };
        let mut faults = 0;
        tree_manifest(&pool, &opts, out, &mut |e| {
            faults += 1;
            let _ = writeln!(err, "{e}");
        })?;
        return Ok(i32::from(faults != 0));
    }
    if a.check {
        let report = run_check(&pool, a, out)?;
        return Ok(i32::from(!report.is_clean()));
    }
    if a.heatmap {
        let map = HeatMap::of(&pool);
        match &a.html {
            Some(path) => map.write_html(path)?,
            None => io(out.write_all(map.terminal(a.count('m') + a.count('v') > 1).as_bytes()))?,
        }
        return Ok(0);
    }
    if a.count('O') > 0 {
        let [dataset, path] = &a.rest[..] else {
            return Err(Error::invalid("-O needs a dataset and a path"));
        };
        dump::file(&pool, dataset, path, out)?;
        return Ok(0);
    }
    let mut dataset = a.rest.first().cloned();
    let objects: Result<Vec<u64>> = a.rest.iter().skip(1).map(|s| object_number(s)).collect();
    let objects = objects?;
    if let Some(name) = dataset.as_deref().filter(|d| *d != pool.name() && !matches!(*d, "mos" | "MOS" | "0"))
        && crate::dsl::Dsl::load(&pool)?.find(name).is_none()
    {
        return Err(Error::not_found(format!("there is no dataset '{name}'")));
    }
    let asked = a.letters.iter().any(|c| "bcCdDhimu".contains(*c));
    if a.count('u') > 0 {
        io(writeln!(out, "\nUberblock:"))?;
        text::uberblock(&pool.ub, a.count('u') > 1 || a.count('v') > 0, out)?;
        io(writeln!(out))?;
    }
    if a.count('C') > 0 || !asked {
        io(write!(out, "\nMOS Configuration:\n{}", pool.config_list.indented(8)))?;
    }
    // A pool's name means all of it, unless objects of the root dataset are given.
    if objects.is_empty() && dataset.as_deref() == Some(pool.name()) && a.count('d') < 2 {
        dataset = None;
    }
    if a.count('d') > 0 {
        dump::datasets(&pool, dataset.as_deref(), &objects, a.count('d') + a.count('v'), out)?;
    }
    if a.count('i') > 0 && a.count('d') == 0 {
        dump::intent_logs(&pool, dataset.as_deref(), a.count('i') + a.count('v') - 1, out)?;
    }
    if a.count('m') > 0 {
        dump::metaslabs(&pool, a.count('m') + a.count('v'), out)?;
    }
    if a.count('D') > 0 {
        crate::dedup::tables(&pool, a.count('D') + a.count('v'), out)?;
    }
    if a.count('h') > 0 {
        dump::history(&pool, a.count('h') + a.count('v') > 1, out)?;
    }
    if a.count('b') + a.count('c') > 0 {
        let report = check(&pool, &CheckOpts { files: false, ..CheckOpts::default() }, &mut |_| {});
        blocks(&pool, &report, a.count('b') + a.count('v') > 1, out)?;
        return Ok(if report.is_clean() { 0 } else { 1 });
    }
    Ok(0)
}

fn object_number(s: &str) -> Result<u64> {
    let bad = |_| Error::invalid(format!("'{s}' is not an object number"));
    match s.parse::<i64>() {
        Ok(n) if n < 0 => Ok(n as u64),
        _ => s.parse::<u64>().map_err(bad),
    }
}

/// Opens the pool that the arguments name; leaves datasets and objects in `rest`.
fn open(a: &mut Args) -> Result<PoolReader> {
    let mut files = Vec::new();
    for p in &a.paths {
        files.extend(candidates(p)?);
    }
    let mut opts = OpenOpts { txg: a.txg, ..OpenOpts::default() };
    if a.paths.is_empty() {
        while let Some(f) = a.rest.first().filter(|f| f.contains('/') && Path::new(f.as_str()).exists()) {
            files.extend(candidates(Path::new(f.as_str()))?);
            a.rest.remove(0);
        }
        // A bare name is a file only where it cannot be a pool's.
        while files.is_empty() || a.rest.first().is_some_and(|f| f.ends_with(".img") && Path::new(f).exists()) {
            match a.rest.first().filter(|f| Path::new(f.as_str()).is_file()) {
                Some(f) => files.push(f.into()),
                None => break,
            }
            a.rest.remove(0);
        }
    }
    let given = !files.is_empty();
    if !given {
        if !a.paths.is_empty() {
            return Err(Error::not_found(format!("{}: there are no devices in it", a.paths[0].display())));
        }
        if a.rest.is_empty() {
            return Err(Error::invalid("which pool? Give its name, or -p and the folder of its files"));
        }
        files = candidates(Path::new("/dev"))?;
    }
    let found = scan(&files)?;
    // The first word is the pool, or a dataset whose first part is the pool's name.
    let names: Vec<String> =
        found.iter().filter_map(|d| d.best().and_then(|l| l.str("name")).map(str::to_owned)).collect();
    if let Some(word) = a.rest.first().cloned() {
        let pool = word.split(['/', '@']).next().unwrap_or("").to_owned();
        let guids = found.iter().filter_map(Labeled::pool_guid).any(|g| g.0.to_string() == word);
        if names.contains(&pool) || guids {
            let whole = pool == word;
            opts.pool = Some(if guids { word.clone() } else { pool });
            // `POOL DATASET` names both; `POOL OBJECT` and `POOL/FS OBJECT` one.
            if (whole && a.rest.get(1).is_some_and(|w| w.parse::<i64>().is_err()))
                || guids
                || a.check
                || a.manifest && whole
            {
                a.rest.remove(0);
            }
        } else if !given || a.check {
            return Err(Error::not_found(format!("there is no pool '{pool}' on these devices")));
        }
    }
    PoolReader::from_devices(found, &opts).at(|| opts.pool.clone().unwrap_or_else(|| "pool".into()))
}

fn labels(a: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<i32> {
    let mut code = 0;
    let devices: Vec<PathBuf> = a.rest.iter().map(PathBuf::from).chain(a.paths.iter().cloned()).collect();
    if devices.is_empty() {
        return Err(Error::invalid("-l needs a device"));
    }
    for path in &devices {
        match Labeled::open(path) {
            Ok(found) => {
                for d in &found {
                    if !text::labels(d, a.count('u') > 0, a.count('l') - 1 + a.count('v'), out)? {
                        code = 2;
                    }
                }
            }
            Err(e) => {
                let _ = writeln!(err, "zdb: {e}");
                code = 2;
            }
        }
    }
    Ok(code)
}

fn run_check(pool: &PoolReader, a: &Args, out: &mut dyn Write) -> Result<CheckReport> {
    let verbose = a.count('v') > 0;
    let mut fault = Ok(());
    let report = check(pool, &CheckOpts::default(), &mut |f| {
        let r = match f {
            Finding::Error(e) => writeln!(out, "  {e}"),
            Finding::Note(n) if verbose => writeln!(out, "  note: {n}"),
            Finding::Progress(p) if verbose => writeln!(out, "checking {p}"),
            _ => Ok(()),
        };
        if fault.is_ok() {
            fault = io(r);
        }
    });
    fault?;
    if report.error_count > report.errors.len() as u64 {
        io(writeln!(out, "  ... and {} more errors", report.error_count - report.errors.len() as u64))?;
    }
    if verbose {
        blocks(pool, &report, true, out)?;
        io(writeln!(
            out,
            "{} bytes claimed, {} copies read, {} objects, {} files in {} file systems and snapshots; histograms of {} metaslabs as the free segments are, of {} with some in parts",
            report.bytes,
            report.copies,
            report.objects,
            report.files,
            report.filesystems,
            report.histograms_exact,
            report.histograms_split
        ))?;
    }
    io(writeln!(out, "{}", report.summary()))?;
    Ok(report)
}

/// The figures of `zdb -b`.
fn blocks(pool: &PoolReader, r: &CheckReport, table: bool, out: &mut dyn Write) -> Result<()> {
    io(writeln!(out, "\nTraversing all blocks to verify checksums and verify nothing leaked ...\n"))?;
    for e in &r.errors {
        io(writeln!(out, "{e}"))?;
    }
    if r.leaked == 0 && r.error_count == 0 {
        io(writeln!(out, "\tNo leaks (block sum matches space maps exactly)\n"))?;
    } else if r.leaked != 0 {
        let alloc: u64 = r.allocated.values().sum();
        io(writeln!(out, "block traversal size {} != alloc {alloc} (leaked {})", r.bytes, r.leaked))?;
    }
    let mut all = TypeStat::default();
    r.types.values().for_each(|t| all.add(t));
    let avg = |n: u64| n.checked_div(all.count).unwrap_or(0);
    let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    io(writeln!(out, "\tbp count:         {:13}\n\tganged count:     {:13}", r.blocks, r.ganged))?;
    io(writeln!(out, "\tbp logical:       {:13}      avg: {:6}", all.lsize, avg(all.lsize)))?;
    io(writeln!(
        out,
        "\tbp physical:      {:13}      avg: {:6}     compression: {:6.2}",
        all.psize,
        avg(all.psize),
        ratio(all.lsize, all.psize)
    ))?;
    io(writeln!(
        out,
        "\tbp allocated:     {:13}      avg: {:6}     compression: {:6.2}",
        r.bytes,
        avg(r.bytes),
        ratio(all.lsize, r.bytes)
    ))?;
    for (id, n) in &r.allocated {
        let size = pool.config.vdev_tree.children.get(*id as usize).and_then(|c| c.asize).unwrap_or(0);
        io(writeln!(out, "\tvdev {id:5}:       {n:13}     used: {:5.2}%", 100.0 * ratio(*n, size)))?;
    }
    io(writeln!(out, "\n\tadditional, non-pointer bps:  {:10}\n", r.embedded))?;
    if table {
        io(writeln!(out, "Blocks\tLSIZE\tPSIZE\tASIZE\t  avg\t comp\t%Total\tType"))?;
        for ((t, level), s) in &r.types {
            io(writeln!(
                out,
                "{:>6}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:5.2}\t{:6.2}\t{}{}",
                nice(s.count),
                nice(s.lsize),
                nice(s.psize),
                nice(s.asize),
                nice(s.asize.checked_div(s.count).unwrap_or(0)),
                ratio(s.lsize, s.psize),
                100.0 * ratio(s.asize, all.asize),
                if *level > 0 { "    L1+ " } else { "" },
                t.name()
            ))?;
        }
    }
    Ok(())
}
