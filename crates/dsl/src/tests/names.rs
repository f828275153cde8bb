//! Names of datasets, snapshots and bookmarks.

use proptest::prelude::*;

use crate::check_name;
use crate::pool::{NAME_MAX, NESTING_MOST};
use crate::snap::snapshot::check_component;

/// Letters that names are made of here, with good and bad ones.
const LETTERS: &[char] = &['a', 'Z', '7', '-', '_', '.', ':', ' ', '/', '@', '#', '%', 'ä', '\n'];

fn letters() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(LETTERS), 0..12).prop_map(String::from_iter)
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ')
}

proptest! {
    #[test]
    fn names_of_datasets_have_plain_parts(name in letters()) {
        let part_is_good = |p: &str| !p.is_empty() && p != "." && p != ".." && p.chars().all(is_plain);
        prop_assert_eq!(check_name(&name).is_ok(), name.split('/').all(part_is_good));
    }

    #[test]
    fn names_of_snapshots_are_one_plain_part(part in letters()) {
        let full = format!("tank/a@{part}");
        prop_assert_eq!(check_component(&full, &part).is_ok(), !part.is_empty() && part.chars().all(is_plain));
    }
}

#[test]
fn lengths_are_limited_to_the_byte() {
    let long = |n: usize| "a".repeat(n);
    assert!(check_name(&long(NAME_MAX)).is_ok() && check_name(&long(NAME_MAX + 1)).is_err());
    let nested = |n: usize| vec!["a"; n].join("/");
    assert!(check_name(&nested(NESTING_MOST)).is_ok() && check_name(&nested(NESTING_MOST + 1)).is_err());
    // The name of the file system counts as well.
    let snap = |n: usize| {
        let part = long(n);
        check_component(&format!("tank@{part}"), &part).is_ok()
    };
    assert!(snap(NAME_MAX - 5) && !snap(NAME_MAX - 4));
}

#[test]
fn messages_say_what_is_wrong() {
    for (name, part) in [
        ("/a", "leading slash"),
        ("a/", "trailing slash"),
        ("a//b", "empty component"),
        ("a@b", "snapshot delimiter '@'"),
        ("a#b", "bookmark delimiter '#'"),
        ("a/$b", "invalid character '$'"),
        ("a/..", "parent reference"),
        ("a/./b", "self reference"),
    ] {
        let text = check_name(name).unwrap_err().to_string();
        assert!(text.contains(part), "{name}: {text}");
    }
}
