//! `zfs share` and `zfs unshare`.

use admin::fs::shares::Protocol;
use admin::request::{Share, Unshare};

use crate::opts::Parsed;
use crate::zfs::file_system_name;
use crate::{Done, Fail, ask, zfs_key};

/// The protocol that may follow `-a`.
fn protocol(p: &Parsed, command: &'static str) -> Result<Option<Protocol>, Fail> {
    match p.operands.as_slice() {
        [] => Ok(None),
        [name] => match Protocol::parse(name) {
            Some(protocol) => Ok(Some(protocol)),
            None => Err(Fail::Usage(format!("share type must be 'nfs' or 'smb', not '{name}'"), command)),
        },
        _ => Err(Fail::Usage("too many arguments".into(), command)),
    }
}

/// `zfs share [-l] <-a [nfs|smb] | filesystem>`
pub(crate) fn share(p: &Parsed) -> Done {
    if p.has('a') {
        let protocol = protocol(p, "share")?;
        if p.has('l') {
            zfs_key::load_for_mount(None)?;
        }
        return ask(&Share { name: None, protocol });
    }
    match p.operands.as_slice() {
        [name] => {
            file_system_name(name)?;
            if p.has('l') {
                zfs_key::load_for_mount(Some(name))?;
            }
            ask(&Share { name: Some(name.clone()), protocol: None })
        }
        [] => Err(Fail::Usage("missing filesystem argument".into(), "share")),
        _ => Err(Fail::Usage("too many arguments".into(), "share")),
    }
}

/// `zfs unshare <-a [nfs|smb] | filesystem|mountpoint>`
pub(crate) fn unshare(p: &Parsed) -> Done {
    if p.has('a') {
        return ask(&Unshare { target: None, protocol: protocol(p, "unshare")? });
    }
    match p.operands.as_slice() {
        [target] => {
            // A path is absolute here, as for OpenZFS.
            let target = if target.starts_with('/') { crate::absolute(target)? } else { target.clone() };
            ask(&Unshare { target: Some(target), protocol: None })
        }
        [] => Err(Fail::Usage("missing filesystem argument".into(), "unshare")),
        _ => Err(Fail::Usage("too many arguments".into(), "unshare")),
    }
}
