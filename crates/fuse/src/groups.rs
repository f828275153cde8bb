//! The groups of the process that made a request. A request carries one group only; the others come
//! from `/proc`.

use crate::handler::Caller;

/// Whether the caller may set the set-group-id bit of a file of group `gid`: it belongs to the
/// group, or is root. A process that is not visible here has only the group of its request.
pub(crate) fn may_keep_sgid(caller: Caller, gid: u32) -> bool {
    caller.uid == 0 || caller.gid == gid || groups_of(caller.pid).contains(&gid)
}

/// The supplementary groups of a process, none if they cannot be read.
pub(crate) fn groups_of(pid: u32) -> Vec<u32> {
    // The kernel itself makes requests as process 0.
    if pid == 0 {
        return Vec::new();
    }
    std::fs::read_to_string(format!("/proc/{pid}/status")).map(|s| groups_in(&s)).unwrap_or_default()
}

/// The groups that a file `/proc/PID/status` lists (proc_pid_status(5)).
fn groups_in(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|l| l.strip_prefix("Groups:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|g| g.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_status() {
        assert_eq!(groups_in("Name:\tcat\nGid:\t5\t5\t5\t5\nGroups:\t4 24 27 \nNStgid:\t7\n"), [4, 24, 27]);
        assert_eq!(groups_in("Groups:\t\n"), [0; 0]);
        assert_eq!(groups_in(""), [0; 0]);
    }

    #[test]
    fn root_and_members_may_keep_it() {
        let caller = |uid, gid| Caller { uid, gid, pid: 0, umask: 0 };
        assert!(may_keep_sgid(caller(0, 0), 50));
        assert!(may_keep_sgid(caller(1000, 50), 50));
        assert!(!may_keep_sgid(caller(1000, 51), 50));
    }
}
