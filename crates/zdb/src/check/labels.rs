//! Labels against the configuration object and each other.

use std::collections::BTreeSet;

use base::Guid;
use ondisk::label::{LabelConfig, MosConfig};
use ondisk::uberblock::Uberblock;
use ondisk::vdev_config::{VdevConfig, VdevKind};

use super::report::Sink;
use crate::device::LabelState;
use crate::pool::PoolReader;
use crate::zap;

/// Sum of the guids of a tree, as uberblocks have it.
pub fn guid_sum(v: &VdevConfig) -> u64 {
    v.children.iter().fold(v.guid.0, |s, c| s.wrapping_add(guid_sum(c)))
}

fn leaves(v: &VdevConfig) -> Vec<&VdevConfig> {
    if v.children.is_empty() { vec![v] } else { v.children.iter().flat_map(leaves).collect() }
}

/// Compares a vdev in a label with the one in the configuration object.
fn differences(a: &VdevConfig, b: &VdevConfig, place: &str, sink: &mut Sink<'_>) {
    macro_rules! same {
        ($($field:ident),*) => {$(
            if a.$field != b.$field {
                sink.error(format!("{place}: {} {:?}, configuration object {:?}", stringify!($field), a.$field, b.$field));
            }
        )*};
    }
    same!(
        kind,
        guid,
        id,
        ashift,
        asize,
        metaslab_array,
        metaslab_shift,
        nparity,
        is_log,
        create_txg,
        draid_ndata,
        draid_nspares,
        draid_ngroups
    );
    if a.children.len() != b.children.len() {
        sink.error(format!("{place}: {} children, configuration object {}", a.children.len(), b.children.len()));
    }
    for (x, y) in a.children.iter().zip(&b.children) {
        differences(x, y, &format!("{place} child {}", x.id), sink);
    }
}

/// Checks the labels of all devices that are there.
pub fn check(pool: &PoolReader, sink: &mut Sink<'_>) {
    let cfg = &pool.config;
    let ub = &pool.ub;
    config(cfg, ub, sink);
    let active: BTreeSet<String> = match pool.entry_object("features_for_read") {
        Ok(Some(o)) => {
            zap::map_u64(&o).unwrap_or_default().into_iter().filter(|(_, n)| *n != 0).map(|(f, _)| f).collect()
        }
        _ => BTreeSet::new(),
    };
    let mut here: BTreeSet<Guid> = BTreeSet::new();
    for dev in &pool.devices {
        let name = dev.dev.name();
        let (mut lists, mut bad) = (Vec::new(), Vec::new());
        for (i, l) in dev.labels.iter().enumerate() {
            match l {
                LabelState::Good(l) => lists.push((i, l)),
                LabelState::BadChecksum(_) => bad.push(format!("{name} label {i}: wrong checksum")),
                LabelState::None(e) => bad.push(format!("{name} label {i}: {e}")),
            }
        }
        // The pool has never used a device whose attach was cut off, and does not mend its labels.
        let guids = lists.iter().filter_map(|(_, list)| Some(LabelConfig::from_nvlist(list).ok()?.guid));
        let guids: BTreeSet<Guid> = guids.collect();
        let is_foreign = !guids.is_empty() && guids.iter().all(|guid| cfg.vdev_tree.find(*guid).is_none());
        for text in bad {
            if is_foreign {
                sink.note(format!("{text}; the pool does not have this device"));
            } else {
                sink.error(text);
            }
        }
        for (i, list) in &lists {
            let place = format!("{name} label {i}");
            match LabelConfig::from_nvlist(list) {
                Ok(l) => {
                    here.insert(l.guid);
                    label(&l, cfg, ub, &active, &place, sink);
                }
                Err(e) => sink.error(format!("{place}: {e}")),
            }
        }
        if lists.windows(2).any(|w| w[0].1 != w[1].1) {
            sink.note(format!("{name}: its labels differ"));
        }
        let rings: BTreeSet<usize> =
            dev.ring.iter().filter(|r| r.ub.as_ref().is_ok_and(|u| *u == *ub)).map(|r| r.label).collect();
        if !rings.is_empty() && rings.len() < 4 {
            sink.note(format!("{name}: the uberblock is in labels {rings:?} only"));
        }
    }
    for top in &cfg.vdev_tree.children {
        for leaf in leaves(top) {
            let device = matches!(leaf.kind, VdevKind::Disk | VdevKind::File);
            if device && !here.contains(&leaf.guid) {
                sink.note(format!("device {} (guid {}) is not there", leaf.path.as_deref().unwrap_or(""), leaf.guid));
            }
        }
    }
}

/// The configuration object against the uberblock.
fn config(cfg: &MosConfig, ub: &Uberblock, sink: &mut Sink<'_>) {
    let sum = guid_sum(&cfg.vdev_tree);
    if sum != ub.guid_sum {
        sink.error(format!("uberblock: guid sum {:x}, the configuration's is {sum:x}", ub.guid_sum));
    }
    if cfg.pool_guid != cfg.vdev_tree.guid {
        sink.error(format!("configuration object: pool guid {}, root vdev {}", cfg.pool_guid, cfg.vdev_tree.guid));
    }
    if cfg.version != ub.version {
        sink.error(format!("configuration object: version {}, uberblock {}", cfg.version, ub.version));
    }
    if cfg.txg > ub.txg {
        sink.error(format!("configuration object: txg {}, uberblock {}", cfg.txg, ub.txg));
    }
    if let Some(n) = cfg.vdev_children
        && n != cfg.vdev_tree.children.len() as u64
    {
        sink.error(format!("configuration object: vdev_children {n}, there are {}", cfg.vdev_tree.children.len()));
    }
}

/// A label against the configuration object and the uberblock; `active` are the features that a
/// reader must know, `place` names the label.
fn label(
    label: &LabelConfig,
    cfg: &MosConfig,
    ub: &Uberblock,
    active: &BTreeSet<String>,
    place: &str,
    sink: &mut Sink<'_>,
) {
    if label.pool_guid != cfg.pool_guid {
        sink.error(format!("{place}: pool guid {}, configuration object {}", label.pool_guid, cfg.pool_guid));
    }
    if label.txg > ub.txg.next() {
        sink.error(format!("{place}: txg {}, uberblock {}", label.txg, ub.txg));
    }
    if label.txg < cfg.txg {
        // Older: of a device that was away, or whose vdev did not change.
        return;
    }
    let Some(top) = cfg.vdev_tree.children.get(label.vdev_tree.id as usize) else {
        sink.error(format!("{place}: vdev {} is not in the configuration object", label.vdev_tree.id));
        return;
    };
    differences(&label.vdev_tree, top, place, sink);
    if label.top_guid != top.guid {
        sink.error(format!("{place}: top guid {}, configuration object {}", label.top_guid, top.guid));
    }
    if label.name != cfg.name {
        sink.error(format!("{place}: pool name {:?}, configuration object {:?}", label.name, cfg.name));
    }
    if label.version != cfg.version {
        sink.error(format!("{place}: version {}, configuration object {}", label.version, cfg.version));
    }
    if let Some(n) = label.vdev_children
        && n != cfg.vdev_tree.children.len() as u64
    {
        sink.error(format!("{place}: vdev_children {n}, there are {}", cfg.vdev_tree.children.len()));
    }
    if !leaves(&label.vdev_tree).iter().any(|v| v.guid == label.guid) {
        sink.error(format!("{place}: its own guid {} is not in its tree", label.guid));
    }
    for f in label.features_for_read.iter().filter(|f| !active.contains(*f)) {
        sink.error(format!("{place}: lists feature {f}, which is not active"));
    }
}
