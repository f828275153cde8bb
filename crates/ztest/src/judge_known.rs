//! Known false findings of the external judges in good pools.
//!
//! * *Log space maps without histograms.* zdb expects as many space maps with histograms as the
//!   feature `spacemap_histogram` counts, and counts every log space map as one, also in pools that
//!   have `log_spacemap` alone. Only the real code leaves log space maps at an export, so this
//!   comes after its turn.
//! * *Keys that bookmarks keep.* A bookmark with figures of freed space keeps its moment as a key
//!   of the head's deadlist, as do snapshots; zfsdump counts only these.
//! * *Generations of another pool.* A received file keeps its generation, the txg in which the pool
//!   that sent it made it; zfsdump compares it with the txg of this pool.
//! * *Metaslabs of a vdev that is not rotating any more.* The debug build of the real code asserts
//!   that the weights of metaslabs are those that it would compute now. A vdev with a distributed
//!   spare in use counts as rotating; when the spare goes the weights are others, and are still
//!   those of before.
//! * *Blocks that wait in the log of a dedup table.* A block that lost its last reference stays
//!   allocated until its entry leaves the log. zdb takes it for leaked; weir's checker counts the
//!   bytes of such blocks, and only as many are excused. On dRAID, which the checker does not read,
//!   zdb's own list of the logs counts them.
//!
//! * *Keys.* zdb dies of an assertion of its own on some ZAPs of encrypted file systems, since it
//!   has no keys.
//! * *Fast dedup.* zfsdump does not know it, and judges nothing of such a pool; zdb of OpenZFS 2.4
//!   does, and weir's checker recomputes the tables.
//!
//! A judgement is excused only if everything in it is one of these.

use std::collections::BTreeSet;

/// One judge that found something, and its last words.
struct Finding<'a> {
    judge: &'a str,
    words: Vec<&'a str>,
}

/// Splits the output of `judge` into findings.
fn findings(said: &str) -> Vec<Finding<'_>> {
    let mut out: Vec<Finding<'_>> = Vec::new();
    let mut open = false;
    for line in said.lines() {
        if let Some(judge) = line.strip_prefix("BAD   ") {
            out.push(Finding { judge, words: Vec::new() });
            open = true;
        } else if let (true, Some(words), Some(last)) = (open, line.strip_prefix("        "), out.last_mut()) {
            last.words.push(words.trim());
        } else {
            open = false;
        }
    }
    out
}

/// Numbers between the first brackets of a text.
fn listed(text: &str) -> Option<Vec<u64>> {
    let (_, rest) = text.split_once('[')?;
    let (list, _) = rest.split_once(']')?;
    list.split(", ").map(|n| n.parse().ok()).collect()
}

/// Whether a line reports a deadlist that has more keys than snapshots account for, and none less.
fn is_key_of_bookmark(line: &str) -> bool {
    let keys = || {
        let (_, rest) = line.split_once(": deadlist keys ")?;
        let (keys, snapshots) = rest.split_once(", snapshots before the last ")?;
        let (keys, snapshots) = (listed(keys)?, listed(snapshots)?);
        Some(keys.len() > snapshots.len() && snapshots.iter().all(|s| keys.contains(s)))
    };
    keys().unwrap_or(false)
}

/// Whether a line reports a file whose generation is a later txg than the pool has.
fn is_generation_of_sender(line: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().is_ok();
    let parts =
        line.rsplit_once(": gen ").and_then(|(file, generation)| Some((file.rsplit_once(": object ")?.1, generation)));
    parts.is_some_and(|(object, generation)| number(object) && number(generation))
}

/// `judge` about pools with encrypted file systems, behind the name of a zdb.
const UNLOCKED: &str = " -dddd: stopped halfway on an assertion of its own; the pool has encrypted file systems";

/// Whether nothing is missing in an incomplete judgement but what zfsdump says of pools with fast
/// dedup, and the end of a list by zdb that needed a key, and a zdb found the blocks good: that of
/// 2.4 if the pool is for it alone.
pub(crate) fn lacks_known_only(said: &str) -> bool {
    let mut open = said.lines().filter_map(|l| l.strip_prefix("--")).map(str::trim);
    let known = |l: &str| {
        let unknown = l.split_once(": does not know ").filter(|(judge, _)| judge.starts_with("zfsdump check"));
        l.starts_with("active features that OpenZFS 2.1 lacks: ")
            || unknown.is_some_and(|(_, what)| what == "com.klarasystems:fast_dedup; nothing was judged")
            || l.strip_suffix(UNLOCKED).is_some_and(|by| by == "zdb" || by == "zdb24")
    };
    let is_newer = said.lines().any(|l| l.starts_with("--    active features that OpenZFS 2.1 lacks: "));
    let wanted = |l: &str| l == "ok    zdb24 -bcc" || l == "ok    zdb -bcc" && !is_newer;
    said.lines().any(wanted) && open.all(known)
}

/// Whether zfsdump found nothing but keys of bookmarks and generations of other pools.
pub(crate) fn are_known_of_zfsdump<'a>(lines: impl IntoIterator<Item = &'a str>) -> bool {
    let is_other = |l: &str| !l.starts_with("note:") && !l.ends_with(" errors");
    let mut said = lines.into_iter().map(str::trim).filter(|l| !l.is_empty() && is_other(l)).peekable();
    said.peek().is_some() && said.all(|l| is_key_of_bookmark(l) || is_generation_of_sender(l))
}

/// Whether a line reports leaked space: a place, or that they are so many bytes in all.
fn is_leak(line: &str, bytes: u64) -> bool {
    line.starts_with("leaked space: vdev ")
        || line.starts_with("block traversal size ") && line.ends_with(&format!("(leaked {bytes})"))
}

fn is_known(f: &Finding<'_>, waiting: u64) -> bool {
    let all = |known: &dyn Fn(&str) -> bool| !f.words.is_empty() && f.words.iter().all(|w| known(w));
    match f.judge {
        "zdb24 -bcc" => {
            // Places alone, without the sum, excuse nothing.
            all(&|w| is_leak(w, waiting)) && f.words.iter().any(|w| w.ends_with(')'))
        }
        "zdb -bcc after it" => all(&|w| w.starts_with("space map refcount mismatch: expected 0 != actual ")),
        "zfsdump check" | "zfsdump check after it" => are_known_of_zfsdump(f.words.iter().copied()),
        "libzpool: import, scrub" => {
            all(&|w| w.starts_with("msp->ms_weight == weight ") || w.contains(":metaslab_verify_weight_and_frag()"))
        }
        _ => false,
    }
}

/// Bytes of the blocks without references in the logs of dedup tables, by the list of
/// `zdb -DDDDD`.
pub(crate) fn bytes_in_logs(said: &str) -> u64 {
    let mut places = BTreeSet::new();
    let mut is_log = false;
    for line in said.lines() {
        is_log = line.starts_with("DDT-log-") || is_log && !line.starts_with("DDT-");
        if is_log && line.contains(" refcnt 0 phys ") {
            places.extend(line.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(place, _)| place));
        }
    }
    let size = |place: &&str| u64::from_str_radix(place.rsplit_once(':')?.1, 16).ok();
    places.iter().filter_map(size).fold(0, u64::saturating_add)
}

/// The reasons of an excused judgement; None if it is not excused. `waiting`: bytes of blocks that
/// wait in the logs of dedup tables.
pub(crate) fn excused(said: &str, waiting: u64) -> Option<Vec<&str>> {
    let found = findings(said);
    let known = !found.is_empty() && found.iter().all(|f| is_known(f, waiting));
    known.then(|| found.iter().map(|f| f.judge).collect())
}

#[cfg(test)]
mod tests {
    use super::{bytes_in_logs, excused, lacks_known_only};

    const KEYS: &str = "ok    zdb -bcc\nBAD   zfsdump check after it\n        note: space map histograms: 0 as they are\n                  lab: deadlist keys [0, 1, 10, 39], snapshots before the last [0, 1, 10]\n        667 blocks, 1 errors\nlab: bad\n";

    #[test]
    fn as_many_bytes_as_wait_are_no_leak() {
        let leak = "BAD   zdb24 -bcc\n        leaked space: vdev 0, offset 0x11a7000, size 1536\n        block traversal size 1683968 != alloc 1685504 (leaked 1536)\nlab: bad\n";
        assert_eq!(excused(leak, 1536), Some(vec!["zdb24 -bcc"]));
        assert_eq!(excused(leak, 1024), None);
        assert_eq!(excused(leak, 0), None);
        let place = "BAD   zdb24 -bcc\n        leaked space: vdev 0, offset 0x11a7000, size 1536\nlab: bad\n";
        assert_eq!(excused(place, 1536), None);
        assert_eq!(excused(&leak.replace("block traversal", "checksum error\n        block traversal"), 1536), None);
    }

    #[test]
    fn blocks_of_logs_that_nothing_refers_to_are_counted() {
        let said = "DDT-sha512-zap-unique contents:\n\
            index 1 refcnt 0 phys 0 DVA[0]=<0:1000:800> [L0 deduplicated block] sha512\n\
            DDT-log-sha512-0: flags=0x00; obj=57; len=262144; txg=63; entries=3\n\
            index 0 refcnt 0 phys 0 DVA[0]=<0:47b5000:30000> DVA[1]=<1:8000:200> [L0 deduplicated block]\n\
            index 1 refcnt 1 phys 0 DVA[0]=<0:4785000:30000> [L0 deduplicated block] sha512\n\
            index 2 refcnt 0 phys 0 DVA[0]=<0:47b5000:30000> [L0 deduplicated block] sha512\n\
            DDT-log-sha512-1: flags=0x01 [FLUSHING]; obj=58; len=0; txg=55; entries=1\n\
            index 0 refcnt 0 phys 0 DVA[0]=<0:9000:1000> [L0 deduplicated block]\n\
            DDT-blake3: version=1 [FDT]; flags=0x03 [FLAT LOG]; rootobj=64\n\
            index 9 refcnt 0 phys 0 DVA[0]=<0:a000:1000> [L0 deduplicated block]\n";
        assert_eq!(bytes_in_logs(said), 0x30000 + 0x200 + 0x1000);
        assert_eq!(bytes_in_logs("index 0 refcnt 0 phys 0 DVA[0]=<0:0:zz>\n"), 0);
    }

    #[test]
    fn fast_dedup_is_left_to_zdb() {
        let said = "--    active features that OpenZFS 2.1 lacks: com.klarasystems:fast_dedup\nok    zdb24 -bcc\n--    zdb24 -dddd: stopped halfway on an assertion of its own; the pool has encrypted file systems\n--    zfsdump check: does not know com.klarasystems:fast_dedup; nothing was judged\nlab: good as far as judged\n";
        assert!(lacks_known_only(said));
        let older = "ok    zdb -bcc\n--    zdb -dddd: stopped halfway on an assertion of its own; the pool has encrypted file systems\nok    zfsdump check\n";
        assert!(lacks_known_only(older));
        assert!(!lacks_known_only(&older.replace("ok    zdb -bcc\n", "")));
        for (from, to) in [
            ("ok    zdb24 -bcc\n", ""),
            ("ok    zdb24 -bcc\n", "ok    zdb -bcc\n"),
            ("zdb24 -dddd", "zdb24 -mmm"),
            ("know com.klarasystems:fast_dedup;", "know com.truenas:physical_rewrite;"),
            ("lab: good", "--    zhack24 (get-zfs24): not there\nlab: good"),
        ] {
            assert!(!lacks_known_only(&said.replace(from, to)), "{to}");
        }
    }

    #[test]
    fn only_what_is_known_is_excused() {
        assert_eq!(excused(KEYS, 0), Some(vec!["zfsdump check after it"]));
        let weight = "BAD   libzpool: import, scrub\n        msp->ms_weight == weight (0x1 == 0x2)\n        ASSERT at ../../module/zfs/metaslab.c:2160:metaslab_verify_weight_and_frag()lab: bad\njudge: line 110: Aborted\n";
        assert_eq!(excused(weight, 0), Some(vec!["libzpool: import, scrub"]));
        let generation =
            KEYS.replace("deadlist keys [0, 1, 10, 39], snapshots before the last [0, 1, 10]", "object 11: gen 40");
        assert_eq!(excused(&generation, 0), Some(vec!["zfsdump check after it"]));
        let maps = "BAD   zdb -bcc after it\n        space map refcount mismatch: expected 0 != actual 1\nlab: bad\n";
        assert!(excused(maps, 0).is_some());
        for (not, why) in [
            (maps.replace("expected 0", "expected 2"), "the feature counts"),
            (maps.replace(" after it", ""), "not after the real code's turn"),
            (KEYS.replace(", 39]", "]"), "no more keys"),
            (generation.replace("gen 40", "gen x"), "no generation"),
            (KEYS.replace("[0, 1, 10]", "[0, 1, 7]"), "a snapshot's key is not there"),
            (KEYS.replace("        667", "        lab: totals [1] != [2]\n        667"), "something else too"),
            (KEYS.replace("ok    zdb -bcc", "BAD   zdb -bcc"), "somebody else too"),
            ("lab: bad\n".to_string(), "nothing was said"),
        ] {
            assert_eq!(excused(&not, 0), None, "{why}: {not}");
        }
    }
}
