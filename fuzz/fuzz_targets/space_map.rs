//! Space maps from hostile bytes; what decodes is encoded again and decodes to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::space_map::{Encoder, Entry, SpaceMapPhys, entries};

fuzz_target!(|input: &[u8]| {
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
