//! Finding again what is on a cache device (format page 22 section 5). Everything read here is
//! hostile: it decides nothing but which bytes are compared with the checksum of a block pointer.

use std::rc::Rc;

use base::{ErrorKind, Guid, Nanos, Result};
use ondisk::l2arc::{DevHeader, HEADER_OFFSET, LOG_BLOCK_SIZE, LogBlock, LogEntry, LogPtr, Ring};

use super::cache::{Cache, Slot};
use crate::cache::Inner;
use crate::core::Key;

/// Entries that are noted between two looks at the time that was used.
const BATCH: usize = 128;
/// The time that noting one takes, measured with the index of ten thousand blocks.
const NOTE: Nanos = Nanos(400);

/// Whether a header is that of the device as it would be used now, and the ring it tells of.
fn ring_of(header: &DevHeader, pool: Guid, cache: &Cache) -> Option<Ring> {
    let ring = cache.ring.get();
    let same = header.pool == pool
        && header.vdev == cache.guid
        && header.log_entries == cache.entries
        && (header.start, header.end) == (ring.start, ring.end)
        && (ring.start..=ring.end).contains(&header.evict);
    let newest = &header.log[0];
    let hand = newest.addr.saturating_add(newest.asize()).max(ring.start);
    let fits = hand <= ring.end && hand.is_multiple_of(cache.sector) && header.evict.is_multiple_of(cache.sector);
    (same && fits).then_some(Ring { hand, evict: header.evict, first: header.first, ..ring })
}

/// Reads the header and what the log blocks list; a device that has nothing of use gets a new
/// header.
pub(crate) async fn rebuild(inner: &Rc<Inner>, cache: &Cache) {
    let pool = inner.zio.tree().root_guid();
    let header = match cache.read(HEADER_OFFSET, cache.header_size() as u64).await {
        Ok(block) => DevHeader::parse(&block).ok(),
        Err(_) => {
            inner.l2.count(|s| s.rebuild_dh_errors += 1);
            None
        }
    };
    let found = header.and_then(|header| Some((ring_of(&header, pool, cache)?, header)));
    let Some((ring, header)) = found else {
        inner.l2.count(|s| s.rebuild_unsupported += 1);
        if cache.writable && !cache.closed.get() {
            // An error shows at the first feed.
            let _ = cache.write_header(pool).await;
        }
        return;
    };
    cache.ring.set(ring);
    if !inner.l2.tunables.get().rebuild {
        return;
    }
    let result = walk(inner, cache, &header).await;
    cache.trim_logs();
    inner.settle();
    match result {
        Ok(()) if !cache.logs.borrow().valid.is_empty() => inner.l2.count(|s| s.rebuild_success += 1),
        Ok(()) if cache.writable && !cache.closed.get() => {
            let _ = cache.write_header(pool).await;
        }
        _ => {}
    }
}

/// Follows the log blocks from the newest to the oldest. An error ends it; what was found stays.
async fn walk(inner: &Rc<Inner>, cache: &Cache, header: &DevHeader) -> Result<()> {
    let ring = cache.ring.get();
    let [mut this, mut next] = header.log;
    // A chain of a device in use is no longer than what its ring has room for.
    let mut left = (ring.end - ring.start) / (cache.entries + 1) / cache.sector;
    while this.is_valid(&ring) && left > 0 && !cache.closed.get() && cache.entries > 0 {
        left -= 1;
        if inner.l2.is_index_full(inner.core.borrow().limit()) {
            inner.l2.count(|s| s.rebuild_lowmem += 1);
            break;
        }
        let stored = cache.read(this.addr, this.asize()).await.inspect_err(|_| {
            inner.l2.count(|s| s.rebuild_io_errors += 1);
        })?;
        let (ptr, count) = (this, cache.entries);
        let cost = rt::cost::COPY.cost(LOG_BLOCK_SIZE as u64 * 4);
        let block = inner.rt.cpu(cost, move || LogBlock::unpack(&stored, &ptr, count)).await.inspect_err(|e| {
            if e.kind() == ErrorKind::Checksum {
                inner.l2.count(|s| s.rebuild_cksum_lb_errors += 1);
            }
        })?;
        restore(inner, cache, &this, &block.entries).await;
        {
            let mut logs = cache.logs.borrow_mut();
            if logs.valid.is_empty() {
                logs.heads = [this, next];
            }
            logs.valid.push_back(this);
        }
        inner.l2.count(|s| s.rebuild_log_blks += 1);
        // The chain has come round.
        let is_round = |from: u64, to: u64| {
            let at = ring.evict;
            if from <= to { from <= at && at <= to } else { at <= to || from <= at }
        };
        if !ring.first && is_round(next.payload_start, this.payload_start) {
            break;
        }
        (this, next) = (next, block.prev);
    }
    Ok(())
}

/// Notes the entries of a log block, last to first.
async fn restore(inner: &Rc<Inner>, cache: &Cache, ptr: &LogPtr, entries: &[LogEntry]) {
    let ring = cache.ring.get();
    for batch in entries.rchunks(BATCH) {
        inner.rt.spend(Nanos(NOTE.0 * batch.len() as u64)).await;
        if cache.closed.get() {
            return;
        }
        for e in batch.iter().rev() {
            let (psize, asize) = (e.prop.psize(), cache.asize(e.prop.psize()));
            let Some(end) = e.addr.checked_add(asize) else { continue };
            let (after, before) = (e.addr >= ptr.payload_start, end <= ptr.addr);
            // What a log block lists may go round the end of the ring.
            let goes_round = ptr.addr < ptr.payload_start;
            let is_listed = if goes_round { after || before } else { after && before };
            let is_listed = is_listed && e.addr >= ring.start && end <= ring.end;
            if !is_listed || !e.addr.is_multiple_of(cache.sector) || e.dva.is_empty() || psize > base::MAX_BLOCK {
                continue;
            }
            let key = Key { place: e.dva.w1, birth: e.birth.0, vdev: e.dva.vdev().0 };
            if cache.is_taken(e.addr, end) || inner.l2.contains(&key) {
                continue;
            }
            if inner.core.borrow().contains(&key) {
                inner.l2.count(|s| s.rebuild_bufs_precached += 1);
            }
            inner.l2.note(cache, e.addr, Slot { key, prop: e.prop, asize: asize as u32 });
            inner.l2.count(|s| {
                s.rebuild_bufs += 1;
                s.rebuild_asize += psize;
                s.rebuild_size += e.prop.lsize();
            });
        }
    }
    inner.settle();
}
