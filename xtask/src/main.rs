//! Chores of the project, run as `cargo xtask WHAT`.
//!
//! | what | does |
//! |---|---|
//! | `test` | everything that must pass before a change lands; installs the judges where it may |
//! | `layers` | checks the allowed edges between crates and the names that engine crates must not use |
//! | `unused` | finds unused dependencies and public items without a use |
//! | `width` | names comments that are wider than 100 columns; with `--fix` it wraps them |
//! | `book` | checks that the book of `docs/` is complete and its links lead somewhere |
//! | `bench-fs` | measures weir beside zfs-fuse, a plain directory and the bare image file |
//! | `kill9` | kills the daemon under synchronous load and checks that acknowledged data is there |
//! | `fuzz` | runs the fuzz targets, each for a number of seconds |
//! | `campaign` | runs a slice of every long profile within a number of minutes |
//! | `deb` | makes the Debian package |
//! | `zts` | runs OpenZFS's own test suite against weir |
//! | `judges` | installs the independent checkers (Debian packages) and lists those present |

mod bench_fs;
mod bench_fs_contest;
mod bench_fs_jobs;
mod bench_fs_table;
mod book;
mod campaign;
mod deb;
mod deps;
mod fuzz;
mod judges;
mod kill9;
mod kill9_files;
mod layers;
mod rules;
mod source;
mod suite;
mod test;
mod width;
mod zts;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if fuzz::is_wrapper() {
        return finish(fuzz::rustc(&args));
    }
    let done = match args.first().map(String::as_str) {
        Some("test") => test::run(&args[1..]),
        Some("layers") => layers::run(),
        Some("unused") => deps::run(),
        Some("width") => width::run(&args[1..]),
        Some("bench-fs") => bench_fs::run(&args[1..]),
        Some("kill9") => kill9::run(&args[1..]),
        Some("book") => book::run(),
        Some("fuzz") => fuzz::run(&args[1..]),
        Some("campaign") => campaign::run(&args[1..]),
        Some("deb") => deb::run(&args[1..]),
        Some("zts") => zts::run(&args[1..]),
        Some("judges") => judges::install().map(|there| println!("{there}")),
        _ => Err(
            "usage: cargo xtask test [--keep-going] | layers | unused | width | book | bench-fs | kill9 | fuzz | campaign | deb | zts | judges"
                .to_string(),
        ),
    };
    finish(done)
}

fn finish(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace.
pub(crate) fn root() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(|p| p.to_path_buf()).unwrap_or_default()
}
