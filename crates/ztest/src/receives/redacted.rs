//! Redacted streams of random pools.
//!
//! Some snapshots are redacted by later ones, of their file system or of clones. The copy must have
//! the blocks to which at least one of these refers, by the pointers of the trees of blocks, and
//! holes in place of the others. Each redaction snapshot follows as a clone of the copy, and what
//! was left out by the redaction bookmark: these must be complete.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Guid, ObjectId};
use dmu::{Objset, zap};
use dsl::Dataset;
use dsl::send::SendOpts;
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::feature::FeatureId;
use ondisk::objset::ObjsetType;
use sim::Rng;

use super::{Collect, LETTERS, Sender, Sent, objects_of, objects_without};
use crate::lab::POOL;

/// Redactions of one pool.
const REDACTIONS: usize = 3;
/// Snapshots that one is redacted by.
const SNAPS: u64 = 3;

/// An object and a block of it.
pub(super) type Place = (u64, u64);

/// Files without a name, which are gone even if their blocks are still there.
async fn unlinked(os: &Objset) -> base::Result<BTreeSet<u64>> {
    if os.os_type() != ObjsetType::Zfs {
        return Ok(BTreeSet::new());
    }
    let master = os.hold(ObjectId(1)).await?;
    let Some(queue) = zap::lookup_u64(&master, b"DELETE_QUEUE").await? else { return Ok(BTreeSet::new()) };
    let entries = zap::list(&os.hold(ObjectId(queue)).await?).await?;
    Ok(entries.iter().filter_map(|e| e.value.as_u64()).collect())
}

/// The pointers of the data blocks of files and volumes, with or without files that have no name.
async fn pointers(snap: &Dataset, with_unlinked: bool) -> base::Result<BTreeMap<Place, Blkptr>> {
    let os = snap.objset().await?;
    let (mut out, mut from) = (BTreeMap::new(), ObjectId(1));
    let unlinked = if with_unlinked { BTreeSet::new() } else { unlinked(&os).await? };
    while let Some(object) = os.objects(from).await? {
        from = ObjectId(object.0 + 1);
        let dn = os.hold(object).await?.committed();
        if dn.otype.is_metadata() || unlinked.contains(&object.0) {
            continue;
        }
        let mut todo: Vec<(u8, u64, Blkptr)> = Vec::new();
        todo.extend((0..).zip(dn.bps()).map(|(n, bp)| (dn.nlevels - 1, n, *bp)));
        while let Some((level, blkid, bp)) = todo.pop() {
            if bp.is_hole() {
                continue;
            }
            if level == 0 {
                out.insert((object.0, blkid), bp);
                continue;
            }
            let block = os.ctx().read(&bp).await?;
            let per = (block.len() / BLKPTR_SIZE) as u64;
            todo.extend((0..).zip(Blkptr::iter_block(&block)).map(|(n, bp)| (level - 1, blkid * per + n, bp)));
        }
    }
    Ok(out)
}

/// Whether both are the block of one content: the same pointer, or one that was written anew and
/// keeps its logical birth.
fn is_same(a: &Blkptr, b: &Blkptr) -> bool {
    a == b || (a.is_rewritten() || b.is_rewritten()) && a.logical_birth() == b.logical_birth()
}

/// The blocks of `snap` to which none of the snapshots `by` refers.
async fn given_up(snap: &Dataset, by: &[Rc<Dataset>]) -> base::Result<BTreeSet<Place>> {
    let own = pointers(snap, true).await?;
    let mut gone: BTreeSet<Place> = own.keys().copied().collect();
    for other in by {
        let theirs = pointers(other, false).await?;
        gone.retain(|place| !theirs.get(place).is_some_and(|bp| is_same(bp, &own[place])));
    }
    Ok(gone)
}

impl Sender {
    /// Redacts snapshots, and sends them with what belongs to them.
    pub(super) async fn send_redacted(&mut self, rng: &mut Rng) -> base::Result<()> {
        let dsl = self.pool.dsl().clone();
        if !dsl.features().is_enabled(FeatureId::RedactionBookmarks) {
            return Ok(());
        }
        let mut all = Vec::new();
        for head in dsl.all() {
            all.extend(dsl.snapshots(&head).await?);
        }
        for n in 0..REDACTIONS {
            if all.is_empty() {
                return Ok(());
            }
            let pick = |rng: &mut Rng| all[rng.below(all.len() as u64) as usize].clone();
            let snap = pick(rng);
            let (mut by, most): (Vec<Rc<Dataset>>, _) = (Vec::new(), 1 + rng.below(SNAPS));
            for _ in 0..20 {
                let other = pick(rng);
                let is_new = other.object != snap.object && by.iter().all(|d| d.object != other.object);
                if is_new && (by.len() as u64) < most && dsl.changes(&snap, &other).await.is_ok() {
                    by.push(other);
                }
            }
            if !by.is_empty() {
                self.redact(n, &snap, &by, rng).await?;
            }
        }
        Ok(())
    }

    async fn redact(&mut self, n: usize, snap: &Rc<Dataset>, by: &[Rc<Dataset>], rng: &mut Rng) -> base::Result<()> {
        let dsl = self.pool.dsl().clone();
        let (name, book) = (snap.name(), format!("redaction{n}"));
        let names: Vec<String> = by.iter().map(|s| s.name()).collect();
        dsl.redact(&name, &book, &names).await?;
        let letters = LETTERS[rng.below(LETTERS.len() as u64) as usize];
        let has = |letter| letters.contains(letter);
        let opts = SendOpts { large_blocks: has('L'), embedded: has('e'), compressed: has('c'), raw: false };
        let copy = format!("{POOL}/redacted{n}@{}", snap.snapname());
        let mut sink = Collect::default();
        dsl.send_redacted(&name, None, Some(&book), opts, &mut sink).await?;
        let gone = given_up(snap, by).await?;
        self.sent.push(Sent {
            guid: Guid(snap.phys().guid),
            from: None,
            letters,
            stream: Rc::new(sink.0),
            objects: objects_without(snap, &gone).await?,
            target: copy.clone(),
            origin: None,
            redaction: Some(by.iter().map(|s| s.phys().guid).collect()),
            name: name.clone(),
        });
        for (i, other) in by.iter().enumerate() {
            let target = format!("{POOL}/redacted{n}c{i}@{}", other.snapname());
            self.send_whole(other, name.clone(), letters, (target, Some(copy.clone()))).await?;
        }
        let last = if rng.percent(50) { snap } else { &by[rng.below(by.len() as u64) as usize] };
        let mark = format!("{}#{book}", snap.dir().full_name());
        self.send_whole(last, mark, letters, (format!("{POOL}/redacted{n}@filled"), None)).await
    }

    /// Sends what a complete copy of `snap` is made of, since `from`.
    async fn send_whole(
        &mut self,
        snap: &Rc<Dataset>,
        from: String,
        letters: &'static str,
        (target, origin): (String, Option<String>),
    ) -> base::Result<()> {
        let has = |letter| letters.contains(letter);
        let opts = SendOpts { large_blocks: has('L'), embedded: has('e'), compressed: has('c'), raw: false };
        let mut sink = Collect::default();
        self.pool.dsl().send(&snap.name(), Some(&from), opts, &mut sink).await?;
        self.sent.push(Sent {
            guid: Guid(snap.phys().guid),
            from: Some(from),
            letters,
            stream: Rc::new(sink.0),
            objects: objects_of(snap).await?,
            target,
            origin,
            redaction: None,
            name: snap.name(),
        });
        Ok(())
    }
}
