use ondisk::nvlist::{MAX_DEPTH, NvList, NvValue};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{golden, golden_text, mutations};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z:_.]{1,12}", "[ -~äλ€]{1,40}"]
}

fn scalar() -> impl Strategy<Value = NvValue> {
    use NvValue as V;
    prop_oneof![
        Just(V::Boolean),
        any::<u8>().prop_map(V::Byte),
        any::<i16>().prop_map(V::Int16),
        any::<u16>().prop_map(V::Uint16),
        any::<i32>().prop_map(V::Int32),
        any::<u32>().prop_map(V::Uint32),
        any::<i64>().prop_map(V::Int64),
        any::<u64>().prop_map(V::Uint64),
        any::<i64>().prop_map(V::Hrtime),
        any::<bool>().prop_map(V::BooleanValue),
        any::<i8>().prop_map(V::Int8),
        any::<u8>().prop_map(V::Uint8),
        any::<u64>().prop_map(V::Double),
        text().prop_map(V::String),
        Just(V::RawString(b"caf\xe9".to_vec())),
        vec(any::<u8>(), 0..20).prop_map(V::ByteArray),
        vec(any::<i16>(), 0..9).prop_map(V::Int16Array),
        vec(any::<u16>(), 0..9).prop_map(V::Uint16Array),
        vec(any::<i32>(), 0..9).prop_map(V::Int32Array),
        vec(any::<u32>(), 0..9).prop_map(V::Uint32Array),
        vec(any::<i64>(), 0..9).prop_map(V::Int64Array),
        vec(any::<u64>(), 0..9).prop_map(V::Uint64Array),
        vec(text(), 0..5).prop_map(V::StringArray),
        vec(any::<bool>(), 0..9).prop_map(V::BooleanArray),
        vec(any::<i8>(), 0..9).prop_map(V::Int8Array),
        vec(any::<u8>(), 0..9).prop_map(V::Uint8Array),
    ]
}

fn list_of(value: impl Strategy<Value = NvValue>) -> impl Strategy<Value = NvList> {
    vec((text(), value), 0..6).prop_map(|pairs| pairs.into_iter().collect())
}

fn any_list() -> impl Strategy<Value = NvList> {
    let value = scalar().prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            list_of(inner.clone()).prop_map(NvValue::List),
            vec(list_of(inner), 0..4).prop_map(NvValue::ListArray),
        ]
    });
    list_of(value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn both_forms_round_trip(list in any_list(), tail in vec(any::<u8>(), 0..9)) {
        for packed in [list.encode_xdr(), list.encode_native()] {
            let mut padded = packed.clone();
            padded.extend(&tail);
            let (back, used) = NvList::decode_prefix(&padded).unwrap();
            prop_assert_eq!(used, packed.len());
            prop_assert_eq!(&back, &list);
            prop_assert_eq!(if packed[0] == 1 { back.encode_xdr() } else { back.encode_native() }, packed);
        }
    }

    #[test]
    fn damaged_bytes_never_panic(list in any_list(), seed in any::<u64>()) {
        for packed in [list.encode_xdr(), list.encode_native()] {
            for hostile in mutations(&packed, seed, 30) {
                if let Ok(l) = NvList::decode(&hostile) {
                    // Whatever was accepted can be written in both forms and read again.
                    let again = NvList::decode(&l.encode_xdr()).unwrap();
                    prop_assert_eq!(NvList::decode(&again.encode_native()).unwrap(), l.clone());
                    let _ = (l.to_string(), l.to_json());
                }
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in vec(any::<u8>(), 0..300), form in 0u8..2, order in 0u8..2) {
        if bytes.len() > 1 {
            (bytes[0], bytes[1]) = (form, order);
        }
        let _ = NvList::decode(&bytes);
    }
}

#[test]
fn truncation_is_always_noticed() {
    for name in ["label-single.hex", "history-ioctl.hex", "label-spare-leaf.hex"] {
        let packed = golden(name);
        for n in 0..packed.len() {
            assert!(NvList::decode(&packed[..n]).is_err(), "{name} cut to {n}");
        }
    }
}

#[test]
fn real_lists_reencode_to_the_same_bytes() {
    for name in ["label-single.hex", "label-spare-leaf.hex", "label-cache.hex", "config-removed.hex", "aux-spares.hex"]
    {
        let packed = golden(name);
        let (list, used) = NvList::decode_prefix(&packed).unwrap();
        assert_eq!(used, packed.len(), "{name}");
        assert_eq!(list.encode_xdr(), packed, "{name}");
    }
    for name in ["history-command.hex", "history-event.hex", "history-ioctl.hex"] {
        let packed = golden(name);
        let (list, used) = NvList::decode_prefix(&packed).unwrap();
        assert_eq!(used, packed.len(), "{name}");
        assert_eq!(list.encode_native(), packed, "{name}");
    }
}

#[test]
fn real_lists_damaged_never_panic() {
    for (i, name) in ["label-spare-leaf.hex", "config-removed.hex", "history-ioctl.hex"].iter().enumerate() {
        for hostile in mutations(&golden(name), i as u64, 4000) {
            let _ = NvList::decode(&hostile);
        }
    }
}

/// Big-endian native form of the types used below: the same layout with every number swapped.
fn native_be(out: &mut Vec<u8>, list: &NvList) {
    for (name, value) in list.iter() {
        let start = out.len();
        out.extend([0; 16]);
        out.extend(name.as_bytes());
        out.push(0);
        out.resize(start + (out.len() - start).next_multiple_of(8), 0);
        let (kind, nelem, child) = match value {
            NvValue::Uint64(v) => {
                out.extend(v.to_be_bytes());
                (8u32, 1u32, None)
            }
            NvValue::Int16Array(a) => {
                a.iter().for_each(|v| out.extend(v.to_be_bytes()));
                (11, a.len() as u32, None)
            }
            NvValue::List(l) => {
                out.extend([0; 4]);
                out.extend(l.flags().to_be_bytes());
                out.extend([0; 16]);
                (19, 1, Some(l))
            }
            v => panic!("{v:?}"),
        };
        out.resize(start + (out.len() - start).next_multiple_of(8), 0);
        let size = (out.len() - start) as u32;
        out[start..start + 4].copy_from_slice(&size.to_be_bytes());
        out[start + 4..start + 6].copy_from_slice(&(name.len() as u16 + 1).to_be_bytes());
        out[start + 8..start + 12].copy_from_slice(&nelem.to_be_bytes());
        out[start + 12..start + 16].copy_from_slice(&kind.to_be_bytes());
        if let Some(l) = child {
            native_be(out, l);
        }
    }
    out.extend([0; 4]);
}

#[test]
fn big_endian_native_reads() {
    let list = NvList::new()
        .with_u64("history time", 0x0102_0304_0506_0708)
        .with_list("in_nvl", NvList::new().with("a", NvValue::Int16Array(vec![-2, 3, 4])).with_u64("b", 7))
        .with_u64("last", 9);
    let mut packed = vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    native_be(&mut packed, &list);
    assert_eq!(NvList::decode_prefix(&packed).unwrap(), (list, packed.len()));
}

#[test]
fn nesting_is_limited() {
    let nest = |n: u32| (0..n).fold(NvList::new(), |l, _| NvList::new().with_list("l", l));
    for encode in [NvList::encode_xdr, NvList::encode_native] {
        assert!(NvList::decode(&encode(&nest(MAX_DEPTH - 1))).is_ok());
        let e = NvList::decode(&encode(&nest(MAX_DEPTH))).unwrap_err();
        assert!(e.to_string().contains("nested"), "{e}");
    }
}

#[test]
fn hostile_counts_do_not_allocate() {
    // A u64 array that claims 2^29 elements in a pair of 40 bytes.
    let list = NvList::new().with_u64s("a", vec![1]);
    let mut packed = list.encode_xdr();
    let at = packed.len() - 8 - 8 - 4;
    packed[at - 4..at].copy_from_slice(&(1u32 << 29).to_be_bytes());
    packed[at..at + 4].copy_from_slice(&(1u32 << 29).to_be_bytes());
    assert!(NvList::decode(&packed).is_err());
}

#[test]
fn getters_and_errors_name_the_key() {
    let l = NvList::new().with_u64("txg", 5).with_str("name", "tank").with_flag("f").with_bool_value("b", false);
    assert_eq!((l.u64("txg"), l.str("name"), l.u64("name")), (Some(5), Some("tank"), None));
    assert!(l.bool_flag("f") && !l.bool_flag("b") && !l.bool_flag("txg"));
    assert!(l.require_u64("name").unwrap_err().to_string().contains("'name'"));
    assert!(l.require_list("vdev_tree").unwrap_err().to_string().contains("'vdev_tree'"));
    let mut l = l.with_u64("txg", 6);
    assert_eq!(l.names().collect::<Vec<_>>(), ["txg", "name", "f", "b"]);
    assert_eq!(l.remove("name"), Some(NvValue::String("tank".into())));
    assert_eq!((l.len(), l.integer("txg")), (3, Some(6)));
}

#[test]
fn prints_as_zdb_does() {
    let list = NvList::decode(&golden("label-single.hex")).unwrap();
    assert_eq!(list.indented(4).to_string(), golden_text("label-single.txt"));
    let l = NvList::new()
        .with_u64s("hole_array", vec![2, 3])
        .with_bool_value("b", true)
        .with_strs("s", vec!["x\"y".into()])
        .with_lists("children", vec![NvList::new().with_i64("i", -1), NvList::new()]);
    assert_eq!(
        l.to_string(),
        "hole_array[0]: 2\nhole_array[1]: 3\nb: true\ns[0]: 'x\"y'\nchildren[0]:\n    i: -1\nchildren[1]:\n"
    );
    assert_eq!(l.to_json(), r#"{"hole_array":[2,3],"b":true,"s":["x\"y"],"children":[{"i":-1},{}]}"#);
}
