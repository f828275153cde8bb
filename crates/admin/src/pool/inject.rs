//! The faults on purpose of a pool (`zinject`): what they are, by number.
//!
//! A request names a fault in the words of OpenZFS's command; here they become faults of a device
//! ([`vdev::DeviceFault`]) or of blocks ([`zio::DataFault`]). Numbers are those of the process, so
//! that one is enough to cancel a fault. Faults end with the import of the pool.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Nanos, ObjectId, Result};
use dsl::BlockRange;
use vdev::{ALWAYS, Condition, DeviceFault, FaultyOps, LANES_MAX, LabelPart, Odds, Trouble};
use zio::{DataFault, DataTrouble};

use crate::engine::PoolEngine;
use crate::pool::devices::pool_device_name;
use crate::request::{DataWish, DeviceWish, InjectionView, Wish};

/// How long a fault of a device waits until what is dirty is on disk.
const SETTLE_MAX: Nanos = Nanos(2_000_000_000);
/// Faults of a pool at once.
const INJECTIONS_MAX: usize = 1000;
/// Blocks of one fault: 48 MB of memory.
const BLOCKS_MAX: usize = 1 << 20;

/// A fault with its number.
struct Injection {
    view: InjectionView,
    what: What,
}

enum What {
    Device(Rc<Condition>, Rc<DeviceFault>),
    Data(Rc<DataFault>),
}

impl Injection {
    fn odds(&self) -> &Odds {
        match &self.what {
            What::Device(_, fault) => &fault.odds,
            What::Data(fault) => &fault.odds,
        }
    }
}

/// The faults of a pool.
#[derive(Default)]
pub(crate) struct Injections(RefCell<BTreeMap<u64, Injection>>);

impl Injections {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

/// The operations of a word.
fn ops(word: &str) -> Result<FaultyOps> {
    match word {
        "read" => Ok(FaultyOps::Read),
        "write" => Ok(FaultyOps::Write),
        "flush" => Ok(FaultyOps::Flush),
        "probe" => Ok(FaultyOps::Probe),
        "all" => Ok(FaultyOps::All),
        "free" | "claim" => Err(Error::unsupported(format!(
            "no operation of a device is a '{word}' in weir: there are read, write, flush, probe and all"
        ))),
        _ => Err(Error::invalid(format!("invalid I/O type '{word}': it must be read, write, flush, probe or all"))),
    }
}

fn device_trouble(wish: &DeviceWish) -> Result<Trouble> {
    if let Some((ms, lanes)) = wish.delay {
        if ms == 0 || lanes == 0 || lanes > LANES_MAX {
            let why = format!("invalid delay '{ms}:{lanes}': it must be 1 ms and more, and 1 to {LANES_MAX} lanes");
            return Err(Error::invalid(why));
        }
        return Ok(Trouble::Delay { span: Nanos(ms.saturating_mul(1_000_000)), lanes });
    }
    match wish.error.as_str() {
        "io" => Ok(Trouble::Fail),
        "nxio" => Ok(Trouble::Gone),
        "corrupt" => Ok(Trouble::FlipBit),
        "noop" => Ok(Trouble::Skip),
        "io-prefail" => Ok(Trouble::Refuse),
        "dtl" => Err(Error::unsupported(
            "the error 'dtl' keeps OpenZFS from clearing dirty time logs: weir clears them when a scan has written all",
        )),
        other => Err(Error::invalid(format!(
            "invalid device error '{other}': it must be io, nxio, corrupt, noop or io-prefail"
        ))),
    }
}

fn data_trouble(word: &str) -> Result<DataTrouble> {
    match word {
        "io" => Ok(DataTrouble::Io),
        "checksum" => Ok(DataTrouble::Checksum),
        "decompress" => Ok(DataTrouble::Decompress),
        "decrypt" => Ok(DataTrouble::Decrypt),
        other => {
            Err(Error::invalid(format!("invalid data error '{other}': it must be io, checksum, decompress or decrypt")))
        }
    }
}

fn label_part(word: &str) -> Result<LabelPart> {
    match word {
        "nvlist" => Ok(LabelPart::Nvlist),
        "pad1" => Ok(LabelPart::Pad1),
        "pad2" => Ok(LabelPart::Pad2),
        "uber" => Ok(LabelPart::Uberblocks),
        other => {
            Err(Error::invalid(format!("invalid part of a label '{other}': it must be nvlist, pad1, pad2 or uber")))
        }
    }
}

impl PoolEngine {
    /// Adds a fault as number `id`.
    pub(crate) async fn inject(&self, id: u64, chance: u32, wish: &Wish) -> Result<InjectionView> {
        if chance == 0 || chance > ALWAYS {
            return Err(Error::invalid("the frequency must be in the range 0.0001 to 100 percent"));
        }
        if self.injections.0.borrow().len() >= INJECTIONS_MAX {
            let why = format!("the pool has {INJECTIONS_MAX} faults already: 'zinject -c' cancels some");
            return Err(Error::invalid(why));
        }
        let view = InjectionView { id, pool: self.pool.name(), chance, ..InjectionView::default() };
        let injection = match wish {
            Wish::Device(wish) => {
                // What was just written is read from memory until it is on disk. Other faults may
                // keep it from there.
                let _ = self.pool.rt().timeout(SETTLE_MAX, self.pool.sync()).await;
                self.device_fault(view, wish)?
            }
            Wish::Data(wish) => self.data_fault(view, wish).await?,
        };
        let view = injection.view.clone();
        self.injections.0.borrow_mut().insert(id, injection);
        Ok(view)
    }

    fn device_fault(&self, mut view: InjectionView, wish: &DeviceWish) -> Result<Injection> {
        let name = pool_device_name(&self.pool, &wish.device);
        let devices = self.pool.devices();
        let found = devices.condition_of(&name).or_else(|e| {
            // As the list of faults shows guids.
            let hex = wish.device.trim_start_matches("0x");
            let guid = u64::from_str_radix(hex, 16).map_err(|_| e)?;
            devices.condition_of(&guid.to_string())
        });
        let (Guid(guid), condition) = found?;
        let (trouble, ops) = (device_trouble(wish)?, ops(&wish.ops)?);
        let part = wish.label.as_deref().map(label_part).transpose()?;
        match trouble {
            Trouble::FlipBit if ops != FaultyOps::Read => {
                return Err(Error::invalid("the error 'corrupt' is of reads only: give the I/O type read"));
            }
            Trouble::Delay { .. } if matches!(ops, FaultyOps::Flush | FaultyOps::Probe) => {
                return Err(Error::invalid("a delay is of the I/O type read, write or all"));
            }
            _ => {}
        }
        let fault = DeviceFault::new(trouble, ops, part, view.chance);
        condition.faults.add(fault.clone());
        (view.guid, view.ops) = (Some(guid), wish.ops.clone());
        (view.error, view.delay) = (wish.error.clone(), wish.delay);
        Ok(Injection { view, what: What::Device(condition, fault) })
    }

    async fn data_fault(&self, mut view: InjectionView, wish: &DataWish) -> Result<Injection> {
        let trouble = data_trouble(&wish.error)?;
        if wish.copies > 0b111 || wish.copies > 0 && !matches!(trouble, DataTrouble::Io | DataTrouble::Checksum) {
            return Err(Error::invalid("copies of a block can have the errors io and checksum only"));
        }
        // The blocks that are dirty get their places.
        self.pool.sync().await?;
        let objset = match (&wish.dataset, wish.objset) {
            (Some(path), _) if path.starts_with('/') => {
                let name = self.mounts.holding(Path::new(path));
                let name = name.ok_or_else(|| Error::not_found(format!("'{path}' is not in a mounted file system")))?;
                self.pool.dsl().find(&name)?.object.0
            }
            (Some(name), _) => self.pool.dsl().find(name)?.object.0,
            (None, Some(0)) | (None, None) => {
                return Err(Error::unsupported(
                    "faults of the pool's own metadata (the object set 0) are not there yet",
                ));
            }
            (None, Some(n)) => n,
        };
        let (start, end) = wish.range.unwrap_or((0, u64::MAX));
        let which = BlockRange { level: wish.level, range: start..end, bytes: wish.bytes };
        let blocks = self.pool.dsl().pointers(objset, ObjectId(wish.object), &which, BLOCKS_MAX).await;
        let blocks = blocks.map_err(|e| match e.kind() {
            ErrorKind::TooBig => e.at("cannot add the fault, choose a range"),
            _ => e.at("cannot add the fault"),
        })?;
        let fault = DataFault::new(trouble, wish.copies, view.chance, &blocks);
        self.pool.zio().faults().add(fault.clone());
        (view.error, view.ops) = (wish.error.clone(), "read".to_string());
        (view.objset, view.object, view.level) = (objset, wish.object, wish.level);
        (view.copies, view.range) = (wish.copies, wish.range);
        Ok(Injection { view, what: What::Data(fault) })
    }

    /// The faults, by number.
    pub(crate) fn injected(&self) -> Vec<InjectionView> {
        let all = self.injections.0.borrow();
        let with_counts = |i: &Injection| {
            let (matched, hits) = (i.odds().matched(), i.odds().hits());
            InjectionView { matched, hits, ..i.view.clone() }
        };
        all.values().map(with_counts).collect()
    }

    /// Cancels a fault, or all; how many there were.
    pub(crate) fn cancel_injections(&self, id: Option<u64>) -> u64 {
        let mut all = self.injections.0.borrow_mut();
        let ids: Vec<u64> = all.keys().copied().filter(|n| id.is_none_or(|id| id == *n)).collect();
        for injection in ids.iter().filter_map(|id| all.remove(id)) {
            match injection.what {
                What::Device(condition, fault) => condition.faults.remove(&fault),
                What::Data(fault) => self.pool.zio().faults().remove(&fault),
            }
        }
        ids.len() as u64
    }
}
