//! The interface to `zpl`: opens file systems and initializes new ones.

use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::zap;
use dsl::props::PropValue;
use dsl::{Dataset, Init};
use ondisk::objset::ObjsetType;
use ondisk::zpl::{MASTER_NODE_OBJ, master_key};
use rt::Rt;
use zpl::{Case, FsCreateProps, InitOwner, MountOpts, init_fs};

pub use zpl::Zfs;

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
        version: once.version.unwrap_or(default.version),
        default_quotas: once.default_quotas,
    };
    init_fs(owner, props)
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

/// Closes it: all data is on disk, and none of it stays in memory.
pub async fn close(zfs: Rc<Zfs>) -> Result<()> {
    zfs.unmount().await
}

/// Applies changed properties.
pub fn refresh(zfs: &Zfs, ds: &Dataset, temp: TempProps) {
    zfs.set_opts(options(ds, temp));
}
