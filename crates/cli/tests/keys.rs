//! The places of keys in the daemon's memory, read by root.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use host::TempDir;

use common::{Outcome, WEIR, can_mount, command_in, outcome_of};

struct World {
    dir: TempDir,
}

/// A part of a process's memory.
struct Mapping {
    range: Range<u64>,
    writable: bool,
    rss: u64,
    flags: String,
}

impl World {
    fn say(&self, line: &str, typed: &str) -> Outcome {
        let mut command: Command = command_in(self.dir.path(), WEIR);
        command.args(line.split_whitespace()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command with its key from a file reads no input.
        let _ = child.stdin.take().unwrap().write_all(typed.as_bytes());
        outcome_of(child.wait_with_output().unwrap())
    }

    fn ok(&self, line: &str, typed: &str) -> String {
        let s = self.say(line, typed);
        assert_eq!(s.code, 0, "weir {line}: {}{}", s.out, s.err);
        s.out
    }

    fn pid(&self) -> u32 {
        self.ok("daemon status", "").split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.say("daemon stop -f", "");
    }
}

fn mappings(pid: u32) -> Vec<Mapping> {
    let mut out: Vec<Mapping> = Vec::new();
    for line in fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap().lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap();
        if let Some((from, to)) = first.split_once('-') {
            let hex = |s| u64::from_str_radix(s, 16).unwrap();
            let writable = words.next().unwrap().starts_with("rw");
            out.push(Mapping { range: hex(from)..hex(to), writable, rss: 0, flags: String::new() });
        } else if first == "Rss:" {
            out.last_mut().unwrap().rss = words.next().unwrap().parse().unwrap();
        } else if first == "VmFlags:" {
            out.last_mut().unwrap().flags = words.map(|w| format!("{w} ")).collect();
        }
    }
    out
}

/// The addresses of each of `what` in the memory of a process, with the flags of their mappings.
fn find(pid: u32, what: &[Vec<u8>]) -> Vec<Vec<(u64, String)>> {
    let mut memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let heads: Vec<u64> = what.iter().map(|w| u64::from_ne_bytes(w[..8].try_into().unwrap())).collect();
    let mut found = vec![Vec::new(); what.len()];
    for m in mappings(pid).iter().filter(|m| m.writable && m.rss > 0) {
        for run in touched(pid, &m.range) {
            let mut bytes = vec![0; (run.end - run.start) as usize];
            // Mappings of devices, and those unmapped meanwhile, are left out.
            if memory.seek(SeekFrom::Start(run.start)).is_err() || memory.read_exact(&mut bytes).is_err() {
                continue;
            }
            for (at, eight) in bytes.windows(8).enumerate() {
                let word = u64::from_ne_bytes(eight.try_into().unwrap());
                for n in heads.iter().enumerate().filter(|(_, h)| **h == word).map(|(n, _)| n) {
                    if bytes[at..].starts_with(&what[n]) {
                        found[n].push((run.start + at as u64, m.flags.clone()));
                    }
                }
            }
        }
    }
    found
}

/// The runs of pages in a range that are in memory or swapped out. The others, most of what an
/// allocator maps, were never written. (A word of `pagemap` for each page, present in bit 63,
/// swapped in bit 62: Linux, admin-guide/mm/pagemap.)
fn touched(pid: u32, range: &Range<u64>) -> Vec<Range<u64>> {
    let page = *PAGE_SIZE;
    let mut words = vec![0; ((range.end - range.start) / page * 8) as usize];
    let mut pagemap = fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
    pagemap.seek(SeekFrom::Start(range.start / page * 8)).unwrap();
    if pagemap.read_exact(&mut words).is_err() {
        return Vec::new();
    }
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (n, word) in words.chunks_exact(8).enumerate() {
        if u64::from_ne_bytes(word.try_into().unwrap()) >> 62 == 0 {
            continue;
        }
        let at = range.start + n as u64 * page;
        match runs.last_mut() {
            Some(last) if last.end == at => last.end += page,
            _ => runs.push(at..at + page),
        }
    }
    runs
}

/// Bytes of a page.
static PAGE_SIZE: LazyLock<u64> = LazyLock::new(|| {
    let out = Command::new("getconf").arg("PAGESIZE").output().unwrap();
    String::from_utf8(out.stdout).unwrap().trim().parse().unwrap()
});

#[test]
fn keys_are_locked_and_gone_after_unload_key() {
    if host::effective_uid() != 0 {
        return eprintln!("NOT RUN: keys: only root may look into a daemon that is not dumpable");
    }
    if !can_mount("keys") {
        return;
    }
    let w = World { dir: TempDir::new("keys").unwrap() };
    let at = |name: &str| fs::canonicalize(w.dir.path()).unwrap().join(name).display().to_string();
    // These bytes appear in keys only.
    let mut raw = [0u8; 32];
    host::entropy(&mut raw);
    fs::write(at("raw"), raw).unwrap();
    let hex_key: [u8; 32] = std::array::from_fn(|i| raw[i] ^ 0x5a);
    let hex: String = hex_key.iter().map(|b| format!("{b:02x}")).collect();
    let words = format!("correct horse {}", &hex[..20]);
    // Two keys that stay in memory while loaded, and passphrases that do not.
    let needles: Vec<Vec<u8>> = vec![
        raw.to_vec(),
        hex_key.to_vec(),
        hex.clone().into_bytes(),
        words.clone().into_bytes(),
        b"not the key at all".to_vec(),
    ];
    w.ok(&format!("zpool create -O mountpoint={} --size 256M tank {}", at("mnt"), at("disk")), "");
    let new = "zfs create -o encryption=on";
    w.ok(&format!("{new} -o keyformat=raw -o keylocation=file://{} tank/raw", at("raw")), "");
    w.ok(&format!("{new} -o keyformat=hex tank/hex"), &format!("{hex}\n"));
    w.ok(&format!("{new} -o keyformat=passphrase tank/words"), &format!("{words}\n"));
    w.ok("zfs create tank/raw/child", "");
    for fs_name in ["raw", "raw/child", "hex", "words"] {
        fs::write(at(&format!("mnt/{fs_name}/file")), vec![7; 300_000]).unwrap();
    }
    let pid = w.pid();
    let found = find(pid, &needles);
    for key in &found[..2] {
        assert!(!key.is_empty(), "the scan finds nothing");
        assert!(key.iter().all(|(_, flags)| flags.contains("lo ") && flags.contains("dd ")), "{key:x?}");
    }
    assert!(found[2..].iter().all(Vec::is_empty), "{found:x?}");
    // Loaded once more, by another way.
    w.ok("zfs unmount tank/raw/child", "");
    for (fs_name, typed) in [("raw", ""), ("hex", hex.as_str()), ("words", words.as_str())] {
        w.ok(&format!("zfs unmount tank/{fs_name}"), "");
        w.ok(&format!("zfs unload-key tank/{fs_name}"), "");
        w.ok(&format!("zfs load-key tank/{fs_name}"), typed);
        // A wrong one leaves nothing, either.
        let wrong = w.say(&format!("zfs load-key -n -L prompt tank/{fs_name}"), "not the key at all");
        assert_ne!(wrong.code, 0);
    }
    assert!(find(pid, &needles)[..2].iter().all(|key| !key.is_empty()));
    w.ok("zfs unload-key -a", "");
    let found = find(pid, &needles);
    assert!(found.iter().all(Vec::is_empty), "keys are there after unload-key: {found:x?}");
    assert_eq!(pid, w.pid());
}
