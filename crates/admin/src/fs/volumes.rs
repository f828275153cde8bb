//! Volumes as commands see them: creating one, its size and what it reserves, opening and closing,
//! on the pool's engine thread.
//!
//! A thick volume reserves the space for all of its blocks; the figure is `refreservation=auto`.
//! While a volume reserves exactly that, a change of its size changes the reservation as well.

use std::rc::Rc;

use base::{Error, Result};
use dmu::zap;
use dsl::props::{DatasetKind, PropValue};
use dsl::volume::BLOCK_SIZE;
use dsl::{Dataset, Init, check_name};
use ondisk::objset::ObjsetType;
use ondisk::version;
use serde::{Deserialize, Serialize};
use zvol::{DATA_OBJ, PROPS_OBJ, SIZE_KEY, Volume, check_size, init_volume};

use crate::engine::PoolEngine;
use crate::fs::mounts::{Force, Unmounted};
use crate::fs::open_volumes::VolumeHold;
use crate::fs::ops::parse_props;

/// The parsed value of `refreservation=auto`.
pub const AUTO: u64 = u64::MAX;

/// What makes a new dataset a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewVolume {
    /// Its size in bytes, rounded up to whole blocks.
    pub size: u64,
    /// It reserves no space.
    pub sparse: bool,
}

/// A volume that was planned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlannedVolume {
    /// Its size in bytes, a multiple of the block size.
    pub size: u64,
    /// `volblocksize` in bytes.
    pub block_size: u32,
    /// The space for all of its blocks, if it reserves that.
    pub refreservation: Option<u64>,
    /// A warning about its blocks.
    pub warning: Option<String>,
}

/// Size and block size of a volume, or of a snapshot of one.
pub(crate) async fn geometry(ds: &Dataset) -> Result<(u64, u32)> {
    let os = ds.objset().await?;
    let size = zap::lookup_u64(&os.hold(PROPS_OBJ).await?, SIZE_KEY.as_bytes()).await?;
    let size = size.ok_or_else(|| Error::corrupt(format!("volume '{}' says no size", ds.name())))?;
    Ok((size, os.hold(DATA_OBJ).await?.block_size()))
}

fn number(values: &[(String, PropValue)], name: &str) -> Option<u64> {
    values.iter().find(|(n, _)| n == name).map(|(_, v)| v.num())
}

fn put(values: &mut Vec<(String, PropValue)>, name: &str, value: u64) {
    values.retain(|(n, _)| n != name);
    values.push((name.to_string(), PropValue::Num(value)));
}

/// The warning about a block size smaller than the default, in OpenZFS's words; `unit` is the
/// largest unit of allocation in bytes of data.
fn small_blocks(block: u64, advised: u64, unit: u64) -> Option<String> {
    if block < u64::from(BLOCK_SIZE) {
        return Some(format!(
            "Warning: volblocksize ({block}) is less than the default minimum block size ({BLOCK_SIZE}).\nTo reduce wasted space a volblocksize of {advised} is recommended."
        ));
    }
    (block < advised).then(|| {
        let wasted = 100 * unit.saturating_sub(block) / unit.max(1);
        format!(
            "Warning: volblocksize ({block}) is much less than the minimum allocation\nunit ({unit}), which wastes at least {wasted}% of space. To reduce wasted space,\nuse a larger volblocksize ({advised} is recommended), fewer dRAID data disks\nper group, or smaller sector size (ashift)."
        )
    })
}

impl PoolEngine {
    /// Whether the properties of a dataset are those of a volume or of a file system. One whose
    /// object set cannot be read counts as a file system.
    pub(crate) async fn props_kind(&self, ds: &Dataset) -> DatasetKind {
        match ds.os_type().await {
            Ok(ObjsetType::Zvol) => DatasetKind::Volume,
            _ => DatasetKind::Filesystem,
        }
    }

    /// Size, block size and reservation of a new volume with these properties.
    fn plan_of(&self, new: NewVolume, props: &[(String, PropValue)]) -> Result<PlannedVolume> {
        let dsl = self.pool.dsl();
        let (advised, unit) = dsl.default_volblocksize();
        let asked = number(props, "volblocksize");
        let warning = asked.and_then(|block| small_blocks(block, u64::from(advised), unit));
        // The property's values fit.
        let block_size = asked.map_or(advised, |block| block as u32);
        if number(props, "volsize").is_some() {
            return Err(Error::invalid("property 'volsize' specified multiple times"));
        }
        if new.size == 0 {
            return Err(Error::invalid("volume size cannot be zero"));
        }
        let size = new.size.checked_next_multiple_of(u64::from(block_size)).unwrap_or(u64::MAX);
        check_size(size, block_size)?;
        let asked = number(props, "refreservation");
        let auto = asked == Some(AUTO) || asked.is_none() && !new.sparse;
        let copies = number(props, "copies").unwrap_or(1);
        let refreservation = auto.then(|| dsl.volume_reservation(size, block_size, copies));
        Ok(PlannedVolume { size, block_size, refreservation, warning })
    }

    /// Completes the properties of a new volume, takes out those that it stores itself, and gives
    /// its initialization.
    pub(crate) fn plan_volume(&self, new: NewVolume, props: &mut Vec<(String, PropValue)>) -> Result<Init> {
        let plan = self.plan_of(new, props)?;
        plan.warning.into_iter().for_each(|w| self.mounts.add_notice(w));
        if let Some(reserved) = plan.refreservation {
            // Old pools have the other one only, which counts what is below as well: nothing.
            let is_old = self.pool.version() < version::REFQUOTA;
            put(props, if is_old { "reservation" } else { "refreservation" }, reserved);
        }
        props.retain(|(n, _)| n != "volblocksize");
        init_volume(plan.size, plan.block_size)
    }

    /// What `zfs create -V` would make.
    pub(crate) fn volume_plan(
        &self,
        name: &str,
        new: NewVolume,
        mut given: Vec<(String, String)>,
    ) -> Result<PlannedVolume> {
        check_name(name)?;
        // Encryption is checked when the dataset is made.
        given.retain(|(n, _)| !matches!(n.as_str(), "encryption" | "keyformat" | "keylocation" | "pbkdf2iters"));
        self.plan_of(new, &parse_props(&given, DatasetKind::Volume, true)?)
    }

    /// Replaces `refreservation=auto` of a clone of the snapshot `snap`.
    pub(crate) async fn resolve_auto(&self, snap: &Dataset, props: &mut Vec<(String, PropValue)>) -> Result<()> {
        if number(props, "refreservation") == Some(AUTO) {
            let (size, block) = geometry(snap).await?;
            let copies = number(props, "copies").unwrap_or(1);
            put(props, "refreservation", self.pool.dsl().volume_reservation(size, block, copies));
        }
        Ok(())
    }

    /// Sets properties of a volume, its size among them.
    pub(crate) async fn set_volume_props(&self, ds: &Rc<Dataset>, mut values: Vec<(String, PropValue)>) -> Result<()> {
        let dsl = self.pool.dsl();
        let name = ds.name();
        let new_size = number(&values, "volsize");
        values.retain(|(n, _)| n != "volsize");
        if new_size.is_none() && number(&values, "refreservation") != Some(AUTO) {
            return dsl.set_props(&name, values).await;
        }
        let (size, block) = geometry(ds).await?;
        let reserved = ds.dir().prop("refreservation").0.num();
        let thick = |size: u64, copies: u64| dsl.volume_reservation(size, block, copies);
        let copies = ds.dir().prop("copies").0.num();
        let wanted = new_size.unwrap_or(size);
        let new_copies = number(&values, "copies").unwrap_or(copies);
        match number(&values, "refreservation") {
            Some(AUTO) => put(&mut values, "refreservation", thick(wanted, new_copies)),
            None if reserved == thick(size, copies) => put(&mut values, "refreservation", thick(wanted, copies)),
            _ => {}
        }
        let Some(new_size) = new_size else { return dsl.set_props(&name, values).await };
        check_size(new_size, block)?;
        let hold = self.volumes.hold(ds, "zfs set").await?;
        let resized = async {
            // The larger reservation comes first, so that the pool can refuse it.
            if new_size >= size {
                dsl.set_props(&name, values.clone()).await?;
                if let Err(e) = hold.volume().set_size(new_size).await {
                    if number(&values, "refreservation").is_some() {
                        let back = vec![("refreservation".to_string(), PropValue::Num(reserved))];
                        dsl.set_props(&name, back).await?;
                    }
                    return Err(e);
                }
                return Ok(());
            }
            hold.volume().set_size(new_size).await?;
            dsl.set_props(&name, values.clone()).await
        };
        let resized = resized.await;
        let released = hold.release().await;
        resized.and(released)
    }

    /// Opens a volume, or a snapshot of one, by name for `who` ("the NBD export 'vol'").
    ///
    /// # Errors
    /// `NotFound`, and those of [`crate::fs::open_volumes::OpenVolumes::hold`].
    pub async fn open_volume(&self, name: &str, who: &str) -> Result<VolumeHold> {
        let _admin = self.admin.acquire(1).await;
        let ds = match name.split_once('@') {
            Some(_) => self.pool.dsl().find_snapshot(name).await?,
            None => self.find(name)?,
        };
        self.volumes.hold(&ds, who).await
    }

    /// Closes the open volumes among these datasets and their snapshots: refused if there are any,
    /// unless `force`.
    pub(crate) async fn close_volumes(&self, names: &[String], force: bool) -> Result<()> {
        let among = |vol: &Volume| {
            let name = vol.name();
            names.iter().any(|n| name == *n || name.split('@').next() == Some(n))
        };
        self.volumes.close(among, force).await
    }

    /// Ends all use of the pool's datasets: closes volumes and unmounts file systems. The answer is
    /// that of [`PoolEngine::unmount_all`].
    pub(crate) async fn end_all_use(&self, force: Force) -> Result<Vec<Unmounted>> {
        // What may be refused comes first.
        if force == Force::No {
            self.end_volume_use(false).await?;
        }
        let unmounted = self.unmount_all(force).await;
        let ended = match &unmounted {
            Ok(_) if force != Force::No => self.end_volume_use(true).await,
            _ => Ok(()),
        };
        if unmounted.is_err() || ended.is_err() {
            self.show_volumes().await;
        }
        let unmounted = unmounted?;
        if let Err(e) = ended {
            self.mount_again(&unmounted).await;
            return Err(e);
        }
        Ok(unmounted)
    }

    /// Closes volumes and hides their files: refused while they are in use, unless `force`.
    pub(crate) async fn end_volume_use(&self, force: bool) -> Result<()> {
        self.volumes.close(|_| true, force).await?;
        self.hide_volumes(force).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_are_warned_of() {
        let text = small_blocks(8192, 16384, 4096).unwrap();
        assert!(
            text.starts_with("Warning: volblocksize (8192) is less than") && text.contains("of 16384 is"),
            "{text}"
        );
        let text = small_blocks(16384, 65536, 65536).unwrap();
        assert!(text.contains("unit (65536)") && text.contains("at least 75% of"), "{text}");
        assert_eq!(small_blocks(16384, 16384, 4096), None);
        assert_eq!(small_blocks(1 << 20, 65536, 65536), None);
    }
}
