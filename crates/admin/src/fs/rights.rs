//! What users may do who do not own the daemon: the permissions that requests need
//! ([`Need`]), found on the pool's engine thread (format page 24 section 1).
//!
//! As in OpenZFS the check comes before the work, and a command that does several things needs all
//! permissions before it does the first one. A dataset that does not exist has those that it would
//! have if this user made it.

use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use dsl::Dataset;
use dsl::deleg::{Grants, Identity, at_creation, is_granted};
use dsl::dir::Dir;
use dsl::limits::Counted;
use ondisk::stream::Token;

use crate::engine::{PoolEngine, Progress};
use crate::fs::snaps::DestroyHow;
use crate::request::{Need, denied, denied_for};

/// The file system or volume in the name of a snapshot or bookmark.
fn head_of(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or(name)
}

/// The name of a dataset's parent; its own for a pool.
fn parent_of(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(parent, _)| parent)
}

/// A directory and those below it that users see.
fn visible(dir: &Rc<Dir>) -> Vec<Rc<Dir>> {
    dir.subtree().into_iter().filter(|d| !d.is_hidden()).collect()
}

impl PoolEngine {
    /// The grants that count for a dataset or snapshot, from its own directory upward.
    async fn grants_for(&self, who: &Identity, name: &str) -> Result<Vec<Grants>> {
        let dsl = self.pool.dsl();
        let mut missing = false;
        let mut at = head_of(name);
        let dir = loop {
            match dsl.find_dir(at) {
                Ok(dir) => break dir,
                Err(e) if parent_of(at) == at => return Err(e),
                Err(_) => (at, missing) = (parent_of(at), true),
            }
        };
        let mut levels = dsl.grants_upward(&dir).await?;
        if missing {
            let own = at_creation(&levels, who.uid);
            levels.insert(0, own);
        }
        Ok(levels)
    }

    /// Whether a user has a permission on a dataset or snapshot, or on the file system of a
    /// bookmark.
    pub(crate) async fn has_permission(&self, who: &Identity, name: &str, perm: &str) -> Result<bool> {
        Ok(self.missing_permission(who, name, &[perm]).await?.is_none())
    }

    /// The first of these permissions that a user does not have.
    async fn missing_permission<'a>(&self, who: &Identity, name: &str, perms: &[&'a str]) -> Result<Option<&'a str>> {
        if self.props.borrow().get("delegation") == Some(&0) {
            return Ok(perms.first().copied());
        }
        let levels = self.grants_for(who, name).await?;
        Ok(perms.iter().copied().find(|perm| !is_granted(&levels, name.contains('@'), who, perm)))
    }

    /// Fails unless a user has all of these permissions on a dataset.
    pub(crate) async fn need_all(&self, who: &Identity, name: &str, perms: &[&str]) -> Result<()> {
        match self.missing_permission(who, name, perms).await? {
            Some(perm) => Err(denied_for(perm, head_of(name))),
            None => Ok(()),
        }
    }

    /// Fails unless a user may make the dataset `name`, and those above it that are missing.
    pub(crate) async fn need_new(&self, who: &Identity, name: &str) -> Result<()> {
        let (dir, more) = self.need_place(who, name).await?;
        self.need_room(who, Counted::FileSystems, &dir, more).await
    }

    /// Fails unless a user may make these, limits aside. The directory that they would be in, and
    /// how many they are.
    async fn need_place(&self, who: &Identity, name: &str) -> Result<(Rc<Dir>, u64)> {
        let (mut at, mut more) = (name, 0);
        loop {
            (at, more) = (parent_of(at), more + 1);
            self.need_all(who, at, &["create", "mount"]).await?;
            if let Ok(dir) = self.pool.dsl().find_dir(at) {
                return Ok((dir, more));
            }
        }
    }

    /// Fails unless a user may move the dataset `from` to the name `to`.
    async fn need_move(&self, who: &Identity, from: &str, to: &str) -> Result<()> {
        let (parent, more) = self.need_place(who, to).await?;
        let dsl = self.pool.dsl();
        let dir = dsl.find_dir(from)?;
        let counts = dsl.counts(&dir).await?;
        let [below, snaps] = counts.unwrap_or_else(|| [visible(&dir).len() as u64 - 1, 0]);
        for (what, n) in [(Counted::FileSystems, below.saturating_add(more)), (Counted::Snapshots, snaps)] {
            // What is above both counts it already.
            let is_free = async |above: &Rc<Dir>| {
                let name = above.full_name();
                let is_above = from.strip_prefix(&name).is_some_and(|rest| rest.starts_with('/'));
                Ok(is_above || self.has_permission(who, &name, what.limit()).await?)
            };
            dsl.check_limit(what, &parent, n, is_free).await?;
        }
        Ok(())
    }

    /// Fails unless so many more are within the limits of a directory and those above it. A limit
    /// that the user may change does not bind.
    pub(crate) async fn need_room(&self, who: &Identity, what: Counted, dir: &Rc<Dir>, more: u64) -> Result<()> {
        let is_free = async |dir: &Rc<Dir>| self.has_permission(who, &dir.full_name(), what.limit()).await;
        self.pool.dsl().check_limit(what, dir, more, is_free).await
    }

    /// Fails unless the snapshots that a clone gets when it is promoted are within the limits.
    async fn need_room_to_promote(&self, who: &Identity, clone: &Dataset, origin: &Dataset) -> Result<()> {
        let dsl = self.pool.dsl();
        let from = head_of(&origin.name()).to_string();
        let snaps = dsl.snapshots(&*self.find(&from)?).await?;
        let moved = snaps.iter().filter(|s| s.phys().creation_txg <= origin.phys().creation_txg).count();
        // What is above both counts them already.
        let is_free = async |above: &Rc<Dir>| {
            let name = above.full_name();
            let is_above = from.strip_prefix(&name).is_some_and(|rest| rest.starts_with('/'));
            Ok(is_above || self.has_permission(who, &name, Counted::Snapshots.limit()).await?)
        };
        dsl.check_limit(Counted::Snapshots, &clone.dir(), moved as u64, is_free).await
    }

    /// Fails unless a user may send a snapshot or file system.
    async fn need_send(&self, who: &Identity, name: &str, raw: bool) -> Result<()> {
        let encrypted = self.pool.dsl().find_dir(head_of(name)).is_ok_and(|dir| dir.is_encrypted());
        let enough: &[&str] = match (raw, encrypted) {
            (false, _) => &["send"],
            (true, false) => &["send", "send:raw"],
            (true, true) => &["send", "send:raw", "send:encrypted"],
        };
        for perm in enough {
            if self.has_permission(who, name, perm).await? {
                return Ok(());
            }
        }
        Err(denied_for("send", head_of(name)))
    }

    /// What has the name of a dataset or snapshot below it.
    fn below(&self, name: &str) -> Vec<String> {
        let (fs, tail) = name.split_at(head_of(name).len());
        let within = format!("{fs}/");
        let all = self.pool.dsl().all();
        all.iter().map(|d| d.name()).filter(|n| n.starts_with(&within)).map(|n| format!("{n}{tail}")).collect()
    }

    /// Fails unless a user may receive into the file system `fs`, which may not exist yet.
    pub(crate) async fn need_receive(&self, who: &Identity, fs: &str, force: bool) -> Result<()> {
        let exists = self.pool.dsl().find_dir(fs).is_ok();
        let on = if exists { fs } else { parent_of(fs) };
        let appends = !force && self.has_permission(who, on, "receive:append").await?;
        if !appends {
            self.need_all(who, on, &["receive"]).await?;
        }
        if exists {
            self.need_all(who, on, &["mount", "create"]).await?
        } else {
            self.need_new(who, fs).await?
        }
        match self.pool.dsl().find_dir(on) {
            Ok(dir) => self.need_room(who, Counted::Snapshots, &dir, 1).await,
            Err(_) => Ok(()),
        }
    }

    /// Fails unless a user may receive anything into a target or below it.
    async fn need_some_receive(&self, who: &Identity, target: &str) -> Result<()> {
        let fs = head_of(target);
        for name in [fs.to_string(), parent_of(fs).to_string(), format!("{fs}@")] {
            for perm in ["receive", "receive:append"] {
                if self.has_permission(who, &name, perm).await? {
                    return Ok(());
                }
            }
        }
        Err(denied_for("receive", fs))
    }

    /// Fails unless a user may destroy these.
    async fn need_destroy(&self, who: &Identity, names: &[String]) -> Result<()> {
        for name in names {
            let perms: &[&str] = if name.contains('#') { &["destroy"] } else { &["destroy", "mount"] };
            self.need_all(who, name, perms).await?;
        }
        Ok(())
    }

    /// Fails unless a user has what is needed.
    pub(crate) async fn check_need(&self, who: &Identity, need: &Need) -> Result<()> {
        fn words(perms: &[String]) -> Vec<&str> {
            perms.iter().map(String::as_str).collect()
        }
        match need {
            Need::Owner => Err(denied()),
            Need::On(name, perms) => self.need_all(who, &self.resolve(name)?, &words(perms)).await,
            Need::Any(name, perms) => {
                let name = self.resolve(name)?;
                for perm in perms {
                    if self.has_permission(who, &name, perm).await? {
                        return Ok(());
                    }
                }
                Err(perms.first().map_or_else(denied, |perm| denied_for(perm, head_of(&name))))
            }
            Need::Below(name, perms) => {
                let name = self.resolve(name)?;
                let perms = words(perms);
                self.need_all(who, &name, &perms).await?;
                for name in self.below(&name) {
                    self.need_all(who, &name, &perms).await?;
                }
                Ok(())
            }
            Need::New(name, props) => {
                self.need_new(who, name).await?;
                self.need_all(who, name, &words(props)).await
            }
            Need::Move(from, to) => self.need_move(who, &self.resolve(from)?, to).await,
            Need::Send { name, raw, below } => {
                self.need_send(who, name, *raw).await?;
                for name in self.below(name).iter().filter(|_| *below) {
                    self.need_send(who, name, *raw).await?;
                }
                Ok(())
            }
            Need::SendByToken(text, opts) => {
                let token = Token::parse(text)?;
                let found = self.pool.dsl().find_token(&token, *opts).await;
                let found = found.map_err(|e| if e.kind() == ErrorKind::NotFound { denied() } else { e })?;
                self.need_send(who, &found.name, opts.raw || token.raw_ok).await
            }
            Need::Receive(target) => self.need_some_receive(who, target).await,
            Need::Destroy(name, how) => {
                // Before the list is made, whose errors say more than that.
                self.need_destroy(who, std::slice::from_ref(name)).await?;
                if name.contains('#') {
                    return Ok(());
                }
                let trial = DestroyHow { dry_run: true, ..*how };
                let planned = self.destroy(name, trial, &Progress::default()).await?;
                self.need_destroy(who, &planned.names).await
            }
            Need::Rollback(name, how) => {
                self.need_all(who, head_of(name), &["rollback"]).await?;
                self.need_destroy(who, &self.rolled_over(name, *how).await?).await
            }
            Need::Promote(name) => {
                let name = self.resolve(name)?;
                self.need_all(who, &name, &["promote", "mount"]).await?;
                let ds = self.find(&name)?;
                let Some(origin) = self.pool.dsl().origin_of(&ds).await? else { return Ok(()) };
                self.need_all(who, &origin.name(), &["promote"]).await?;
                self.need_room_to_promote(who, &ds, &origin).await
            }
            Need::SnapshotsFit { name, below } => {
                let dir = self.pool.dsl().find_dir(&self.resolve(name)?)?;
                let dirs = if *below { visible(&dir) } else { vec![dir] };
                for dir in dirs {
                    let more = if *below { visible(&dir).len() as u64 } else { 1 };
                    self.need_room(who, Counted::Snapshots, &dir, more).await?;
                }
                Ok(())
            }
            Need::Mounted(name) => match self.mounts.path_of(&self.resolve(name)?) {
                Some(_) => Ok(()),
                None => Err(Error::new(
                    ErrorKind::Denied,
                    format!("permission denied: only the owner of the daemon mounts, and '{name}' is not mounted"),
                )),
            },
            Need::Unmounted(name) => {
                let name = self.resolve(name)?;
                let within = format!("{name}/");
                let mut mounted = self.mounts.list().into_iter().map(|(n, _)| n);
                match mounted.find(|n| *n == name || n.starts_with(&within)) {
                    Some(fs) => Err(Error::new(
                        ErrorKind::Denied,
                        format!("permission denied: only the owner of the daemon moves mounts, and '{fs}' is mounted"),
                    )),
                    None => Ok(()),
                }
            }
        }
    }
}
