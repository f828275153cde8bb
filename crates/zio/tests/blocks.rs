//! Blocks written and read back: every codec, damage, gang blocks, byte orders, hostile pointers.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use base::{ErrorKind, Txg, VdevId};
use bdev::{Buf, Bytes};
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use common::{DATA_START, Lab, noise, text};
use metaslab::ClassKind;
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::object_type::ObjectType;
use sim::{Fault, Model, SimConfig, SimDisk};
use vdev::Prio;
use zio::{Remedy, WriteOut, WriteReq, Zio, ZioOpts};

const SUMS: [ChecksumAlgo; 6] = [
    ChecksumAlgo::Fletcher4,
    ChecksumAlgo::Fletcher2,
    ChecksumAlgo::Sha256,
    ChecksumAlgo::Sha512,
    ChecksumAlgo::Off,
    ChecksumAlgo::NoParity,
];

fn codecs() -> Vec<Compression> {
    let plain = |algo| Compression { algo, level: 0 };
    let mut all = vec![
        Compression::OFF,
        plain(CompressAlgo::Empty),
        Compression::LZ4,
        Compression::LZJB,
        plain(CompressAlgo::Zle),
    ];
    all.extend([CompressAlgo::Gzip1, CompressAlgo::Gzip6].map(plain));
    all.extend([0, 1, 103].map(|level| Compression { algo: CompressAlgo::Zstd, level }));
    all
}

fn file(data: Bytes) -> WriteReq {
    WriteReq::new(data, ObjectType::PLAIN_FILE, 0, Txg(10))
}

async fn put(zio: &Zio, req: WriteReq) -> Blkptr {
    let WriteOut { bp, done, .. } = zio.write(req).await.unwrap();
    done.await.unwrap();
    bp
}

async fn get(zio: &Zio, bp: &Blkptr) -> base::Result<Bytes> {
    zio.read(bp, Prio::SyncRead).await
}

#[test]
fn everything_comes_back() {
    for ashift in [9u8, 12] {
        let lab = Lab::new(2, 256 << 20, ashift);
        lab.sim.block_on(async {
            for compression in codecs() {
                for checksum in SUMS {
                    for (n, size) in [512usize, 1024, 4096, 8192, 16384, 131_072].into_iter().enumerate() {
                        for data in [text(n as u64, size), noise(n as u64, size)] {
                            let what = format!("{} {} {size} ashift {ashift}", compression.name(), checksum.name());
                            let req = WriteReq { compression, checksum, copies: 2, fill: 1, ..file(data.clone()) };
                            let bp = put(&lab.zio, req).await;
                            bp.validate(&ondisk::blkptr::BpLimits::FORMAT).unwrap();
                            assert_eq!(
                                (bp.lsize(), bp.ndvas(), bp.birth(), bp.fill()),
                                (size as u64, 2, Txg(10), 1),
                                "{what}"
                            );
                            let unit = 1u64 << ashift;
                            let uncompressed = bp.compress_raw() == CompressAlgo::Off as u8;
                            assert!(uncompressed == (bp.psize() == bp.lsize()), "{what}: {bp}");
                            assert!(
                                uncompressed || bp.psize() % unit == 0 && bp.compress_raw() == compression.algo as u8,
                                "{what}: {bp}"
                            );
                            assert_eq!(bp.dva(0).asize(), bp.psize().next_multiple_of(unit), "{what}");
                            assert_eq!(get(&lab.zio, &bp).await.unwrap(), data, "{what}");
                        }
                    }
                }
            }
        });
        let s = lab.zio.stats();
        assert_eq!((s.checksum_errors, s.holes, s.embedded, s.gangs), (0, 0, 0, 0));
    }
}

#[test]
fn a_damaged_copy_is_passed_over_and_all_damaged_is_an_error() {
    let lab = Lab::new(2, 64 << 20, 9);
    lab.sim.block_on(async {
        for compression in [Compression::OFF, Compression::LZ4, Compression { algo: CompressAlgo::Gzip6, level: 0 }] {
            for checksum in
                [ChecksumAlgo::Fletcher4, ChecksumAlgo::Fletcher2, ChecksumAlgo::Sha256, ChecksumAlgo::Sha512]
            {
                let data = text(3, 131_072);
                let bp = put(&lab.zio, WriteReq { compression, checksum, copies: 3, ..file(data.clone()) }).await;
                assert_eq!(bp.ndvas(), 3);
                lab.spoil(bp.dva(0), 77);
                assert_eq!(get(&lab.zio, &bp).await.unwrap(), data);
                lab.spoil(bp.dva(1), bp.psize() - 1);
                assert_eq!(get(&lab.zio, &bp).await.unwrap(), data);
                let bad = lab.zio.take_bad_copies();
                assert_eq!(bad.iter().map(|b| b.dva).collect::<Vec<_>>(), [bp.dva(0), bp.dva(0), bp.dva(1)]);
                assert!(bad.iter().all(|b| b.kind == ErrorKind::Checksum));
                lab.spoil(bp.dva(2), 0);
                let e = get(&lab.zio, &bp).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Checksum);
                let place = format!("vdev {} offset {:#x}", bp.dva(2).vdev(), bp.dva(2).offset());
                assert!(e.to_string().contains(&place) && e.to_string().contains(&bp.to_string()), "{e}");
                lab.zio.take_bad_copies();
            }
        }
        let errors: u64 = lab.tree.leaves().iter().map(|l| l.stats().errors.cksum).sum();
        assert_eq!((errors, lab.zio.stats().checksum_errors, lab.zio.stats().unreadable), (72, 72, 12));
    });
}

#[test]
fn a_damaged_block_is_healed_by_its_content() {
    let lab = Lab::new(2, 256 << 20, 12);
    lab.sim.block_on(async {
        for compression in codecs() {
            for (n, checksum) in [0, 20_000].into_iter().flat_map(|n| SUMS[..4].iter().map(move |sum| (n, *sum))) {
                lab.zio.set_opts(ZioOpts { gang_above: n, ..ZioOpts::default() });
                let data = text(3, 131_072);
                let bp = put(&lab.zio, WriteReq { compression, checksum, copies: 2, ..file(data.clone()) }).await;
                let what = format!("{} {} {bp}", compression.name(), checksum.name());
                assert!(n > 0 || !bp.is_gang(), "{what}");
                let (mut parts, mut left) = (Vec::new(), vec![bp]);
                while let Some(part) = left.pop() {
                    match part.is_gang() {
                        true => left.extend(lab.zio.gang_pieces(&part, Prio::SyncRead).await.unwrap()),
                        false => parts.push(part),
                    }
                }
                // All pieces but one.
                for part in &parts[parts.len() / 3..] {
                    part.dvas().for_each(|dva| lab.spoil(dva, 5));
                }
                assert!(get(&lab.zio, &bp).await.is_err(), "{what}");
                let remedy = |content: Bytes| Remedy { content: Some(content), stored: None, compression };
                for other in [text(4, 131_072), text(3, 65_536)] {
                    assert!(!lab.zio.heal(&bp, &remedy(other), None).await.unwrap(), "{what}");
                    assert!(get(&lab.zio, &bp).await.is_err(), "{what}");
                }
                assert!(lab.zio.heal(&bp, &remedy(data.clone()), None).await.unwrap(), "{what}");
                // Every copy is right again.
                for part in &parts {
                    lab.spoil(part.dva(0), 9);
                }
                assert_eq!(get(&lab.zio, &bp).await.unwrap(), data, "{what}");
            }
        }
        // Without a checksum nobody can tell; a hole has nothing to be healed.
        let data = text(3, 131_072);
        let remedy = Remedy { content: Some(data.clone()), stored: None, compression: Compression::OFF };
        lab.zio.set_opts(ZioOpts::default());
        let bp = put(&lab.zio, WriteReq { checksum: ChecksumAlgo::Off, ..file(data) }).await;
        for bp in [bp, Blkptr::hole()] {
            assert!(!lab.zio.heal(&bp, &remedy, None).await.unwrap());
        }
    });
}

#[test]
fn zeros_are_holes_and_small_payloads_are_embedded() {
    let lab = Lab::new(1, 64 << 20, 12);
    lab.sim.block_on(async {
        let zeros = Bytes::zeroed(131_072);
        for compression in [Compression::LZ4, Compression { algo: CompressAlgo::Empty, level: 0 }] {
            let bp = put(&lab.zio, WriteReq { compression, ..file(zeros.clone()) }).await;
            assert_eq!(bp, Blkptr::hole());
            let bp = Blkptr::punched_hole(131_072, ObjectType::PLAIN_FILE, 1, Txg(10));
            assert_eq!(get(&lab.zio, &bp).await.unwrap(), zeros);
        }
        let bp = put(&lab.zio, file(zeros.clone())).await;
        assert_eq!((bp.psize(), bp.ndvas()), (131_072, 1), "without compression zeros are stored");

        // (128 KiB of anything makes more than 112 bytes of gzip.)
        for (algo, size) in [(CompressAlgo::Gzip6, 16384), (CompressAlgo::Zstd, 131_072)] {
            let compression = Compression { algo, level: 0 };
            let mut small = Buf::zeroed(size);
            small[..40].copy_from_slice(&noise(1, 40));
            let small = small.freeze();
            let req = WriteReq { compression, embed: true, ..file(small.clone()) };
            let out = lab.zio.write(req.clone()).await.unwrap();
            assert!(out.bp.is_embedded() && out.done.is_done(), "{:?}", out.bp);
            assert_eq!((out.bp.lsize(), out.bp.birth(), out.bp.fill()), (size as u64, Txg(10), 1));
            assert_eq!(get(&lab.zio, &out.bp).await.unwrap(), small);
            for not in [
                WriteReq { level: 1, ..req.clone() },
                WriteReq { otype: ObjectType::DNODE, ..req.clone() },
                WriteReq { embed: false, ..req.clone() },
            ] {
                let bp = put(&lab.zio, not).await;
                assert!(!bp.is_embedded() && bp.psize() == 4096);
            }
        }
        // A block smaller than the allocation unit still fits in its pointer.
        let tiny = Bytes::copy_from(&[9; 512]);
        let bp = put(&lab.zio, WriteReq { compression: Compression::LZ4, embed: true, ..file(tiny.clone()) }).await;
        assert!(bp.is_embedded());
        assert_eq!(get(&lab.zio, &bp).await.unwrap(), tiny);
        assert_eq!((lab.zio.stats().holes, lab.zio.stats().embedded), (2, 3));
    });
}

#[test]
fn an_uncompressed_block_is_not_copied() {
    let lab = Lab::new(1, 64 << 20, 12);
    lab.sim.block_on(async {
        let data = noise(5, 131_072);
        let prepared = lab.zio.prepare(WriteReq { compression: Compression::LZ4, ..file(data.clone()) }).await.unwrap();
        assert_eq!(prepared.psize(), 131_072);
        assert!(!data.is_unique(), "the request holds the same memory");
        let out = lab.zio.issue(prepared).await.unwrap();
        assert!(!out.done.is_done(), "the pointer is final before the disk is done");
        assert_eq!(out.stored.as_deref(), Some(&data[..]));
        drop(out.stored);
        out.done.await.unwrap();
        assert!(data.is_unique(), "the device is done with it");
    });
}

#[test]
fn blocks_of_this_txg_are_overwritten_in_place_from_pass_two_on() {
    let lab = Lab::new(2, 64 << 20, 12);
    lab.sim.block_on(async {
        let first = lab.zio.write(WriteReq { copies: 2, ..file(noise(1, 8192)) }).await.unwrap();
        let again = |pass, txg, len| WriteReq {
            copies: 2,
            pass,
            txg: Txg(txg),
            rewrite: Some(first.bp),
            ..file(noise(2, len))
        };
        // While the first write is in flight.
        let out = lab.zio.write(again(2, 10, 8192)).await.unwrap();
        assert!(out.rewritten_in_place && out.bp.same_place(&first.bp) && out.bp != first.bp);
        first.done.await.unwrap();
        out.done.await.unwrap();
        assert_eq!(get(&lab.zio, &out.bp).await.unwrap(), noise(2, 8192));
        for req in
            [again(1, 10, 8192), again(2, 11, 8192), again(2, 10, 4096), WriteReq { copies: 1, ..again(2, 10, 8192) }]
        {
            let out = lab.zio.write(req).await.unwrap();
            assert!(!out.rewritten_in_place && !out.bp.same_place(&first.bp));
            out.done.await.unwrap();
        }
        assert_eq!(lab.zio.stats().rewrites, 1);
    });
}

/// A list of frees that is rewritten to a new place in each pass grows in each pass.
#[test]
fn gang_blocks_of_metadata_are_overwritten_in_place_too() {
    let lab = Lab::new(2, 64 << 20, 12);
    lab.sim.block_on(async {
        lab.zio.set_opts(ZioOpts { gang_above: 20_000, ..ZioOpts::default() });
        let meta = |data| WriteReq { copies: 2, otype: ObjectType::SPACE_MAP, ..file(data) };
        let first = lab.zio.write(meta(noise(1, 65536))).await.unwrap();
        assert!(first.bp.is_gang());
        let again = |pass, txg, len| WriteReq { pass, txg: Txg(txg), rewrite: Some(first.bp), ..meta(noise(2, len)) };
        let out = lab.zio.write(again(2, 10, 65536)).await.unwrap();
        assert!(out.rewritten_in_place && out.bp.same_place(&first.bp) && out.bp != first.bp);
        first.done.await.unwrap();
        out.done.await.unwrap();
        assert_eq!(get(&lab.zio, &out.bp).await.unwrap(), noise(2, 65536));
        for req in [again(1, 10, 65536), again(2, 10, 32768), again(2, 11, 65536)] {
            let out = lab.zio.write(req).await.unwrap();
            assert!(!out.rewritten_in_place && !out.bp.same_place(&first.bp));
            out.done.await.unwrap();
        }
        assert_eq!(lab.zio.stats().rewrites, 1);
    });
}

/// With the feature a header is as large as a unit of allocation: one level has many pieces. Old
/// headers are read as before, and what a header lacks is made good by its other copies.
#[test]
fn large_gang_headers_have_many_pieces() {
    let lab = Lab::new(2, 64 << 20, 12);
    lab.sim.block_on(async {
        let small = ZioOpts { gang_above: 20_000, ..ZioOpts::default() };
        let large = ZioOpts { large_gang_headers: true, ..small };
        lab.zio.set_opts(small);
        let old = put(&lab.zio, WriteReq { copies: 2, ..file(noise(1, 131_072)) }).await;
        lab.zio.set_opts(large);
        assert_eq!(get(&lab.zio, &old).await.unwrap(), noise(1, 131_072), "an old header");
        let bp = put(&lab.zio, WriteReq { copies: 2, ..file(noise(2, 131_072)) }).await;
        let pieces = lab.zio.gang_pieces(&bp, Prio::SyncRead).await.unwrap();
        assert!(bp.is_gang() && pieces.len() == 7 && pieces.iter().all(|p| !p.is_gang()), "{pieces:?}");
        let sum = |copy: usize| pieces.iter().map(|p| p.dva(copy).asize()).sum::<u64>();
        assert_eq!((bp.dva(0).asize(), bp.dva(2).asize()), (4096 + sum(0), 4096), "a header takes one unit");
        assert_eq!(get(&lab.zio, &bp).await.unwrap(), noise(2, 131_072));
        // Its checksum is at the end of the unit.
        lab.spoil(bp.dva(0), 4090);
        lab.spoil(bp.dva(1), 3);
        assert_eq!(get(&lab.zio, &bp).await.unwrap(), noise(2, 131_072));
        lab.spoil(bp.dva(2), 700);
        assert!(get(&lab.zio, &bp).await.is_err(), "no copy of the header is left");
        lab.zio.free_gang(&old, Txg(10)).await.unwrap();
    });
}

/// The bound on a turn holds (`sim` asserts it), and the time that the work takes passes.
#[test]
fn work_on_large_blocks_is_done_in_the_cpu_pool() {
    const SIZE: u64 = 16 << 20;
    let lab = Lab::new(1, 256 << 20, 12);
    let since = |before: base::Nanos| lab.sim.cpu_busy().since(before);
    lab.sim.block_on(async {
        lab.zio.set_opts(ZioOpts { gang_above: 6 << 20, ..ZioOpts::default() });
        let (sum, copy) = (rt::cost::SHA512.cost(SIZE), rt::cost::COPY.cost(SIZE));
        let data = noise(1, SIZE as usize);
        let mut req = WriteReq { checksum: ChecksumAlgo::Sha512, otype: ObjectType::SPACE_MAP, ..file(data.clone()) };
        // Written, and overwritten in its places: its own checksum, and those of its three pieces.
        let mut bp = Blkptr::hole();
        for pass in 1..3 {
            req = WriteReq { pass, rewrite: (pass > 1).then_some(bp), ..req };
            let before = lab.sim.cpu_busy();
            let out = lab.zio.write(req.clone()).await.unwrap();
            out.done.await.unwrap();
            bp = out.bp;
            assert!(bp.is_gang() && out.rewritten_in_place == (pass > 1));
            assert!(since(before).0 + 10 >= 2 * sum.0, "{:?} in pass {pass}", since(before));
        }
        let before = lab.sim.cpu_busy();
        assert_eq!(get(&lab.zio, &bp).await.unwrap(), data);
        assert!(since(before).0 + 10 >= 2 * sum.0 + copy.0, "{:?}", since(before));

        let zeros = WriteReq { compression: Compression::LZ4, ..file(Bytes::zeroed(SIZE as usize)) };
        let before = lab.sim.cpu_busy();
        assert!(put(&lab.zio, zeros).await.is_hole());
        assert!(since(before) >= rt::cost::COPY.cost(SIZE - 512), "{:?}", since(before));
    });
}

#[test]
fn a_claim_takes_every_piece() {
    let lab = Lab::new(1, 64 << 20, 12);
    lab.sim.block_on(async {
        lab.zio.set_opts(ZioOpts { gang_above: 20_000, ..ZioOpts::default() });
        let bp = put(&lab.zio, WriteReq { copies: 2, ..file(noise(1, 1 << 20)) }).await;
        assert!(bp.is_gang());
        commit(&lab, Txg(10));
        let used = lab.alloc.space(ClassKind::Normal).alloc_raw;
        lab.zio.free_gang(&bp, Txg(11)).await.unwrap();
        for t in 11..15 {
            commit(&lab, Txg(t));
        }
        assert_eq!(lab.alloc.space(ClassKind::Normal).alloc_raw, 0);
        // The bytes are still on the device, as those of a log's blocks are after a crash.
        lab.zio.claim(&bp, Txg(15)).await.unwrap();
        commit(&lab, Txg(15));
        assert_eq!(lab.alloc.space(ClassKind::Normal).alloc_raw, used);
        assert!(lab.zio.claim(&bp, Txg(16)).await.is_err(), "it is taken");
    });
}

#[test]
fn what_is_freed_is_free() {
    let lab = Lab::new(1, 64 << 20, 12);
    lab.sim.block_on(async {
        let mut gang = Vec::new();
        for forced in [0, 20_000] {
            lab.zio.set_opts(ZioOpts { gang_above: forced, ..ZioOpts::default() });
            for n in 0..20 {
                gang.push(put(&lab.zio, WriteReq { copies: 1 + n % 3, ..file(noise(u64::from(n), 65536)) }).await);
            }
        }
        assert!(gang[0].ndvas() > 0 && !gang[0].is_gang() && gang[20].is_gang());
        // Accounting is the same whichever way the block is stored, plus headers.
        assert_eq!(lab.zio.dsize(&gang[0]), 65536);
        for bp in &gang[20..] {
            assert_eq!(bp.dva(0).asize(), gang_space(&lab, bp).await);
        }
        commit(&lab, Txg(10));
        let used = lab.alloc.space(ClassKind::Normal).alloc_raw;
        assert!(used > 0);
        for bp in &gang {
            lab.zio.free_gang(bp, Txg(11)).await.unwrap();
        }
        for t in 11..15 {
            commit(&lab, Txg(t));
        }
        assert_eq!(lab.alloc.space(ClassKind::Normal).alloc_raw, 0, "no piece and no header is forgotten");
        assert!(lab.zio.free(&gang[0], Txg(15)).is_err() || !lab.alloc.dirty_metaslabs(Txg(15)).is_empty());
    });
}

/// Allocated bytes of the first copies of all headers and pieces of a gang block.
async fn gang_space(lab: &Lab, bp: &Blkptr) -> u64 {
    let mut bytes = 0;
    let mut todo = vec![*bp];
    while let Some(bp) = todo.pop() {
        if bp.is_gang() {
            bytes += 4096;
            let block = lab.zio.read_raw(bp.dva(0), 512, bp.phys_birth(), Prio::SyncRead).await.unwrap();
            todo.extend(ondisk::gang::parse(&block, &bp).unwrap().into_iter().filter(|c| !c.is_hole()));
        } else {
            bytes += bp.dva(0).asize();
        }
    }
    bytes
}

fn commit(lab: &Lab, txg: Txg) {
    for (vdev, ms) in lab.alloc.dirty_metaslabs(txg) {
        lab.alloc.take_changes(vdev, ms, txg);
        lab.alloc.set_object(vdev, ms, base::ObjectId(1));
    }
    lab.alloc.sync_done(txg);
}

#[test]
fn gang_blocks_come_back_whole_and_say_what_is_damaged() {
    let lab = Lab::new(2, 128 << 20, 9);
    lab.sim.block_on(async {
        for forced in [512, 1024, 5000, 43_000] {
            lab.zio.set_opts(ZioOpts { gang_above: forced, ..ZioOpts::default() });
            for (compression, checksum) in [
                (Compression::OFF, ChecksumAlgo::Fletcher4),
                (Compression::LZ4, ChecksumAlgo::Sha256),
                (Compression::LZ4, ChecksumAlgo::Off),
            ] {
                let data = text(forced, 131_072);
                let bp = put(&lab.zio, WriteReq { compression, checksum, copies: 2, ..file(data.clone()) }).await;
                if bp.psize() <= forced {
                    continue;
                }
                assert!(bp.is_gang() && bp.ndvas() == 3, "one copy more of the header: {bp}");
                assert_eq!(get(&lab.zio, &bp).await.unwrap(), data);
                // One header copy less, then another: the third is as good.
                lab.spoil(bp.dva(0), 3);
                lab.spoil(bp.dva(1), 500);
                assert_eq!(get(&lab.zio, &bp).await.unwrap(), data);
                // A piece: both of its copies must go.
                let block = lab.zio.read_raw(bp.dva(2), 512, bp.phys_birth(), Prio::SyncRead).await.unwrap();
                let mut piece = ondisk::gang::parse(&block, &bp).unwrap()[1];
                while piece.is_gang() {
                    let block = lab.zio.read_raw(piece.dva(0), 512, piece.phys_birth(), Prio::SyncRead).await.unwrap();
                    piece = ondisk::gang::parse(&block, &piece).unwrap()[0];
                }
                lab.spoil(piece.dva(0), 0);
                if checksum != ChecksumAlgo::Off {
                    assert_eq!(get(&lab.zio, &bp).await.unwrap(), data);
                    lab.spoil(piece.dva(1), 0);
                    assert_eq!(get(&lab.zio, &bp).await.unwrap_err().kind(), ErrorKind::Checksum);
                }
                lab.spoil(bp.dva(2), 0);
                assert_eq!(get(&lab.zio, &bp).await.unwrap_err().kind(), ErrorKind::Checksum);
            }
        }
    });
}

#[test]
fn a_full_pool_gangs_then_says_no_space_and_leaks_nothing() {
    let lab = Lab::new(1, 16 << 20, 12);
    lab.sim.block_on(async {
        // Fill it with 8 KiB blocks and free every other one: no 128 KiB run is left.
        let mut blocks = Vec::new();
        loop {
            match lab.zio.write(file(noise(blocks.len() as u64, 8192))).await {
                Ok(out) => {
                    out.done.await.unwrap();
                    blocks.push(out.bp);
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NoSpace);
                    break;
                }
            }
        }
        let full = blocks.iter().filter(|b| !b.is_gang()).count();
        assert!(full >= 2000, "{full}");
        commit(&lab, Txg(10));
        for bp in blocks.iter().step_by(2) {
            lab.zio.free_gang(bp, Txg(11)).await.unwrap();
        }
        for t in 11..15 {
            commit(&lab, Txg(t));
        }
        let before = lab.alloc.space(ClassKind::Normal).alloc_raw;
        let data = noise(9, 131_072);
        let bp = put(&lab.zio, WriteReq { txg: Txg(15), copies: 2, ..file(data.clone()) }).await;
        assert!(bp.is_gang() && lab.zio.stats().gangs > 0);
        assert_eq!(get(&lab.zio, &bp).await.unwrap(), data);
        for (i, b) in blocks.iter().enumerate().skip(1).step_by(2) {
            assert_eq!(get(&lab.zio, b).await.unwrap(), noise(i as u64, 8192));
        }
        // Larger than the remaining space: refused, and partial allocations are returned.
        let huge = noise(10, 16 << 20);
        let e = lab.zio.write(WriteReq { txg: Txg(15), ..file(huge) }).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        commit(&lab, Txg(15));
        lab.zio.free_gang(&bp, Txg(16)).await.unwrap();
        for t in 16..20 {
            commit(&lab, Txg(t));
        }
        assert_eq!(lab.alloc.space(ClassKind::Normal).alloc_raw, before);
    });
}

/// A block as a big-endian machine would have written it.
fn big_endian(lab: &Lab, bp: &mut Blkptr, stored: &[u8], checksum: ChecksumAlgo) {
    let dva = Dva::new(VdevId(0), 1 << 20, (stored.len() as u64).next_multiple_of(4096), false);
    lab.devs[0].poke(DATA_START + dva.offset(), stored);
    bp.set_dva(0, dva);
    bp.set_psize(stored.len() as u64);
    bp.set_checksum(checksum as u8);
    bp.set_checksum_words(codec::compute(checksum, stored, true, None).unwrap().0);
    bp.set_little_endian(false);
    bp.set_birth(Txg(3), Txg(3));
}

#[test]
fn big_endian_blocks_are_converted_by_type() {
    let lab = Lab::new(1, 64 << 20, 12);
    lab.sim.block_on(async {
        let words: Vec<u64> = (0..2048u64).map(|n| n * 0x1_0001).collect();
        let be: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        let le: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        for checksum in [ChecksumAlgo::Fletcher4, ChecksumAlgo::Fletcher2, ChecksumAlgo::Sha256] {
            for compression in [Compression::OFF, Compression::LZJB] {
                let stored = if compression == Compression::OFF {
                    be.clone()
                } else {
                    let mut out = vec![0; be.len()];
                    let n = codec::compress(compression, &be, &mut out, be.len()).unwrap();
                    out.truncate(n.next_multiple_of(512));
                    out
                };
                for (otype, level, want) in [
                    (ObjectType::OBJECT_ARRAY, 0, &le),
                    (ObjectType::PLAIN_FILE, 0, &be),
                    (ObjectType::PLAIN_FILE, 1, &le),
                ] {
                    let mut bp = Blkptr::hole();
                    bp.set_lsize(be.len() as u64);
                    bp.set_compress(compression.algo as u8);
                    bp.set_otype(otype);
                    bp.set_level(level);
                    big_endian(&lab, &mut bp, &stored, checksum);
                    assert_eq!(&get(&lab.zio, &bp).await.unwrap()[..], &want[..], "{bp:?}");
                }
            }
        }
    });
}

#[test]
fn hostile_pointers_are_errors() {
    let lab = Lab::new(1, 64 << 20, 12);
    lab.sim.block_on(async {
        let data = text(1, 131_072);
        let good = put(&lab.zio, WriteReq { compression: Compression::LZ4, ..file(data.clone()) }).await;
        let change = |f: &dyn Fn(&mut Blkptr)| {
            let mut bp = good;
            f(&mut bp);
            bp
        };
        let cases: Vec<(Blkptr, ErrorKind)> = vec![
            (change(&|b| b.set_dva(0, Dva::new(VdevId(7), 0, 65536, false))), ErrorKind::Corrupt),
            (change(&|b| b.set_dva(0, Dva::new(VdevId(0), 64 << 20, 131_072, false))), ErrorKind::Corrupt),
            (change(&|b| b.set_dva(0, Dva { w0: b.0[0], w1: (1 << 55) - 1 })), ErrorKind::Corrupt),
            (change(&|b| b.set_dva(0, Dva { w0: b.0[0], w1: b.0[1] + 1 })), ErrorKind::Corrupt),
            (change(&|b| b.set_dva(0, Dva { w0: b.0[0], w1: b.0[1] | 1 << 63 })), ErrorKind::Checksum),
            (change(&|b| b.set_psize(33_554_432)), ErrorKind::Corrupt),
            (change(&|b| b.set_lsize(33_554_432)), ErrorKind::Corrupt),
            (change(&|b| b.set_lsize(b.psize())), ErrorKind::Corrupt),
            (change(&|b| b.set_compress(1)), ErrorKind::Corrupt),
            (change(&|b| b.set_compress(4)), ErrorKind::Corrupt),
            (change(&|b| b.set_compress(16)), ErrorKind::Corrupt),
            (change(&|b| b.set_compress(17)), ErrorKind::Corrupt),
            (change(&|b| b.set_checksum(0)), ErrorKind::Corrupt),
            (change(&|b| b.set_checksum(3)), ErrorKind::Unsupported),
            // Skein, where no salt is known.
            (change(&|b| b.set_checksum(12)), ErrorKind::Corrupt),
            (change(&|b| b.set_checksum(99)), ErrorKind::Corrupt),
            (change(&|b| b.set_otype(ObjectType(54))), ErrorKind::Corrupt),
            (change(&|b| b.set_level(31)), ErrorKind::Corrupt),
            (change(&|b| b.set_encrypted(true)), ErrorKind::Unsupported),
            (change(&|b| b.set_birth(Txg(0), Txg(0))), ErrorKind::Corrupt),
            (change(&|b| b.set_little_endian(false)), ErrorKind::Checksum),
        ];
        for (bp, kind) in cases {
            let e = get(&lab.zio, &bp).await.unwrap_err();
            assert_eq!(e.kind(), kind, "{bp:?}: {e}");
        }
        // Embedded ones.
        let embedded = Blkptr::embedded(&[1, 2, 3, 4, 5], 131_072, 15, ObjectType::PLAIN_FILE, 0, Txg(3));
        assert_eq!(get(&lab.zio, &embedded).await.unwrap_err().kind(), ErrorKind::Corrupt);
        let raw = Blkptr::embedded(&[7; 100], 100, 2, ObjectType::PLAIN_FILE, 0, Txg(3));
        assert_eq!(&get(&lab.zio, &raw).await.unwrap()[..], &[7; 100]);
        let mut redacted = raw;
        redacted.0[6] = redacted.0[6] & !(0xff << 40) | 2 << 40;
        assert_eq!(get(&lab.zio, &redacted).await.unwrap_err().kind(), ErrorKind::Io);
        // Words at random, and a good pointer with bits flipped: no panic, no hang, and never other
        // bytes than the block's.
        let mut x = 12345u64;
        let mut next = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            x >> 11
        };
        for _ in 0..2000 {
            let bp = Blkptr(std::array::from_fn(|_| next() << 11 ^ next()));
            let _ = get(&lab.zio, &bp).await;
            let mut bp = good;
            for _ in 0..1 + next() % 3 {
                let bit = next() as usize % 1024;
                bp.0[bit / 64] ^= 1 << (bit % 64);
            }
            if let Ok(got) = get(&lab.zio, &bp).await
                && !bp.is_hole()
                && !bp.is_embedded()
                && bp.checksum_words() == good.checksum_words()
                && bp.0[6] == good.0[6]
            {
                assert_eq!(got, data, "{bp:?}");
            }
        }
    });
}

#[test]
fn gang_headers_that_nest_without_end_are_refused() {
    let lab = Lab::new(1, 64 << 20, 9);
    lab.sim.block_on(async {
        // A header whose only child is a gang of the same size, namely itself.
        let mut bp = Blkptr::hole();
        bp.set_lsize(4096);
        bp.set_psize(4096);
        bp.set_compress(2);
        bp.set_checksum(7);
        bp.set_little_endian(true);
        bp.set_birth(Txg(3), Txg(3));
        bp.set_dva(0, Dva::new(VdevId(0), 1 << 20, 8192, true));
        let header = ondisk::gang::build(&[bp, Blkptr::hole(), Blkptr::hole()], &bp, 512);
        lab.devs[0].poke(DATA_START + (1 << 20), &header);
        let e = get(&lab.zio, &bp).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
        assert_eq!(lab.zio.free_gang(&bp, Txg(9)).await.unwrap_err().kind(), ErrorKind::Corrupt);
    });
}

#[test]
fn a_copy_that_a_device_refuses_is_no_failure_unless_it_is_the_last() {
    let disks: Rc<RefCell<Vec<SimDisk>>> = Rc::default();
    let d = disks.clone();
    let lab = Lab::over(SimConfig::seeded(3), 2, 64 << 20, 12, move |sim, bytes| {
        let disk = SimDisk::new(sim, bytes, Model::nvme(), 1);
        d.borrow_mut().push(disk.clone());
        Rc::new(disk)
    });
    let disks = disks.borrow();
    lab.sim.block_on(async {
        let two = |n| WriteReq { copies: 2, ..file(noise(n, 131_072)) };
        let fault = disks[0].fault(Fault::Offline);
        let bp = put(&lab.zio, two(1)).await;
        assert_ne!(bp.dva(0).vdev(), bp.dva(1).vdev());
        assert_eq!(lab.zio.stats().write_errors, 1);
        assert_eq!(get(&lab.zio, &bp).await.unwrap(), noise(1, 131_072));
        disks[1].fault(Fault::Offline);
        let out = lab.zio.write(two(2)).await.unwrap();
        assert_eq!(out.done.await.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(get(&lab.zio, &bp).await.unwrap_err().kind(), ErrorKind::Io);
        disks[0].unfault(fault);
        // A gang block needs one copy of each of its pieces and headers.
        lab.zio.set_opts(ZioOpts { gang_above: 20_000, ..ZioOpts::default() });
        let bp = put(&lab.zio, two(3)).await;
        assert_eq!(get(&lab.zio, &bp).await.unwrap(), noise(3, 131_072));
        // With one copy of each piece it depends on where they are.
        let mut failed = 0;
        for n in 0..20 {
            let out = lab.zio.write(WriteReq { copies: 1, ..two(n) }).await.unwrap();
            failed += u32::from(out.done.await.is_err());
        }
        assert!((1..20).contains(&failed), "{failed} of 20");
        assert!(lab.zio.stats().write_errors > 3);
    });
}

#[test]
fn fewer_copies_are_legal() {
    // Room for one copy of this size only.
    let lab = Lab::new(1, 16 << 20, 12);
    lab.sim.block_on(async {
        let data = noise(1, 1 << 20);
        let mut short = 0;
        for _ in 0..15 {
            let out = lab.zio.write(WriteReq { copies: 3, ..file(data.clone()) }).await;
            match out {
                Ok(out) => {
                    out.done.await.unwrap();
                    short += usize::from(out.bp.ndvas() < 3 && !out.bp.is_gang());
                    assert_eq!(get(&lab.zio, &out.bp).await.unwrap(), data);
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace),
            }
        }
        assert!(short > 0 && lab.zio.stats().copies_short > 0);
    });
}
