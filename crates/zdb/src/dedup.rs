//! What `weir zdb -D` shows: dedup tables, their logs, and histograms that are counted anew from
//! the entries.

use std::io::Write;

use base::Result;

use crate::check::ddt::{Ddt, Histogram, TableView};
use crate::pool::PoolReader;
use crate::text::{io, nice};

/// `-D` tables and the ratio, `-DD` the histogram of all, `-DDD` one for each class.
pub(crate) fn tables(pool: &PoolReader, detail: u32, out: &mut dyn Write) -> Result<()> {
    let views = Ddt::views(pool)?;
    let mut all: Box<Histogram> = Box::new([[0; 8]; 64]);
    for t in &views {
        table(t, detail, out)?;
        let logged = [&t.logged];
        for h in t.classes.iter().map(|c| &c.histogram).chain(logged) {
            all.iter_mut().flatten().zip(h.iter().flatten()).for_each(|(sum, n)| *sum = sum.wrapping_add(*n));
        }
    }
    let total = total_of(&all);
    if total[0] == 0 {
        return io(writeln!(out, "All DDTs are empty"));
    }
    io(writeln!(out))?;
    if detail > 1 {
        io(writeln!(out, "DDT histogram (aggregated over all DDTs):"))?;
        histogram(&all, true, out)?;
    }
    let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    let (dedup, compress, copies) = (ratio(total[7], total[3]), ratio(total[5], total[6]), ratio(total[7], total[6]));
    io(writeln!(
        out,
        "dedup = {dedup:.2}, compress = {compress:.2}, copies = {copies:.2}, dedup * compress / copies = {:.2}\n",
        dedup * compress / copies
    ))
}

fn table(t: &TableView, detail: u32, out: &mut dyn Write) -> Result<()> {
    let (version, form, flags) = if t.flat { (1, "FDT", "0x03 [FLAT LOG]") } else { (0, "LEGACY", "0x00") };
    io(writeln!(out, "{}: version={version} [{form}]; flags={flags}; rootobj={}", t.name, t.root))?;
    for c in t.classes.iter().filter(|c| c.entries > 0) {
        let name = &c.name;
        io(writeln!(out, "{name}: dspace={}; mspace={}; entries={}", c.disk, c.memory, c.entries))?;
        if detail > 2 {
            io(writeln!(out, "{name}: object={}", c.object))?;
            histogram(&c.histogram, false, out)?;
        }
    }
    for log in &t.logs {
        let h = &log.header;
        let (flags, words) = match (h.flushing, h.checkpoint.is_some()) {
            (false, _) => (0, ""),
            (true, false) => (1, " [FLUSHING]"),
            (true, true) => (3, " [FLUSHING CHECKPOINT]"),
        };
        let (name, object, entries) = (&log.name, log.object, log.entries);
        let (length, txg) = (h.length, h.first_txg);
        io(writeln!(
            out,
            "{name}: flags=0x{flags:02x}{words}; obj={object}; len={length}; txg={txg}; entries={entries}"
        ))?;
        if let Some([a, b, c, d, e]) = h.checkpoint {
            io(writeln!(out, "    checkpoint: {a:016x}:{b:016x}:{c:016x}:{d:016x}:{e:016x}"))?;
        }
    }
    Ok(())
}

fn total_of(h: &Histogram) -> [u64; 8] {
    h.iter().fold([0; 8], |sum, bucket| std::array::from_fn(|i| sum[i].wrapping_add(bucket[i])))
}

fn histogram(h: &Histogram, with_total: bool, out: &mut dyn Write) -> Result<()> {
    let (allocated, referenced) = ("           allocated             ", "          referenced          ");
    io(writeln!(out, "\nbucket   {allocated}{referenced}"))?;
    io(writeln!(out, "______   {0}   {0}", "_".repeat(30)))?;
    let mut row = |cells: [&str; 9]| {
        let [refs, blocks, a, b, c, times, x, y, z] = cells;
        io(writeln!(out, "{refs:>6}   {blocks:>6}   {a:>5}   {b:>5}   {c:>5}   {times:>6}   {x:>5}   {y:>5}   {z:>5}"))
    };
    row(["refcnt", "blocks", "LSIZE", "PSIZE", "DSIZE", "blocks", "LSIZE", "PSIZE", "DSIZE"])?;
    row(["------", "------", "-----", "-----", "-----", "------", "-----", "-----", "-----"])?;
    let mut line = |name: &str, figures: &[u64; 8]| {
        let text = figures.map(nice);
        row(std::array::from_fn(|i| if i == 0 { name } else { &text[i - 1] }))
    };
    for (power, figures) in h.iter().enumerate().filter(|(_, f)| f[0] != 0) {
        line(&nice(1 << power), figures)?;
    }
    if with_total {
        line("Total", &total_of(h))?;
    }
    io(writeln!(out))
}
