//! `zinject` from outside: faults on purpose of devices and files, through a daemon.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::os::unix::fs::FileExt;

use common::world::World;

impl World {
    /// It must end with this code and say this.
    fn refuses(&self, line: &str, code: i32, what: &str) {
        let s = self.say(line);
        assert!(s.code == code && s.err.contains(what), "weir {line}: {} {}{}", s.code, s.out, s.err);
    }

    /// Errors of reads, writes and checksums of a device.
    fn errors(&self, device: &str) -> [u64; 3] {
        let status = self.ok("zpool status -p tank");
        let line = status.lines().find(|l| l.contains(device)).unwrap_or_else(|| panic!("{device}: {status}"));
        let mut words = line.split_whitespace().skip(2).map(|n| n.parse().unwrap());
        [(); 3].map(|()| words.next().unwrap())
    }

    /// Operations that the only fault is about, and those that it befell.
    fn counts(&self) -> [u64; 2] {
        let list = self.ok("zinject");
        assert_eq!(list.lines().count(), 3, "{list}");
        let mut words = list.lines().last().unwrap().split_whitespace().rev().map(|n| n.parse().unwrap());
        let hits = words.next().unwrap();
        [words.next().unwrap(), hits]
    }
}

#[test]
fn devices_fail_on_purpose_until_that_is_cancelled() {
    let w = World::without_mounts("cli-zinject");
    assert!(w.ok("zinject").starts_with("No handlers registered.\n"));
    // A device that was degraded or faulted for its errors is resilvered.
    let clear = || {
        w.ok("zpool clear tank");
        w.ok("zpool wait -t resilver tank");
    };
    w.ok("zpool create -O mountpoint=none --size 128M tank mirror a.img b.img");
    let added = w.ok("zinject -d a.img -e io -T read tank");
    assert!(added.starts_with("Added handler 1 with the following properties:\n  pool: tank\n  vdev: "), "{added}");
    w.ok("zinject -a");
    w.ok("zpool scrub -w tank");
    assert!(w.errors("a.img")[0] > 0 && w.errors("b.img") == [0; 3], "{}", w.ok("zpool status"));
    assert!(w.ok("zpool status tank").contains("errors: No known data errors"));
    let [matched, hits] = w.counts();
    assert!(matched == hits && hits >= w.errors("a.img")[0], "{matched} {hits}");
    assert_eq!(w.ok("zinject -c 1"), "removed handler 1\n");
    w.refuses("zinject -c 1", 1, "there is no fault 1");
    clear();
    w.ok("zpool scrub -w tank");
    assert_eq!(w.errors("a.img"), [0; 3]);

    // Flipped bits are wrong checksums. The number alone, to cancel by.
    let id = w.ok("zinject -q -d b.img -e corrupt -T read -f 100 tank");
    assert_eq!(id, "2\n");
    w.ok("zpool scrub -w tank");
    let [read, write, cksum] = w.errors("b.img");
    assert!(read + write == 0 && cksum > 0, "{}", w.ok("zpool status"));
    assert_eq!(w.ok("zinject -c all"), "removed all registered handlers\n");
    assert!(w.ok("zinject").starts_with("No handlers registered.\n"));
    clear();

    // A device that is gone is out of use when it is looked for, and comes back.
    w.ok("zinject -d a.img -e nxio -T probe tank");
    w.ok("zpool reopen tank");
    assert!(w.ok("zpool status tank").contains("UNAVAIL"), "{}", w.ok("zpool status tank"));
    w.refuses("zpool online tank a.img", 1, "on purpose");
    w.ok("zinject -c all");
    w.ok("zpool reopen tank");
    w.ok("zpool wait -t resilver tank");
    assert!(!w.ok("zpool status tank").contains("UNAVAIL"));

    // Delays are listed in milliseconds; faults end with the import.
    w.ok("zinject -d a.img -D 20:3 tank");
    let list = w.ok("zinject");
    assert!(
        list.contains("DELAY (ms)") && list.lines().last().unwrap().contains("          20      3  100.0000%"),
        "{list}"
    );
    w.fails("zpool export tank", &["pool is busy: faults are injected into it"]);
    w.ok("zinject -c all");
    w.ok("zpool export tank");
    w.ok("zpool import -d . tank");
    assert!(w.ok("zinject").starts_with("No handlers registered.\n"));

    w.ok("zinject -d a.img -A degrade tank");
    assert!(w.ok("zpool status tank").contains("DEGRADED"));
    w.ok("zinject -d a.img -A fault tank");
    assert!(w.ok("zpool status tank").contains("FAULTED"));
    w.ok("zpool clear tank");
    assert!(!w.ok("zpool status tank").contains("FAULTED"));

    for (line, code, what) in [
        ("zinject -d nothing -e io tank", 1, "no such device in pool 'tank': nothing"),
        ("zinject -d mirror-0 -e io tank", 1, "mirror-0 is not a device"),
        ("zinject -d a.img -e io absent", 1, "absent"),
        ("zinject -d a.img -e dtl tank", 1, "dirty time logs"),
        ("zinject -d a.img -e nonsense tank", 1, "invalid device error 'nonsense'"),
        ("zinject -d a.img -e checksum tank", 1, "invalid device error 'checksum'"),
        ("zinject -d a.img -e io -T claim tank", 1, "no operation of a device is a 'claim'"),
        ("zinject -d a.img -D 1:70000 tank", 1, "lanes"),
        ("zinject -d a.img -e corrupt tank", 2, "require io type read"),
        ("zinject -d a.img", 2, "requires a single pool name"),
        ("zinject -d a.img -f 0 tank", 2, "invalid frequency '0'"),
        ("zinject -c 1 -a", 2, "incompatible with any other"),
        ("zinject -b 0:1:0:0 tank", 1, "are not there yet"),
        ("zinject -b 9999:1:0:0 tank", 1, "cannot add the fault"),
        ("zinject -b 1:2 tank", 2, "bad raw spec '1:2'"),
        ("zinject -t mos tank", 1, "-t mos is not supported yet"),
        ("zinject -t data absent", 1, "cannot open"),
        ("zinject -p spa_sync tank", 1, "-p is not supported: there is no kernel"),
        ("zinject -I tank", 1, "-I is not supported"),
        ("zinject -q", 2, "nothing to do"),
        ("zinject -X", 2, "invalid option 'X'"),
    ] {
        w.refuses(line, code, what);
    }
    assert!(w.ok("zinject").starts_with("No handlers registered.\n"), "a refused one adds nothing");
}

#[test]
fn copies_of_a_file_fail_and_are_mended() {
    let Some(w) = World::new("cli-zinject-files") else { return };
    let at = w.dir.join("mnt").display().to_string();
    w.ok(&format!("zpool create -O mountpoint={at} -O copies=3 --size 128M tank a.img"));
    let file = format!("{at}/file");
    let content: Vec<u8> = (0..1_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(&file, &content).unwrap();
    let afresh = || {
        w.ok("zfs unmount tank");
        w.ok("zfs mount tank");
        w.ok("zinject -a tank");
    };

    let added = w.ok(&format!("zinject -a -t data -C 0,1 -e io {file}"));
    assert!(added.contains("\n range: all\n  dvas: 0x3\n"), "{added}");
    w.ok("zpool scrub -w tank");
    let status = w.ok("zpool status tank");
    assert!(status.contains("with 0 errors") && status.contains("errors: No known data errors"), "{status}");
    let [read, write, cksum] = w.errors("a.img");
    assert!(read > 0 && write == 0 && cksum == 0, "{read} {write} {cksum}: the device counts what it could not read");
    afresh();
    assert_eq!(std::fs::read(&file).unwrap(), content, "from the third copy");
    assert!(w.counts()[1] > 0);
    w.ok("zinject -c all");
    w.ok("zpool scrub -w tank");
    assert!(w.ok("zpool status tank").contains("scrub repaired 0B"), "{}", w.ok("zpool status tank"));

    // Part of a file: what is before and behind it can be read.
    w.ok(&format!("zinject -t data -e checksum -r 1M,2M {file}"));
    afresh();
    let read = |offset: u64, len: usize| {
        use std::os::unix::fs::FileExt;
        let mut buf = vec![0; len];
        std::fs::File::open(&file).unwrap().read_exact_at(&mut buf, offset).map(|()| buf)
    };
    assert_eq!(read(3 << 20, 65_536).unwrap(), content[3 << 20..][..65_536]);
    assert_eq!(read((1 << 20) + 4096, 4096).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(read(0, 65_536).unwrap(), content[..65_536]);
    w.ok("zinject -c all");
    // What a program could not read is listed, also after a restart, until a scrub reads it.
    let list = format!("errors: Permanent errors have been detected in the following files:\n\n        {file}\n");
    let status = w.ok("zpool status -v tank");
    assert!(status.ends_with(&list), "{status}");
    w.ok("zpool sync tank");
    w.ok("zpool export tank");
    w.ok("zpool import -d . tank");
    let status = w.ok("zpool status -v tank");
    assert!(status.ends_with(&list), "{status}");
    w.ok("zpool scrub -w tank");
    assert!(w.ok("zpool status -v tank").contains("errors: No known data errors"), "{}", w.ok("zpool status -v tank"));
    assert_eq!(std::fs::read(&file).unwrap(), content);
    w.refuses(&format!("zinject -t data {at}"), 1, "is not a regular file");
    w.refuses(&format!("zinject -t data -l 9 {file}"), 1, "levels only");
    w.refuses("zinject -t data /proc/self/status", 1, "not a path of a mounted weir file system");
    w.ok("zpool destroy tank");
}

/// Removing a file whose indirect blocks cannot be read costs its space, and writing to it the
/// write, not the pool.
#[test]
fn damaged_indirect_blocks_do_not_suspend_the_pool() {
    let Some(w) = World::new("cli-zinject-unlink") else { return };
    let m = w.path("m");
    w.ok(&format!("zpool create --size 256M -m {m} -O compression=off -O redundant_metadata=none tank a.img"));
    let (gone, cut, kept) = (format!("{m}/gone"), format!("{m}/cut"), format!("{m}/kept"));
    for file in [&gone, &cut, &kept] {
        std::fs::write(file, vec![7; 1 << 20]).unwrap();
    }
    w.ok("zpool export tank");
    w.ok("zpool import -d . tank");
    for file in [&gone, &cut, &kept] {
        w.ok(&format!("zinject -t data -l 1 -e checksum {file}"));
    }
    std::fs::remove_file(&gone).unwrap();
    std::fs::OpenOptions::new().write(true).open(&cut).unwrap().set_len(4096).unwrap_err();
    let file = std::fs::OpenOptions::new().write(true).open(&kept).unwrap();
    let written = file.write_all_at(&[1; 128 << 10], 3 * (128 << 10)).and_then(|()| file.sync_all());
    written.unwrap_err();
    drop(file);
    w.ok("zpool sync tank");
    w.ok("zfs set atime=off tank");
    let used = || w.ok("zfs get -Hp -o value referenced tank").trim().parse::<u64>().unwrap();
    assert!(!std::path::Path::new(&gone).exists() && used() > 3 << 20, "{}", used());
    // The next mount tries again.
    w.ok("zinject -c all");
    w.ok("zfs unmount tank");
    w.ok("zfs mount tank");
    w.ok("zfs wait -t deleteq tank");
    w.ok("zpool sync tank");
    assert!(used() < 3 << 20, "{}", used());
    for file in [&cut, &kept] {
        assert!(std::fs::read(file).unwrap() == vec![7; 1 << 20], "{file}");
    }
    w.ok("zpool destroy tank");
}

/// What does not decompress, or has a wrong authentication code, is an event with the place of the
/// block, and stays what it is however often it is read.
#[test]
fn content_that_is_bad_is_an_event() {
    let Some(w) = World::new("cli-zinject-content") else { return };
    let at = w.dir.join("mnt").display().to_string();
    std::fs::write(w.dir.join("key"), "a passphrase").unwrap();
    let key = w.dir.join("key").display().to_string();
    w.ok(&format!("zpool create -O mountpoint={at} -O compression=lz4 --size 128M tank a.img"));
    w.ok(&format!("zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://{key} tank/e"));
    for (fs, error, event) in [("tank", "decompress", "data"), ("tank/e", "decrypt", "authentication")] {
        let file = at.clone() + fs.strip_prefix("tank").unwrap() + "/file";
        let content = b"what compresses ".repeat(1 << 18);
        std::fs::write(&file, &content).unwrap();
        w.ok(&format!("zinject -a -t data -e {error} -f 50 {file}"));
        w.ok(&format!("zfs unmount {fs}"));
        w.ok("zfs mount -a");
        w.ok("zpool events -c");
        assert_eq!(std::fs::read(&file).unwrap_err().raw_os_error(), Some(5), "{error}");
        w.event(&format!("ereport.fs.zfs.{event}"));
        let events = w.ok("zpool events -v tank");
        assert!(events.contains("zio_blkid"), "{events}");
        let other = if event == "data" { "authentication" } else { "zfs.data" };
        assert!(!events.contains(other), "{events}");
        w.ok("zinject -c all");
        assert_eq!(std::fs::read(&file).unwrap(), content);
    }
    w.ok("zpool destroy tank");
}
