//! Requests for faults on purpose (`zinject`).

use base::{Error, Result};
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Kind, Request};

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[
    Kind::of::<PoolInject>(),
    Kind::of::<PoolInjections>(),
    Kind::of::<PoolInjectCancel>(),
    Kind::of::<PoolCacheDrop>(),
];

/// A fault of a device, in the words of `zinject`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DeviceWish {
    /// The device, by path, name or guid.
    pub device: String,
    /// `-e`: io, nxio, corrupt, noop or io-prefail.
    pub error: String,
    /// `-T`: read, write, flush, probe or all.
    pub ops: String,
    /// `-L`: nvlist, pad1, pad2 or uber.
    pub label: Option<String>,
    /// `-D`: a delay of so many milliseconds with so many lanes, in place of an error.
    pub delay: Option<(u64, u32)>,
}

/// A fault of blocks of an object.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DataWish {
    /// Its dataset, or a path in the mount of it.
    pub dataset: Option<String>,
    /// The number of its object set, without a dataset.
    pub objset: Option<u64>,
    /// Its number.
    pub object: u64,
    /// Level of the blocks.
    pub level: u8,
    /// Their numbers, from the first to before the last; none: all.
    pub range: Option<(u64, u64)>,
    /// The range is one of bytes of the object.
    pub bytes: bool,
    /// `-C`: a bit for each copy; 0: all.
    pub copies: u8,
    /// `-e`: io, checksum, decompress or decrypt.
    pub error: String,
}

/// A fault on purpose.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Wish {
    /// Of a device.
    Device(DeviceWish),
    /// Of blocks.
    Data(DataWish),
}

/// A fault that there is.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct InjectionView {
    /// Its number.
    pub id: u64,
    /// The pool.
    pub pool: String,
    /// Of a million operations it befalls so many.
    pub chance: u32,
    /// The guid of its device; none: it is of blocks.
    pub guid: Option<u64>,
    /// `-T`
    pub ops: String,
    /// `-e`
    pub error: String,
    /// `-D`
    pub delay: Option<(u64, u32)>,
    /// The object set of its blocks.
    pub objset: u64,
    /// Their object.
    pub object: u64,
    /// Their level.
    pub level: u8,
    /// Their range; none: all.
    pub range: Option<(u64, u64)>,
    /// A bit for each copy; 0: all.
    pub copies: u8,
    /// Operations that it is about, so far.
    pub matched: u64,
    /// Operations that it befell.
    pub hits: u64,
}

/// `zinject`: add a fault.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolInject {
    /// The pool, or a path in one of its mounts.
    pub target: String,
    /// Of a million operations it befalls so many.
    pub chance: u32,
    /// The fault.
    pub wish: Wish,
}

impl Request for PoolInject {
    const NAME: &'static str = "PoolInject";
    const TITLE: &'static str = "zinject";
    type Reply = InjectionView;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<InjectionView> {
        let id = cx.pools.next_injection();
        let PoolInject { target, chance, wish } = self;
        let running = cx.pools.pool_of(&target)?;
        cx.on(&running, move |e| async move { e.inject(id, chance, &wish).await })
    }
}

/// `zinject` without arguments: the faults of all pools.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolInjections;

impl Request for PoolInjections {
    const NAME: &'static str = "PoolInjections";
    const TITLE: &'static str = "zinject";
    type Reply = Vec<InjectionView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<InjectionView>> {
        let mut out = Vec::new();
        for running in cx.pools.all_running() {
            out.extend(cx.on(&running, |e| async move { Ok(e.injected()) })?);
        }
        out.sort_by_key(|view| view.id);
        Ok(out)
    }
}

/// `zinject -c`: cancel a fault, or all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolInjectCancel {
    /// Its number; none: all.
    pub id: Option<u64>,
}

impl Request for PoolInjectCancel {
    const NAME: &'static str = "PoolInjectCancel";
    const TITLE: &'static str = "zinject";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let mut found = 0;
        for running in cx.pools.all_running() {
            found += cx.on(&running, move |e| async move { Ok(e.cancel_injections(self.id)) })?;
        }
        match self.id {
            Some(id) if found == 0 => {
                Err(Error::not_found(format!("there is no fault {id}: 'zinject' lists those that there are")))
            }
            _ => Ok(()),
        }
    }
}

/// `zinject -a`: drop the blocks that are cached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolCacheDrop {
    /// The pools; none: all.
    pub pools: Vec<String>,
}

impl Request for PoolCacheDrop {
    const NAME: &'static str = "PoolCacheDrop";
    const TITLE: &'static str = "zinject";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        for running in cx.pools.chosen(&self.pools)? {
            cx.on(&running, |e| async move {
                e.pool.arc().drop_cached().await;
                Ok(())
            })?;
        }
        Ok(())
    }
}
