//! Prints what a device writes for each byte of synchronous writes ([`lab::sync_bytes`]):
//! `cargo run --release -p openweir-lab --example sync_bytes`.

use lab::sync_bytes::Cell;

fn main() -> base::Result<()> {
    println!("{:<11}{:>10}{:>8}{:>10}{:>8}{:>10}", "logbias", "recordsize", "write", "indirect", "copied", "per byte");
    for cell in Cell::TABLE {
        let seen = cell.run(128 << 20, 1)?;
        println!(
            "{:<11}{:>9}K{:>7}K{:>10}{:>8}{:>10.3}",
            if cell.throughput { "throughput" } else { "latency" },
            cell.recordsize >> 10,
            cell.write >> 10,
            seen.indirect,
            seen.copied,
            seen.per_byte()
        );
    }
    Ok(())
}
