//! The interface to `zpl`: opens file systems and initializes new ones.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::zap;
use dsl::props::PropValue;
use dsl::{Dataset, Init};
use ondisk::objset::ObjsetType;
use ondisk::version;
use ondisk::zpl::{MASTER_NODE_OBJ, ZPL_VERSION, ZPL_VERSION_FUID, master_key};
use rt::Rt;
use zpl::{Case, FsCreateProps, Held, InitOwner, MountOpts, init_fs};

pub use zpl::Zfs;

use crate::engine::PoolEngine;
use crate::fs::temp_props::TempProps;

/// Properties that the file system itself stores, fixed at creation; none: as its parent, or the
/// default.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OnceProps {
    normalization: Option<u64>,
    casesensitivity: Option<u64>,
    utf8only: Option<u64>,
    version: Option<u64>,
    /// Limits of owners without one of their own: those of the parent, 0 where it has none. They
    /// can be changed later.
    default_quotas: [u64; 6],
}

impl OnceProps {
    /// Removes them from a list of properties. Fails if names are to be normalized that may be no
    /// UTF-8.
    pub fn take(props: &mut Vec<(String, PropValue)>) -> Result<OnceProps> {
        let mut out = OnceProps::default();
        props.retain(|(name, value)| {
            match name.as_str() {
                "normalization" => out.normalization = Some(value.num()),
                "casesensitivity" => out.casesensitivity = Some(value.num()),
                "utf8only" => out.utf8only = Some(value.num()),
                "version" => out.version = Some(value.num()),
                _ => return true,
            }
            false
        });
        match (out.normalization, out.utf8only) {
            (Some(1..), Some(0)) => Err(Error::invalid("'utf8only' must be set 'on' if normalization chosen")),
            // The parent's normalization would need UTF-8.
            (None, Some(0)) => Ok(OnceProps { normalization: Some(0), ..out }),
            _ => Ok(out),
        }
    }

    /// Refuses what a pool of this version cannot have, or a file system of the version that is
    /// asked for.
    pub fn check(&self, pool: u64) -> Result<()> {
        let version = self.version.unwrap_or(version::zpl_of(pool));
        let names = [self.normalization, self.casesensitivity, self.utf8only].iter().any(Option::is_some);
        if version::needed_by_zpl(version) > pool || names && version < ZPL_VERSION_FUID {
            return Err(Error::unsupported("pool must be upgraded to set this property or value"));
        }
        Ok(())
    }

    /// The same, with those of the parent for what is not said.
    pub async fn below(self, parent: &Dataset) -> Result<OnceProps> {
        let os = match parent.objset().await {
            // What is below a parent whose key is not loaded has the default.
            Err(e) if e.kind() == ErrorKind::Denied => return Ok(self),
            os => os?,
        };
        if os.os_type() != ObjsetType::Zfs {
            return Ok(self);
        }
        let master = os.hold(ObjectId(MASTER_NODE_OBJ)).await?;
        let or = async |own: Option<u64>, key: &str| match own {
            None => zap::lookup_u64(&master, key.as_bytes()).await,
            own => Ok(own),
        };
        let mut default_quotas = [0; 6];
        for (limit, key) in default_quotas.iter_mut().zip(master_key::DEFAULT_QUOTAS) {
            *limit = zap::lookup_u64(&master, key.as_bytes()).await?.unwrap_or(0);
        }
        Ok(OnceProps {
            default_quotas,
            normalization: or(self.normalization, master_key::NORMALIZATION).await?,
            casesensitivity: or(self.casesensitivity, master_key::CASESENSITIVITY).await?,
            utf8only: or(self.utf8only, master_key::UTF8ONLY).await?,
            version: self.version,
        })
    }
}

/// Takes the version that a file system is to get from properties that are set.
pub(crate) fn take_version(given: &mut Vec<(String, String)>) -> Result<Option<u64>> {
    let Some(at) = given.iter().rposition(|(name, _)| name == "version") else { return Ok(None) };
    let text = given[at].1.clone();
    given.retain(|(name, _)| name != "version");
    let version = if text == "current" { Some(ZPL_VERSION) } else { text.parse().ok() };
    let version = version.filter(|n| (1..=ZPL_VERSION).contains(n));
    version.map(Some).ok_or_else(|| Error::invalid("'version' must be one of '1 | 2 | 3 | 4 | 5 | current'"))
}

/// The initialization of a new file system. Its root directory belongs to `owner`, a user and a
/// group; none: those of the daemon.
pub fn init_root(rt: &Rt, once: OnceProps, owner: Option<(u32, u32)>) -> Init {
    let (uid, gid) = owner.unwrap_or_else(|| (host::effective_uid(), host::effective_gid()));
    let owner = InitOwner { uid, gid, mode: 0o755, time: rt.wall_clock() };
    let default = FsCreateProps::default();
    let props = FsCreateProps {
        normalization: once.normalization.unwrap_or(default.normalization),
        casesensitivity: match once.casesensitivity.unwrap_or(0) {
            0 => Case::Sensitive,
            1 => Case::Insensitive,
            _ => Case::Mixed,
        },
        utf8only: once.utf8only.map_or(default.utf8only, |n| n != 0),
        version: once.version,
        default_quotas: once.default_quotas,
    };
    init_fs(owner, props)
}

impl PoolEngine {
    /// `zfs upgrade` of a file system, which is opened for that if it is not mounted.
    pub async fn fs_upgrade(&self, name: &str, version: u64) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let ds = self.find(name)?;
        let upgraded = self.set_version(&ds, version).await;
        upgraded.map_err(|e| e.at(format!("cannot set property for '{name}'")))
    }

    pub(crate) async fn set_version(&self, ds: &Rc<Dataset>, version: u64) -> Result<()> {
        self.with_open(ds, async |zfs| zfs.upgrade(version).await).await
    }

    /// Works on a file system, which is opened for that if it is not mounted.
    pub(super) async fn with_open(&self, ds: &Rc<Dataset>, work: impl AsyncFnOnce(&Zfs) -> Result<()>) -> Result<()> {
        if let Some(zfs) = self.mounts.zfs_of(&ds.name()) {
            return work(&zfs).await;
        }
        let zfs = Zfs::open(ds, MountOpts::default()).await?;
        let done = work(&zfs).await;
        done.and(zfs.unmount().await)
    }
}

/// The mount options of a file system, with its temporary properties.
pub(crate) fn options(ds: &Dataset, temp: TempProps) -> MountOpts {
    let dir = ds.dir();
    MountOpts { redacted: temp.redacted, ..MountOpts::from_numbers(|name| temp.number(&dir, name)) }
}

/// Opens a file system for use.
pub async fn open(ds: Rc<Dataset>, temp: TempProps) -> Result<Rc<Zfs>> {
    // Nothing changes a snapshot.
    let temp = if ds.is_snapshot() { TempProps { readonly: Some(true), ..temp } } else { temp };
    Zfs::open(&ds, options(&ds, temp)).await
}

/// Opens a file system again that was closed for a moment, with the objects that are in use; the
/// numbers of those that are still there.
pub(crate) async fn open_again(ds: &Rc<Dataset>, temp: TempProps, held: &[Held]) -> Result<(Rc<Zfs>, BTreeSet<u64>)> {
    Zfs::open_again(ds, options(ds, temp), held).await
}

/// Closes it: all data is on disk, and none of it stays in memory.
pub async fn close(zfs: Rc<Zfs>) -> Result<()> {
    zfs.unmount().await
}

/// Applies changed properties.
pub fn refresh(zfs: &Zfs, ds: &Dataset, temp: TempProps) {
    zfs.set_opts(options(ds, temp));
}
