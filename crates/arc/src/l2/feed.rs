//! Writing to a cache device: a plan of buffers and log blocks at ascending addresses, then the
//! writes, then the index.

use std::rc::Rc;

use base::{Error, Nanos, Result};
use bdev::{Bytes, MAX_SEGMENTS};
use ondisk::l2arc::{LOG_BLOCK_SIZE, LogBlock, LogEntry, LogPtr, Prop, Ring};

use super::cache::{Cache, Logs, Slot};
use super::policy;
use super::stage::Offer;
use crate::cache::Inner;
use crate::core::Key;

/// Blocks that are looked at, noted or dropped between two looks at the time that was used.
const BATCH: usize = 128;
/// The time that this takes: lookups in two trees of ten thousand blocks for each.
const EACH_BATCH: Nanos = Nanos(400 * BATCH as u64);
/// Bytes of one write at most.
const WRITE_MAX: u64 = 1 << 20;
/// The list an entry came from, as the format counts them.
const FROM_MRU: u8 = 1;
const FROM_MFU: u8 = 3;

/// A piece of the device to be written.
struct Piece {
    addr: u64,
    data: Bytes,
    asize: u64,
}

/// What a feed writes.
#[derive(Default)]
struct Plan {
    pieces: Vec<Piece>,
    /// Address, buffer, number of the offer.
    buffers: Vec<(u64, Slot, u64)>,
    logs: Logs,
    /// Log blocks that were added.
    committed: u64,
    hand: u64,
}

/// An offer with what memory knows of its block.
struct Chosen {
    offer: Offer,
    frequent: bool,
}

/// Runs a device: finds what is on it, then feeds it until it is closed.
pub(crate) async fn run(inner: Rc<Inner>, cache: Rc<Cache>) {
    super::rebuild::rebuild(&inner, &cache).await;
    let mut wrote = (0, 0);
    while !cache.closed.get() && cache.writable {
        let stop = cache.stop.notified();
        let offered = inner.l2.offered.notified();
        if wrote.0 == 0 || inner.l2.stage.borrow().is_empty() {
            rt::join::select2(stop, offered).await;
        }
        let stop = cache.stop.notified();
        if cache.closed.get() {
            break;
        }
        let wait = policy::interval(&inner.l2.tunables.get(), wrote.0, wrote.1);
        if inner.rt.timeout(wait, stop).await.is_some() || cache.closed.get() {
            break;
        }
        wrote = feed(&inner, &cache).await;
    }
}

/// One feed; the bytes that it wrote, and the most that it would have.
async fn feed(inner: &Rc<Inner>, cache: &Cache) -> (u64, u64) {
    let t = inner.l2.tunables.get();
    let size = policy::feed_size(&t, inner.core.borrow().is_warm(), &cache.ring.get(), cache.entries);
    if inner.l2.is_index_full(inner.core.borrow().limit()) {
        inner.l2.count(|s| s.abort_lowmem += 1);
        inner.l2.stage.borrow_mut().clear();
        inner.settle();
        return (0, size);
    }
    let chosen = choose(inner, cache, size).await;
    if chosen.is_empty() {
        inner.settle();
        return (0, size);
    }
    inner.l2.count(|s| s.feeds += 1);
    cache.writing.set(true);
    let offers: Vec<(Key, u64)> = chosen.iter().map(|c| (c.offer.key, c.offer.number)).collect();
    let wrote = store(inner, cache, chosen).await;
    for (key, number) in &offers {
        inner.l2.written(key, *number);
    }
    cache.writing.set(false);
    inner.settle();
    match wrote {
        Ok(bytes) => (bytes, size),
        Err(_) => {
            inner.l2.count(|s| s.writes_error += 1);
            (0, size)
        }
    }
}

/// Room for `count` more buffers' log blocks.
fn log_room(cache: &Cache, count: u64) -> u64 {
    if cache.entries == 0 {
        return 0;
    }
    let pending = cache.logs.borrow().pending.len() as u64;
    (pending + count) / cache.entries * LOG_BLOCK_SIZE as u64
}

/// Takes the offers that are written now: at most `size` bytes with their log blocks.
async fn choose(inner: &Inner, cache: &Cache, size: u64) -> Vec<Chosen> {
    let t = inner.l2.tunables.get();
    let known = |o: &Offer| (o.key, o.bp.psize(), o.meta, o.again, o.ahead);
    let all: Vec<_> = inner.l2.stage.borrow().iter().map(known).collect();
    // By their rank, and in each in the order of their age.
    let mut ranked = [const { Vec::new() }; policy::RANKS];
    for batch in all.chunks(BATCH) {
        inner.rt.spend(EACH_BATCH).await;
        let (core, mut stage) = (inner.core.borrow(), inner.l2.stage.borrow_mut());
        for &(key, psize, meta, again, ahead) in batch {
            let standing = core.standing(&key);
            let frequent = again || standing.is_some_and(|s| s.frequent);
            let is_ahead = standing.map_or(ahead, |s| s.ahead);
            match policy::rank(&t, policy::Wanted { meta, frequent, ahead: is_ahead }) {
                Some(rank) => ranked[usize::from(rank)].push((key, frequent, cache.asize(psize))),
                // It left memory unread.
                None if is_ahead && standing.is_none() => {
                    stage.forget(&key);
                }
                None => {}
            }
        }
    }
    let (mut out, mut bytes) = (Vec::new(), 0);
    let mut stage = inner.l2.stage.borrow_mut();
    for (key, frequent, asize) in ranked.into_iter().flatten() {
        if bytes + asize + log_room(cache, out.len() as u64 + 1) > size {
            break;
        }
        // It may have been dropped, or taken by another device, or come anew, meanwhile.
        let Some(offer) = stage.take(&key).filter(|o| cache.asize(o.bp.psize()) == asize) else { continue };
        bytes += asize;
        inner.l2.writing.borrow_mut().insert(key, offer.number);
        out.push(Chosen { offer, frequent });
    }
    out
}

/// Makes room, writes, and notes what is there now; the bytes written.
async fn store(inner: &Rc<Inner>, cache: &Cache, chosen: Vec<Chosen>) -> Result<u64> {
    let bytes: u64 = chosen.iter().map(|c| cache.asize(c.offer.bp.psize())).sum();
    let need = bytes + log_room(cache, chosen.len() as u64);
    let before = cache.ring.get();
    let (ring, gone) = policy::advance(before, need);
    // From here on nothing in these ranges is found, and the log blocks there do not count.
    cache.ring.set(ring);
    for &(from, to) in &gone {
        while !planted!(L2OverwrittenKept) && inner.l2.give_up(cache, (from, to), BATCH) {
            inner.rt.spend(EACH_BATCH).await;
        }
    }
    cache.trim_logs();
    for (from, to) in gone {
        cache.wait_unread(from, to).await;
    }
    let plan = plan(inner, cache, &ring, chosen).await;
    assert!(plan.hand - ring.hand <= need, "a feed keeps to the room that was made for it");
    write(cache, &plan.pieces).await?;
    let wrote = plan.hand - ring.hand;
    for batch in plan.buffers.chunks(BATCH) {
        inner.rt.spend(EACH_BATCH).await;
        for &(addr, slot, number) in batch {
            // What was freed or overwritten meanwhile is not noted.
            if inner.l2.written(&slot.key, number) {
                inner.l2.note(cache, addr, slot);
            }
        }
    }
    let committed = plan.committed;
    *cache.logs.borrow_mut() = plan.logs;
    cache.ring.set(Ring { hand: plan.hand, ..ring });
    cache.trim_logs();
    inner.l2.count(|s| (s.write_bytes, s.log_blk_writes) = (s.write_bytes + wrote, s.log_blk_writes + committed));
    let is_moved = (ring.evict, ring.first) != (before.evict, before.first);
    if committed > 0 || is_moved {
        cache.write_header(inner.zio.tree().root_guid()).await?;
    }
    Ok(wrote)
}

/// Gives every buffer its address, and log blocks theirs.
async fn plan(inner: &Rc<Inner>, cache: &Cache, ring: &Ring, chosen: Vec<Chosen>) -> Plan {
    let mut plan = Plan { logs: cache.logs.borrow().clone(), hand: ring.hand, ..Plan::default() };
    for Chosen { offer, frequent } in chosen {
        let (psize, bp) = (offer.bp.psize(), &offer.bp);
        let asize = cache.asize(psize);
        let addr = plan.hand;
        plan.hand += asize;
        let list = if frequent { FROM_MFU } else { FROM_MRU };
        let prop = Prop::new(bp.lsize(), psize, bp.compress_raw()).with_content(offer.meta, bp.encrypted(), list);
        let slot = Slot { key: offer.key, prop, asize: asize as u32 };
        plan.buffers.push((addr, slot, offer.number));
        plan.pieces.push(Piece { addr, data: offer.stored, asize });
        if cache.entries == 0 {
            continue;
        }
        plan.logs.pending.push(LogEntry { dva: bp.dva(0), birth: bp.phys_birth(), prop, addr, level: 0 });
        if plan.logs.pending.len() as u64 == cache.entries {
            commit(inner, cache, &mut plan).await;
        }
    }
    plan
}

/// Adds the log block of the pending entries.
async fn commit(inner: &Rc<Inner>, cache: &Cache, plan: &mut Plan) {
    let entries = std::mem::take(&mut plan.logs.pending);
    let payload_start = entries.first().map_or(0, |e| e.addr);
    let payload_asize = entries.iter().map(|e| cache.asize(e.prop.psize())).sum();
    let (block, sector) = (LogBlock { prev: plan.logs.heads[1], entries }, cache.sector as usize);
    let cost = rt::cost::LZ4.cost(LOG_BLOCK_SIZE as u64);
    let (stored, prop, checksum) = inner.rt.cpu(cost, move || block.pack(sector)).await;
    let ptr = LogPtr { addr: plan.hand, payload_asize, payload_start, prop, checksum };
    plan.logs.heads = [ptr, plan.logs.heads[0]];
    plan.logs.valid.push_front(ptr);
    let asize = stored.len() as u64;
    plan.pieces.push(Piece { addr: plan.hand, data: Bytes::copy_from(&stored), asize });
    plan.hand += asize;
    plan.committed += 1;
}

/// Writes the pieces, which follow each other, a mebibyte at a time.
async fn write(cache: &Cache, pieces: &[Piece]) -> Result<()> {
    let mut at = 0;
    while let Some(first) = pieces.get(at) {
        let (mut bufs, mut bytes) = (Vec::new(), 0);
        while let Some(piece) = pieces.get(at)
            && (bytes == 0 || bytes + piece.asize <= WRITE_MAX)
            && bufs.len() + 2 <= MAX_SEGMENTS
        {
            let pad = piece.asize - piece.data.len() as u64;
            bufs.push(piece.data.clone());
            if pad > 0 {
                bufs.push(Bytes::zeroed(pad as usize));
            }
            bytes += piece.asize;
            at += 1;
        }
        if cache.closed.get() {
            return Err(Error::new(base::ErrorKind::Interrupted, "the cache device is closed"));
        }
        cache.write(first.addr, bufs).await?;
    }
    Ok(())
}
