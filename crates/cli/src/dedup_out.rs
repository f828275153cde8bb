//! The lines of `zpool status -D`: dedup tables by how often their blocks are used.

use admin::view::{DedupView, fmt};

/// The lines of `zpool status -D`.
pub fn lines(d: &DedupView, exact: bool) -> String {
    if d.entries == 0 {
        return "\n dedup: no DDT entries\n".into();
    }
    let size = |n: u64| if exact { n.to_string() } else { fmt::num(n) };
    let row = |cells: [&str; 9]| {
        let [refs, blocks, a, b, c, times, x, y, z] = cells;
        format!("{refs:>6}   {blocks:>6}   {a:>5}   {b:>5}   {c:>5}   {times:>6}   {x:>5}   {y:>5}   {z:>5}\n")
    };
    let (disk, memory) = (size(d.disk), size(d.memory));
    let mut out = format!("\n dedup: DDT entries {}, size {disk} on disk, {memory} in core\n\n", d.entries);
    out += "bucket              allocated                       referenced          \n";
    out += "______   ______________________________   ______________________________\n";
    out += &row(["refcnt", "blocks", "LSIZE", "PSIZE", "DSIZE", "blocks", "LSIZE", "PSIZE", "DSIZE"]);
    out += &row(["------", "------", "-----", "-----", "-----", "------", "-----", "-----", "-----"]);
    let mut total = [0u64; 8];
    let mut line = |name: &str, figures: &[u64; 8]| {
        let text: Vec<String> =
            figures.iter().enumerate().map(|(i, n)| if i % 4 == 0 { fmt::num(*n) } else { fmt::bytes(*n) }).collect();
        out += &row(std::array::from_fn(|i| if i == 0 { name } else { &text[i - 1] }));
    };
    for (power, figures) in (0..).zip(&d.histogram).filter(|(_, f)| f[0] != 0) {
        line(&fmt::num(1u64.checked_shl(power).unwrap_or(0)), figures);
        total.iter_mut().zip(figures).for_each(|(sum, n)| *sum = sum.wrapping_add(*n));
    }
    if total[0] != 0 {
        line("Total", &total);
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_the_layout_of_openzfs() {
        assert_eq!(lines(&DedupView::default(), false), "\n dedup: no DDT entries\n");
        let mut d = DedupView { entries: 600, disk: 300 << 10, memory: 1 << 20, histogram: vec![[0; 8]; 64] };
        d.histogram[0] = [500, 500 << 13, 500 << 12, 500 << 12, 500, 500 << 13, 500 << 12, 500 << 12];
        d.histogram[2] = [100, 100 << 13, 100 << 12, 100 << 12, 450, 450 << 13, 450 << 12, 450 << 12];
        let want = "
 dedup: DDT entries 600, size 300K on disk, 1M in core

bucket              allocated                       referenced          
______   ______________________________   ______________________________
refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE
------   ------   -----   -----   -----   ------   -----   -----   -----
     1      500   3.91M   1.95M   1.95M      500   3.91M   1.95M   1.95M
     4      100    800K    400K    400K      450   3.52M   1.76M   1.76M
 Total      600   4.69M   2.34M   2.34M      950   7.42M   3.71M   3.71M

";
        assert_eq!(lines(&d, false), want);
        assert!(lines(&d, true).starts_with("\n dedup: DDT entries 600, size 307200 on disk, 1048576 in core\n"));
    }
}
