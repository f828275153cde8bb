//! System attributes of objects: a file's mode, size, owner, times, ACL, xattrs and others (format
//! pages 08 sections 2 and 3, 16 section 1).
//!
//! A file system has one [`SaTable`] of its attributes and *layouts*, numbered sequences of
//! attributes. An object's attributes are in its bonus and, if they do not fit, in its spill block;
//! a [`SaHandle`] reads and changes them.
//!
//! The hot path is [`SaHandle::attrs`] and [`SaHandle::set_attrs`]: all attributes that `stat`
//! shows ([`ZnodeAttrs`]), read from the bonus by one walk along its layout, written back by
//! patching a copy of the bonus. A change of the set of attributes or of a length takes the slow
//! path: list all, change the list, divide it anew between bonus and spill block, find or add the
//! layouts, build both sides.
//!
//! Objects of file systems before version 5 have a *znode* in the bonus instead (bonus type 17).
//! They are read, and their fixed fields changed in place; in a file system that was upgraded to
//! version 5 they can be converted.
//!
//! There is no lock over an object's attributes: the caller holds the file's lock. Adding a layout
//! locks the table.

mod handle;
mod znode;

pub use handle::{NewZnode, SaHandle};
pub use ondisk::sa::Attr as SaAttr;
pub use znode::{Times, ZnodeAttrs};

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt};
use ondisk::object_type::ObjectType;
use ondisk::sa::{AttrTable, Layouts, pack_registry, parse_header};
use rt::sync::Mutex;

use crate::{Objset, Tx, ranks, zap};

/// Keys of the master object.
const REGISTRY: &[u8] = b"REGISTRY";
const LAYOUTS: &[u8] = b"LAYOUTS";

/// One attribute of a layout.
#[derive(Clone, Copy, Debug)]
struct Item {
    num: u16,
    attr: Option<SaAttr>,
    /// Bytes, 0 when they vary.
    len: u16,
}

/// The range of a value in a buffer.
#[derive(Clone, Copy, Debug)]
struct Span {
    num: u16,
    attr: Option<SaAttr>,
    start: usize,
    end: usize,
}

/// The attributes and layouts of a file system.
pub struct SaTable {
    os: Objset,
    master: ObjectId,
    registry: Cell<Option<ObjectId>>,
    layouts_obj: Cell<Option<ObjectId>>,
    attrs: RefCell<AttrTable>,
    /// All known attributes are in the registry.
    complete: Cell<bool>,
    layouts: RefCell<Layouts>,
    /// Layouts in the form for walks.
    shapes: RefCell<BTreeMap<u16, Rc<[Item]>>>,
    adding: Mutex<()>,
}

impl SaTable {
    /// Makes the master object with an empty LAYOUTS and a REGISTRY of all attributes; the number
    /// to be stored in the file system's master node.
    pub async fn create(os: &Objset, tx: &Tx) -> Result<ObjectId> {
        let master = zap::create(os, ObjectType::SA_MASTER_NODE, 0, tx).await?;
        let registry = zap::create(os, ObjectType::SA_ATTR_REGISTRATION, 0, tx).await?;
        let layouts = zap::create(os, ObjectType::SA_ATTR_LAYOUTS, 0, tx).await?;
        zap::add_u64(&master, REGISTRY, registry.object().0, tx).await?;
        zap::add_u64(&master, LAYOUTS, layouts.object().0, tx).await?;
        for (num, info) in AttrTable::standard().iter() {
            zap::add_u64(&registry, info.name.as_bytes(), pack_registry(num, info.len, info.swap), tx).await?;
        }
        Ok(master.object())
    }

    /// Reads the table of the master object.
    pub async fn load(os: &Objset, master: ObjectId) -> Result<Rc<SaTable>> {
        let dn = os.hold(master).await.at(|| "system attribute master object")?;
        let registry = zap::lookup_u64(&dn, REGISTRY).await?.map(ObjectId);
        let layouts_obj = zap::lookup_u64(&dn, LAYOUTS).await?.map(ObjectId);
        let mut entries = Vec::new();
        if let Some(obj) = registry {
            for e in zap::list(&os.hold(obj).await.at(|| "system attribute registry")?).await? {
                let value =
                    e.value.as_u64().ok_or_else(|| Error::corrupt("system attribute registry entry is no number"))?;
                entries.push((String::from_utf8_lossy(&e.name).into_owned(), value));
            }
        }
        let attrs = AttrTable::from_registry(entries.iter().map(|(n, v)| (n.as_str(), *v)))?;
        let mut layouts = Layouts::default();
        if let Some(obj) = layouts_obj {
            for e in zap::list(&os.hold(obj).await.at(|| "system attribute layouts")?).await? {
                layouts.add_entry(&e.name, &e.value)?;
            }
        }
        let complete = !entries.is_empty() && SaAttr::ALL.into_iter().all(|a| attrs.num(a).is_some());
        Ok(Rc::new(SaTable {
            os: os.clone(),
            master,
            registry: Cell::new(registry),
            layouts_obj: Cell::new(layouts_obj),
            attrs: RefCell::new(attrs),
            complete: Cell::new(complete),
            layouts: RefCell::new(layouts),
            shapes: RefCell::default(),
            adding: Mutex::new(ranks::SA_LAYOUTS, ()),
        }))
    }

    /// The objects that adding a layout changes, for a transaction's plan: master, registry and
    /// layouts, as far as they exist.
    pub fn objects(&self) -> Vec<ObjectId> {
        [Some(self.master), self.registry.get(), self.layouts_obj.get()].into_iter().flatten().collect()
    }
    /// Number of an attribute in this file system.
    pub fn num(&self, attr: SaAttr) -> Option<u16> {
        self.attrs.borrow().num(attr)
    }
    /// The attribute sequence of a layout.
    pub fn layout(&self, number: u16) -> Option<Vec<u16>> {
        self.layouts.borrow().get(number).map(<[u16]>::to_vec)
    }

    fn shape(&self, number: u16) -> Result<Rc<[Item]>> {
        if let Some(s) = self.shapes.borrow().get(&number) {
            return Ok(s.clone());
        }
        let (attrs, layouts) = (self.attrs.borrow(), self.layouts.borrow());
        let nums = layouts
            .get(number)
            .ok_or_else(|| Error::corrupt(format!("system attribute layout {number} does not exist")))?;
        let mut items = Vec::with_capacity(nums.len());
        for &num in nums {
            let info = attrs.info(num).ok_or_else(|| {
                Error::corrupt(format!("system attribute {num} of layout {number} is not registered"))
            })?;
            items.push(Item { num, attr: attrs.attr(num), len: info.len });
        }
        let shape: Rc<[Item]> = items.into();
        self.shapes.borrow_mut().insert(number, shape.clone());
        Ok(shape)
    }

    /// Calls `f` with the place of each attribute in a buffer, in the layout's order.
    fn walk(&self, b: &[u8], mut f: impl FnMut(Span)) -> Result<()> {
        let Some((number, header)) = parse_header(b)? else { return Ok(()) };
        let shape = self.shape(number)?;
        let (mut vars, mut at) = (0usize, header);
        for item in shape.iter() {
            let len = match item.len {
                0 => {
                    let off = 6 + 2 * vars;
                    vars += 1;
                    match b.get(off..off + 2) {
                        Some(v) if off + 2 <= header => usize::from(u16::from_le_bytes([v[0], v[1]])),
                        _ => {
                            return Err(Error::corrupt(format!(
                                "system attribute header of {header} bytes is too short for layout {number}"
                            )));
                        }
                    }
                }
                n => usize::from(n),
            };
            let start = at.next_multiple_of(8);
            at = start + len;
            if at > b.len() {
                return Err(Error::corrupt(format!("system attribute {} ends at byte {at} of {}", item.num, b.len())));
            }
            f(Span { num: item.num, attr: item.attr, start, end: at });
        }
        Ok(())
    }

    /// Whether values under this number vary in length.
    fn varies(&self, num: u16) -> bool {
        self.attrs.borrow().info(num).is_some_and(|i| i.len == 0)
    }

    async fn master_entry(&self, key: &[u8], otype: ObjectType, tx: &Tx) -> Result<ObjectId> {
        let dn = zap::create(&self.os, otype, 0, tx).await?;
        zap::add_u64(&self.os.hold(self.master).await?, key, dn.object().0, tx).await?;
        Ok(dn.object())
    }

    /// Registers the attributes that the file system lacks; every writer does so first.
    async fn register_all(&self, tx: &Tx) -> Result<()> {
        // Boxed: it is large and rare, and would enlarge the futures of all writers.
        if self.complete.get() { Ok(()) } else { Box::pin(self.register_missing(tx)).await }
    }

    async fn register_missing(&self, tx: &Tx) -> Result<()> {
        let _adding = self.adding.lock().await;
        if self.complete.get() {
            return Ok(());
        }
        let mut attrs = self.attrs.borrow().clone();
        let added: Vec<(String, u64)> = match self.registry.get() {
            Some(_) => attrs.add_missing().into_iter().map(|(n, v)| (n.to_owned(), v)).collect(),
            None => attrs.iter().map(|(n, i)| (i.name.clone(), pack_registry(n, i.len, i.swap))).collect(),
        };
        let registry = match self.registry.get() {
            Some(obj) => obj,
            None => self.master_entry(REGISTRY, ObjectType::SA_ATTR_REGISTRATION, tx).await?,
        };
        self.registry.set(Some(registry));
        let dn = self.os.hold(registry).await?;
        for (name, value) in added {
            zap::update_u64(&dn, name.as_bytes(), value, tx).await?;
        }
        *self.attrs.borrow_mut() = attrs;
        self.complete.set(true);
        Ok(())
    }

    /// The layout with exactly these attributes, added if there is none.
    async fn layout_for(&self, nums: &[u16], tx: &Tx) -> Result<u16> {
        if let Some(n) = self.layouts.borrow().find(nums) {
            return Ok(n);
        }
        // Boxed as above.
        Box::pin(self.add_layout(nums, tx)).await
    }

    async fn add_layout(&self, nums: &[u16], tx: &Tx) -> Result<u16> {
        let _adding = self.adding.lock().await;
        if let Some(n) = self.layouts.borrow().find(nums) {
            return Ok(n);
        }
        let obj = match self.layouts_obj.get() {
            Some(obj) => obj,
            None => self.master_entry(LAYOUTS, ObjectType::SA_ATTR_LAYOUTS, tx).await?,
        };
        self.layouts_obj.set(Some(obj));
        let number = self.layouts.borrow().next_number()?;
        let value = zap::ZapValue::from_u16s(nums);
        zap::add(&self.os.hold(obj).await?, number.to_string().as_bytes(), &value, tx).await?;
        let (added, ..) = self.layouts.borrow_mut().add(nums)?;
        assert_eq!(added, number, "layout number changed while the table was locked");
        Ok(number)
    }
}
