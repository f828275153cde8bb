//! Histograms of dedup tables (format page 13 section 6).

use base::{Error, Result};
use ondisk::zap::ZapValue;
use zio::Zio;

use super::entry::{Key, Slots};

const BUCKETS: usize = 64;
/// Figures of a bucket: blocks, lsize, psize, dsize, and the same times references.
const FIGURES: usize = 8;
const DSIZE: usize = 3;
const REF_DSIZE: usize = 7;

/// Sums over entries, by the power of two of their references.
#[derive(Clone)]
pub(super) struct Histogram(Box<[[u64; FIGURES]; BUCKETS]>);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(Box::new([[0; FIGURES]; BUCKETS]))
    }
}

impl Histogram {
    /// From an entry of `DDT-statistics`.
    pub fn parse(value: &ZapValue) -> Result<Histogram> {
        let words = value.as_u64s().filter(|w| w.len() == BUCKETS * FIGURES);
        let words = words.ok_or_else(|| Error::corrupt("histogram of a dedup table that is none"))?;
        let mut out = Histogram::default();
        words.into_iter().enumerate().for_each(|(i, w)| out.0[i / FIGURES][i % FIGURES] = w);
        Ok(out)
    }

    /// As an entry of `DDT-statistics`.
    pub fn value(&self) -> ZapValue {
        ZapValue::from_u64s(&self.0.iter().flatten().copied().collect::<Vec<u64>>())
    }

    /// Adds the blocks of an entry, or subtracts them. One without references is not counted.
    pub fn count(&mut self, zio: &Zio, key: &Key, slots: &Slots, add: bool) {
        let refs: u64 = slots.iter().fold(0u64, |n, s| n.saturating_add(s.refs));
        let Some(bucket) = refs.checked_ilog2().map(|n| &mut self.0[n as usize]) else { return };
        let mut change = |figure: usize, by: u64| {
            bucket[figure] = if add { bucket[figure].wrapping_add(by) } else { bucket[figure].wrapping_sub(by) };
        };
        for slot in slots.iter().filter(|s| s.birth != 0) {
            let dsize = zio.dsize(&key.pointer(slot));
            for (i, v) in [1, key.lsize(), key.psize(), dsize].into_iter().enumerate() {
                change(i, v);
                change(i + 4, v.wrapping_mul(slot.refs));
            }
        }
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Histogram) {
        self.0.iter_mut().flatten().zip(other.0.iter().flatten()).for_each(|(a, b)| *a = a.wrapping_add(*b));
    }

    /// The figures of each bucket.
    pub fn buckets(&self) -> Vec<[u64; FIGURES]> {
        self.0.to_vec()
    }

    /// Allocated bytes of the blocks, and of all references to them.
    pub fn sizes(&self) -> (u64, u64) {
        let sum = |figure: usize| self.0.iter().fold(0u64, |sum, bucket| sum.wrapping_add(bucket[figure]));
        (sum(DSIZE), sum(REF_DSIZE))
    }
}
