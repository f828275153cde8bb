//! Several file systems in one session.
//!
//! A plain user's file systems are mounted by `fusermount3`, which works as root, and root may not
//! enter the FUSE mounts of a user. So a file system whose place lies within a mount of the same
//! user cannot get a mount of its own. Instead it is *grafted*: the session of the outer mount
//! serves it as well.
//!
//! # Vocabulary
//!
//! The *members* of a tree are its file systems, each with its own handler; the session was mounted
//! for the first one. A member other than the first *covers* a folder of another member: a lookup
//! of that folder gives the kernel the member's root. Node ids within a member, as its handler has
//! them, are *inner*; those of the session are *outer*. Both have an object number in their low 48
//! bits and a slot above (see [`crate::snapdir`]). An outer slot stands for one inner slot of one
//! member; those of the live first member are the same.
//!
//! # A request
//!
//! 1. The outer slot selects the member; one that has left answers ESTALE.
//! 2. The member's handler serves it, with inner nodes.
//! 3. Nodes and inode numbers of the answer become outer. A covered folder becomes the root of the
//!    covering member.
//!
//! Names in two members are on two devices for `rename` and `link` (EXDEV). A covered folder cannot
//! be removed or renamed (EBUSY), as elsewhere.
//!
//! # Leaving
//!
//! A member is in use while the kernel has a node of it: it holds a reference for each open file,
//! working folder, mapping and watch, and for cached nodes. On a notification to drop the name of
//! the covered folder, it forgets the cached nodes. The remaining ones are in use.
//!
//! # Invariants
//!
//! `known` is exactly the kernel's number of references to a slot: entries are counted when they go
//! out, and `FORGET` gives them back. A slot of a member that left is free for another one only
//! when that is zero.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::ErrorKind;
use rt::sync::{Gate, Pass};

use crate::dir::DirView;
use crate::errno::{Errno, STALE};
use crate::handler::{Attr, Caller, Entry, Handler};
use crate::proto::ROOT_NODE;
use crate::session::Kernel;
use crate::snapdir::{node_in, object_of, slot_of};
use crate::zfs::ZfsHandler;

/// Slots use the bits of 64 above an object number.
const SLOTS_MAX: usize = 1 << 16;
/// The caller of lookups that no process requested.
pub(crate) const NO_CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// Where a member is: a folder of another one.
pub(crate) struct Place {
    pub(crate) parent: Rc<Member>,
    /// The directory that holds the folder, an inner node of `parent`.
    pub(crate) dir: u64,
    pub(crate) name: Vec<u8>,
    /// The folder, an inner node of `parent`.
    pub(crate) folder: u64,
    /// Its generation: after a rollback of `parent` another folder may have its number.
    pub(crate) generation: u64,
}

/// A file system of a tree.
pub(crate) struct Member {
    id: u64,
    pub(crate) fs: ZfsHandler,
    /// None for the first one.
    pub(crate) place: Option<Place>,
    /// Members that cover folders of it, by their inner nodes.
    covered: RefCell<BTreeMap<u64, Rc<Member>>>,
    /// Files and directories that are open.
    pub(crate) open: Gate,
    /// References that the kernel has to its nodes.
    pub(crate) nlookup: Gate,
    /// Requests under way.
    pub(crate) active: Gate,
    /// No request reaches it any more.
    gone: Cell<bool>,
    /// Held until its use has ended.
    used: Gate,
    last: RefCell<Option<Pass>>,
}

impl Member {
    fn new(id: u64, fs: ZfsHandler, place: Option<Place>) -> Rc<Member> {
        let used = Gate::new();
        let last = RefCell::new(Some(used.enter()));
        Rc::new(Member {
            id,
            fs,
            place,
            covered: RefCell::default(),
            open: Gate::new(),
            nlookup: Gate::new(),
            active: Gate::new(),
            gone: Cell::new(false),
            used,
            last,
        })
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }
    /// Whether something is mounted within it.
    pub(crate) fn holds_others(&self) -> bool {
        !self.covered.borrow().is_empty()
    }
    /// The member that covers a folder.
    pub(crate) fn covering(&self, e: &Entry) -> Option<Rc<Member>> {
        let is_it = |member: &&Rc<Member>| member.place.as_ref().is_some_and(|p| p.generation == e.generation);
        self.covered.borrow().get(&e.node).filter(is_it).cloned()
    }
    /// Waits until it has left and every request was dealt with.
    pub(crate) async fn ended(&self) {
        self.used.wait().await;
    }
    /// Its use is over: nothing reaches it, and nothing is under way.
    async fn end(&self) {
        self.fs.end().await;
        self.last.replace(None);
    }
}

/// The target of an outer slot.
struct Slot {
    member: Rc<Member>,
    inner: u64,
    /// References that the kernel has.
    nlookup: u64,
}

#[derive(Default)]
struct Slots {
    all: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Outer slots by member and inner slot.
    of: BTreeMap<(u64, u64), u64>,
}

impl Slots {
    fn get(&self, node: u64) -> Option<&Slot> {
        self.all.get(usize::try_from(slot_of(node)).ok()?)?.as_ref()
    }

    /// The outer slot of an inner one; a new one if there is none yet.
    fn outer(&mut self, member: &Rc<Member>, inner: u64) -> Result<u64, Errno> {
        if let Some(slot) = self.of.get(&(member.id, inner)) {
            return Ok(*slot);
        }
        if member.is_gone() {
            return Err(STALE);
        }
        let new = Some(Slot { member: member.clone(), inner, nlookup: 0 });
        let at = match self.free.pop() {
            Some(at) => {
                self.all[at] = new;
                at
            }
            None if self.all.len() < SLOTS_MAX => {
                self.all.push(new);
                self.all.len() - 1
            }
            None => return Err(Errno(libc::ENFILE)),
        };
        self.of.insert((member.id, inner), at as u64);
        Ok(at as u64)
    }

    /// Gives up the slot if its member has left and the kernel has no references to it any more.
    fn free(&mut self, at: usize) {
        let Some(Some(slot)) = self.all.get(at) else { return };
        if slot.nlookup == 0 && slot.member.is_gone() {
            self.of.remove(&(slot.member.id, slot.inner));
            self.all[at] = None;
            self.free.push(at);
        }
    }
}

/// The file systems of a session.
pub(crate) struct Tree {
    slots: RefCell<Slots>,
    first: Rc<Member>,
    next_id: Cell<u64>,
    kernel: RefCell<Kernel>,
}

/// A request within a member, while it is under way.
pub(crate) struct Inside {
    tree: Rc<Tree>,
    pub(crate) member: Rc<Member>,
    /// The inner node.
    pub(crate) node: u64,
    _active: Pass,
}

impl Tree {
    pub(crate) fn new(fs: ZfsHandler) -> Rc<Tree> {
        let first = Member::new(0, fs, None);
        let mut slots = Slots::default();
        // The first slot of all: 0, as in a session of one file system.
        let _ = slots.outer(&first, 0);
        Rc::new(Tree { slots: RefCell::new(slots), first, next_id: Cell::new(1), kernel: RefCell::default() })
    }

    /// The session begins.
    pub(crate) fn begin(&self, kernel: Kernel) {
        self.first.fs.begin(kernel.clone());
        *self.kernel.borrow_mut() = kernel;
    }

    /// The session is over.
    pub(crate) async fn end(&self) {
        for member in self.members() {
            member.gone.set(true);
            member.covered.take();
            member.end().await;
        }
        *self.slots.borrow_mut() = Slots::default();
    }

    /// All that have not left.
    pub(crate) fn members(&self) -> Vec<Rc<Member>> {
        let slots = self.slots.borrow();
        let live = slots.all.iter().flatten().filter(|s| s.inner == 0 && !s.member.is_gone());
        live.map(|s| s.member.clone()).collect()
    }

    /// Resolves a node of the kernel.
    pub(crate) fn enter(self: &Rc<Self>, node: u64) -> Result<Inside, Errno> {
        let slots = self.slots.borrow();
        let slot = slots.get(node).filter(|s| !s.member.is_gone()).ok_or(STALE)?;
        let (member, node) = (slot.member.clone(), node_in(slot.inner, object_of(node)));
        let _active = member.active.enter();
        Ok(Inside { tree: self.clone(), member, node, _active })
    }

    /// The kernel gives references back.
    pub(crate) fn forget(&self, node: u64, count: u64) {
        let slots = &mut *self.slots.borrow_mut();
        let Ok(at) = usize::try_from(slot_of(node)) else { return };
        let Some(Some(slot)) = slots.all.get_mut(at) else { return };
        // The kernel's own reference to the root was never handed out.
        let known = count.min(slot.nlookup);
        slot.nlookup -= known;
        slot.member.nlookup.down(known);
        if !slot.member.is_gone() {
            slot.member.fs.forget(node_in(slot.inner, object_of(node)), count);
        }
        slots.free(at);
    }

    fn outer(&self, member: &Rc<Member>, inner: u64) -> Result<u64, Errno> {
        let slot = self.slots.borrow_mut().outer(member, slot_of(inner))?;
        Ok(node_in(slot, object_of(inner)))
    }

    /// An inode number as users see it. Where there are too many slots two files may have the same.
    fn ino(&self, member: &Rc<Member>, ino: u64) -> u64 {
        self.outer(member, ino).unwrap_or(ino)
    }

    /// An entry of a member as the kernel gets it; it then has one more reference.
    fn reference(&self, member: &Rc<Member>, e: Entry) -> Result<Entry, Errno> {
        let node = self.outer(member, e.node)?;
        if let Some(Some(slot)) = self.slots.borrow_mut().all.get_mut(slot_of(node) as usize) {
            slot.nlookup += 1;
            member.nlookup.up(1);
        }
        Ok(Entry { node, attr: Attr { ino: self.ino(member, e.attr.ino), ..e.attr }, ..e })
    }

    /// Finds a path below the root of the session: the folder's place, and its inode number.
    pub(crate) async fn find(self: &Rc<Self>, path: &[&[u8]]) -> Result<(Place, u64), Errno> {
        let mut at = (self.first.clone(), ROOT_NODE);
        let mut found = None;
        for name in path {
            let (parent, dir) = at;
            let e = parent.fs.lookup(NO_CALLER, dir, name).await?;
            if e.node == 0 {
                return Err(Errno(libc::ENOENT));
            }
            parent.fs.switch().forget(e.node, 1);
            let ino = self.ino(&parent, e.attr.ino);
            at = match parent.covering(&e) {
                Some(child) => (child, ROOT_NODE),
                None => (parent.clone(), e.node),
            };
            let place = Place { parent, dir, name: name.to_vec(), folder: e.node, generation: e.generation };
            found = Some((place, e, ino));
        }
        match found {
            Some((place, e, _)) if place.parent.covering(&e).is_some() => Err(Errno(libc::EBUSY)),
            Some((place, _, ino)) => Ok((place, ino)),
            // The root of the mount: something is mounted there already.
            None => Err(Errno(libc::EBUSY)),
        }
    }

    /// Makes a file system a member, which covers a folder from now on.
    pub(crate) fn add(&self, fs: ZfsHandler, place: Place) -> Result<Rc<Member>, Errno> {
        if place.parent.is_gone() {
            return Err(STALE);
        }
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let (parent, folder) = (place.parent.clone(), place.folder);
        let member = Member::new(id, fs, Some(place));
        let slot = self.slots.borrow_mut().outer(&member, 0)?;
        member.fs.begin(self.kernel.borrow().for_slot(slot));
        parent.covered.borrow_mut().insert(folder, member.clone());
        Ok(member)
    }

    /// Has the kernel drop the name of the folder that a member covers, and its cached nodes below
    /// it.
    pub(crate) async fn drop_name(&self, member: &Member) {
        let Some(place) = &member.place else { return };
        let Ok(dir) = self.outer(&place.parent, place.dir) else { return };
        let kernel = self.kernel.borrow().clone();
        kernel.drop_name(dir, &place.name).await;
    }

    /// Takes a member out of the tree: the covered folder is visible again.
    pub(crate) fn remove(&self, member: &Member) {
        if let Some(place) = &member.place {
            place.parent.covered.borrow_mut().remove(&place.folder);
        }
        member.gone.set(true);
        let slots = &mut *self.slots.borrow_mut();
        for at in 0..slots.all.len() {
            slots.free(at);
        }
    }

    /// Waits for the requests of a member that was taken out, and ends its use.
    pub(crate) async fn finish(&self, member: &Member) {
        while member.active.count() > 0 {
            member.active.wait().await;
        }
        member.end().await;
    }
}

impl Inside {
    pub(crate) fn attr(&self, a: Attr) -> Attr {
        Attr { ino: self.tree.ino(&self.member, a.ino), ..a }
    }

    /// The result of a lookup, as the kernel gets it.
    pub(crate) async fn entry(&self, e: Entry) -> Result<Entry, Errno> {
        if e.node == 0 {
            return Ok(e);
        }
        if let Some(child) = self.member.covering(&e) {
            let _pass = child.fs.enter(ROOT_NODE, false).await?;
            let root = child.fs.lookup(NO_CALLER, ROOT_NODE, b".").await?;
            // It may have left meanwhile.
            if !child.is_gone() {
                self.member.fs.switch().forget(e.node, 1);
                return self.tree.reference(&child, root);
            }
        }
        self.tree.reference(&self.member, e)
    }

    /// EBUSY for the name of a covered folder.
    pub(crate) async fn check_uncovered(&self, who: Caller, name: &[u8]) -> Result<(), Errno> {
        if !self.member.holds_others() {
            return Ok(());
        }
        let Ok(e) = self.member.fs.lookup(who, self.node, name).await else { return Ok(()) };
        self.member.fs.switch().forget(e.node, 1);
        if self.member.covering(&e).is_some() { Err(Errno(libc::EBUSY)) } else { Ok(()) }
    }
}

impl DirView for Inside {
    fn ino(&self, ino: u64) -> u64 {
        self.tree.ino(&self.member, ino)
    }
    fn reference(&self, e: &Entry) -> Option<Entry> {
        // The kernel looks the covering member up when it needs it.
        if self.member.covering(e).is_some() {
            return None;
        }
        self.tree.reference(&self.member, *e).ok()
    }
}

/// Why a folder cannot be covered.
pub(crate) fn cover_error(e: Errno) -> base::Error {
    match e.0 {
        libc::EBUSY => {
            base::Error::new(ErrorKind::Busy, "another file system of the pool is mounted there: unmount it first")
        }
        libc::ENFILE => {
            base::Error::new(ErrorKind::TooBig, "too many file systems and snapshots are in use within one mount")
        }
        _ => base::Error::new(ErrorKind::NotFound, "the folder was renamed or removed meanwhile"),
    }
}
