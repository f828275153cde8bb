//! Redaction lists laid over the walk of a snapshot (format page 25 section 1, Redaction).
//!
//! Up to three sources give ranges of blocks, each in ascending order: the list of what is
//! redacted, the walk of the snapshot, and the list of the redaction bookmark that the stream
//! starts from, whose blocks the receiver lacks. Where ranges overlap, the list of what is redacted
//! counts before the walk, and the walk before what the receiver lacks. What is in both lists is
//! not sent: the receiver lacks it, and goes on to do so.

use base::Result;

use crate::redact::ListReader;

/// Blocks of one object, without `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub object: u64,
    pub start: u64,
    pub end: u64,
}

/// What becomes of the next blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// They are left out; bytes of a block.
    Redact(Part, u32),
    /// They are sent as the walk met them.
    Walked(Part),
    /// They are sent as they are in the snapshot, whenever they were born.
    Again(Part),
    /// Nothing is sent of them.
    Pass(Part),
}

/// The next range of each source.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Fronts {
    /// With the bytes of a block.
    pub redact: Option<(Part, u32)>,
    pub walked: Option<Part>,
    pub again: Option<Part>,
}

/// Takes the blocks up to `end` from a range that begins at `start` in `object`.
fn take(front: &mut Option<Part>, object: u64, start: u64, end: u64) {
    if let Some(part) = front
        && (part.object, part.start) == (object, start)
    {
        part.start = end;
        if part.start >= part.end {
            *front = None;
        }
    }
}

impl Fronts {
    /// Takes the next blocks that have the same sources; `None` if there are no ranges.
    pub(super) fn next(&mut self) -> Option<Turn> {
        let redact = self.redact.map(|(part, _)| part);
        let all = [redact, self.walked, self.again];
        let first = all.into_iter().flatten().min_by_key(|p| (p.object, p.start))?;
        let (object, start) = (first.object, first.start);
        let here = |p: Option<Part>| p.is_some_and(|p| (p.object, p.start) == (object, start));
        // Up to the next place where a range begins or ends.
        let changes = all.into_iter().flatten().filter(|p| p.object == object).flat_map(|p| [p.start, p.end]);
        let end = changes.filter(|at| *at > start).min().unwrap_or(first.end);
        let part = Part { object, start, end };
        let turn = match (self.redact, here(redact), here(self.walked), here(self.again)) {
            (Some(_), true, _, true) => Turn::Pass(part),
            (Some((_, size)), true, _, false) => Turn::Redact(part, size),
            (_, _, true, _) => Turn::Walked(part),
            _ => Turn::Again(part),
        };
        let size = self.redact.map_or(0, |(_, size)| size);
        let mut redact = redact;
        take(&mut redact, object, start, end);
        self.redact = redact.map(|part| (part, size));
        take(&mut self.walked, object, start, end);
        take(&mut self.again, object, start, end);
        Some(turn)
    }
}

/// The lists of a stream.
#[derive(Default)]
pub(super) struct Overlay {
    /// What is redacted.
    pub redact: Option<ListReader>,
    /// What the receiver lacks.
    pub again: Option<ListReader>,
    fronts: Fronts,
}

impl Overlay {
    pub(super) fn new(redact: Option<ListReader>, again: Option<ListReader>) -> Overlay {
        Overlay { redact, again, fronts: Fronts::default() }
    }

    async fn fill(&mut self) -> Result<()> {
        let part = |r: ondisk::redact::RedactedRange| Part { object: r.object.0, start: r.blkid, end: r.end() };
        if self.fronts.redact.is_none()
            && let Some(list) = &mut self.redact
        {
            self.fronts.redact = list.next().await?.map(|r| (part(r), r.block_size));
        }
        if self.fronts.again.is_none()
            && let Some(list) = &mut self.again
        {
            self.fronts.again = list.next().await?.map(part);
        }
        Ok(())
    }

    /// What comes before `object`; then `None`.
    pub(super) async fn before(&mut self, object: u64) -> Result<Option<Turn>> {
        self.fill().await?;
        let starts = [self.fronts.redact.map(|(p, _)| p), self.fronts.again];
        match starts.into_iter().flatten().any(|p| p.object < object) {
            true => Ok(self.fronts.next()),
            false => Ok(None),
        }
    }

    /// The walk met blocks: what comes up to their end follows from [`Overlay::turn`].
    pub(super) fn walked(&mut self, part: Part) {
        assert!(self.fronts.walked.is_none(), "the blocks before were not sent");
        self.fronts.walked = Some(part);
    }

    /// The next blocks, as long as there are some that the walk met.
    pub(super) async fn turn(&mut self) -> Result<Option<Turn>> {
        if self.fronts.walked.is_none() {
            return Ok(None);
        }
        self.fill().await?;
        Ok(self.fronts.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(object: u64, start: u64, end: u64) -> Part {
        Part { object, start, end }
    }

    /// The turns of whole lists of ranges.
    fn turns(redact: &[Part], walked: &[Part], again: &[Part]) -> Vec<Turn> {
        let (mut r, mut w, mut a) = (redact.iter(), walked.iter(), again.iter());
        let mut fronts = Fronts::default();
        let mut out = Vec::new();
        loop {
            fronts.redact = fronts.redact.or_else(|| r.next().map(|p| (*p, 512)));
            fronts.walked = fronts.walked.or_else(|| w.next().copied());
            fronts.again = fronts.again.or_else(|| a.next().copied());
            match fronts.next() {
                Some(turn) => out.push(turn),
                None => return out,
            }
        }
    }

    #[test]
    fn what_is_redacted_counts_first() {
        use Turn::*;
        let p = |start, end| part(7, start, end);
        // The example of three overlapping ranges: [2,4), [3,5), [1,3).
        assert_eq!(
            turns(&[p(2, 4)], &[p(3, 5)], &[p(1, 3)]),
            [Again(p(1, 2)), Pass(p(2, 3)), Redact(p(3, 4), 512), Walked(p(4, 5))]
        );
        // A hole with a redacted part, and a redacted part without anything new.
        assert_eq!(
            turns(&[p(10, 20), p(90, 95)], &[p(0, 64)], &[]),
            [Walked(p(0, 10)), Redact(p(10, 20), 512), Walked(p(20, 64)), Redact(p(90, 95), 512)]
        );
        // New blocks hide what the receiver lacks; in both lists: nothing.
        assert_eq!(
            turns(&[p(3, 4)], &[p(0, 1)], &[p(0, 2), p(3, 5)]),
            [Walked(p(0, 1)), Again(p(1, 2)), Pass(p(3, 4)), Again(p(4, 5))]
        );
    }

    #[test]
    fn objects_are_apart() {
        use Turn::*;
        assert_eq!(
            turns(&[part(5, 0, 9)], &[part(6, 0, 1)], &[part(4, 2, 3), part(6, 0, 4)]),
            [Again(part(4, 2, 3)), Redact(part(5, 0, 9), 512), Walked(part(6, 0, 1)), Again(part(6, 1, 4))]
        );
        assert_eq!(turns(&[], &[], &[]), []);
        assert_eq!(turns(&[part(1, 0, u64::MAX)], &[], &[]), [Redact(part(1, 0, u64::MAX), 512)]);
    }
}
