//! A machine with several users: root, one with a daemon, and another one.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use host::TempDir;

use super::{Outcome, WEIR, outcome_of};

/// Time after which a command counts as hanging, far above normal.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The result of a command without input; one that hangs is killed and fails the test.
pub fn within_patience(c: Command, line: &str) -> Outcome {
    fed_within_patience(c, Stdio::null(), line)
}

/// The same with that standard input.
pub fn fed_within_patience(mut c: Command, input: Stdio, line: &str) -> Outcome {
    let child = c.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let (tell, told) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let _ = tell.send(child.wait_with_output());
    });
    match told.recv_timeout(PATIENCE) {
        Ok(output) => {
            waiter.join().unwrap();
            outcome_of(output.unwrap())
        }
        Err(_) => {
            let _ = Command::new("kill").args(["-9", &pid]).status();
            panic!("no end: {line}");
        }
    }
}

/// By another process: a child of another test that is just being started would keep our descriptor
/// open for writing, and a program that is written cannot run.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// A machine: a folder that all may enter, with the program in it, the folder of root's daemon and
/// that of the user's.
pub struct Machine {
    pub dir: TempDir,
    user: u32,
}

impl Machine {
    /// With a home for each of two users; the first may have a daemon.
    pub fn new(tag: &str, user: u32, other: u32) -> Option<Machine> {
        if host::effective_uid() != 0 || Command::new("setpriv").arg("--version").output().is_err() {
            eprintln!("NOT RUN: {tag}: needs root and setpriv");
            return None;
        }
        let dir = TempDir::new(tag).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        copy_program(Path::new(WEIR), &dir.join("weir"));
        for id in [user, other] {
            let home = dir.join(&format!("home{id}"));
            std::fs::create_dir(&home).unwrap();
            std::os::unix::fs::chown(&home, Some(id), Some(id)).unwrap();
        }
        Some(Machine { dir, user })
    }

    pub fn home(&self, user: u32) -> PathBuf {
        if user == 0 { self.dir.path().to_path_buf() } else { self.dir.join(&format!("home{user}")) }
    }

    /// The runtime folder of a user's daemon.
    pub fn run_dir(&self, user: u32) -> PathBuf {
        self.home(user).join("run")
    }

    /// A command of `user` for the daemon of `of`.
    pub fn command(&self, user: u32, of: u32, program: &Path) -> Command {
        let mut c = if user == 0 {
            Command::new(program)
        } else {
            let mut c = Command::new("setpriv");
            c.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]).arg(program);
            c
        };
        c.env("WEIR_RUNTIME_DIR", self.run_dir(of)).env_remove("WEIR_STATE_DIR").env_remove("WEIR_TUNABLES");
        c.env("HOME", self.home(user)).current_dir(self.home(user));
        c
    }

    pub fn say(&self, user: u32, of: u32, line: &str) -> Outcome {
        let mut c = self.command(user, of, &self.dir.join("weir"));
        c.args(line.split_whitespace());
        within_patience(c, line)
    }

    pub fn ok(&self, user: u32, of: u32, line: &str) -> String {
        let s = self.say(user, of, line);
        assert_eq!(s.code, 0, "user {user}, daemon of {of}: weir {line}: {}{}", s.out, s.err);
        s.out
    }

    /// A pool `tank` with file systems, a snapshot and a hold.
    pub fn pool(&self, user: u32) {
        self.ok(user, user, "zpool create -O mountpoint=none --size 128M tank a.img b.img");
        self.ok(user, user, "zfs create tank/a");
        self.ok(user, user, "zfs snapshot tank/a@s");
        self.ok(user, user, "zfs hold kept tank/a@s");
    }

    pub fn pid(&self, of: u32) -> String {
        self.ok(of, of, "daemon status").split_whitespace().nth(1).unwrap().to_string()
    }

    /// All state that a command could change.
    pub fn state(&self, of: u32) -> String {
        let mut out = self.pid(of);
        for line in [
            "zpool history tank",
            "zfs list -H -t all -o name,creation,mountpoint,mounted",
            "zfs get -H -r -s local all tank",
            "zpool get -H comment,failmode,autoexpand,readonly,checkpoint,health tank",
            "zpool status",
            "zfs holds -H tank/a@s",
            "zfs mount",
            "tune",
        ] {
            out.push_str(&self.ok(of, of, line));
        }
        out.push_str(&std::fs::read_to_string(self.run_dir(of).join("state/pools.json")).unwrap());
        let mut names: Vec<_> = std::fs::read_dir(self.home(of)).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        format!("{out}{names:?}")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for user in [0, self.user] {
            if self.run_dir(user).exists() {
                self.say(user, user, "daemon stop -f");
            }
        }
    }
}
