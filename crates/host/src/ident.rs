//! The machine: identity, memory, entropy.

use base::Nanos;
use rt::HostIdentity;
use rustix::rand::GetRandomFlags;

/// Where Linux keeps the host id: 4 bytes in the machine's byte order. OpenZFS takes the id from
/// here and nowhere else; without the file it is 0.
const HOSTID_FILE: &str = "/etc/hostid";

/// The identity of this machine, as a pool records it.
pub fn host_identity() -> HostIdentity {
    let hostid = match std::fs::read(HOSTID_FILE) {
        Ok(bytes) => bytes.first_chunk::<4>().map_or(0, |b| u64::from(u32::from_ne_bytes(*b))),
        Err(_) => 0,
    };
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    HostIdentity { hostid, hostname }
}

/// Memory that this process may count on, in bytes: the machine's, or the limit of its control
/// group if that is less.
pub fn physmem_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram.saturating_mul(u64::from(info.mem_unit));
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|s| s.trim().parse::<u64>().ok());
    match group {
        Some(limit) if limit < machine => limit,
        _ => machine,
    }
}

/// Time since the machine was started (`CLOCK_MONOTONIC`).
pub fn uptime() -> Nanos {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0))
}

/// Fills `out` from the kernel's generator.
///
/// # Panics
/// If the kernel has none to give: nothing sensible can be done without keys and guids.
pub fn entropy(mut out: &mut [u8]) {
    while !out.is_empty() {
        match rustix::rand::getrandom(&mut *out, GetRandomFlags::empty()) {
            Ok(n) => out = &mut out[n..],
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::Interrupted, "the system gives no entropy: {e}"),
        }
    }
}
