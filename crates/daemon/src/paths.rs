//! The folders of the daemon: the runtime folder (socket, lock, log) and the state folder (list of
//! pools, tunables).
//!
//! The runtime folder decides who controls the daemon, so it must belong to the user and must not
//! be writable by others; a folder in /tmp that another user made before is refused.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Error, ErrorKind, Result};

/// The runtime folder of root's daemon.
const SYSTEM_DIR: &str = "/run/weir";
/// Where root's daemon shows volumes, as OpenZFS does.
const SYSTEM_VOLUMES: &str = "/dev/zvol";

/// The environment variables and the user that decide about folders; a value, so that tests can
/// check the rules.
#[derive(Clone, Default, Debug)]
pub struct Env {
    /// `$WEIR_RUNTIME_DIR`
    pub weir_runtime_dir: Option<PathBuf>,
    /// `$WEIR_STATE_DIR`
    pub weir_state_dir: Option<PathBuf>,
    /// `$XDG_RUNTIME_DIR`
    pub xdg_runtime_dir: Option<PathBuf>,
    /// `$XDG_STATE_HOME`
    pub xdg_state_home: Option<PathBuf>,
    /// `$HOME`
    pub home: Option<PathBuf>,
    /// Effective user.
    pub uid: u32,
}

impl Env {
    /// The environment of this process. Variables that are empty or not absolute count as unset.
    pub fn of_process() -> Env {
        let var = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        Env {
            weir_runtime_dir: var("WEIR_RUNTIME_DIR"),
            weir_state_dir: var("WEIR_STATE_DIR"),
            xdg_runtime_dir: var("XDG_RUNTIME_DIR"),
            xdg_state_home: var("XDG_STATE_HOME"),
            home: var("HOME"),
            uid: host::effective_uid(),
        }
    }

    /// The runtime folder. Root's does not follow `XDG_RUNTIME_DIR`: that of a login ends with the
    /// login, and cron and systemd have none.
    pub fn runtime_dir(&self) -> PathBuf {
        if let Some(dir) = &self.weir_runtime_dir {
            dir.clone()
        } else if self.uid == 0 {
            PathBuf::from(SYSTEM_DIR)
        } else if let Some(xdg) = &self.xdg_runtime_dir {
            xdg.join("weir")
        } else {
            PathBuf::from(format!("/tmp/weir-{}", self.uid))
        }
    }

    /// The state folder. It is below a runtime folder that `WEIR_RUNTIME_DIR` names, so that one
    /// variable makes a second daemon.
    pub fn state_dir(&self) -> PathBuf {
        if let Some(dir) = &self.weir_state_dir {
            dir.clone()
        } else if let Some(dir) = &self.weir_runtime_dir {
            dir.join("state")
        } else if self.uid == 0 {
            PathBuf::from("/var/lib/weir")
        } else if let Some(xdg) = &self.xdg_state_home {
            xdg.join("weir")
        } else if let Some(home) = &self.home {
            home.join(".local/state/weir")
        } else {
            self.runtime_dir().join("state")
        }
    }
}

fn fail(path: &Path, what: &str, e: &std::io::Error) -> Error {
    let kind = match e.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        std::io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("'{}' {what}: {e}", path.display()))
}

/// The folders and files of one daemon.
#[derive(Clone, Debug)]
pub struct Paths {
    runtime: PathBuf,
    state: PathBuf,
    uid: u32,
    system: Option<PathBuf>,
}

impl Paths {
    /// The paths for an environment. Creates nothing.
    pub fn of(env: &Env) -> Paths {
        let system = (env.uid != 0 && env.weir_runtime_dir.is_none()).then(|| PathBuf::from(SYSTEM_DIR));
        Paths { runtime: env.runtime_dir(), state: env.state_dir(), uid: env.uid, system }
    }

    /// The folder of root's daemon, where a user without a daemon sends public requests; none for
    /// root and if `WEIR_RUNTIME_DIR` is set.
    pub fn system(&self) -> Option<&Path> {
        self.system.as_deref()
    }

    /// The socket for all users in the runtime folder `dir` of root's daemon.
    pub fn public_socket(dir: &Path) -> PathBuf {
        dir.join("public.sock")
    }

    /// The paths of this process.
    pub fn of_process() -> Paths {
        Paths::of(&Env::of_process())
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("weir.sock")
    }
    /// The socket for NBD, unless another one is asked for.
    pub fn nbd_socket(&self) -> PathBuf {
        self.runtime.join("nbd.sock")
    }
    /// The folder with a folder for each pool that has volumes.
    pub fn volumes(&self) -> PathBuf {
        match self.runtime == Path::new(SYSTEM_DIR) {
            true => PathBuf::from(SYSTEM_VOLUMES),
            false => self.runtime.join("zvol"),
        }
    }
    /// The log of the daemon.
    pub fn log(&self) -> PathBuf {
        self.runtime.join("daemon.log")
    }
    /// The remembered pools.
    pub fn state_file(&self) -> PathBuf {
        self.state.join("pools.json")
    }
    /// The tunables that every start reads.
    pub fn tunables_file(&self) -> PathBuf {
        self.state.join("tunables.conf")
    }
    /// The runtime folder.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }
    /// The state folder.
    pub fn state(&self) -> &Path {
        &self.state
    }
    /// The user of the daemon.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Makes the runtime folder if it is missing and checks that only its owner can write to it.
    /// Others may list root's, which has the public socket.
    pub fn make_runtime(&self) -> Result<()> {
        make_private(&self.runtime, if self.uid == 0 { 0o755 } else { 0o700 })?;
        self.check_runtime()
    }

    /// Makes the state folder if it is missing.
    pub fn make_state(&self) -> Result<()> {
        make_private(&self.state, 0o700)
    }

    /// Fails if the runtime folder is no folder, belongs to another user, or others can write to
    /// it.
    pub fn check_runtime(&self) -> Result<()> {
        check_folder(&self.runtime, self.uid)
    }

    /// Locks the runtime and the state folder for a daemon. [`ErrorKind::Busy`] if another one has
    /// them.
    pub fn lock(&self) -> Result<Locks> {
        let runtime = lock_folder(&self.runtime)?;
        // One folder for both: a second lock would conflict with the first.
        let state = if self.state == self.runtime { None } else { Some(lock_folder(&self.state)?) };
        Ok(Locks { runtime, _state: state })
    }

    /// Whether a daemon holds the runtime folder. Creates nothing, and follows no links in the
    /// folder.
    pub fn is_held(&self) -> bool {
        self.held_lock().is_some()
    }

    /// The lock file, if a daemon holds it.
    fn held_lock(&self) -> Option<File> {
        let file = host::open_untrusted(&self.runtime.join(LOCK_FILE)).ok()?;
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)).then_some(file)
    }

    /// As [`Paths::is_held`], with what the daemon has written there: its pid. A daemon that has
    /// just begun has nothing there yet.
    pub fn holder(&self) -> Option<String> {
        use std::io::Read;
        let mut pid = String::new();
        self.held_lock()?.take(32).read_to_string(&mut pid).ok()?;
        Some(pid)
    }
}

/// The file that a daemon keeps locked; its content is the pid.
const LOCK_FILE: &str = "daemon.lock";

/// Tries of a held lock, and the pause between them.
const LOCK_TRIES: usize = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

fn lock_folder(dir: &Path) -> Result<File> {
    use std::io::{Read, Write};
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path);
    let mut file = file.map_err(|e| fail(&path, "cannot be opened", &e))?;
    // A command that tests the lock holds it for a moment.
    let mut locked = file.try_lock();
    for _ in 0..LOCK_TRIES {
        if !matches!(locked, Err(TryLockError::WouldBlock)) {
            break;
        }
        std::thread::sleep(LOCK_PAUSE);
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => {
            let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
            written.map_err(|e| fail(&path, "cannot be written", &e))?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.take(32).read_to_string(&mut pid);
            let who = pid.trim().parse::<u32>().map_or(String::new(), |pid| format!(" (process {pid})"));
            let why = format!("another daemon{who} runs already and holds '{}'", path.display());
            Err(Error::new(ErrorKind::Busy, why))
        }
        Err(TryLockError::Error(e)) => Err(fail(&path, "cannot be locked", &e)),
    }
}

/// Fails if `dir` is no folder, does not belong to `uid`, or others can write to it.
pub fn check_folder(dir: &Path, uid: u32) -> Result<()> {
    let meta = std::fs::symlink_metadata(dir).map_err(|e| fail(dir, "cannot be used for the daemon's socket", &e))?;
    let refuse = |why: &str| {
        let advice = "set WEIR_RUNTIME_DIR to a folder of your own with mode 0700";
        Err(Error::new(ErrorKind::Denied, format!("'{}' {why}: {advice}", dir.display())))
    };
    if !meta.is_dir() {
        return refuse("is not a folder");
    }
    if meta.uid() != uid {
        return refuse("belongs to another user");
    }
    if meta.mode() & 0o022 != 0 {
        return refuse("can be written by other users");
    }
    Ok(())
}

/// The locks of a daemon; the kernel releases them when the process ends.
pub struct Locks {
    _state: Option<File>,
    /// Released last: `daemon stop` waits for it.
    runtime: File,
}

impl Locks {
    /// Makes and locks the runtime folder again after it was removed (a session's folder goes with
    /// the session); true if this daemon holds it.
    pub fn relock(&mut self, paths: &Paths) -> bool {
        if paths.make_runtime().is_err() {
            return false;
        }
        let there = std::fs::symlink_metadata(paths.runtime.join(LOCK_FILE));
        let ours = self.runtime.metadata();
        if let (Ok(there), Ok(ours)) = (&there, &ours)
            && (there.dev(), there.ino()) == (ours.dev(), ours.ino())
        {
            return true;
        }
        match lock_folder(&paths.runtime) {
            Ok(file) => {
                self.runtime = file;
                true
            }
            Err(_) => false,
        }
    }
}

/// Makes `dir` with `mode`, whatever the umask is, and missing parents with 0700. An existing
/// folder stays as it is.
fn make_private(dir: &Path, mode: u32) -> Result<()> {
    if let Some(parent) = dir.parent()
        && !parent.exists()
    {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|e| fail(parent, "cannot be made", &e))?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) if mode == 0o700 => Ok(()),
        Ok(()) => std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))
            .map_err(|e| fail(dir, "cannot be made accessible", &e)),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(fail(dir, "cannot be made", &e)),
    }
}

/// Replaces a file atomically: readers see the old or the new content.
pub fn replace_file(path: &Path, content: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        use std::io::Write;
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().map_err(|e| fail(path, "cannot be written", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_follow_the_environment() {
        let user = Env { uid: 1000, home: Some("/home/u".into()), ..Env::default() };
        let root = Env { uid: 0, home: Some("/root".into()), ..Env::default() };
        let xdg = Env {
            xdg_runtime_dir: Some("/run/user/1000".into()),
            xdg_state_home: Some("/home/u/st".into()),
            ..user.clone()
        };
        let weir = Env { weir_runtime_dir: Some("/r".into()), weir_state_dir: Some("/s".into()), ..xdg.clone() };
        let root_at_login = Env { xdg_runtime_dir: Some("/run/user/0".into()), ..root.clone() };
        let second = Env { weir_runtime_dir: Some("/r".into()), ..root.clone() };
        let users_second = Env { weir_runtime_dir: Some("/r".into()), ..xdg.clone() };
        for (env, runtime, state) in [
            (&user, "/tmp/weir-1000", "/home/u/.local/state/weir"),
            (&root, "/run/weir", "/var/lib/weir"),
            (&xdg, "/run/user/1000/weir", "/home/u/st/weir"),
            (&weir, "/r", "/s"),
            (&root_at_login, "/run/weir", "/var/lib/weir"),
            (&second, "/r", "/r/state"),
            (&users_second, "/r", "/r/state"),
        ] {
            assert_eq!(env.runtime_dir(), PathBuf::from(runtime));
            assert_eq!(env.state_dir(), PathBuf::from(state));
            // Only users without `WEIR_RUNTIME_DIR` use the system's daemon.
            let asks = env.uid != 0 && env.weir_runtime_dir.is_none();
            assert_eq!(Paths::of(env).system().is_some(), asks);
        }
        let homeless = Env { uid: 7, ..Env::default() };
        assert_eq!(homeless.state_dir(), PathBuf::from("/tmp/weir-7/state"));
    }

    #[test]
    fn a_folder_open_to_others_is_refused() {
        let dir = host::TempDir::new("paths").unwrap();
        let env = Env {
            weir_runtime_dir: Some(dir.join("a/run")),
            weir_state_dir: Some(dir.join("state")),
            uid: host::effective_uid(),
            ..Env::default()
        };
        let paths = Paths::of(&env);
        assert!(paths.check_runtime().is_err());
        paths.make_runtime().unwrap();
        paths.make_state().unwrap();
        let mode = |p: &str| std::fs::metadata(dir.join(p)).unwrap().permissions().mode() & 0o777;
        let open = if host::effective_uid() == 0 { 0o755 } else { 0o700 };
        assert_eq!((mode("a/run"), mode("a"), mode("state")), (open, 0o700, 0o700));
        let lock = paths.lock().unwrap();
        assert_eq!(paths.lock().err().map(|e| e.kind()), Some(ErrorKind::Busy));
        drop(lock);
        paths.lock().unwrap();
        std::fs::set_permissions(dir.join("a/run"), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(paths.check_runtime().err().map(|e| e.kind()), Some(ErrorKind::Denied));
        let other = Paths::of(&Env { uid: 12345, ..env });
        assert_eq!(other.check_runtime().err().map(|e| e.kind()), Some(ErrorKind::Denied));
    }
}
