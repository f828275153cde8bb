//! What users, groups and projects use and may use: properties such as `userquota@1000`, and the
//! lists of `zfs userspace`.
//!
//! Commands turn names of users and groups into numbers, and numbers into names, since those are
//! the names of the machine and the user that the command runs on; here are numbers only.

use base::{Error, Result};
use dsl::Dataset;
use dsl::props::DatasetKind;
use ondisk::zpl::master_key::DEFAULT_QUOTAS;
use serde::{Deserialize, Serialize};
use zpl::{OwnerKind, Zfs, check_limit, owner_use, owner_uses};

use crate::engine::PoolEngine;
use crate::view::{PropView, fmt};

/// Users, groups or projects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Owners {
    /// Users.
    Users,
    /// Groups.
    Groups,
    /// Projects.
    Projects,
}

impl Owners {
    fn kind(self) -> OwnerKind {
        match self {
            Owners::Users => OwnerKind::User,
            Owners::Groups => OwnerKind::Group,
            Owners::Projects => OwnerKind::Project,
        }
    }
}

/// What a property says of an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Bytes in use.
    Used,
    /// The limit of bytes.
    Quota,
    /// Objects in use.
    ObjUsed,
    /// The limit of objects.
    ObjQuota,
}

/// The beginnings of properties: whose they are, and what they say.
const PREFIXES: [(&str, Owners, What); 12] = [
    ("userused@", Owners::Users, What::Used),
    ("userquota@", Owners::Users, What::Quota),
    ("groupused@", Owners::Groups, What::Used),
    ("groupquota@", Owners::Groups, What::Quota),
    ("userobjused@", Owners::Users, What::ObjUsed),
    ("userobjquota@", Owners::Users, What::ObjQuota),
    ("groupobjused@", Owners::Groups, What::ObjUsed),
    ("groupobjquota@", Owners::Groups, What::ObjQuota),
    ("projectused@", Owners::Projects, What::Used),
    ("projectquota@", Owners::Projects, What::Quota),
    ("projectobjused@", Owners::Projects, What::ObjUsed),
    ("projectobjquota@", Owners::Projects, What::ObjQuota),
];

/// The name of a property of one owner, such as `userquota@joe`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnerProp<'a> {
    /// Its beginning, up to and with the `@`.
    pub prefix: &'static str,
    /// Whose it is.
    pub owners: Owners,
    /// What it says.
    pub what: What,
    /// Which of them, by name or number.
    pub who: &'a str,
}

impl OwnerProp<'_> {
    /// The property of that name; none if it is no property of an owner.
    pub fn parse(name: &str) -> Option<OwnerProp<'_>> {
        let (prefix, owners, what) = PREFIXES.into_iter().find(|(p, _, _)| name.starts_with(p))?;
        Some(OwnerProp { prefix, owners, what, who: &name[prefix.len()..] })
    }

    /// The number of the owner.
    pub fn id(&self) -> Option<u64> {
        self.who.parse::<u32>().ok().map(u64::from)
    }

    /// Whether it can be set.
    pub fn is_limit(&self) -> bool {
        matches!(self.what, What::Quota | What::ObjQuota)
    }

    /// Whether it is about objects.
    fn of_objects(&self) -> bool {
        matches!(self.what, What::ObjUsed | What::ObjQuota)
    }

    /// A value of it as text, exact or short.
    pub fn format(&self, value: u64, exact: bool) -> String {
        match value {
            _ if exact => value.to_string(),
            0 if self.is_limit() => "none".to_string(),
            _ if self.of_objects() => fmt::num(value),
            _ => fmt::bytes(value),
        }
    }
}

/// What one owner uses and may use, as `zfs userspace` lists it. Limits that are not set are 0;
/// objects are none where they are not counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnerView {
    /// The user, group or project.
    pub id: u64,
    /// Bytes.
    pub used: u64,
    /// The limit of bytes.
    pub quota: u64,
    /// Objects.
    pub objused: Option<u64>,
    /// The limit of objects.
    pub objquota: Option<u64>,
}

/// A limit to be set: of one owner, or of all that have none of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NewLimit {
    owners: Owners,
    objects: bool,
    id: Option<u64>,
    limit: u64,
}

/// Whose limit the property `defaultuserquota` or one of its like is, and whether it is one of
/// objects.
pub(crate) fn default_quota(name: &str) -> Option<(Owners, bool)> {
    let at = DEFAULT_QUOTAS.iter().position(|n| *n == name)?;
    Some(([Owners::Users, Owners::Groups, Owners::Projects][at % 3], at >= 3))
}

/// The limit of all owners cannot be given here.
pub(super) fn no_default(name: &str) -> Error {
    Error::invalid(format!("'{name}' can be set with 'zfs set' and 'zfs create' only"))
}

/// Refuses the limits of all owners, where only those of single ones can be given.
pub(crate) fn check_no_defaults(given: &[(String, String)]) -> Result<()> {
    match given.iter().find(|(name, _)| default_quota(name).is_some()) {
        Some((name, _)) => Err(no_default(name)),
        None => Ok(()),
    }
}

/// Takes the limits of owners out of properties given for a dataset of that kind. Volumes have
/// none.
pub(crate) fn take_limits(given: &mut Vec<(String, String)>, kind: DatasetKind) -> Result<Vec<NewLimit>> {
    let mut out = Vec::new();
    let mut rest = Vec::new();
    for (name, value) in given.drain(..) {
        if let Some((owners, objects)) = default_quota(&name) {
            let limit = if value == "none" { 0 } else { dsl::props::parse_size(&value)? };
            out.push(NewLimit { owners, objects, id: None, limit });
            continue;
        }
        let Some(prop) = OwnerProp::parse(&name) else {
            rest.push((name, value));
            continue;
        };
        if !prop.is_limit() {
            return Err(Error::invalid(format!("'{name}' is readonly")));
        }
        let id = prop.id().ok_or_else(|| Error::invalid(format!("'{name}' has an invalid user/group name")))?;
        let limit = match value.as_str() {
            "none" => 0,
            text => match dsl::props::parse_size(text)? {
                0 => return Err(Error::invalid(format!("use 'none' to disable '{name}'"))),
                limit => limit,
            },
        };
        out.push(NewLimit { owners: prop.owners, objects: prop.of_objects(), id: Some(id), limit });
    }
    *given = rest;
    if kind == DatasetKind::Volume && !out.is_empty() {
        return Err(Error::invalid("limits of users, groups and projects do not apply to datasets of this type"));
    }
    Ok(out)
}

impl PoolEngine {
    /// Whether limits can be set, before anything is changed.
    pub(crate) async fn check_limits(&self, ds: &Dataset, limits: &[NewLimit]) -> Result<()> {
        if limits.is_empty() {
            return Ok(());
        }
        let os = ds.objset().await?;
        limits.iter().try_for_each(|l| match l.id {
            Some(id) => check_limit(&os, l.owners.kind(), id),
            None => Ok(()),
        })
    }

    /// Sets limits of owners in a file system, which is opened for that if it is not mounted.
    pub(crate) async fn set_limits(&self, ds: &std::rc::Rc<Dataset>, limits: &[NewLimit]) -> Result<()> {
        if limits.is_empty() {
            return Ok(());
        }
        let set = async |zfs: &Zfs| {
            for l in limits {
                match l.id {
                    Some(id) => zfs.set_quota(l.owners.kind(), l.objects, id, l.limit).await?,
                    None => zfs.set_default_quota(l.owners.kind(), l.objects, l.limit).await?,
                }
            }
            Ok(())
        };
        self.with_open(ds, set).await
    }

    /// The value of a property of an owner; none if this file system does not count it.
    pub(crate) async fn owner_prop(&self, ds: &Dataset, name: &str) -> Option<PropView> {
        let prop = OwnerProp::parse(name)?;
        let os = ds.objset().await.ok()?;
        let found = owner_use(&os, prop.owners.kind(), prop.id()?).await.ok()?;
        let value = match prop.what {
            What::Used => found.used,
            What::Quota => found.quota,
            What::ObjUsed => found.objused?,
            What::ObjQuota => found.objquota?,
        };
        let (value, exact) = (prop.format(value, false), prop.format(value, true));
        Some(PropView { name: name.to_string(), value, exact, source: "local".to_string() })
    }

    /// `zfs userspace` and its like, of a file system or snapshot.
    pub(crate) async fn owners(&self, name: &str, owners: Owners) -> Result<Vec<OwnerView>> {
        let name = self.resolve(name)?;
        let ds = match name.contains('@') {
            true => self.pool.dsl().find_snapshot(&name).await?,
            false => self.find(&name)?,
        };
        let why = || format!("cannot get used/quota for {name}");
        let os = ds.objset().await.map_err(|e| e.at(why()))?;
        if os.os_type() != ondisk::objset::ObjsetType::Zfs {
            return Err(Error::invalid("operation is only applicable to filesystems and their snapshots"));
        }
        let all = owner_uses(&os, owners.kind()).await.map_err(|e| e.at(why()))?;
        let view = |o: zpl::OwnerUse| OwnerView {
            id: o.id,
            used: o.used,
            quota: o.quota,
            objused: o.objused,
            objquota: o.objquota,
        };
        Ok(all.into_iter().map(view).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_properties() {
        let parse = |name: &'static str| OwnerProp::parse(name).map(|p| (p.owners, p.what, p.who));
        assert_eq!(parse("userquota@joe"), Some((Owners::Users, What::Quota, "joe")));
        assert_eq!(parse("projectobjused@7"), Some((Owners::Projects, What::ObjUsed, "7")));
        assert_eq!((parse("userquota"), parse("written@a"), parse("org:userquota@1")), (None, None, None));
        let show = |name: &str, n: u64| OwnerProp::parse(name).unwrap().format(n, false);
        assert_eq!((show("userquota@1", 0), show("userused@1", 0)), ("none".into(), "0B".into()));
        assert_eq!((show("groupobjquota@1", 2048), show("groupused@1", 2048)), ("2K".into(), "2K".into()));
    }

    #[test]
    fn limits_are_parsed_and_taken_out() {
        let limits = |pairs: &[(&str, &str)]| {
            let mut given: Vec<_> = pairs.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            let limits = take_limits(&mut given, DatasetKind::Filesystem).map_err(|e| e.to_string())?;
            Ok::<_, String>((limits, given.len()))
        };
        let (got, rest) = limits(&[
            ("atime", "off"),
            ("userobjquota@5", "10"),
            ("groupquota@7", "none"),
            ("defaultgroupobjquota", "2K"),
        ])
        .unwrap();
        let new = |owners, objects, id, limit| NewLimit { owners, objects, id, limit };
        assert_eq!(
            got,
            [
                new(Owners::Users, true, Some(5), 10),
                new(Owners::Groups, false, Some(7), 0),
                new(Owners::Groups, true, None, 2048)
            ]
        );
        assert_eq!(rest, 1);
        for (name, value, why) in [
            ("userused@5", "10", "readonly"),
            ("userquota@joe", "10", "invalid user/group name"),
            ("userquota@5", "0", "use 'none'"),
            ("userquota@5", "-1m", "is not a size"),
            ("defaultuserquota", "-1m", "is not a size"),
        ] {
            let e = limits(&[(name, value)]).unwrap_err();
            assert!(e.contains(why), "{name}={value}: {e}");
        }
    }
}
