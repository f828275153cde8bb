//! Damaged streams: an answer or an error, never a panic, and no memory beyond what came.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::io::Cursor;

use codec::checksum::Endian;
use codec::compress::Compression;
use ondisk::nvlist::NvList;
use zstream::{DumpOpts, decompress, drop_record, dump, recompress, redup};

use common::{Rng, join_in, package, substream};

/// Changes a few bytes, cuts, or repeats a part.
fn damage(rng: &mut Rng, stream: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(stream.len() as u64) as usize;
        match rng.below(6) {
            0 => stream.truncate(at.max(1)),
            1 => stream[at] = rng.next() as u8,
            2 => stream[at] ^= 1 << rng.below(8),
            3 => {
                let end = (at + 8).min(stream.len());
                stream[at..end].fill(if rng.below(2) == 0 { 0xff } else { 0 });
            }
            // Types and lengths of records are hit seldom by chance.
            4 => {
                let record = at / 312 * 312;
                stream[record] = rng.below(12) as u8;
            }
            _ => {
                let to = rng.below(stream.len() as u64) as usize;
                let part = stream[at..].iter().take(312).copied().collect::<Vec<u8>>();
                stream.splice(to..to, part);
            }
        }
    }
}

#[test]
fn a_damaged_stream_gives_an_answer_or_an_error() {
    let list = NvList::new().with_str("tosnap", "monday").with_list("fss", NvList::new().with_u64("0x1", 1));
    let (mut good, mut bad) = (0, 0);
    for seed in 0..1500 {
        let mut rng = Rng(seed);
        let raw = rng.below(2) == 0;
        let subs = [substream(&mut rng, 8, raw)];
        let order = if rng.below(4) == 0 { Endian::Big } else { Endian::Little };
        let mut stream = match rng.below(2) {
            0 => join_in(&subs[0], order),
            _ => join_in(&package(&list, &subs), order),
        };
        damage(&mut rng, &mut stream);
        let mut out = Vec::new();
        let opts = DumpOpts { records: true, sums: true, data: true, ignore_sums: true };
        let results = [
            dump(&mut &stream[..], &mut out, DumpOpts { ignore_sums: false, ..opts }).map(drop),
            dump(&mut &stream[..], &mut out, opts).map(drop),
            recompress(&mut &stream[..], &mut out, Compression::parse("lz4").unwrap()).map(drop),
            decompress(&mut &stream[..], &mut out, &BTreeMap::new(), &mut |_, _| {}).map(drop),
            drop_record(&mut &stream[..], &mut out, &[], &mut |_, _| {}).map(drop),
            redup(&mut &stream[..], &mut Cursor::new(&stream), &mut out).map(drop),
        ];
        for result in results {
            match result {
                Ok(()) => good += 1,
                Err(e) => {
                    bad += 1;
                    let text = e.to_string();
                    assert!(!text.is_empty() && !text.contains('\n'), "seed {seed}: {text}");
                }
            }
        }
    }
    // Both must come, or the damage is not what this test is about.
    assert!(good > 200 && bad > 2000, "{good} answers, {bad} errors");
}
