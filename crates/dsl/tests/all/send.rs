//! Streams against those of a kernel: the pool `streams` of the collection has snapshots and the
//! streams that the kernel made of them, and weir's streams are the same bytes.
//!
//! The pools are in `../shared/pools` beside the project; without them a test says NOT RUN.

use std::rc::Rc;

use bdev::BlockDev;
use dsl::send::SendOpts;
use ondisk::stream::{RECORD_SIZE, StreamReader};
use sim::{DiskImage, Model, Sim, SimConfig, SimDisk};
use spa::{ImportOpts, Pool};

use crate::streams::{Collect, unpack};

/// The first place where two streams differ, in words.
fn difference(ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let (mut a, mut b, mut at) = (StreamReader::without_sums(), StreamReader::without_sums(), 0);
    loop {
        let record = |reader: &mut StreamReader, bytes: &[u8], at: usize| {
            let head = bytes.get(at..at + RECORD_SIZE)?.try_into().unwrap();
            let frame = reader.record(head).unwrap();
            let len = reader.payload_left() as usize;
            let payload = bytes[at + RECORD_SIZE..at + RECORD_SIZE + len].to_vec();
            reader.payload(&payload);
            Some((frame.record, payload))
        };
        let (x, y) = (record(&mut a, ours, at), record(&mut b, theirs, at));
        if x != y {
            let name = |r: &Option<(ondisk::stream::Record, Vec<u8>)>| r.as_ref().map(|r| format!("{:?}", r.0));
            return Some(format!("at byte {at}: {:?} is to be {:?}", name(&x), name(&y)));
        }
        at += RECORD_SIZE + x.map_or(0, |r| r.1.len());
    }
}

#[test]
fn streams_are_those_of_a_kernel() {
    let Some(dir) = unpack() else { return };
    let image = DiskImage::load(dir.join("d0.img")).unwrap();
    let sim = Sim::new(SimConfig::seeded(1));
    let disk = SimDisk::from_image(&sim.handle(), image, Model::random(), 1);
    let out = sim.block_on(async {
        let devices: Vec<Rc<dyn BlockDev>> = vec![disk.dev()];
        let candidate = spa::scan(devices).await.remove(0);
        let import = ImportOpts { readonly: true, ..ImportOpts::default() };
        let pool = Pool::import(sim.rt(), candidate, import, spa::EngineOpts::for_memory(256 << 20)).await.unwrap();
        let mut out = Vec::new();
        let compressed = SendOpts { compressed: true, embedded: true, ..SendOpts::default() };
        for (file, to, from, opts) in [
            ("full", "str/src@1", None, SendOpts::default()),
            ("incremental", "str/src@2", Some("str/src@1"), SendOpts::default()),
            ("compressed", "str/src@1", None, compressed),
            ("raw", "str/enc@1", None, SendOpts { raw: true, ..SendOpts::default() }),
        ] {
            let mut sink = Collect::default();
            let sent = pool.dsl().send(to, from, opts, &mut sink).await.unwrap();
            assert_eq!(sent.bytes, sink.0.len() as u64);
            let theirs = std::fs::read(dir.join(format!("{file}.zstream"))).unwrap();
            out.extend(difference(&sink.0, &theirs).map(|d| format!("{file}: {d}")));
        }
        out
    });
    assert!(out.is_empty(), "{}", out.join("\n"));
}
