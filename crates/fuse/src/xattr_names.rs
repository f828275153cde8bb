//! Names of extended attributes.
//!
//! The kernel hands every name to a FUSE server, but refuses names outside the namespaces of its
//! other file systems itself. Here they are refused as there. Pools of other platforms may have
//! names without a namespace (those of FreeBSD's users): such attributes can be read and removed.

use base::{Error, ErrorKind};

use crate::errno::{Errno, INVALID, NO_DATA, NOT_SUPPORTED};

/// Namespaces that programs may write; the kernel checks their permission.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Attributes of the system are ACLs alone.
pub fn is_system(name: &[u8]) -> bool {
    name.starts_with(b"system.")
}

/// Whether a program may give something this name.
pub fn check_namespace(name: &[u8]) -> Result<(), Errno> {
    if NAMESPACES.contains(&name) {
        return Err(INVALID);
    }
    if NAMESPACES.iter().any(|n| name.starts_with(n)) { Ok(()) } else { Err(NOT_SUPPORTED) }
}

/// The answer after `name` was looked for: a name that may not be there is no missing attribute.
pub fn missing(name: &[u8], e: Error) -> Errno {
    if e.kind() == ErrorKind::NoAttr { check_namespace(name).err().unwrap_or(NO_DATA) } else { e.into() }
}
