//! Fat ZAPs: a header with a pointer table, and leaves.
//!
//! A lookup reads the table's word for the hash (in block 0 while the table is small) and one leaf.
//! A change that fits into its leaf writes the header, for the count, and the leaf. One that does
//! not fit works on an [`Overlay`]: copies of the blocks, changed until the entry is in, then all
//! written; there leaves split and the table doubles. A micro ZAP is converted in the same way.
//!
//! Whole blocks are written without a read, so writing a complete overlay fails only if the object
//! set has ended.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use bdev::{Buf, Bytes};
use ondisk::zap::{
    FAT_BLOCK_SHIFT, Header, Leaf, LeafEntry, LeafInsert, Match, MicroZap, ZapParams, ZapValue, chunks_needed,
    init_fat, init_table_block, split_range,
};
use rt::cost::{COPY, ZAP_MOVE};

use super::micro::Put;
use super::{Change, Form, ZapEntry, ZapState, exists, missing};
use crate::{Dnode, Tx};

/// Highest block id; beyond it the ZAP is damaged: it would be larger than any pool.
const MAX_BLKID: u64 = 1 << 38;
/// Most blocks of a pointer table that is doubled in one step: far more than a billion names need.
const MAX_TABLE_BLOCKS: u64 = 8 << 10;
/// Most splits for one entry, one for each hash bit; more mean damage.
const MAX_SPLITS: u32 = 64;

/// The cached form of a fat ZAP.
pub(super) struct FatForm {
    header: Cell<Header>,
}

/// A found entry, and its leaf.
pub(super) struct Found {
    blk: u64,
    bytes: Bytes,
    entry: LeafEntry,
    header: Header,
}

impl Found {
    pub fn value(&self) -> Result<ZapValue> {
        Leaf::open(&self.bytes[..], self.header.params.key_kind())?.value(&self.entry)
    }
    pub fn entry(&self) -> Result<ZapEntry> {
        let leaf = Leaf::open(&self.bytes[..], self.header.params.key_kind())?;
        Ok(ZapEntry { name: leaf.key(&self.entry)?, value: leaf.value(&self.entry)? })
    }
}

/// Opens a block as the leaf of `hash`, and checks its prefix.
fn open_leaf<B: AsRef<[u8]>>(bytes: B, h: &Header, hash: u64) -> Result<Leaf<B>> {
    let leaf = Leaf::open(bytes, h.params.key_kind())?;
    if !leaf.covers(hash) || leaf.prefix_len() > h.table_shift {
        return Err(Error::corrupt(format!(
            "fat ZAP table leads hash {hash:#x} to the leaf with prefix {:#x} of {} bits",
            leaf.prefix(),
            leaf.prefix_len()
        )));
    }
    Ok(leaf)
}

impl FatForm {
    pub fn parse(block: &[u8]) -> Result<FatForm> {
        Ok(FatForm { header: Cell::new(Header::parse(block)?) })
    }
    pub fn num_entries(&self) -> u64 {
        self.header.get().num_entries
    }
    pub fn header(&self) -> Header {
        self.header.get()
    }

    /// The leaf for `hash`: its block id and content.
    pub async fn leaf(&self, dn: &Dnode, hash: u64) -> Result<(u64, Bytes)> {
        let h = self.header.get();
        let slot = h.locate(hash);
        let blk = h.load(&dn.read_block(slot.blk).await?, slot)?;
        let bytes = dn.read_block(blk).await?;
        open_leaf(&bytes[..], &h, hash)?;
        Ok((blk, bytes))
    }

    pub async fn find(&self, dn: &Dnode, name: &[u8], how: Match) -> Result<Option<Found>> {
        let header = self.header.get();
        let params = header.params;
        let hash = params.hash(name);
        let (blk, bytes) = self.leaf(dn, hash).await?;
        let leaf = Leaf::open(&bytes[..], params.key_kind())?;
        let entry = match how {
            Match::Exact => leaf.find(hash, name)?,
            _ => leaf.find_by(hash, |stored| params.matches(stored, name, how))?,
        };
        Ok(entry.map(|entry| Found { blk, bytes, entry, header }))
    }

    /// The header, if the ZAP can be changed.
    fn for_change(&self) -> Result<Header> {
        let h = self.header.get();
        if h.freeblk > MAX_BLKID {
            return Err(Error::corrupt(format!("fat ZAP with {} blocks", h.freeblk)));
        }
        Ok(h)
    }

    pub async fn put(&self, dn: &Dnode, st: &ZapState, name: &[u8], value: &ZapValue, how: Put, tx: &Tx) -> Result<()> {
        let h = self.for_change()?;
        let kind = h.params.key_kind();
        let hash = h.params.hash(name);
        let (blk, bytes) = self.leaf(dn, hash).await?;
        let leaf = Leaf::open(&bytes[..], kind)?;
        let found = leaf.find(hash, name)?;
        if found.is_some() && how == Put::Add {
            return Err(exists(name));
        }
        let room = usize::from(leaf.nfree()) >= chunks_needed(kind, name, value);
        // Not shared any more: the leaf is changed in place.
        drop(bytes);

        let change = Change::begin(st);
        match found {
            Some(e) => {
                let edit = |b: &mut [u8]| Leaf::open(b, kind)?.update(&e, value);
                if let LeafInsert::Done(_) = dn.update_block(blk, tx, edit).await?? {
                    change.done();
                    return Ok(());
                }
            }
            None if room => {
                // The header first: if the change of the leaf fails, the header can be restored.
                let new = Header { num_entries: h.num_entries.saturating_add(1), ..h };
                dn.update_block(0, tx, |b| new.write_to(b)).await?;
                let edit = |b: &mut [u8]| Leaf::open(b, kind)?.insert(name, hash, None, value);
                let done = match dn.update_block(blk, tx, edit).await {
                    Ok(Ok(LeafInsert::Done(_))) => Ok(()),
                    Ok(Ok(LeafInsert::NeedSplit)) => Err(Error::corrupt("fat ZAP leaf has less room than it says")),
                    Ok(Err(e)) | Err(e) => Err(e),
                };
                return self.finish(dn, change, &h, new, done, tx).await;
            }
            None => {}
        }
        // Boxed: rare, and large.
        Box::pin(self.insert_with_split(dn, name, value, hash, found.is_some(), tx)).await?;
        change.done();
        Ok(())
    }

    /// Stores an entry for which its leaf has no room: splits the leaf, grows the table. `replace`:
    /// the name exists.
    async fn insert_with_split(
        &self,
        dn: &Dnode,
        name: &[u8],
        value: &ZapValue,
        hash: u64,
        replace: bool,
        tx: &Tx,
    ) -> Result<()> {
        let mut o = Overlay::new(dn, self.header.get());
        o.edit_leaf(hash, |leaf| match replace {
            // A split moves entries: find it again.
            true => match leaf.find(hash, name)? {
                Some(e) => leaf.update(&e, value),
                None => Err(Error::corrupt("fat ZAP entry was lost in a split")),
            },
            false => leaf.insert(name, hash, None, value),
        })
        .await?;
        if !replace {
            o.header.num_entries = o.header.num_entries.saturating_add(1);
        }
        let header = o.commit(tx).await?;
        self.header.set(header);
        Ok(())
    }

    /// Ends a change of header and leaf: keeps the new header, or restores the old one.
    async fn finish(
        &self,
        dn: &Dnode,
        change: Change<'_>,
        old: &Header,
        new: Header,
        r: Result<()>,
        tx: &Tx,
    ) -> Result<()> {
        match r {
            Ok(()) => {
                self.header.set(new);
                change.done();
            }
            Err(_) => dn.update_block(0, tx, |b| old.write_to(b)).await?,
        }
        r
    }

    pub async fn remove(&self, dn: &Dnode, st: &ZapState, name: &[u8], tx: &Tx) -> Result<()> {
        let h = self.for_change()?;
        let Some(Found { blk, bytes, entry, .. }) = self.find(dn, name, Match::Exact).await? else {
            return Err(missing(name));
        };
        drop(bytes);
        let change = Change::begin(st);
        let new = Header { num_entries: h.num_entries.saturating_sub(1), ..h };
        dn.update_block(0, tx, |b| new.write_to(b)).await?;
        let kind = h.params.key_kind();
        let done = dn.update_block(blk, tx, |b| Leaf::open(b, kind)?.remove(&entry)).await.and_then(|r| r);
        self.finish(dn, change, &h, new, done, tx).await
    }
}

/// Copies of blocks, for a change of several blocks.
struct Overlay<'a> {
    dn: &'a Dnode,
    header: Header,
    blocks: BTreeMap<u64, Buf>,
    /// Blocks of replaced pointer tables, to free: first and number.
    outgrown: Vec<(u64, u64)>,
}

impl<'a> Overlay<'a> {
    fn new(dn: &'a Dnode, header: Header) -> Overlay<'a> {
        Overlay { dn, header, blocks: BTreeMap::new(), outgrown: Vec::new() }
    }
    fn block_size(&self) -> usize {
        1 << self.header.block_shift
    }
    /// Before copies of that many blocks.
    async fn spend_copy(&self, blocks: u64) {
        self.dn.objset().ctx().rt().spend(COPY.cost(blocks << self.header.block_shift)).await;
    }
    /// Reads the block if it is not loaded yet.
    async fn load(&mut self, blk: u64) -> Result<()> {
        if !self.blocks.contains_key(&blk) {
            let bytes = self.dn.read_block(blk).await?;
            if bytes.len() != self.block_size() {
                return Err(Error::corrupt(format!("fat ZAP block {blk} has {} bytes", bytes.len())));
            }
            self.spend_copy(1).await;
            self.blocks.insert(blk, Buf::copy_from(&bytes));
        }
        Ok(())
    }
    async fn block(&mut self, blk: u64) -> Result<&mut Buf> {
        self.load(blk).await?;
        Ok(self.blocks.get_mut(&blk).expect("just loaded"))
    }

    /// Applies `f` to the leaf for `hash`, splitting it until there is room.
    async fn edit_leaf(
        &mut self,
        hash: u64,
        mut f: impl FnMut(&mut Leaf<&mut [u8]>) -> Result<LeafInsert>,
    ) -> Result<()> {
        for _ in 0..MAX_SPLITS {
            let h = self.header;
            let slot = h.locate(hash);
            let blk = h.load(self.block(slot.blk).await?, slot)?;
            let buf = self.block(blk).await?;
            let mut leaf = open_leaf(&mut buf[..], &h, hash)?;
            if let LeafInsert::Done(_) = f(&mut leaf)? {
                return Ok(());
            }
            self.split(blk).await?;
        }
        Err(Error::new(ErrorKind::NoSpace, "fat ZAP cannot make room: too many names with similar hashes"))
    }

    /// Splits the leaf in `blk`, which the table names.
    async fn split(&mut self, blk: u64) -> Result<()> {
        self.finish_growth().await?;
        let kind = self.header.params.key_kind();
        let plen = Leaf::open(&self.block(blk).await?[..], kind)?.prefix_len();
        if plen >= self.header.table_shift {
            self.grow().await?;
        }
        self.spend_copy(1).await;
        let size = self.block_size();
        let mut low = self.blocks.remove(&blk).expect("loaded above");
        let mut new = Buf::zeroed(size);
        let (prefix, plen) = {
            let high = Leaf::open(&mut low[..], kind)?.split(&mut new[..])?;
            (high.prefix(), high.prefix_len())
        };
        self.blocks.insert(blk, low);
        let new_blk = self.header.alloc_blk();
        self.header.num_leafs = self.header.num_leafs.saturating_add(1);
        self.blocks.insert(new_blk, new);
        let Some((first, n)) = split_range(prefix, plen, self.header.table_shift) else {
            return Err(Error::corrupt(format!("fat ZAP leaf with a prefix of {plen} bits")));
        };
        if n / (size as u64 / 8) > MAX_TABLE_BLOCKS {
            return Err(Error::new(ErrorKind::NoSpace, "fat ZAP pointer table is too large to change"));
        }
        for index in first..first + n {
            let slot = self.header.slot(index);
            Header::store(self.block(slot.blk).await?, slot, new_blk);
        }
        Ok(())
    }

    /// Doubles the pointer table.
    async fn grow(&mut self) -> Result<()> {
        if self.header.table_numblks > MAX_TABLE_BLOCKS {
            return Err(Error::new(ErrorKind::NoSpace, "fat ZAP pointer table is too large to grow"));
        }
        let g = self.header.grow_table()?;
        if g.old_numblks == 0 {
            let mut table = Buf::zeroed(self.block_size());
            let old = self.block(0).await?;
            init_table_block(&mut table, Header::embedded_table(old));
            self.blocks.insert(g.new_blk, table);
            return Ok(());
        }
        self.copy_table(g.old_blk, g.new_blk, 0, g.old_numblks).await?;
        self.outgrow(g.old_blk, g.old_numblks);
        Ok(())
    }

    /// Fills blocks `2 * from ..` of the table at `new` from blocks `from .. to` of the one at
    /// `old`.
    async fn copy_table(&mut self, old: u64, new: u64, from: u64, to: u64) -> Result<()> {
        let size = self.block_size();
        for b in from..to {
            self.load(old + b).await?;
            self.spend_copy(3).await;
            let src = Buf::copy_from(self.block(old + b).await?);
            for (i, half) in src.chunks_exact(size / 2).enumerate() {
                let mut dst = Buf::zeroed(size);
                init_table_block(&mut dst, half);
                self.blocks.insert(new + 2 * b + i as u64, dst);
            }
        }
        Ok(())
    }

    fn outgrow(&mut self, first: u64, n: u64) {
        for b in first..first + n {
            self.blocks.remove(&b);
        }
        self.outgrown.push((first, n));
    }

    /// Completes a gradual growth of the table that another implementation has begun (format page
    /// 04 section 5).
    async fn finish_growth(&mut self) -> Result<()> {
        let h = self.header;
        if h.table_nextblk == 0 {
            return Ok(());
        }
        if h.table_numblks == 0 || h.table_numblks > MAX_TABLE_BLOCKS {
            return Err(Error::corrupt(format!("fat ZAP table of {} blocks is half grown", h.table_numblks)));
        }
        self.copy_table(h.table_blk, h.table_nextblk, h.table_blks_copied, h.table_numblks).await?;
        self.outgrow(h.table_blk, h.table_numblks);
        self.header.table_blk = h.table_nextblk;
        self.header.table_numblks *= 2;
        self.header.table_shift += 1;
        self.header.table_nextblk = 0;
        self.header.table_blks_copied = 0;
        Ok(())
    }

    /// Writes all blocks and returns the new header.
    async fn commit(mut self, tx: &Tx) -> Result<Header> {
        let header = self.header;
        header.write_to(self.block(0).await?);
        let shift = header.block_shift;
        for (blk, buf) in self.blocks {
            self.dn.write_bytes(blk << shift, buf.freeze(), tx).await?;
        }
        for (first, n) in self.outgrown {
            self.dn.free_range(first << shift, n << shift, tx).await?;
        }
        Ok(header)
    }
}

/// Writes the two blocks of an empty fat ZAP.
pub(super) async fn init(dn: &Dnode, shift: u32, params: ZapParams, tx: &Tx) -> Result<()> {
    let size = 1usize << shift;
    let (mut header, mut leaf) = (Buf::zeroed(size), Buf::zeroed(size));
    init_fat(&mut header, &mut leaf, params);
    dn.write_bytes(0, header.freeze(), tx).await?;
    dn.write_bytes(1 << shift, leaf.freeze(), tx).await
}

/// Converts a micro ZAP to a fat one; returns its new form.
pub(super) async fn convert(dn: &Dnode, st: &ZapState, tx: &Tx) -> Result<Rc<Form>> {
    let block = dn.read_block(0).await?;
    let mz = MicroZap::open(&block[..])?;
    let params = mz.params();
    if params.salt == 0 {
        return Err(Error::corrupt("micro ZAP without salt"));
    }
    let size = 1usize << FAT_BLOCK_SHIFT;
    let (mut header_block, mut leaf_block) = (Buf::zeroed(size), Buf::zeroed(size));
    let header = init_fat(&mut header_block, &mut leaf_block, params);
    let mut o = Overlay::new(dn, header);
    o.blocks.insert(0, header_block);
    o.blocks.insert(1, leaf_block);
    let os = dn.objset();
    let rt = os.ctx().rt();
    for e in mz.entries() {
        let e = e?;
        rt.spend(ZAP_MOVE).await;
        let (hash, value) = (params.hash(e.name), ZapValue::from_u64(e.value));
        o.edit_leaf(hash, |leaf| leaf.insert(e.name, hash, Some(e.cd), &value)).await?;
        o.header.num_entries += 1;
    }
    let change = Change::begin(st);
    dn.set_block_size(size as u32, tx)?;
    let header = o.commit(tx).await?;
    let form = Rc::new(Form::Fat(FatForm { header: Cell::new(header) }));
    *st.form.borrow_mut() = Some(form.clone());
    change.done();
    Ok(form)
}
