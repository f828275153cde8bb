//! Workload files: what they mean, the mistakes in them, and one on the engine.
#![allow(clippy::unwrap_used)]

use base::Nanos;
use lab::layout::LayoutSpec;
use lab::study::{MEMORY_MAX, RunOpts};
use lab::workload::{Pattern, Rate, Sync, Workload, study};
use sim::Model;

const TOML: &str = "\
# Evening.
[pool]
layout = \"mirrors 2 of 3\"
device = \"fixed 1ms 100M\"
size = \"1G\"
log = \"nvme\"
memory = \"1G\"
cores = 2
recordsize = \"8k\"
compression = \"lz4\"

[run]
seconds = 4
warmup = 1

[[job]]
name = \"db\"
threads = 2
block = \"8k\"
pattern = \"random\"
read = 70
size = \"4M\"
sync = \"each\"
rate = \"poisson 50\"
compressible = 2.5

[[job]]
name = \"copy\"
block = 131_072
size = \"8M\"
threads = 3
shared = true
sync = \"after 10\"
rate = \"bursts 5 every 500ms\"
";

#[test]
fn a_file_means_what_it_says() {
    let w = Workload::parse("w.toml", TOML).unwrap();
    assert_eq!(w.pool.layout, LayoutSpec::parse("mirror:3,mirror:3").unwrap());
    assert_eq!(w.pool.device.model, Model::Fixed { latency: Nanos::from_ms(1), bandwidth: 100 << 20 });
    assert_eq!(w.pool.size, Some(1 << 30));
    assert_eq!(w.pool.log.as_ref().map(|d| &d.model), Some(&Model::nvme()));
    assert_eq!((w.pool.memory, w.pool.cores, w.pool.recordsize), (1 << 30, 2, 8192));
    assert_eq!((w.seconds, w.warmup, w.jobs.len()), (4, 1, 2));
    let (db, copy) = (&w.jobs[0], &w.jobs[1]);
    assert_eq!((db.name.as_str(), db.threads, db.block, db.pattern, db.read), ("db", 2, 8192, Pattern::Random, 70));
    assert_eq!((db.size, db.sync, db.rate, db.compressible), (4 << 20, Sync::Each, Rate::Poisson(50.0), 2.5));
    assert_eq!((copy.block, copy.pattern, copy.sync), (128 << 10, Pattern::Sequential, Sync::After(10)));
    assert_eq!(copy.rate, Rate::Bursts { count: 5, every: Nanos::from_ms(500) });
    assert_eq!((db.shared, copy.shared, w.files()), (false, true, 2 * (4 << 20) + (8 << 20)));
}

#[test]
fn free_space_is_that_of_real_devices() {
    let mut w = Workload::parse("w.toml", TOML).unwrap();
    let gib = 1 << 30;
    // Two mirrors of three, and the log device last.
    w.on_sizes(&[5 * gib, 4 * gib, 6 * gib, 7 * gib, 8 * gib, 9 * gib, gib]);
    assert_eq!(w.pool.size, Some(4 * gib));
}

#[test]
fn a_device_may_be_a_model_file() {
    let file = std::env::temp_dir().join(format!("weir-model-{}.toml", std::process::id()));
    let name = file.to_str().unwrap();
    std::fs::write(&file, "[ssd]\nread = '80us'\n\n[host]\njitter = '5us'\n").unwrap();
    let text = format!("[pool]\ndevice = '{name}'\n[[job]]\n");
    let w = Workload::parse("w.toml", &text).unwrap();
    let want = sim::SsdModel { read: Nanos::from_us(80), ..sim::SsdModel::nvme() };
    assert_eq!((w.pool.device.model, w.pool.device.host.jitter), (Model::Ssd(want), Nanos::from_us(5)));
    // A mistake in it has its own line.
    std::fs::write(&file, "[ssd]\n\nread = 'soon'\n").unwrap();
    let e = Workload::parse("w.toml", &text).unwrap_err().to_string();
    assert!(e.contains(&format!("{name}:3: read: 'soon' is not a time")), "{e}");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_job_file_of_fio_means_the_same() {
    let text = "\
; of fio
[global]
ioengine=psync
rwmixread=70
bs=8k
runtime=20s
group_reporting

[db]
rw=randrw
numjobs=4
size=1g
sync=1
rate_iops=64
rate_process=poisson
buffer_compress_percentage=60

[copy]
rw=write
bs=1m
filename=big
fsync=8
iodepth=1
";
    let w = Workload::parse("a.fio", text).unwrap();
    assert_eq!((w.seconds, w.jobs.len()), (20, 2));
    let (db, copy) = (&w.jobs[0], &w.jobs[1]);
    assert_eq!((db.name.as_str(), db.pattern, db.read, db.threads), ("db", Pattern::Random, 70, 4));
    assert_eq!((db.block, db.size, db.sync, db.rate), (8192, 1 << 30, Sync::Each, Rate::Poisson(64.0)));
    assert!((db.compressible - 2.5).abs() < 1e-9);
    assert_eq!((copy.name.as_str(), copy.read, copy.block, copy.sync), ("copy", 0, 1 << 20, Sync::After(8)));
    assert_eq!((db.shared, copy.shared), (false, true));
}

#[test]
fn a_mistake_is_one_sentence_with_its_line() {
    let job = "[[job]]\n";
    for (file, text, want) in [
        (
            "w.toml",
            "[pool]\nlayout = \"raid5\"\n",
            "w.toml:2: layout: 'raid5' is no vdev of a layout: there are single",
        ),
        ("w.toml", "[pool]\n\ndevice = \"tape\"\n", "w.toml:3: device: 'tape' is no model of a device: there are nvme"),
        ("w.toml", "[pool]\nrecordsize = \"3k\"\n", "w.toml:2: recordsize: '3k' is not a power of two"),
        ("w.toml", "[pool]\ncompression = \"rar\"\n", "w.toml:2: compression: 'rar' is not a value of it"),
        ("w.toml", "[run]\nminutes = 1\n", "w.toml:2: minutes: there is no such key here, only seconds, warmup"),
        ("w.toml", "[job]\nblock = 1\n", "w.toml:1: job: it is no array of tables: write [[job]]"),
        ("w.toml", "job = [1]\n", "w.toml:1: job: it is no table: write [[job]]"),
        ("w.toml", "pool = 1\n", "w.toml:1: pool: it is no table: write [pool]"),
        ("w.toml", "[jobs]\n", "w.toml:1: jobs: there is no such key here, only [pool], [run], [[job]]"),
        ("w.toml", &format!("{job}threads = 0\n"), "w.toml:2: threads: '0' is not a number from 1 to 4096"),
        ("w.toml", &format!("{job}block = \"huge\"\n"), "w.toml:2: block: 'huge' is not a size such as 8k"),
        ("w.toml", &format!("{job}block = \"1G\"\n"), "w.toml:2: block: '1G' is not a size from 512 to 16777216 bytes"),
        ("w.toml", &format!("{job}read = 101\n"), "w.toml:2: read: '101' is not a number from 0 to 100"),
        ("w.toml", &format!("{job}sync = true\n"), "w.toml:2: sync: 'true' is none of: none, each, after N"),
        ("w.toml", &format!("{job}sync = [1]\n"), "w.toml:2: sync: its value is no text, number, true or false"),
        ("w.toml", &format!("{job}shared = 1\n"), "w.toml:2: shared: '1' is neither true nor false"),
        ("j.fio", "[a]\nfilename=x:y\n", "j.fio:2: filename: a job has one file here, or one for each thread"),
        ("w.toml", &format!("{job}sync = \"often\"\n"), "w.toml:2: sync: 'often' is none of: none, each, after N"),
        ("w.toml", &format!("{job}rate = \"poisson\"\n"), "w.toml:2: rate: 'poisson' is none of: max, fixed N"),
        ("w.toml", &format!("{job}rate = \"bursts 2 every day\"\n"), "w.toml:2: rate: 'day' is not a time"),
        ("w.toml", &format!("{job}\nsize = \"4k\"\n"), "w.toml:1: job: its size of 4096 bytes is less than its block"),
        ("w.toml", "[[job]]\nname = \"a\"\n[[job]]\nname = \"a\"\n", "w.toml:3: name: there are two jobs 'a'"),
        ("w.toml", "[run]\nseconds = \n", "w.toml:2: "),
        ("w.toml", "[run]\n", "w.toml: there is no job in it"),
        ("w.ini", "", "w.ini: a workload is a TOML file (.toml) or a job file of fio"),
        ("j.fio", "bs=4k\n", "j.fio:1: bs: it stands before the first [job]"),
        ("j.fio", "[a]\nrw=trim\n", "j.fio:2: rw: 'trim' is none of: read, write, rw"),
        ("j.fio", "[a]\n\nzonemode=zbd\n", "j.fio:3: zonemode: this option of fio has no meaning here"),
        ("j.fio", "[a]\niodepth=32\n", "j.fio:2: iodepth: threads here have one operation at a time"),
        ("j.fio", "[a]\nnumjobs=many\n", "j.fio:2: threads: 'many' is not a number"),
        ("j.fio", "[a]\nrw=randrw\nrwmixread=200\n", "j.fio:3: rwmixread: '200' is not a number from 0 to 100"),
    ] {
        let e = Workload::parse(file, text).unwrap_err().to_string();
        assert!(e.starts_with(want), "{text}: {e}");
        assert_eq!(e.lines().count(), 1, "{e}");
    }
    let large = "[pool]\ncompression = \"lz4\"\n[[job]]\nsize = \"1T\"\n";
    assert!(Workload::parse("w.toml", large).unwrap_err().to_string().contains("lower size or threads"));
}

#[test]
fn a_workload_runs_as_fast_as_it_says() {
    let run = || {
        let study = study("w.toml", Workload::parse("w.toml", TOML).unwrap(), None);
        let opts = RunOpts { seeds: 0..1, jobs: 1, memory: MEMORY_MAX, engine: "", state: None };
        study.run(opts, &mut |_| {}).unwrap()
    };
    let results = run();
    let of = |value: &str| results.spread("workload", value).unwrap().mean;
    // Two threads of 50 a second; three with bursts of 5 every half second.
    assert!((of("db.iops") / 100.0 - 1.0).abs() < 0.2, "{}", of("db.iops"));
    assert!((of("copy.iops") - 30.0).abs() < 4.5, "{}", of("copy.iops"));
    assert!((of("copy.mib_per_s") - of("copy.iops") / 8.0).abs() < 1e-9);
    assert!(of("db.write_p50_us") < of("db.write_p99_us") && of("db.read_p50_us") > 0.0);
    assert_eq!(results.series("workload", "copy.mib_per_s").len(), 8);
    assert_eq!(results, run(), "the same seed is the same run");
}
