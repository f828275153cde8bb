//! `ztest`: the long profiles, each resumable or repeatable by its seeds. See `ztest --help`.

mod seeds;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ztest::campaign::{Tally, judge_seed};
use ztest::cuts::{CutTally, cut_on, cut_owners};
use ztest::foreign::Maker;
use ztest::judge::{Level, Verdict};
use ztest::lab::{SHAPES, shape_of};
use ztest::mutate::{MutateTally, Victim, kinds, mutate};
use ztest::reference::{Outcome, REFERENCES, try_pool};

use seeds::{Args, Limit, Seeds, caught, count, done_before, range, remember, spread};

/// As the program `weir` has it: campaigns take a tenth less time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HELP: &str = "\
ztest --seed N [--judge full|zdb|none]              one random workload
ztest --workloads FROM..TO [--judge LEVEL] [--state FILE] [--bug NAME]
                                                    many; FILE remembers the seeds that are done
ztest --cuts SEEDS|FROM..TO [--txgs 20] [--images N] [--every N] [--state FILE] [--bug NAME]
                                                    power cuts at every device completion; N images go to zdb;
                                                    with --layout while devices come and go; with --quotas
                                                    while owners, projects and their limits change
ztest --mutate N|FROM..TO [--write] [--state FILE]  damaged images are imported and read; with --write imported for writing,
                                                    with snapshots, clones, destroys, quotas, scrubs and more on them
ztest --mutate N|FROM..TO --streams [--state FILE]  damaged streams are received: a whole snapshot or nothing
ztest --snapshots N|FROM..TO [--ops 150] [--bug NAME]
                                                    snapshots, clones, promotions, rollbacks, destroys, rewrites
ztest --devices N|FROM..TO [--ops 40]               devices are added, attached, replaced, detached, removed
ztest --adopt DIR [--start 0] [--ops 60] [--out DIR] the same on a copy of the pool in DIR/*.img
ztest --scans N|FROM..TO [--layout NAME]            rot, devices away and back, power cuts during resilvers, on all layouts
ztest --losses N|FROM..TO [--layout NAME] [--state FILE]
                                                    devices lost at any moment of a workload, as many as the layout can do without
ztest --fill N|FROM..TO [--layout NAME] [--state FILE]
                                                    pools filled to the last block in every way, power cuts near it, room made again
ztest --recvcuts N|FROM..TO [--every 1] [--state FILE] [--bug NAME]
                                                    power cuts while streams are received, and while what came is rolled back
ztest --snapcuts N|FROM..TO [--every 1] [--state FILE] [--bug NAME]
                                                    power cuts while snapshots, clones and file systems are destroyed, rolled back, promoted
ztest --expandcuts N|FROM..TO [--every 1] [--images N] [--state FILE] [--bug NAME]
                                                    power cuts while a raidz is expanded; N images go to zdb
ztest --removecuts N|FROM..TO [--every 1] [--images N] [--state FILE] [--bug NAME]
                                                    power cuts while vdevs with data are removed; N images go to zdb
ztest --splitcuts N|FROM..TO [--every 1] [--images N] [--state FILE] [--bug NAME]
                                                    power cuts while mirrors are split into two pools; N images go to zdb
ztest --caches N|FROM..TO [--layout NAME] [--state FILE] [--bug NAME]
                                                    cache devices under a workload, damaged, cut off in the middle of a feed
ztest --volumes N|FROM..TO [--layout NAME] [--ops 60] [--state FILE]
                                                    volumes: writes, discards, resizes, snapshots, clones, rollbacks, all layouts
ztest --volcuts N|FROM..TO [--every 1] [--images N] [--state FILE] [--bug NAME]
                                                    power cuts under the load of a volume; N images go to zdb
ztest --foreign N|FROM..TO                          pools of the real ztest: a scrub finds what zdb -cc finds; those
                                                    without damage are changed and judged
ztest --foreign24 N|FROM..TO                        the same with ztest and zdb of OpenZFS 2.4, RAID-Z being expanded too
ztest --receives N|FROM..TO [--state FILE]          random streams, received on other layouts, with stops and power cuts
ztest --sends N|FROM..TO [--state FILE]             send streams of random pools are OpenZFS's, byte by byte
ztest --rescues N|FROM..TO [--layout NAME] [--state FILE]
                                                    pools damaged beyond import: every file whose blocks are left comes back
ztest --campaign --cuts N [--seed S] [--state FILE] [--images N] [--bug NAME]
                                                    power cuts under synchronous load; FILE remembers the seeds that are done
ztest --reference [NAME] [--start SEED] [--ops 60]  the same on copies of the pools of shared/pools, judged
options: --jobs N                                   threads (default 2)
         --seconds N                                no seed begins after N seconds
         --features all                             pools of --workloads, --cuts and --campaign have every feature that weir
                                                    writes, files are cloned in them, and the zdb of OpenZFS 2.4 judges them
         --bug NAME                                 a planted bug, also in --workloads and --cuts
         --layout NAME|all                          how devices stand together (mirror, raidz1 ...; all: by seed)
environment: ZTEST_TMP folder for images, WEIR_JUDGES folder of the judges, ZTEST_TRACE prints operations";

/// Whether pools have every feature that weir writes; none if the option is wrong.
fn all_features(args: &Args) -> Option<bool> {
    match args.value("--features") {
        None => Some(false),
        Some("all") => Some(true),
        Some(other) => {
            eprintln!("--features {other}: it is all");
            None
        }
    }
}

fn workloads(args: &Args, from: u64, to: u64, level: Level) -> bool {
    let state = args.value("--state");
    let Some(all) = all_features(args) else { return false };
    let Some(plant) = ztest::bugs::planter(args.value("--bug")) else { return false };
    let done = done_before(state);
    let total = Mutex::new(Tally::default());
    spread(args, from, to, |seed| {
        plant();
        let mut tally = Tally::default();
        if done.contains_key(&seed) {
            tally.seeds = 1;
        } else {
            let shape = match args.value("--layout") {
                Some("all") => shape_of(seed),
                Some(name) => SHAPES.iter().find(|s| s.name == name).unwrap_or(&SHAPES[0]),
                None => &SHAPES[0],
            };
            plant();
            judge_seed(seed, shape, all, level, &mut tally);
            if tally.bad + tally.missing == 0 {
                remember(state, &seed.to_string());
            }
        }
        let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
        total.seeds += tally.seeds;
        total.bad += tally.bad;
        total.missing += tally.missing;
    });
    let tally = total.into_inner().unwrap_or_else(|e| e.into_inner());
    println!("seeds={} bad={} missing={}", tally.seeds, tally.bad, tally.missing);
    tally.bad + tally.missing == 0
}

/// What is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// Workloads.
    Workloads,
    /// Workloads while a RAID-Z is expanded.
    Expansions,
    /// Workloads while vdevs with data are removed.
    Removals,
    /// Workloads while mirrors are split.
    Splits,
}

fn cuts(args: &Args, from: u64, to: u64, what: Cut) -> bool {
    let state = args.value("--state");
    let Some(all) = all_features(args) else { return false };
    let Some(plant) = ztest::bugs::planter(args.value("--bug")) else { return false };
    let done = done_before(state);
    let total = Mutex::new(CutTally::default());
    let images = args.number("--images", 0).div_ceil((to - from).max(1));
    let owners = args.0.iter().any(|a| a == "--quotas");
    let (txgs, every) = (args.number("--txgs", 20), args.number("--every", 1).max(1) as usize);
    spread(args, from, to, |seed| {
        plant();
        let shape = match args.value("--layout") {
            Some("all") => Some(&SHAPES[1 + seed as usize % (SHAPES.len() - 1)]),
            Some(name) => SHAPES.iter().find(|s| s.name == name && !s.groups.is_empty()),
            None => None,
        };
        let before = done.get(&seed).and_then(|d| CutTally::of_good(d));
        let (tally, faults) = match before {
            Some(tally) => (tally, Vec::new()),
            None if what == Cut::Expansions => ztest::expandcuts::cut_seed(seed, images, every),
            None if what == Cut::Removals => ztest::removecuts::cut_seed(seed, images, every),
            None if what == Cut::Splits => ztest::splitcuts::cut_seed(seed, images, every),
            None if owners => cut_owners(seed, txgs, images, every, all),
            None => cut_on(seed, txgs, images, every, false, shape, all),
        };
        let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
        for fault in faults.iter().take(10) {
            println!("BAD {fault}");
        }
        total.add(tally);
        if before.is_none() {
            if tally.is_good() {
                remember(state, &format!("{seed} {} {}", tally.cuts, tally.zdb));
            }
            let t = *total;
            println!("seed {seed}: cuts={} zdb={}; so far cuts={} zdb={}", tally.cuts, tally.zdb, t.cuts, t.zdb);
        }
    });
    let t = total.into_inner().unwrap_or_else(|e| e.into_inner());
    println!("zdb={} zdb_bad={} missing={}", t.zdb, t.zdb_bad, t.missing);
    println!("cuts={} lost={} torn={} future={}", t.cuts, t.lost, t.torn, t.future);
    t.is_good()
}

/// Mutations of one victim.
const PER_VICTIM: u64 = 200;

/// Damages victims: `make` makes one, `one` damages it once and gives the figures, whose names are
/// `names`, and its findings.
fn mutations<V>(
    args: &Args,
    range: (u64, u64),
    names: &[&str],
    make: impl Fn(u64) -> Result<V, String> + Sync,
    one: impl Fn(&V, u64) -> (Vec<u64>, Option<String>) + Sync,
) -> bool {
    let (from, to) = range;
    let state = args.value("--state");
    let done = done_before(state);
    // The figures, then the findings.
    let total = Mutex::new((vec![0; names.len()], 0));
    let beats: Mutex<BTreeMap<u64, (u64, Instant)>> = Mutex::default();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let add = |figures: &[u64], bad: u64| {
        let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
        total.0.iter_mut().zip(figures).for_each(|(t, n)| *t += n);
        total.1 += bad;
        (total.0[0], total.1)
    };
    std::thread::scope(|scope| {
        let (stop, beats) = (&stop, &beats);
        let guard = scope.spawn(move || {
            // A loop that never yields can be stopped by nothing else.
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(500));
                for (victim, (number, since)) in beats.lock().unwrap_or_else(|e| e.into_inner()).iter() {
                    if since.elapsed().as_secs() > 120 {
                        println!("BAD victim {victim} mutation {number}: hangs");
                        std::process::exit(1);
                    }
                }
            }
        });
        spread(args, from / PER_VICTIM, to.div_ceil(PER_VICTIM), |victim| {
            if let Some(figures) = done.get(&victim).filter(|f| f.len() == names.len()) {
                add(figures, 0);
                return;
            }
            let v = match make(victim) {
                Ok(v) => v,
                Err(e) => {
                    println!("BAD victim {victim}: {e}");
                    add(&[], 1);
                    return;
                }
            };
            let (mut sums, mut bad) = (vec![0; names.len()], 0);
            for number in from.max(victim * PER_VICTIM)..to.min((victim + 1) * PER_VICTIM) {
                beats.lock().unwrap_or_else(|e| e.into_inner()).insert(victim, (number, Instant::now()));
                let (figures, fault) = one(&v, number);
                sums.iter_mut().zip(figures).for_each(|(t, n)| *t += n);
                if let Some(fault) = fault {
                    println!("BAD {fault}");
                    bad += 1;
                }
            }
            beats.lock().unwrap_or_else(|e| e.into_inner()).remove(&victim);
            if bad == 0 {
                let words: Vec<String> = sums.iter().map(u64::to_string).collect();
                remember(state, &format!("{victim} {}", words.join(" ")));
            }
            let (mutations, bad) = add(&sums, bad);
            println!("victim {victim}: so far mutations={mutations} bad={bad}");
        });
        stop.store(true, Ordering::Relaxed);
        let _ = guard.join();
    });
    let (sums, bad) = total.into_inner().unwrap_or_else(|e| e.into_inner());
    let words: Vec<String> = names.iter().zip(&sums).skip(1).map(|(name, n)| format!("{name}={n}")).collect();
    println!("{}", words.join(" "));
    println!("mutations={} bad={bad}", sums[0]);
    bad == 0
}

/// `--mutate`: damaged images are imported and read.
fn mutations_read(args: &Args, range: (u64, u64)) -> bool {
    let make = |victim| {
        let v = Victim::new(victim)?;
        if args.value("--kinds").is_some() {
            println!("victim {victim}: surgery {:?}", ztest::mutate::check_surgery(&v));
            for (otype, level, n) in kinds(&v) {
                println!("victim {victim}: {n} x {otype} level {level}");
            }
        }
        Ok(v)
    };
    mutations(args, range, &["mutations", "refused", "errors", "intact", "other"], make, |v, number| {
        let mut tally = MutateTally::default();
        let fault = mutate(v, number, &mut tally);
        (vec![tally.mutations, tally.refused, tally.errors, tally.intact, tally.other], fault)
    })
}

/// `--mutate --write`: damaged images are imported and changed.
fn mutations_write(args: &Args, range: (u64, u64)) -> bool {
    use ztest::mutate_write::{WriteTally, WriteVictim, mutate_write};
    let names = ["mutations", "refused", "worked", "failed", "stopped", "again"];
    mutations(args, range, &names, WriteVictim::new, |v, number| {
        let mut tally = WriteTally::default();
        let fault = mutate_write(v, number, &mut tally);
        (tally.figures().to_vec(), fault)
    })
}

/// `--mutate --streams`: damaged streams are received.
fn mutations_streams(args: &Args, range: (u64, u64)) -> bool {
    use ztest::mutate_stream::{StreamTally, StreamVictim, mutate_stream};
    let names = ["mutations", "refused", "kept", "received"];
    mutations(args, range, &names, StreamVictim::new, |v, number| {
        let mut tally = StreamTally::default();
        let fault = mutate_stream(v, number, &mut tally);
        (vec![tally.mutations, tally.refused, tally.kept, tally.received], fault)
    })
}

fn snapshots(args: &Args, from: u64, to: u64, level: Level) -> bool {
    let Some(plant) = ztest::bugs::planter(args.value("--bug")) else { return false };
    let total = Mutex::new(Tally::default());
    spread(args, from, to, |seed| {
        plant();
        let got = ztest::snaps::run_seed(seed, args.number("--ops", 150));
        let verdict = got.map(|images| ztest::snaps::judge(&images, level, seed));
        let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
        total.seeds += 1;
        count(&mut total, seed, "stripe", verdict);
    });
    let tally = total.into_inner().unwrap_or_else(|e| e.into_inner());
    println!("seeds={} bad={} missing={}", tally.seeds, tally.bad, tally.missing);
    tally.bad + tally.missing == 0
}

fn scans(args: &Args, from: u64, to: u64, level: Level) -> bool {
    use ztest::scan::{CutsMet, run_cuts, run_resilver, run_rot};
    let total = Mutex::new((Tally::default(), CutsMet::default()));
    let redundant: Vec<_> = SHAPES.iter().filter(|s| s.groups.iter().all(|g| g.0 != spa::GroupKind::Single)).collect();
    let redundant: Vec<_> = redundant.into_iter().filter(|s| !s.groups.is_empty()).collect();
    let ops = args.number("--ops", 40);
    spread(args, from, to, |seed| {
        let named = args.shape();
        let shape = named.unwrap_or(redundant[seed as usize % redundant.len()]);
        let mut met = CutsMet::default();
        let got = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match seed / 8 % 3 {
            0 => run_rot(seed, shape, ops),
            1 => run_resilver(seed, shape, ops),
            _ => run_cuts(seed, shape, ops, &mut met),
        }));
        let got = got.unwrap_or_else(|p| Err(format!("panic: {}", ztest::campaign::panic_text(&*p))));
        let verdict = got.map(|images| ztest::judge::judge(&images, level, &format!("scan{seed}")));
        let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
        total.0.seeds += 1;
        total.1.cuts += met.cuts;
        total.1.running += met.running;
        total.1.resumed += met.resumed;
        count(&mut total.0, seed, shape.name, verdict);
    });
    let (tally, met) = total.into_inner().unwrap_or_else(|e| e.into_inner());
    println!("cuts={} running={} resumed={}", met.cuts, met.running, met.resumed);
    println!("seeds={} bad={} missing={}", tally.seeds, tally.bad, tally.missing);
    tally.bad + tally.missing == 0
}

fn losses(args: &Args, from: u64, to: u64, level: Level) -> bool {
    use ztest::losses::{LAYOUTS, Met, run_seed};
    let seeds = Seeds::new(args, 4);
    let named = args.value("--layout").and_then(|name| LAYOUTS.iter().find(|s| s.name == name));
    spread(args, from, to, |seed| {
        let shape = named.unwrap_or(&LAYOUTS[seed as usize % LAYOUTS.len()]);
        seeds.run(seed, shape.name, || {
            let mut met = Met::default();
            let got = run_seed(seed, shape, args.number("--ops", 30), &mut met);
            (got.map(|images| ztest::judge::judge(&images, level, &format!("losses{seed}"))), met.figures().to_vec())
        });
    });
    seeds.end(&["lost", "midway", "replaced", "mended"])
}

fn fill(args: &Args, from: u64, to: u64, level: Level) -> bool {
    use ztest::fill::{Met, run_seed};
    let seeds = Seeds::new(args, 5);
    let named = args.shape();
    spread(args, from, to, |seed| {
        let shape = named.unwrap_or(shape_of(seed));
        seeds.run(seed, shape.name, || {
            let mut met = Met::default();
            let got = run_seed(seed, shape, &mut met);
            let judged = |images: &[sim::DiskImage], what: &str| {
                ztest::judge::judge(images, level, &format!("fill{seed}{what}"))
            };
            let got = got.map(|filled| match filled.recovered.map(|images| judged(&images, "cut")) {
                None | Some(Verdict::Good) => judged(&filled.images, ""),
                Some(other) => other,
            });
            (got, met.figures())
        });
    });
    seeds.end(&["refused", "gangs", "cuts", "acks", "stalls"])
}

fn caches(args: &Args, from: u64, to: u64, level: Level) -> bool {
    use ztest::caches::{LAYOUTS, Met, run_seed};
    let seeds = Seeds::new(args, 5);
    let Some(plant) = ztest::bugs::planter(args.value("--bug")) else { return false };
    let named = args.value("--layout").and_then(|name| LAYOUTS.iter().find(|s| s.name == name));
    spread(args, from, to, |seed| {
        let shape = named.unwrap_or(&LAYOUTS[seed as usize % LAYOUTS.len()]);
        seeds.run(seed, shape.name, || {
            plant();
            let got = caught(|| {
                let mut met = Met::default();
                run_seed(seed, shape, &mut met).map(|images| (images, met))
            });
            let met = got.as_ref().map_or_else(|_| Met::default(), |(_, met)| *met);
            let judged = got.map(|(images, _)| ztest::judge::judge(&images, level, &format!("caches{seed}")));
            (judged, met.figures().to_vec())
        });
    });
    seeds.end(&["hits", "bad", "rebuilt", "cuts", "rounds"])
}

fn snapcuts(args: &Args, from: u64, to: u64) -> bool {
    use ztest::snaps::{CUTS, cuts};
    let seeds = Seeds::new(args, 1);
    let Some(plant) = ztest::bugs::planter(args.value("--bug")) else { return false };
    spread(args, from, to, |seed| {
        let what = CUTS[seed as usize % CUTS.len()];
        seeds.run(seed, &format!("{what:?}"), || {
            plant();
            let got = caught(|| cuts(seed, what, args.number("--every", 1).max(1) as usize));
            let n = *got.as_ref().unwrap_or(&0);
            (got.map(|_| Verdict::Good), vec![n])
        });
    });
    seeds.end(&["cuts"])
}

fn recvcuts(args: &Args, from: u64, to: u64) -> bool {
    let seeds = Seeds::new(args, 1);
    let Some(plant) = ztest::bugs::planter(args.value("--bug")) else { return false };
    spread(args, from, to, |seed| {
        seeds.run(seed, "receive", || {
            plant();
            let got = caught(|| ztest::receives::cuts(seed, args.number("--every", 1).max(1) as usize));
            let n = *got.as_ref().unwrap_or(&0);
            (got.map(|_| Verdict::Good), vec![n])
        });
    });
    seeds.end(&["cuts"])
}

fn volumes(args: &Args, from: u64, to: u64, level: Level) -> bool {
    use ztest::volumes::run_seed;
    let seeds = Seeds::new(args, 0);
    let named = args.shape();
    spread(args, from, to, |seed| {
        let shape = named.unwrap_or(shape_of(seed));
        seeds.run(seed, shape.name, || {
            let got = run_seed(seed, shape, args.number("--ops", 60));
            (got.map(|images| ztest::judge::judge(&images, level, &format!("volumes{seed}"))), Vec::new())
        });
    });
    seeds.end(&[])
}

fn volcuts(args: &Args, from: u64, to: u64) -> bool {
    use ztest::zilcuts::Cutting;
    let seeds = Seeds::new(args, 7);
    let Some(plant) = ztest::bugs::planter(args.value("--bug")) else { return false };
    // A seed has some 2,000 cuts.
    let zdb = (2000 * (to - from)).checked_div(args.number("--images", 0)).map_or(0, |n| n.max(1));
    let how = Cutting {
        all: false,
        trouble: ztest::ziltrouble::Trouble::None,
        steps: args.number("--steps", 25),
        repeats: args.number("--repeats", 1),
        every: args.number("--every", 1).max(1) as usize,
        second: 40,
        zdb,
    };
    spread(args, from, to, |seed| {
        seeds.run(seed, "volume", || {
            plant();
            let (t, faults) = ztest::volcuts::cut_seed(seed, how);
            let verdict = match (t.is_good(), t.missing) {
                (true, _) => Ok(Verdict::Good),
                (false, n) if n as usize == faults.len() => Ok(Verdict::Missing(faults.join("; "))),
                _ => Err(faults.iter().take(5).cloned().collect::<Vec<_>>().join("\n    ")),
            };
            (verdict, vec![t.cuts, t.lost, t.torn, t.future, t.replayed, t.acks, t.zdb])
        });
    });
    seeds.end(&["cuts", "lost", "torn", "future", "replayed", "acks", "zdb"])
}

fn foreign(args: &Args, maker: Maker, from: u64, to: u64, level: Level) -> bool {
    use ztest::foreign::{Outcome, Wrote, run_seed};
    let total = Mutex::new([0u64; 7]);
    spread(args, from, to, |seed| {
        let got = caught(|| run_seed(maker, seed, level));
        let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
        total[0] += 1;
        match got {
            Ok(Outcome::Same(damaged, wrote)) => {
                let how = match &wrote {
                    Wrote::ReadOnly(why) => format!("read-only: {why}"),
                    Wrote::Scrubbed => "mended and exported".into(),
                    Wrote::Changed(note) if note.is_empty() => "mended, changed and judged".into(),
                    Wrote::Changed(note) => format!("mended, changed and judged ({note})"),
                };
                println!("seed {seed}: {damaged} damaged blocks, as zdb says; {how}");
                total[1] += 1;
                total[2] += u64::from(!matches!(wrote, Wrote::ReadOnly(_)));
                total[6] += u64::from(matches!(wrote, Wrote::Changed(_)));
                total[3] += damaged as u64;
            }
            Ok(Outcome::Refused) => {
                println!("seed {seed}: neither zdb nor weir can open it");
                total[1] += 1;
            }
            Ok(Outcome::Missing(what)) => {
                println!("MISSING seed {seed}: {what}");
                total[4] += 1;
            }
            Err(why) => {
                println!("BAD seed {seed}: {why}");
                total[5] += 1;
            }
        }
    });
    let t = total.into_inner().unwrap_or_else(|e| e.into_inner());
    println!("same={} written={} changed={} damaged={}", t[1], t[2], t[6], t[3]);
    println!("seeds={} bad={} missing={}", t[0], t[5], t[4]);
    t[4] + t[5] == 0
}

fn sends(args: &Args, from: u64, to: u64) -> bool {
    use ztest::sends::{Outcome, run_seed};
    let seeds = Seeds::new(args, 2);
    spread(args, from, to, |seed| {
        seeds.run(seed, "sends", || match caught(|| run_seed(seed)) {
            Ok(Outcome::Same(streams, bytes)) => (Ok(Verdict::Good), vec![streams as u64, bytes]),
            Ok(Outcome::Missing(what)) => (Ok(Verdict::Missing(what)), vec![0; 2]),
            Err(why) => (Err(why), vec![0; 2]),
        });
    });
    seeds.end(&["streams", "bytes"])
}

fn rescues(args: &Args, from: u64, to: u64) -> bool {
    use ztest::rescues::{Met, run_shape};
    let seeds = Seeds::new(args, 7);
    let named = args.shape();
    spread(args, from, to, |seed| {
        let shape = named.unwrap_or(shape_of(seed));
        seeds.run(seed, shape.name, || {
            let mut met = Met::default();
            let got = caught(std::panic::AssertUnwindSafe(|| run_shape(seed, shape, &mut met)));
            (got.map(|()| Verdict::Good), met.figures())
        });
    });
    seeds.end(&["files", "intact", "good", "partly", "unlabelled", "stopped", "sealed"])
}

fn receives(args: &Args, from: u64, to: u64, level: Level) -> bool {
    let seeds = Seeds::new(args, 5);
    let Some(plant) = ztest::bugs::planter(args.value("--bug")) else { return false };
    spread(args, from, to, |seed| {
        plant();
        seeds.run(seed, "receives", || match caught(|| ztest::receives::run_seed(seed)) {
            Ok((n, images)) => {
                let verdict = ztest::judge::judge(&images, level, &format!("receives{seed}"));
                (Ok(verdict), vec![n.streams, n.bytes, n.stops, n.cuts, n.healed])
            }
            Err(why) => (Err(why), vec![0; 5]),
        });
    });
    seeds.end(&["streams", "bytes", "stops", "cuts", "healed"])
}

fn devices(args: &Args, from: u64, to: u64, level: Level) -> bool {
    let total = Mutex::new((Tally::default(), 0, 0));
    spread(args, from, to, |seed| {
        let shapes: Vec<_> = SHAPES.iter().filter(|s| !s.groups.is_empty()).collect();
        let shape = match args.value("--layout") {
            Some(name) if name != "all" => SHAPES.iter().find(|s| s.name == name).unwrap_or(&SHAPES[1]),
            _ => shapes[seed as usize % shapes.len()],
        };
        let got = ztest::devices::run_seed(seed, shape, args.number("--ops", 40));
        let (got, made, refused) = match got {
            Ok((images, made, refused)) => (Ok(images), made, refused),
            Err(e) => (Err(e), 0, 0),
        };
        let verdict = got.map(|images| ztest::judge::judge(&images, level, &format!("devices{seed}")));
        let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
        total.0.seeds += 1;
        (total.1, total.2) = (total.1 + made, total.2 + refused);
        count(&mut total.0, seed, shape.name, verdict);
    });
    let (tally, made, refused) = total.into_inner().unwrap_or_else(|e| e.into_inner());
    println!("seeds={} bad={} missing={} made={made} refused={refused}", tally.seeds, tally.bad, tally.missing);
    tally.bad + tally.missing == 0
}

fn adopt(args: &Args, dir: &str) -> bool {
    let work = || -> Result<(), String> {
        let images = ztest::snaps::load_images(std::path::Path::new(dir))?;
        let images = ztest::snaps::run_on(images, args.number("--start", 0), args.number("--ops", 60))?;
        match args.value("--out") {
            Some(out) => ztest::judge::save(&images, std::path::Path::new(out)),
            None => Ok(()),
        }
    };
    match work() {
        Ok(()) => println!("{dir}: good"),
        Err(why) => {
            println!("BAD {dir}: {why}");
            return false;
        }
    }
    true
}

/// Power cuts under synchronous load, seed by seed until there are enough.
fn campaign(args: &Args) -> bool {
    use ztest::zilcuts::{Cutting, ZilTally, cut_seed};
    use ztest::ziltrouble::Trouble;
    let (wanted, first) = (args.number("--cuts", 1000), args.number("--seed", 0));
    let images = args.number("--images", 0);
    let Some(plant) = ztest::bugs::planter(args.value("--bug")) else { return false };
    let trouble = args.value("--trouble").unwrap_or("none");
    let Some(&(_, trouble)) = Trouble::NAMES.iter().find(|(name, _)| *name == trouble) else {
        let names: Vec<&str> = Trouble::NAMES.iter().map(|n| n.0).collect();
        eprintln!("there is no trouble '{trouble}': there are {}", names.join(", "));
        return false;
    };
    let Some(all) = all_features(args) else { return false };
    let how = Cutting {
        all,
        trouble,
        steps: args.number("--steps", 25),
        repeats: args.number("--repeats", 3),
        every: args.number("--every", 1).max(1) as usize,
        second: 40,
        zdb: wanted.checked_div(images).map_or(0, |n| n.max(1)),
    };
    let state = args.value("--state");
    let mut total = ZilTally::default();
    let mut done = std::collections::BTreeSet::new();
    for line in state.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default().lines() {
        if let Some((seed, rest)) = line.strip_prefix("seed=").and_then(|l| l.split_once(' '))
            && let Ok(seed) = seed.parse::<u64>()
            && seed >= first
            && done.insert(seed)
        {
            total.add(ZilTally::parse(rest));
        }
    }
    let (begun, limit) = (Instant::now(), Limit::of(args));
    let (total, fresh) = (Mutex::new(total), AtomicU64::new(0));
    let next = AtomicU64::new(first);
    std::thread::scope(|scope| {
        for _ in 0..args.number("--jobs", 2).max(1) {
            scope.spawn(|| {
                plant();
                loop {
                    let sum = *total.lock().unwrap_or_else(|e| e.into_inner());
                    if sum.cuts.max(if trouble == Trouble::LogGone { sum.seeds } else { 0 }) >= wanted {
                        return;
                    }
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > first && limit.is_over() {
                        return;
                    }
                    if done.contains(&seed) {
                        continue;
                    }
                    let (tally, faults) = cut_seed(seed, how);
                    fresh.fetch_add(tally.cuts, Ordering::Relaxed);
                    let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
                    for fault in faults.iter().take(5) {
                        println!("BAD {fault}");
                    }
                    if let Some(path) = state {
                        use std::io::Write;
                        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
                        if let Err(e) = file.and_then(|mut f| writeln!(f, "seed={seed} {}", tally.line())) {
                            eprintln!("{path}: {e}");
                        }
                    }
                    total.add(tally);
                }
            });
        }
    });
    let t = total.into_inner().unwrap_or_else(|e| e.into_inner());
    let (cuts, took) = (fresh.into_inner().max(1), begun.elapsed());
    println!(
        "seeds={} from {first}, {:.2} ms a cut and thread",
        t.seeds,
        took.as_secs_f64() * 1e3 * args.number("--jobs", 2) as f64 / cuts as f64
    );
    println!("{}", t.line());
    t.is_good()
}

fn references(args: &Args, level: Level) -> bool {
    let wanted = args.value("--reference").filter(|n| !n.starts_with("--"));
    let chosen: Vec<_> = REFERENCES.iter().filter(|r| wanted.is_none_or(|n| n == r.name)).collect();
    let tally = Mutex::new((0, 0, 0, 0));
    spread(args, 0, chosen.len() as u64, |n| {
        let reference = chosen[n as usize];
        let outcome = try_pool(reference, args.number("--start", 1), args.number("--ops", 60), level);
        println!("{}: {outcome}", reference.name);
        let mut t = tally.lock().unwrap_or_else(|e| e.into_inner());
        match outcome {
            Outcome::Good(_) => t.0 += 1,
            Outcome::ReadOnly(_) => t.1 += 1,
            Outcome::Missing(_) => t.2 += 1,
            Outcome::Bad(_) => t.3 += 1,
        }
    });
    let (good, readonly, missing, bad) = tally.into_inner().unwrap_or_else(|e| e.into_inner());
    println!("good={good} readonly={readonly} bad={bad} missing={missing}");
    bad + missing == 0 && good > 0
}

fn main() -> ExitCode {
    let args = Args(std::env::args().skip(1).collect());
    let level = match args.value("--judge") {
        None | Some("full") => Level::Full,
        Some("zdb") => Level::Zdb,
        Some("none") => Level::None,
        Some(other) => {
            eprintln!("--judge {other}: it is full, zdb or none");
            return ExitCode::from(2);
        }
    };
    let of = |name: &str| args.value(name).and_then(range);
    let good = if args.0.iter().any(|a| a == "--campaign") {
        campaign(&args)
    } else if let Some(seed) = args.value("--seed").and_then(|s| s.parse().ok()) {
        workloads(&args, seed, seed + 1, level)
    } else if let Some((from, to)) = of("--workloads") {
        workloads(&args, from, to, level)
    } else if let Some((from, to)) = of("--cuts") {
        cuts(&args, from, to, Cut::Workloads)
    } else if let Some((from, to)) = of("--snapshots") {
        snapshots(&args, from, to, level)
    } else if let Some((from, to)) = of("--scans") {
        scans(&args, from, to, level)
    } else if let Some((from, to)) = of("--losses") {
        losses(&args, from, to, level)
    } else if let Some((from, to)) = of("--fill") {
        fill(&args, from, to, level)
    } else if let Some((from, to)) = of("--recvcuts") {
        recvcuts(&args, from, to)
    } else if let Some((from, to)) = of("--snapcuts") {
        snapcuts(&args, from, to)
    } else if let Some((from, to)) = of("--expandcuts") {
        cuts(&args, from, to, Cut::Expansions)
    } else if let Some((from, to)) = of("--removecuts") {
        cuts(&args, from, to, Cut::Removals)
    } else if let Some((from, to)) = of("--splitcuts") {
        cuts(&args, from, to, Cut::Splits)
    } else if let Some((from, to)) = of("--caches") {
        caches(&args, from, to, level)
    } else if let Some((from, to)) = of("--volumes") {
        volumes(&args, from, to, level)
    } else if let Some((from, to)) = of("--volcuts") {
        volcuts(&args, from, to)
    } else if let Some((from, to)) = of("--foreign") {
        foreign(&args, Maker::Installed, from, to, level)
    } else if let Some((from, to)) = of("--foreign24") {
        foreign(&args, Maker::V24, from, to, level)
    } else if let Some((from, to)) = of("--sends") {
        sends(&args, from, to)
    } else if let Some((from, to)) = of("--rescues") {
        rescues(&args, from, to)
    } else if let Some((from, to)) = of("--receives") {
        receives(&args, from, to, level)
    } else if let Some((from, to)) = of("--devices") {
        devices(&args, from, to, level)
    } else if let Some(dir) = args.value("--adopt") {
        adopt(&args, dir)
    } else if args.0.iter().any(|a| a == "--reference") {
        references(&args, level)
    } else if let Some(range) = of("--mutate") {
        let has = |word: &str| args.0.iter().any(|a| a == word);
        match (has("--write"), has("--streams")) {
            (true, _) => mutations_write(&args, range),
            (_, true) => mutations_streams(&args, range),
            _ => mutations_read(&args, range),
        }
    } else {
        println!("{HELP}");
        return ExitCode::from(2);
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
