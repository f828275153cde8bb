//! A file system that is changed below its users: `zfs rollback` and `zfs receive` into a mount.
//!
//! OpenZFS does not unmount for these (`zfs_suspend_fs`, `zfs_resume_fs`), so a file system in use
//! can be rolled back. The same is done here: its requests wait while the dataset changes, then
//! they go on with the new contents.
//!
//! # Words
//!
//! A *switch* leads to the [`Zfs`] that a handler serves. It is *open*, or *shut* while the file
//! system is suspended, or *dead* when no file system could be opened again: requests get EIO then.
//! An *epoch* is the time between two suspensions. The kernel *knows* a node from the reply that
//! named it until it forgets it. A known node is *stale* if the object of that number has gone, or
//! is another one (its generation differs).
//!
//! # Order
//!
//! 1. Pages that were changed through mappings are written back, as an unmount would.
//! 2. The switch is shut. New requests wait, those under way end. No request waits for a lock, an
//!    event or another process, since the kernel keeps locks and polls to itself. Some wait for the
//!    kernel to write pages back, which sends requests that wait here: they do so outside the
//!    switch ([`crate::session`] enters around the call of the handler only, `lseek` in steps).
//!    What remains waits for a disk; with a limit, after which the file system goes on as it was.
//! 3. The names in the directories that the kernel knows are noted.
//! 4. The caller closes the file system, changes the dataset, and opens it again, the same or
//!    another state, with the objects that are open ([`zpl::Held`]). Those without a name are kept.
//! 5. The new file system takes the place of the old one, in the same handler: a new epoch begins.
//!    Handles of files that are not there any more are *lost*. Requests go on.
//! 6. The kernel drops what it has of known nodes, pages and attributes, and takes the time from
//!    names, those noted and those that are there now. It keeps the names themselves: dropping them
//!    would take away mounts on folders below.
//!
//! The last step runs beside requests, because the kernel waits for pages and directories in use by
//! them.
//!
//! # Stale nodes
//!
//! In a new epoch each known node is compared at its first use, so that millions of them do not
//! make a suspension long. A stale one gives ESTALE, on which the kernel looks the path up anew;
//! through an open file EIO, as in OpenZFS. When a reply names the new object of that number the
//! kernel sees the other generation, and fails everything on the old one by itself. The *root* is
//! never stale.
//!
//! Until step 6 is over for a file that may be mapped, a page that the kernel writes back may have
//! been changed before the rollback and holds old bytes beside that change: it is passed over. That
//! store counts as one before the rollback.
//!
//! A file that is open for appending: the kernel chooses the offset, by a size that is wrong until
//! it has asked for attributes. Until then we append.
//!
//! # What stays
//!
//! Snapshots in `.zfs` have file systems of their own, which do not notice; one that a rollback
//! destroyed is as after any destroy. File handles of NFS name node and generation, which the
//! kernel compares. Watches are the kernel's. Mounts below are on directories of the kernel, which
//! stay.
//!
//! Kernels before Linux 6.3 cannot take the time from a name only: there a mount is not suspended.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base::{Error, ErrorKind, Nanos, ObjectId, Result};
use rt::Rt;
use rt::sync::oneshot::{Sender, oneshot};
use rt::sync::{Gate, Pass};
use zpl::{FileKind, Held, Zfs};

use crate::errno::{Errno, IO, STALE};
use crate::proto::ROOT_NODE;
use crate::session::Kernel;
use crate::snapdir::{object_of, slot_of};

/// How long the kernel may cache names and missing names.
const NAMES_TTL: Duration = Duration::from_secs(3600);
/// Time for requests under way, and for pages that are written back before: as for an unmount.
const SUSPEND_LIMIT: Nanos = Nanos::from_secs(60);
/// Where the epoch is in a file handle.
const EPOCH_SHIFT: u32 = 32;

/// The file system that is served in an epoch.
pub(crate) struct Live {
    pub(crate) zfs: Rc<Zfs>,
    pub(crate) root: ObjectId,
    /// How long the kernel may cache names and missing names. Only where names are exact: where `a`
    /// is also `A` the kernel cannot know that removing one removes the other.
    pub(crate) names_ttl: Duration,
}

impl Live {
    fn new(zfs: Rc<Zfs>) -> Rc<Live> {
        zfs.keep_removed_dirs();
        let names_ttl = if zfs.names_are_exact() { NAMES_TTL } else { Duration::ZERO };
        Rc::new(Live { root: zfs.root(), zfs, names_ttl })
    }

    /// The object of a node of a live file.
    fn object(&self, node: u64) -> ObjectId {
        if node == ROOT_NODE { self.root } else { object_of(node) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    Shut,
    Dead,
}

/// What the kernel knows of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    generation: u64,
    /// Its references.
    count: u64,
    /// The epoch in which the node was compared last.
    epoch: u32,
    is_dir: bool,
}

/// The open descriptors of a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Opens {
    /// All of them.
    pub(crate) all: u32,
    /// Those through which it can be mapped to be changed.
    pub(crate) mappable: u32,
    /// Those through the kernel's cache.
    pub(crate) cached: u32,
}

/// Handles of a node that lead nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lost {
    /// Those of earlier epochs than this.
    before: u32,
    count: u32,
}

/// See the head of the file.
pub(crate) struct Switch {
    rt: Rt,
    live: RefCell<Rc<Live>>,
    kernel: RefCell<Kernel>,
    state: Cell<State>,
    waiters: RefCell<Vec<Sender<()>>>,
    /// Requests under way.
    gate: Gate,
    epoch: Cell<u32>,
    known: RefCell<BTreeMap<u64, Known>>,
    opens: RefCell<BTreeMap<u64, Opens>>,
    lost: RefCell<BTreeMap<u64, Lost>>,
    /// Files whose mapped pages may be of before the epoch.
    old_pages: RefCell<BTreeSet<u64>>,
    /// Files whose size the kernel may have of before the epoch.
    old_sizes: RefCell<BTreeSet<u64>>,
}

impl Switch {
    pub(crate) fn new(rt: &Rt, zfs: Rc<Zfs>) -> Rc<Switch> {
        Rc::new(Switch {
            rt: rt.clone(),
            live: RefCell::new(Live::new(zfs)),
            kernel: RefCell::default(),
            state: Cell::new(State::Open),
            waiters: RefCell::default(),
            gate: Gate::new(),
            epoch: Cell::new(0),
            known: RefCell::default(),
            opens: RefCell::default(),
            lost: RefCell::default(),
            old_pages: RefCell::default(),
            old_sizes: RefCell::default(),
        })
    }

    /// The file system.
    pub(crate) fn live(&self) -> Rc<Live> {
        self.live.borrow().clone()
    }
    pub(crate) fn kernel(&self) -> Kernel {
        self.kernel.borrow().clone()
    }
    /// The session begins.
    pub(crate) fn begin(&self, kernel: Kernel) {
        *self.kernel.borrow_mut() = kernel;
    }

    /// Waits while the file system is suspended. It is not suspended while the pass lives.
    pub(crate) async fn enter(&self) -> Result<Pass, Errno> {
        loop {
            match self.state.get() {
                State::Open => return Ok(self.gate.enter()),
                State::Dead => return Err(IO),
                State::Shut => {}
            }
            let (tx, rx) = oneshot();
            self.waiters.borrow_mut().push(tx);
            rx.await;
        }
    }

    fn set_state(&self, state: State) {
        self.state.set(state);
        // Each that waits looks for itself.
        drop(self.waiters.take());
    }

    /// ESTALE if the kernel knows a node as an object that has gone.
    pub(crate) async fn check(&self, node: u64) -> Result<(), Errno> {
        let epoch = self.epoch.get();
        if epoch == 0 || slot_of(node) != 0 {
            return Ok(());
        }
        let known = self.known.borrow().get(&node).copied();
        let Some(known) = known.filter(|k| k.epoch < epoch) else { return Ok(()) };
        let zfs = self.live().zfs.clone();
        match zfs.getattr(object_of(node)).await {
            Ok(a) if a.generation == known.generation => {
                if let Some(k) = self.known.borrow_mut().get_mut(&node) {
                    k.epoch = epoch;
                }
                Ok(())
            }
            Ok(_) => Err(STALE),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(STALE),
            Err(e) => Err(e.into()),
        }
    }

    /// The kernel gets one more reference to a node of a live file.
    pub(crate) fn remember(&self, node: u64, a: &zpl::Attr) {
        if node == ROOT_NODE {
            return;
        }
        let (generation, epoch, is_dir) = (a.generation, self.epoch.get(), a.kind == FileKind::Dir);
        let mut known = self.known.borrow_mut();
        let k = known.entry(node).or_insert(Known { generation, count: 0, epoch, is_dir });
        *k = Known { generation, count: k.count + 1, epoch, is_dir };
    }

    /// It gives some back, or did not get them.
    pub(crate) fn forget(&self, node: u64, count: u64) {
        let mut known = self.known.borrow_mut();
        if let Some(k) = known.get_mut(&node) {
            k.count = k.count.saturating_sub(count);
            if k.count == 0 {
                known.remove(&node);
            }
        }
    }

    /// A descriptor was opened; the handle with the epoch in it.
    pub(crate) fn opened(&self, node: u64, fh: u64, mappable: bool, cached: bool) -> u64 {
        let mut opens = self.opens.borrow_mut();
        let o = opens.entry(node).or_default();
        o.all += 1;
        o.mappable += u32::from(mappable);
        o.cached += u32::from(cached);
        fh | u64::from(self.epoch.get()) << EPOCH_SHIFT
    }

    /// It is closed. False for a lost one.
    pub(crate) fn closed(&self, node: u64, fh: u64, mappable: bool, cached: bool) -> bool {
        if self.is_lost(node, fh) {
            let mut lost = self.lost.borrow_mut();
            if let Some(l) = lost.get_mut(&node) {
                l.count -= 1;
                if l.count == 0 {
                    lost.remove(&node);
                }
            }
            return false;
        }
        let mut opens = self.opens.borrow_mut();
        if let Some(o) = opens.get_mut(&node) {
            // A request may say anything.
            o.all = o.all.saturating_sub(1);
            o.mappable = o.mappable.saturating_sub(mappable.into());
            o.cached = o.cached.saturating_sub(cached.into());
            if o.all == 0 {
                opens.remove(&node);
            }
        }
        true
    }

    fn is_lost(&self, node: u64, fh: u64) -> bool {
        self.lost.borrow().get(&node).is_some_and(|l| fh >> EPOCH_SHIFT < u64::from(l.before))
    }

    /// EIO for a lost handle.
    pub(crate) fn check_handle(&self, node: u64, fh: u64) -> Result<(), Errno> {
        if self.is_lost(node, fh) { Err(IO) } else { Ok(()) }
    }

    /// The descriptors of a file.
    pub(crate) fn opens(&self, node: u64) -> Opens {
        self.opens.borrow().get(&node).copied().unwrap_or_default()
    }

    /// Whether a page that the kernel writes back may be of before the epoch.
    pub(crate) fn has_old_pages(&self, node: u64) -> bool {
        self.old_pages.borrow().contains(&node)
    }

    /// Whether the kernel may have the size of before the epoch.
    pub(crate) fn has_old_size(&self, node: u64) -> bool {
        self.old_sizes.borrow().contains(&node)
    }

    /// Attributes of a node go out.
    pub(crate) fn told(&self, node: u64) {
        self.old_sizes.borrow_mut().remove(&node);
    }

    /// Whether the kernel can do what this needs.
    pub(crate) fn can_suspend(&self) -> bool {
        self.kernel().expires_names()
    }

    /// Suspends the file system. [`ErrorKind::Busy`], and nothing changes, if requests under way do
    /// not end.
    pub(crate) async fn suspend(self: &Rc<Self>) -> Result<Suspended> {
        if self.state.get() != State::Open {
            return Err(Error::new(ErrorKind::Busy, "it is suspended already"));
        }
        let kernel = self.kernel();
        let is_mapped = |(node, o): (&u64, &Opens)| (o.mappable > 0 && slot_of(*node) == 0).then_some(*node);
        let mapped: Vec<u64> = self.opens.borrow().iter().filter_map(is_mapped).collect();
        let begun = self.rt.timeout(SUSPEND_LIMIT, async {
            for node in mapped {
                kernel.write_back(node, 0..0).await;
            }
            self.set_state(State::Shut);
            while self.gate.count() > 0 {
                self.gate.wait().await;
            }
        });
        if begun.await.is_none() {
            self.set_state(State::Open);
            return Err(Error::new(ErrorKind::Busy, "requests that began before are still under way"));
        }
        let mut suspended = Suspended { switch: self.clone(), held: Vec::new(), names: BTreeMap::new(), ended: false };
        suspended.held = self.held();
        suspended.names = self.names().await;
        Ok(suspended)
    }

    /// What is in use.
    fn held(&self) -> Vec<Held> {
        let (known, opens) = (self.known.borrow(), self.opens.borrow());
        let removed: BTreeSet<u64> = self.live().zfs.removed_dirs().into_iter().map(|obj| obj.0).collect();
        let in_use = opens.keys().copied().filter(|node| slot_of(*node) == 0).chain(removed.iter().copied());
        let held = |node: u64| {
            let generation = known.get(&node)?.generation;
            let opens = opens.get(&node).map_or(0, |o| o.all);
            Some(Held { obj: object_of(node), generation, opens, is_removed: removed.contains(&node) })
        };
        in_use.collect::<BTreeSet<u64>>().into_iter().filter_map(held).collect()
    }

    /// The names in each directory that the kernel knows.
    async fn names(&self) -> BTreeMap<u64, BTreeSet<Vec<u8>>> {
        let live = self.live();
        let known = self.known.borrow().iter().filter(|(_, k)| k.is_dir).map(|(node, _)| *node).collect::<Vec<u64>>();
        let mut all = BTreeMap::new();
        for dir in known.into_iter().chain([ROOT_NODE]) {
            // One that cannot be read, or is no directory any more, has no names that count.
            let names = live.zfs.names_of(live.object(dir)).await.unwrap_or_default();
            all.insert(dir, names);
        }
        all
    }

    /// Has the kernel drop what it has of before the epoch.
    async fn refresh_kernel(&self, before: BTreeMap<u64, BTreeSet<Vec<u8>>>) {
        let kernel = self.kernel();
        let mapped: Vec<u64> = self.old_pages.borrow().iter().copied().collect();
        kernel.drop_all(&mapped).await;
        self.old_pages.borrow_mut().clear();
        let nodes: Vec<u64> = self.known.borrow().keys().copied().chain([ROOT_NODE]).collect();
        kernel.drop_all(&nodes).await;
        let mut names = self.names().await;
        for (dir, old) in before {
            names.entry(dir).or_default().extend(old);
        }
        for (dir, names) in names {
            kernel.expire_names(dir, names).await;
        }
    }
}

/// A file system whose requests wait. If it is dropped without [`Suspended::resume`] they get EIO
/// from then on.
pub struct Suspended {
    switch: Rc<Switch>,
    held: Vec<Held>,
    names: BTreeMap<u64, BTreeSet<Vec<u8>>>,
    ended: bool,
}

impl Suspended {
    /// The objects in use, for [`Zfs::open_again`].
    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// Requests go on in `zfs`, where those objects in `kept` are still there.
    pub async fn resume(mut self, zfs: Rc<Zfs>, kept: &BTreeSet<u64>) {
        let switch = self.switch.clone();
        let epoch = switch.epoch.get() + 1;
        switch.epoch.set(epoch);
        {
            let (mut opens, mut lost) = (switch.opens.borrow_mut(), switch.lost.borrow_mut());
            let gone = |node: &u64, _: &mut Opens| slot_of(*node) == 0 && !kept.contains(node);
            for (node, o) in opens.extract_if(.., gone) {
                let l = lost.entry(node).or_insert(Lost { before: epoch, count: 0 });
                *l = Lost { before: epoch, count: l.count + o.all };
            }
            let live = || opens.iter().filter(|(node, _)| slot_of(**node) == 0);
            *switch.old_pages.borrow_mut() = live().filter(|(_, o)| o.mappable > 0).map(|(node, _)| *node).collect();
            *switch.old_sizes.borrow_mut() = live().map(|(node, _)| *node).collect();
        }
        for h in self.held.iter().filter(|h| h.is_removed) {
            // The kernel forgot it meanwhile.
            if !switch.known.borrow().contains_key(&h.obj.0) {
                zfs.forget_removed(h.obj);
            }
        }
        *switch.live.borrow_mut() = Live::new(zfs);
        self.ended = true;
        switch.set_state(State::Open);
        switch.refresh_kernel(std::mem::take(&mut self.names)).await;
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        if !self.ended {
            self.switch.set_state(State::Dead);
        }
    }
}
