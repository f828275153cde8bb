//! Differences of snapshots against the listings of both.

use std::collections::{BTreeMap, BTreeSet};

use base::{ObjectId, WallTime};
use zpl::diff::{Change, Diff, Item};
use zpl::{Attr, FileKind, MountOpts, RenameFlags, SetAttr, SetXattr, XattrMode, Zfs};

use crate::common::workload::{Mix, Workload};
use crate::common::{ROOT_CRED, Setup, World, run, with_pool};

const QUEUED: &str = "(on_delete_queue)";

async fn snapshot(w: &World, name: &str) {
    w.pool.dsl().snapshot(vec![format!("tank@{name}")], false, Vec::new()).await.unwrap();
}

async fn open(w: &World, name: &str) -> std::rc::Rc<Zfs> {
    let ds = w.pool.dsl().find_snapshot(&format!("tank@{name}")).await.unwrap();
    Zfs::open_uncounted(&ds, MountOpts::default()).await.unwrap()
}

/// The lines between two snapshots: `+path`, `-path`, `Mpath`, `Mpath(+1)`, `Rpath>path`; `!object`
/// for one that cannot be looked at.
async fn lines(w: &World, from: &str, to: &str) -> Vec<String> {
    let (from, to) = (open(w, from).await, open(w, to).await);
    let changes = w.pool.dsl().changes(from.dataset(), to.dataset()).await.unwrap();
    let mut diff = Diff::new(changes, from, to);
    let mut out = Vec::new();
    while let Some(item) = diff.next().await.unwrap() {
        let line = match item {
            Item::Line(line) => line,
            Item::Failed { object, .. } => {
                out.push(format!("!{object}"));
                continue;
            }
        };
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let path = text(&line.path);
        out.push(match line.change {
            Change::Added => format!("+{path}"),
            Change::Removed => format!("-{path}"),
            Change::Modified => format!("M{path}"),
            Change::Links(n) => format!("M{path}({n:+})"),
            Change::Renamed(to) => format!("R{path}>{}", text(&to)),
        });
    }
    out
}

/// Compares lines in any order.
#[track_caller]
fn assert_lines(got: Vec<String>, want: &[&str]) {
    let got: BTreeSet<String> = got.into_iter().collect();
    assert_eq!(got, want.iter().map(|s| s.to_string()).collect::<BTreeSet<_>>());
}

#[test]
fn each_kind_of_change_has_its_line() {
    with_pool(Setup::default(), |w| async move {
        let (fs, root) = (&w.fs, w.fs.root());
        let keep = w.dir(root, "keep").await;
        let moved = w.dir(root, "moved").await;
        for name in ["same", "changed", "gone", "renamed", "linked", "unlinked", "reused", "open", "mode"] {
            let file = w.file(name).await;
            w.write(file, 0, b"before").await;
        }
        let inside = fs.create(moved, b"inside", 0o644, &ROOT_CRED, true).await.unwrap().obj;
        let object = async |name: &str| fs.lookup(root, name.as_bytes()).await.unwrap().obj;
        fs.link(object("unlinked").await, keep, b"other").await.unwrap();
        snapshot(&w, "a").await;
        snapshot(&w, "a2").await;
        w.write(object("changed").await, 1 << 20, b"after").await;
        fs.unlink(root, b"gone").await.unwrap();
        fs.rename(root, b"renamed", keep, "new näme".as_bytes(), RenameFlags::default()).await.unwrap();
        fs.link(object("linked").await, keep, b"again").await.unwrap();
        fs.unlink(root, b"unlinked").await.unwrap();
        let open = object("open").await;
        fs.open_file(open).await.unwrap();
        fs.unlink(root, b"open").await.unwrap();
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        fs.setattr(object("mode").await, mode).await.unwrap();
        fs.rename(root, b"moved", keep, b"here", RenameFlags::default()).await.unwrap();
        fs.symlink(root, b"link", b"target", &ROOT_CRED).await.unwrap();
        fs.mknod(root, b"pipe", 0o010644, 0, &ROOT_CRED).await.unwrap();
        snapshot(&w, "b").await;
        w.write(inside, 0, b"later").await;
        fs.unlink(root, b"reused").await.unwrap();
        fs.release(open).await;
        snapshot(&w, "c").await;
        assert_lines(lines(&w, "a", "a2").await, &[]);
        let changed = [
            "M/",
            "M/keep",
            "M/changed",
            "-/gone",
            "R/renamed>/keep/new näme",
            // The PARENT of a file with several names is the directory of the last link.
            "M/linked(+1)",
            "M/keep/other(-1)",
            "R/open>(on_delete_queue)",
            "M/mode",
            "R/moved>/keep/here",
            "+/link",
            "+/pipe",
        ];
        assert_lines(lines(&w, "a", "b").await, &changed);
        assert_lines(lines(&w, "a2", "b").await, &changed);
        assert_lines(lines(&w, "b", "c").await, &["M/", "M/keep/here/inside", "-/reused"]);
        // Not the other way round, and not of one snapshot.
        for (from, to) in [("b", "a"), ("a", "a")] {
            let (from, to) = (open_ds(&w, from).await, open_ds(&w, to).await);
            let refused = w.pool.dsl().changes(&from, &to).await.err().unwrap();
            assert_eq!(refused.kind(), base::ErrorKind::CrossDevice, "{refused}");
        }
    });
}

async fn open_ds(w: &World, name: &str) -> std::rc::Rc<dsl::Dataset> {
    w.pool.dsl().find_snapshot(&format!("tank@{name}")).await.unwrap()
}

#[test]
fn attributes_in_directories_have_paths() {
    with_pool(Setup::default(), |w| async move {
        w.set_xattr_mode(XattrMode::Dir).await;
        let file = w.file("file").await;
        w.fs.setxattr(file, b"user.a", b"1", SetXattr::Any).await.unwrap();
        snapshot(&w, "a").await;
        w.fs.setxattr(file, b"user.b", b"2", SetXattr::Any).await.unwrap();
        snapshot(&w, "b").await;
        let lines = lines(&w, "a", "b").await;
        assert!(lines.contains(&"+/file/<xattrdir>/user.b".to_string()), "{lines:?}");
        assert!(lines.contains(&"M/file/<xattrdir>".to_string()), "{lines:?}");
        assert!(!lines.iter().any(|l| l.ends_with("user.a")), "{lines:?}");
    });
}

#[test]
fn objects_of_a_large_folder_are_found_and_freed_ones_too() {
    with_pool(Setup::default(), |w| async move {
        let dir = w.dir(w.fs.root(), "many").await;
        let name = |n: u32| format!("file-{n:04}");
        for n in 0..3000 {
            w.fs.create(dir, name(n).as_bytes(), 0o644, &ROOT_CRED, true).await.unwrap();
        }
        snapshot(&w, "a").await;
        // Whole blocks of dnodes become holes.
        for n in (0..3000).filter(|n| (500..2000).contains(n) || n % 97 == 0) {
            w.fs.unlink(dir, name(n).as_bytes()).await.unwrap();
        }
        snapshot(&w, "b").await;
        let mut want: BTreeSet<String> = (0..3000)
            .filter(|n| (500..2000).contains(n) || n % 97 == 0)
            .map(|n| format!("-/many/{}", name(n)))
            .collect();
        want.insert("M/many".into());
        let got = lines(&w, "a", "b").await;
        assert_eq!(got.len(), want.len());
        assert_eq!(got.into_iter().collect::<BTreeSet<_>>(), want);
    });
}

/// An object in a listing.
#[derive(Clone, Debug)]
struct Listed {
    paths: BTreeSet<String>,
    attr: Attr,
    /// It had several names, and that in the directory of its PARENT is gone.
    lost: bool,
}

async fn listing(fs: &Zfs) -> BTreeMap<ObjectId, Listed> {
    let mut out: BTreeMap<ObjectId, Listed> = BTreeMap::new();
    let attr = fs.getattr(fs.root()).await.unwrap();
    let root = Listed { paths: BTreeSet::from(["/".into()]), attr, lost: false };
    out.insert(fs.root(), root);
    let mut todo = vec![(fs.root(), String::new())];
    while let Some((dir, path)) = todo.pop() {
        for entry in fs.readdir(dir, 0, usize::MAX).await.unwrap() {
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            if entry.kind == FileKind::Dir {
                todo.push((entry.obj, path.clone()));
            }
            let attr = fs.getattr(entry.obj).await.unwrap();
            let lost = fs.path_of(entry.obj).await.is_err();
            let listed = out.entry(entry.obj).or_insert_with(|| Listed { paths: BTreeSet::new(), attr, lost });
            listed.paths.insert(path);
        }
    }
    out
}

/// The lines that two listings need, and those that they explain: of a file with several names only
/// one is known.
fn expected(from: &BTreeMap<ObjectId, Listed>, to: &BTreeMap<ObjectId, Listed>) -> (Vec<String>, BTreeSet<String>) {
    let (mut need, mut may) = (Vec::new(), BTreeSet::new());
    let objects: BTreeSet<ObjectId> = from.keys().chain(to.keys()).copied().collect();
    for object in objects {
        let (a, b) = (from.get(&object), to.get(&object));
        let is_several = |l: &Listed| l.lost || (l.attr.kind != FileKind::Dir && l.attr.nlink > 1);
        let several = [a, b].into_iter().flatten().any(is_several);
        let time = |l: &Listed| -> WallTime { l.attr.ctime };
        let same = |a: &Listed, b: &Listed| a.attr.generation == b.attr.generation && a.attr.kind == b.attr.kind;
        let one = |l: &Listed| l.paths.first().unwrap().clone();
        if several {
            let links = |l: Option<&Listed>| l.map_or(0, |l| i64::from(l.attr.nlink));
            let delta = links(b) - links(a);
            let old: Vec<&String> = a.iter().flat_map(|l| &l.paths).collect();
            let new: Vec<&String> = b.iter().flat_map(|l| &l.paths).collect();
            for path in old.iter().chain(&new) {
                may.extend(["+", "-", "M"].map(|sign| format!("{sign}{path}")));
                may.insert(format!("M{path}({delta:+})"));
                may.insert(format!("R{path}>{QUEUED}"));
                may.extend(new.iter().map(|to| format!("R{path}>{to}")));
            }
            continue;
        }
        match (a, b) {
            (Some(a), Some(b)) if same(a, b) && time(a) == time(b) => {}
            (Some(a), Some(b)) if same(a, b) && a.paths == b.paths => need.push(format!("M{}", one(a))),
            (Some(a), Some(b)) if same(a, b) => need.push(format!("R{}>{}", one(a), one(b))),
            (a, b) => {
                need.extend(a.map(|a| format!("-{}", one(a))));
                need.extend(b.map(|b| format!("+{}", one(b))));
            }
        }
    }
    (need, may)
}

fn random(seed: u64, setup: Setup, mix: Mix, rounds: usize, ops: u64) {
    run(seed, |rt| async move {
        let w = World::new(rt, setup).await;
        let mut work = Workload::new(w.fs.clone(), seed, mix).await.unwrap();
        let mut listings = Vec::new();
        for round in 0..rounds {
            work.run(ops).await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let name = round.to_string();
            snapshot(&w, &name).await;
            listings.push(listing(&*open(&w, &name).await).await);
        }
        let mut said = 0;
        for (from, to) in (0..rounds).flat_map(|to| (0..to).map(move |from| (from, to))) {
            let (need, may) = expected(&listings[from], &listings[to]);
            let mut got = lines(&w, &from.to_string(), &to.to_string()).await;
            said += got.len();
            for line in need {
                // What was removed while it was open waits in the queue.
                let queued = line.strip_prefix('-').map(|path| format!("R{path}>{QUEUED}"));
                let at = got.iter().position(|l| *l == line || Some(l) == queued.as_ref());
                let at = at.unwrap_or_else(|| panic!("seed {seed}, {from} to {to}: {line} is missing in {got:#?}"));
                got.swap_remove(at);
            }
            // The PARENT of a file that lost its name there may be anything now.
            let lost = listings[from].iter().chain(&listings[to]).filter(|(_, l)| l.lost);
            let lost: BTreeSet<String> = lost.map(|(object, _)| format!("!{object}")).collect();
            let hidden = |l: &String| l.contains("<xattrdir>") || l[1..].starts_with(QUEUED) || lost.contains(l);
            got.retain(|l| !hidden(l) && !may.contains(l));
            assert!(got.is_empty(), "seed {seed}, {from} to {to}: nothing explains {got:#?}");
        }
        assert!(said > rounds * 10, "{said} lines");
        w.fs.unmount().await.unwrap();
        w.pool.export().await.unwrap();
    });
}

#[test]
fn random_changes_are_found() {
    for seed in 0..4 {
        random(seed, Setup::default(), Mix::default(), 4, 150);
    }
}

#[test]
fn random_changes_of_names_are_found() {
    let mix = || Mix { names: 6, objects_max: 60, write_max: 100, size_max: 1000, xattrs: false, ..Mix::default() };
    for seed in 10..13 {
        random(seed, Setup::default(), mix(), 5, 200);
    }
}

#[test]
fn random_changes_of_large_dnodes_and_attribute_directories_are_found() {
    for seed in 20..22 {
        let props = vec![("recordsize", 4096), ("xattr", 1), ("dnodesize", 2048)];
        random(seed, Setup { props, ..Setup::default() }, Mix::default(), 4, 150);
    }
}
