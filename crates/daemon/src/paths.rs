//! Where the daemon keeps its things: the runtime folder (socket, lock, log) and the state folder (remembered pools).
//!
//! The runtime folder decides who controls the daemon, so it must belong to the user and be closed to everybody else; a folder in /tmp that somebody
//! else made beforehand is refused.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};

/// The variables and the user that decide about folders; a value, so that the rules can be tested.
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
    /// Those of this process. Variables that are empty or not absolute count as unset.
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

    /// The runtime folder.
    pub fn runtime_dir(&self) -> PathBuf {
        if let Some(dir) = &self.weir_runtime_dir {
            dir.clone()
        } else if let Some(xdg) = &self.xdg_runtime_dir {
            xdg.join("weir")
        } else if self.uid == 0 {
            PathBuf::from("/run/weir")
        } else {
            PathBuf::from(format!("/tmp/weir-{}", self.uid))
        }
    }

    /// The state folder.
    pub fn state_dir(&self) -> PathBuf {
        if let Some(dir) = &self.weir_state_dir {
            dir.clone()
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
}

impl Paths {
    /// As the environment says. Nothing is made.
    pub fn of(env: &Env) -> Paths {
        Paths { runtime: env.runtime_dir(), state: env.state_dir(), uid: env.uid }
    }

    /// Those of this process.
    pub fn of_process() -> Paths {
        Paths::of(&Env::of_process())
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("weir.sock")
    }
    /// What the daemon prints.
    pub fn log(&self) -> PathBuf {
        self.runtime.join("daemon.log")
    }
    /// The remembered pools.
    pub fn state_file(&self) -> PathBuf {
        self.state.join("pools.json")
    }
    /// Tunables that every start takes.
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
    /// The user whose daemon it is.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Makes the runtime folder if it is missing and checks that it is ours alone.
    pub fn make_runtime(&self) -> Result<()> {
        make_private(&self.runtime)?;
        self.check_runtime()
    }

    /// Makes the state folder if it is missing.
    pub fn make_state(&self) -> Result<()> {
        make_private(&self.state)
    }

    /// Fails if the runtime folder is not a folder of ours that others cannot write to.
    pub fn check_runtime(&self) -> Result<()> {
        let dir = &self.runtime;
        let meta =
            std::fs::symlink_metadata(dir).map_err(|e| fail(dir, "cannot be used for the daemon's socket", &e))?;
        let refuse = |why: &str| {
            let advice = "set WEIR_RUNTIME_DIR to a folder of your own with mode 0700";
            Err(Error::new(ErrorKind::Denied, format!("'{}' {why}: {advice}", dir.display())))
        };
        if !meta.is_dir() {
            return refuse("is not a folder");
        }
        if meta.uid() != self.uid {
            return refuse("belongs to another user");
        }
        if meta.mode() & 0o022 != 0 {
            return refuse("can be written by other users");
        }
        Ok(())
    }

    /// Locks the runtime and the state folder for a daemon. [`ErrorKind::Busy`] if another one has them.
    pub fn lock(&self) -> Result<Locks> {
        let one = |dir: &Path| -> Result<File> {
            let path = dir.join("daemon.lock");
            let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
            let file = file.map_err(|e| fail(&path, "cannot be opened", &e))?;
            match file.try_lock() {
                Ok(()) => Ok(file),
                Err(TryLockError::WouldBlock) => Err(Error::new(
                    ErrorKind::Busy,
                    format!("another daemon runs already and holds '{}'", path.display()),
                )),
                Err(TryLockError::Error(e)) => Err(fail(&path, "cannot be locked", &e)),
            }
        };
        let runtime = one(&self.runtime)?;
        // One folder for both: a second lock would meet the first.
        let state = if self.state == self.runtime { None } else { Some(one(&self.state)?) };
        Ok(Locks { _runtime: runtime, _state: state })
    }
}

/// Held for as long as a daemon lives; the system lets go of them with the process, however it ends.
pub struct Locks {
    _runtime: File,
    _state: Option<File>,
}

fn make_private(dir: &Path) -> Result<()> {
    if let Some(parent) = dir.parent()
        && !parent.exists()
    {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|e| fail(parent, "cannot be made", &e))?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(fail(dir, "cannot be made", &e)),
    }
}

/// Replaces a file in one step: whoever reads it sees the old or the new content.
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
    use std::os::unix::fs::PermissionsExt;

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
        for (env, runtime, state) in [
            (&user, "/tmp/weir-1000", "/home/u/.local/state/weir"),
            (&root, "/run/weir", "/var/lib/weir"),
            (&xdg, "/run/user/1000/weir", "/home/u/st/weir"),
            (&weir, "/r", "/s"),
        ] {
            assert_eq!(env.runtime_dir(), PathBuf::from(runtime));
            assert_eq!(env.state_dir(), PathBuf::from(state));
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
        assert_eq!(mode("a/run"), 0o700);
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
