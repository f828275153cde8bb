//! Newer versions of a file system (`zfs upgrade`; format page 08 section 1).
//!
//! The master node gets the version, and since version 5 a table of attributes. Objects keep what
//! they have: a znode becomes attributes when its owner, mode, times or extended attributes are
//! changed ([`Zfs::convert`]). Entries of directories get a type when they are made.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::sa::{SaHandle, SaTable};
use dmu::{Tx, zap};
use ondisk::version;
use ondisk::zpl::{MASTER_NODE_OBJ, ZPL_VERSION, ZPL_VERSION_SA, master_key};

use crate::fs::Zfs;
use crate::node::Node;

/// Space for the objects of the table, in bytes: three ZAPs.
const TABLE_BYTES: u64 = 64 << 10;

impl Zfs {
    /// Gives the file system a newer version; that which it has stays. `Unsupported` if the pool is
    /// too old for it.
    pub async fn upgrade(&self, to: u64) -> Result<()> {
        let _pass = self.enter_source()?;
        if !self.os.is_writable() {
            return Err(Error::new(ErrorKind::ReadOnly, format!("file system '{}' is read-only", self.name())));
        }
        let from = self.version();
        if to < from || to > ZPL_VERSION {
            return Err(Error::invalid(format!("a file system of version {from} cannot get version {to}")));
        }
        if version::needed_by_zpl(to) > self.os.ctx().features().pool_version {
            return Err(Error::unsupported("pool must be upgraded to set this property or value"));
        }
        if to == from {
            return self.count_owners().await;
        }
        let master = self.os.hold(ObjectId(MASTER_NODE_OBJ)).await?;
        let gets_table = to >= ZPL_VERSION_SA && self.sa.get().is_none();
        let plan = self.plan().zap(&master);
        let plan = if gets_table { plan.create(3).write_new(TABLE_BYTES) } else { plan };
        let tx = plan.assign().await?;
        let mut table = None;
        if gets_table {
            let object = SaTable::create(&self.os, &tx).await?;
            zap::add_u64(&master, master_key::SA_ATTRS.as_bytes(), object.0, &tx).await?;
            table = Some(object);
        }
        zap::update_u64(&master, master_key::VERSION.as_bytes(), to, &tx).await?;
        self.dataset().note("upgrade", format!("from {from} to {to}"), &tx);
        let txg = tx.txg();
        drop(tx);
        // Until then older txgs may be open, which must not use the table.
        self.wait_txg(txg).await?;
        let sa = match table {
            None => None,
            Some(object) => {
                let table = SaTable::load(&self.os, object).await?;
                let mut objects = Vec::new();
                for object in table.objects() {
                    objects.push(self.os.hold(object).await?);
                }
                Some((table, objects))
            }
        };
        self.set_version(to, sa);
        self.count_owners().await
    }

    /// In a file system with attributes: gives them to an object that has a znode yet, if it can
    /// have them. The caller holds the object's lock of attributes, and its transaction may add a
    /// layout.
    pub(crate) async fn convert(&self, n: &Node, tx: &Tx) -> Result<()> {
        match self.sa.get() {
            Some(table) => SaHandle::convert(&n.dn, table, self.projects.get(), tx).await,
            None => Ok(()),
        }
    }
}
