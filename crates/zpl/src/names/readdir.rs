//! Directory listings.
//!
//! Cookies are those of OpenZFS (format page 04 section 7): 0 is before `.`, 1 before `..`, 2 and 3
//! before the first entry, everything else is a place in the order of the ZAP, which stays valid
//! whatever is added or removed meanwhile.

use base::{Error, ObjectId, Result};
use dmu::zap;
use ondisk::zpl::Dirent;
use rt::join::Pipeline;

use crate::fs::Zfs;
use crate::names::show;
use crate::types::{Attr, DirEntry, DirEntryPlus, FileKind};

/// Attributes that one listing reads concurrently.
const ATTR_WINDOW: usize = 16;

impl Zfs {
    /// Up to `max` entries from `cookie` on (0: the beginning), `.` and `..` first. An empty list
    /// means the end.
    pub async fn readdir(&self, dir: ObjectId, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        let (d, a) = self.dir(dir).await?;
        let mut out = Vec::new();
        let dot = |name: &[u8], obj: ObjectId, next_cookie: u64| DirEntry {
            name: name.to_vec(),
            obj,
            kind: FileKind::Dir,
            next_cookie,
        };
        self.stamp_atime(&d, &a);
        if cookie == 0 && max > 0 {
            out.push(dot(b".", dir, 1));
        }
        if cookie <= 1 && out.len() < max {
            out.push(dot(b"..", ObjectId(a.parent), 2));
        }
        if out.len() >= max {
            return Ok(out);
        }
        let mut cursor = zap::Cursor::at(&d.dn, if cookie <= 3 { 0 } else { cookie });
        for (e, next_cookie) in cursor.next_batch(max - out.len()).await? {
            self.rt.spend(rt::cost::ZPL_ENTRY).await;
            let value = e.value.as_u64().ok_or_else(|| {
                Error::corrupt(format!("the entry '{}' of directory {dir} is no object", show(&e.name)))
            })?;
            let entry = Dirent::unpack(value);
            let kind = match FileKind::from_dtype(entry.dtype) {
                Some(kind) => kind,
                // A dangling entry must not fail the listing.
                None => self.kind_of_entry(entry).await.unwrap_or(FileKind::File),
            };
            out.push(DirEntry { name: e.name, obj: ObjectId(entry.object), kind, next_cookie });
        }
        Ok(out)
    }

    /// As [`Zfs::readdir`], with attributes.
    pub async fn readdirplus(&self, dir: ObjectId, cookie: u64, max: usize) -> Result<Vec<DirEntryPlus>> {
        let entries = self.readdir(dir, cookie, max).await?;
        let mut window = Pipeline::new(ATTR_WINDOW);
        let mut attrs = Vec::with_capacity(entries.len());
        for e in &entries {
            if let Some(a) = window.push(self.attr_of_entry(e)).await {
                attrs.push(a);
            }
        }
        while let Some(a) = window.next().await {
            attrs.push(a);
        }
        drop(window);
        Ok(entries.into_iter().zip(attrs).map(|(entry, attr)| DirEntryPlus { entry, attr }).collect())
    }

    async fn attr_of_entry(&self, e: &DirEntry) -> Option<Attr> {
        if e.name == b"." || e.name == b".." { None } else { self.getattr(e.obj).await.ok() }
    }
}
