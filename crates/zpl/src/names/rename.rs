//! Rename, with the flags of Linux.
//!
//! Two directories are locked in the common order: an ancestor first, else by number. Their
//! relation cannot change while the rename lock is held, since only renames between directories
//! give a directory another parent. The chains of ancestors found for that also show whether a
//! directory would move into itself.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::sa::ZnodeAttrs;
use dmu::{Tx, zap};
use ondisk::zil_record::Create;
use ondisk::zpl::pflags;

use crate::fs::Zfs;
use crate::names::create::{LINK_MAX, New, check_project, too_many_links};
use crate::names::remove::{Fate, KEEPS_ENTRIES, KEEPS_NAMES};
use crate::names::{Found, entry_exists, no_entry, show};
use crate::node::{Node, check_flags, kind_of};
use crate::types::{Cred, FileKind, RenameFlags};

/// The whiteout that a rename may leave at the old name (`WHITEOUT_MODE` and `WHITEOUT_DEV` of
/// Linux).
const WHITEOUT: New<'static> =
    New { kind: FileKind::CharDev, mode: 0, rdev: 0, target: None, exclusive: true, exact: None };

/// The whiteout of a rename: whose it is, or exactly the one of a log record.
pub(crate) enum Whiteout<'a> {
    /// Made by this user.
    Of(&'a Cred),
    /// Made again in a replay.
    Exact(Create),
}

impl Whiteout<'_> {
    fn new_object(&self) -> New<'static> {
        match self {
            Whiteout::Of(_) => WHITEOUT,
            Whiteout::Exact(body) => New { exact: Some(*body), ..WHITEOUT },
        }
    }
}

/// A chain of parents longer than this is a loop.
const DEPTH_MAX: usize = 1 << 20;

/// One side of a rename: a directory, its entry, the object of the entry.
struct Side<'a> {
    dir: &'a Node,
    found: Found,
    node: Node,
    attrs: ZnodeAttrs,
    is_dir: bool,
}

fn into_itself(name: &[u8]) -> Error {
    Error::invalid(format!("directory '{}' cannot move into itself", show(name)))
}

/// Refuses to move a directory below itself, and to replace an ancestor. `above_from`, `above_to`:
/// the two directories and all their ancestors.
fn check_loops(
    source: &Side<'_>,
    target: Option<&Side<'_>>,
    (above_from, above_to): (&[ObjectId], &[ObjectId]),
    (name, new_name): (&[u8], &[u8]),
    flags: RenameFlags,
) -> Result<()> {
    if source.is_dir && above_to.contains(&source.node.obj()) {
        return Err(into_itself(name));
    }
    if let Some(t) = target
        && t.is_dir
        && above_from.contains(&t.node.obj())
    {
        return Err(if flags.exchange {
            into_itself(new_name)
        } else {
            Error::new(ErrorKind::NotEmpty, format!("directory '{}' is not empty", show(new_name)))
        });
    }
    Ok(())
}

impl Zfs {
    /// Gives the object `name` of directory `dir` the name `new_name` in `new_dir`. An existing
    /// object of that name is replaced, if `flags` allow it.
    pub async fn rename(
        &self,
        dir: ObjectId,
        name: &[u8],
        new_dir: ObjectId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.rename_as(dir, name, new_dir, new_name, flags, None).await
    }

    /// As [`Zfs::rename`], and leaves a *whiteout* at the old name (`RENAME_WHITEOUT`): a character
    /// device 0:0 of mode 0 that belongs to `cred`, by which overlayfs hides a name of a lower
    /// layer. `Invalid` with `exchange`.
    pub async fn rename_whiteout(
        &self,
        dir: ObjectId,
        name: &[u8],
        new_dir: ObjectId,
        new_name: &[u8],
        flags: RenameFlags,
        cred: &Cred,
    ) -> Result<()> {
        if flags.exchange {
            return Err(Error::invalid("a rename cannot both exchange and leave a whiteout"));
        }
        self.rename_as(dir, name, new_dir, new_name, flags, Some(Whiteout::Of(cred))).await
    }

    pub(crate) async fn rename_as(
        &self,
        dir: ObjectId,
        name: &[u8],
        new_dir: ObjectId,
        new_name: &[u8],
        flags: RenameFlags,
        whiteout: Option<Whiteout<'_>>,
    ) -> Result<()> {
        let _pass = self.enter()?;
        self.check_rename_args(name, new_name, flags)?;
        let cross = dir != new_dir;
        let topology = if cross { Some(self.rename_lock.lock().await) } else { None };
        let (from, from_attrs) = self.dir(dir).await?;
        let (to, to_attrs) = self.dir(new_dir).await?;
        // A removed directory is empty and accepts no entries; its parent may be gone too.
        if from_attrs.links == 0 || to_attrs.links == 0 {
            return Err(no_entry(name));
        }
        // Each chain from the directory itself up to the root.
        let above_from = if cross { self.ancestors(&from).await? } else { Vec::new() };
        let above_to = if cross { self.ancestors(&to).await? } else { Vec::new() };
        let from_first = above_to.contains(&dir) || (!above_from.contains(&new_dir) && dir <= new_dir);
        let (first, second) = if from_first { (&from, &to) } else { (&to, &from) };
        let names = first.st.names.lock().await;
        let names2 = if cross { Some(second.st.names.lock_same_rank().await) } else { None };

        let (from_attrs, to_attrs) = (self.live_attrs(&from).await?, self.live_attrs(&to).await?);
        let source = self.side(&from, name).await?.ok_or_else(|| no_entry(name))?;
        let mut target = self.side(&to, new_name).await?;
        if to_attrs.links == 0 || from_attrs.links == 0 {
            return Err(no_entry(new_name));
        }
        if let Some(t) = &target
            && t.node.is(&source.node)
        {
            if flags.noreplace {
                return Err(entry_exists(new_name));
            }
            // Two names of one file: no change (POSIX). One name that only changes its spelling is
            // renamed.
            if flags.exchange || cross || t.found.name != source.found.name || new_name == source.found.name {
                return Ok(());
            }
            if whiteout.is_some() {
                return Err(Error::invalid(format!("'{}' is its own new name: no whiteout can be left", show(name))));
            }
            target = None;
        }
        if flags.noreplace && target.is_some() {
            return Err(entry_exists(new_name));
        }
        if flags.exchange && target.is_none() {
            return Err(no_entry(new_name));
        }

        check_loops(&source, target.as_ref(), (&above_from, &above_to), (name, new_name), flags)?;
        check_flags(dir, &from_attrs, KEEPS_ENTRIES)?;
        check_flags(new_dir, &to_attrs, if target.is_some() { KEEPS_ENTRIES } else { pflags::IMMUTABLE })?;
        check_flags(source.node.obj(), &source.attrs, KEEPS_NAMES)?;
        check_project(&to_attrs, &source.attrs)?;
        if source.is_dir && cross && !flags.exchange && target.is_none() && to_attrs.links >= LINK_MAX {
            return Err(too_many_links(new_dir));
        }
        let (tx, gone) = match target {
            Some(t) if flags.exchange => {
                check_flags(t.node.obj(), &t.attrs, KEEPS_NAMES)?;
                check_project(&from_attrs, &t.attrs)?;
                (self.exchange(source, t, cross).await?, None)
            }
            target => {
                let whiteout = whiteout.map(|w| self.whiteout(&from, &from_attrs, &w));
                if let Some((_, a)) = &whiteout {
                    self.check_quota(a, true).await?;
                    self.check_quota(a, false).await?;
                }
                self.replace(source, &to, new_name, target, whiteout).await?
            }
        };
        // Release the locks before the wait for the disk.
        drop((topology, names, names2));
        self.finish_op(tx, new_dir).await?;
        if let Some((node, fate)) = gone {
            self.reap_unlinked(&node, fate);
        }
        Ok(())
    }

    /// Checks flags and names before anything is locked.
    fn check_rename_args(&self, name: &[u8], new_name: &[u8], flags: RenameFlags) -> Result<()> {
        if flags.noreplace && flags.exchange {
            return Err(Error::invalid("a rename cannot both exchange and refuse to replace"));
        }
        if let Some(n) = [name, new_name].into_iter().find(|n| matches!(*n, b"." | b"..")) {
            return Err(Error::invalid(format!("'{}' cannot be renamed", show(n))));
        }
        self.check_name(name)?;
        self.check_new_name(new_name)
    }

    async fn side<'a>(&self, dir: &'a Node, name: &[u8]) -> Result<Option<Side<'a>>> {
        let Some(found) = self.find(dir, name).await? else { return Ok(None) };
        let node = self.node(found.obj()).await?;
        let attrs = self.attrs(&node).await?;
        let is_dir = kind_of(node.obj(), attrs.mode)? == FileKind::Dir;
        Ok(Some(Side { dir, found, node, attrs, is_dir }))
    }

    /// The directory and all its ancestors.
    async fn ancestors(&self, dir: &Node) -> Result<Vec<ObjectId>> {
        let mut chain = vec![dir.obj()];
        let mut at = dir.clone();
        while at.obj() != self.root() {
            let parent = ObjectId(self.attrs(&at).await?.parent);
            if chain.len() >= DEPTH_MAX {
                return Err(Error::corrupt(format!("the parents of directory {} lead nowhere", dir.obj())));
            }
            chain.push(parent);
            at = self.dir(parent).await?.0;
        }
        Ok(chain)
    }

    /// Exchanges the two names.
    async fn exchange(&self, a: Side<'_>, b: Side<'_>, cross: bool) -> Result<Tx> {
        let plan = self.plan().zap(&a.dir.dn).zap(&b.dir.dn).bonus(&a.node.dn).bonus(&b.node.dn);
        let tx = plan.assign().await?;
        zap::update_u64(&b.dir.dn, &b.found.name, self.entry_for(a.attrs.mode, a.node.obj()), &tx).await?;
        zap::update_u64(&a.dir.dn, &a.found.name, self.entry_for(b.attrs.mode, b.node.obj()), &tx).await?;
        let now = self.now();
        for (side, parent) in [(&a, &b), (&b, &a)] {
            self.change_attrs(&side.node, &tx, |x| {
                x.parent = parent.dir.obj().0;
                x.ctime = now;
            })
            .await?;
            if side.dir.is(parent.dir) && side.node.is(&b.node) {
                continue;
            }
            self.change_attrs(side.dir, &tx, |x| {
                if cross {
                    x.links = x.links.saturating_add(parent.is_dir.into()).saturating_sub(side.is_dir.into());
                }
                (x.mtime, x.ctime) = (now, now);
            })
            .await?;
        }
        let objects = [a.node.obj(), b.node.obj()];
        self.log_exchange((a.dir.obj(), &a.found.name), (b.dir.obj(), &b.found.name), objects, &tx);
        Ok(tx)
    }

    /// A whiteout, and its attributes.
    fn whiteout(&self, dir: &Node, attrs: &ZnodeAttrs, whiteout: &Whiteout<'_>) -> (New<'static>, ZnodeAttrs) {
        let new = whiteout.new_object();
        let attrs = match whiteout {
            Whiteout::Of(cred) => self.new_attrs(dir, attrs, cred, &new),
            Whiteout::Exact(_) => self.new_attrs(dir, attrs, &Cred::default(), &new),
        };
        (new, attrs)
    }

    /// Gives the source the new name, in place of the target if there is one. The whiteout, if any,
    /// gets the old name.
    async fn replace(
        &self,
        source: Side<'_>,
        to: &Node,
        new_name: &[u8],
        target: Option<Side<'_>>,
        whiteout: Option<(New<'static>, ZnodeAttrs)>,
    ) -> Result<(Tx, Option<(Node, Fate)>)> {
        let cross = !source.dir.is(to);
        let target_lock = match &target {
            Some(t) => Some(t.node.st.names.lock_same_rank().await),
            None => None,
        };
        if let Some(t) = &target {
            match (source.is_dir, t.is_dir) {
                (false, true) => {
                    return Err(Error::new(ErrorKind::IsDir, format!("'{}' is a directory", show(new_name))));
                }
                (true, false) => {
                    return Err(Error::new(ErrorKind::NotDir, format!("'{}' is no directory", show(new_name))));
                }
                (true, true) => self.check_empty(&t.node).await?,
                (false, false) => {}
            }
            check_flags(t.node.obj(), &self.attrs(&t.node).await?, KEEPS_NAMES)?;
        }
        let from = source.dir;
        let plan = if whiteout.is_some() { self.plan_layout().create(1) } else { self.plan() };
        let mut plan = plan.zap(&from.dn).bonus(&from.dn).zap(&to.dn).bonus(&to.dn).bonus(&source.node.dn);
        if let Some(t) = &target {
            plan = plan.free(&t.node.dn).zap(self.unlinked_set()?);
        }
        let tx = plan.assign().await?;
        let whiteouts = u64::from(whiteout.is_some());
        let whiteout = match whiteout {
            Some((new, mut a)) => Some((self.new_object(&mut a, &new, &tx).await?, a)),
            None => None,
        };
        let clear_old_name = async || match &whiteout {
            Some((dn, a)) => {
                let entry = self.entry_for(a.mode, dn.object());
                zap::update_u64(&from.dn, &source.found.name, entry, &tx).await
            }
            None => zap::remove(&from.dn, &source.found.name, &tx).await,
        };
        let same_entry = |name: &[u8]| target.as_ref().is_some_and(|t| t.found.name == name);
        if same_entry(new_name) {
            zap::update_u64(&to.dn, new_name, self.entry_for(source.attrs.mode, source.node.obj()), &tx).await?;
            clear_old_name().await?;
        } else {
            // Where names are folded or normalised the old spelling is removed first: the new one
            // could not be added beside it.
            if let Some(t) = &target {
                zap::remove(&to.dn, &t.found.name, &tx).await?;
            }
            clear_old_name().await?;
            zap::add_u64(&to.dn, new_name, self.entry_for(source.attrs.mode, source.node.obj()), &tx).await?;
        }
        let fate = match &target {
            Some(t) => self.drop_link(&t.node, &tx).await?,
            None => Fate::Linked,
        };
        let now = self.now();
        self.change_attrs(&source.node, &tx, |a| {
            a.parent = to.obj().0;
            a.ctime = now;
        })
        .await?;
        let replaced = u64::from(target.is_some());
        let replaced_dir = u64::from(target.as_ref().is_some_and(|t| t.is_dir));
        let moved_dir = u64::from(source.is_dir);
        if cross {
            self.change_attrs(from, &tx, |a| {
                a.change_entries(1, whiteouts);
                a.change_subfolders(moved_dir, 0);
                (a.mtime, a.ctime) = (now, now);
            })
            .await?;
        }
        self.change_attrs(to, &tx, |a| {
            a.change_entries(replaced, if cross { 1 } else { whiteouts });
            a.change_subfolders(replaced_dir, if cross { moved_dir } else { 0 });
            (a.mtime, a.ctime) = (now, now);
        })
        .await?;
        let (old, new, object) = (&source.found.name, (to.obj(), new_name), source.node.obj());
        match &whiteout {
            Some((dn, a)) => self.log_whiteout((dn, a), old, new, object, &tx),
            None => self.log_rename((from.obj(), old), new, object, &tx),
        }
        if let (Some(t), true) = (&target, fate != Fate::Linked)
            && let Some(log) = self.log()
        {
            log.remove_async(t.node.obj());
        }
        drop(target_lock);
        Ok((tx, target.map(|t| (t.node, fate))))
    }
}
