//! Pictures of how full each part of each metaslab is.
//!
//! A [`HeatMap`] has for each top-level vdev a row for each metaslab, which is cut into *cells* of
//! equal size; the value of a cell is the share of it that is allocated, log space maps included.
//! [`HeatMap::terminal`] prints a character for each metaslab, or a line of characters;
//! [`HeatMap::html`] is one page that needs no network: inline SVG, light and dark, for print and
//! narrow screens. Both say of each metaslab how much is free, in how many segments, and how
//! fragmented that is.
//!
//! Invariant: the size of a page is bounded, since rows are joined from [`ROWS_MAX`] on and cells
//! of one shade next to each other are one mark.

use std::fmt::Write as _;

use base::Result;

use crate::check::load_space;
use crate::pool::PoolReader;
use crate::text::nice;

/// Cells of a metaslab: a line of them, with the figures, fits in a terminal of 110 columns.
pub const CELLS: usize = 64;
/// Metaslabs of a line of the short form.
const PER_LINE: usize = 64;
/// Most rows of a vdev in the page; more metaslabs share rows.
const ROWS_MAX: usize = 256;
/// Shades of the page besides nothing.
const SHADES: u8 = 8;
/// Buckets of free segments, by powers of two.
const BUCKETS: usize = 64;
/// Fragmentation in percent of free segments by powers of two from 512 bytes on: the table of
/// OpenZFS 0.6.4 to 2.3 (`zfs_frag_table`); segments above are not fragmented.
const FRAGMENTATION: [u64; 16] = [100, 100, 98, 95, 90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 5, 0];

/// A metaslab.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Its number in the vdev.
    pub index: u64,
    /// Its first byte in the vdev.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Free segments by powers of two of their bytes.
    pub segments: [u64; BUCKETS],
    /// Bytes of the largest free segment.
    pub largest: u64,
    /// The shares that are allocated, 0 to 1.
    pub cells: Vec<f64>,
}

/// The metaslabs of a top-level vdev.
#[derive(Clone, PartialEq, Debug)]
pub struct VdevMap {
    /// Its number.
    pub id: u32,
    /// What it is, for people.
    pub kind: String,
    /// Its metaslabs in order.
    pub rows: Vec<Row>,
}

/// All metaslabs of a pool.
#[derive(Clone, PartialEq, Debug)]
pub struct HeatMap {
    /// The pool's name.
    pub pool: String,
    /// The txg of its state.
    pub txg: u64,
    /// Its vdevs in order.
    pub vdevs: Vec<VdevMap>,
}

impl Row {
    /// Of the bytes from `start` on, of which these ranges (begin and end, ascending, disjoint) are
    /// allocated.
    pub fn of(index: u64, start: u64, size: u64, used: &[(u64, u64)]) -> Row {
        let end = start + size;
        let mut row =
            Row { index, start, size, free: 0, segments: [0; BUCKETS], largest: 0, cells: shares(start, size, used) };
        let mut at = start;
        for (from, to) in used.iter().copied().chain([(end, end)]) {
            let gap = from.saturating_sub(at);
            if gap > 0 {
                row.segments[gap.ilog2() as usize] += 1;
                row.free += gap;
                row.largest = row.largest.max(gap);
            }
            at = at.max(to);
        }
        row
    }

    /// The share of its bytes that is allocated, 0 to 1.
    pub fn full(&self) -> f64 {
        if self.size == 0 { 0.0 } else { 1.0 - self.free as f64 / self.size as f64 }
    }

    /// Several of them as one.
    fn joined(rows: &[Row]) -> Row {
        let mut all = Row { cells: Vec::new(), ..rows[0].clone() };
        for row in &rows[1..] {
            all.size += row.size;
            all.free += row.free;
            all.largest = all.largest.max(row.largest);
            (0..BUCKETS).for_each(|b| all.segments[b] += row.segments[b]);
        }
        // The cells of each come to fewer, so that the line is as long as before.
        let every = rows.len();
        let cells: Vec<f64> = rows.iter().flat_map(|r| r.cells.iter().copied()).collect();
        all.cells = cells.chunks(every).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect();
        all
    }
}

/// The share of each of [`CELLS`] equal parts that is allocated.
fn shares(start: u64, size: u64, used: &[(u64, u64)]) -> Vec<f64> {
    let mut cells = vec![0.0; CELLS];
    if size == 0 {
        return cells;
    }
    let width = size as f64 / CELLS as f64;
    for &(from, to) in used {
        let (from, to) = (from.max(start) - start, to.min(start + size).saturating_sub(start));
        let first = (from as f64 / width) as usize;
        for (cell, share) in cells.iter_mut().enumerate().skip(first) {
            let (begin, end) = (cell as f64 * width, (cell + 1) as f64 * width);
            if begin >= to as f64 {
                break;
            }
            *share += ((to as f64).min(end) - (from as f64).max(begin)).max(0.0) / width;
        }
    }
    // Sums of parts may be off by a rounding.
    cells.iter().map(|c| c.clamp(0.0, 1.0)).collect()
}

/// Fragmentation of free space in percent, from segments by powers of two of their bytes and all
/// bytes of each power taken as its smallest segment; None without free space.
pub fn fragmentation(segments: &[u64; BUCKETS]) -> Option<u64> {
    let (mut weighed, mut total) = (0u128, 0u128);
    for (power, &count) in segments.iter().enumerate() {
        let bytes = u128::from(count) << power;
        let percent = FRAGMENTATION.get(power.saturating_sub(9)).copied().unwrap_or(0);
        total += bytes;
        weighed += bytes * u128::from(percent);
    }
    (total > 0).then(|| (weighed / total) as u64)
}

impl VdevMap {
    /// Free segments of all metaslabs, by powers of two of their bytes.
    pub fn segments(&self) -> [u64; BUCKETS] {
        let mut all = [0; BUCKETS];
        self.rows.iter().for_each(|r| (0..BUCKETS).for_each(|b| all[b] += r.segments[b]));
        all
    }

    fn summary(&self) -> String {
        let (size, free) = self.rows.iter().fold((0, 0), |(s, f), r| (s + r.size, f + r.free));
        let each = self.rows.iter().map(|r| r.size).max().unwrap_or(0);
        let full = if size == 0 { 0.0 } else { 100.0 - 100.0 * free as f64 / size as f64 };
        let fragmented = fragmentation(&self.segments()).map_or("-".into(), |f| format!("{f}%"));
        format!(
            "vdev {} ({}): {} metaslabs of {}, {full:.1}% full, {} free, fragmentation {fragmented}",
            self.id,
            self.kind,
            self.rows.len(),
            nice(each),
            nice(free)
        )
    }
}

impl HeatMap {
    /// Of a pool's newest state. Faults of its space maps are left out: `--check` tells them.
    pub fn of(pool: &PoolReader) -> HeatMap {
        let space = load_space(pool, &mut |_: crate::check::Finding<'_>| {});
        let vdevs = space.vdevs.iter().map(|(&id, v)| {
            let config = pool.config.vdev_tree.children.get(id as usize);
            let kind = config.map_or(String::new(), |c| {
                let log = c.is_log.is_some_and(|l| l != 0).then_some("log");
                let purpose = log.or(c.alloc_bias.as_deref()).map_or(String::new(), |p| format!(", {p}"));
                format!("{}{purpose}", c.kind.name())
            });
            let row = |m: &crate::check::space::Metaslab| {
                let used: Vec<(u64, u64)> = v.all.within(m.start, m.start + m.size).collect();
                Row::of(m.index, m.start, m.size, &used)
            };
            VdevMap { id, kind, rows: v.metaslabs.iter().map(row).collect() }
        });
        HeatMap { pool: pool.name().to_string(), txg: pool.ub.txg.0, vdevs: vdevs.collect() }
    }

    /// For a terminal: a character for each metaslab, or a line for each if there is to be `more`.
    pub fn terminal(&self, more: bool) -> String {
        let mut out = format!("\nMetaslabs of {} at txg {}\n", self.pool, self.txg);
        for vdev in &self.vdevs {
            let _ = writeln!(out, "\n  {}", vdev.summary());
            if more {
                let _ = writeln!(out, "  {:>6}  {:CELLS$}  full    free  largest  frag", "", "");
                for row in &vdev.rows {
                    let cells: String = row.cells.iter().map(|&c| shade(c)).collect();
                    let frag = fragmentation(&row.segments).map_or("-".into(), |f| format!("{f}%"));
                    let _ = writeln!(
                        out,
                        "  {:>6} |{cells}|{:>4.0}% {:>7} {:>8} {frag:>5}",
                        row.index,
                        row.full() * 100.0,
                        nice(row.free),
                        nice(row.largest)
                    );
                }
            } else {
                for (n, line) in vdev.rows.chunks(PER_LINE).enumerate() {
                    let cells: String = line.iter().map(|r| shade(r.full())).collect();
                    let _ = writeln!(out, "  {:>6} |{cells}|", n * PER_LINE);
                }
            }
            let _ = writeln!(out, "  free segments: {}", segments_text(&vdev.segments()));
        }
        out + "\n  \u{b7} empty  \u{2591} up to a third  \u{2592} up to two thirds  \u{2593} more  \u{2588} full\n"
    }

    /// As a page that needs nothing else.
    pub fn html(&self) -> String {
        let title = escape(&format!("Metaslabs of {} at txg {}", self.pool, self.txg));
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p>Each line is a metaslab, from its first byte to its last; the darker, the more of that part is allocated. Pointing at a line shows its figures.</p>\n<p class=\"legend\" aria-label=\"shades\">empty {}full</p>\n",
            (0..=SHADES)
                .map(|s| format!(
                    "<svg viewBox=\"0 0 12 12\"><rect class=\"frame\" width=\"12\" height=\"12\"/><rect class=\"s\" fill-opacity=\"{}\" width=\"12\" height=\"12\"/></svg>",
                    opacity(s)
                ))
                .collect::<String>()
        );
        for vdev in &self.vdevs {
            let _ = writeln!(out, "<section>\n<h2>{}</h2>", escape(&vdev.summary()));
            map_svg(&mut out, vdev);
            segments_svg(&mut out, &vdev.segments());
            out.push_str("</section>\n");
        }
        out + "</body>\n</html>\n"
    }

    /// Writes the page to a file.
    pub fn write_html(&self, path: &std::path::Path) -> Result<()> {
        let bad = |e| base::Error::new(base::ErrorKind::Io, format!("cannot write '{}': {e}", path.display()));
        std::fs::write(path, self.html()).map_err(bad)
    }
}

/// A cell in a terminal. Only what is empty, and what is full to a thousandth, looks so.
fn shade(share: f64) -> char {
    match share {
        s if s <= 0.0 => '\u{b7}',
        s if s <= 1.0 / 3.0 => '\u{2591}',
        s if s <= 2.0 / 3.0 => '\u{2592}',
        s if s < 0.999 => '\u{2593}',
        _ => '\u{2588}',
    }
}

/// A cell in the page; only 0 is none.
fn shade_of(share: f64) -> u8 {
    (share * f64::from(SHADES)).ceil().clamp(0.0, f64::from(SHADES)) as u8
}

fn opacity(shade: u8) -> String {
    format!("{:.2}", f64::from(shade) / f64::from(SHADES))
}

/// Runs of equal values: first, length, value.
fn runs(values: impl Iterator<Item = u8>) -> Vec<(usize, usize, u8)> {
    let mut out: Vec<(usize, usize, u8)> = Vec::new();
    for (at, value) in values.enumerate() {
        match out.last_mut() {
            Some((_, length, last)) if *last == value => *length += 1,
            _ => out.push((at, 1, value)),
        }
    }
    out
}

fn segments_text(segments: &[u64; BUCKETS]) -> String {
    let some = segments.iter().enumerate().filter(|(_, n)| **n > 0);
    let text: Vec<String> = some.map(|(power, n)| format!("{n} of {}", nice(1 << power))).collect();
    if text.is_empty() { "none".into() } else { text.join(", ") }
}

/// The picture of a vdev's metaslabs, in units of its own.
fn map_svg(out: &mut String, vdev: &VdevMap) {
    let every = vdev.rows.len().div_ceil(ROWS_MAX).max(1);
    let rows: Vec<Row> = vdev.rows.chunks(every).map(Row::joined).collect();
    // Few metaslabs get higher lines.
    let height = if rows.len() <= 64 { 10 } else { 5 };
    let width = CELLS * 12;
    let _ = write!(
        out,
        "<svg class=\"map\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
        width + 2,
        rows.len() * height + 2,
        escape(&vdev.summary())
    );
    for (n, row) in rows.iter().enumerate() {
        let frag = fragmentation(&row.segments).map_or("-".into(), |f| format!("{f}%"));
        let last = if every > 1 { format!(" to {}", row.index + every as u64 - 1) } else { String::new() };
        let y = n * height + 1;
        let _ = write!(
            out,
            "<g><title>metaslab {}{last}, offset {:#x}: {:.1}% full, {} free, largest {}, fragmentation {frag}</title><rect class=\"paper\" x=\"1\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>",
            row.index,
            row.start,
            row.full() * 100.0,
            nice(row.free),
            nice(row.largest)
        );
        for (at, length, shade) in runs(row.cells.iter().map(|&c| shade_of(c))) {
            if shade > 0 {
                let _ = write!(
                    out,
                    "<rect class=\"s\" fill-opacity=\"{}\" x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{height}\"/>",
                    opacity(shade),
                    at * 12 + 1,
                    length * 12
                );
            }
        }
        out.push_str("</g>");
    }
    let _ = writeln!(
        out,
        "<rect class=\"frame\" x=\"1\" y=\"1\" width=\"{width}\" height=\"{}\"/></svg>",
        rows.len() * height
    );
}

/// Bytes in free segments by size, as bars.
fn segments_svg(out: &mut String, segments: &[u64; BUCKETS]) {
    let bytes: Vec<f64> = segments.iter().enumerate().map(|(p, &n)| n as f64 * 2f64.powi(p as i32)).collect();
    let (Some(first), Some(last)) = (bytes.iter().position(|b| *b > 0.0), bytes.iter().rposition(|b| *b > 0.0)) else {
        return;
    };
    let most = bytes.iter().copied().fold(0.0, f64::max);
    let width = (last - first + 1) * 44;
    let _ = write!(
        out,
        "<h3>Free space by size of its segments</h3>\n<div class=\"wide\"><svg class=\"bars\" viewBox=\"0 0 {width} 120\" style=\"width:{width}px\" role=\"img\" aria-label=\"free space by size of its segments\">"
    );
    for power in first..=last {
        let (x, high) = ((power - first) * 44, bytes[power] / most * 96.0);
        let name = nice(1 << power);
        let _ = write!(
            out,
            "<g><title>{} segments of {name} and more</title><rect class=\"s\" x=\"{}\" y=\"{:.1}\" width=\"36\" height=\"{high:.1}\"/><text x=\"{}\" y=\"114\" text-anchor=\"middle\">{name}</text></g>",
            segments[power],
            x + 4,
            100.0 - high,
            x + 22
        );
    }
    out.push_str("</svg></div>\n");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Colours and layout of the page.
const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1f23;--line:#c9ced6;--mark:#1f5fbf}\
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e8eb;--line:#3d444d;--mark:#6ea8fe}}\
@media print{:root{color-scheme:light;--paper:#fff;--ink:#000;--line:#999;--mark:#1f5fbf}body{max-width:none}\
svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}\
*{box-sizing:border-box}\
body{margin:0 auto;padding:1rem;max-width:60rem;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}\
h1{font-size:1.5rem;line-height:1.2;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.5rem 0 .4rem}\
h3{font-size:.95rem;margin:.8rem 0 .2rem}\
svg.map{width:100%;height:auto;display:block}.wide{overflow-x:auto}svg.bars{height:120px;display:block}\
svg text{fill:var(--ink);font:11px system-ui,sans-serif}\
.s{fill:var(--mark)}.paper{fill:var(--paper)}.frame{fill:none;stroke:var(--line)}\
g:hover>.paper{fill:var(--line)}\
.legend svg{width:.9rem;height:.9rem;vertical-align:-.1rem;margin-right:.2rem}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_the_share_that_is_allocated() {
        let size = 64 * CELLS as u64;
        for (used, want) in [
            (vec![], vec![]),
            (vec![(1000, 1000 + size)], vec![1.0; CELLS]),
            (vec![(1000, 1032)], vec![0.5]),
            // Over the edge of a cell, and two in one.
            (vec![(1048, 1080), (1100, 1108)], vec![0.25, 0.375]),
            // What lies outside does not count.
            (vec![(0, 1016), (1000 + size, 2000 + size)], vec![0.25]),
        ] {
            let have = shares(1000, size, &used);
            let want: Vec<f64> = want.iter().copied().chain(std::iter::repeat(0.0)).take(CELLS).collect();
            assert_eq!(have, want, "{used:?}");
        }
        assert_eq!(shares(0, 0, &[]), vec![0.0; CELLS]);
    }

    #[test]
    fn a_row_counts_what_is_between() {
        let row = Row::of(3, 4096, 1 << 20, &[(4096, 8192), (12288, 16384), (1 << 20, (1 << 20) + 4096)]);
        assert_eq!((row.free, row.largest), ((1 << 20) - 3 * 4096, (1 << 20) - 16384));
        assert_eq!((row.segments[12], row.segments[19], row.segments.iter().sum::<u64>()), (1, 1, 2));
        let all = Row::of(0, 0, 4096, &[(0, 4096)]);
        assert_eq!((all.free, all.largest, all.full(), fragmentation(&all.segments)), (0, 0, 1.0, None));
    }

    #[test]
    fn fragmentation_is_that_of_the_table() {
        let of = |list: &[(usize, u64)]| {
            let mut segments = [0; BUCKETS];
            list.iter().for_each(|&(power, n)| segments[power] = n);
            fragmentation(&segments)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(
            [of(&[(9, 1)]), of(&[(12, 7)]), of(&[(17, 1)]), of(&[(24, 1)])].map(Option::unwrap),
            [100, 95, 50, 0]
        );
        // Half of the bytes in pieces of 8 KiB, half in one of 32 MiB.
        assert_eq!(of(&[(13, 4096), (25, 1)]), Some(45));
        assert_eq!(of(&[(8, 1)]), Some(100), "less than a sector cannot be, and is no reason to fail");
    }

    #[test]
    fn shades_tell_empty_and_full_from_almost() {
        assert_eq!([0.0, 0.001, 0.34, 0.9, 0.9995, 1.0].map(shade), ['·', '░', '▒', '▓', '█', '█']);
        assert_eq!([0.0, 0.001, 0.5, 0.876, 1.0].map(shade_of), [0, 1, 4, 8, 8]);
        assert_eq!(runs([0, 0, 3, 3, 3, 1].into_iter()), [(0, 2, 0), (2, 3, 3), (5, 1, 1)]);
    }

    #[test]
    fn pages_are_bounded_and_escape_names() {
        let rows: Vec<Row> =
            (0..10_000).map(|i| Row::of(i, i << 24, 1 << 24, &[(i << 24, (i << 24) + (1 << 23))])).collect();
        let map = HeatMap { pool: "a<b".into(), txg: 7, vdevs: vec![VdevMap { id: 0, kind: "disk".into(), rows }] };
        let page = map.html();
        assert!(page.len() < 2 << 20, "{}", page.len());
        assert!(page.contains("a&lt;b") && !page.contains("a<b"));
        assert!(page.contains("metaslab 0 to 39") && page.contains("50.0% full"), "joined");
        assert_eq!(page.matches("<g>").count(), 250 + 1);
        let short = map.terminal(false);
        assert_eq!(short.lines().filter(|l| l.contains('|')).count(), 10_000usize.div_ceil(PER_LINE));
        assert_eq!(map.terminal(true).lines().filter(|l| l.contains('|')).count(), 10_000);
        assert!(short.contains("free segments: 10000 of 8M"), "{short}");
    }
}
