//! Cache devices in use: opened by their paths when the pool knows how to open devices, and
//! whenever the owner asks again. [`arc::Arc::add_cache`] does the rest.
//!
//! A device is used if its label says that it is the cache of that guid. One that is missing,
//! foreign or busy is passed over: nothing on it is needed.

use std::rc::Rc;

use base::{Error, Guid, Result};
use bdev::BlockDev;
use ondisk::label::DeviceLabel;
use ondisk::vdev_config::VdevConfig;
use vdev::labels::read_labels;

use super::Devices;
use super::find::matches_name;
use arc::CacheDevice;

impl Devices {
    /// Begins to open the cache devices that are not in use.
    pub fn use_caches(&self) {
        if let Some(devices) = self.me.upgrade()
            && self.aux.get().caches.iter().any(|c| !c.offline && !self.stack.arc.has_cache(c.guid))
        {
            drop(self.stack.rt.spawn("open caches", async move { devices.open_caches().await }));
        }
    }

    /// `zpool offline` and `online` of a cache device; false if the name is that of none.
    pub async fn set_cache_offline(&self, name: &str, offline: bool) -> Result<bool> {
        let Some(cache) = self.aux.get().caches.into_iter().find(|c| matches_name(c, name)) else { return Ok(false) };
        let _admin = self.begin_change().await?;
        let guid = cache.guid;
        let changed = self.changes.make(move |devices, tx| {
            Box::pin(async move {
                let mut aux = devices.aux.get();
                aux.caches.iter_mut().filter(|c| c.guid == guid).for_each(|c| c.offline = offline);
                devices.aux.change(&devices.stack, aux, tx).await?;
                Ok(Ok(()))
            })
        });
        changed.await?;
        if offline {
            self.stack.arc.offline_cache(guid).await;
        } else {
            self.use_caches();
        }
        Ok(true)
    }

    async fn open_caches(&self) {
        for cache in self.aux.get().caches.into_iter().filter(|c| !c.offline) {
            // One that cannot be opened is tried again when the owner asks.
            if !self.stack.arc.has_cache(cache.guid)
                && let Ok(device) = self.open_cache(&cache).await
                && self.aux.get().caches.iter().any(|c| c.guid == cache.guid && !c.offline)
            {
                let _ = self.stack.arc.add_cache(device);
            }
        }
    }

    async fn open_cache(&self, cache: &VdevConfig) -> Result<CacheDevice> {
        let path = cache.path.as_deref().ok_or_else(|| Error::not_found("the cache has no path"))?;
        let dev = self.open_path(path).await?;
        check_label(&dev, cache.guid).await?;
        let info = dev.info();
        let own = info.logical_sector.max(info.physical_sector).trailing_zeros();
        let ashift = cache.ashift.map_or(own, |a| a.min(16) as u32).clamp(9, 16) as u8;
        Ok(CacheDevice { guid: cache.guid, writable: !self.stack.readonly && info.writable, dev, ashift })
    }
}

/// Checks that the label of a device is that of this cache.
async fn check_label(dev: &Rc<dyn BlockDev>, guid: Guid) -> Result<()> {
    let labels = read_labels(&**dev).await?;
    let all = labels.configs.iter().filter_map(|(_, c)| DeviceLabel::from_nvlist(c.as_ref().ok()?).ok());
    let is_own = |l: DeviceLabel| matches!(l, DeviceLabel::Cache { guid: own, .. } if own == guid);
    if all.into_iter().any(is_own) {
        Ok(())
    } else {
        Err(Error::not_found(format!("'{}' is not the cache device it was", dev.info().path)))
    }
}
