//! Structures of the DSL from hostile bytes: directories, datasets, scan state, history, and the
//! ZAP entries of bookmarks, holds and properties.
//!
//! Nothing that parses is lost when it is written again.
#![no_main]

use base::{ObjectId, Txg};
use libfuzzer_sys::fuzz_target;
use ondisk::byteswap::swap_block;
use ondisk::dsl::{DSL_DATASET_SIZE, DSL_DIR_SIZE, DslDatasetPhys, DslDirPhys};
use ondisk::feature::{FeatureZap, support_of};
use ondisk::history::{HistoryPhys, Origin, Records, command_record, encode_record, event_record};
use ondisk::object_type::ObjectType;
use ondisk::scan::ScanPhys;
use ondisk::zap::ZapValue;
use weir_fuzz::{after, pointer, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let mut dir = DslDirPhys::default();
    (dir.head_dataset_obj, dir.used_bytes, dir.used_breakdown) = (54, 1 << 20, [1 << 19, 1 << 19, 0, 0, 0]);
    let mut ds = DslDatasetPhys { bp: pointer(ObjectType::OBJSET), ..DslDatasetPhys::default() };
    (ds.dir_obj, ds.creation_txg, ds.num_children, ds.guid) = (2, 77, 1, 99);
    let scan: Vec<u8> = (0..24u64).flat_map(u64::to_le_bytes).collect();
    let origin = Origin { time: 1_700_000_000, who: 0, zone: "linux", hostname: "host" };
    let event = event_record("snapshot", "x", Txg(77), Some(("tank@x", ObjectId(54))), origin);
    let log = [encode_record(&command_record("zpool create tank", origin)), encode_record(&event)].concat();
    vec![
        after(&[0], &dir.to_bytes()),
        after(&[1], &ds.to_bytes()),
        after(&[2], &scan),
        after(&[3], &HistoryPhys::new(1 << 30).to_bytes()),
        after(&[4], &log),
        after(&[5, 8], &ZapValue::from_u64s(&[99, 77, 1_700_000_000, 0, 3, 1, 2, 3, 4, 5, 6, 7]).bytes),
        after(&[5, 1], b"lz4\0"),
        after(&[6], b"com.delphix:hole_birth\norg.example:none"),
    ]
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&what, data)) = input.split_first() else { return };
    match what % 8 {
        0 => {
            let Ok(dir) = DslDirPhys::parse(data) else { return };
            assert_eq!(dir.to_bytes()[..], data[..DSL_DIR_SIZE]);
        }
        1 => {
            let Ok(ds) = DslDatasetPhys::parse(data) else { return };
            assert_eq!(ds.to_bytes()[..], data[..DSL_DATASET_SIZE]);
            let _ = (ds.is_snapshot(), ds.bp.is_hole());
        }
        2 => {
            let words: Vec<u64> =
                data.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect();
            let scan = ScanPhys::from_words(&words);
            assert_eq!(ScanPhys::from_words(&scan.to_words()), scan);
            let _ = scan.is_paused();
        }
        3 => {
            let Ok(mut h) = HistoryPhys::parse(data) else { return };
            assert_eq!(HistoryPhys::parse(&h.to_bytes()).expect("what we wrote"), h);
            let first = data.first().map_or(0, |b| u64::from(*b));
            let _ = (h.physical(first), h.ring_len(), h.must_evict(first));
            if first <= h.phys_max_off {
                let [a, b] = h.extents(first, first);
                assert_eq!(a.1 + b.1, first);
            }
            let _ = h.evict(first);
        }
        4 => {
            let mut records = Records::new(data);
            for record in records.by_ref() {
                let Ok(record) = record else { break };
                let _ = (record.to_string(), encode_record(&record));
            }
            assert!(records.consumed() <= data.len());
        }
        5 => {
            let Some((&int_size, bytes)) = data.split_first() else { return };
            let value = ZapValue { int_size, bytes: bytes.to_vec() };
            if value.check().is_ok() {
                assert_eq!(value.ints().count(), value.num_ints());
                let _ = (value.as_u64(), value.as_u64s(), value.as_cstr(), value.as_text());
            }
        }
        6 => {
            let Ok(text) = std::str::from_utf8(data) else { return };
            for zap in [FeatureZap::Read, FeatureZap::Write] {
                let _ = support_of(zap, text.lines());
            }
        }
        _ => {
            for kind in [ObjectType::DSL_DIR, ObjectType::DSL_DATASET] {
                let mut block = data.to_vec();
                swap_block(kind, 0, &mut block);
            }
        }
    }
});
