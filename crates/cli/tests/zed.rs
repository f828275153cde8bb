//! `zed` beside a daemon of pools that ends and begins, and the program of `contrib` for mail.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::world::World;
use common::{WEIR, outcome_of};

fn script(path: &str, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// A process that a failed test does not leave.
struct Zed(Child);

impl Drop for Zed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lines of a pipe as they come.
struct Lines(Receiver<String>);

impl Lines {
    fn of(pipe: impl std::io::Read + Send + 'static) -> Lines {
        let (to, lines) = channel();
        std::thread::spawn(move || BufReader::new(pipe).lines().map_while(Result::ok).all(|l| to.send(l).is_ok()));
        Lines(lines)
    }
    /// The lines up to the next one that has `text` in it.
    fn until(&self, text: &str) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            match self.0.recv_timeout(Duration::from_secs(120)) {
                Ok(line) => all.push(line),
                Err(e) => panic!("'{text}' does not come: {e}: {all:#?}"),
            }
            if all.last().unwrap().contains(text) {
                return all;
            }
        }
    }
}

/// The one in the background, as its PID file says.
struct Background(u32);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", &self.0.to_string()]).stderr(Stdio::null()).status();
    }
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn each_event_is_handled_once_whatever_ends_and_begins() {
    let w = World::without_mounts("zed");
    let (folder, fifo, pid_file) = (w.path("zed.d"), w.path("fifo"), w.path("zed.pid"));
    fs::create_dir(&folder).unwrap();
    common::world::run("mkfifo", &[&fifo]);
    let events = Lines::of(File::options().read(true).write(true).open(&fifo).unwrap());
    let fields = "$ZEVENT_SUBCLASS $ZEVENT_CLASS $ZEVENT_POOL $ZEVENT_POOL_GUID $ZEVENT_EID";
    let rest = "[$ZEVENT_HISTORY_INTERNAL_NAME] [$HOME] $(\"$ZPOOL\" list -H -o name)";
    script(&format!("{folder}/all-say"), &format!("echo \"{fields} {rest}\" > {fifo}"));
    script(&format!("{folder}/pool_create.sh"), "exit 3");
    // 4 is the folder that is read.
    let process = "$(ls /proc/self/fd | tr '\\n' ' ')$(grep SigBlk /proc/self/status)";
    script(&format!("{folder}/scrub_start-x"), &format!("echo \"process {process}\" > {fifo}"));
    script(&format!("{folder}/scrub_startx"), &format!("echo never > {fifo}"));
    let state = w.path("state/zed.state");
    let zed = |letters: &[&str]| {
        let mut c = w.command(WEIR);
        c.arg("zed").args(letters).args(["-d", "zed.d", "-p", &pid_file, "-s", &state, "-j", "1"]).env("HOME", "/x");
        c
    };
    // It waits for a daemon, and starts none.
    let mut first = Zed(zed(&["-vF"]).stderr(Stdio::piped()).spawn().unwrap());
    let said = Lines::of(first.0.stderr.take().unwrap());
    let begin = said.until("zed waits: no daemon is running");
    assert!(begin.contains(&"'pool_create.sh' is a zedlet".to_string()), "{begin:?}");
    let refused = outcome_of(zed(&["-F"]).output().unwrap());
    let why = format!("PID file '{pid_file}' is that of another zed, process {}\n", first.0.id());
    assert_eq!((refused.code, refused.out, refused.err), (1, String::new(), why));

    w.ok("zpool create --size 128M -m none tank a.img");
    let guid: u64 = w.ok("zpool get -H -o value guid tank").trim().parse().unwrap();
    let created = events.until("pool_create ").pop().unwrap();
    let words: Vec<&str> = created.split(' ').collect();
    assert_eq!(words[..3], ["pool_create", "sysevent.fs.zfs.pool_create", "tank"]);
    assert_eq!(words[3], format!("0x{guid:016X}"));
    assert_eq!(words[5..], ["[]", "[]", "tank"]);
    // The history of the creation comes first.
    said.until("zedlet 'pool_create.sh' of event 3 ended with exit status: 3");
    // A new zedlet counts from the signal on.
    script(&format!("{folder}/scrub_finish-late"), &format!("echo late > {fifo}"));
    signal("-HUP", first.0.id());
    said.until("'scrub_finish-late' is a zedlet");
    w.ok("zpool scrub -w tank");
    let scrubbed = events.until("late");
    let process = scrubbed.iter().find(|l| l.starts_with("process ")).unwrap();
    assert_eq!(process, "process 0 1 2 3 4 SigBlk:\t0000000000000000");
    assert!(scrubbed.iter().any(|l| l.contains("[scan setup]")), "{scrubbed:?}");
    assert!(!scrubbed.contains(&"never".to_string()));
    // Events that are not kept are missed, which is told.
    w.ok("tune set zfs_zevent_len_max=0");
    w.ok("zpool scrub -w tank");
    w.ok("tune set zfs_zevent_len_max=512");
    w.ok("zpool scrub -w tank");
    said.until("were dropped or cleared before zed saw them");
    // Another daemon counts from 1 again.
    w.ok("daemon stop");
    said.until("zed waits: ");
    w.ok("daemon start");
    said.until("zed follows the events after number 0");
    events.until("pool_import sysevent.fs.zfs.pool_import tank ");
    signal("-TERM", first.0.id());
    said.until("zed ends");
    assert!(first.0.wait().unwrap().success() && !fs::exists(&pid_file).unwrap());

    // What comes meanwhile is handled by the next one, and nothing else.
    w.ok("zfs set atime=off tank");
    let in_background = outcome_of(zed(&[]).output().unwrap());
    assert_eq!((in_background.code, in_background.out, in_background.err), (0, String::new(), String::new()));
    let second = Background(fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap());
    w.ok("zpool scrub -w tank");
    let later = events.until("late");
    assert_eq!(later.iter().filter(|l| l.starts_with("history_event ") && l.contains("[set]")).count(), 1, "{later:?}");
    assert!(!later.iter().any(|l| l.starts_with("pool_import ")), "{later:?}");
    assert_eq!(fs::read_to_string(format!("/proc/{}/comm", second.0)).unwrap(), "zed\n");
    let held = File::open(&pid_file).unwrap();
    signal("-INT", second.0);
    held.lock().unwrap();
    // It has ended: another process may get its number.
    std::mem::forget(second);
    assert!(!fs::exists(&pid_file).unwrap());
    w.ok("zpool destroy tank");
}

/// Events that OpenZFS has as well, by the commands that make them.
#[test]
fn commands_make_the_events_of_openzfs() {
    let w = World::without_mounts("zed-events");
    fs::write(w.path("c.img"), "").unwrap();
    File::options().write(true).open(w.path("c.img")).unwrap().set_len(128 << 20).unwrap();
    for (line, events) in [
        ("zpool create --size 128M -m none tank mirror a.img b.img", &["pool_create", "config_sync"][..]),
        ("zpool set comment=text tank", &["history_event set comment=text", "config_sync"]),
        ("zpool set autoexpand=on tank", &["history_event set autoexpand=1"]),
        ("zpool set org.x:y=z tank", &["history_event set org.x:y=z"]),
        ("zpool add tank spare c.img", &["vdev_add", "config_sync"]),
        ("zpool remove tank c.img", &["vdev_remove_aux", "config_sync"]),
        ("zpool add -f tank log c.img", &["vdev_add", "config_sync"]),
        ("zpool remove tank c.img", &["vdev_remove_dev", "config_sync"]),
        ("zpool export tank", &["pool_export"]),
        ("zpool import -d . tank", &["pool_import", "config_sync"]),
        ("zpool destroy tank", &["pool_destroy"]),
    ] {
        w.ok("zpool events -c");
        w.ok(line);
        // The configuration is written with the next txg; at the end there is no pool.
        w.say("zpool sync -f");
        let all = w.ok("zpool events -H -v");
        for event in events {
            let (class, note) = event.split_once(' ').unwrap_or((event, ""));
            let (name, text) = note.split_once(' ').unwrap_or_default();
            let is_it = |e: &str| {
                e.contains(&format!("sysevent.fs.zfs.{class}\"\n"))
                    && e.contains(&format!("history_internal_name = \"{name}\"")) != note.is_empty()
                    && (note.is_empty() || e.contains(&format!("history_internal_str = \"{text}\"\n")))
            };
            assert!(all.split("\n\n").any(is_it), "{line}: {event}: {all}");
        }
    }
}

#[test]
fn mistakes_are_one_sentence() {
    let w = World::without_mounts("zed-mistakes");
    let run = |line: &str| {
        let o = outcome_of(w.command(WEIR).arg("zed").args(line.split_whitespace()).output().unwrap());
        (o.code, o.out, o.err)
    };
    for letters in ["", "-F "] {
        let (code, out, err) = run(&format!("{letters}-d none -p p -s s"));
        let why = format!("the folder of zedlets '{}' cannot be read: No such file", w.path("none"));
        assert!(code == 1 && out.is_empty() && err.starts_with(&why) && err.lines().count() == 1, "{err}");
    }
    let (code, out, err) = run("-x");
    assert!(code == 1 && out.is_empty() && err.starts_with("invalid option 'x'\nusage:\n\tzed [-v"), "{err}");
    let (code, version, _) = run("-V");
    assert!(code == 0 && version.starts_with("zfs-2.1."), "{version}");
    assert!(run("-h").1.starts_with("usage:\n  zed [-v") && run("-L").1.contains("MIT"));
    assert!(!fs::exists(w.path("run/weir.sock")).unwrap(), "a daemon was started");
}

#[test]
fn the_mail_has_the_status_of_a_pool_in_trouble() {
    let w = World::without_mounts("event-mail");
    fs::create_dir(w.path("bin")).unwrap();
    script(&w.path("bin/mail"), "echo \"$@\"; cat");
    script(&w.path("bin/the-zpool"), "echo \"zpool $*\"");
    let mail = |to: &str, subclass: &str| {
        let mut c = Command::new("sh");
        c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/events.d/all-mail"));
        c.env("PATH", format!("{}:/usr/bin:/bin", w.path("bin"))).env("ZPOOL", "the-zpool");
        c.env("WEIR_MAIL", to).env("ZEVENT_SUBCLASS", subclass).env("ZEVENT_POOL", "tank");
        c.env("ZEVENT_CLASS", format!("resource.fs.zfs.{subclass}")).env("ZEVENT_VDEV_PATH", "/dev/sdx");
        let o = outcome_of(c.output().unwrap());
        assert_eq!((o.code, o.err.as_str()), (0, ""));
        o.out
    };
    let text = mail("root", "statechange");
    assert!(text.contains("statechange of pool tank root\n") && text.contains("of /dev/sdx"), "{text}");
    assert!(text.ends_with("zpool status -v tank\n"), "{text}");
    assert_eq!((mail("", "statechange"), mail("root", "history_event")), (String::new(), String::new()));
}
