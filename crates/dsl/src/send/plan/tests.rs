use super::*;

/// A file system made in txg `txg`; snapshots as `name:txg`, each with the guid `100 * txg + guid`.
fn fs(name: &str, guid: u64, txg: u64, snaps: &str, children: Vec<Fs>) -> Fs {
    let snap = |text: &str| {
        let (name, at) = text.split_once(':').unwrap();
        let at: u64 = at.parse().unwrap();
        Snap { name: name.into(), guid: 100 * at + guid, txg: at, ..Snap::default() }
    };
    let snaps = snaps.split_whitespace().map(snap).collect();
    Fs { name: name.into(), guid, txg, snaps, children, ..Fs::default() }
}

fn clone_of(origin: &str, guid: u64, clone: Fs) -> Fs {
    Fs { origin: Some(Origin { name: origin.into(), guid }), ..clone }
}

/// Letters: `R`, `I`, `p`, `b`, `h`, `s`, `w`.
fn opts(letters: &str) -> PackageOpts {
    let has = |c| letters.contains(c);
    PackageOpts {
        replicate: has('R'),
        all: has('I'),
        props: has('p'),
        backup: has('b'),
        holds: has('h'),
        skip_missing: has('s'),
        raw: has('w'),
        exclude: Vec::new(),
    }
}

fn planned(top: &Fs, letters: &str, since: &Since, to: &str) -> Result<Plan> {
    let opts = opts(letters);
    let all = opts.all || (opts.replicate && since.snap().is_none());
    plan(top, Wanted { to, since, opts: &opts, all })
}

fn from(name: &str) -> Since {
    Since::Snap(name.into())
}

/// Steps as `from>name`, words for those that are full.
fn steps(plan: &Plan) -> String {
    let text = |s: &Step| format!("{}>{}", s.from.as_deref().unwrap_or("full"), s.name);
    plan.steps.iter().map(text).collect::<Vec<_>>().join(" ")
}

/// A parent with a child, a clone of the child that sorts before it, and a child without `c`.
fn tree() -> Fs {
    let clone = clone_of("p/z@b", 3020, fs("p/clone", 40, 34, "c:50", vec![]));
    let late = fs("p/late", 60, 55, "", vec![]);
    fs("p", 1, 4, "a:10 b:30 c:50 d:70", vec![clone, fs("p/z", 20, 5, "a:10 b:30 c:50", vec![]), late])
}

#[test]
fn steps_follow_the_letters() {
    let flat = fs("p", 1, 4, "a:10 b:30 c:50 d:70", vec![]);
    for (top, letters, since, to, want) in [
        (&flat, "p", Since::Nothing, "c", "full>p@c"),
        (&flat, "I", from("a"), "c", "p@a>p@b p@b>p@c"),
        (&flat, "Ip", from("a"), "d", "p@a>p@b p@b>p@c p@c>p@d"),
        (&flat, "I", from("c"), "d", "p@c>p@d"),
        (&flat, "R", Since::Nothing, "c", "full>p@a p@a>p@b p@b>p@c"),
        (&flat, "R", from("a"), "c", "p@a>p@c"),
        (&flat, "RI", from("a"), "c", "p@a>p@b p@b>p@c"),
    ] {
        assert_eq!(steps(&planned(top, letters, &since, to).unwrap()), want, "{letters} {since:?}");
    }
}

#[test]
fn parents_come_before_children_and_origins_before_clones() {
    let tree = tree();
    assert_eq!(
        steps(&planned(&tree, "R", &Since::Nothing, "c").unwrap()),
        "full>p@a p@a>p@b p@b>p@c full>p/z@a p/z@a>p/z@b p/z@b>p/z@c p/z@b>p/clone@c"
    );
    // The clone is new since `a`: its origin is sent as well.
    assert_eq!(
        steps(&planned(&tree, "R", &from("a"), "c").unwrap()),
        "p@a>p@c p/z@a>p/z@b p/z@b>p/z@c p/z@b>p/clone@c"
    );
    // A parent that is a clone of its own child.
    let child = fs("p/q", 3, 4, "a:10 c:50", vec![]);
    let top = clone_of("p/q@a", 1003, fs("p", 1, 4, "c:50", vec![child]));
    assert_eq!(steps(&planned(&top, "R", &Since::Nothing, "c").unwrap()), "p/q@a>p@c full>p/q@a p/q@a>p/q@c");
}

#[test]
fn clones_begin_at_their_origin() {
    let clone = clone_of("q@o", 7, fs("p", 1, 4, "a:10 b:30", vec![]));
    for (letters, since, want) in [
        ("I", Since::Origin, "q@o>p@a p@a>p@b"),
        ("I", from("a"), "p@a>p@b"),
        ("R", Since::Nothing, "q@o>p@a p@a>p@b"),
        ("p", Since::Nothing, "full>p@b"),
    ] {
        assert_eq!(steps(&planned(&clone, letters, &since, "b").unwrap()), want, "{letters} {since:?}");
    }
    let plan = planned(&clone, "I", &Since::Origin, "b").unwrap();
    assert_eq!(plan.steps.iter().map(|s| s.since.as_deref()).collect::<Vec<_>>(), [None, Some("a")]);
}

#[test]
fn a_package_says_what_is_missing() {
    let missing = fs("p/m", 9, 5, "a:10", vec![fs("p/m/x", 10, 6, "c:50", vec![])]);
    let top = fs("p", 1, 4, "a:10 c:50", vec![missing, fs("p/n", 11, 60, "a:70", vec![])]);
    let e = planned(&top, "R", &Since::Nothing, "c").unwrap_err();
    assert_eq!(e.to_string(), "cannot send p@c recursively: snapshot p/m@c does not exist");
    let plan = planned(&top, "Rs", &Since::Nothing, "c").unwrap();
    let notes: Vec<(&str, bool)> = plan.notes.iter().map(|n| (n.text.as_str(), n.verbose)).collect();
    assert_eq!(
        notes,
        [
            ("WARNING: skipping dataset p/m and its children: snapshot c does not exist", false),
            ("skipping dataset p/n: snapshot c does not exist", true),
        ]
    );
    assert_eq!((steps(&plan).as_str(), plan.incomplete), ("full>p@a p@a>p@c", false));
    // A child that has both in the wrong order is left out, the rest is sent.
    let child = fs("p/q", 3, 4, "c:10 a:50", vec![]);
    let top = fs("p", 1, 4, "a:10 c:50", vec![child]);
    let plan = planned(&top, "R", &from("a"), "c").unwrap();
    assert!(plan.incomplete && steps(&plan) == "p@a>p@c", "{plan:?}");
    assert!(plan.notes.last().unwrap().text.ends_with("incremental source (p/q@a) is not earlier than it"));
    let e = planned(&fs("p", 1, 4, "c:10 a:50", vec![]), "I", &from("a"), "c").unwrap_err();
    assert!(e.to_string().ends_with("incremental source (p@a) is not earlier than it"), "{e}");
    // What is excluded is not looked at.
    let except = PackageOpts { exclude: vec!["p/m".into()], ..opts("R") };
    let top = fs("p", 1, 4, "c:50", vec![fs("p/m", 9, 5, "", vec![])]);
    let wanted = Wanted { to: "c", since: &Since::Nothing, opts: &except, all: true };
    assert_eq!(steps(&plan_of(&top, wanted)), "full>p@c");
}

fn plan_of(top: &Fs, wanted: Wanted<'_>) -> Plan {
    plan(top, wanted).unwrap()
}

#[test]
fn the_list_has_the_keys_of_openzfs_in_its_order() {
    let prop = |n: &str, v: u64| (n.to_string(), PropValue::Num(v));
    let mut top = tree();
    top.props = vec![prop("compression", 15), ("org:x".into(), PropValue::Text("y".into()))];
    top.snaps[2].props = vec![prop("exec", 0)];
    top.snaps[2].holds = vec![("keep".into(), 1_700_000_000)];
    top.children.pop();
    let list = planned(&top, "Rh", &from("a"), "c").unwrap().list.unwrap();
    assert_eq!(list.names().collect::<Vec<_>>(), ["fromsnap", "tosnap", "fss"]);
    let fss = list.list("fss").unwrap();
    assert_eq!(fss.names().collect::<Vec<_>>(), ["0x1", "0x28", "0x14"]);
    let p = fss.list("0x1").unwrap();
    assert_eq!(p.names().collect::<Vec<_>>(), ["name", "parentfromsnap", "props", "snaps", "snapprops", "snapholds"]);
    assert_eq!((p.str("name"), p.u64("parentfromsnap")), (Some("p"), Some(0)));
    assert_eq!(p.list("props").unwrap().str("org:x"), Some("y"));
    // All snapshots up to the target, older ones too.
    assert_eq!(p.list("snaps").unwrap().names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(p.list("snapprops").unwrap().list("c").unwrap().u64("exec"), Some(0));
    assert_eq!(p.list("snapholds").unwrap().list("c").unwrap().u64("keep"), Some(1_700_000_000));
    let clone = fss.list("0x28").unwrap();
    assert_eq!((clone.u64("parentfromsnap"), clone.u64("origin")), (Some(1001), Some(3020)));
    // A child of the clone would follow its target, since it has no `a`.
    let z = fss.list("0x14").unwrap();
    assert!(z.u64("parentfromsnap") == Some(1001) && !z.contains("origin"));
}

#[test]
fn lists_that_are_not_recursive_have_what_is_sent() {
    let flat = fs("p", 1, 4, "a:10 b:30 c:50 d:70", vec![]);
    let names = |list: &NvList, key: &str| {
        let p = list.list("fss").unwrap().list("0x1").unwrap();
        p.list(key).unwrap().names().collect::<Vec<_>>().join("")
    };
    let list = planned(&flat, "Ip", &from("a"), "c").unwrap().list.unwrap();
    assert_eq!(list.names().collect::<Vec<_>>(), ["fromsnap", "tosnap", "not_recursive", "fss"]);
    assert_eq!((names(&list, "snaps"), names(&list, "snapprops")), ("abc".to_string(), "bc".to_string()));
    let list = planned(&flat, "hw", &Since::Nothing, "c").unwrap().list.unwrap();
    assert_eq!(list.names().collect::<Vec<_>>(), ["tosnap", "not_recursive", "raw", "fss"]);
    assert!(!list.list("fss").unwrap().list("0x1").unwrap().contains("props"));
    assert_eq!((names(&list, "snaps"), names(&list, "snapholds")), ("c".to_string(), "c".to_string()));
    assert!(planned(&flat, "I", &from("a"), "c").unwrap().list.is_none());
    assert!(planned(&flat, "Ib", &from("a"), "c").unwrap().list.is_none());
    assert!(planned(&flat, "b", &Since::Nothing, "c").unwrap().list.is_some());
}

#[test]
fn encrypted_ones_need_to_be_raw() {
    let top = Fs { encroot: Some(true), ..fs("p", 1, 4, "c:50", vec![]) };
    let e = planned(&top, "p", &Since::Nothing, "c").unwrap_err();
    let want = "cannot send p@c: encrypted dataset p may not be sent with properties without the raw flag";
    assert_eq!(e.to_string(), want);
    let list = planned(&top, "Rw", &Since::Nothing, "c").unwrap().list.unwrap();
    assert!(list.list("fss").unwrap().list("0x1").unwrap().bool_flag("is_encroot"));
}
