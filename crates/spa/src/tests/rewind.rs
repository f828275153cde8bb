//! The uberblock that an import takes.

use base::{Guid, TXG_DEFER, Txg};
use ondisk::label::{ConfigHead, LabelConfig};
use ondisk::uberblock::{Reflow, Uberblock};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use proptest::prelude::*;
use vdev::labels::{LeafLabels, UberblockFound};

use super::{device, world};
use crate::open::rewind::{States, choices, first_open};
use crate::{FoundDevice, PoolCandidate, PoolState, Rewind};

fn uberblock(txg: u64) -> Uberblock {
    Uberblock {
        version: 5000,
        txg: Txg(txg),
        guid_sum: 1,
        timestamp: 1000 + 5 * txg,
        rootbp: ondisk::blkptr::Blkptr::hole(),
        software_version: 5000,
        mmp_magic: 0,
        mmp_delay: 0,
        mmp_config: 0,
        checkpoint_txg: 0,
        raidz_reflow: Default::default(),
    }
}

fn label() -> LabelConfig {
    let top = VdevConfig::new(ConfigKind::File, 0, Guid(2));
    LabelConfig {
        head: ConfigHead {
            version: 5000,
            name: "tank".into(),
            state: PoolState::Active,
            txg: Txg(4),
            pool_guid: Guid(7),
            errata: None,
            comment: None,
            compatibility: None,
            hostid: None,
            hostname: None,
        },
        top_guid: top.guid,
        guid: top.guid,
        is_spare: false,
        is_log: false,
        hole_array: Vec::new(),
        vdev_children: Some(1),
        split_guid: None,
        vdev_tree: top,
        features_for_read: Vec::new(),
        create_txg: None,
        unknown: Vec::new(),
    }
}

/// A pool whose devices have uberblocks of these txgs.
fn candidate(sim: &sim::Sim, devices: &[Vec<u64>]) -> PoolCandidate {
    let found = |txgs: &Vec<u64>| {
        let all = txgs.iter().map(|t| UberblockFound { label: 0, slot: *t, ub: uberblock(*t) });
        let labels = LeafLabels { configs: Vec::new(), uberblocks: all.collect(), damage: Vec::new() };
        FoundDevice { dev: device(sim, "a", 1 << 20, 512).dev, opened: "a".into(), labels, config: label() }
    };
    PoolCandidate {
        name: "tank".into(),
        guid: Guid(7),
        state: PoolState::Active,
        hostid: None,
        hostname: None,
        config: label(),
        devices: devices.iter().map(found).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The newest of all devices alone; with `-F` every state that is still intact,
    /// with `-T` every one up to a txg, newest first.
    #[test]
    fn the_newest_states_of_all_devices_are_chosen(devices in proptest::collection::vec(proptest::collection::vec(1u64..40, 0..12), 1..4)) {
        let sim = world();
        let pool = candidate(&sim, &devices);
        let mut all: Vec<u64> = devices.into_iter().flatten().collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.dedup();
        let txgs = |states| choices(&pool, states).iter().map(|u| u.txg.0).collect::<Vec<_>>();
        prop_assert_eq!(txgs(States::Newest), all.iter().copied().take(1).collect::<Vec<_>>());
        let newest = all.first().copied().unwrap_or(0);
        let old: Vec<u64> = all.iter().copied().filter(|t| *t <= 20).collect();
        prop_assert_eq!(txgs(States::UpTo(Txg(20))), old);
        let intact: Vec<u64> = all.into_iter().filter(|t| newest - t <= TXG_DEFER).collect();
        prop_assert_eq!(txgs(States::Last), intact.clone());
        // The first new txg is above all of them, whichever is chosen.
        for t in intact {
            prop_assert_eq!(first_open(&pool, &uberblock(t)), Txg(newest + 1));
        }
    }
}

/// Sectors were moved since the states with another progress.
#[test]
fn no_rewind_goes_behind_the_progress_of_an_expansion() {
    let sim = world();
    let mut pool = candidate(&sim, &[vec![37, 38, 39, 40]]);
    for found in &mut pool.devices[0].labels.uberblocks {
        found.ub.raidz_reflow = Reflow(if found.ub.txg.0 >= 39 { 4 << 55 | 0x800 } else { 4 << 55 | 0x400 });
    }
    let txgs: Vec<u64> = choices(&pool, States::Last).iter().map(|u| u.txg.0).collect();
    assert_eq!(txgs, [40, 39]);
}

#[test]
fn a_rewind_says_what_is_lost() {
    let (newest, older) = (uberblock(40), uberblock(38));
    let said = Rewind::new(&newest, &older);
    assert_eq!(said, Rewind { txg: Txg(38), time: 1190, lost_secs: 10 });
    // A clock that went back loses nothing.
    assert_eq!(Rewind::new(&older, &newest).lost_secs, 0);
}
