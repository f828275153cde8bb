//! `weir lab`: one object as JSON, tables and pages of studies, workloads from files and on real
//! devices, and what it refuses.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::world::World;

/// The line ends with this code and these words.
fn refused(w: &World, line: &str, code: i32, what: &str) {
    let s = w.say(line);
    assert!(s.code == code && s.err.contains(what), "weir {line}: code {}, {}{}", s.code, s.out, s.err);
    if code == 1 {
        let sentence = s.err.split("\nuse '").next().unwrap_or_default();
        assert_eq!(sentence.trim_end().lines().count(), 1, "one sentence: {}", s.err);
    }
}

#[test]
fn the_laboratory_answers_with_one_object() {
    let w = World::without_mounts("cli-lab");
    let line =
        "lab throttle --policy openzfs --bandwidth 4M --threads 10 --block 32k --seconds 4 --mem 256M --seed 7 --json";
    let json: serde_json::Value = serde_json::from_str(&w.ok(line)).unwrap();
    for key in [
        "dirty_percent_steady",
        "throughput_bytes_per_s",
        "delayed_percent",
        "latency_p50_us",
        "latency_p99_us",
        "latency_p999_us",
        "latency_max_us",
    ] {
        assert!(json[key].is_number(), "{key}: {json}");
    }
    assert!(json["latency_histogram"].as_array().is_some_and(|h| !h.is_empty()));
    refused(&w, "lab throttle --policy fast", 1, "legacy-2008");
    refused(&w, "lab throttle --block 3000", 1, "power of two");
    refused(&w, "lab fly", 2, "throttle");
    // Studies with a table: figures, a page, and a file with finished runs.
    let line = "lab arc --limit 8M --files 0 --seeds 2 --html page.html --state runs --json";
    let first = w.ok(line);
    let json: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!((json["study"].as_str(), json["seeds"].as_array().map(Vec::len)), (Some("arc"), Some(2)));
    assert!(json["rows"].as_array().is_some_and(|r| r.iter().all(|r| r["measured"]["mean"].is_number())), "{json}");
    let page = std::fs::read_to_string(w.path("page.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("weir lab arc --limit 8M"), "{page}");
    let runs = std::fs::read(w.path("runs")).unwrap();
    assert_eq!(w.ok(line), first, "the same seeds are the same bytes");
    assert!(std::fs::read(w.path("runs")).unwrap() == runs, "nothing ran again");
    refused(&w, "lab arc --seeds 0", 1, "--seeds");
    refused(&w, "lab arc --limit 1", 1, "8M to 1G");
    refused(&w, "lab arc --html no/where.html", 1, "no/where.html");
    refused(&w, "lab arc extra", 2, "too much");
    refused(&w, "lab coldstart --readers 4,x", 1, "--readers: 'x'");
    refused(&w, "lab starvation --seconds 1", 1, "--seconds");
    refused(&w, "lab fragmentation --fill 50,99", 1, "--fill: '99'");
    refused(&w, "lab fragmentation --size 1M", 1, "512M to 64G");
    refused(&w, "lab throttle --sweep active", 1, "async_write_max_active");
    refused(&w, "lab throttle --sweep moon", 1, "delay_scale");
    refused(&w, "lab throttle --seeds 2 --policy openzfs", 1, "--sweep");
    let small = "--bandwidth 4M --threads 10 --block 32k --seconds 4 --mem 256M --state t";
    let table = w.ok(&format!("lab throttle --sweep delay_scale --seeds 2 {small}"));
    assert!(table.contains("scale 500000: mean latency"), "{table}");
    // Random writes to a real file.
    refused(&w, "lab randwrite f", 1, "--overwrite");
    let line = "lab randwrite --size 64k --seconds 1 --threads 2 --json f";
    let json: serde_json::Value = serde_json::from_str(&w.ok(line)).unwrap();
    assert!(json["writes"].as_u64().is_some_and(|n| n > 0) && json["size"] == 65536, "{json}");
    refused(&w, line, 1, "exists");
    // A workload from a file.
    std::fs::write(w.path("a.toml"), "[run]\nseconds = 1\n[[job]]\nblok = 1\n").unwrap();
    refused(&w, "lab run a.toml", 1, "a.toml:4: blok: there is no such key here");
    refused(&w, "lab run none.toml", 1, "none.toml cannot be read");
    refused(&w, "lab run", 2, "one file");
    std::fs::write(w.path("a.toml"), "[run]\nseconds = 1\n[[job]]\nsize = \"1M\"\nrate = \"fixed 40\"\n").unwrap();
    let json: serde_json::Value = serde_json::from_str(&w.ok("lab run a.toml --seeds 2 --state r2 --json")).unwrap();
    assert_eq!(json["rows"][0]["measured"]["mean"].as_f64().map(f64::round), Some(40.0), "{json}");
    // The same on a real device.
    refused(&w, "lab run a.toml --real x.img", 1, "either --size for a new file");
    refused(&w, "lab run a.toml --real x.img,y.img --size 128M", 1, "has 1 device, not 2");
    refused(&w, "lab run a.toml --real x.img --size 1M", 1, "at least 64M");
    refused(&w, "lab run a.toml --real x.img --size 128M --overwrite", 1, "name one");
    refused(&w, "lab run a.toml --size 128M", 2, "go with --real");
    std::fs::write(w.path("x.img"), "mine").unwrap();
    refused(&w, "lab run a.toml --real x.img --size 128M", 1, "'x.img' cannot be made");
    assert_eq!(std::fs::read(w.path("x.img")).unwrap(), b"mine");
    let line = "lab run a.toml --model nvme --real y.img --size 256M --seeds 1 --state r3";
    let s = w.say(&format!("{line} --json"));
    if s.err.contains("takes no direct I/O") {
        eprintln!("NOT RUN: a workload on a real file: {}", s.err);
    } else {
        let json: serde_json::Value = serde_json::from_str(&s.out).unwrap();
        let row = &json["rows"][0];
        // Nothing begins in the warm-up of 5 s that does not count.
        assert!(row["published"].as_f64().is_some_and(|rate| (rate - 40.0).abs() <= 2.0), "{json}");
        assert_eq!(row["claim"], "within 15 %");
    }
    assert!(!w.dir.join("y.img").exists(), "the file is removed");
    assert!(!w.dir.join("run").exists(), "no daemon is needed");
}
