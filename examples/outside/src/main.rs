//! Five small programs on top of `openweir`, from outside of its workspace: the examples of the
//! crate, as they stand, with nothing but the crate below them.
//!
//! `cargo run` runs them one after the other.

use std::time::Instant;

#[path = "../../../crates/openweir/examples/foreign.rs"]
mod foreign;
#[path = "../../../crates/openweir/examples/kv.rs"]
mod kv;
#[path = "../../../crates/openweir/examples/server.rs"]
mod server;
#[path = "../../../crates/openweir/examples/simulated.rs"]
mod simulated;
#[path = "../../../crates/openweir/examples/snaplog.rs"]
mod snaplog;

fn timed<T, E>(name: &str, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let begun = Instant::now();
    let result = run()?;
    println!("{name}: {:.2} s", begun.elapsed().as_secs_f64());
    Ok(result)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let keys = timed("a key-value store on ZAPs", kv::run)?;
    println!("  {keys} keys");
    let past = timed("a snapshotting log", snaplog::run)?;
    past.iter().for_each(|(name, records)| println!("  {name}: {records} records"));
    let listed = timed("a file server without FUSE", server::run)?;
    println!("  it lists {}", listed.trim_end().replace('\n', ", "));
    let (files, batches) = timed("a simulated pool under a ledger", || simulated::run(20))?;
    println!("  of 20 power cuts {files} broke the ledger in files, {batches} the one in batches");
    let folder = std::env::temp_dir().join(format!("outside-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let found = timed("a reader of foreign pools", || foreign::run(&folder));
    std::fs::remove_dir_all(&folder)?;
    let found = found?;
    println!("  {} files, {} bytes", found.files, found.bytes);
    Ok(())
}
