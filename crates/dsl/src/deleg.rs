//! Delegated administration: the permissions that `zfs allow` grants to users (format page 24
//! section 1).
//!
//! **Words.** A *grant* is a permission held by somebody at a directory. The *key* of a holder says
//! who it is and where the grant counts: `ul$1000` is user 1000 at this very dataset, `ud$1000` at
//! what is below it; `g` stands for groups, `e` for everyone, `c-$` for what the creator of a
//! dataset below gets with it, `s-$@NAME` for the members of a set. Under the same keys with a
//! capital first letter are names of sets in place of permissions.
//!
//! **On disk** a directory has a ZAP with an object for each key, and that object is a ZAP with a
//! name for each permission. Both come with the first grant. The ZAP of a holder goes with its last
//! permission, the outer one with the dataset.
//!
//! [`is_granted`] decides, from the grants of a dataset's directory and of those above.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Dnode, Tx, zap};
use ondisk::object_type::ObjectType;
use ondisk::version;
use rt::LocalBoxFuture;

use crate::dir::Dir;
use crate::pool::DslPool;
use crate::props::{self, PropKind};
use crate::space::SpaceCheck;

/// Longest name of a set, with its `@` (`ZFS_PERMSET_MAXLEN` less its NUL).
const SET_NAME_MAX: usize = 63;

/// Permissions that are not properties, in the order of their names
/// (`module/zcommon/zfs_deleg.c`).
const PERMISSIONS: &[&str] = &[
    "allow",
    "bookmark",
    "change-key",
    "clone",
    "create",
    "destroy",
    "diff",
    "groupobjquota",
    "groupobjused",
    "groupquota",
    "groupused",
    "hold",
    "load-key",
    "mount",
    "projectobjquota",
    "projectobjused",
    "projectquota",
    "projectused",
    "promote",
    "receive",
    "receive:append",
    "release",
    "rename",
    "rollback",
    "send",
    "send:encrypted",
    "send:raw",
    "share",
    "snapshot",
    "userobjquota",
    "userobjused",
    "userprop",
    "userquota",
    "userused",
];

/// Properties that are settable at creation and shown as read-only by the table of properties.
const OF_ENCRYPTION: &[&str] = &["encryption", "keyformat", "pbkdf2iters"];

/// The grants at one directory: the permissions, or names of sets, under each key.
pub type Grants = BTreeMap<String, BTreeSet<String>>;

/// A change of what a holder has: its key, and the permissions or names of sets. None, if grants
/// are taken away: all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrantChange {
    /// The key of the holder.
    pub who: String,
    /// Which.
    pub perms: Option<Vec<String>>,
}

/// A user of the machine, with groups.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Identity {
    /// The number of the user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The other groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// The keys under which it finds permissions, or sets, that count where `letter` (`l`, `d`)
    /// says.
    fn keys(&self, letter: char, sets: bool) -> Vec<String> {
        let [u, g, e] = if sets { ['U', 'G', 'E'] } else { ['u', 'g', 'e'] };
        let mut keys = vec![format!("{u}{letter}${}", self.uid), format!("{e}{letter}$")];
        keys.extend([self.gid].iter().chain(&self.groups).map(|gid| format!("{g}{letter}${gid}")));
        keys
    }
}

/// The name under which a permission is granted: its own, or that of the property that it is
/// another name of. None if there is no such permission.
pub fn permission(name: &str) -> Option<&'static str> {
    if let Some(known) = PERMISSIONS.iter().find(|p| **p == name) {
        return Some(known);
    }
    let prop = props::find(name)?;
    let settable = !matches!(prop.kind, PropKind::ReadOnly | PropKind::Shown) || OF_ENCRYPTION.contains(&prop.name);
    (settable && prop.name != "mlslabel").then_some(prop.name)
}

/// Whether it is the name of a set of permissions, with its `@`.
fn is_set_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
    name.len() <= SET_NAME_MAX && name.strip_prefix('@').is_some_and(|rest| !rest.is_empty() && rest.chars().all(good))
}

/// Whether it is the key of a holder, and if so whether of sets in place of permissions.
fn key_of_sets(who: &str) -> Option<bool> {
    let mut letters = who.chars();
    let (kind, place) = (letters.next()?, letters.next()?);
    if letters.next()? != '$' {
        return None;
    }
    let id = letters.as_str();
    let good = match kind.to_ascii_lowercase() {
        'u' | 'g' => matches!(place, 'l' | 'd') && !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()),
        'e' => matches!(place, 'l' | 'd') && id.is_empty(),
        'c' => place == '-' && id.is_empty(),
        's' => place == '-' && is_set_name(id),
        _ => false,
    };
    good.then_some(kind.is_ascii_uppercase())
}

/// Checks a change; permissions get the names under which they are granted.
fn checked(change: GrantChange) -> Result<GrantChange> {
    let GrantChange { who, perms } = change;
    let Some(sets) = key_of_sets(&who) else {
        return Err(Error::invalid(format!("'{who}' names nobody who could have permissions")));
    };
    let Some(perms) = perms else { return Ok(GrantChange { who, perms }) };
    let mut out: Vec<String> = Vec::new();
    for perm in perms {
        let known = if sets { is_set_name(&perm).then_some(perm.as_str()) } else { permission(&perm) };
        let known = known.ok_or_else(|| Error::invalid(format!("'{perm}' is no permission")))?;
        if !out.iter().any(|p| p == known) {
            out.push(known.to_string());
        }
    }
    if out.is_empty() {
        return Err(Error::invalid("no permission is named"));
    }
    Ok(GrantChange { who, perms: Some(out) })
}

/// Whether `who` has the permission `perm` on a dataset: `levels` are the grants of its directory
/// and of those above, in this order; `of_snapshot` says that it is a snapshot, for which only
/// grants to what is below count.
///
/// A set may be defined where it is used or anywhere above; the nearest definition counts.
pub fn is_granted<'a>(
    levels: impl IntoIterator<Item = &'a Grants>,
    of_snapshot: bool,
    who: &Identity,
    perm: &str,
) -> bool {
    // The sets that it has, and whether each was found.
    let mut sets: BTreeMap<&str, bool> = BTreeMap::new();
    let mut letter = if of_snapshot { 'd' } else { 'l' };
    for grants in levels {
        for members in who.keys(letter, true).iter().filter_map(|key| grants.get(key)) {
            for set in members {
                sets.entry(set).or_insert(false);
            }
        }
        loop {
            let wanted: Vec<&str> = sets.iter().filter(|(_, found)| !**found).map(|(set, _)| *set).collect();
            let mut grown = false;
            for set in wanted {
                let own = grants.get(&format!("s-${set}"));
                if own.is_some_and(|perms| perms.contains(perm)) {
                    return true;
                }
                let members = grants.get(&format!("S-${set}"));
                for member in members.into_iter().flatten() {
                    sets.entry(member).or_insert(false);
                    grown = true;
                }
                if own.is_some() || members.is_some() {
                    sets.insert(set, true);
                }
            }
            if !grown {
                break;
            }
        }
        if who.keys(letter, false).iter().filter_map(|key| grants.get(key)).any(|perms| perms.contains(perm)) {
            return true;
        }
        letter = 'd';
    }
    false
}

/// What the creator of a dataset gets at it from the directories above, whose grants these are, in
/// any order.
pub fn at_creation<'a>(above: impl IntoIterator<Item = &'a Grants>, creator: u32) -> Grants {
    let mut out = Grants::new();
    for grants in above {
        for (from, to) in [("c-$", "ul$"), ("C-$", "Ul$")] {
            if let Some(perms) = grants.get(from) {
                out.entry(format!("{to}{creator}")).or_default().extend(perms.iter().cloned());
            }
        }
    }
    out
}

impl DslPool {
    /// A ZAP of permissions.
    async fn perms_zap(&self, object: u64) -> Result<Dnode> {
        let dn = self.mos().hold(ObjectId(object)).await?;
        if dn.otype() != ObjectType::DSL_PERMS {
            return Err(Error::corrupt(format!("object {object} should have permissions, and is of another type")));
        }
        Ok(dn)
    }

    /// The ZAP of a holder; none if it has no permissions.
    async fn holder(&self, outer: &Dnode, who: &str) -> Result<Option<Dnode>> {
        match zap::lookup_u64(outer, who.as_bytes()).await? {
            Some(object) => self.perms_zap(object).await.map(Some),
            None => Ok(None),
        }
    }

    /// What is granted at a directory.
    pub async fn grants(&self, dir: &Dir) -> Result<Grants> {
        let object = dir.phys().deleg_zapobj;
        let mut out = Grants::new();
        if object == 0 {
            return Ok(out);
        }
        let at = |e: Error| e.at(format!("permissions on '{}'", dir.full_name()));
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let outer = self.perms_zap(object).await.map_err(at)?;
        for entry in zap::list(&outer).await.map_err(at)? {
            let holder = entry.value.as_u64().ok_or_else(|| Error::corrupt("a holder has no object")).map_err(at)?;
            let holder = self.perms_zap(holder).await.map_err(at)?;
            let perms = zap::list(&holder).await.map_err(at)?;
            out.insert(text(&entry.name), perms.iter().map(|p| text(&p.name)).collect());
        }
        Ok(out)
    }

    /// What is granted at a directory and at those above it, in this order.
    pub async fn grants_upward(&self, dir: &Rc<Dir>) -> Result<Vec<Grants>> {
        let mut out = Vec::new();
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            out.push(self.grants(&dir).await?);
            at = dir.parent();
        }
        Ok(out)
    }

    /// Grants permissions at a file system or volume: all of them, or none after an error.
    pub async fn grant(self: &Rc<Self>, name: &str, changes: Vec<GrantChange>) -> Result<()> {
        let changes = changes.into_iter().map(checked).collect::<Result<Vec<_>>>()?;
        if changes.iter().any(|c| c.perms.is_none()) {
            return Err(Error::invalid("no permission is named"));
        }
        let name = name.to_string();
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (name, changes) = (name.clone(), changes.clone());
            Box::pin(async move {
                let dir = pool.find_dir(&name)?;
                pool.check_permissions_kept()?;
                // What is damaged is found before the first change.
                pool.grants(&dir).await?;
                pool.check_space(SpaceCheck::Reserved, changes.len() as u64)?;
                let done = async {
                    for GrantChange { who, perms } in &changes {
                        let perms = perms.as_deref().unwrap_or_default();
                        pool.add_grants(&dir, who, perms, &tx).await?;
                        perms.iter().for_each(|p| pool.log_grant("permission update", &dir, format!("{who} {p}"), &tx));
                    }
                    Ok(())
                };
                pool.fail_txg_on_error(done.await)
            })
        })
        .await
    }

    /// Takes permissions away at a file system or volume, and with `recursive` at all below it.
    /// What is not granted there is passed over.
    pub async fn revoke(self: &Rc<Self>, name: &str, changes: Vec<GrantChange>, recursive: bool) -> Result<()> {
        let changes = changes.into_iter().map(checked).collect::<Result<Vec<_>>>()?;
        let name = name.to_string();
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (name, changes) = (name.clone(), changes.clone());
            Box::pin(async move {
                let top = pool.find_dir(&name)?;
                pool.check_permissions_kept()?;
                let mut dirs = if recursive { top.subtree() } else { vec![top] };
                dirs.retain(|dir| dir.phys().deleg_zapobj != 0);
                for dir in &dirs {
                    pool.grants(dir).await?;
                }
                pool.check_space(SpaceCheck::Reserved, (changes.len() * dirs.len()) as u64)?;
                let done = async {
                    for dir in &dirs {
                        for change in &changes {
                            pool.remove_grants(dir, change, &tx).await?;
                        }
                    }
                    Ok(())
                };
                pool.fail_txg_on_error(done.await)
            })
        })
        .await
    }

    /// Fails for a pool that is too old to keep permissions.
    fn check_permissions_kept(&self) -> Result<()> {
        self.check_version(version::PERMISSIONS, "pool must be upgraded to use 'allow' or 'unallow'")
    }

    fn log_grant(&self, name: &'static str, dir: &Dir, text: String, tx: &Tx) {
        if let Some(head) = dir.head() {
            self.core().log_internal_ds(name, (dir.full_name(), head.object), text, tx);
        }
    }

    /// Adds to what a holder has (syncing context).
    async fn add_grants(&self, dir: &Rc<Dir>, who: &str, perms: &[String], tx: &Tx) -> Result<()> {
        let outer = match dir.phys().deleg_zapobj {
            0 => {
                let new = zap::create(self.mos(), ObjectType::DSL_PERMS, 0, tx).await?;
                dir.change(|p| p.deleg_zapobj = new.object().0);
                new
            }
            object => self.perms_zap(object).await?,
        };
        let holder = match self.holder(&outer, who).await? {
            Some(holder) => holder,
            None => {
                let new = zap::create(self.mos(), ObjectType::DSL_PERMS, 0, tx).await?;
                zap::add_u64(&outer, who.as_bytes(), new.object().0, tx).await?;
                new
            }
        };
        for perm in perms {
            zap::update_u64(&holder, perm.as_bytes(), 0, tx).await?;
        }
        Ok(())
    }

    /// Makes a change to what a holder has at a directory with grants (syncing context).
    async fn remove_grants(&self, dir: &Rc<Dir>, change: &GrantChange, tx: &Tx) -> Result<()> {
        let GrantChange { who, perms } = change;
        let outer = self.perms_zap(dir.phys().deleg_zapobj).await?;
        let holder = self.holder(&outer, who).await?;
        let Some(perms) = perms else {
            if let Some(holder) = holder {
                self.remove_holder(&outer, who, holder, tx).await?;
            }
            self.log_grant("permission who remove", dir, who.clone(), tx);
            return Ok(());
        };
        let Some(holder) = holder else { return Ok(()) };
        for perm in perms {
            match zap::remove(&holder, perm.as_bytes(), tx).await {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            self.log_grant("permission remove", dir, format!("{who} {perm}"), tx);
        }
        if zap::count(&holder).await? == 0 {
            self.remove_holder(&outer, who, holder, tx).await?;
        }
        Ok(())
    }

    async fn remove_holder(&self, outer: &Dnode, who: &str, holder: Dnode, tx: &Tx) -> Result<()> {
        let object = holder.object();
        drop(holder);
        zap::remove(outer, who.as_bytes(), tx).await?;
        self.mos().free(object, tx).await
    }

    /// What the creator of a new dataset below `parent` gets at it.
    pub(crate) async fn grants_at_creation(&self, parent: &Rc<Dir>, creator: u32) -> Result<Grants> {
        Ok(at_creation(&self.grants_upward(parent).await?, creator))
    }

    /// Grants at a new directory (syncing context). History has no line of it, as in OpenZFS.
    pub(crate) async fn give_grants(&self, dir: &Rc<Dir>, grants: Grants, tx: &Tx) -> Result<()> {
        for (who, perms) in grants {
            self.add_grants(dir, &who, &perms.into_iter().collect::<Vec<_>>(), tx).await?;
        }
        Ok(())
    }

    /// Frees the permissions of a directory that goes (syncing context). Objects that damaged
    /// permissions name, and that have none, stay.
    pub(crate) async fn drop_grants(&self, dir: &Dir, tx: &Tx) -> Result<()> {
        let outer = dir.phys().deleg_zapobj;
        if outer == 0 {
            return Ok(());
        }
        let mut objects = BTreeSet::from([outer]);
        if let Ok(dn) = self.perms_zap(outer).await {
            objects.extend(zap::list(&dn).await?.iter().filter_map(|e| e.value.as_u64()));
        }
        for object in objects {
            if self.perms_zap(object).await.is_ok() {
                self.mos().free(ObjectId(object), tx).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOE: u32 = 1000;

    fn grants(list: &[(&str, &str)]) -> Grants {
        list.iter().map(|(who, perms)| (who.to_string(), perms.split(',').map(str::to_string).collect())).collect()
    }

    fn joe() -> Identity {
        Identity { uid: JOE, gid: 100, groups: vec![7, 8] }
    }

    #[test]
    fn grants_count_where_they_say() {
        // Grants of the dataset, of its parent and of the pool's root, and whether user 1000 has it
        // on the dataset and on its snapshots.
        type Row<'a> = ([&'a [(&'a str, &'a str)]; 3], bool, bool);
        let table: &[Row<'_>] = &[
            ([&[], &[], &[]], false, false),
            ([&[("ul$1000", "send")], &[], &[]], true, false),
            ([&[("ud$1000", "send")], &[], &[]], false, true),
            ([&[], &[("ul$1000", "send")], &[]], false, false),
            ([&[], &[("ud$1000", "send")], &[]], true, true),
            ([&[], &[], &[("ud$1000", "send")]], true, true),
            ([&[("ul$100", "send")], &[], &[]], false, false),
            ([&[("ul$1000", "receive")], &[], &[]], false, false),
            // Groups, the primary one and another, and everyone.
            ([&[("gl$100", "send")], &[], &[]], true, false),
            ([&[("gl$8", "send")], &[], &[]], true, false),
            ([&[], &[], &[("gd$7", "send")]], true, true),
            ([&[("gl$1000", "send")], &[], &[]], false, false),
            ([&[("el$", "send")], &[], &[]], true, false),
            ([&[], &[("ed$", "send")], &[]], true, true),
            // What is for creators is not theirs yet.
            ([&[("c-$", "send"), ("s-$@a", "send")], &[], &[]], false, false),
            // A set, defined where it is used, above, and not below.
            ([&[("Ul$1000", "@a"), ("s-$@a", "send")], &[], &[]], true, false),
            ([&[("Ul$1000", "@a")], &[], &[("s-$@a", "send")]], true, false),
            ([&[("s-$@a", "send")], &[("Ud$1000", "@a")], &[]], false, false),
            ([&[("Gl$7", "@a")], &[("s-$@a", "send")], &[]], true, false),
            ([&[("El$", "@a")], &[("s-$@a", "send")], &[]], true, false),
            ([&[("Ed$", "@a")], &[("s-$@a", "send")], &[]], false, true),
            // The nearest definition counts.
            ([&[("Ul$1000", "@a")], &[("s-$@a", "receive")], &[("s-$@a", "send")]], false, false),
            // Sets of sets, in circles too, and in either order of their names.
            ([&[("Ul$1000", "@a"), ("S-$@a", "@b"), ("s-$@b", "send")], &[], &[]], true, false),
            ([&[("Ul$1000", "@b"), ("S-$@b", "@a"), ("s-$@a", "send")], &[], &[]], true, false),
            ([&[("Ul$1000", "@a"), ("S-$@a", "@b"), ("S-$@b", "@a")], &[], &[]], false, false),
            ([&[("Ul$1000", "@a"), ("S-$@a", "@b,@a")], &[("s-$@b", "send")], &[]], true, false),
            ([&[("Ul$1000", "@a")], &[("S-$@a", "@b")], &[("s-$@b", "send")]], true, false),
            // A set that is found, if with other sets only, is not looked for above.
            ([&[("Ul$1000", "@a")], &[("S-$@a", "@b")], &[("s-$@a", "send")]], false, false),
        ];
        for (levels, dataset, snapshot) in table {
            let levels: Vec<Grants> = levels.iter().map(|list| grants(list)).collect();
            assert_eq!(is_granted(&levels, false, &joe(), "send"), *dataset, "{levels:?}");
            assert_eq!(is_granted(&levels, true, &joe(), "send"), *snapshot, "snapshot: {levels:?}");
        }
    }

    #[test]
    fn creators_get_what_all_above_say() {
        let above = [grants(&[("c-$", "destroy,mount"), ("ul$1", "send")]), grants(&[("c-$", "send"), ("C-$", "@a")])];
        assert_eq!(at_creation(&above, JOE), grants(&[("Ul$1000", "@a"), ("ul$1000", "destroy,mount,send")]));
        assert!(at_creation(&above[..0], JOE).is_empty());
    }

    #[test]
    fn names_are_checked() {
        for (name, want) in [
            ("create", Some("create")),
            ("receive:append", Some("receive:append")),
            ("compress", Some("compression")),
            ("keyformat", Some("keyformat")),
            ("utf8only", Some("utf8only")),
            ("defaultuserquota", Some("defaultuserquota")),
            ("mlslabel", None),
            ("used", None),
            ("keystatus", None),
            ("@a", None),
            ("userquota@1", None),
            ("", None),
        ] {
            assert_eq!(permission(name), want, "{name}");
        }
        assert!(PERMISSIONS.is_sorted());
        for (who, sets) in [
            ("ul$0", Some(false)),
            ("Gd$4294967295", Some(true)),
            ("ed$", Some(false)),
            ("C-$", Some(true)),
            ("s-$@a b", Some(false)),
            ("u-$0", None),
            ("ul$", None),
            ("ul$-1", None),
            ("ul#1", None),
            ("el$1", None),
            ("cl$", None),
            ("s-$a", None),
            ("s-$@", None),
            ("s-$@a/b", None),
            ("x-$", None),
            ("", None),
            ("ü$", None),
        ] {
            assert_eq!(key_of_sets(who), sets, "{who}");
        }
        let (longest, longer) = (format!("@{}", "a".repeat(62)), format!("@{}", "a".repeat(63)));
        assert!(is_set_name(&longest) && !is_set_name(&longer));
        let change = |who: &str, perms: &[&str]| {
            let perms = Some(perms.iter().map(|p| p.to_string()).collect());
            checked(GrantChange { who: who.to_string(), perms }).map(|c| c.perms.unwrap_or_default().join(","))
        };
        assert_eq!(change("ul$1", &["compress", "send", "compression"]).ok().as_deref(), Some("compression,send"));
        assert_eq!(change("Ul$1", &["@a"]).ok().as_deref(), Some("@a"));
        for (who, perms) in
            [("ul$1", &["@a"][..]), ("Ul$1", &["send"]), ("ul$1", &["fly"]), ("ul$1", &[]), ("u", &["send"])]
        {
            assert!(change(who, perms).is_err(), "{who} {perms:?}");
        }
    }
}
