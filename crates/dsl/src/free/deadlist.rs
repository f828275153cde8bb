//! Deadlists: blocks that a dataset freed and an older snapshot still references (format pages 05
//! section 4, 15 section 2).
//!
//! A deadlist is a ZAP from a txg, the *key*, to a list of block pointers; a pointer is under the
//! largest key below its birth. There is a key for every older snapshot (the txg of the one before
//! it), so that destroying a snapshot frees whole lists. Empty lists are mostly references to one
//! shared object. Before pool version 26 a deadlist is one list without keys (the *flat* form);
//! datasets of upgraded pools keep theirs.
//!
//! Only for syncing context. A handle has all keys in memory; the dataset keeps the only handle
//! that changes its deadlist.

use std::collections::BTreeMap;

use base::{Error, ObjectId, Result, ResultExt, Txg};
use dmu::bpobj::{self, Bpobj};
use dmu::{Objset, Tx, zap};
use ondisk::blkptr::Blkptr;
use ondisk::bpobj::{BPOBJ_SIZE_V0, DEADLIST_SIZE, DeadlistPhys};
use ondisk::object_type::ObjectType;
use ondisk::version;

use crate::core::Space;
use crate::pool::DslPool;

/// A deadlist.
pub struct Deadlist {
    mos: Objset,
    /// Its object.
    pub object: ObjectId,
    form: Form,
}

enum Form {
    Keyed { total: Space, keys: BTreeMap<u64, ObjectId> },
    Flat,
}

impl Deadlist {
    /// The deadlist in `object`.
    pub async fn open(mos: &Objset, object: ObjectId) -> Result<Deadlist> {
        let place = || format!("deadlist {object}");
        let dn = mos.hold(object).await.at(place)?;
        if dn.otype() == ObjectType::BPOBJ {
            return Ok(Deadlist { mos: mos.clone(), object, form: Form::Flat });
        }
        let p = dn.with_bonus(DeadlistPhys::parse).at(place)?;
        let mut keys = BTreeMap::new();
        for entry in zap::list(&dn).await.at(place)? {
            let key = zap::parse_int_key(&entry.name);
            let list = entry.value.as_u64();
            let (Some(key), Some(list)) = (key, list) else {
                return Err(Error::corrupt(format!("{} has an entry that is not a txg and a list", place())));
            };
            keys.insert(key, ObjectId(list));
        }
        let total = Space::of_figures(p.used, p.comp, p.uncomp);
        Ok(Deadlist { mos: mos.clone(), object, form: Form::Keyed { total, keys } })
    }

    /// A new, empty deadlist with these keys; a flat one in a pool before version 26.
    pub async fn create(pool: &DslPool, keys: impl IntoIterator<Item = u64>, tx: &Tx) -> Result<Deadlist> {
        let mos = pool.mos().clone();
        if pool.version() < version::DEADLISTS {
            let object = bpobj::create(&mos, ondisk::bpobj::BPOBJ_BLKSZ, tx).await?;
            return Ok(Deadlist { mos, object, form: Form::Flat });
        }
        let bonus = [0u8; DEADLIST_SIZE];
        let dn = zap::create_with_bonus(&mos, ObjectType::DEADLIST, 0, ObjectType::DEADLIST_HDR, &bonus, tx).await?;
        let mut new = BTreeMap::new();
        let mut refs = pool.empty_refs();
        for key in keys {
            let list = refs.add_ref(pool, tx).await?;
            zap::add_int(&dn, key, list.0, tx).await?;
            new.insert(key, list);
        }
        refs.write_count(pool, tx).await?;
        let form = Form::Keyed { total: Space::default(), keys: new };
        Ok(Deadlist { mos, object: dn.object(), form })
    }

    /// True for the form of old pools, which has no keys.
    pub fn is_flat(&self) -> bool {
        matches!(self.form, Form::Flat)
    }

    /// Its keys, none in the flat form.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        let keys = match &self.form {
            Form::Keyed { keys, .. } => Some(keys.keys().copied()),
            Form::Flat => None,
        };
        keys.into_iter().flatten()
    }

    /// Its lists by key, none in the flat form.
    pub(crate) fn lists(&self) -> impl Iterator<Item = (u64, ObjectId)> + '_ {
        let keys = match &self.form {
            Form::Keyed { keys, .. } => Some(keys.iter().map(|(key, list)| (*key, *list))),
            Form::Flat => None,
        };
        keys.into_iter().flatten()
    }

    /// The list under a key.
    pub(crate) fn list_of(&self, key: u64) -> Option<ObjectId> {
        match &self.form {
            Form::Keyed { keys, .. } => keys.get(&key).copied(),
            Form::Flat => None,
        }
    }

    /// Adds to the total of all lists.
    pub(crate) async fn add_to_total(&mut self, space: Space, tx: &Tx) -> Result<()> {
        if let Form::Keyed { total, .. } = &mut self.form {
            total.add(space);
        }
        self.write_total(tx).await
    }

    /// The space of all pointers.
    pub async fn space(&self) -> Result<Space> {
        match &self.form {
            Form::Keyed { total, .. } => Ok(*total),
            Form::Flat => {
                let list = Bpobj::open(&self.mos, self.object).await?;
                let space = Space::of_list(list.space()?);
                if list.header()?.size > BPOBJ_SIZE_V0 {
                    return Ok(space);
                }
                // The oldest form has the bytes only.
                let all = list.space_born(Txg(0), Txg(u64::MAX), &|_| 0).await?;
                Ok(Space { used: space.used, ..Space::of_list(all) })
            }
        }
    }

    /// The space of pointers under keys from `min` to below `max`: blocks born after `min` and not
    /// after `max`, if both are keys.
    pub async fn space_range(&self, pool: &DslPool, min: u64, max: u64) -> Result<Space> {
        let mut sum = Space::default();
        match &self.form {
            Form::Keyed { keys, .. } => {
                if min < max {
                    for list in keys.range(min..max).map(|(_, list)| *list) {
                        if !pool.is_shared_empty(list) {
                            sum.add(Space::of_list(Bpobj::open(&self.mos, list).await?.space()?));
                        }
                    }
                }
            }
            Form::Flat => {
                let zio = pool.core().zio.clone();
                let list = Bpobj::open(&self.mos, self.object).await?;
                sum = Space::of_list(list.space_born(Txg(min), Txg(max), &|bp| zio.dsize(bp)).await?);
            }
        }
        Ok(sum)
    }

    async fn write_total(&self, tx: &Tx) -> Result<()> {
        if let Form::Keyed { total, .. } = &self.form {
            let p = DeadlistPhys {
                used: total.used.max(0) as u64,
                comp: total.compressed.max(0) as u64,
                uncomp: total.uncompressed.max(0) as u64,
            };
            let dn = self.mos.hold(self.object).await?;
            let mut bonus = dn.bonus().to_vec();
            if bonus.len() < DEADLIST_SIZE {
                return Err(Error::corrupt(format!("deadlist {} has a header of {} bytes", self.object, bonus.len())));
            }
            p.write_to(&mut bonus);
            dn.set_bonus(&bonus, tx)?;
        }
        Ok(())
    }

    fn key_for(&self, keys: &BTreeMap<u64, ObjectId>, birth: u64) -> Result<u64> {
        let found = keys.range(..birth).next_back().map(|(k, _)| *k);
        found.ok_or_else(|| {
            Error::corrupt(format!("deadlist {} has no key for a block born in txg {birth}", self.object))
        })
    }

    /// Adds pointers.
    pub async fn insert(&mut self, pool: &DslPool, bps: &[Blkptr], tx: &Tx) -> Result<()> {
        let zio = pool.core().zio.clone();
        let sized = |bp: &Blkptr| (*bp, zio.dsize(bp));
        let Form::Keyed { keys, .. } = &self.form else {
            let all: Vec<(Blkptr, u64)> = bps.iter().map(sized).collect();
            return Bpobj::open(&self.mos, self.object).await?.enqueue(&all, tx).await;
        };
        let mut groups: BTreeMap<u64, Vec<(Blkptr, u64)>> = BTreeMap::new();
        let mut more = Space::default();
        for bp in bps.iter().filter(|bp| !bp.is_hole()) {
            let birth = if planted!(RewriteIgnored) { bp.logical_birth() } else { bp.birth() };
            groups.entry(self.key_for(keys, birth.0)?).or_default().push(sized(bp));
            more.add(Space::of(bp, &zio));
        }
        for (key, group) in groups {
            let list = self.private_list(pool, key, tx).await?;
            Bpobj::open(&self.mos, list).await?.enqueue(&group, tx).await?;
        }
        if let Form::Keyed { total, .. } = &mut self.form {
            total.add(more);
        }
        self.write_total(tx).await
    }

    /// The list under `key`; replaces the shared empty list by a private one.
    async fn private_list(&mut self, pool: &DslPool, key: u64, tx: &Tx) -> Result<ObjectId> {
        let Form::Keyed { keys, .. } = &self.form else { return Ok(self.object) };
        let list = keys[&key];
        if !pool.is_shared_empty(list) {
            return Ok(list);
        }
        let new = bpobj::create(&self.mos, ondisk::bpobj::BPOBJ_BLKSZ, tx).await?;
        self.set_key(key, new, tx).await?;
        pool.drop_empty_list(list, tx).await?;
        Ok(new)
    }

    /// Puts a list under a key.
    pub(crate) async fn set_key(&mut self, key: u64, list: ObjectId, tx: &Tx) -> Result<()> {
        zap::update_int(&self.mos.hold(self.object).await?, key, list.0, tx).await?;
        if let Form::Keyed { keys, .. } = &mut self.form {
            keys.insert(key, list);
        }
        Ok(())
    }

    /// Adds a key without pointers; does nothing if it exists.
    pub async fn add_key(&mut self, pool: &DslPool, key: u64, tx: &Tx) -> Result<()> {
        let Form::Keyed { keys, .. } = &self.form else { return Ok(()) };
        if keys.contains_key(&key) {
            return Ok(());
        }
        let list = pool.empty_list(tx).await?;
        self.set_key(key, list, tx).await
    }

    /// Removes a key; its pointers move to the key before. Does nothing if the key does not exist
    /// or is the first.
    pub async fn remove_key(&mut self, pool: &DslPool, key: u64, tx: &Tx) -> Result<()> {
        let Form::Keyed { keys, .. } = &self.form else { return Ok(()) };
        let before = keys.range(..key).next_back().map(|(k, _)| *k);
        let (Some(&list), Some(before)) = (keys.get(&key), before) else { return Ok(()) };
        self.drop_key(key, tx).await?;
        self.add_list(pool, before, list, tx).await
    }

    /// Removes a key; its list stays.
    pub(crate) async fn drop_key(&mut self, key: u64, tx: &Tx) -> Result<()> {
        zap::remove_int(&self.mos.hold(self.object).await?, key, tx).await?;
        if let Form::Keyed { keys, .. } = &mut self.form {
            keys.remove(&key);
        }
        Ok(())
    }

    /// Adds a whole list under a key; the caller updates the totals.
    async fn add_list(&mut self, pool: &DslPool, key: u64, list: ObjectId, tx: &Tx) -> Result<()> {
        if pool.is_shared_empty(list) || Bpobj::open(&self.mos, list).await?.is_empty()? {
            return pool.drop_empty_list(list, tx).await;
        }
        let Form::Keyed { keys, .. } = &self.form else {
            return Err(Error::corrupt(format!("deadlist {} has no keys", self.object)));
        };
        let ours = keys[&key];
        if pool.is_shared_empty(ours) {
            self.set_key(key, list, tx).await?;
            return pool.drop_empty_list(ours, tx).await;
        }
        Bpobj::open(&self.mos, ours).await?.enqueue_subobj(list, tx).await
    }

    /// Moves all pointers of another deadlist here and frees it.
    pub async fn merge(&mut self, pool: &DslPool, other: Deadlist, tx: &Tx) -> Result<()> {
        if self.is_flat() || other.is_flat() {
            for bps in other.all_pointers(pool).await? {
                self.insert(pool, &bps, tx).await?;
            }
            return other.free(pool, tx).await;
        }
        let Form::Keyed { total: more, keys: lists } = other.form else { return Ok(()) };
        for (key, list) in lists {
            let Form::Keyed { keys, .. } = &self.form else { break };
            let under = keys.range(..=key).next_back().map(|(k, _)| *k);
            let under = under
                .ok_or_else(|| Error::corrupt(format!("deadlist {} has no key at or below {key}", self.object)))?;
            self.add_list(pool, under, list, tx).await?;
        }
        if let Form::Keyed { total, .. } = &mut self.form {
            total.add(more);
        }
        self.mos.free(other.object, tx).await?;
        self.write_total(tx).await
    }

    /// All pointers, in batches.
    pub(crate) async fn all_pointers(&self, pool: &DslPool) -> Result<Vec<Vec<Blkptr>>> {
        let lists: Vec<ObjectId> = match &self.form {
            Form::Keyed { keys, .. } => keys.values().copied().filter(|l| !pool.is_shared_empty(*l)).collect(),
            Form::Flat => vec![self.object],
        };
        let mut out = Vec::new();
        for list in lists {
            let mut bps = Vec::new();
            Bpobj::open(&self.mos, list)
                .await?
                .iterate(&mut |bp| {
                    bps.push(*bp);
                    Ok(())
                })
                .await?;
            out.push(bps);
        }
        Ok(out)
    }

    /// Moves all pointers under keys from `min` on into a list and drops those keys; returns their
    /// space.
    pub async fn move_to(&mut self, pool: &DslPool, to: &Bpobj, min: u64, tx: &Tx) -> Result<Space> {
        let Form::Keyed { keys, .. } = &self.form else { return Ok(Space::default()) };
        let moved: Vec<(u64, ObjectId)> = keys.range(min..).map(|(k, l)| (*k, *l)).collect();
        let mut sum = Space::default();
        for (key, list) in moved {
            self.drop_key(key, tx).await?;
            if !pool.is_shared_empty(list) {
                let bpobj = Bpobj::open(&self.mos, list).await?;
                sum.add(Space::of_list(bpobj.space()?));
                if !bpobj.is_empty()? {
                    drop(bpobj);
                    to.enqueue_subobj(list, tx).await?;
                    continue;
                }
            }
            pool.drop_empty_list(list, tx).await?;
        }
        if let Form::Keyed { total, .. } = &mut self.form {
            total.add(sum.negated());
        }
        self.write_total(tx).await?;
        Ok(sum)
    }

    /// Frees the deadlist, but not the blocks in it.
    pub async fn free(self, pool: &DslPool, tx: &Tx) -> Result<()> {
        match self.form {
            Form::Flat => bpobj::free(&self.mos, self.object, tx).await,
            Form::Keyed { keys, .. } => {
                let mut refs = pool.empty_refs();
                for list in keys.into_values() {
                    if pool.is_shared_empty(list) {
                        refs.drop_ref();
                    } else {
                        bpobj::free(&self.mos, list, tx).await?;
                    }
                }
                refs.write_count(pool, tx).await?;
                self.mos.free(self.object, tx).await
            }
        }
    }
}

/// References to the shared empty list, counted first and written once.
#[derive(Default)]
pub(crate) struct EmptyRefs {
    delta: i64,
}

impl EmptyRefs {
    /// An empty list: a reference to the shared one, or a private list if the feature is off.
    pub async fn add_ref(&mut self, pool: &DslPool, tx: &Tx) -> Result<ObjectId> {
        match pool.shared_empty(tx).await? {
            Some(list) => {
                self.delta += 1;
                Ok(list)
            }
            None => bpobj::create(pool.mos(), ondisk::bpobj::BPOBJ_BLKSZ, tx).await,
        }
    }
    /// Drops one reference.
    pub fn drop_ref(&mut self) {
        self.delta -= 1;
    }
    /// Writes the count.
    pub async fn write_count(self, pool: &DslPool, tx: &Tx) -> Result<()> {
        pool.count_empty(self.delta, tx).await
    }
}
