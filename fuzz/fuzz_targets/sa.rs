//! System attribute buffers, registries, layouts, ACLs and znodes from hostile bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::sa::{self, AttrTable, Layouts};
use ondisk::zap::ZapValue;
use ondisk::zpl;
use weir_fuzz::{after, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let values: [(&[u8], bool); 3] = [(&[1; 8], false), (&[2; 8], false), (b"variable", true)];
    let aces = [0u8; 24];
    vec![
        after(&[2, 3], &after(&[5, 6, 7], &sa::build(2, &values))),
        after(&[2, 0], &sa::build(2, &values)),
        after(&[0, 0], &aces),
    ]
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&[n, layout], data)) = input.split_first_chunk() else { return };
    let mut table = AttrTable::standard();
    if n & 1 != 0 {
        let entries: Vec<(String, u64)> = data
            .chunks_exact(8)
            .map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes")))
            .map(|v| (format!("attr{}", v & 0xffff), v & 0xff_ffff_ffff))
            .collect();
        if let Ok(t) = AttrTable::from_registry(entries.iter().map(|(n, v)| (n.as_str(), *v))) {
            table = t;
            table.add_missing();
        }
    }
    let mut layouts = Layouts::default();
    let seq: Vec<u8> = data.iter().take(usize::from(layout % 40)).copied().collect();
    let _ = layouts.add_entry(b"2", &ZapValue { int_size: 2, bytes: seq });
    let _ = layouts.add_entry(data, &ZapValue::from_u16s(&[5, 6]));
    let mut buf = data.to_vec();
    if buf.len() >= 8 && n & 2 != 0 {
        buf[..4].copy_from_slice(&sa::SA_MAGIC.to_le_bytes());
        buf[4] = 2;
        buf[5] &= !3;
    }
    if let Ok(fields) = sa::fields(&buf, &table, &layouts) {
        let values: Vec<(&[u8], bool)> = fields
            .iter()
            .map(|f| (&buf[f.offset..f.offset + f.len], table.info(f.num).expect("a field's attribute").len == 0))
            .collect();
        if !values.is_empty() {
            let again = sa::build(2, &values);
            assert_eq!(sa::fields(&again, &table, &layouts).expect("what was built").len(), fields.len());
            let lens: Vec<(usize, bool)> = values.iter().map(|(v, k)| (v.len(), *k)).collect();
            if let Ok(p) = sa::plan(&lens, 320) {
                assert!(p.bonuslen <= 320);
                assert!(sa::build(2, &values[..p.in_bonus]).len() <= p.bonuslen);
            }
        }
    }
    let _ = (sa::owner_ids(&buf), sa::znode_owner_ids(&buf), zpl::parse_aces(&buf));
    if let Ok(z) = zpl::ZnodePhys::parse(&buf) {
        let _ = z.symlink_target();
    }
    let _ = sa::swap_buffer(&mut buf, &table, &layouts);
});
