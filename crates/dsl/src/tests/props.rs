//! The table of properties, and sizes as text.

use proptest::prelude::*;

use crate::props::{PROPS, PropKind, PropSource, PropType, PropValue, check_feature, find, is_user_prop, parse_size};

/// Words of an index property print as the first word of their number, and come back.
#[test]
fn every_word_of_every_property_comes_back() {
    let mut words_seen = 0;
    for p in PROPS {
        let PropType::Index(words) = p.ty else { continue };
        for (word, n) in words {
            words_seen += 1;
            let value = p.parse(word).unwrap();
            assert_eq!(value, PropValue::Num(*n), "{}={word}", p.name);
            let printed = p.format(&value, false);
            assert_eq!(p.parse(&printed).unwrap(), value, "{}={word}", p.name);
        }
        assert!(words.iter().any(|(_, n)| *n == p.default), "{}: its default has no word", p.name);
        assert!(p.parse("").is_err() && p.parse("On").is_err(), "{}", p.name);
    }
    assert!(words_seen > 60);
}

#[test]
fn defaults_are_values() {
    for p in PROPS.iter().filter(|p| p.kind != PropKind::ReadOnly) {
        let text = p.format(&p.default_value(), false);
        // The default size of a volume is none at all.
        let value = p.parse(&text).unwrap_or_else(|e| panic!("{}={text}: {e}", p.name));
        assert_eq!(value, p.default_value(), "{}={text}", p.name);
    }
}

#[test]
fn short_names_are_other_names() {
    for (short, long) in
        [("compress", "compression"), ("recsize", "recordsize"), ("rdonly", "readonly"), ("refer", "referenced")]
    {
        assert_eq!(find(short).unwrap().name, long);
    }
    for p in PROPS {
        let known = (p.kind != PropKind::Shown).then_some(p.name);
        assert_eq!(find(p.name).map(|p| p.name), known, "{}: a short name hides it", p.name);
    }
    assert!(find("nonsense").is_none());
}

#[test]
fn user_properties_have_a_colon_and_small_letters() {
    for (name, want) in [
        ("a:b", true),
        (":", true),
        ("com.example:x_1-y", true),
        ("plain", false),
        ("A:b", false),
        ("a:b c", false),
        ("ä:b", false),
    ] {
        assert_eq!(is_user_prop(name), want, "{name}");
    }
    assert!(is_user_prop(&format!("a:{}", "x".repeat(253))) && !is_user_prop(&format!("a:{}", "x".repeat(254))));
}

#[test]
fn values_need_their_features() {
    for (name, text, feature) in [
        ("compression", "zstd-3", Some("zstd_compress")),
        ("compression", "lz4", Some("lz4_compress")),
        ("compression", "gzip-9", None),
        ("checksum", "skein", Some("skein")),
        ("checksum", "sha256", None),
        ("dedup", "sha512,verify", Some("sha512")),
        ("dedup", "blake3", Some("blake3")),
        ("dedup", "blake3,verify", Some("blake3")),
        ("dedup", "on", None),
        ("recordsize", "128K", None),
        ("recordsize", "256K", Some("large_blocks")),
        ("dnodesize", "legacy", None),
        ("dnodesize", "auto", Some("large_dnode")),
        ("atime", "off", None),
    ] {
        let value = find(name).unwrap().parse(text).unwrap();
        assert!(check_feature(name, &value, |_| true).is_ok(), "{name}={text}");
        match (check_feature(name, &value, |_| false), feature) {
            (Ok(()), None) => {}
            (Err(e), Some(f)) => assert!(e.to_string().contains(&format!("'{f}'")), "{name}={text}: {e}"),
            (got, _) => panic!("{name}={text}: {got:?}"),
        }
    }
}

#[test]
fn sources_print_as_in_zfs_get() {
    let from = PropSource::Inherited("tank/a".into());
    let all =
        [PropSource::None, PropSource::Default, PropSource::Local, PropSource::Received, from, PropSource::Temporary];
    let texts = all.map(|s| s.to_string());
    assert_eq!(texts, ["-", "default", "local", "received", "inherited from tank/a", "temporary"]);
    assert_eq!(format!("{:7}|", PropSource::Local), "local  |");
}

proptest! {
    /// Whole numbers with a unit are exact, with any of its spellings.
    #[test]
    fn whole_sizes_are_exact(n in 0u64..1 << 20, unit in 0usize..7, spelling in 0usize..4) {
        let letter = ["", "K", "M", "G", "T", "P", "E"][unit];
        // Without a letter there is nothing that iB could follow.
        let tail = if unit == 0 && spelling == 2 { "" } else { ["", "B", "iB", "b"][spelling] };
        let text = format!("{n}{}{tail}", if spelling == 3 { letter.to_lowercase() } else { letter.to_string() });
        prop_assert_eq!(parse_size(&text).ok(), n.checked_mul(1 << (10 * unit)), "{}", text);
    }

    /// What is printed exactly comes back as it was.
    #[test]
    fn exact_sizes_come_back(n in any::<u64>()) {
        for name in ["reservation", "filesystem_limit"] {
            let p = find(name).unwrap();
            let value = PropValue::Num(n);
            prop_assert_eq!(p.parse(&p.format(&value, true)).unwrap(), value);
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,12}") {
        let _ = parse_size(&text);
        for p in PROPS {
            let _ = p.parse(&text);
        }
    }
}
