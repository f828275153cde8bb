//! Pools of every shape: random workloads, and the judges on the resulting images.

use ztest::campaign::{Effort, run_shape};
use ztest::judge::{self, Level, Verdict};
use ztest::lab::SHAPES;
use ztest::workload::Profile;

fn run(name: &str) {
    let at = SHAPES.iter().position(|s| s.name == name).unwrap_or_else(|| panic!("no shape {name}"));
    let seed = 2000 + at as u64;
    let images =
        run_shape(seed, Profile::Small, Effort { ops: 30, lives: 2 }, &SHAPES[at]).unwrap_or_else(|e| panic!("{e}"));
    match judge::judge(&images, Level::Zdb, &format!("shape-{name}")) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

macro_rules! shapes {
    ($($test:ident $name:literal;)*) => {
        $(#[test]
        fn $test() {
            run($name);
        })*
    };
}

shapes! {
    mirror "mirror";
    mirrors "mirrors";
    raidz1 "raidz1";
    raidz2 "raidz2";
    raidz3 "raidz3";
    raidz_two "raidz-two";
    draid "draid";
    draid2 "draid2";
    log "log";
    special "special";
    beside "beside";
}
