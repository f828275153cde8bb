//! The framework of studies on made-up cells, and the study of the cache, small.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Error;
use lab::arc::{self, Params};
use lab::coldstart;
use lab::fragmentation;
use lab::starvation;
use lab::study::plot::{Axis, Body, Curve};
use lab::study::{Cell, MEMORY_MAX, Plot, Progress, Report, Row, RunOpts, Seen, State, Study, Verdict, html};

/// A folder that goes away.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(tag: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("weir-study-{tag}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Twelve cells whose figures come from name and seed; counts its runs. The third fails with seed
/// `bad`.
fn made_up(runs: Arc<AtomicU64>, bad: Option<u64>) -> Study {
    let cell = |n: u64| {
        let runs = runs.clone();
        Cell {
            name: format!("cell{n}"),
            params: format!("n={n}"),
            memory: n << 28,
            weight: n + 1,
            run: Box::new(move |seed| {
                runs.fetch_add(1, Ordering::Relaxed);
                if n == 2 && Some(seed) == bad {
                    return Err(Error::invalid("the disk of cell2 is gone"));
                }
                let mut seen = Seen::default();
                // Figures whose shortest decimal form is long.
                seen.set("value", (seed * 31 + n) as f64 / 7.0);
                seen.series.insert("curve".into(), (0..3).map(|i| (f64::from(i), 1.0 / (n + 1) as f64)).collect());
                Ok(seen)
            }),
        }
    };
    let ratio = Row {
        measure: Box::new(|look| Some(look("cell1", "value")? / look("cell0", "value")?)),
        ..Row::of("ratio", "", "", "x")
    };
    Study {
        name: "made-up",
        title: "Made up",
        about: "Cells <without> a pool.".into(),
        cells: (0..12).map(cell).collect(),
        rows: vec![Row::of("first", "cell0", "value", "s"), ratio.shape("arithmetic", 1.0, 2.0)],
        headings: lab::study::PUBLISHED,
        draw: Box::new(|results| {
            let curve = Curve { name: "c".into(), points: results.series("cell3", "curve"), dots: false };
            let (x, y) = (Axis::linear("x"), Axis::log("y"));
            vec![Plot { title: "curve".into(), x, y, body: Body::Curves(vec![curve]) }]
        }),
    }
}

fn opts(jobs: usize, state: Option<&mut State>) -> RunOpts<'_> {
    RunOpts { seeds: 3..7, jobs, memory: MEMORY_MAX, engine: "test", state }
}

#[test]
fn the_number_of_threads_does_not_show() {
    let study = made_up(Arc::default(), None);
    let json = |jobs| Report::of(&study, &study.run(opts(jobs, None), &mut |_| {}).unwrap()).json().unwrap();
    let one = json(1);
    for jobs in [2, 7, 64] {
        assert_eq!(json(jobs), one, "{jobs} threads");
    }
    let little = RunOpts { memory: 1, ..opts(5, None) };
    let results = study.run(little, &mut |_| {}).unwrap();
    assert_eq!(Report::of(&study, &results).json().unwrap(), one, "one at a time");
    let report = Report::of(&study, &results);
    assert_eq!((report.rows[0].verdict, report.rows[1].verdict), (Verdict::None, Verdict::Shape));
    assert_eq!(report.rows[0].measured.map(|m| m.count), Some(4));
    assert!(report.text().ends_with("1 of 1 claims hold over 4 seeds\n"), "{}", report.text());
}

#[test]
fn a_study_goes_on_where_it_was() {
    let scratch = Scratch::new("state");
    let path = scratch.0.join("deeper/state");
    let runs = Arc::new(AtomicU64::new(0));
    let whole = made_up(runs.clone(), None);
    let want = whole.run(opts(2, None), &mut |_| {}).unwrap();
    assert_eq!(runs.swap(0, Ordering::Relaxed), 48);
    // One run fails: the others that have ended are kept.
    let mut state = State::open(&path).unwrap();
    let broken = made_up(runs.clone(), Some(6));
    let e = broken.run(opts(1, Some(&mut state)), &mut |_| {}).unwrap_err();
    assert_eq!(e.to_string(), "the disk of cell2 is gone");
    let kept = runs.swap(0, Ordering::Relaxed) - 1;
    assert!((1..47).contains(&kept), "{kept}");
    // The last line is cut off, as if the machine had stopped.
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count() as u64, kept);
    std::fs::write(&path, &text[..text.len() - 9]).unwrap();
    let mut state = State::open(&path).unwrap();
    let mut seen: Vec<Progress> = Vec::new();
    let got = whole.run(opts(2, Some(&mut state)), &mut |p| seen.push(p)).unwrap();
    assert_eq!(got, want, "what was kept is what was measured, to the bit");
    assert_eq!(runs.swap(0, Ordering::Relaxed), 48 - (kept - 1));
    assert!(seen.first().is_none_or(|p| p.total == 48 && p.done >= kept - 1), "{seen:?}");
    // Another program or other parameters run all anew; the same ones nothing.
    let mut state = State::open(&path).unwrap();
    whole.run(RunOpts { engine: "other", ..opts(2, Some(&mut state)) }, &mut |_| {}).unwrap();
    assert_eq!(runs.swap(0, Ordering::Relaxed), 48);
    let mut state = State::open(&path).unwrap();
    assert_eq!(whole.run(opts(2, Some(&mut state)), &mut |_| {}).unwrap(), want);
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    state.remove().unwrap();
    assert!(!path.exists());
    let e = State::open(&scratch.0).unwrap_err().to_string();
    assert!(e.starts_with("the state file ") && e.contains("cannot be used"), "{e}");
}

#[test]
fn a_page_needs_nothing_else() {
    let study = made_up(Arc::default(), None);
    let results = study.run(opts(2, None), &mut |_| {}).unwrap();
    let report = Report::of(&study, &results);
    let page = html::page(study.title, &study.about, "weir lab made-up", &report, &(study.draw)(&results));
    for part in
        ["prefers-color-scheme:dark", "@media print", "width=device-width", "<polyline", "Cells &lt;without&gt;"]
    {
        assert!(page.contains(part), "{part}");
    }
    for outside in ["http:", "https:", "<script", "<link", "url(", "@import", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
    for tag in ["table", "figure", "svg", "div", "ul", "body", "html", "style"] {
        let (open, close) = (page.matches(&format!("<{tag}")).count(), page.matches(&format!("</{tag}>")).count());
        assert_eq!(open, close, "{tag}");
    }
}

#[test]
fn the_cache_keeps_its_limit_and_its_hot_set() {
    let study = arc::study(Params { limit: 16 << 20, files: 100, writes: 300 }).unwrap();
    let run = |jobs| study.run(RunOpts { seeds: 0..1, jobs, memory: MEMORY_MAX, engine: "", state: None }, &mut |_| {});
    let results = run(2).unwrap();
    let report = Report::of(&study, &results);
    eprintln!("{}", report.text());
    assert_eq!(report.rows.last().unwrap().verdict, Verdict::Shape, "the limit holds");
    let hits = |cell: &str| results.spread(cell, "hit_percent").unwrap().mean;
    assert!(hits("even-50") > 99.0 && hits("even-200") < 55.0 && hits("even-200") > 35.0);
    assert!(hits("scan-25-16") > 60.0);
    assert_eq!(results, run(1).unwrap(), "the same seed is the same run");
    for bad in [Params { limit: 1, ..Params::default() }, Params { files: 1_000_000, ..Params::default() }] {
        assert!(arc::study(bad).is_err());
    }
}

#[test]
fn many_readers_share_reads_and_compression_saves_them() {
    let params = coldstart::Params { readers: vec![12], cores: 4, input: 32 << 20, device: None };
    let study = coldstart::study(&params).unwrap();
    let run = |jobs| study.run(RunOpts { seeds: 0..1, jobs, memory: MEMORY_MAX, engine: "", state: None }, &mut |_| {});
    let results = run(2).unwrap();
    eprintln!("{}", Report::of(&study, &results).text());
    let of = |cell: &str, value| results.spread(cell, value).unwrap().mean;
    // All of one file is read once, whoever asks.
    for compression in ["off", "gzip"] {
        let read = of(&format!("disk-{compression}-one-12"), "reads_of_stored");
        assert!((0.7..1.2).contains(&read), "{compression}: {read}");
    }
    let stored = |compression| of(&format!("disk-{compression}-one-12"), "stored_mib");
    assert!(stored("off") > 31.0 && stored("gzip") < 4.0 && stored("lz4") < stored("off") / 2.0);
    assert!(of("disk-off-each-12", "seconds") > of("disk-gzip-each-12", "seconds") * 2.0);
    assert!(of("raidz-10-gzip-each-12", "disk_read_kib") < 16.0);
    assert!(!results.series("disk-off-each-12", "disk_mib_per_s").is_empty());
    assert_eq!(results, run(1).unwrap(), "the same seed is the same run");
    for bad in [
        coldstart::Params { readers: vec![], ..params.clone() },
        coldstart::Params { readers: vec![1], ..params.clone() },
        coldstart::Params { cores: 0, ..params.clone() },
        coldstart::Params { input: 1, ..params },
    ] {
        assert!(coldstart::study(&bad).is_err());
    }
}

#[test]
fn a_reader_beside_writes_waits_at_the_disk() {
    let mut study = starvation::study(6, None).unwrap();
    // Compression is real, and takes longer than a test may.
    study.cells.retain(|c| !c.name.starts_with("gzip"));
    let results =
        study.run(RunOpts { seeds: 0..1, jobs: 2, memory: MEMORY_MAX, engine: "", state: None }, &mut |_| {}).unwrap();
    eprintln!("{}", Report::of(&study, &results).text());
    let of = |cell: &str, value| results.spread(cell, value).unwrap().mean;
    assert!(of("off-10", "reader_ms") > of("reader-alone", "reader_ms") * 1.05);
    assert!((of("off-10", "written_mib_per_s") / 40.0 - 1.0).abs() < 0.1 && of("off-10", "flush_ms") > 0.0);
    assert!(starvation::study(1, None).is_err());
}

#[test]
fn random_writes_take_the_free_space_apart() {
    let params = fragmentation::Params { size: 512 << 20, fills: vec![20, 70], seconds: 12, all: false, device: None };
    let mut study = fragmentation::study(&params).unwrap();
    study.cells.retain(|c| c.name.starts_with("dynamic, ") && !c.name.contains("sync") || c.name == "cursor, 70 %");
    assert_eq!(study.cells.len(), 4);
    let run = |jobs| study.run(RunOpts { seeds: 0..1, jobs, memory: MEMORY_MAX, engine: "", state: None }, &mut |_| {});
    let results = run(2).unwrap();
    eprintln!("{}", Report::of(&study, &results).text());
    let of = |cell: &str, value| results.spread(cell, value).unwrap().mean;
    for cell in ["dynamic, 20 %", "dynamic, 70 %", "dynamic, 4 disks, 70 %", "cursor, 70 %"] {
        assert!(of(cell, "free_segment_after_kib") < of(cell, "free_segment_before_kib") / 2.0, "{cell}");
        assert!(of(cell, "random_io_kib") < of(cell, "fill_io_kib"), "{cell}");
        assert!(of(cell, "steady_mib_per_s") > 0.0, "{cell}");
    }
    // What is used is what was filled: the map is that of the pool.
    let full = of("dynamic, 70 %", "full_before_percent");
    assert!((50.0..75.0).contains(&full), "{full}");
    let (map, after) = (results.series("dynamic, 70 %", "map_before"), results.series("dynamic, 70 %", "map_after"));
    assert!(map.len() > 100 && map.len().is_multiple_of(16) && map != after, "{}", map.len());
    assert_eq!(results, run(1).unwrap(), "the same seed is the same run");
    for bad in [
        fragmentation::Params { size: 1, ..params.clone() },
        fragmentation::Params { fills: vec![], ..params.clone() },
        fragmentation::Params { fills: vec![50, 20], ..params.clone() },
        fragmentation::Params { fills: vec![99], ..params.clone() },
        fragmentation::Params { seconds: 0, ..params },
    ] {
        assert!(fragmentation::study(&bad).is_err());
    }
}
