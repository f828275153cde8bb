//! Clones of files into other file systems of the pool ([`host::clone_range`]).
//!
//! All file systems of a pool are served by one thread, which keeps the *sources*: files that were
//! named by a token, and may be cloned by those who have it. A token is random, so it proves that
//! its holder could open the file for reading. It keeps neither the file nor its file system in
//! use; the generation of the object says whether it is still the same file.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use base::ObjectId;
use host::CLONE_TOKEN_LEN;
use zpl::Zfs;

use crate::errno::{Errno, OTHER_DEVICE, STALE};

/// Sources kept; the oldest goes when there are more.
const SOURCES_MAX: usize = 256;

struct Source {
    token: [u8; CLONE_TOKEN_LEN],
    fs: Weak<Zfs>,
    obj: ObjectId,
    generation: u64,
}

thread_local! {
    static SOURCES: RefCell<VecDeque<Source>> = const { RefCell::new(VecDeque::new()) };
}

/// A token for a file.
pub(super) async fn offer(zfs: &Rc<Zfs>, obj: ObjectId) -> Result<[u8; CLONE_TOKEN_LEN], Errno> {
    let generation = zfs.getattr(obj).await?.generation;
    let mut token = [0; CLONE_TOKEN_LEN];
    host::entropy(&mut token);
    SOURCES.with_borrow_mut(|sources| {
        if sources.len() >= SOURCES_MAX {
            sources.pop_front();
        }
        sources.push_back(Source { token, fs: Rc::downgrade(zfs), obj, generation });
    });
    Ok(token)
}

/// The file of a token. `EXDEV` if this pool's thread gave no such token, or the file system is not
/// in use any more; `ESTALE` if the file has gone.
pub(super) async fn source(token: &[u8]) -> Result<(Rc<Zfs>, ObjectId), Errno> {
    let found = SOURCES.with_borrow(|sources| {
        let s = sources.iter().find(|s| s.token == token)?;
        // One that is suspended, or was rolled back, is closed.
        let fs = s.fs.upgrade().filter(|fs| fs.dataset().is_snapshot() || !fs.is_closed())?;
        Some((fs, s.obj, s.generation))
    });
    let (fs, obj, generation) = found.ok_or(OTHER_DEVICE)?;
    match fs.getattr(obj).await {
        Ok(a) if a.generation == generation => Ok((fs, obj)),
        _ => Err(STALE),
    }
}
