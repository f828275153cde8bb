//! Name-value lists from hostile bytes, both forms and byte orders: whatever is accepted survives being written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::nvlist::NvList;

fuzz_target!(|input: &[u8]| {
    let Ok((list, used)) = NvList::decode_prefix(input) else { return };
    assert!(used <= input.len());
    for packed in [list.encode_xdr(), list.encode_native()] {
        assert_eq!(NvList::decode_prefix(&packed).expect("what we wrote"), (list.clone(), packed.len()));
    }
    let _ = (list.to_string(), list.to_json());
});
