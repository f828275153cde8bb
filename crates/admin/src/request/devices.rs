//! Requests about the devices of a pool.

use std::num::NonZeroU64;

use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use spa::Pool;

use super::{Changes, Cx, Kind, Lane, Request};
use crate::keeper::Level;
use crate::pool::devices::pool_device_name;
use crate::pool_set::join_errors;
use crate::view::Created;

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[
    Kind::of::<PoolAdd>(),
    Kind::of::<PoolAttach>(),
    Kind::of::<PoolDetach>(),
    Kind::of::<PoolRemove>(),
    Kind::of::<PoolRemoveCancel>(),
    Kind::of::<PoolRemoveEstimate>(),
    Kind::of::<PoolWork>(),
    Kind::of::<PoolOffline>(),
    Kind::of::<PoolOnline>(),
    Kind::of::<PoolClear>(),
    Kind::of::<PoolReopen>(),
    Kind::of::<LabelClear>(),
];

/// Puts the failed action and its device before the error, unless they are there already.
fn at_device(e: Error, what: &str, device: &str) -> Error {
    if e.to_string().starts_with("cannot ") { e } else { e.at(format!("cannot {what} {device}")) }
}

/// Changes each of these devices, and writes what was changed; a failure does not stop the others.
/// `what` is the action in messages.
async fn for_each_device(
    pool: &Pool,
    devices: &[String],
    what: &str,
    change: impl AsyncFn(&str) -> Result<()>,
) -> Result<()> {
    let mut errors = Vec::new();
    for name in devices {
        let done = change(&pool_device_name(pool, name)).await;
        errors.extend(done.err().map(|e| at_device(e, what, name)));
    }
    if errors.len() < devices.len() {
        pool.sync().await?;
    }
    join_errors(errors)
}

/// `zpool add`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PoolAdd {
    /// The pool.
    pub pool: String,
    /// Vdev words and absolute paths.
    pub devices: Vec<String>,
    /// Make files that do not exist, of this many bytes.
    pub size: Option<u64>,
    /// `ashift`.
    pub props: Vec<(String, String)>,
    /// `-f`
    pub force: bool,
    /// `-n`
    pub dry_run: bool,
}

impl Request for PoolAdd {
    const NAME: &'static str = "PoolAdd";
    const TITLE: &'static str = "zpool add";
    type Reply = Created;
    fn changes(&self) -> Changes {
        if self.dry_run { Changes::Unrecorded } else { Changes::visits_to(&self.pool) }
    }
    fn run(self, cx: &Cx<'_>) -> Result<Created> {
        cx.pools.pool_add(self)
    }
}

/// `zpool attach` and `zpool replace`: attach a device beside another.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PoolAttach {
    /// The pool.
    pub pool: String,
    /// The existing device.
    pub target: String,
    /// The new device; none: the one now at the path of the old device.
    pub device: Option<String>,
    /// Replace the old device.
    pub replace: bool,
    /// Rebuild in the order of the space, in place of the resilver.
    pub sequential: bool,
    /// Make a file that does not exist, of this many bytes.
    pub size: Option<u64>,
    /// `ashift`.
    pub props: Vec<(String, String)>,
    /// `-f`
    pub force: bool,
}

impl Request for PoolAttach {
    const NAME: &'static str = "PoolAttach";
    const TITLE: &'static str = "zpool attach";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::visits_to(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.pools.pool_attach(self)
    }
}

/// `zpool detach`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolDetach {
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: String,
}

impl Request for PoolDetach {
    const NAME: &'static str = "PoolDetach";
    const TITLE: &'static str = "zpool detach";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.need_running(&self.pool)?;
        let devices = cx.on(&running, move |e| async move {
            e.pool.devices().detach(&pool_device_name(&e.pool, &self.device)).await?;
            Ok(e.refresh_devices())
        })?;
        cx.pools.keeper.set_devices(running.guid(), devices)
    }
}

/// `zpool remove`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolRemove {
    /// The pool.
    pub pool: String,
    /// The devices.
    pub devices: Vec<String>,
}

impl Request for PoolRemove {
    const NAME: &'static str = "PoolRemove";
    const TITLE: &'static str = "zpool remove";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.need_running(&self.pool)?;
        let removed = cx.on(&running, move |e| async move {
            let devices = e.pool.devices();
            let outside = || devices.aux().spares.len() + devices.aux().caches.len();
            let remove = async |d: &str| {
                let before = outside();
                devices.remove(d).await?;
                // The engine posts the others, some of which are evacuated first.
                if outside() < before {
                    e.pool.post("vdev_remove_aux");
                }
                Ok(())
            };
            for_each_device(&e.pool, &self.devices, "remove", remove).await?;
            Ok(e.refresh_devices())
        });
        match removed {
            Ok(devices) => cx.pools.keeper.set_devices(running.guid(), devices),
            Err(e) if e.kind() == ErrorKind::Suspended => Err(e),
            // Some may have been removed.
            Err(e) => cx.pools.remember_devices(&running).and(Err(e)),
        }
    }
}

/// `zpool remove -s`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolRemoveCancel {
    /// The pool.
    pub pool: String,
}

impl Request for PoolRemoveCancel {
    const NAME: &'static str = "PoolRemoveCancel";
    const TITLE: &'static str = "zpool remove";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.need_running(&self.pool)?;
        cx.on(&running, move |e| async move {
            let cancelled = e.pool.devices().evacuator().cancel().await;
            cancelled.map_err(|e| e.at("cannot cancel removal"))
        })
    }
}

/// `zpool remove -n`: bytes of memory that the mapping of each device would take.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolRemoveEstimate {
    /// The pool.
    pub pool: String,
    /// The devices.
    pub devices: Vec<String>,
}

impl Request for PoolRemoveEstimate {
    const NAME: &'static str = "PoolRemoveEstimate";
    const TITLE: &'static str = "zpool remove";
    type Reply = Vec<u64>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<u64>> {
        let running = cx.pools.need_running(&self.pool)?;
        cx.on(&running, move |e| async move {
            let mut out = Vec::with_capacity(self.devices.len());
            for device in &self.devices {
                let name = pool_device_name(&e.pool, device);
                let size = e.pool.devices().estimate_removal(&name).map_err(|e| at_device(e, "remove", device))?;
                out.push(size.map_or(0, |e| e.memory));
            }
            Ok(out)
        })
    }
}

/// `zpool trim` and `zpool initialize`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolWork {
    /// The pool.
    pub pool: String,
    /// Initialize, not trim.
    pub initialize: bool,
    /// `-s`
    pub suspend: bool,
    /// `-c`
    pub cancel: bool,
    /// `-u`, of initialize.
    #[serde(default)]
    pub forget: bool,
    /// `-r`, of trim: most bytes a second. 0: no limit, or that of before.
    #[serde(default)]
    pub rate: u64,
    /// `-w`
    pub wait: bool,
    /// Devices; none: all.
    pub devices: Vec<String>,
}

impl Request for PoolWork {
    const NAME: &'static str = "PoolWork";
    const TITLE: &'static str = "zpool trim";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn title(&self) -> &'static str {
        if self.initialize { "zpool initialize" } else { Self::TITLE }
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let PoolWork { pool, initialize, suspend, cancel, forget, rate, wait, devices } = self;
        let kind = if initialize { spa::WorkKind::Initialize } else { spa::WorkKind::Trim };
        let wish = match (suspend, cancel, forget) {
            (true, ..) => spa::WorkCommand::Suspend,
            (_, true, _) => spa::WorkCommand::Cancel,
            (.., true) => spa::WorkCommand::Forget,
            _ => spa::WorkCommand::Start(NonZeroU64::new(rate)),
        };
        cx.on_pool(&pool, move |e| async move {
            let devices: Vec<String> = devices.iter().map(|d| pool_device_name(&e.pool, d)).collect();
            e.pool.devices().works().change(kind, wish, &devices).await?;
            if wait { e.pool.devices().works().wait_for(kind, &devices).await } else { Ok(()) }
        })
    }
}

/// `zpool offline`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolOffline {
    /// The pool.
    pub pool: String,
    /// Its devices, by path, name or guid.
    pub devices: Vec<String>,
    /// Until the next import only.
    pub temporary: bool,
    /// `-f`: they are declared faulted.
    #[serde(default)]
    pub fault: bool,
    /// They are declared degraded, and stay in use (`zinject -A`).
    #[serde(default)]
    pub degrade: bool,
}

impl Request for PoolOffline {
    const NAME: &'static str = "PoolOffline";
    const TITLE: &'static str = "zpool offline";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let PoolOffline { pool, devices, temporary, fault, degrade } = self;
        cx.on_pool(&pool, move |e| async move {
            let all = e.pool.devices();
            let offline = async |name: &str| match (degrade, fault) {
                (true, _) => all.degrade(name),
                (_, true) => all.fault(name, temporary),
                _ if all.set_cache_offline(name, true).await? => Ok(()),
                _ => all.offline(name, temporary).await,
            };
            for_each_device(&e.pool, &devices, "offline", offline).await
        })
    }
}

/// `zpool online`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolOnline {
    /// The pool.
    pub pool: String,
    /// Its devices.
    pub devices: Vec<String>,
    /// Use all of a device that has grown.
    #[serde(default)]
    pub expand: bool,
}

impl Request for PoolOnline {
    const NAME: &'static str = "PoolOnline";
    const TITLE: &'static str = "zpool online";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let PoolOnline { pool, devices, expand } = self;
        cx.on_pool(&pool, move |e| async move {
            let all = e.pool.devices();
            let online = async |name: &str| match all.set_cache_offline(name, false).await? {
                true => Ok(()),
                false => all.bring_online(name, expand).await,
            };
            for_each_device(&e.pool, &devices, "online", online).await
        })
    }
}

/// `zpool clear`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolClear {
    /// The pool.
    pub pool: String,
    /// One of its devices; none: all.
    pub device: Option<String>,
}

impl Request for PoolClear {
    const NAME: &'static str = "PoolClear";
    const TITLE: &'static str = "zpool clear";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Resumes(self.pool.clone())
    }
    fn lane(&self) -> Lane {
        Lane::Control
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let PoolClear { pool, device } = self;
        let resumed = cx.on_pool(&pool, move |e| async move {
            if e.pool.is_readonly() {
                let why = format!("cannot clear errors for {}: pool is read-only", e.pool.name());
                return Err(Error::new(ErrorKind::ReadOnly, why));
            }
            let was = e.pool.suspended().is_some();
            let device = device.map(|d| pool_device_name(&e.pool, &d));
            let done = e.pool.devices().clear(device.as_deref()).await;
            done.map_err(|e| match &device {
                Some(name) => at_device(e, "clear errors for", name),
                None => e,
            })?;
            Ok(was && e.pool.suspended().is_none())
        })?;
        if resumed {
            cx.pools.keeper.say(Level::Notice, &format!("pool '{pool}' is resumed"));
        }
        Ok(())
    }
}

/// `zpool reopen`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolReopen {
    /// The pool.
    pub pool: String,
    /// `-n`: a scrub that runs goes on, whatever devices miss.
    pub keep_scrub: bool,
}

impl Request for PoolReopen {
    const NAME: &'static str = "PoolReopen";
    const TITLE: &'static str = "zpool reopen";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let PoolReopen { pool, keep_scrub } = self;
        cx.on_pool(&pool, move |e| async move {
            let place = || format!("cannot reopen '{}'", e.pool.name());
            e.pool.devices().reopen_all(keep_scrub).await.map_err(|e| e.at(place()))
        })
    }
}

/// `zpool labelclear`: remove the labels of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LabelClear {
    /// Its path.
    pub path: String,
    /// Also if it belongs to an exported pool.
    pub force: bool,
}

impl Request for LabelClear {
    const NAME: &'static str = "LabelClear";
    const TITLE: &'static str = "zpool labelclear";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.pools.label_clear(&self.path, self.force)
    }
}
