//! Headers and log blocks of cache devices from hostile bytes: a pointer that is valid lies within
//! the ring, and what is read comes back when it is written again.
//!
//! Input: the kind of test (1 byte): header or log block, compressed or not; then the bytes, which
//! get the right checksum, so that the code behind it is reached.
#![no_main]

use base::{Guid, Txg, VdevId};
use libfuzzer_sys::fuzz_target;
use ondisk::blkptr::Dva;
use ondisk::l2arc::{DevHeader, HEADER_OFFSET, HEADER_SIZE, LOG_BLOCK_SIZE, LogBlock, LogEntry, LogPtr, Prop, Ring};
use weir_fuzz::{after, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let dva = Dva::new(VdevId(0), 0x4000, 0x2000, false);
    let entry = |n: u64| LogEntry { dva, birth: Txg(n), prop: Prop::new(8192, 4096, 15), addr: n << 12, level: 0 };
    let block = LogBlock { prev: LogPtr::default(), entries: (1025..1030).map(entry).collect() };
    let (packed, prop, checksum) = block.pack(512);
    let newest = LogPtr { addr: 1030 << 12, payload_asize: 5 << 12, payload_start: 1025 << 12, prop, checksum };
    let header = DevHeader {
        pool: Guid(1),
        vdev: Guid(2),
        log_entries: 5,
        evict: 1025 << 12,
        first: true,
        start: 1025 << 12,
        end: 9000 << 12,
        log: [newest, LogPtr::default()],
        log_asize: prop.psize(),
        log_count: 1,
        trim_time: 0,
        trim_state: 0,
    };
    let mut sector = [0; HEADER_SIZE];
    header.write_to(&mut sector);
    vec![after(&[0], &sector), after(&[15], &packed), after(&[2], &[0; LOG_BLOCK_SIZE])]
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&kind, data)) = input.split_first() else { return };
    if kind > 0 {
        let checksum = codec::compute(codec::ChecksumAlgo::Fletcher4, data, false, None).expect("a checksum").0;
        let ptr = LogPtr { prop: Prop::new(LOG_BLOCK_SIZE as u64, 512, kind), checksum, ..LogPtr::default() };
        let Ok(block) = LogBlock::unpack(data, &ptr, u64::from(kind) * 5) else { return };
        let (packed, prop, checksum) = block.pack(512);
        let again = LogBlock::unpack(&packed, &LogPtr { prop, checksum, ..ptr }, block.entries.len() as u64);
        assert_eq!(again.expect("it was just packed"), block);
        return;
    }
    let _ = DevHeader::parse(data);
    let mut sector = [0; HEADER_SIZE];
    let n = data.len().min(HEADER_SIZE);
    sector[..n].copy_from_slice(&data[..n]);
    codec::embedded_sha256_seal(&mut sector, [HEADER_OFFSET, 0, 0, 0]);
    let Ok(header) = DevHeader::parse(&sector) else { return };
    let ring = Ring { start: header.start, end: header.end, hand: header.log[0].addr, evict: header.evict, first: header.first };
    for ptr in header.log {
        if ptr.is_valid(&ring) {
            assert!(ptr.payload_start >= ring.start && ptr.addr + ptr.asize() - 1 <= ring.end);
        }
    }
    let mut again = [0; HEADER_SIZE];
    header.write_to(&mut again);
    assert_eq!(DevHeader::parse(&again).expect("it was just written"), header);
});
