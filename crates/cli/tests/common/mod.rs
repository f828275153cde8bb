//! Running the program, for tests that see it from outside.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

pub mod commands;
pub mod loops;
pub mod machine;
pub mod world;

use std::path::Path;
use std::process::{Command, Output};

pub const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Options of OpenZFS's zdb: without the machine's list of pools, which other judges write.
pub const ALONE: [&str; 2] = ["-U", "/nonexistent/zpool.cache"];

/// The result of a command.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn outcome_of(o: Output) -> Outcome {
    let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
    Outcome { code: o.status.code().unwrap_or(-1), out: text(o.stdout), err: text(o.stderr) }
}

/// A command in `dir`, where the daemon that it talks to has its folders too.
pub fn command_in(dir: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut c = Command::new(program);
    c.env("WEIR_RUNTIME_DIR", dir.join("run")).env("WEIR_STATE_DIR", dir.join("state"));
    // Nothing of the system that tests run on is shared.
    c.env("WEIR_SHARE_ROOT", dir.join("share-root"));
    c.env_remove("WEIR_TUNABLES").env("TZ", "UTC").current_dir(dir);
    c
}

/// Whether file systems can be mounted here; prints a message if not.
pub fn can_mount(test: &str) -> bool {
    let usable = daemon::fuse_front::usable();
    if let Err(e) = &usable {
        eprintln!("NOT RUN: {test}: {e}");
    }
    usable.is_ok()
}
