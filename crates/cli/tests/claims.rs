//! Disks and partitions of an imported pool against every tool that claims a device for itself: the
//! kernel refuses it.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::process::Command;

use common::loops::Loop;
use common::world::{World, run};
use common::{Outcome, outcome_of};

/// Swap is on as long as this lives, if it was on at all.
struct Swap(String);

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).output();
    }
}

/// A tool that claims a device, or none, with a message, if it is not installed.
fn tool(program: &str, args: &[&str]) -> Option<Outcome> {
    match Command::new(program).args(args).env("LC_ALL", "C").output() {
        Ok(o) => Some(outcome_of(o)),
        Err(e) => {
            eprintln!("NOT RUN: {program} on the disks of a pool: {e}");
            None
        }
    }
}

/// Uses an unclaimed device in every way in turn: uses that this machine does not support are
/// printed and left out later.
fn used_by_others(dev: &str, at: &str) -> Vec<&'static str> {
    let mut can = vec!["mkswap", "mkfs.ext4", "wipefs", "mdadm"];
    run("mkswap", &["-q", "-f", dev]);
    let swap = Swap(dev.to_string());
    match tool("swapon", &[dev]) {
        Some(s) if s.code == 0 => can.push("swapon"),
        other => eprintln!("NOT RUN: swapon on the disks of a pool: {other:?}"),
    }
    drop(swap);
    run("mkfs.ext4", &["-F", "-q", dev]);
    match tool("mount", &["-t", "ext4", dev, at]) {
        Some(s) if s.code == 0 => {
            run("umount", &[at]);
            can.push("mount");
        }
        other => eprintln!("NOT RUN: mount of the disks of a pool: {other:?}"),
    }
    run("wipefs", &["-q", "-a", dev]);
    can
}

/// The messages of the tools for a claimed device.
fn all_refused(dev: &str, at: &str, can: &[&str]) {
    let swap = Swap(dev.to_string());
    for (program, args, says) in [
        ("swapon", &[dev][..], "Device or resource busy"),
        ("mkswap", &["-f", dev], "Device or resource busy"),
        ("mkfs.ext4", &["-F", "-q", dev], "is apparently in use by the system"),
        ("mount", &["-t", "ext4", dev, at], "already mounted or mount point busy"),
        ("wipefs", &["-a", dev], "Device or resource busy"),
        ("mdadm", &["--zero-superblock", dev], "Couldn't open"),
        ("mdadm", &["--create", "/dev/md/weir", "--run", "-l1", "-n1", "-f", dev], "Device or resource busy"),
    ] {
        if can.contains(&program)
            && let Some(s) = tool(program, args)
        {
            assert!(s.code != 0 && s.err.contains(says), "{program} {args:?}: {s:?}");
        }
    }
    drop(swap);
}

#[test]
fn what_claims_a_disk_is_refused_those_of_a_pool() {
    let Some(w) = World::of_root("claims") else { return };
    let other = World::without_mounts("claims-other");
    if ["mkswap", "mkfs.ext4", "wipefs"].iter().any(|p| Command::new(p).arg("-V").output().is_err()) {
        return eprintln!("NOT RUN: claims: needs mkswap, mkfs.ext4 and wipefs");
    }
    for name in ["whole", "parts", "swap"] {
        host::create_sparse(w.path(name), 256 << 20).unwrap();
    }
    let at = w.path("m");
    fs::create_dir(&at).unwrap();
    let Some(whole) = Loop::new(w.path("whole").as_ref(), &[]) else { return };
    let Some(parts) = Loop::new(w.path("parts").as_ref(), &["-P"]) else { return };
    let part = parts.partition(2048..400_000);
    let mut of_pool = vec![whole.at.as_str()];
    of_pool.extend(part.as_deref());
    // The disk of a partition is claimed with it.
    let mut held = of_pool.clone();
    held.extend(part.as_ref().map(|_| parts.at.as_str()));

    let can = used_by_others(&whole.at, &at);
    w.ok(&format!("zpool create -f -O mountpoint=none claimed {}", of_pool.join(" ")));
    // A header that swapon accepts, in a place that pools do not use.
    run("mkswap", &["-q", "-f", &w.path("swap")]);
    let mut header = [0; 4096];
    File::open(w.path("swap")).unwrap().read_exact(&mut header).unwrap();
    let write_headers = || {
        for dev in &held {
            let mut file = OpenOptions::new().write(true).open(dev).unwrap();
            file.write_all(&header).and_then(|()| file.sync_all()).unwrap();
        }
    };
    let refused = |pool_is: &str| {
        write_headers();
        for dev in &held {
            eprintln!("{dev} of a pool that is {pool_is}");
            all_refused(dev, &at, &can);
            // Another daemon, too, and the pool's own.
            let s = other.say(&format!("zpool create -f -O mountpoint=none new {dev}"));
            assert!(s.code == 1 && s.err.contains("in use by another process"), "{dev}: {s:?}");
            assert_eq!(w.say(&format!("zpool create -f -O mountpoint=none new {dev}")).code, 1, "{dev}");
        }
    };
    refused("imported");
    w.ok("daemon stop");
    w.ok("daemon start");
    assert_eq!(w.ok("zpool list -H -o name"), "claimed\n");
    refused("back with the next daemon");
    w.ok("zpool scrub -w claimed");
    assert!(w.ok("zpool status claimed").contains("scrub repaired 0B in "));
    w.ok("zpool export claimed");
    w.ok(&format!("zpool import -o readonly=on -d {} claimed", of_pool.join(" -d ")));
    refused("read only");
    w.ok("zpool export claimed");
    // Nothing stays behind.
    for dev in &of_pool {
        assert_eq!(used_by_others(dev, &at), can, "{dev}");
    }
}
