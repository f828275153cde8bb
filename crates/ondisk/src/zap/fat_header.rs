//! The header of a fat ZAP, block 0, and its pointer table (format page 04 sections 3 and 5).
//!
//! The table maps the top `shift` bits of a hash to a leaf's block id. It begins in the second half
//! of the header block; grown, it is a run of blocks. Growing by degrees is possible on disk: while
//! `nextblk` is not 0 the old table answers reads and stores go to both. This code detects such a
//! state and gives the second place of a store ([`Header::also_store`]); it never starts one.

use base::{Error, Result};

use super::{BLOCK_HEADER, KeyKind, Leaf, ZapParams};
use crate::bytes::{get, get_mut, le64, put_le64};

const MAGIC: u64 = 0x2_F52A_B2AB;
/// Words of the header proper.
const WORDS: usize = 13;

/// The fields of a fat ZAP's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// log2 of the block size of all blocks of the ZAP.
    pub block_shift: u32,
    /// First block of the external table; 0 while it is embedded.
    pub table_blk: u64,
    /// Blocks of the external table.
    pub table_numblks: u64,
    /// log2 of the table's entries.
    pub table_shift: u32,
    /// First block of the table that the growth under way fills; 0 normally.
    pub table_nextblk: u64,
    /// Blocks of the old table already copied there.
    pub table_blks_copied: u64,
    /// Next block id never used.
    pub freeblk: u64,
    /// Number of leaves.
    pub num_leafs: u64,
    /// Number of entries.
    pub num_entries: u64,
    /// Salt, normalisation and flags.
    pub params: ZapParams,
}

/// Where a word of the pointer table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableSlot {
    /// Block id: 0 is the header.
    pub blk: u64,
    /// Byte offset of the word in that block.
    pub offset: usize,
}

/// The blocks of a doubled table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// First block of the new table.
    pub new_blk: u64,
    /// Blocks of the new table.
    pub new_numblks: u64,
    /// First block of the old external table, to be freed; 0 when it was embedded.
    pub old_blk: u64,
    /// Blocks of the old external table.
    pub old_numblks: u64,
}

impl Header {
    /// The header in block 0. Everything that indices or shifts are computed from is checked.
    pub fn parse(block: &[u8]) -> Result<Header> {
        let bad = |what: String| Err(Error::corrupt(format!("fat ZAP header: {what}")));
        if block.len() < 512 || !block.len().is_power_of_two() || block.len() > 16 << 20 {
            return bad(format!("block of {} bytes", block.len()));
        }
        let w = |i: usize| le64(block, 8 * i);
        if w(0) != BLOCK_HEADER || w(1) != MAGIC {
            return bad(format!("begins with {:#x} {:#x}", w(0), w(1)));
        }
        let block_shift = block.len().trailing_zeros();
        let params = ZapParams { salt: w(10), normflags: w(11), flags: w(12) };
        if params.flags & !7 != 0 {
            return bad(format!("unknown flags {:#x}", params.flags));
        }
        let h = Header {
            block_shift,
            table_blk: w(2),
            table_numblks: w(3),
            table_shift: w(4).min(64) as u32,
            table_nextblk: w(5),
            table_blks_copied: w(6),
            freeblk: w(7),
            num_leafs: w(8),
            num_entries: w(9),
            params,
        };
        let want_shift = if h.table_numblks == 0 {
            block_shift - 4
        } else if h.table_numblks.is_power_of_two() && h.table_numblks < 1 << 48 {
            h.table_numblks.trailing_zeros() + block_shift - 3
        } else {
            return bad(format!("pointer table of {} blocks", h.table_numblks));
        };
        if h.table_shift != want_shift || h.table_shift > params.hash_bits() {
            return bad(format!("pointer table of {} blocks has shift {}", h.table_numblks, w(4)));
        }
        if (h.table_blk == 0) != (h.table_numblks == 0)
            || h.table_blk.checked_add(h.table_numblks).is_none_or(|end| end > h.freeblk)
        {
            return bad(format!(
                "pointer table of {} blocks at {}, with {} blocks in use",
                h.table_numblks, h.table_blk, h.freeblk
            ));
        }
        if h.table_nextblk != 0 && h.table_nextblk.checked_add(2 * h.table_numblks).is_none_or(|end| end > h.freeblk)
            || h.table_blks_copied > h.table_numblks
        {
            return bad("growing pointer table lies outside the blocks in use".into());
        }
        if h.num_leafs == 0 || h.freeblk < 2 {
            return bad(format!("{} leaves in {} blocks", h.num_leafs, h.freeblk));
        }
        Ok(h)
    }

    /// Stores the fields in block 0 and leaves the rest of it alone.
    pub fn write_to(&self, block: &mut [u8]) {
        assert_eq!(block.len(), 1 << self.block_shift, "header block of another size");
        let words: [u64; WORDS] = [
            BLOCK_HEADER,
            MAGIC,
            self.table_blk,
            self.table_numblks,
            u64::from(self.table_shift),
            self.table_nextblk,
            self.table_blks_copied,
            self.freeblk,
            self.num_leafs,
            self.num_entries,
            self.params.salt,
            self.params.normflags,
            self.params.flags,
        ];
        crate::bytes::put_le64_words(block, &words);
    }

    /// Index in the table of the leaf for `hash`.
    pub fn index(&self, hash: u64) -> u64 {
        hash.checked_shr(64 - self.table_shift).unwrap_or(0)
    }
    /// Number of table entries.
    pub fn table_len(&self) -> u64 {
        1 << self.table_shift
    }
    /// Where the table word for `hash` is.
    pub fn locate(&self, hash: u64) -> TableSlot {
        self.slot(self.index(hash))
    }
    /// Where the table word `index` (below [`Header::table_len`]) is.
    pub fn slot(&self, index: u64) -> TableSlot {
        if self.table_numblks == 0 {
            let half = 1usize << (self.block_shift - 1);
            TableSlot { blk: 0, offset: half + 8 * (index as usize & (half / 8 - 1)) }
        } else {
            self.external(self.table_blk, index)
        }
    }
    fn external(&self, start: u64, index: u64) -> TableSlot {
        let per_shift = self.block_shift - 3;
        TableSlot { blk: start + (index >> per_shift), offset: (index & ((1 << per_shift) - 1)) as usize * 8 }
    }
    /// Where else a store to word `index` must go while the table grows: the two words of the new
    /// table, if their old block has been copied.
    pub fn also_store(&self, index: u64) -> Option<[TableSlot; 2]> {
        if self.table_nextblk == 0 || index >> (self.block_shift - 3) >= self.table_blks_copied {
            return None;
        }
        Some([self.external(self.table_nextblk, 2 * index), self.external(self.table_nextblk, 2 * index + 1)])
    }
    /// Reads the word at a place in the block that [`TableSlot::blk`] names. The result is a leaf's
    /// block id; 0 or one not in use is damage.
    pub fn load(&self, block: &[u8], slot: TableSlot) -> Result<u64> {
        let blk = get(block, slot.offset, 8).map(|b| le64(b, 0)).unwrap_or(0);
        if blk == 0 || blk >= self.freeblk {
            return Err(Error::corrupt(format!("fat ZAP pointer table names block {blk}, of {} in use", self.freeblk)));
        }
        Ok(blk)
    }
    /// Writes a leaf's block id at a place in the block that [`TableSlot::blk`] names.
    pub fn store(block: &mut [u8], slot: TableSlot, leaf: u64) {
        let b = get_mut(block, slot.offset, 8).expect("a table slot is inside its block");
        put_le64(b, 0, leaf);
    }

    /// Takes the next block id.
    pub fn alloc_blk(&mut self) -> u64 {
        self.freeblk += 1;
        self.freeblk - 1
    }

    /// Doubles the table in the header: allocates its blocks and changes the fields. The caller
    /// fills the new blocks with [`init_table_block`] from the old table and frees the old blocks.
    /// Fails when no hash bits would be left to distinguish leaves.
    pub fn grow_table(&mut self) -> Result<Growth> {
        if self.table_nextblk != 0 {
            return Err(Error::unsupported("fat ZAP pointer table is being grown already"));
        }
        if self.table_shift >= self.params.hash_bits() - 2 {
            return Err(Error::new(
                base::ErrorKind::NoSpace,
                "fat ZAP cannot grow: too many names with similar hashes",
            ));
        }
        let new_numblks = (self.table_numblks * 2).max(1);
        let g = Growth { new_blk: self.freeblk, new_numblks, old_blk: self.table_blk, old_numblks: self.table_numblks };
        self.freeblk += new_numblks;
        self.table_blk = g.new_blk;
        self.table_numblks = new_numblks;
        self.table_shift += 1;
        Ok(g)
    }
    /// The words of the embedded table.
    pub fn embedded_table(block: &[u8]) -> &[u8] {
        &block[block.len() / 2..]
    }
}

/// Fills a block of a doubled table: every word of `old` (half a block's worth) twice.
pub fn init_table_block(new: &mut [u8], old: &[u8]) {
    assert_eq!(new.len(), 2 * old.len());
    for (n, o) in new.chunks_exact_mut(16).zip(old.chunks_exact(8)) {
        n[..8].copy_from_slice(o);
        n[8..].copy_from_slice(o);
    }
}

/// Makes a new, empty fat ZAP: `header` becomes block 0 and `leaf` block 1, both of the same power
/// of two, 1 KiB to 128 KiB.
pub fn init_fat(header: &mut [u8], leaf: &mut [u8], params: ZapParams) -> Header {
    assert!(header.len() == leaf.len() && header.len().is_power_of_two() && header.len() >= 1024);
    assert!(params.salt != 0, "ZAP salt is zero");
    header.fill(0);
    let h = Header {
        block_shift: header.len().trailing_zeros(),
        table_blk: 0,
        table_numblks: 0,
        table_shift: header.len().trailing_zeros() - 4,
        table_nextblk: 0,
        table_blks_copied: 0,
        freeblk: 2,
        num_leafs: 1,
        num_entries: 0,
        params,
    };
    h.write_to(header);
    let half = header.len() / 2;
    for w in header[half..].chunks_exact_mut(8) {
        w.copy_from_slice(&1u64.to_le_bytes());
    }
    let kind = if params.flags & super::FLAG_UINT64_KEY != 0 { KeyKind::U64 } else { KeyKind::String };
    Leaf::init(leaf, kind, 0, 0, params.normflags != 0);
    h
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_trip_and_growth() {
        let (mut hb, mut lb) = (vec![0u8; 16384], vec![0u8; 16384]);
        let mut h = init_fat(&mut hb, &mut lb, ZapParams { salt: 5, normflags: 2, flags: 0 });
        assert_eq!(Header::parse(&hb).unwrap(), h);
        assert_eq!(h.table_shift, 10);
        assert_eq!(h.locate(u64::MAX), TableSlot { blk: 0, offset: 16384 - 8 });
        assert_eq!(h.load(&hb, h.locate(0)).unwrap(), 1);
        let g = h.grow_table().unwrap();
        assert_eq!(g, Growth { new_blk: 2, new_numblks: 1, old_blk: 0, old_numblks: 0 });
        h.write_to(&mut hb);
        assert_eq!(Header::parse(&hb).unwrap(), h);
        assert_eq!(h.locate(u64::MAX), TableSlot { blk: 2, offset: 16384 - 8 });
        let g = h.grow_table().unwrap();
        assert_eq!(g, Growth { new_blk: 3, new_numblks: 2, old_blk: 2, old_numblks: 1 });
        assert_eq!(h.locate(u64::MAX), TableSlot { blk: 4, offset: 16384 - 8 });
        h.table_nextblk = 5;
        h.table_blks_copied = 1;
        assert_eq!(h.also_store(3), Some([TableSlot { blk: 5, offset: 48 }, TableSlot { blk: 5, offset: 56 }]));
        assert_eq!(h.also_store(2048), None);
    }

    proptest! {
        #[test]
        fn hostile_headers_never_panic(words in any::<[u64; 13]>(), small in any::<[u8; 13]>(), pick in any::<u16>(), hash: u64) {
            let mut b = vec![0u8; 4096];
            for i in 0..13 {
                let w = if pick >> i & 1 != 0 { words[i] } else { u64::from(small[i]) };
                put_le64(&mut b, 8 * i, w);
            }
            put_le64(&mut b, 0, BLOCK_HEADER);
            put_le64(&mut b, 8, MAGIC);
            if let Ok(h) = Header::parse(&b) {
                let s = h.locate(hash);
                let _ = h.load(&b, s);
                let _ = h.also_store(h.index(hash));
                let mut g = h;
                let _ = g.grow_table();
            }
        }
    }
}
