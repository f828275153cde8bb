//! Bookmarks as stored, and the space that is freed after them.

use super::*;

fn mark(txg: u64, flags: u64, words: usize) -> Bookmark {
    let mut all = vec![11, txg, 1_700_000_000, 0, flags, 5000, 4000, 6000, 0, 0, 0, 99];
    all.truncate(words);
    Bookmark { name: "m".into(), words: all }
}

fn space(n: i64) -> Space {
    Space { used: n, compressed: n / 2, uncompressed: 2 * n }
}

#[test]
fn short_bookmarks_have_no_figures() {
    let (short, long) = (mark(7, HAS_FBN, 3), mark(7, HAS_FBN, WORDS_V2));
    assert_eq!((short.guid(), short.creation_txg(), short.creation_time()), (11, 7, 1_700_000_000));
    assert_eq!((short.has_freed(), short.referenced(), short.ivset_guid()), (false, None, 0));
    assert_eq!((long.has_freed(), long.referenced(), long.ivset_guid()), (true, Some(5000), 99));
    assert_eq!(mark(7, SNAPSHOT_EXISTS, WORDS_V2).referenced(), None, "the figures are not kept");
}

#[test]
fn only_blocks_of_the_bookmark_count_until_the_next_snapshot() {
    // The bookmark is of txg 7.
    for (birth, last_snap, counts) in [(7, 7, true), (3, 7, true), (8, 7, false), (7, 8, false), (7, 0, true)] {
        let mut freed = FreedMark { mark: mark(7, HAS_FBN, WORDS_V2), dirty: false };
        freed.killed(birth, last_snap, space(100));
        assert_eq!(freed.dirty, counts, "{birth} {last_snap}");
        let want = if counts { [100, 50, 200] } else { [0; 3] };
        assert_eq!(freed.mark.words[8..11], want, "{birth} {last_snap}");
    }
}

#[test]
fn freed_space_adds_up_and_never_falls_below_zero() {
    let mut freed = FreedMark { mark: mark(7, HAS_FBN, WORDS_V2), dirty: false };
    freed.add(Space::default());
    assert!(!freed.dirty, "nothing is to be written");
    freed.add(space(100));
    freed.add(space(50));
    assert_eq!(freed.mark.words[8..11], [150, 75, 300]);
    freed.add(space(1000).negated());
    assert_eq!(freed.mark.words[8..11], [0; 3]);
}
