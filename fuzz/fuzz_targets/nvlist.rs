//! Name-value lists from hostile bytes, both forms and byte orders: whatever is accepted survives
//! being written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::nvlist::NvList;
use weir_fuzz::{pool_config, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let small = NvList::new().with_flag("a").with_u64("b", 1).with_str("c", "text");
    let lists = [NvList::new(), small, pool_config(true), pool_config(false)];
    lists.iter().flat_map(|l| [l.encode_xdr(), l.encode_native()]).collect()
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Ok((list, used)) = NvList::decode_prefix(input) else { return };
    assert!(used <= input.len());
    for packed in [list.encode_xdr(), list.encode_native()] {
        assert_eq!(NvList::decode_prefix(&packed).expect("what we wrote"), (list.clone(), packed.len()));
    }
    let _ = (list.to_string(), list.to_json());
});
