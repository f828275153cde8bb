//! The interface to `zpl`: opens file systems and initializes new ones.

use std::rc::Rc;

use base::Result;
use dsl::props::PropValue;
use dsl::{Dataset, Init};
use rt::Rt;
use zpl::{Case, FsCreateProps, InitOwner, MountOpts, init_fs};

pub use zpl::Zfs;

use crate::fs::temp_props::TempProps;

/// Properties that the file system itself stores, fixed at creation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OnceProps {
    normalization: u64,
    casesensitivity: u64,
    utf8only: bool,
    version: Option<u64>,
}

impl OnceProps {
    /// Removes them from a list of properties.
    pub fn take(props: &mut Vec<(String, PropValue)>) -> OnceProps {
        let mut out = OnceProps::default();
        props.retain(|(name, value)| {
            match name.as_str() {
                "normalization" => out.normalization = value.num(),
                "casesensitivity" => out.casesensitivity = value.num(),
                "utf8only" => out.utf8only = value.num() != 0,
                "version" => out.version = Some(value.num()),
                _ => return true,
            }
            false
        });
        out
    }
}

/// The initialization of a new file system; its root directory belongs to the user of the daemon.
pub fn init_root(rt: &Rt, once: OnceProps) -> Init {
    let owner =
        InitOwner { uid: host::effective_uid(), gid: host::effective_gid(), mode: 0o755, time: rt.wall_clock() };
    let default = FsCreateProps::default();
    let props = FsCreateProps {
        normalization: once.normalization,
        casesensitivity: match once.casesensitivity {
            0 => Case::Sensitive,
            1 => Case::Insensitive,
            _ => Case::Mixed,
        },
        utf8only: once.utf8only,
        version: once.version.unwrap_or(default.version),
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
