//! The log of times: which txg was synced when, for scrubs of what was written between two dates
//! (OpenZFS 2.4, format page 17 section 8).
//!
//! Three rings of points in the directory of the MOS: a point goes to the months if the last one
//! there is 30 days old, else to the days after a day, else to the minutes. A point is noted with a
//! txg that writes something, at most every ten minutes, and with the last one before an export.
//! Only pools that a release with the log has written, or may write by their features, get one.

use std::cell::{Cell, RefCell};

use base::{Error, Result, Txg};
use dmu::zap::{self, ZapValue};
use dmu::{Dnode, Tx};
use dsl::features::Features;
use ondisk::feature::FeatureId;

/// Points of a ring (`RRD_MAX_ENTRIES`).
const POINTS: u64 = 256;
/// Words of a ring: head, tail, length, and two for each point.
const WORDS: usize = 3 + 2 * POINTS as usize;
/// Seconds between two points (`spa_note_txg_time`).
const NOTE_SECS: u64 = 600;
/// Seconds after which a point goes to the months, and to the days.
const AGES: [u64; 2] = [30 * 86_400, 86_400];
/// Entries of the directory: months, days, minutes.
const KEYS: [&[u8]; 3] = [
    b"com.klarasystems:txg_log_time:months",
    b"com.klarasystems:txg_log_time:days",
    b"com.klarasystems:txg_log_time:minutes",
];
/// Features of the release that began with the log.
const SINCE: [FeatureId; 3] = [FeatureId::BlockCloningEndian, FeatureId::DynamicGangHeader, FeatureId::PhysicalRewrite];

/// A ring as it is stored: head, tail, length, then time and txg of each place.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Ring(Vec<u64>);

impl Ring {
    fn empty() -> Ring {
        Ring(vec![0; WORDS])
    }

    /// From its words; none if they are no ring.
    fn from_words(words: Vec<u64>) -> Option<Ring> {
        let [head, tail, length] = words.get(..3)?.try_into().ok()?;
        let fits = words.len() == WORDS && head < POINTS && length <= POINTS && tail == (head + length) % POINTS;
        fits.then_some(Ring(words))
    }

    /// The time of the last point, 0 if there is none.
    fn last(&self) -> u64 {
        let (tail, length) = (self.0[1], self.0[2]);
        if length == 0 { 0 } else { self.0[3 + 2 * ((tail + POINTS - 1) % POINTS) as usize] }
    }

    /// Adds a point, in place of the oldest if there is no room.
    fn add(&mut self, time: u64, txg: Txg) {
        let at = 3 + 2 * self.0[1] as usize;
        (self.0[at], self.0[at + 1]) = (time, txg.0);
        self.0[1] = (self.0[1] + 1) % POINTS;
        if self.0[2] == POINTS {
            self.0[0] = self.0[1];
        } else {
            self.0[2] += 1;
        }
    }
}

/// The ring that a point of that time goes to.
fn place(rings: &[Ring; 3], time: u64) -> usize {
    AGES.iter().zip(rings).position(|(age, ring)| time.checked_sub(ring.last()).is_some_and(|d| d >= *age)).unwrap_or(2)
}

/// The log of a pool.
#[derive(Default)]
pub(crate) struct TimeLog {
    rings: RefCell<Option<[Ring; 3]>>,
    /// When the last point since the import was noted.
    noted: Cell<Option<u64>>,
}

impl TimeLog {
    /// Notes the txg that syncs, if it is time; `last`: it is the last one before an export.
    pub(crate) async fn sync(&self, cx: (&Dnode, &Features), now: u64, last: bool, tx: &Tx) -> Result<()> {
        let (directory, features) = cx;
        let due = self.noted.get().is_none_or(|time| now >= time.saturating_add(NOTE_SECS));
        if !due && !last {
            return Ok(());
        }
        let stored = self.rings.take();
        let (mut rings, is_new) = match stored {
            Some(rings) => (rings, false),
            None => match read(directory).await? {
                Some(rings) => (rings, false),
                None if SINCE.iter().any(|id| features.is_enabled(*id)) => {
                    ([Ring::empty(), Ring::empty(), Ring::empty()], true)
                }
                None => {
                    self.noted.set(Some(now));
                    return Ok(());
                }
            },
        };
        let at = place(&rings, now);
        rings[at].add(now, tx.txg());
        for (n, (key, ring)) in KEYS.iter().zip(&rings).enumerate() {
            if is_new || n == at {
                zap::update(directory, key, &ZapValue::from_u64s(&ring.0), tx).await?;
            }
        }
        *self.rings.borrow_mut() = Some(rings);
        self.noted.set(Some(now));
        Ok(())
    }
}

/// The bound of a span of time that is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bound {
    /// Its begin: the last point before it.
    Begin,
    /// Its end: the first point after it.
    End,
}

impl Ring {
    /// Its points as time and txg, the oldest first.
    fn points(&self) -> impl Iterator<Item = (u64, Txg)> {
        let word = |at: usize| self.0.get(at).copied().unwrap_or(0);
        (0..word(2)).map(move |n| {
            let at = 3 + 2 * ((word(0) + n) % POINTS) as usize;
            (word(at), Txg(word(at + 1)))
        })
    }

    /// The point nearest to a time on the side of the bound.
    fn near(&self, time: u64, bound: Bound) -> Option<(u64, Txg)> {
        match bound {
            Bound::Begin => self.points().take_while(|(at, _)| *at <= time).last(),
            Bound::End => self.points().find(|(at, _)| *at >= time),
        }
    }
}

/// The txg at a bound of a span of time (seconds since 1970) by the log in a directory; none if the
/// log, or this pool, does not reach as far.
pub(crate) async fn txg_at(directory: &Dnode, time: u64, bound: Bound) -> Result<Option<Txg>> {
    let rings = read(directory).await?;
    let near = rings.iter().flatten().filter_map(|ring| ring.near(time, bound));
    Ok(near.min_by_key(|(at, _)| at.abs_diff(time)).map(|(_, txg)| txg))
}

/// The rings in a directory; none if it has no log.
async fn read(directory: &Dnode) -> Result<Option<[Ring; 3]>> {
    let mut found = Vec::new();
    for key in KEYS {
        let Some(value) = zap::lookup(directory, key).await? else { return Ok(None) };
        // A damaged ring begins anew: it is for convenience.
        found.push(value.as_u64s().and_then(Ring::from_words).unwrap_or_else(Ring::empty));
    }
    let rings = <[Ring; 3]>::try_from(found).map_err(|_| Error::corrupt("the log of times is incomplete"))?;
    Ok(Some(rings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_go_to_the_ring_of_their_age() {
        let mut rings = [Ring::empty(), Ring::empty(), Ring::empty()];
        let begin = 1_795_386_203;
        let mut where_to = Vec::new();
        for time in [0, 15, 600, 86_414, 86_415, 30 * 86_400, 30 * 86_400 + 600] {
            let at = place(&rings, begin + time);
            rings[at].add(begin + time, Txg(time + 4));
            where_to.push(at);
        }
        // A clock that goes back.
        assert_eq!(place(&rings, begin), 2);
        assert_eq!(where_to, [0, 1, 2, 2, 1, 0, 1]);
        // As the kernel stores the first point.
        assert_eq!(rings[0].0[..5], [0, 2, 2, begin, 4]);
    }

    #[test]
    fn times_are_found_on_their_side() {
        let mut ring = Ring::empty();
        assert_eq!((ring.near(5, Bound::Begin), ring.near(5, Bound::End)), (None, None));
        for n in 0..POINTS + 3 {
            ring.add(1000 + 10 * n, Txg(n));
        }
        // The oldest one left is that of 1030.
        for (time, begin, end) in [
            (1029, None, Some(3)),
            (1030, Some(3), Some(3)),
            (1031, Some(3), Some(4)),
            (1000 + 10 * (POINTS + 2), Some(POINTS + 2), Some(POINTS + 2)),
            (u64::MAX, Some(POINTS + 2), None),
        ] {
            let txg = |bound| ring.near(time, bound).map(|(_, txg)| txg.0);
            assert_eq!((txg(Bound::Begin), txg(Bound::End)), (begin, end), "{time}");
        }
    }

    #[test]
    fn a_full_ring_loses_its_oldest_point() {
        let mut ring = Ring::empty();
        for n in 0..POINTS + 3 {
            ring.add(1000 + n, Txg(n));
            assert_eq!(ring.last(), 1000 + n);
        }
        assert_eq!(ring.0[..5], [3, 3, POINTS, 1000 + POINTS, POINTS]);
        assert_eq!(Ring::from_words(ring.0.clone()), Some(ring.clone()));
        for (word, value) in [(0, POINTS), (1, 4), (2, POINTS + 1)] {
            let mut bad = ring.0.clone();
            bad[word] = value;
            assert_eq!(Ring::from_words(bad), None, "{word}");
        }
        assert_eq!(Ring::from_words(vec![0; WORDS - 1]), None);
    }
}
