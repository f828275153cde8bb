//! The command `weir zdb` by itself: `cargo run -p openweir-zdb --example wzdb -- ARGS`.

use std::io::Write;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let code = zdb::main(&args, &mut out, &mut std::io::stderr().lock());
    let _ = out.flush();
    std::process::exit(code);
}
