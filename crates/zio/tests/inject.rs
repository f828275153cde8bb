//! Faults on purpose in chosen blocks and copies.
#![allow(clippy::unwrap_used)]

mod common;

use base::{ErrorKind, Txg};
use bdev::Bytes;
use common::{Lab, noise, text};
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use vdev::{ALWAYS, Prio};
use zio::{Compression, DataFault, DataTrouble, WriteReq, Zio};

async fn put(zio: &Zio, data: Bytes, copies: u8) -> Blkptr {
    let compression = Compression::LZ4;
    let req = WriteReq { copies, compression, ..WriteReq::new(data, ObjectType::PLAIN_FILE, 0, Txg(10)) };
    let out = zio.write(req).await.unwrap();
    out.done.await.unwrap();
    out.bp
}

#[test]
fn chosen_copies_of_chosen_blocks_fail_and_are_mended() {
    let lab = Lab::new(1, 64 << 20, 12);
    lab.sim.block_on(async {
        let data = noise(1, 32_768);
        let (bp, other) = (put(&lab.zio, data.clone(), 3).await, put(&lab.zio, noise(2, 32_768), 3).await);
        // The txg is on disk: copies may be mended.
        lab.tree.set_committed(Txg(10));
        for (trouble, kind) in [(DataTrouble::Io, ErrorKind::Io), (DataTrouble::Checksum, ErrorKind::Checksum)] {
            let fault = DataFault::new(trouble, 0b011, ALWAYS, &[bp]);
            lab.zio.faults().add(fault.clone());
            let repaired = lab.zio.stats().repaired;
            assert_eq!(lab.zio.read(&bp, Prio::SyncRead).await.unwrap(), data);
            assert_eq!(lab.zio.stats().repaired, repaired + 2, "the copies before the good one");
            lab.zio.read(&other, Prio::SyncRead).await.unwrap();
            let bad = lab.zio.take_bad_copies();
            assert_eq!(bad.iter().map(|b| (b.dva, b.kind)).collect::<Vec<_>>(), [(bp.dva(0), kind), (bp.dva(1), kind)]);
            // A scrub of each copy: two are rewritten from the third.
            for (dva, bytes) in bp.dvas().zip([32_768, 32_768, 0]) {
                let done = lab.zio.scrub_copy(&bp, dva, Prio::Scrub, &|| Some(Prio::AsyncWrite)).await;
                assert_eq!((done.repaired, done.error.map(|e| e.kind())), (bytes, None));
            }
            assert_eq!(fault.odds.hits(), fault.odds.matched());
            lab.zio.faults().remove(&fault);
            lab.zio.take_bad_copies();

            let all = DataFault::new(trouble, 0, ALWAYS, &[bp]);
            lab.zio.faults().add(all.clone());
            assert_eq!(lab.zio.read(&bp, Prio::SyncRead).await.unwrap_err().kind(), kind);
            lab.zio.faults().remove(&all);
            assert_eq!(lab.zio.read(&bp, Prio::SyncRead).await.unwrap(), data);
            lab.zio.take_bad_copies();
        }
    });
}

#[test]
fn what_is_not_compressed_decompresses() {
    let lab = Lab::new(1, 64 << 20, 12);
    lab.sim.block_on(async {
        let (packed, plain) = (put(&lab.zio, text(1, 32_768), 1).await, put(&lab.zio, noise(1, 32_768), 1).await);
        let fault = DataFault::new(DataTrouble::Decompress, 0, ALWAYS, &[packed, plain]);
        lab.zio.faults().add(fault.clone());
        assert_eq!(lab.zio.read(&packed, Prio::SyncRead).await.unwrap_err().kind(), ErrorKind::Corrupt);
        lab.zio.read(&plain, Prio::SyncRead).await.unwrap();
        // Neither is damaged: a scrub, which does not decompress, finds nothing.
        let done = lab.zio.scrub_copy(&packed, packed.dva(0), Prio::Scrub, &|| None).await;
        assert!(done.error.is_none());
        lab.zio.faults().remove(&fault);
        lab.zio.read(&packed, Prio::SyncRead).await.unwrap();
    });
}

#[test]
fn content_that_is_bad_stays_bad() {
    let lab = Lab::new(1, 64 << 20, 12);
    lab.sim.block_on(async {
        let mut blocks = Vec::new();
        for seed in 0..64 {
            blocks.push(put(&lab.zio, text(seed, 32_768), 1).await);
        }
        let fault = DataFault::new(DataTrouble::Decompress, 0, ALWAYS / 2, &blocks);
        lab.zio.faults().add(fault.clone());
        let mut seen = Vec::new();
        for round in 1..4 {
            let mut bad = Vec::new();
            for bp in &blocks {
                bad.push(lab.zio.read(bp, Prio::SyncRead).await.is_err());
            }
            let hits = bad.iter().filter(|b| **b).count() as u64;
            assert_eq!((fault.odds.matched(), fault.odds.hits()), (64 * round, hits * round));
            assert!((10..=54).contains(&hits), "{hits} of 64");
            seen.push(bad);
        }
        assert!(seen[0] == seen[1] && seen[1] == seen[2]);
    });
}

#[test]
fn a_rare_fault_hits_its_share() {
    let lab = Lab::new(1, 64 << 20, 12);
    lab.sim.block_on(async {
        let bp = put(&lab.zio, noise(1, 4096), 1).await;
        let fault = DataFault::new(DataTrouble::Io, 0, ALWAYS / 2, &[bp]);
        lab.zio.faults().add(fault.clone());
        let mut failed = 0;
        for _ in 0..2000 {
            failed += u64::from(lab.zio.read(&bp, Prio::SyncRead).await.is_err());
        }
        assert_eq!((fault.odds.matched(), fault.odds.hits()), (2000, failed));
        // Four standard deviations of 2000 draws are 90.
        assert!((910..=1090).contains(&failed), "{failed} of 2000");
    });
}
