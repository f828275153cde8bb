//! Blocks of received snapshots are damaged, and healed from the streams that brought them
//! (`zfs receive -c`).
//!
//! A block is damaged through its top-level vdev, so parity and all replicas fit the damage: no
//! layout can mend it, and nothing but the stream has it.

use base::{ErrorKind, ObjectId, Txg};
use bdev::Bytes;
use dsl::receive::Input;
use ondisk::blkptr::Blkptr;
use ondisk::stream::{RECORD_SIZE, Record, StreamReader};
use sim::Rng;
use spa::Pool;
use zio::Prio;

use super::{Feed, Sent, Worlds, difference, objects_of, within};
use crate::Check;

/// Blocks of one snapshot that are damaged at most.
const BLOCKS: usize = 12;

/// What the WRITEs of a stream name: object, offset, length.
fn writes(stream: &[u8]) -> Vec<(ObjectId, u64, u64)> {
    let (mut reader, mut rest, mut out) = (StreamReader::without_sums(), stream, Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let Ok(frame) = reader.record(head) else { break };
        if let Record::Write(w) = frame.record {
            out.push((w.object, w.offset, w.logical_size));
        }
        let (payload, tail) = tail.split_at(reader.payload_left() as usize);
        reader.payload(payload);
        rest = tail;
    }
    out
}

/// Damages blocks of a snapshot that its stream has as they are here. Returns how many.
async fn damage(pool: &Pool, sent: &Sent, rng: &mut Rng) -> base::Result<usize> {
    let snap = pool.dsl().find_snapshot(&sent.target).await?;
    let (os, zio) = (snap.objset().await?, pool.dsl().ctx().zio());
    let mut hit: Vec<Blkptr> = Vec::new();
    for (object, offset, len) in writes(&sent.stream) {
        if hit.len() == BLOCKS || !rng.percent(25) {
            continue;
        }
        let dn = os.hold(object).await?;
        let size = u64::from(dn.block_size());
        let bp = dn.block_pointer(offset / size).await?;
        let is_one = len == size && !bp.is_hole() && !bp.is_embedded() && !bp.is_gang();
        // Blocks that are the same are one with dedup.
        if !is_one || hit.iter().any(|other| other.dva(0) == bp.dva(0)) {
            continue;
        }
        let mut noise = vec![0; bp.psize() as usize];
        rng.fill(&mut noise);
        for dva in bp.dvas() {
            let noise = Bytes::copy_from(&noise);
            let top = zio.tree().top(dva.vdev())?;
            top.write(dva.offset(), noise, bp.phys_birth(), Prio::AsyncWrite).await?;
        }
        hit.push(bp);
    }
    Ok(hit.len())
}

impl Worlds {
    /// Damages and heals some of what was received, then looks at all of it anew.
    pub(super) fn heal(&mut self, all: &[Sent]) -> Check {
        let pool = self.pool();
        for sent in all {
            if self.rng.percent(60) {
                continue;
            }
            let mut rng = Rng::new(self.rng.next_u64());
            let healed = within(&self.to, async {
                pool.txg().wait_synced(Txg(0)).await?;
                let damaged = damage(&pool, sent, &mut rng).await?;
                let mut feed = Feed::whole(&sent.stream);
                let mut input = Input::new(pool.dsl().ctx().rt().clone(), &mut feed);
                let head = input.begin().await?.ok_or(ErrorKind::Corrupt)?;
                let healed = pool.dsl().begin_heal(&sent.target, &head).await?.data(&mut input).await;
                match healed.error {
                    Some(e) => Err(e),
                    None => Ok((damaged, healed.blocks.len())),
                }
            });
            let (damaged, healed) = healed.map_err(|e| format!("healing {}: {e}", sent.target))?;
            if damaged != healed {
                return Err(format!("{}: {damaged} blocks were damaged, {healed} healed", sent.target));
            }
            self.counts.healed += healed as u64;
        }
        drop((pool, self.pool.take().map(|pool| within(&self.to, async { pool.export().await })).transpose()?));
        let pool = within(&self.to, self.to.import(false, self.layout.opts()))?;
        self.pool = Some(pool.clone());
        for sent in all {
            let there = within(&self.to, async { objects_of(&*pool.dsl().find_snapshot(&sent.target).await?).await })?;
            if let Some(what) = difference(&sent.objects, &there) {
                return Err(format!("{} after healing: {what}", sent.target));
            }
        }
        Ok(())
    }
}
