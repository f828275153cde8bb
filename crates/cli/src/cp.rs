//! `weir cp`: files are copied by sharing their blocks, from one file system of a pool to another.
//!
//! Linux clones (`FICLONE`) no file of a FUSE mount, and does not let `copy_file_range` from one
//! mount to another. So the file systems are asked through the files themselves
//! ([`host::clone_source`], [`host::clone_range`]), whose rights are those of opening them. In the
//! same way `--dedupe` lets files that are the same already share their blocks, as `FIDEDUPERANGE`
//! does elsewhere.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::Error;

use crate::zpool::parse_for;
use crate::{Done, Fail};

/// What names a file to others.
type Token = [u8; host::CLONE_TOKEN_LEN];

/// Bytes that one request clones: a multiple of every record size.
const PART: u64 = 256 << 20;

/// Runs `weir cp ARGS`.
pub fn run(args: &[String]) -> Done {
    let p = parse_for("cp", args, "", &[("reflink", true, 'r'), ("dedupe", false, 'd')], "")?;
    let is_auto = match p.value('r') {
        None | Some("always") => false,
        Some("auto") => true,
        Some(other) => {
            let what = format!("--reflink {other}: it is to be 'always' or 'auto'");
            return Err(Fail::Usage(what, ""));
        }
    };
    if p.has('d') && p.has('r') {
        return Err(Fail::Usage("--dedupe copies nothing, so it goes without --reflink".into(), ""));
    }
    let [sources @ .., target] = p.operands.as_slice() else {
        return Err(Fail::Usage("missing file".into(), ""));
    };
    if sources.is_empty() {
        return Err(Fail::Usage(format!("missing target after '{target}'"), ""));
    }
    let is_folder = Path::new(target).is_dir();
    if sources.len() > 1 && !is_folder {
        return Err(Error::invalid(format!("cannot copy several files to '{target}': it is no folder")).into());
    }
    let mut done = Ok(());
    for source in sources {
        let to = match Path::new(source).file_name().filter(|_| is_folder) {
            Some(name) => Path::new(target).join(name),
            None => PathBuf::from(target),
        };
        let one = match p.has('d') {
            true => share(Path::new(source), &to),
            false => copy(Path::new(source), &to, is_auto),
        };
        if let Err(e) = one {
            eprintln!("{e}");
            done = Err(Fail::AlreadyReported);
        }
    }
    done
}

fn say(what: &str, path: &Path, e: &io::Error) -> String {
    format!("cannot {what} '{}': {e}", path.display())
}

/// Looks at a file that is to be read, which must be a regular one: opening a pipe would wait for
/// its other end.
fn look(path: &Path) -> Result<Metadata, String> {
    let of = path.metadata().map_err(|e| say("look at", path, &e))?;
    if of.is_file() { Ok(of) } else { Err(format!("cannot copy '{}': it is no regular file", path.display())) }
}

/// Lets a file that has the same contents as `source` share its blocks.
fn share(source: &Path, target: &Path) -> Result<(), String> {
    let (of, is) = (look(source)?, look(target)?);
    let from = File::open(source).map_err(|e| say("open", source, &e))?;
    let to = OpenOptions::new().read(true).write(true).open(target).map_err(|e| say("open", target, &e))?;
    let fail =
        |why: &str| Err(format!("cannot let '{}' share the blocks of '{}': {why}", target.display(), source.display()));
    if of.len() != is.len() {
        return fail("they differ in size");
    }
    match in_parts(&from, |token, at, len| host::share_equal(&to, token, at, at, len)) {
        Ok(()) => Ok(()),
        Err(e) if host::is_unequal(&e) => fail("they differ"),
        Err(e) => fail(reason(&e).unwrap_or(&e.to_string())),
    }
}

/// Copies a file to a new one, which goes again if that fails.
fn copy(source: &Path, target: &Path, is_auto: bool) -> Result<(), String> {
    let of = look(source)?;
    let from = File::open(source).map_err(|e| say("open", source, &e))?;
    let mut how = OpenOptions::new();
    how.read(true).write(true).create_new(true).mode(of.mode() & 0o777);
    let to = how.open(target).map_err(|e| say("make", target, &e))?;
    let done = match in_parts(&from, |token, at, len| host::clone_range(&to, token, at, at, len)) {
        Err(e) if is_auto && reason(&e).is_some() => {
            to.set_len(0).and_then(|()| io::copy(&mut &from, &mut &to).map(drop))
        }
        other => other,
    };
    done.map_err(|e| {
        // The error that is reported is the first one.
        let _ = std::fs::remove_file(target);
        let why = reason(&e).map_or(e.to_string(), str::to_string);
        format!("cannot clone '{}' to '{}': {why}", source.display(), target.display())
    })
}

/// Does all of `from` in parts: by its token, where a part begins, and its length; the answer is
/// the bytes done.
fn in_parts(from: &File, part: impl Fn(Token, u64, u64) -> io::Result<u64>) -> io::Result<()> {
    let token = host::clone_source(from)?;
    let mut at = 0;
    loop {
        let left = from.metadata()?.len().saturating_sub(at);
        if left == 0 {
            return Ok(());
        }
        match part(token, at, left.min(PART))? {
            0 => return Err(io::ErrorKind::ResourceBusy.into()),
            n => at += n,
        }
    }
}

/// The reason that a file cannot be cloned but may be copied; none for other errors.
fn reason(e: &io::Error) -> Option<&'static str> {
    match e.kind() {
        io::ErrorKind::CrossesDevices => Some("they are not in the same pool, or one of them is encrypted otherwise"),
        io::ErrorKind::InvalidInput => Some("its blocks do not fit the target: see its recordsize"),
        io::ErrorKind::ResourceBusy => Some("it is being written"),
        // `EOPNOTSUPP` and, of other file systems, `ENOTTY`.
        io::ErrorKind::Unsupported => {
            Some("a file system is not one of weir, or its pool does not have the feature block_cloning")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_let_a_file_be_copied() {
        // EXDEV, EOPNOTSUPP, EINVAL, EBUSY.
        for number in [18, 95, 22, 16] {
            assert!(reason(&io::Error::from_raw_os_error(number)).is_some(), "{number}");
        }
        // ENOSPC, EIO, EROFS, EDQUOT.
        for number in [28, 5, 30, 122] {
            assert_eq!(reason(&io::Error::from_raw_os_error(number)), None, "{number}");
        }
    }
}
