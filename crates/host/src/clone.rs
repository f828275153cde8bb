//! The requests of weir's file systems that clone a range of a file into one of another mount of
//! the same pool. Linux passes neither `FICLONE` to a FUSE server nor `copy_file_range` from one
//! mount to another.
//!
//! The source, open for reading, gives a *token*: 16 bytes that name it until the daemon ends or
//! many others were given. The target, open for writing, takes the token and the range. So the
//! rights are those of opening the two files.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Bytes of a token.
pub const CLONE_TOKEN_LEN: usize = 16;

/// `_IOR('w', 0x80, [u8; 16])`: a token for the file, which is open for reading.
pub const WEIR_IOC_CLONE_SOURCE: u32 = 0x8010_7780;

/// `_IOWR('w', 0x81, struct { u64 len, source_offset, offset; u8 token[16]; })`: clones `len` bytes
/// of the file of the token; `len` becomes the bytes that were cloned, which may be fewer.
pub const WEIR_IOC_CLONE: u32 = 0xc028_7781;

/// `_IOWR('w', 0x82, ...)` with the arguments of [`WEIR_IOC_CLONE`]: the same if the bytes are
/// there already (as `FIDEDUPERANGE`, which Linux passes to no FUSE server either).
pub const WEIR_IOC_SHARE_EQUAL: u32 = 0xc028_7782;

/// A token for the file, which is open for reading. Its changed pages are written back first.
///
/// Errors: `Unsupported` if the file system knows no such request, and what it answers.
pub fn clone_source(file: &File) -> io::Result<[u8; CLONE_TOKEN_LEN]> {
    let mut token = [0; CLONE_TOKEN_LEN];
    // SAFETY: the request writes 16 bytes, which `token` has.
    let code = unsafe { libc::ioctl(file.as_raw_fd(), WEIR_IOC_CLONE_SOURCE as libc::Ioctl, token.as_mut_ptr()) };
    done(code).map(|()| token)
}

/// The arguments of [`WEIR_IOC_CLONE`].
#[repr(C)]
struct CloneArgs {
    len: u64,
    from: u64,
    to: u64,
    token: [u8; CLONE_TOKEN_LEN],
}

/// Clones `len` bytes from offset `from` of the file of `token` to offset `to` of `file`, which is
/// open for writing; the bytes that were cloned.
///
/// Errors: `Unsupported` if the file system knows no such request, and what it answers:
/// `CrossesDevices` if the source is in no file system of the same pool, `EOPNOTSUPP` or
/// `InvalidInput` if the range cannot be cloned.
pub fn clone_range(file: &File, token: [u8; CLONE_TOKEN_LEN], from: u64, to: u64, len: u64) -> io::Result<u64> {
    ask(file, WEIR_IOC_CLONE, CloneArgs { len, from, to, token })
}

/// As [`clone_range`] for a range of `file` that has the same bytes as the source; the bytes that
/// are shared from then on. Error: one that [`is_unequal`] if they differ.
pub fn share_equal(file: &File, token: [u8; CLONE_TOKEN_LEN], from: u64, to: u64, len: u64) -> io::Result<u64> {
    ask(file, WEIR_IOC_SHARE_EQUAL, CloneArgs { len, from, to, token })
}

/// Whether an error of [`share_equal`] says that the bytes differ.
pub fn is_unequal(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EILSEQ)
}

fn ask(file: &File, request: u32, mut args: CloneArgs) -> io::Result<u64> {
    let len = args.len;
    let pointer: *mut CloneArgs = &mut args;
    // SAFETY: the request reads 40 bytes and writes no more, which `args` has.
    done(unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, pointer) })?;
    Ok(args.len.min(len))
}

fn done(code: libc::c_int) -> io::Result<()> {
    if code == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    Err(if e.raw_os_error() == Some(libc::ENOTTY) { io::ErrorKind::Unsupported.into() } else { e })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_file_systems_know_no_tokens() {
        let exe = File::open("/proc/self/exe").unwrap();
        assert_eq!(clone_source(&exe).unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!(clone_range(&exe, [0; 16], 0, 0, 1).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn the_numbers_have_the_sizes() {
        assert_eq!(WEIR_IOC_CLONE_SOURCE >> 16 & 0x3fff, CLONE_TOKEN_LEN as u32);
        for code in [WEIR_IOC_CLONE, WEIR_IOC_SHARE_EQUAL] {
            assert_eq!(code >> 16 & 0x3fff, size_of::<CloneArgs>() as u32);
        }
    }
}
