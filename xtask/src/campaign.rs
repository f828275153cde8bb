//! `cargo xtask campaign`: a slice of every long profile of TESTING.md, one after the other, within
//! a number of minutes.
//!
//! **Profile**: a run of `ztest` (or of `cargo xtask kill9`, `cargo xtask fuzz`, or of a script in
//! `docs/`) that takes seeds without end, or the ignored tests of a package. **Slice**: the seeds
//! that a profile begins within its share of the minutes, from a first seed that the run draws;
//! `--seed` repeats a run.
//!
//! The order: build, then for each profile draw the first seed, run, keep the output in
//! `target/campaign/NAME.log`, print one line. A profile is *good* if it ends with status 0; its
//! own last line has its counts. A slice that needs much longer than its share is ended and counts
//! as *bad*: a hang is a finding.
//!
//! The last line is `profiles=N bad=0 seconds=N`. Knobs: `--minutes` (the whole, without the
//! build), `--seed`, `--jobs`, `--only NAME,NAME`, `--judge LEVEL`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench_fs_contest::build;

const USAGE: &str =
    "usage: cargo xtask campaign [--minutes N] [--seed N] [--jobs N] [--only NAME,...] [--judge full|zdb|none]";

/// How much longer than its share a slice may take: the last seeds begin just before the end of the
/// share.
const GRACE: Duration = Duration::from_secs(900);

/// Rounds of `kill9` for each second of its share; a round takes three to five seconds.
const KILL9_ROUNDS_PER_SECOND: f64 = 0.2;

/// The program that runs a profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Runner {
    /// `ztest` with these words; `{}` becomes the range of seeds, `{seed}` the first of them.
    Ztest(&'static [&'static str]),
    /// `ztest --campaign` with the trouble that the profile is named after.
    Trouble,
    /// `ztest` built with mistakes on purpose, which must be found: a status other than 0 is good.
    Planted(&'static [&'static str]),
    /// `cargo xtask kill9` with these words.
    Kill9(&'static [&'static str]),
    /// `cargo xtask fuzz`, its seconds shared by all targets.
    Fuzz,
    /// A script of `docs/`, run in an empty folder with `WEIR` set.
    Script(&'static str),
    /// The tests of a package that are too long for `cargo test`: package, test binary, module.
    /// They get 20 seeds to draw from as `WEIR_SEEDS`.
    Ignored(&'static str, &'static str, &'static str),
}

/// A long profile.
struct Profile {
    name: &'static str,
    /// Its part of the minutes, in relation to the others.
    weight: u32,
    runner: Runner,
}

const fn profile(name: &'static str, weight: u32, runner: Runner) -> Profile {
    Profile { name, weight, runner }
}

/// The words of [`Runner::Trouble`] but for the trouble.
const TROUBLE: &[&str] = &["--campaign", "--cuts", "1000000000", "--seed", "{seed}", "--every", "5"];

/// Seeds of pools that show a bug in seconds; with others that may take hours.
const REWRITTEN: &str = "932362003..932362004";

/// Every long profile of TESTING.md.
const PROFILES: &[Profile] = &[
    profile("workloads", 5, Runner::Ztest(&["--workloads", "{}"])),
    profile("layouts", 5, Runner::Ztest(&["--workloads", "{}", "--layout", "all"])),
    profile(
        "synchronous",
        8,
        Runner::Ztest(&["--campaign", "--cuts", "1000000000", "--seed", "{seed}", "--images", "2500000"]),
    ),
    profile("log-writes", 2, Runner::Trouble),
    profile("log-flushes", 2, Runner::Trouble),
    profile("log-gone", 2, Runner::Trouble),
    profile("full", 2, Runner::Trouble),
    profile("pool-flush", 2, Runner::Trouble),
    profile("pool-write", 2, Runner::Trouble),
    profile("planted", 2, Runner::Planted(&["--campaign", "--bug", "no-flush", "--cuts", "6000", "--seed", "0"])),
    profile("planted-rewrite", 1, Runner::Planted(&["--snapshots", REWRITTEN, "--bug", "rewrite-ignored"])),
    profile("planted-livelist", 1, Runner::Planted(&["--snapshots", "{}", "--bug", "kill-unlisted"])),
    profile(
        "planted-livelist-part",
        1,
        Runner::Planted(&["--snapcuts", "3..4", "--every", "6", "--bug", "freed-unnoted"]),
    ),
    profile("planted-brt", 1, Runner::Planted(&["--workloads", "{}", "--features", "all", "--bug", "brt-not-asked"])),
    profile(
        "planted-claim",
        1,
        Runner::Planted(&[
            "--campaign",
            "--cuts",
            "20000",
            "--seed",
            "{seed}",
            "--features",
            "all",
            "--bug",
            "clone-claimed-twice",
        ]),
    ),
    profile(
        "planted-dedup",
        1,
        Runner::Planted(&["--workloads", "{}", "--features", "all", "--bug", "dedup-flush-lost"]),
    ),
    profile(
        "planted-width",
        1,
        Runner::Planted(&["--expandcuts", "2..4", "--every", "61", "--bug", "width-of-content"]),
    ),
    profile(
        "planted-removal",
        1,
        Runner::Planted(&["--removecuts", "5..7", "--every", "31", "--bug", "mapping-not-freed"]),
    ),
    profile(
        "planted-owners",
        1,
        Runner::Planted(&["--cuts", "0..2", "--quotas", "--every", "31", "--bug", "old-owner-kept"]),
    ),
    profile("planted-split", 1, Runner::Planted(&["--splitcuts", "1..3", "--every", "3", "--bug", "unborn-taken"])),
    profile("planted-trim", 1, Runner::Planted(&["--workloads", "3..4", "--bug", "trim-not-disabled"])),
    profile("planted-caches", 1, Runner::Planted(&["--caches", "2..4", "--bug", "l2-unverified"])),
    profile("planted-caches-round", 1, Runner::Planted(&["--caches", "3..4", "--bug", "l2-overwritten-kept"])),
    profile("cuts", 4, Runner::Ztest(&["--cuts", "{}", "--txgs", "20", "--every", "7", "--images", "1000"])),
    profile(
        "device-cuts",
        3,
        Runner::Ztest(&["--cuts", "{}", "--layout", "all", "--txgs", "4", "--every", "40", "--images", "1000"]),
    ),
    profile("features", 3, Runner::Ztest(&["--workloads", "{}", "--layout", "all", "--features", "all"])),
    profile(
        "clones",
        3,
        Runner::Ztest(&["--campaign", "--cuts", "1000000000", "--seed", "{seed}", "--features", "all", "--every", "7"]),
    ),
    profile("feature-cuts", 2, Runner::Ztest(&["--cuts", "{}", "--features", "all", "--txgs", "20", "--every", "7"])),
    profile("owner-cuts", 2, Runner::Ztest(&["--cuts", "{}", "--quotas", "--txgs", "20", "--every", "7"])),
    profile(
        "owner-feature-cuts",
        2,
        Runner::Ztest(&["--cuts", "{}", "--quotas", "--features", "all", "--txgs", "20", "--every", "7"]),
    ),
    profile("snapshots", 4, Runner::Ztest(&["--snapshots", "{}"])),
    profile("snapcuts", 4, Runner::Ztest(&["--snapcuts", "{}", "--every", "9"])),
    profile("expand-cuts", 3, Runner::Ztest(&["--expandcuts", "{}", "--every", "5", "--images", "1000"])),
    profile("remove-cuts", 3, Runner::Ztest(&["--removecuts", "{}", "--every", "5", "--images", "1000"])),
    profile("split-cuts", 3, Runner::Ztest(&["--splitcuts", "{}", "--every", "5", "--images", "1000"])),
    profile("scans", 4, Runner::Ztest(&["--scans", "{}"])),
    profile("losses", 4, Runner::Ztest(&["--losses", "{}"])),
    profile("fill", 4, Runner::Ztest(&["--fill", "{}"])),
    profile("caches", 3, Runner::Ztest(&["--caches", "{}"])),
    profile("devices", 4, Runner::Ztest(&["--devices", "{}", "--layout", "all"])),
    profile("volumes", 4, Runner::Ztest(&["--volumes", "{}"])),
    profile("volume-cuts", 4, Runner::Ztest(&["--volcuts", "{}", "--every", "5", "--images", "1000000"])),
    profile("foreign", 3, Runner::Ztest(&["--foreign", "{}"])),
    profile("foreign24", 3, Runner::Ztest(&["--foreign24", "{}"])),
    profile("rescues", 3, Runner::Ztest(&["--rescues", "{}"])),
    profile("sends", 2, Runner::Ztest(&["--sends", "{}"])),
    profile("receive-cuts", 2, Runner::Ztest(&["--recvcuts", "{}", "--every", "10"])),
    profile("receives", 4, Runner::Ztest(&["--receives", "{}"])),
    profile("reference", 4, Runner::Ztest(&["--reference", "--start", "{seed}"])),
    profile("mutate", 4, Runner::Ztest(&["--mutate", "{}"])),
    profile("mutate-write", 4, Runner::Ztest(&["--mutate", "{}", "--write"])),
    profile("mutate-streams", 3, Runner::Ztest(&["--mutate", "{}", "--streams"])),
    profile("kill9", 6, Runner::Kill9(&[])),
    profile("fuzz", 24, Runner::Fuzz),
    profile("rotten-files", 1, Runner::Script("rotten-files.sh")),
    profile("block-device", 1, Runner::Script("block-device.sh")),
    profile("golden", 1, Runner::Ignored("zpl", "all", "golden")),
    profile("model", 1, Runner::Ignored("zpl", "all", "model")),
    profile("labels", 1, Runner::Ignored("ondisk", "config", "real_pools")),
];

struct Options {
    minutes: u64,
    seed: u64,
    jobs: u64,
    only: Option<Vec<String>>,
    judge: String,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, String> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        // Seeds of a run lie far from those of a run on another day.
        let mut o =
            Options { minutes: 60, seed: now / 60 % 1_000_000 * 1000, jobs: 2, only: None, judge: "full".to_string() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let value = args.next().ok_or_else(|| format!("{arg} takes a value\n{USAGE}"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{arg} {value}: not a number\n{USAGE}"));
            match arg.as_str() {
                "--minutes" => o.minutes = number()?,
                "--seed" => o.seed = number()?,
                "--jobs" => o.jobs = number()?.max(1),
                "--judge" => o.judge = value.clone(),
                "--only" => o.only = Some(value.split(',').map(str::to_string).collect()),
                _ => return Err(format!("unknown option {arg}\n{USAGE}")),
            }
        }
        if let Some(odd) = o.only.iter().flatten().find(|n| PROFILES.iter().all(|p| p.name != **n)) {
            let names: Vec<&str> = PROFILES.iter().map(|p| p.name).collect();
            return Err(format!("there is no profile {odd}: there are {}", names.join(", ")));
        }
        Ok(o)
    }

    fn chosen(&self) -> Vec<&'static Profile> {
        let wanted = |p: &&Profile| self.only.as_ref().is_none_or(|names| names.iter().any(|n| n == p.name));
        PROFILES.iter().filter(wanted).collect()
    }
}

/// The share of `weight` among `weights`, in seconds; at least one.
fn share_seconds(minutes: u64, weight: u32, weights: u32) -> u64 {
    (minutes * 60 * u64::from(weight) / u64::from(weights.max(1))).max(1)
}

/// Seconds for each of `targets` fuzz targets, `jobs` of which run at a time.
fn fuzz_seconds(seconds: u64, jobs: u64, targets: usize) -> u64 {
    (seconds * jobs / (targets as u64).max(1)).max(1)
}

/// The words of a profile with its seeds in them. A range is as long as no slice ever gets.
fn words(template: &[&str], seed: u64) -> Vec<String> {
    let range = format!("{seed}..{}", seed + 1_000_000);
    template.iter().map(|w| w.replace("{seed}", &seed.to_string()).replace("{}", &range)).collect()
}

/// The programs that the chosen profiles need.
struct Programs {
    ztest: Option<PathBuf>,
    planted: Option<PathBuf>,
    weir: Option<PathBuf>,
    dir: PathBuf,
}

impl Programs {
    fn build(chosen: &[&Profile], dir: PathBuf) -> Result<Programs, String> {
        let any = |f: fn(&Runner) -> bool| chosen.iter().any(|p| f(&p.runner));
        let mut it = Programs { ztest: None, planted: None, weir: None, dir };
        if any(|r| matches!(r, Runner::Planted(_))) {
            let made = build(&["--package", "openweir-ztest", "--features", "planted-bugs"], "ztest")?;
            let kept = it.dir.join("ztest-planted");
            std::fs::copy(&made, &kept).map_err(|e| format!("{}: {e}", kept.display()))?;
            it.planted = Some(kept);
        }
        if any(|r| matches!(r, Runner::Ztest(_) | Runner::Trouble)) {
            it.ztest = Some(build(&["--package", "openweir-ztest"], "ztest")?);
        }
        if any(|r| matches!(r, Runner::Fuzz)) {
            crate::fuzz::build()?;
        }
        if any(|r| matches!(r, Runner::Kill9(_) | Runner::Script(_))) {
            it.weir = Some(build(&["--package", "openweir-cli", "--bin", "weir"], "weir")?);
        }
        for p in chosen {
            if let Runner::Ignored(package, binary, _) = p.runner {
                let built = ignored(package, binary).arg("--no-run").status();
                if !built.map_err(|e| format!("cargo: {e}"))?.success() {
                    return Err(format!("the tests of {package} do not build"));
                }
            }
        }
        Ok(it)
    }

    /// The command of a slice.
    fn command(&self, p: &Profile, seconds: u64, o: &Options) -> Result<Command, String> {
        let of = |program: &Option<PathBuf>| program.as_ref().map(Command::new).ok_or("the program was not built");
        let jobs = o.jobs.to_string();
        let mut cmd = match p.runner {
            Runner::Ztest(_) | Runner::Trouble | Runner::Planted(_) => {
                let (program, template, seed) = match p.runner {
                    Runner::Planted(template) => (&self.planted, template, 0),
                    Runner::Ztest(template) => (&self.ztest, template, o.seed),
                    _ => (&self.ztest, TROUBLE, o.seed),
                };
                let mut cmd = of(program)?;
                cmd.args(words(template, seed)).args(["--jobs", &jobs, "--judge", &o.judge]);
                cmd.args(["--seconds", &seconds.to_string()]);
                if p.runner == Runner::Trouble {
                    cmd.args(["--trouble", p.name]);
                }
                cmd
            }
            Runner::Kill9(more) => {
                let mut cmd = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
                let rounds = ((seconds as f64 * KILL9_ROUNDS_PER_SECOND) as u64).max(2);
                cmd.args(["kill9", "--rounds", &rounds.to_string(), "--seed", &o.seed.to_string()]).args(more);
                let weir = self.weir.as_ref().ok_or("the program was not built")?;
                cmd.arg("--weir").arg(weir).arg("--dir").arg(self.dir.join(p.name));
                cmd
            }
            Runner::Fuzz => {
                let mut cmd = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
                let each = fuzz_seconds(seconds, o.jobs, crate::fuzz::targets().len());
                cmd.args(["fuzz", "--seconds", &each.to_string(), "--jobs", &jobs]);
                cmd
            }
            Runner::Script(name) => {
                let dir = self.dir.join(p.name);
                let _ = std::fs::remove_dir_all(&dir);
                std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
                let mut cmd = Command::new("bash");
                cmd.arg(crate::root().join("docs").join(name)).current_dir(dir);
                cmd.env("WEIR", self.weir.as_ref().ok_or("the program was not built")?);
                cmd
            }
            Runner::Ignored(package, binary, module) => {
                let mut cmd = ignored(package, binary);
                cmd.args(["--", "--ignored", "--nocapture", "--test-threads", &jobs, &format!("{module}::")]);
                cmd.env("WEIR_SEEDS", format!("{}..{}", o.seed, o.seed + 20));
                cmd
            }
        };
        cmd.stdin(Stdio::null());
        Ok(cmd)
    }
}

/// `cargo test` for a test binary of the package of a crate.
fn ignored(of: &str, binary: &str) -> Command {
    let mut cmd = Command::new(env!("CARGO"));
    let package = &format!("openweir-{of}");
    cmd.args(["test", "--release", "--package", package, "--test", binary]).current_dir(crate::root());
    cmd
}

/// The outcome of a slice.
struct Outcome {
    good: bool,
    /// Its last line, or why there is none.
    said: String,
}

/// Runs a slice, its output in `log`.
fn run_slice(mut cmd: Command, limit: Duration, planted: bool, log: &Path) -> Result<Outcome, String> {
    let name = |e: std::io::Error| format!("{}: {e}", log.display());
    let file = File::create(log).map_err(name)?;
    cmd.stdout(file.try_clone().map_err(name)?).stderr(file);
    let mut child = cmd.spawn().map_err(|e| format!("{cmd:?}: {e}"))?;
    let until = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| format!("{cmd:?}: {e}"))? {
            break Some(status);
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let text = String::from_utf8_lossy(&std::fs::read(log).map_err(name)?).into_owned();
    let last = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no output").to_string();
    Ok(match status {
        Some(status) => Outcome { good: status.success() != planted, said: last },
        None => Outcome { good: false, said: format!("did not end within {} s; last said: {last}", limit.as_secs()) },
    })
}

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let o = Options::parse(args)?;
    let judges = crate::judges::install()?;
    if !judges.missing().is_empty() {
        println!("missing judges: {}; what needs them counts as bad", judges.missing().join(", "));
    }
    let dir = crate::root().join("target/campaign");
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let chosen = o.chosen();
    let programs = Programs::build(&chosen, dir)?;
    let weights = chosen.iter().map(|p| p.weight).sum();
    println!("{} minutes from seed {}: repeat a profile with --only NAME --seed {}", o.minutes, o.seed, o.seed);
    let begun = Instant::now();
    let mut bad = 0;
    for p in &chosen {
        let seconds = share_seconds(o.minutes, p.weight, weights);
        let (start, log) = (Instant::now(), programs.dir.join(format!("{}.log", p.name)));
        let limit = Duration::from_secs(seconds) + GRACE;
        let planted = matches!(p.runner, Runner::Planted(_));
        let outcome = run_slice(programs.command(p, seconds, &o)?, limit, planted, &log)?;
        bad += u32::from(!outcome.good);
        let verdict = if outcome.good { "good" } else { "BAD " };
        println!("{verdict} {:<13} {:>5} s  {}", p.name, start.elapsed().as_secs(), outcome.said);
        if !outcome.good {
            println!("     see {}", log.display());
        }
    }
    println!("profiles={} bad={bad} seconds={}", chosen.len(), begun.elapsed().as_secs());
    if bad == 0 { Ok(()) } else { Err(format!("{bad} profiles found something")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_whole_and_none_is_empty() {
        let weights: u32 = PROFILES.iter().map(|p| p.weight).sum();
        let sum: u64 = PROFILES.iter().map(|p| share_seconds(60, p.weight, weights)).sum();
        assert!((3600 - PROFILES.len() as u64..=3600).contains(&sum), "{sum}");
        assert_eq!(share_seconds(0, 1, 100), 1);
    }

    #[test]
    fn an_hour_is_a_minute_for_each_fuzz_target() {
        let weights = PROFILES.iter().map(|p| p.weight).sum();
        let fuzz = PROFILES.iter().find(|p| p.runner == Runner::Fuzz).expect("a profile");
        let each = fuzz_seconds(share_seconds(60, fuzz.weight, weights), 2, crate::fuzz::targets().len());
        assert!((50..75).contains(&each), "{each} s: change the weight of the profile");
        let text = std::fs::read_to_string(crate::root().join("TESTING.md")).expect("TESTING.md");
        assert!(text.contains("`cargo xtask fuzz"), "TESTING.md says nothing of the profile");
    }

    #[test]
    fn seeds_stand_where_the_template_wants_them() {
        assert_eq!(words(&["--cuts", "{}", "--every", "7"], 5), ["--cuts", "5..1000005", "--every", "7"]);
        assert_eq!(words(&["--campaign", "--seed", "{seed}"], 5), ["--campaign", "--seed", "5"]);
    }

    #[test]
    fn every_profile_of_the_table_in_testing_md_has_a_slice() {
        let text = std::fs::read_to_string(crate::root().join("TESTING.md")).expect("TESTING.md");
        let table = text.lines().filter(|l| l.starts_with("| `--"));
        for line in table {
            let flag = line.trim_start_matches("| `").split([' ', '`']).next().unwrap_or_default();
            let has = |p: &Profile| match p.runner {
                Runner::Ztest(t) | Runner::Planted(t) => t.contains(&flag),
                _ => false,
            };
            // These two repeat one pool or one seed by hand.
            assert!(["--adopt", "--seed"].contains(&flag) || PROFILES.iter().any(has), "no slice of {flag}");
        }
    }

    #[test]
    fn tests_that_name_a_profile_are_run_by_it() {
        let mut named = 0;
        crate::source::each_file(&crate::root().join("crates"), &mut |path, text| {
            for (_, rest) in text.match_indices("campaign --only ").map(|(n, m)| (n, &text[n + m.len()..])) {
                let name = rest.split(|c: char| !c.is_alphanumeric() && c != '-').next().unwrap_or_default();
                let runner = PROFILES.iter().find(|p| p.name == name).map(|p| p.runner);
                let at = path.display();
                match runner {
                    Some(Runner::Ignored(package, binary, module)) => {
                        assert!(path.ends_with(format!("{package}/tests/{binary}/{module}.rs")), "{at}");
                    }
                    Some(Runner::Script(script)) => {
                        let text = std::fs::read_to_string(crate::root().join("docs").join(script)).expect(script);
                        let words = text.split_once("--package openweir-").expect("a test binary").1;
                        let (package, binary) = words.split_once(" --test ").expect("its name");
                        let binary = binary.split(' ').next().unwrap_or_default();
                        assert!(path.ends_with(format!("{package}/tests/{binary}.rs")), "{at}");
                    }
                    _ => panic!("{at}: {name}"),
                }
                named += 1;
            }
        });
        assert!(named > 0);
    }

    #[test]
    fn a_slice_is_judged_by_its_status_and_ended_when_it_hangs() {
        let log = std::env::temp_dir().join(format!("xtask-campaign-{}", std::process::id()));
        let sh = |script: &str| {
            let mut cmd = Command::new("sh");
            cmd.args(["-c", script]);
            cmd
        };
        let run = |script: &str, limit, planted| run_slice(sh(script), limit, planted, &log).expect("runs");
        let long = Duration::from_secs(60);
        assert!(run("echo bad=0", long, false).good);
        assert!(!run("echo bad=1; exit 1", long, false).good);
        assert!(run("echo found; exit 1", long, true).good);
        let hung = run("echo begun; exec sleep 600", Duration::ZERO, false);
        assert!(!hung.good && hung.said.contains("did not end"), "{}", hung.said);
        let _ = std::fs::remove_file(&log);
    }
}
