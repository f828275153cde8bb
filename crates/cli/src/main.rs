//! The program `weir`.

use std::process::ExitCode;

/// Every operation allocates small pieces; with the C library's allocator that is a tenth of the
/// cost of a synchronous write.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    ExitCode::from(cli::run(&args))
}
