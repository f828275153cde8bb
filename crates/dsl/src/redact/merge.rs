//! Which blocks are redacted: what *all* redaction snapshots have given up. Pure functions.

use ondisk::redact::{REDACTED_COUNT_MAX, RedactedRange};

/// An object and a block of it.
pub(super) type Place = (u64, u64);

/// Neighbouring blocks, both ends included. It may reach over several objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub first: Place,
    pub last: Place,
}

impl Span {
    /// All blocks of the objects `first` to `last`.
    pub(super) fn of_objects(first: u64, last: u64) -> Span {
        Span { first: (first, 0), last: (last, u64::MAX) }
    }
    /// Blocks of one object.
    pub(super) fn of_blocks(object: u64, first: u64, last: u64) -> Span {
        Span { first: (object, first), last: (object, last) }
    }
    /// The blocks of an object that it covers, first and last; none if they are after `max_blkid`.
    pub(super) fn within(&self, object: u64, max_blkid: u64) -> Option<(u64, u64)> {
        if object < self.first.0 || object > self.last.0 {
            return None;
        }
        let first = if object == self.first.0 { self.first.1 } else { 0 };
        let last = if object == self.last.0 { self.last.1.min(max_blkid) } else { max_blkid };
        (first <= last).then_some((first, last))
    }
}

/// What the first spans of all snapshots have in common.
pub(super) fn common(fronts: &[Span]) -> Option<Span> {
    let first = fronts.iter().map(|s| s.first).max()?;
    let last = fronts.iter().map(|s| s.last).min()?;
    (first <= last).then_some(Span { first, last })
}

/// The front that ends first: it can have nothing more in common with the others, so the next span
/// of its snapshot takes its place.
pub(super) fn ends_first(fronts: &[Span]) -> usize {
    let ends = fronts.iter().enumerate().min_by_key(|(_, s)| s.last);
    ends.map_or(0, |(i, _)| i)
}

/// Makes entries of ranges that come in ascending order: neighbours become one.
#[derive(Default)]
pub(super) struct Entries {
    pending: Option<RedactedRange>,
}

impl Entries {
    /// Takes the next range, of up to 2^64 blocks; gives the entries that are complete.
    pub(super) fn push(&mut self, mut next: RedactedRange) -> Vec<RedactedRange> {
        let mut out = Vec::new();
        loop {
            let part = RedactedRange { count: next.count.min(REDACTED_COUNT_MAX), ..next };
            match &mut self.pending {
                Some(last) if joins(last, &part) => last.count += part.count,
                pending => out.extend(pending.replace(part)),
            }
            next.count -= part.count;
            next.blkid += part.count;
            if next.count == 0 {
                return out;
            }
        }
    }

    /// The place from which on nothing is given yet, if something waits.
    pub(super) fn waits_at(&self) -> Option<Place> {
        self.pending.map(|p| (p.object.0, p.blkid))
    }

    /// The entry that waits, because nothing comes any more.
    pub(super) fn finish(&mut self) -> Option<RedactedRange> {
        self.pending.take()
    }
}

fn joins(last: &RedactedRange, next: &RedactedRange) -> bool {
    last.object == next.object
        && last.block_size == next.block_size
        && last.end() == next.blkid
        && last.count + next.count <= REDACTED_COUNT_MAX
}

#[cfg(test)]
mod tests {
    use base::ObjectId;

    use super::*;

    /// Everything that lists of spans have in common, as the walk of `zfs redact` takes it.
    fn all_common(lists: &[&[Span]]) -> Vec<Span> {
        let mut at = vec![0; lists.len()];
        let mut out = Vec::new();
        loop {
            let fronts: Option<Vec<Span>> = lists.iter().zip(&at).map(|(list, i)| list.get(*i).copied()).collect();
            let Some(fronts) = fronts else { return out };
            out.extend(common(&fronts));
            at[ends_first(&fronts)] += 1;
        }
    }

    #[test]
    fn what_all_snapshots_gave_up_is_redacted() {
        let blocks = |first, last| Span::of_blocks(7, first, last);
        // The example: ranges of three snapshots, one of which has two.
        let one = [blocks(2, 9)];
        let two = [blocks(3, 6), blocks(8, 10)];
        let three = [blocks(5, 11)];
        assert_eq!(all_common(&[&one, &two, &three]), [blocks(5, 6), blocks(8, 9)]);
        // The order of the snapshots does not matter.
        assert_eq!(all_common(&[&three, &two, &one]), [blocks(5, 6), blocks(8, 9)]);
        assert_eq!(all_common(&[&two]), two);
        assert_eq!(all_common(&[&one, &[]]), []);
        // Touching is not having in common.
        assert_eq!(all_common(&[&[blocks(0, 4)], &[blocks(5, 9)]]), []);
        assert_eq!(all_common(&[&[blocks(0, 4)], &[blocks(4, 9)]]), [blocks(4, 4)]);
    }

    #[test]
    fn spans_reach_over_objects() {
        let gone = [Span::of_objects(5, 8)];
        let files = [Span::of_blocks(4, 0, 9), Span::of_blocks(6, 2, 3), Span::of_objects(8, 20)];
        assert_eq!(all_common(&[&gone, &files]), [Span::of_blocks(6, 2, 3), Span::of_objects(8, 8)]);
        let span = Span { first: (5, 3), last: (7, 1) };
        for (object, max, want) in [
            (4, 9, None),
            (5, 9, Some((3, 9))),
            (5, 2, None),
            (6, 0, Some((0, 0))),
            (7, 9, Some((0, 1))),
            (7, 0, Some((0, 0))),
            (8, 9, None),
        ] {
            assert_eq!(span.within(object, max), want, "{object} {max}");
        }
        assert_eq!(Span::of_blocks(5, 0, u64::MAX).within(5, 3), Some((0, 3)));
    }

    #[test]
    fn neighbours_become_one_entry() {
        let range = |object, blkid, count| RedactedRange { object: ObjectId(object), blkid, count, block_size: 512 };
        let mut entries = Entries::default();
        assert_eq!(entries.waits_at(), None);
        assert_eq!(entries.push(range(5, 0, 2)), []);
        assert_eq!(entries.push(range(5, 2, 1)), []);
        assert_eq!(entries.waits_at(), Some((5, 0)));
        assert_eq!(entries.push(range(5, 4, 1)), [range(5, 0, 3)]);
        assert_eq!(entries.push(range(6, 5, 1)), [range(5, 4, 1)]);
        assert_eq!(entries.push(RedactedRange { block_size: 1024, ..range(6, 6, 1) }), [range(6, 5, 1)]);
        assert_eq!(entries.finish().map(|r| r.blkid), Some(6));
        assert_eq!(entries.finish(), None);
        // An entry has room for 2^48 blocks.
        let most = REDACTED_COUNT_MAX;
        assert_eq!(entries.push(range(5, 1, 2 * most + 3)), [range(5, 1, most), range(5, 1 + most, most)]);
        assert_eq!(entries.push(range(5, 2 * most + 4, most - 3)), []);
        assert_eq!(entries.push(range(5, 3 * most + 1, 1)), [range(5, 2 * most + 1, most)]);
    }
}
