//! The machine: identity, memory, entropy.

use rt::HostIdentity;

/// Where Linux keeps the host id: 4 bytes in the machine's byte order. OpenZFS takes the id from
/// here and nowhere else; without the file it is 0.
const HOSTID_FILE: &str = "/etc/hostid";

/// The identity of this machine, as a pool records it.
pub fn host_identity() -> HostIdentity {
    let hostid = match std::fs::read(HOSTID_FILE) {
        Ok(bytes) => bytes.first_chunk::<4>().map_or(0, |b| u64::from(u32::from_ne_bytes(*b))),
        Err(_) => 0,
    };
    let mut name = [0u8; 256];
    // SAFETY: the kernel writes at most `len` bytes into `name`.
    let ok = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } == 0;
    let len = name.iter().position(|&b| b == 0).unwrap_or(0);
    let hostname = if ok { String::from_utf8_lossy(&name[..len]).into_owned() } else { String::new() };
    HostIdentity { hostid, hostname }
}

/// Memory that this process may count on, in bytes: the machine's, or the limit of its control
/// group if that is less.
pub fn physmem_bytes() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let machine = u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(size).unwrap_or(0));
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|s| s.trim().parse::<u64>().ok());
    match group {
        Some(limit) if limit < machine => limit,
        _ => machine,
    }
}

/// Fills `out` from the kernel's generator.
///
/// # Panics
/// If the kernel has none to give: nothing sensible can be done without keys and guids.
pub fn entropy(mut out: &mut [u8]) {
    while !out.is_empty() {
        // SAFETY: the kernel writes at most `out.len()` bytes into `out`.
        let n = unsafe { libc::getrandom(out.as_mut_ptr().cast(), out.len(), 0) };
        match usize::try_from(n) {
            Ok(n) => out = &mut out[n..],
            Err(_) => {
                let e = std::io::Error::last_os_error();
                assert_eq!(e.kind(), std::io::ErrorKind::Interrupted, "the system gives no entropy: {e}");
            }
        }
    }
}
