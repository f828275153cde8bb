//! The permissions that requests need of users who do not own the daemon ([`Rights::Delegable`]).
//!
//! A request names its needs from its arguments alone ([`Request::needs`]); the engine of the pool
//! knows what they come to, and checks them before the work (`crate::fs::rights`). A request
//! without needs is refused. Such a user's commands mount nothing that was not mounted before, and
//! nothing in another place: the daemon is root, and what it mounts for others could be anywhere
//! and hold anything. OpenZFS on Linux leaves mounting to root as well.
//!
//! [`Rights::Delegable`]: super::Rights::Delegable
//! [`Request::needs`]: super::Request::needs

use base::{Error, ErrorKind, Result};
use dsl::deleg::{Identity, permission};
use dsl::props;
use dsl::send::SendOpts;
use ondisk::stream::Token;

use super::{AnyRequest, Rights, pool_part};
use crate::fs::owners::OwnerProp;
use crate::fs::snaps::DestroyHow;
use crate::pool_set::PoolSet;

/// A permission, or several, that a request needs.
#[derive(Clone, Debug)]
pub enum Need {
    /// No permission is enough.
    Owner,
    /// All of these on a dataset or snapshot, or on the file system of a bookmark.
    On(String, Vec<String>),
    /// One of these.
    Any(String, Vec<String>),
    /// All of these on a dataset and on all below it; with an `@` at the end on their snapshots.
    Below(String, Vec<String>),
    /// To make a dataset, and those above it that are missing, and these on the new one.
    New(String, Vec<String>),
    /// To move a dataset, the first, to the second name.
    Move(String, String),
    /// To send a snapshot or file system.
    Send {
        /// Its name.
        name: String,
        /// As it is stored, so that nothing is decrypted.
        raw: bool,
        /// And those of that name below.
        below: bool,
    },
    /// To send what a token means, which is not what it names but what it was made of.
    SendByToken(String, SendOpts),
    /// To receive into this target, as far as its name tells: the stream says the rest.
    Receive(String),
    /// To destroy what this name and these letters mean.
    Destroy(String, DestroyHow),
    /// To roll back to a snapshot, with what these letters destroy.
    Rollback(String, DestroyHow),
    /// To promote a clone.
    Promote(String),
    /// That another snapshot of a dataset, and with `below` of each one below it, is within the
    /// limits.
    SnapshotsFit {
        /// Its name.
        name: String,
        /// And those below.
        below: bool,
    },
    /// That a file system is mounted.
    Mounted(String),
    /// That nothing is mounted of a dataset and of those below.
    Unmounted(String),
}

impl Need {
    /// All of these on a dataset.
    pub(crate) fn on(name: &str, perms: &[&str]) -> Need {
        Need::On(name.to_string(), perms.iter().map(|p| p.to_string()).collect())
    }

    /// The same, with `recursive` on those below as well.
    pub(super) fn on_or_below(name: &str, perms: &[&str], recursive: bool) -> Need {
        match Need::on(name, perms) {
            Need::On(name, perms) if recursive => Need::Below(name, perms),
            need => need,
        }
    }

    /// A name in the pool that it is about; empty if there is none.
    fn name(&self) -> String {
        let name = match self {
            Need::Owner => "",
            Need::SendByToken(text, _) => return Token::parse(text).map(|token| token.to_name).unwrap_or_default(),
            Need::On(name, _)
            | Need::Any(name, _)
            | Need::Below(name, _)
            | Need::New(name, _)
            | Need::Move(name, _)
            | Need::Send { name, .. }
            | Need::SnapshotsFit { name, .. }
            | Need::Receive(name)
            | Need::Destroy(name, _)
            | Need::Rollback(name, _)
            | Need::Promote(name)
            | Need::Mounted(name)
            | Need::Unmounted(name) => name,
        };
        name.to_string()
    }
}

/// Only the owner may do it.
pub fn denied() -> Error {
    Error::new(ErrorKind::Denied, "permission denied: only the owner of the daemon may do this")
}

/// Only the owner may do it, and who has a permission.
pub(crate) fn denied_for(perm: &str, name: &str) -> Error {
    let why = format!(
        "permission denied: only the owner of the daemon may do this, and who has the permission '{perm}' on '{name}' ('zfs allow')"
    );
    Error::new(ErrorKind::Denied, why)
}

/// The permission to set a property.
pub(crate) fn to_set(prop: &str) -> &str {
    if let Some(of) = OwnerProp::parse(prop) {
        return of.prefix.trim_end_matches('@');
    }
    match permission(prop) {
        Some(known) => known,
        None if props::is_user_prop(prop) => "userprop",
        // Nobody has it.
        None => prop,
    }
}

/// The permissions to set properties.
pub(super) fn to_set_all(props: &[(String, String)]) -> Vec<String> {
    let mut out: Vec<String> = props.iter().map(|(name, _)| to_set(name).to_string()).collect();
    out.sort();
    out.dedup();
    out
}

/// Whether a change of the property mounts or unmounts.
pub(crate) fn moves_mounts(prop: &str) -> bool {
    props::find(prop).is_some_and(|p| matches!(p.name, "mountpoint" | "canmount"))
}

/// Fails unless a user who does not own the daemon may make a request.
pub(super) fn check(pools: &PoolSet, request: &dyn AnyRequest, who: &Identity) -> Result<()> {
    let needs = match request.rights() {
        Rights::Anyone => return Ok(()),
        Rights::Owner => Vec::new(),
        Rights::Delegable => request.needs(who),
    };
    if needs.is_empty() {
        return Err(denied());
    }
    for need in needs {
        let name = need.name();
        if name.is_empty() {
            return Err(denied());
        }
        let running = pools.pool_of(if name.starts_with('/') { &name } else { pool_part(&name) });
        let running = running.map_err(|_| denied())?;
        let who = who.clone();
        running.thread.with_pool(move |e| async move { e.check_need(&who, &need).await })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_have_permissions() {
        for (prop, perm) in [
            ("compress", "compression"),
            ("quota", "quota"),
            ("userquota@7", "userquota"),
            ("projectobjquota@7", "projectobjquota"),
            ("org:note", "userprop"),
            ("keylocation", "keylocation"),
            ("nonsense", "nonsense"),
            ("used", "used"),
            ("mlslabel", "mlslabel"),
        ] {
            assert_eq!(to_set(prop), perm);
        }
        assert!(moves_mounts("canmount") && moves_mounts("mountpoint") && !moves_mounts("overlay"));
        let all = to_set_all(&[("a:b".into(), "1".into()), ("c:d".into(), "2".into()), ("atime".into(), "off".into())]);
        assert_eq!(all, ["atime", "userprop"]);
        assert!(denied_for("send", "tank").to_string().starts_with(&denied().to_string()));
    }
}
