//! Space maps from hostile bytes; entries that decode are encoded again and decode to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::space_map::{Encoder, Entry, MapType, SpaceMapPhys, entries};
use weir_fuzz::{after, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for v2 in [false, true] {
        let mut enc = Encoder::new(9, 4096, 0, v2);
        enc.group(MapType::Alloc, 1, 77);
        enc.run(MapType::Alloc, 0x1000, 0x4000);
        enc.run(MapType::Free, 0x200, 1 << 30);
        out.push(after(&[9], enc.bytes()));
    }
    out
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&shift, data)) = input.split_first() else { return };
    let shift = u32::from(shift % 20);
    let _ = SpaceMapPhys::parse(data);
    let decoded: Vec<_> = entries(data, shift).collect();
    assert!(decoded.len() <= data.len() / 8 + 1);
    let Ok(decoded) = decoded.into_iter().collect::<Result<Vec<_>, _>>() else { return };
    let runs: Vec<_> = decoded.iter().filter(|e| matches!(e, Entry::Run { .. })).copied().collect();
    let mut enc = Encoder::new(shift, 4096, 0, true);
    let mut want = Vec::new();
    for e in &runs {
        let Entry::Run { kind, offset, size, .. } = *e else { unreachable!() };
        enc.run(kind, offset, size);
        want.push((kind, offset, size));
    }
    let got: Vec<_> = entries(enc.bytes(), shift)
        .filter_map(|e| match e.expect("what was encoded") {
            Entry::Run { kind, offset, size, .. } => Some((kind, offset, size)),
            _ => None,
        })
        .collect();
    assert_eq!(got, want);
});
