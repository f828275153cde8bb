//! Where the daemon's log goes on a machine with systemd: to the journal's socket beside the file,
//! or to standard error where systemd reads that.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Stdio;
use std::time::Duration;

use common::world::World;
use common::{WEIR, outcome_of};

/// The test has its own journal socket, in place of the machine's in a mount namespace of the
/// daemon.
#[test]
fn the_journal_has_what_the_log_has() {
    let Some(w) = World::of_root("journal") else { return };
    fs::create_dir(w.path("journal")).unwrap();
    let journal = UnixDatagram::bind(w.path("journal/socket")).unwrap();
    journal.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let place = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind \"$0\" /run/systemd/journal";
    let mut c = w.command("unshare");
    c.args(["-m", "--propagation", "private", "sh", "-c", &format!("{place} && exec \"$1\" daemon start")]);
    let s = outcome_of(c.arg(w.path("journal")).arg(WEIR).output().unwrap());
    assert_eq!(s.code, 0, "{s:?}");
    let mut heard: Vec<String> = Vec::new();
    // The kernel queues few messages, so the test reads each at once.
    for (command, message) in [
        ("zpool create -O mountpoint=none --size 128M tank a.img", "pool 'tank' was created"),
        ("zpool scrub -w tank", "pool 'tank': the scrub has ended"),
        ("zpool export tank", "pool 'tank' was exported"),
    ] {
        w.ok(command);
        while heard.last().is_none_or(|m| m != message) {
            let mut buf = [0; 4096];
            let n = journal.recv(&mut buf).unwrap_or_else(|e| panic!("{message}: {e}: {heard:?}"));
            let text = String::from_utf8(buf[..n].to_vec()).unwrap();
            // systemd.journal-fields(7), the native protocol: NAME=VALUE lines.
            let fields = text.strip_prefix("PRIORITY=5\nSYSLOG_IDENTIFIER=weir\nMESSAGE=");
            heard.push(fields.unwrap_or_else(|| panic!("{text}")).strip_suffix('\n').unwrap().to_string());
        }
    }
    assert!(heard[0].contains("begins as process"), "{heard:?}");
    // The file has the same.
    let log = fs::read_to_string(w.path("run/daemon.log")).unwrap();
    let lines: Vec<&str> = log.lines().map(|l| l.split_once(" notice: ").unwrap().1).collect();
    assert_eq!(lines, heard);
    // A journal that ends does not stop the daemon.
    drop(journal);
    w.ok("zpool import -d . tank");
    assert!(fs::read_to_string(w.path("run/daemon.log")).unwrap().ends_with("notice: pool 'tank' was imported\n"));
}

#[test]
fn a_service_of_systemd_logs_to_its_standard_error() {
    for named in [true, false] {
        let w = World::without_mounts("journal-stream");
        let (ours, its) = UnixStream::pair().unwrap();
        let its = OwnedFd::from(its);
        let meta = fs::File::from(its.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap();
        // systemd.exec(5): the variable may be left from a service that started this one.
        let stream = format!("{}:{}", meta.dev(), if named { meta.ino() } else { meta.ino() + 1 });
        let mut c = w.command(WEIR);
        c.args(["daemon", "run"]).env("JOURNAL_STREAM", stream).stdin(Stdio::null()).stdout(Stdio::null()).stderr(its);
        let mut daemon = c.spawn().unwrap();
        drop(c);
        while w.say("daemon status").code != 0 {
            assert!(daemon.try_wait().unwrap().is_none(), "it ended at once");
        }
        w.ok("zpool create -O mountpoint=none --size 128M tank a.img");
        w.ok("zpool destroy tank");
        w.ok("daemon stop");
        assert!(daemon.wait().unwrap().success());
        let mut text = String::new();
        (&ours).read_to_string(&mut text).unwrap();
        assert_eq!(text.contains("<5>pool 'tank' was created\n"), named, "{text}");
        assert_eq!(text.contains("Z notice: pool 'tank' was created\n"), !named, "{text}");
        // systemd keeps it: no file is needed.
        assert_eq!(fs::metadata(w.path("run/daemon.log")).is_ok(), !named);
    }
}
