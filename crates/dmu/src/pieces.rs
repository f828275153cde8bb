//! Large changes of an object's data in parts: data that come as several slices, written in
//! transactions of bounded size; ranges freed over several txgs.
//!
//! A write is divided at block boundaries ([`write_per_tx`]), so that no block is written by two
//! transactions. A slice that is a whole block becomes the block without a copy. The frees of one
//! txg are limited, since its sync visits every block.

use base::{Result, Txg};
use bdev::{Buf, Bytes};
use rt::Rt;
use rt::cost::COPY;

use crate::dnode::Dnode;
use crate::tx::Tx;

/// Bytes that one transaction writes.
const WRITE_PER_TX: u64 = 1 << 20;
/// Most space that one transaction is charged for its blocks, unless it writes only one: small
/// blocks take much more space than their data.
const CHARGE_PER_TX: u64 = 8 << 20;

/// Bytes that one transaction writes, in whole blocks of `blksz` bytes that are charged `charge`
/// each.
pub fn write_per_tx(blksz: u64, charge: u64) -> u64 {
    let blocks = (CHARGE_PER_TX / charge.max(1)).max(1);
    blocks.saturating_mul(blksz).min(WRITE_PER_TX.max(blksz))
}

/// Blocks that one txg frees of one object: 128 indirect blocks of the usual size.
const FREE_BLOCKS_PER_TXG: u64 = 128 << 10;
/// Bytes copied between two charges ([`Rt::spend`]).
const COPY_MAX: usize = 256 << 10;

/// Data that is consumed from the front.
pub struct Pieces {
    list: std::vec::IntoIter<Bytes>,
    head: Bytes,
}

impl Pieces {
    /// Those of `list`, one after the other.
    pub fn new(list: Vec<Bytes>) -> Pieces {
        Pieces { list: list.into_iter(), head: Bytes::empty() }
    }
    /// At least one and at most `max` bytes, without a copy.
    fn next(&mut self, max: usize) -> Bytes {
        while self.head.is_empty() {
            self.head = self.list.next().expect("no more is taken than there is");
        }
        if self.head.len() <= max {
            return std::mem::take(&mut self.head);
        }
        let part = self.head.slice(..max);
        self.head = self.head.slice(max..);
        part
    }
    /// The next `len` bytes, without consuming them.
    pub fn peek(&self, len: usize) -> Vec<Bytes> {
        let (mut out, mut left) = (Vec::new(), len);
        for b in std::iter::once(&self.head).chain(self.list.as_slice()) {
            let n = b.len().min(left);
            if n > 0 {
                out.push(b.slice(..n));
            }
            left -= n;
            if left == 0 {
                break;
            }
        }
        out
    }
    /// At least one and at most `max` bytes, charged for the copy that the caller makes.
    async fn next_to_copy(&mut self, rt: &Rt, max: usize) -> Bytes {
        let part = self.next(max.min(COPY_MAX));
        rt.spend(COPY.cost(part.len() as u64)).await;
        part
    }
    /// Exactly `len` bytes in one piece: without a copy if they are contiguous, else copied.
    async fn take_exact(&mut self, rt: &Rt, len: usize) -> Bytes {
        let first = self.next(len);
        if first.len() == len {
            return first;
        }
        let mut buf = Buf::for_overwrite(len);
        let mut at = 0;
        let mut part = first;
        loop {
            for some in part.chunks(COPY_MAX) {
                rt.spend(COPY.cost(some.len() as u64)).await;
                buf[at..at + some.len()].copy_from_slice(some);
                at += some.len();
            }
            if at == len {
                return buf.freeze();
            }
            part = self.next(len - at);
        }
    }
}

impl Dnode {
    /// Bytes that one txg frees of the object.
    pub fn free_span(&self) -> u64 {
        u64::from(self.block_size()).saturating_mul(FREE_BLOCKS_PER_TXG)
    }

    /// Writes the next `len` bytes of `pieces` at `off`; aligned whole blocks that lie in one piece
    /// are not copied.
    pub async fn write_pieces(&self, off: u64, len: u64, pieces: &mut Pieces, tx: &Tx) -> Result<()> {
        let rt = self.os.ctx.rt();
        let blksz = u64::from(self.block_size());
        let end = off + len;
        let mut at = off;
        while at < end {
            let in_block = (blksz - at % blksz).min(end - at);
            if in_block == blksz {
                self.write_bytes(at, pieces.take_exact(rt, blksz as usize).await, tx).await?;
            } else {
                let stop = at + in_block;
                let mut pos = at;
                while pos < stop {
                    let part = pieces.next_to_copy(rt, (stop - pos) as usize).await;
                    self.write(pos, &part, tx).await?;
                    pos += part.len() as u64;
                }
            }
            at += in_block;
        }
        Ok(())
    }

    /// Reads the indirect blocks above the blocks of a write that are not cached. The txg of the
    /// write reads them as well, and an error there would suspend the pool.
    pub async fn check_path(&self, off: u64, len: u64) -> Result<()> {
        if self.levels() <= 1 {
            return Ok(());
        }
        let (size, shift) = (u64::from(self.block_size()), self.n.st.borrow().phys.epb_shift());
        let last = off.saturating_add(len.max(1) - 1) / size;
        let mut blkid = off / size;
        while blkid <= last {
            if self.lookup_cached(blkid).is_none() {
                self.lookup(blkid).await?;
            }
            blkid = ((blkid >> shift) + 1) << shift;
        }
        Ok(())
    }

    /// Reads the indirect blocks above the data of `off..end`, which the txg that frees them reads
    /// as well: an error there would suspend the pool.
    pub async fn check_free(&self, off: u64, end: u64) -> Result<()> {
        if self.levels() <= 1 {
            return Ok(());
        }
        let (size, shift) = (u64::from(self.block_size()), self.n.st.borrow().phys.epb_shift());
        let mut blkid = off / size;
        while blkid.saturating_mul(size) < end {
            let Some(found) = self.next_data_block(blkid).await? else { break };
            blkid = ((found >> shift) + 1) << shift;
        }
        Ok(())
    }

    /// Frees `off..end` in parts, without those that are holes, each in a txg of its own: `free`
    /// frees one part in a transaction and gives its txg.
    pub async fn free_in_parts(
        &self,
        off: u64,
        end: u64,
        mut free: impl AsyncFnMut(u64, u64) -> Result<Txg>,
    ) -> Result<()> {
        let size = u64::from(self.block_size());
        let mut pos = off;
        while pos < end {
            let upto = (pos - pos % size).saturating_add(self.free_span()).min(end);
            self.check_free(pos, upto).await?;
            let txg = free(pos, upto).await?;
            if upto == end {
                break;
            }
            match self.next_data(upto).await? {
                Some(at) if at < end => pos = at.max(upto),
                _ => break,
            }
            self.os.ctx.txg().wait_open(txg.next()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_bounded_by_their_charge() {
        for (blksz, charge, want) in [
            (128 << 10, 256 << 10, 1 << 20),
            (512, 512, 1 << 20),
            (512, 24 << 10, 341 * 512),
            (1 << 20, 9 << 20, 1 << 20),
            (16 << 20, 72 << 20, 16 << 20),
        ] {
            assert_eq!(write_per_tx(blksz, charge), want, "{blksz} {charge}");
        }
    }

    #[test]
    fn pieces_are_shared_where_they_lie_together() {
        let a = Bytes::copy_from(&(0..200).collect::<Vec<u8>>());
        let mut p = Pieces::new(vec![a.slice(..100), Bytes::empty(), a.slice(100..)]);
        let sim = sim::Sim::new(sim::SimConfig::seeded(1));
        let rt = sim.rt();
        let whole = sim.block_on(p.take_exact(&rt, 60));
        assert_eq!(whole.memory_id(), a.memory_id());
        let copied = sim.block_on(p.take_exact(&rt, 60));
        assert_ne!(copied.memory_id(), a.memory_id());
        assert_eq!(&copied[..], &a[60..120]);
        assert_eq!(p.next(1000).len(), 80);
    }
}
