//! The path of an object by its number, for messages.

use base::{Error, ObjectId, Result};
use dmu::zap;
use ondisk::zpl::Dirent;

use crate::fs::Zfs;

/// Most parts of a path.
const DEPTH_MAX: usize = 4096;

impl Zfs {
    /// The path of an object below the root of the file system, with a slash before each part: by
    /// its PARENT and that directory's entries. One of several links. An error if it has no path,
    /// or the objects on it are damaged.
    pub async fn path_of(&self, obj: ObjectId) -> Result<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = obj;
        while at != self.root() {
            if parts.len() >= DEPTH_MAX {
                return Err(Error::corrupt(format!("the folders above object {obj} go in a circle")));
            }
            let node = self.node(at).await?;
            let parent = ObjectId(self.stored_attrs(&node).await?.parent);
            let (dir, _) = self.dir(parent).await?;
            let is_it = |v: Option<u64>| v.is_some_and(|v| Dirent::unpack(v).object == at.0);
            let found = zap::list(&dir.dn).await?.into_iter().find(|e| is_it(e.value.as_u64()));
            let found = found.ok_or_else(|| Error::not_found(format!("object {at} has no name in its folder")))?;
            parts.push(found.name);
            at = parent;
        }
        let mut out = Vec::new();
        for part in parts.iter().rev() {
            out.push(b'/');
            out.extend_from_slice(part);
        }
        if out.is_empty() {
            out.push(b'/');
        }
        Ok(out)
    }
}
