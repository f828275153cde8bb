//! The open volumes of a pool: who has each of them, and how commands get them closed.
//!
//! Servers of volumes (NBD, the folder of volumes) share one [`Volume`] for a dataset. Each takes a
//! [`VolumeHold`]; the last one that is released closes the volume. A command that needs the
//! dataset for itself (destroy, rollback, export) is refused while there are holds. By force it
//! *revokes* them: their owners notice, end their sessions and release, and the command waits for
//! that. A volume whose holds are revoked gets no new ones.
//!
//! Volumes are listed by dataset object, so renames and promotions leave the list as it is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, ObjectId, Result};
use dsl::Dataset;
use rt::Rt;
use rt::sync::{Notify, Semaphore};
use zvol::{Volume, VolumeOpts};

use crate::engine::say;
use crate::keeper::Level;
use crate::kstat::pool::ObjsetFigures;

/// Time that revoked holds have to be released.
const RELEASE_LIMIT: Nanos = Nanos::from_secs(60);
/// Time that others have, who may have ended a moment ago: the kernel tells of a closed file in the
/// background, and the last one that goes waits for a txg.
const LEAVE_LIMIT: Nanos = Nanos::from_secs(2);

struct Holder {
    id: u64,
    who: String,
}

struct Open {
    vol: Rc<Volume>,
    holders: Vec<Holder>,
    revoked: Rc<Cell<bool>>,
}

/// An open volume as listings show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenVolume {
    /// The dataset's name.
    pub name: String,
    /// Who has it, in the order in which they came.
    pub holders: Vec<String>,
    /// Reads, bytes read, writes, bytes written since it was opened.
    pub io: [u64; 4],
}

/// The open volumes of one pool.
pub struct OpenVolumes {
    rt: Rt,
    open: RefCell<BTreeMap<ObjectId, Open>>,
    /// Held while one is opened or closed.
    opening: Semaphore,
    /// A volume was closed, or holds were revoked.
    changed: Notify,
    /// Those that were received redacted may be opened.
    pub(crate) redacted: Cell<bool>,
    next_id: Cell<u64>,
}

impl OpenVolumes {
    /// None.
    pub fn new(rt: &Rt) -> Rc<OpenVolumes> {
        Rc::new(OpenVolumes {
            rt: rt.clone(),
            open: RefCell::default(),
            opening: Semaphore::new(1),
            changed: Notify::default(),
            redacted: Cell::new(false),
            next_id: Cell::new(0),
        })
    }

    /// Opens the volume of a dataset for `who` ("the NBD export 'vol'"), or shares it with those
    /// who have it open. The caller holds the pool's `admin` lock, or is sure otherwise that no
    /// command changes the dataset meanwhile.
    ///
    /// # Errors
    /// Those of [`Volume::open`], and `Busy` while a command closes it.
    pub async fn hold(self: &Rc<Self>, ds: &Rc<Dataset>, who: &str) -> Result<VolumeHold> {
        let _one = self.opening.acquire(1).await;
        let known = self.open.borrow().get(&ds.object).map(|o| (o.vol.clone(), o.revoked.clone()));
        let (vol, revoked) = match known {
            Some((_, revoked)) if revoked.get() => {
                return Err(Error::new(ErrorKind::Busy, format!("volume '{}' is being closed", ds.name())));
            }
            Some(known) => known,
            None => {
                let opts = VolumeOpts { redacted: self.redacted.get(), ..VolumeOpts::from_props(ds) };
                (Volume::open(ds, opts).await?, Rc::default())
            }
        };
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let mut open = self.open.borrow_mut();
        let entry = open.entry(ds.object).or_insert_with(|| Open {
            vol: vol.clone(),
            holders: Vec::new(),
            revoked: Rc::clone(&revoked),
        });
        entry.holders.push(Holder { id, who: who.to_string() });
        Ok(VolumeHold { list: self.clone(), object: ds.object, vol, revoked, id, released: Cell::new(false) })
    }

    /// All of them, in order of name.
    pub fn list(&self) -> Vec<OpenVolume> {
        let open = self.open.borrow();
        let mut out: Vec<OpenVolume> = open
            .values()
            .map(|o| OpenVolume {
                name: o.vol.name(),
                holders: o.holders.iter().map(|h| h.who.clone()).collect(),
                io: o.vol.io_counts(),
            })
            .collect();
        out.sort_by(|a, b| a.name.cmp(&b.name));
        out
    }

    /// The counters of each.
    pub(crate) fn objsets(&self) -> Vec<ObjsetFigures> {
        let of = |(object, open): (&ObjectId, &Open)| ObjsetFigures {
            object: object.0,
            name: open.vol.name(),
            io: open.vol.io_counts(),
            unlinks: [0, 0],
            zil: open.vol.log_stats(),
        };
        self.open.borrow().iter().map(of).collect()
    }

    /// Applies changed properties of a dataset, if it is an open volume.
    pub fn refresh(&self, ds: &Dataset) {
        if let Some(open) = self.open.borrow().get(&ds.object) {
            open.vol.set_opts(VolumeOpts::from_props(ds));
        }
    }

    /// Fails with `Busy` if one of the volumes that `wanted` chooses stays open. With `force`
    /// revokes their holds, and waits until they are closed.
    pub async fn close(&self, wanted: impl Fn(&Volume) -> bool, force: bool) -> Result<()> {
        let first = || {
            let open = self.open.borrow();
            let found = open.values().find(|o| wanted(&o.vol));
            found.map(|o| (o.vol.name(), o.holders.first().map_or_else(String::new, |h| h.who.clone())))
        };
        let busy = |(name, who): (String, String)| {
            Error::new(ErrorKind::Busy, format!("dataset is busy: volume '{name}' is in use by {who}: end that first"))
        };
        if first().is_none() {
            return Ok(());
        }
        if force {
            self.open.borrow().values().filter(|o| wanted(&o.vol)).for_each(|o| o.revoked.set(true));
            self.changed.notify_all();
        }
        let closed = async {
            while first().is_some() {
                self.changed.notified().await;
            }
        };
        match self.rt.timeout(if force { RELEASE_LIMIT } else { LEAVE_LIMIT }, closed).await {
            Some(()) => Ok(()),
            None => first().map_or(Ok(()), |found| Err(busy(found))),
        }
    }

    /// Ends a hold; the last one closes the volume.
    async fn release(&self, object: ObjectId, id: u64) -> Result<()> {
        let _one = self.opening.acquire(1).await;
        let last = {
            let mut open = self.open.borrow_mut();
            let Some(entry) = open.get_mut(&object) else { return Ok(()) };
            entry.holders.retain(|h| h.id != id);
            entry.holders.is_empty().then(|| entry.vol.clone())
        };
        let Some(vol) = last else { return Ok(()) };
        let closed = vol.close().await;
        self.open.borrow_mut().remove(&object);
        self.changed.notify_all();
        closed
    }
}

/// One user's share of an open volume. If it is dropped the volume is released in the background,
/// and an error goes to the log.
pub struct VolumeHold {
    list: Rc<OpenVolumes>,
    object: ObjectId,
    vol: Rc<Volume>,
    revoked: Rc<Cell<bool>>,
    id: u64,
    released: Cell<bool>,
}

impl VolumeHold {
    /// The volume.
    pub fn volume(&self) -> &Rc<Volume> {
        &self.vol
    }
    /// Waits until a command wants the volume closed. End the session then, and release the hold.
    pub async fn revoked(&self) {
        while !self.revoked.get() {
            self.list.changed.notified().await;
        }
    }
    /// Ends the hold. The last one closes the volume: its changes are then on disk.
    pub async fn release(self) -> Result<()> {
        self.released.set(true);
        self.list.release(self.object, self.id).await
    }
}

impl Drop for VolumeHold {
    fn drop(&mut self) {
        if self.released.get() {
            return;
        }
        let (list, object, id, name) = (self.list.clone(), self.object, self.id, self.vol.name());
        self.list.rt.spawn("volume release", async move {
            if let Err(e) = list.release(object, id).await {
                say(Level::Err, &format!("closing volume '{name}': {e}"));
            }
        });
    }
}
