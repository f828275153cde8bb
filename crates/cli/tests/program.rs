//! `zfs program`: scripts on a pool, what they return, and what a change of many parts leaves.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::process::Command;

use common::ALONE;
use common::world::World;

/// A program in a file, as the command line that runs it has it.
fn script(w: &World, name: &str, text: &str) -> String {
    fs::write(w.path(name), text).unwrap();
    w.path(name)
}

fn run(w: &World, letters: &str, text: &str, args: &str) -> String {
    let file = script(w, "p.lua", text);
    w.ok(&format!("zfs program {letters} tank {file} {args}"))
}

fn fails(w: &World, letters: &str, text: &str, what: &[&str]) {
    let file = script(w, "p.lua", text);
    let o = w.say(&format!("zfs program {letters} tank {file}"));
    assert_eq!((o.code, o.out.as_str()), (1, ""), "{text}");
    assert!(o.err.starts_with("Channel program execution failed:\n"), "{}", o.err);
    for what in what {
        assert!(o.err.contains(what), "{text}: {}", o.err);
    }
}

/// The real zdb finds every block and no other.
fn judge(w: &World) {
    w.ok("zpool export tank");
    let zdb = Command::new("zdb").args(ALONE).args(["-e", "-p"]).arg(w.dir.path()).args(["-bcc", "tank"]).output();
    if let Ok(o) = zdb {
        let text = String::from_utf8_lossy(&o.stdout).into_owned() + &String::from_utf8_lossy(&o.stderr);
        assert!(o.status.success() && text.contains("No leaks"), "{text}");
    }
    w.ok(&format!("zpool import -d {} tank", w.path("")));
}

fn world(tag: &str) -> World {
    let w = World::without_mounts(tag);
    w.ok("zpool create -o compatibility=openzfs-2.1-linux -O mountpoint=none --size 128M tank a.img");
    w.ok("zfs create tank/fs");
    w
}

#[test]
fn programs_see_datasets_and_properties() {
    let w = world("program-looks");
    w.ok("zfs create -o quota=20M -o com.x:note=hello tank/fs/a");
    w.ok("zfs create -V 16M tank/vol");
    w.ok("zfs snapshot tank/fs@s1 tank/fs/a@s1");
    w.ok("zfs clone tank/fs@s1 tank/clone");
    w.ok("zfs hold keep tank/fs@s1");
    w.ok("zfs bookmark tank/fs@s1 tank/fs#mark");
    let text = "
        local fs = (...).argv[1]
        local function all(iter) local t = {} for a, b, c in iter do t[#t + 1] = a end return table.concat(t, ' ') end
        assert(all(zfs.list.children('tank')) == 'tank/clone tank/fs tank/vol')
        assert(all(zfs.list.snapshots(fs)) == fs .. '@s1')
        assert(all(zfs.list.clones(fs .. '@s1')) == 'tank/clone')
        assert(all(zfs.list.holds(fs .. '@s1')) == 'keep')
        assert(all(zfs.list.bookmarks(fs)) == fs .. '#mark')
        for name, value, source in zfs.list.user_properties(fs .. '/a') do
            assert(name == 'com.x:note' and value == 'hello' and source == fs .. '/a')
        end
        local function is(ds, prop, value, source)
            local v, s = zfs.get_prop(ds, prop)
            assert(v == value and s == source, ds .. ' ' .. prop .. ' is ' .. tostring(v) .. ' of ' .. tostring(s))
        end
        is(fs .. '/a', 'quota', 20 * 1024 * 1024, fs .. '/a')
        is(fs, 'quota', 0, 'default')
        is(fs, 'snapshot_limit', -1, 'default')
        is(fs, 'compressratio', 100, nil)
        is(fs, 'mountpoint', 'none', 'tank')
        is(fs, 'type', 'filesystem', nil)
        is(fs .. '@s1', 'type', 'snapshot', nil)
        is(fs .. '@s1', 'quota', nil, nil)
        is('tank/vol', 'volsize', 16 * 1024 * 1024, 'tank/vol')
        is('tank/clone', 'origin', fs .. '@s1', nil)
        is(fs, 'origin', nil, nil)
        is(fs, 'prevsnap', fs .. '@s1', nil)
        is(fs, 'copies', '1', 'default')
        is(fs, 'written@s1', 0, fs)
        is(fs .. '/a', 'com.x:note', 'hello', fs .. '/a')
        is(fs, 'com.x:note', nil, nil)
        assert(zfs.get_prop(fs .. '@s1', 'clones')[1] == 'tank/clone')
        assert(zfs.exists(fs) and not zfs.exists('tank/none') and not zfs.exists(fs .. '@none'))
        zfs.debug('seen')
        return zfs.list.system_properties(fs)";
    for letters in ["-n", ""] {
        let out = run(&w, letters, text, "tank/fs");
        assert!(
            out.starts_with("Channel program fully executed with return value:\n    return:\n        1: 'type'\n"),
            "{out}"
        );
    }
    let json = run(&w, "-j", "return {zfs.exists('tank'), n = 2}", "");
    assert_eq!(json, "{\"return\":{\"1\":true,\"n\":2}}");
    assert_eq!(run(&w, "-n", "return", ""), "Channel program fully executed with no return value.\n");
    for (text, what) in [
        ("zfs.get_prop('tank/fs', 'nonsense')", "'nonsense' is not a valid property"),
        ("zfs.get_prop('tank/none', 'type')", "bad argument #1 to 'get_prop' (no such dataset 'tank/none')"),
        ("zfs.list.children('rpool')", "dataset 'rpool' is not in the target pool 'tank'"),
        ("zfs.list.children('tank/fs@s1')", "argument tank/fs@s1 cannot be a snapshot"),
        ("return zfs.exists('rpool')", "is not in the target pool"),
        ("retrn 1", "syntax error near '1'"),
        ("return 1 / 0", "attempt to divide by zero"),
        ("error('why')", "in function 'error'"),
    ] {
        fails(&w, "-n", text, &[what]);
        fails(&w, "", text, &[what]);
    }
    fails(&w, "-t 1000", "while true do end", &["Channel program timed out.", "1100 Lua instructions"]);
    fails(&w, "-m 1", "return 'a' .. 1", &["Memory limit exhausted."]);
    fails(&w, "-m 200000000", "return 1", &["Invalid instruction or memory limit."]);
    fails(&w, "-m 9223372036854775808", "return 1", &["Return value too large."]);
    w.fails("zfs program none p.lua", &["none"]);
    assert_eq!(w.say("zfs program tank").code, 2);
    assert_eq!(w.say("zfs program -t x tank p.lua").code, 2);
}

#[test]
fn changes_are_one_txg() {
    let w = world("program-changes");
    w.ok("zfs create tank/fs/a");
    w.ok("zfs snapshot tank/fs@old");
    w.ok("zfs clone tank/fs@old tank/clone");
    w.ok("zfs snapshot tank/clone@old");
    fails(&w, "-n", "zfs.sync.snapshot('tank/fs@no')", &["requires passing sync=TRUE"]);
    let text = "
        assert(zfs.check.snapshot('tank/fs@s') == 0 and not zfs.exists('tank/fs@s'))
        assert(zfs.sync.snapshot('tank/fs@s') == 0 and zfs.exists('tank/fs@s'))
        assert(zfs.sync.snapshot('tank/fs/a@s') == 0)
        assert(zfs.sync.snapshot('tank/fs@t') == EAGAIN)
        assert(zfs.sync.snapshot('tank/fs') == EINVAL)
        assert(zfs.sync.snapshot('tank/fs@' .. ('a'):rep(300)) == ENAMETOOLONG)
        assert(zfs.sync.snapshot('other/fs@s') == EXDEV)
        assert(zfs.sync.rename_snapshot('tank/fs', 's', 'r') == 0)
        assert(zfs.sync.bookmark('tank/fs@r', 'tank/fs#b') == 0)
        assert(zfs.sync.bookmark('tank/fs#b', 'tank/fs#c') == 0)
        assert(zfs.sync.bookmark('tank/fs#b', 'tank/fs#c') == EEXIST)
        assert(zfs.sync.set_prop('tank/fs', 'com.x:a', 'one') == 0)
        assert(zfs.sync.set_prop('tank/fs@r', 'com.x:b', 'two') == 0)
        assert(zfs.sync.set_prop('tank/fs', 'copies', '2') == EINVAL)
        assert(zfs.sync.set_prop('tank/fs', 'b:' .. ('a'):rep(300), 'x') == ENAMETOOLONG)
        assert(zfs.sync.set_prop('tank/fs', 'b:a', ('a'):rep(9000)) == E2BIG)
        assert(zfs.get_prop('tank/fs', 'com.x:a') == 'one')
        assert(zfs.get_prop('tank/fs@r', 'com.x:b') == 'two')
        assert(zfs.sync.inherit('tank/fs', 'com.x:a') == 0)
        assert(zfs.get_prop('tank/fs', 'com.x:a') == nil)
        assert(zfs.sync.clone('tank/fs@old', 'tank/other') == 0)
        assert(zfs.sync.destroy('tank/fs@old') == EBUSY)
        assert(zfs.sync.destroy{'tank/fs@old', defer=true} == 0)
        assert(zfs.sync.destroy('tank/fs') == EEXIST)
        local err, details = zfs.sync.promote('tank/clone')
        assert(err == EEXIST and #details == 1 and details[1] == 'old')
        local err, details = zfs.sync.rollback('tank/fs/a')
        return err";
    let file = script(&w, "changes.lua", text);
    let txg = |w: &World| w.ok("zpool history -i tank").lines().filter_map(txg_of).max().unwrap();
    let before = txg(&w);
    assert!(w.ok(&format!("zfs program tank {file}")).contains("return: 11"));
    let history = w.ok("zpool history -i tank");
    let made: Vec<u64> = history.lines().filter_map(txg_of).filter(|n| *n > before).collect();
    assert!(made.len() >= 9 && made.iter().all(|n| *n == made[0]), "{history}");
    assert!(history.contains(&format!("zfs program tank {file}")), "{history}");
    assert_eq!(
        w.ok("zfs list -H -o name -t snapshot,bookmark -r tank/fs"),
        "tank/fs@old\ntank/fs@r\ntank/fs#b\ntank/fs#c\ntank/fs/a@s\n"
    );
    judge(&w);
    // What a txg makes it may destroy as well, and go back and on.
    let text = "
        assert(zfs.sync.snapshot('tank/other@x') == 0)
        assert(zfs.sync.destroy('tank/other@x') == 0)
        for s in zfs.list.snapshots('tank/other') do assert(false) end
        assert(zfs.sync.rollback('tank/fs/a') == 0)
        assert(zfs.sync.destroy('tank/fs/a@s') == 0)
        assert(zfs.sync.destroy('tank/fs/a') == 0)
        assert(zfs.sync.rename_snapshot('tank/clone', 'old', 'own') == 0)
        assert(zfs.sync.promote('tank/clone') == 0)
        assert(zfs.sync.promote('tank/fs') == 0)
        assert(zfs.sync.promote('tank/other') == 0)
        for c in zfs.list.children('tank/fs') do assert(false) end";
    run(&w, "", text, "");
    assert_eq!(w.ok("zfs get -H -o value origin tank/clone tank/fs tank/other"), "tank/other@old\ntank/other@old\n-\n");
    judge(&w);
    // An error leaves what was done before it.
    fails(&w, "", "zfs.sync.snapshot('tank/fs@kept') error('stop')", &["stop"]);
    w.ok("zfs list tank/fs@kept");
    judge(&w);
}

/// The txg of a line of the history.
fn txg_of(line: &str) -> Option<u64> {
    let rest = line.split_once("[txg:")?.1;
    rest.split_once(']')?.0.parse().ok()
}
