//! Process services of the system for the daemon and the program: users, sessions, signals, local
//! time.
//!
//! Signals are taken one at a time by a thread that waits for them ([`Signals`]); nothing runs in a
//! signal handler.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use base::Result;
use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};

use crate::open::os_error;

/// The user that this process acts as.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The group that this process acts as.
pub fn effective_gid() -> u32 {
    rustix::process::getegid().as_raw()
}

/// `SO_PEERGROUPS` of `asm-generic/socket.h`.
const SO_PEERGROUPS: libc::c_int = 59;
/// Most supplementary groups of a process (`NGROUPS_MAX` of `linux/limits.h`).
const GROUPS_MAX: usize = 65_536;

/// Credentials of the other end of a connection, as of when it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerCred {
    /// Its process.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl PeerCred {
    /// Whether the peer is root or the user that this process runs as: those may control a daemon.
    pub fn is_owner(&self) -> bool {
        self.uid == 0 || self.uid == effective_uid()
    }
}

/// Credentials of the other end of a Unix socket, as of when the connection was made (at the side
/// that connects: of when the other began to listen).
pub fn peer_cred(stream: &UnixStream) -> Result<PeerCred> {
    peer_cred_of(stream.as_fd())
}

/// As [`peer_cred`]. Not by rustix: its type for the answer has no process 0, which the kernel
/// gives for a peer in a PID namespace that this process cannot see.
pub(crate) fn peer_cred_of(socket: BorrowedFd<'_>) -> Result<PeerCred> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `cred`.
    let r = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &raw mut len)
    };
    if r != 0 {
        return Err(os_error("socket", "SO_PEERCRED", &io::Error::last_os_error()));
    }
    Ok(PeerCred { pid: cred.pid, uid: cred.uid, gid: cred.gid })
}

/// The supplementary groups of the other end of a Unix socket, as of when the connection was made;
/// at most [`GROUPS_MAX`].
pub fn peer_groups(stream: &UnixStream) -> Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS_MAX];
    let mut len = (GROUPS_MAX * size_of::<u32>()) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `groups`, which has that many.
    let r = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, SO_PEERGROUPS, groups.as_mut_ptr().cast(), &raw mut len)
    };
    if r != 0 {
        return Err(os_error("socket", "SO_PEERGROUPS", &io::Error::last_os_error()));
    }
    groups.truncate(len as usize / size_of::<u32>());
    Ok(groups)
}

/// Allows this process as many open descriptors as the system lets it have (`RLIMIT_NOFILE`, the
/// hard limit).
pub fn raise_open_files() {
    raise_limit(Resource::Nofile);
}

/// Raises a limit of this process to its hard limit. A failure leaves it as it was.
pub(crate) fn raise_limit(of: Resource) {
    let maximum = rustix::process::getrlimit(of).maximum;
    let _ = rustix::process::setrlimit(of, Rlimit { current: maximum, maximum });
}

/// Removes state inherited from the parent process: no descriptors but the standard ones, no
/// variables but those that `keep` accepts, a fixed `PATH`, `/` as its folder, 022 as its umask. To
/// be called first of all, before there is a second thread.
pub fn shed_inheritance(keep: impl Fn(&str) -> bool, path: &str) {
    // SAFETY: nothing of ours is open yet beyond the standard descriptors, which stay.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    let names: Vec<_> = std::env::vars_os().map(|(name, _)| name).collect();
    for name in names.into_iter().filter(|n| !n.to_str().is_some_and(&keep)) {
        // SAFETY: the process has one thread, so the environment has no other reader.
        unsafe { std::env::remove_var(name) };
    }
    // SAFETY: as above.
    unsafe { std::env::set_var("PATH", path) };
    let _ = std::env::set_current_dir("/");
    rustix::process::umask(Mode::from_raw_mode(0o022));
}

/// Keeps the memory of this process, which may hold keys, from core files and from debuggers of its
/// user (`PR_SET_DUMPABLE`).
pub fn forbid_dumps() {
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// This process gets no huge pages, even if its allocator asks for them (`PR_SET_THP_DISABLE`). The
/// first touch of one clears 2 MiB at once, in the middle of a turn: a fifth of a millisecond at
/// best, and 4 ms were measured where a hypervisor has to supply the memory.
pub fn forbid_huge_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// No program that this process starts gains rights by being set-user-id (`PR_SET_NO_NEW_PRIVS`).
pub fn forbid_new_privileges() {
    let _ = rustix::thread::set_no_new_privs(true);
}

/// Makes `file` this process's standard output and standard error.
pub fn redirect_output(file: &std::fs::File) {
    let _ = rustix::stdio::dup2_stdout(file);
    let _ = rustix::stdio::dup2_stderr(file);
}

/// Leaves the terminal and its session, so that neither ends this process. Without effect if it
/// leads one already.
pub fn new_session() {
    // The only error is that we lead a process group already.
    let _ = rustix::process::setsid();
}

/// Gives this process the name that `ps` and `pgrep` show, of at most 15 bytes.
pub fn set_process_name(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// Keeps all memory that this process uses, now and later, from being swapped out. What it only
/// reserves, which is a gigabyte of the allocator's, takes no memory by this.
pub fn lock_memory() -> io::Result<()> {
    use rustix::mm::{MlockAllFlags, mlockall};
    Ok(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)?)
}

/// Opens /dev/null once more, as a descriptor that programs started by this process have too. Right
/// after [`shed_inheritance`] it is the first one behind the standard ones.
pub fn inherit_null() -> io::Result<()> {
    use rustix::fs::OFlags;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
    std::mem::forget(null);
    Ok(())
}

/// No signal is held back in the program that `command` starts, though [`Signals::hold`] holds them
/// back here: a program inherits the mask of the thread that starts it.
pub fn release_signals(command: &mut Command) {
    let release = || {
        // SAFETY: the set is initialised by sigemptyset before anything reads it.
        let failed = unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec the function makes two system calls and allocates nothing.
    unsafe { command.pre_exec(release) };
}

/// The signals that ask a process to end: TERM, INT and HUP. They are held back from the moment of
/// [`Signals::hold`].
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Holds the signals back in this thread and those that it starts from now on.
    pub fn hold() -> Signals {
        // SAFETY: the set is initialised by sigemptyset before anything reads it; the mask of this
        // thread only changes.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Signals(set)
        }
    }

    /// Waits for one of them and takes it: whether it asks to begin anew (HUP), not to end.
    pub fn wait_for_hangup(&self) -> bool {
        self.wait() == libc::SIGHUP
    }

    /// Waits for one of them and takes it: its number.
    pub fn wait(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: both pointers are valid; EINTR cannot come from sigwait.
        unsafe { libc::sigwait(&raw const self.0, &raw mut signal) };
        signal
    }
}

impl Signals {
    /// The set, for calls that take one.
    pub(crate) fn set(&self) -> *const libc::sigset_t {
        &raw const self.0
    }

    /// Waits for one of them at most so long and takes it: whether there was one.
    pub fn wait_for(&self, span: std::time::Duration) -> bool {
        let until = std::time::Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(std::time::Instant::now());
            let time = libc::timespec {
                tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            // SAFETY: the set was initialised by `hold`, the time is valid, and no information is
            // asked for.
            let signal = unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const time) };
            if signal > 0 {
                return true;
            }
            // A signal that is not ours interrupted the wait: go on with the rest of it.
            if std::time::Instant::now() >= until {
                return false;
            }
        }
    }
}

/// Asks this process to end, as SIGTERM from outside does.
pub fn terminate_self() {
    // The signal is held back or ends us, both as wanted.
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
}

/// A moment in the local time zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalTime {
    /// Year, such as 2026.
    pub year: i32,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, from 1.
    pub day: u32,
    /// Day of the week, 0 for Sunday.
    pub weekday: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 60.
    pub second: u32,
}

/// `secs` since 1970 in the local time zone.
pub fn local_time(secs: i64) -> LocalTime {
    // SAFETY: tm is plain data for which zeros are a value; localtime_r writes it and keeps no
    // pointer.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        let t: libc::time_t = secs;
        libc::localtime_r(&raw const t, &raw mut tm);
        tm
    };
    let n = |v: libc::c_int| u32::try_from(v).unwrap_or(0);
    LocalTime {
        year: tm.tm_year + 1900,
        month: n(tm.tm_mon) + 1,
        day: n(tm.tm_mday),
        weekday: n(tm.tm_wday),
        hour: n(tm.tm_hour),
        minute: n(tm.tm_min),
        second: n(tm.tm_sec),
    }
}

/// Seconds since 1970 of a minute in the local time zone; none for a date that is not in the
/// calendar, or before 1970. A minute that comes twice, when a clock is set back, is one of both.
pub fn local_seconds(year: i32, month: u32, day: u32, hour: u32, minute: u32) -> Option<u64> {
    let n = |v: u32| libc::c_int::try_from(v).ok();
    // SAFETY: tm is plain data for which zeros are a value; mktime reads and writes it and keeps no
    // pointer.
    let secs = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        tm.tm_year = year.checked_sub(1900)?;
        (tm.tm_mon, tm.tm_mday) = (n(month)?.checked_sub(1)?, n(day)?);
        (tm.tm_hour, tm.tm_min, tm.tm_isdst) = (n(hour)?, n(minute)?, -1);
        libc::mktime(&raw mut tm)
    };
    let t = local_time(secs);
    let same = (t.year, t.month, t.day) == (year, month, day) && hour < 24 && minute < 60;
    u64::try_from(secs).ok().filter(|_| same)
}

/// The columns of the terminal on standard error, if it is one.
pub fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr()).ok();
    size.map(|s| usize::from(s.ws_col)).filter(|n| *n > 0)
}
