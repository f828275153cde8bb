//! Names and numbers of the machine's users and groups, as the C library finds them (files, LDAP
//! and what else `nsswitch.conf` names), and the projects of files.

use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Longest entry that is read, in bytes; a group may have many members.
const ENTRY_MAX: usize = 1 << 20;

/// Calls one of the functions `get...nam_r` and `get...id_r` with a buffer that is large enough.
/// None: there is no such entry, or it cannot be read.
fn entry<T>(mut get: impl FnMut(&mut [u8]) -> (i32, Option<T>)) -> Option<T> {
    let mut buf = vec![0u8; 4096];
    loop {
        match get(&mut buf) {
            (libc::ERANGE, _) if buf.len() < ENTRY_MAX => buf = vec![0u8; buf.len() * 4],
            (libc::EINTR, _) => {}
            (0, found) => return found,
            _ => return None,
        }
    }
}

/// The text of a field of an entry.
///
/// # Safety
/// `field` is null or a C string that lives until this returns.
unsafe fn text(field: *const c_char) -> String {
    if field.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(field) }.to_string_lossy().into_owned()
}

/// Number and name of a user, by either.
fn user(name: Option<&CStr>, uid: u32) -> Option<(u32, String)> {
    entry(|buf| {
        // SAFETY: all zeros is a valid `passwd`: numbers, and pointers that are null.
        let mut pw: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let (at, len) = (buf.as_mut_ptr().cast(), buf.len());
        // SAFETY: the entry, its buffer with its length, and the place for the answer are live
        // and of the right types; the name ends with NUL.
        let rc = unsafe {
            match name {
                Some(name) => libc::getpwnam_r(name.as_ptr(), &raw mut pw, at, len, &raw mut found),
                None => libc::getpwuid_r(uid, &raw mut pw, at, len, &raw mut found),
            }
        };
        // SAFETY: after success the fields point into the buffer.
        (rc, (rc == 0 && !found.is_null()).then(|| (pw.pw_uid, unsafe { text(pw.pw_name) })))
    })
}

/// Number and name of a group, by either.
fn group(name: Option<&CStr>, gid: u32) -> Option<(u32, String)> {
    entry(|buf| {
        // SAFETY: all zeros is a valid `group`: numbers, and pointers that are null.
        let mut gr: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let (at, len) = (buf.as_mut_ptr().cast(), buf.len());
        // SAFETY: as in `user`.
        let rc = unsafe {
            match name {
                Some(name) => libc::getgrnam_r(name.as_ptr(), &raw mut gr, at, len, &raw mut found),
                None => libc::getgrgid_r(gid, &raw mut gr, at, len, &raw mut found),
            }
        };
        // SAFETY: after success the fields point into the buffer.
        (rc, (rc == 0 && !found.is_null()).then(|| (gr.gr_gid, unsafe { text(gr.gr_name) })))
    })
}

/// The number of the user with that name.
pub fn user_id(name: &str) -> Option<u32> {
    Some(user(Some(&CString::new(name).ok()?), 0)?.0)
}

/// The name of a user.
pub fn user_name(uid: u32) -> Option<String> {
    Some(user(None, uid)?.1)
}

/// The number of the group with that name.
pub fn group_id(name: &str) -> Option<u32> {
    Some(group(Some(&CString::new(name).ok()?), 0)?.0)
}

/// The name of a group.
pub fn group_name(gid: u32) -> Option<String> {
    Some(group(None, gid)?.1)
}

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR` of `linux/fs.h`.
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
/// `FS_XFLAG_PROJINHERIT`.
const PROJINHERIT: u32 = 0x200;

/// The project of a file, and whether what is made in it (it is a folder then) gets that too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Project {
    /// Its number; 0: none.
    pub id: u32,
    /// New entries get it too.
    pub inherit: bool,
}

/// `struct fsxattr`: flags, extent size, extents, project, size of extents for copies, reserved.
type FsXattr = [u32; 7];

fn fsxattr(file: &File) -> io::Result<FsXattr> {
    let mut attr: FsXattr = [0; 7];
    // SAFETY: the request writes 28 bytes, which `attr` has.
    match unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR as libc::Ioctl, attr.as_mut_ptr()) } {
        0 => Ok(attr),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The project of a file.
pub fn project_of(file: &File) -> io::Result<Project> {
    let attr = fsxattr(file)?;
    Ok(Project { id: attr[3], inherit: attr[0] & PROJINHERIT != 0 })
}

/// Gives a file a project; its other flags stay.
pub fn set_project(file: &File, project: Project) -> io::Result<()> {
    let mut attr = fsxattr(file)?;
    attr[0] = attr[0] & !PROJINHERIT | if project.inherit { PROJINHERIT } else { 0 };
    attr[3] = project.id;
    // SAFETY: the request reads 28 bytes, which `attr` has.
    match unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSSETXATTR as libc::Ioctl, attr.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_by_name_and_number() {
        assert_eq!((user_id("root"), group_id("root")), (Some(0), Some(0)));
        assert_eq!((user_name(0).as_deref(), group_name(0).as_deref()), (Some("root"), Some("root")));
        assert_eq!((user_id("no such user"), group_id("no\0group")), (None, None));
        assert_eq!((user_name(u32::MAX - 7), group_name(u32::MAX - 7)), (None, None));
    }
}
