//! The program `weir`.

use std::process::ExitCode;

/// Small pieces of memory come and go with every operation; with the C library's allocator they are
/// a tenth of what a synchronous write costs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    ExitCode::from(cli::run(&args))
}
