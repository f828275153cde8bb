//! A mounted file system: open, unmount, space, durability, and the state that all operations
//! share.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use base::{Error, ErrorKind, ObjectId, Result, ResultExt, Txg, WallTime};
use dmu::sa::{SaTable, Times, ZnodeAttrs};
use dmu::{Dnode, Objset, Tx, TxPlan, zap};
use dsl::{CloneSource, Dataset};
use ondisk::dnode::MAX_OBJECT;
use ondisk::objset::{OBJSET_PROJECTQUOTA_COMPLETE, ObjsetType};
use ondisk::zpl::{
    Dirent, MASTER_NODE_OBJ, ZPL_VERSION, ZPL_VERSION_DIRENT, ZPL_VERSION_SA, master_key, modified_pflags, pflags,
};
use rt::Rt;
use rt::join::{Either, select2};
use rt::sync::{Gate, Mutex, Notify, Pass};
use zil::replay::Replayed;
use zil::{GetData, SyncMode, Zilog};

use crate::node::{Node, check_flags, times};
use crate::owners::Count;
use crate::quota::Quotas;
use crate::ranks;
use crate::types::{Atime, Case, MountOpts, StatFs};

/// Access times kept in memory before they are written.
const PENDING_ATIMES_MAX: usize = 1024;
/// The unit of `statfs`, in bytes.
const STATFS_UNIT: u64 = 512;
/// Least space of a new object, in bytes: its dnode.
const OBJECT_BYTES_MIN: u64 = 512;
/// Relative access times are renewed after this many seconds.
const RELATIME_SECS: i64 = 24 * 60 * 60;

/// Called with the first object whose NFSv4 ACL is not trivial.
type ForeignAclWatch = Box<dyn FnOnce(ObjectId)>;

/// A mounted file system. All operations may run concurrently.
pub struct Zfs {
    me: Weak<Zfs>,
    ds: Rc<Dataset>,
    pub(crate) os: Objset,
    pub(crate) rt: Rt,
    opts: Cell<MountOpts>,
    version: Cell<u64>,
    pub(crate) normflags: u64,
    pub(crate) case: Case,
    pub(crate) utf8only: bool,
    /// A name of more than 255 bytes was given since it was opened.
    pub(crate) long_names: Cell<bool>,
    root: ObjectId,
    /// The unlinked set; every writable file system has one.
    unlinked_set: Option<Dnode>,
    /// None before version 5.
    pub(crate) sa: OnceCell<Rc<SaTable>>,
    /// Objects that a new attribute layout changes.
    sa_objects: RefCell<Vec<Dnode>>,
    /// New files and directories have a project id.
    pub(crate) projects: Cell<bool>,
    pub(crate) quotas: Quotas,
    pub(crate) rename_lock: Mutex<()>,
    /// Objects that are open.
    opened: RefCell<BTreeMap<u64, Node>>,
    /// Whether removed directories are held open, and those that are ([`Zfs::keep_removed_dirs`]).
    keeps_removed: Cell<bool>,
    pub(crate) removed: RefCell<BTreeSet<u64>>,
    /// Access times that have not been stored.
    atimes: RefCell<BTreeMap<u64, (Node, WallTime)>>,
    flushing_atimes: Cell<bool>,
    /// Objects that are being freed.
    pub(crate) reaping: RefCell<BTreeSet<u64>>,
    /// Objects of the unlinked set that could not be freed.
    pub(crate) reap_errors: Cell<u64>,
    /// Reads, their bytes, writes, their bytes.
    pub(crate) io: Cell<[u64; 4]>,
    /// Objects that lost their last link, and those of them that are freed.
    unlinks: Cell<[u64; 2]>,
    /// The record of the intent log that is being replayed; no other change runs meanwhile.
    pub(crate) replaying: Cell<Option<u64>>,
    /// End of file for a replayed write, which may write a whole block beyond it.
    pub(crate) replay_eof: Cell<Option<u64>>,
    /// Called once, with the first object whose NFSv4 ACL is not trivial.
    foreign_acl_watch: RefCell<Option<ForeignAclWatch>>,
    /// Whether such an ACL was met.
    pub(crate) foreign_acls: Cell<bool>,
    /// Result of the replay at mount.
    replayed: RefCell<Replayed>,
    /// The intent log; None if read-only, or if the log that a crash left could not be replayed.
    pub(crate) log: RefCell<Option<Zilog>>,
    /// The task that counts what is there by owner.
    pub(crate) counting: Cell<Count>,
    /// It has ended.
    pub(crate) counted: Notify,
    busy: Gate,
    closed: Cell<bool>,
}

/// Whether a file system can be written, whatever its options say.
fn can_write(ds: &Dataset, os: &Objset, unlinked_set: Option<&Dnode>) -> bool {
    ds.is_writable() && os.is_writable() && unlinked_set.is_some()
}

/// A file system whose blocks are being cloned.
pub(crate) struct SourcePass {
    _pass: Option<Pass>,
    _snapshot: Option<CloneSource>,
}

impl Zfs {
    /// Opens the file system of a dataset. A snapshot and a dataset of a pool imported read-only
    /// are read-only regardless of `opts`. If it is writable, a background task begins to free the
    /// objects that a crash left in the unlinked set.
    pub async fn open(ds: &Rc<Dataset>, opts: MountOpts) -> Result<Rc<Zfs>> {
        let (fs, _) = Zfs::open_again(ds, opts, &[]).await?;
        Ok(fs)
    }

    /// Begins the work in the background of a file system that can be written.
    pub(crate) async fn begin_background(&self) -> Result<()> {
        if !self.opts().readonly {
            self.unlinks.set([self.unlinked_count().await?, 0]);
            self.spawn_unlinked_drain();
            self.spawn_count();
        }
        Ok(())
    }

    /// Opens a snapshot without a use of it: it can be destroyed meanwhile, and its files give
    /// errors then ([`Dataset::is_gone`]).
    pub async fn open_uncounted(ds: &Rc<Dataset>, opts: MountOpts) -> Result<Rc<Zfs>> {
        assert!(ds.is_snapshot(), "'{}' can change while it is open", ds.name());
        let fs = Zfs::load(ds, opts).await?;
        // There is nothing to close.
        fs.closed.set(true);
        Ok(fs)
    }

    pub(crate) async fn load(ds: &Rc<Dataset>, opts: MountOpts) -> Result<Rc<Zfs>> {
        let place = || format!("file system '{}'", ds.name());
        if opts.redacted {
            ds.check_received()?
        } else {
            ds.check_complete()?
        }
        let os = ds.objset().await?;
        if os.os_type() != ObjsetType::Zfs {
            return Err(Error::invalid(format!("dataset '{}' is no file system", ds.name())));
        }
        let master = os.hold(ObjectId(MASTER_NODE_OBJ)).await.at(place)?;
        let get = async |key: &str| zap::lookup_u64(&master, key.as_bytes()).await.at(place);
        let need = async |key: &str| {
            get(key).await?.ok_or_else(|| Error::corrupt(format!("{}: its master node has no {key}", place())))
        };
        let version = need(master_key::VERSION).await?;
        if version == 0 || version > ZPL_VERSION {
            return Err(Error::unsupported(format!("{} has version {version}, newer than {ZPL_VERSION}", place())));
        }
        let root = ObjectId(need(master_key::ROOT).await?);
        let normalization = get(master_key::NORMALIZATION).await?.unwrap_or(0);
        let case = match get(master_key::CASESENSITIVITY).await?.unwrap_or(0) {
            0 => Case::Sensitive,
            1 => Case::Insensitive,
            2 => Case::Mixed,
            n => return Err(Error::corrupt(format!("{}: casesensitivity is {n}", place()))),
        };
        let utf8only = get(master_key::UTF8ONLY).await?.unwrap_or(0) != 0;
        let sa = OnceCell::new();
        let mut sa_objects = Vec::new();
        if version >= ZPL_VERSION_SA {
            let table = SaTable::load(&os, ObjectId(need(master_key::SA_ATTRS).await?)).await.at(place)?;
            for obj in table.objects() {
                sa_objects.push(os.hold(obj).await.at(place)?);
            }
            let _ = sa.set(table);
        }
        let unlinked_set = match get(master_key::DELETE_QUEUE).await? {
            Some(obj) => Some(os.hold(ObjectId(obj)).await.at(place)?),
            None => None,
        };
        let writable = can_write(ds, &os, unlinked_set.as_ref());
        let opts = MountOpts { readonly: opts.readonly || !writable, ..opts };
        let projects = sa.get().is_some() && os.flags() & OBJSET_PROJECTQUOTA_COMPLETE != 0;
        let quotas = Quotas::load(&os, &master).await.at(place)?;
        let fs = Rc::new_cyclic(|me| Zfs {
            me: me.clone(),
            ds: ds.clone(),
            rt: os.ctx().rt().clone(),
            os,
            opts: Cell::new(opts),
            version: Cell::new(version),
            normflags: crate::names::normflags(normalization, case),
            case,
            utf8only,
            long_names: Cell::new(false),
            root,
            unlinked_set,
            sa,
            sa_objects: RefCell::new(sa_objects),
            projects: Cell::new(projects),
            quotas,
            rename_lock: Mutex::new(ranks::RENAME, ()),
            opened: RefCell::default(),
            keeps_removed: Cell::new(false),
            removed: RefCell::default(),
            atimes: RefCell::default(),
            flushing_atimes: Cell::new(false),
            reaping: RefCell::default(),
            reap_errors: Cell::new(0),
            io: Cell::default(),
            unlinks: Cell::default(),
            replaying: Cell::new(None),
            replay_eof: Cell::new(None),
            foreign_acl_watch: RefCell::default(),
            foreign_acls: Cell::new(false),
            replayed: RefCell::default(),
            log: RefCell::default(),
            counting: Cell::default(),
            counted: Notify::default(),
            busy: Gate::new(),
            closed: Cell::new(false),
        });
        // Verify that the root is a directory before the file system is handed out.
        fs.dir(root).await.at(place)?;
        // Another user of the object set may have opened its log already.
        if writable && !fs.os.has_log() {
            let done = zil::replay::replay(&fs.os, &*fs).await.at(|| format!("{}: its intent log", place()))?;
            // Old pools have logs of another form, which are read only: changes wait for their txg.
            let has_form = fs.os.ctx().features().pool_version >= ondisk::version::SLIM_ZIL;
            let clean = has_form && done.failed.is_none();
            *fs.replayed.borrow_mut() = done;
            if clean {
                let data: Rc<dyn GetData> = fs.clone();
                let log = Zilog::new(&fs.os, Rc::downgrade(&data), ds.intent_logs().clone());
                log.set_throughput(opts.throughput);
                *fs.log.borrow_mut() = Some(log);
            }
        }
        Ok(fs)
    }

    /// Unmounts: refuses new changes, waits for those under way, and until all are on disk.
    pub async fn unmount(&self) -> Result<()> {
        if self.closed.replace(true) {
            return Ok(());
        }
        self.busy.wait().await;
        let flushed = self.flush_atimes().await;
        let log = self.log.borrow_mut().take();
        let closed = match log {
            Some(log) => log.close().await,
            None => Ok(()),
        };
        // A txg of its own for each would cost much where many are unmounted.
        let dirty = self.os.last_dirty();
        let waits = self.os.is_writable() && dirty > self.os.ctx().txg().last_synced();
        let synced = if waits { self.wait_txg(dirty).await } else { Ok(()) };
        // The nodes may outlive this mount.
        self.opened.take().values().for_each(|n| n.st.opens.set(0));
        self.removed.borrow_mut().clear();
        self.atimes.borrow_mut().clear();
        self.ds.end_use();
        flushed.and(closed).and(synced)
    }

    /// The root directory.
    pub fn root(&self) -> ObjectId {
        self.root
    }
    /// Its dataset.
    pub fn dataset(&self) -> &Rc<Dataset> {
        &self.ds
    }
    /// Its object set.
    pub fn objset(&self) -> &Objset {
        &self.os
    }
    /// The dataset's name.
    pub fn name(&self) -> String {
        self.ds.name()
    }
    /// Whether two names mean the same entry only when they are the same bytes.
    pub fn names_are_exact(&self) -> bool {
        self.normflags == 0
    }
    /// It has this version from now on, and a table of attributes since version 5.
    pub(crate) fn set_version(&self, version: u64, sa: Option<(Rc<SaTable>, Vec<Dnode>)>) {
        self.version.set(version);
        if let Some((table, objects)) = sa
            && self.sa.set(table).is_ok()
        {
            *self.sa_objects.borrow_mut() = objects;
            self.projects.set(self.os.flags() & OBJSET_PROJECTQUOTA_COMPLETE != 0);
        }
    }
    /// ZPL version.
    pub fn version(&self) -> u64 {
        self.version.get()
    }
    /// Calls `watch` with the first object found whose NFSv4 ACL is not trivial. Of such ACLs
    /// only removing and renaming obeys what they deny ([`Zfs::may_delete`]).
    pub fn watch_foreign_acls(&self, watch: impl FnOnce(ObjectId) + 'static) {
        *self.foreign_acl_watch.borrow_mut() = Some(Box::new(watch));
    }
    /// Checks the flags of an object for a non-trivial ACL.
    pub(crate) fn check_foreign_acl(&self, obj: ObjectId, flags: u64) {
        // Before version 5 trivial ACLs may lack the flag.
        if flags & (pflags::ACL_TRIVIAL | pflags::XATTR) == 0 && self.sa.get().is_some() {
            self.foreign_acls.set(true);
            let watch = self.foreign_acl_watch.borrow_mut().take();
            if let Some(watch) = watch {
                watch(obj);
            }
        }
    }
    /// Result of the intent log's replay at mount.
    pub fn replayed(&self) -> Replayed {
        self.replayed.borrow().clone()
    }
    /// Reads, bytes read, writes, bytes written since it was opened.
    pub fn io_counts(&self) -> [u64; 4] {
        self.io.get()
    }
    pub(crate) fn count_io(&self, write: bool, bytes: u64) {
        let mut io = self.io.get();
        let at = usize::from(write) * 2;
        (io[at], io[at + 1]) = (io[at] + 1, io[at + 1] + bytes);
        self.io.set(io);
    }
    /// Objects without a link since it was opened, among them those that were there before, and how
    /// many of them were freed.
    pub fn unlink_counts(&self) -> [u64; 2] {
        self.unlinks.get()
    }
    /// Whether objects without a link stay where they are for now (`zfs_unlink_suspend_progress`).
    pub(crate) fn is_reaping_suspended(&self) -> bool {
        self.ds.is_unlinking_suspended()
    }
    pub(crate) fn count_unlinked(&self) {
        let [n, freed] = self.unlinks.get();
        self.unlinks.set([n + 1, freed]);
    }
    pub(crate) fn count_freed(&self) {
        let [n, freed] = self.unlinks.get();
        self.unlinks.set([n, freed + 1]);
    }
    /// Its mount options.
    pub fn opts(&self) -> MountOpts {
        self.opts.get()
    }
    /// Changes the mount options, when a property changed. A file system that cannot be written
    /// stays read-only; `posix_acl` stays as it is, since the front end read it at mount.
    pub fn set_opts(&self, opts: MountOpts) {
        let can = can_write(&self.ds, &self.os, self.unlinked_set.as_ref());
        let posix_acl = self.opts().posix_acl;
        let before = self.opts.replace(MountOpts { readonly: opts.readonly || !can, posix_acl, ..opts });
        if let Some(log) = self.log() {
            log.set_throughput(opts.throughput);
            if before.sync == SyncMode::Disabled && opts.sync != SyncMode::Disabled {
                // Changes made with `sync=disabled` were not logged.
                log.barrier(None, self.os.ctx().txg().open_txg());
            }
        }
    }
    /// Objects that are open.
    pub fn open_objects(&self) -> usize {
        self.opened.borrow().len()
    }
    pub(crate) fn rc(&self) -> Option<Rc<Zfs>> {
        self.me.upgrade()
    }
    /// Whether it was unmounted.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// The current time, in the form of attributes.
    pub(crate) fn now(&self) -> Times {
        times(self.rt.wall_clock())
    }
    /// The value of a directory's entry for an object; before version 2 it has no type.
    pub(crate) fn entry_for(&self, mode: u64, obj: ObjectId) -> u64 {
        let entry = Dirent::new(mode, obj.0);
        if self.version() < ZPL_VERSION_DIRENT { Dirent { dtype: 0, ..entry }.pack() } else { entry.pack() }
    }
    /// Flags that a change of content sets.
    pub(crate) fn modified_flags(&self) -> u64 {
        modified_pflags(self.version())
    }
    /// The unlinked set, if it has one.
    pub(crate) fn unlinked(&self) -> Option<&Dnode> {
        self.unlinked_set.as_ref()
    }
    /// The unlinked set; every writable file system has one.
    pub(crate) fn unlinked_set(&self) -> Result<&Dnode> {
        self.unlinked_set.as_ref().ok_or_else(|| self.readonly_error())
    }
    fn readonly_error(&self) -> Error {
        Error::new(ErrorKind::ReadOnly, format!("file system '{}' is read-only", self.name()))
    }

    /// Begins a change: checks that the file system is writable, and keeps it from being closed
    /// while the pass lives.
    pub(crate) fn enter(&self) -> Result<Pass> {
        if self.closed.get() {
            return Err(Error::new(ErrorKind::Interrupted, format!("file system '{}' is unmounted", self.name())));
        }
        if self.opts.get().readonly && self.replaying.get().is_none() {
            return Err(self.readonly_error());
        }
        Ok(self.busy.enter())
    }
    /// Keeps the file system from being closed, or the snapshot from being destroyed, while its
    /// blocks are cloned to another one.
    pub(crate) fn enter_clone_source(&self) -> Result<SourcePass> {
        if !self.ds.is_snapshot() {
            return self.enter_source().map(|pass| SourcePass { _pass: Some(pass), _snapshot: None });
        }
        let source = CloneSource::of(&self.ds);
        let source = source
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("snapshot '{}' is destroyed", self.name())))?;
        Ok(SourcePass { _pass: None, _snapshot: Some(source) })
    }
    /// Keeps the file system from being closed while it is read beside its operations.
    pub(crate) fn enter_source(&self) -> Result<Pass> {
        if self.closed.get() {
            return Err(Error::new(ErrorKind::Interrupted, format!("file system '{}' is unmounted", self.name())));
        }
        Ok(self.busy.enter())
    }
    /// An empty plan.
    pub(crate) fn plan(&self) -> TxPlan {
        let plan = TxPlan::new(&self.os);
        if self.replaying.get().is_some() { plan.replayed() } else { plan }
    }
    /// An empty plan of a transaction that may add an attribute layout: a layout that one txg adds
    /// must not be used by an older one.
    pub(crate) fn plan_layout(&self) -> TxPlan {
        self.sa_objects.borrow().iter().fold(self.plan(), |plan, dn| plan.bonus(dn))
    }
    /// Ends a transaction that completes an operation. With `sync=always` [`Zfs::commit_if_always`]
    /// follows after all locks are released.
    pub(crate) fn finish(&self, tx: Tx) {
        if let Some(seq) = self.replaying.get() {
            zil::replay::mark(&self.os, seq, &tx);
        }
        drop(tx);
    }
    /// Ends a transaction and, with `sync=always`, commits the object's changes. The caller holds
    /// no locks any more.
    pub(crate) async fn finish_op(&self, tx: Tx, obj: ObjectId) -> Result<()> {
        self.finish(tx);
        self.commit_if_always(obj).await
    }
    /// With `sync=always`, waits until the object's changes are durable. The caller holds no locks.
    pub(crate) async fn commit_if_always(&self, obj: ObjectId) -> Result<()> {
        if self.opts.get().sync != SyncMode::Always || self.replaying.get().is_some() {
            return Ok(());
        }
        self.commit(obj).await
    }
    /// Makes the object's changes durable, with any `sync` property.
    pub(crate) async fn commit(&self, obj: ObjectId) -> Result<()> {
        match self.log() {
            Some(log) => log.commit(Some(obj)).await,
            None => self.wait_txg(Txg(0)).await,
        }
    }
    /// The intent log.
    pub fn log(&self) -> Option<Zilog> {
        self.log.borrow().clone()
    }
    /// Waits until a txg (0: the open one) is on disk.
    pub(crate) async fn wait_txg(&self, txg: Txg) -> Result<()> {
        self.os.ctx().txg().wait_synced(txg).await
    }
    /// Ends when the txg that is open now is on disk, which it does not hasten. An error if the
    /// pool ends before.
    pub fn when_synced(&self) -> impl Future<Output = Result<()>> + use<> {
        let txg = self.os.ctx().txg().clone();
        async move { txg.when_synced(Txg(0)).await }
    }
    /// Waits for the next txg, between the parts of large work.
    pub(crate) async fn next_txg(&self, after: Txg) -> Result<()> {
        self.os.ctx().txg().wait_open(after.next()).await
    }

    /// Makes the object's changes durable, and all changes of names that came before.
    pub async fn fsync(&self, obj: ObjectId) -> Result<()> {
        if !self.os.is_writable() || self.opts.get().sync == SyncMode::Disabled {
            return Ok(());
        }
        let _pass = self.busy.enter();
        self.node(obj).await?;
        self.commit(obj).await
    }

    /// Serves `sync` and `syncfs`: makes everything done before durable. As in OpenZFS, it does
    /// nothing with `sync=disabled`, and it does not wait for a suspended pool:
    /// [`ErrorKind::Suspended`], also if the pool is suspended meanwhile.
    pub async fn sync_fs(self: &Rc<Self>) -> Result<()> {
        if !self.os.is_writable() || self.opts.get().sync == SyncMode::Disabled {
            return Ok(());
        }
        let gate = &self.os.ctx().zio().tree().gate;
        if gate.is_suspended() {
            return Err(gate.suspension().await);
        }
        // In a task of its own, which goes on when this future is dropped.
        let zfs = self.clone();
        let syncing = self.os.ctx().rt().spawn("sync", async move { zfs.sync_all().await });
        match select2(syncing, gate.suspension()).await {
            Either::First(done) => done,
            Either::Second(why) => Err(why),
        }
    }

    /// Makes everything durable.
    pub async fn sync_all(&self) -> Result<()> {
        if !self.os.is_writable() {
            return Ok(());
        }
        self.flush_atimes().await?;
        self.wait_txg(Txg(0)).await
    }

    /// Space and objects, from the dataset's figures.
    pub fn statfs(&self) -> StatFs {
        let phys = self.ds.phys();
        let available = self.ds.available();
        let used_objects = self.os.used_objects();
        let ffree = MAX_OBJECT.saturating_sub(used_objects).min(available / OBJECT_BYTES_MIN);
        let free = available / STATFS_UNIT;
        StatFs {
            bsize: self.os.props().recordsize,
            frsize: STATFS_UNIT as u32,
            blocks: phys.referenced_bytes.saturating_add(available) / STATFS_UNIT,
            free,
            avail: free,
            files: ffree.saturating_add(used_objects),
            ffree,
            namelen: self.longest_name() as u32,
            fsid: phys.fsid_guid,
        }
    }

    /// Counts the object as open: it lives on without a name until the last [`Zfs::release`].
    /// `NotFound` if it has neither name nor opener any more.
    pub async fn open_file(&self, obj: ObjectId) -> Result<()> {
        self.open_checked(obj, 0).await
    }

    /// As [`Zfs::open_file`], for a descriptor that writes, `append`: only at the end. `Denied` if
    /// the file is immutable, or append-only and the descriptor is not.
    pub async fn open_file_to_write(&self, obj: ObjectId, append: bool) -> Result<()> {
        self.open_checked(obj, if append { pflags::IMMUTABLE } else { pflags::IMMUTABLE | pflags::APPENDONLY }).await
    }

    async fn open_checked(&self, obj: ObjectId, protections: u64) -> Result<()> {
        let n = self.node(obj).await?;
        check_flags(obj, &self.live_attrs(&n).await?, protections)?;
        self.hold_open(&n);
        Ok(())
    }

    /// Counts an object as open that a transaction under way creates or removes.
    pub(crate) fn hold_open(&self, n: &Node) {
        n.st.opens.set(n.st.opens.get() + 1);
        self.opened.borrow_mut().insert(n.obj().0, n.clone());
    }

    /// Keeps removed directories open from now on until [`Zfs::forget_removed`] names them: a
    /// process may still be in one, and the front end gets a notice only when the last one has
    /// left.
    pub fn keep_removed_dirs(&self) {
        self.keeps_removed.set(true);
    }

    /// Holds a removed directory open, if the front end asked for that.
    pub(crate) fn keep_removed(&self, n: &Node) {
        if self.keeps_removed.get() && self.replaying.get().is_none() && self.removed.borrow_mut().insert(n.obj().0) {
            self.hold_open(n);
        }
    }

    /// Ends the hold of a removed directory; it is freed in the background.
    pub fn forget_removed(&self, obj: ObjectId) {
        if !self.removed.borrow_mut().remove(&obj.0) {
            return;
        }
        if let Some(fs) = self.rc() {
            self.rt.spawn("zpl forget", async move { fs.release(obj).await });
        }
    }

    /// As [`Zfs::forget_removed`] for all of them.
    pub async fn forget_all_removed(&self) {
        let all = std::mem::take(&mut *self.removed.borrow_mut());
        for obj in all {
            self.release(ObjectId(obj)).await;
        }
    }

    /// Ends one [`Zfs::open_file`]. The last one frees an unlinked object, in the background.
    pub async fn release(&self, obj: ObjectId) {
        let Some(n) = self.opened.borrow().get(&obj.0).cloned() else { return };
        n.st.opens.set(n.st.opens.get().saturating_sub(1));
        if n.st.opens.get() > 0 {
            return;
        }
        self.opened.borrow_mut().remove(&obj.0);
        let unlinked = self.stored_attrs(&n).await.is_ok_and(|a| a.links == 0);
        if unlinked && n.dn.exists() && n.st.opens.get() == 0 {
            self.spawn_reap(obj);
        }
    }

    /// Updates the access time after a read, if the policy asks for it (`ZFS_ACCESSTIME_STAMP`).
    pub(crate) fn stamp_atime(&self, n: &Node, a: &ZnodeAttrs) {
        let opts = self.opts.get();
        if opts.readonly || opts.atime == Atime::Off || self.closed.get() {
            return;
        }
        let now = self.rt.wall_clock();
        if !is_atime_due(opts.atime, a, now) {
            return;
        }
        let full = {
            let mut atimes = self.atimes.borrow_mut();
            atimes.entry(n.obj().0).or_insert_with(|| (n.clone(), now)).1 = now;
            atimes.len() > PENDING_ATIMES_MAX
        };
        if full
            && !self.flushing_atimes.replace(true)
            && let Some(fs) = self.rc()
        {
            self.rt.spawn("zpl access times", async move {
                // An access time that cannot be written is dropped without an error.
                let _ = fs.flush_atimes().await;
                fs.flushing_atimes.set(false);
            });
        }
    }
    /// Whether a front end that serves reads from its own cache should pass one on: no read was
    /// recorded this second, and the policy updates the access time.
    pub async fn is_atime_due_on_read(&self, obj: ObjectId) -> bool {
        let opts = self.opts.get();
        if opts.readonly || opts.atime == Atime::Off {
            return false;
        }
        let Ok(n) = self.node(obj).await else { return false };
        let Ok(a) = self.attrs(&n).await else { return false };
        let now = self.rt.wall_clock();
        is_atime_due(opts.atime, &a, now) && now.secs != a.atime[0] as i64
    }

    /// An access time that has not been stored.
    pub(crate) fn pending_atime(&self, obj: ObjectId) -> Option<Times> {
        let atimes = self.atimes.borrow();
        if atimes.is_empty() { None } else { atimes.get(&obj.0).map(|(_, t)| times(*t)) }
    }
    /// Takes a pending access time, to store or drop it.
    pub(crate) fn take_atime(&self, obj: ObjectId) -> Option<Times> {
        if self.atimes.borrow().is_empty() {
            return None;
        }
        let taken = self.atimes.borrow_mut().remove(&obj.0);
        taken.map(|(_, t)| times(t))
    }

    /// Stores the pending access times.
    async fn flush_atimes(&self) -> Result<()> {
        let _pass = self.busy.enter();
        let list: Vec<Node> = self.atimes.borrow().values().map(|(n, _)| n.clone()).collect();
        if self.opts.get().readonly {
            return Ok(());
        }
        for n in list {
            if !n.dn.exists() {
                self.take_atime(n.obj());
                continue;
            }
            let tx = self.plan().bonus(&n.dn).net_free().assign().await?;
            if n.dn.exists() && self.pending_atime(n.obj()).is_some() {
                self.change_attrs(&n, &tx, |_| ()).await?;
            }
        }
        Ok(())
    }
}

/// Whether a read now changes the access time.
fn is_atime_due(how: Atime, a: &ZnodeAttrs, now: WallTime) -> bool {
    let at = |t: Times| (t[0] as i64, t[1]);
    match how {
        Atime::Off => false,
        Atime::On => true,
        Atime::Relative => {
            let fresh = at(a.atime) > at(a.mtime) && at(a.atime) > at(a.ctime);
            !fresh || now.secs.saturating_sub(a.atime[0] as i64) >= RELATIME_SECS
        }
    }
}

impl Drop for Zfs {
    fn drop(&mut self) {
        if !self.closed.get() {
            self.ds.end_use();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_times_change_as_the_property_says() {
        let day = RELATIME_SECS;
        for (how, atime, changed, now, want) in [
            (Atime::Off, 1, 5, 10, false),
            (Atime::On, 5, 1, 10, true),
            (Atime::Relative, 5, 1, 10, false),
            (Atime::Relative, 5, 5, 10, true),
            (Atime::Relative, 5, 6, 10, true),
            (Atime::Relative, 5, 1, 5 + day - 1, false),
            (Atime::Relative, 5, 1, 5 + day, true),
        ] {
            for (mtime, ctime) in [(changed, 0), (0, changed)] {
                let [atime, mtime, ctime] = [atime, mtime, ctime].map(|secs: i64| [secs as u64, 0]);
                let a = ZnodeAttrs { atime, mtime, ctime, ..ZnodeAttrs::default() };
                assert_eq!(is_atime_due(how, &a, WallTime { secs: now, nanos: 0 }), want, "{how:?} {a:?} {now}");
            }
        }
    }
}
