//! Figures of `weir top`, on a mount: writes without delay do not count as delayed.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;

use host::TempDir;

#[test]
fn a_write_that_nothing_held_up_is_not_counted_as_delayed() {
    if let Err(e) = daemon::fuse_front::usable() {
        eprintln!("NOT RUN: a_write_that_nothing_held_up_is_not_counted_as_delayed: {e}");
        return;
    }
    let dir = TempDir::new("cli-delay").unwrap();
    let weir = |line: &str| {
        let mut c = Command::new(env!("CARGO_BIN_EXE_weir"));
        c.env("WEIR_RUNTIME_DIR", dir.join("run")).env("WEIR_STATE_DIR", dir.join("state")).env_remove("WEIR_TUNABLES");
        let o = c.args(line.split_whitespace()).current_dir(dir.path()).output().unwrap();
        (o.status.success(), String::from_utf8_lossy(&o.stderr).into_owned())
    };
    let at = |name: &str| dir.join(name).display().to_string();
    for line in [
        format!("daemon start -m unix:{}", at("metrics")),
        format!("zpool create -m {} --size 256M tank a.img", at("m")),
    ] {
        let (ok, err) = weir(&line);
        assert!(ok, "{line}: {err}");
    }
    // Records in the log, for their throttle.
    let sync = 0o4_010_000;
    let mut file =
        std::fs::OpenOptions::new().create(true).append(true).custom_flags(sync).open(dir.join("m/f")).unwrap();
    for _ in 0..200 {
        file.write_all(&[7; 4096]).unwrap();
    }
    drop(file);
    let mut s = UnixStream::connect(dir.join("metrics")).unwrap();
    s.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut text = String::new();
    s.read_to_string(&mut text).unwrap();
    weir("daemon stop -f");
    let value = |name: &str| {
        let line = text.lines().find(|l| l.starts_with(&format!("weir_{name}{{pool=\"tank\"}} "))).unwrap_or("");
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap_or(f64::NAN)
    };
    assert_eq!((value("delayed_writes_total"), value("delayed_seconds_total")), (0.0, 0.0), "{text}");
}
