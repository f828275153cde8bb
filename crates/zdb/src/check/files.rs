//! File systems: folders against files. Every object is in a folder, an xattr folder, the delete
//! queue or the master node; links, sizes and parents agree.

use std::collections::{BTreeMap, BTreeSet};

use base::Result;
use ondisk::object_type::ObjectType;
use ondisk::sa::{FIRST_LAYOUT, header_size};
use ondisk::zap::MICRO_MAX_SIZE;
use ondisk::zpl::master_key::DEFAULT_QUOTAS;
use ondisk::zpl::{Dirent, parse_aces, pflags};

use super::report::Sink;
use crate::objset::{Object, Objset};
use crate::zap;
use crate::zpl::FileSystem;

/// The attributes kept of each file.
#[derive(Clone, Copy, Default)]
struct File {
    mode: u64,
    links: u64,
    parent: u64,
    size: u64,
    xattr: u64,
    flags: u64,
    dir: bool,
    entries: u64,
    subdirs: u64,
    named: u64,
    first_parent: u64,
    parent_seen: bool,
    live: bool,
}

/// Checks a file system. `keys`: what is attached to its dataset.
pub fn check(os: &Objset, keys: &BTreeSet<String>, sink: &mut Sink<'_>) {
    let r = Check::run(os, keys, sink);
    sink.take(r);
}

struct Check<'a, 'b, 'c> {
    os: &'a Objset,
    /// The keys of its dataset, features among them.
    keys: &'a BTreeSet<String>,
    fs: FileSystem,
    sink: &'b mut Sink<'c>,
    files: BTreeMap<u64, File>,
    types: BTreeMap<u64, ObjectType>,
    /// Objects that the master node names, and external ACLs.
    used: BTreeSet<u64>,
    queue: BTreeSet<u64>,
}

impl Check<'_, '_, '_> {
    fn run(os: &Objset, keys: &BTreeSet<String>, sink: &mut Sink<'_>) -> Result<()> {
        let fs = FileSystem::open(os)?;
        let mut c = Check {
            os,
            keys,
            fs,
            sink,
            files: BTreeMap::new(),
            types: BTreeMap::new(),
            used: BTreeSet::from([1]),
            queue: BTreeSet::new(),
        };
        c.master()?;
        c.objects();
        c.folders();
        c.xattr_folders();
        c.reach();
        c.compare();
        Ok(())
    }
    fn err(&mut self, what: String) {
        self.sink.error(format!("{}: {what}", self.os.name));
    }

    fn master(&mut self) -> Result<()> {
        const NUMBERS: [&str; 6] = ["ROOT", "VERSION", "normalization", "utf8only", "casesensitivity", "acltype"];
        for (k, v) in &self.fs.master {
            if !NUMBERS.contains(&k.as_str()) && !DEFAULT_QUOTAS.contains(&k.as_str()) {
                self.used.extend(v.as_u64().filter(|o| *o != 0));
            }
        }
        if let Some(sa) = self.fs.number("SA_ATTRS") {
            self.used.extend(zap::map_u64(&self.os.object(sa)?)?.into_values());
        }
        if (self.fs.version >= 5) != self.fs.master.contains_key("SA_ATTRS") {
            self.err(format!(
                "version {} {} SA_ATTRS",
                self.fs.version,
                if self.fs.version >= 5 { "without" } else { "with" }
            ));
        }
        if let Some(q) = self.fs.number("DELETE_QUEUE") {
            self.queue = zap::int_map(&self.os.object(q)?)?.into_values().collect();
        } else {
            self.err("the master node has no DELETE_QUEUE".into());
        }
        let bad: Vec<String> = self
            .fs
            .layouts
            .iter()
            .flat_map(|(n, attrs)| attrs.iter().map(move |a| (n, *a)))
            .filter(|(_, a)| self.fs.table.info(*a).is_none())
            .map(|(n, a)| format!("attribute layout {n} has attribute {a}, which is not registered"))
            .collect();
        bad.into_iter().for_each(|e| self.err(e));
        let numbers: Vec<u16> = self.fs.layouts.iter().map(|(n, _)| n).collect();
        if numbers.iter().enumerate().any(|(i, n)| *n != FIRST_LAYOUT + i as u16) {
            self.err(format!("attribute layouts are numbered {numbers:?}"));
        }
        Ok(())
    }

    fn objects(&mut self) {
        let mut batch: Vec<Object> = Vec::new();
        let os = self.os;
        os.for_each_object(&mut |r| {
            // The block walk has reported faults of dnodes.
            if let Ok(o) = r {
                batch.push(o);
            }
            if batch.len() >= 256 {
                batch.drain(..).for_each(|o| self.object(&o));
            }
        });
        batch.into_iter().for_each(|o| self.object(&o));
    }
    fn object(&mut self, obj: &Object) {
        self.types.insert(obj.num, obj.dn.otype);
        let size = obj.dn.datablksz() as usize;
        if obj.dn.otype.is_zap() && size > MICRO_MAX_SIZE && !self.keys.contains("com.klarasystems:large_microzap") {
            self.err(format!("object {}: a ZAP in blocks of {size} bytes, the dataset lacks large_microzap", obj.num));
        }
        if !matches!(obj.dn.bonustype, ObjectType::SA | ObjectType::ZNODE) {
            return;
        }
        let a = match self.fs.attrs(obj) {
            Ok(a) => a,
            Err(e) => {
                self.sink.error(e.to_string());
                return;
            }
        };
        let dir = obj.dn.otype == ObjectType::DIRECTORY;
        if !dir && obj.dn.otype != ObjectType::PLAIN_FILE {
            self.err(format!("object {} of type {} has attributes", obj.num, obj.dn.otype));
        }
        if a.mode >> 12 == 10
            && let Some(t) = &a.symlink
            && t.len() as u64 != a.size
        {
            self.err(format!("symbolic link {} has size {}, its target {}", obj.num, a.size, t.len()));
        }
        if let Some(x) = &a.dxattr
            && let Err(e) = ondisk::nvlist::NvList::decode(x)
        {
            self.err(format!("object {}: xattr list: {e}", obj.num));
        }
        if let (Some(n), Some(aces)) = (a.dacl_count, &a.dacl) {
            match parse_aces(aces) {
                Ok(list) if list.len() as u64 == n => {}
                Ok(list) => self.err(format!("object {}: {} ACEs, DACL_COUNT {n}", obj.num, list.len())),
                Err(e) => self.err(format!("object {}: {e}", obj.num)),
            }
        }
        self.header_size(obj);
        self.used.extend(Some(a.acl_object).filter(|o| *o != 0));
        self.sink.rep.files += 1;
        let f = File {
            mode: a.mode,
            links: a.links,
            parent: a.parent,
            size: a.size,
            xattr: a.xattr,
            flags: a.flags,
            dir,
            ..File::default()
        };
        self.files.insert(obj.num, f);
    }
    /// OpenZFS asserts that a header is exactly as long as its layout needs.
    fn header_size(&mut self, obj: &Object) {
        if obj.dn.bonustype != ObjectType::SA || ondisk::sa::is_swapped(obj.dn.bonus()) {
            return;
        }
        let Ok(Some((layout, size))) = ondisk::sa::parse_header(obj.dn.bonus()) else { return };
        let Some(attrs) = self.fs.layouts.get(layout) else { return };
        let vars = attrs.iter().filter(|a| self.fs.table.info(**a).is_some_and(|i| i.len == 0)).count();
        if size != header_size(vars) {
            self.err(format!(
                "object {}: attribute header of {size} bytes, layout {layout} needs {}",
                obj.num,
                header_size(vars)
            ));
        }
    }

    fn folders(&mut self) {
        let dirs: Vec<u64> = self.files.iter().filter(|(_, f)| f.dir).map(|(n, _)| *n).collect();
        for d in dirs {
            let entries = match self.os.object(d).and_then(|o| zap::entries(&o)) {
                Ok(e) => e,
                // The check of ZAPs has reported it.
                Err(_) => continue,
            };
            let longest = entries.iter().map(|e| e.key.len()).max().unwrap_or(0);
            if longest > ondisk::zap::MAX_NAME && !self.keys.contains("org.zfsonlinux:longname") {
                self.err(format!("folder {d}: a name of {longest} bytes, the dataset lacks longname"));
            }
            let mut subdirs = 0;
            for e in &entries {
                let Some(v) = e.u64() else {
                    self.err(format!("folder {d} entry {:?}: not a number", e.name()));
                    continue;
                };
                let ent = Dirent::unpack(v);
                let Some(f) = self.files.get_mut(&ent.object) else {
                    self.err(format!("folder {d} entry {:?}: object {} is not there", e.name(), ent.object));
                    continue;
                };
                subdirs += u64::from(f.dir);
                f.named += 1;
                f.parent_seen |= f.parent == d;
                if f.first_parent == 0 {
                    f.first_parent = d;
                }
                let mode = f.mode;
                if ent.dtype != 0 && u64::from(ent.dtype) != mode >> 12 {
                    self.err(format!("folder {d} entry {:?}: type {}, mode {mode:o}", e.name(), ent.dtype));
                }
            }
            if let Some(f) = self.files.get_mut(&d) {
                f.entries = entries.len() as u64;
                f.subdirs = subdirs;
            }
        }
    }

    fn xattr_folders(&mut self) {
        let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
        let with: Vec<(u64, u64)> =
            self.files.iter().filter(|(_, f)| f.xattr != 0).map(|(n, f)| (*n, f.xattr)).collect();
        for (n, x) in with {
            match self.files.get(&x).copied() {
                Some(f) if f.dir => {
                    if f.parent != n || f.flags & pflags::XATTR == 0 {
                        self.err(format!("xattr folder {x} of {n}: parent {}, flags {:x}", f.parent, f.flags));
                    }
                }
                _ => self.err(format!("object {n}: xattr folder {x} is not there")),
            }
            if let Some(old) = owners.insert(x, n) {
                self.err(format!("xattr folder {x} belongs to {old} and {n}"));
            }
            if let Some(f) = self.files.get_mut(&x) {
                // It is in no folder; its owner stands for one.
                f.first_parent = u64::MAX;
            }
        }
    }

    /// Marks the objects that can be reached from the root and the delete queue.
    fn reach(&mut self) {
        let mut todo: Vec<u64> = vec![self.fs.root];
        todo.extend(self.fs.number("SHARES").filter(|o| *o != 0));
        todo.extend(self.queue.iter().filter(|o| self.files.contains_key(o)));
        while let Some(n) = todo.pop() {
            let Some(f) = self.files.get_mut(&n).filter(|f| !f.live) else { continue };
            f.live = true;
            if f.xattr != 0 {
                todo.push(f.xattr);
            }
            if f.dir
                && let Ok(entries) = self.os.object(n).and_then(|o| zap::entries(&o))
            {
                todo.extend(entries.iter().filter_map(|e| e.u64()).map(|v| Dirent::unpack(v).object));
            }
        }
    }

    fn compare(&mut self) {
        let shares = self.fs.number("SHARES").unwrap_or(0);
        let root = self.fs.root;
        let mut stale = 0u64;
        let all: Vec<(u64, File)> = self.files.iter().map(|(n, f)| (*n, *f)).collect();
        for (n, f) in &all {
            let (n, xdir) = (*n, f.first_parent == u64::MAX);
            if !f.live {
                self.err(format!("object {n} (mode {:o}) is in no folder and not queued for deletion", f.mode));
            }
            if (f.mode >> 12 == 4) != f.dir {
                self.err(format!("object {n}: mode {:o}, object type {}", f.mode, self.types[&n]));
            }
            if self.queue.contains(&n) {
                if f.links != 0 && !xdir && f.named == 0 && !f.dir {
                    self.err(format!("object {n} is queued for deletion with {} links", f.links));
                }
                continue;
            }
            if f.dir {
                if f.links != 2 + f.subdirs {
                    self.err(format!("folder {n}: {} links, {} folders in it", f.links, f.subdirs));
                }
                if f.size != 2 + f.entries {
                    self.err(format!("folder {n}: size {}, {} entries", f.size, f.entries));
                }
                if n == root || n == shares {
                    if f.parent != n && f.parent != root {
                        self.err(format!("folder {n}: parent {}", f.parent));
                    }
                    if f.named != 0 {
                        self.err(format!("folder {n}, the root, is in folder {}", f.first_parent));
                    }
                } else if !xdir && (f.named != 1 || f.first_parent != f.parent) {
                    self.err(format!(
                        "folder {n}: parent {}, it is in {} folders, the first of them {}",
                        f.parent, f.named, f.first_parent
                    ));
                }
            } else {
                if f.links != f.named {
                    self.err(format!("file {n}: {} links, {} entries", f.links, f.named));
                }
                stale += u64::from(!f.parent_seen);
            }
        }
        if !self.files.contains_key(&root) {
            self.err(format!("the root folder {root} is not there"));
        }
        let queue = std::mem::take(&mut self.queue);
        for n in queue.iter().filter(|n| !self.files.contains_key(n)).copied().collect::<Vec<_>>() {
            self.err(format!("delete queue: object {n} is not there"));
        }
        let strays: Vec<(u64, ObjectType)> = self
            .types
            .iter()
            .filter(|(n, _)| !self.files.contains_key(n) && !self.used.contains(n))
            .map(|(n, t)| (*n, *t))
            .collect();
        for (n, t) in strays {
            self.err(format!("object {n} ({t}) belongs to nothing"));
        }
        let missing: Vec<u64> = self.used.iter().filter(|n| !self.types.contains_key(n)).copied().collect();
        for n in missing {
            self.err(format!("object {n}, named in the master node, is not there"));
        }
        if stale != 0 {
            self.sink.note(format!(
                "{}: {stale} files whose parent attribute names a folder without them (a hard link was removed)",
                self.os.name
            ));
        }
    }
}
