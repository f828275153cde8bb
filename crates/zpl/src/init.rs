//! Initialization of a new file system: master node, tables of attributes, unlinked set, root
//! directory (format pages 08 section 1 and 10 section 2.4).

use std::rc::Rc;

use base::{Error, ObjectId, Result, WallTime};
use dmu::sa::{NewZnode, SaHandle, SaTable, ZnodeAttrs};
use dmu::{ObjSpec, Objset, Tx, zap};
use ondisk::object_type::ObjectType;
use ondisk::objset::OBJSET_PROJECTQUOTA_COMPLETE;
use ondisk::version;
use ondisk::zpl::{MASTER_NODE_OBJ, S_IFDIR, ZPL_VERSION_SA, aces_to_bytes, master_key, new_pflags, trivial_acl};

use crate::node::{new_file_spec, times};
use crate::types::Case;

/// Owner and mode of the root directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitOwner {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
    /// All its times.
    pub time: WallTime,
}

/// Properties that are fixed at creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsCreateProps {
    /// `NORM_*` flags of the normalisation form (format page 04), 0 for none.
    pub normalization: u64,
    /// How case counts.
    pub casesensitivity: Case,
    /// Whether names must be UTF-8. Normalisation implies it.
    pub utf8only: bool,
    /// ZPL version, 1 to 5; by default the newest that the pool may have.
    pub version: Option<u64>,
    /// Limits of owners without one of their own, in the order of [`master_key::DEFAULT_QUOTAS`];
    /// 0: none.
    pub default_quotas: [u64; 6],
}

impl Default for FsCreateProps {
    fn default() -> FsCreateProps {
        FsCreateProps {
            normalization: 0,
            casesensitivity: Case::Sensitive,
            utf8only: false,
            version: None,
            default_quotas: [0; 6],
        }
    }
}

/// The initialization to pass to the DSL.
pub fn init_fs(owner: InitOwner, props: FsCreateProps) -> dsl::Init {
    Box::new(move |os, tx| Box::pin(fill(os, tx, owner, props)))
}

async fn fill(os: Objset, tx: Rc<Tx>, owner: InitOwner, props: FsCreateProps) -> Result<()> {
    let tx = &*tx;
    let newest = version::zpl_of(os.ctx().features().pool_version);
    let version = props.version.unwrap_or(newest);
    if !(1..=newest).contains(&version) {
        return Err(Error::invalid(format!("file systems have versions 1 to {newest} here, not {version}")));
    }
    let master_spec = ObjSpec::new(ObjectType::MASTER_NODE, 512);
    let master = zap::create_at(&os, ObjectId(MASTER_NODE_OBJ), master_spec, 0, tx).await?;
    let case = match props.casesensitivity {
        Case::Sensitive => 0,
        Case::Insensitive => 1,
        Case::Mixed => 2,
    };
    let utf8only = props.utf8only || props.normalization != 0;
    let put = async |key: &str, value: u64| zap::add_u64(&master, key.as_bytes(), value, tx).await;
    put(master_key::NORMALIZATION, props.normalization).await?;
    put(master_key::UTF8ONLY, u64::from(utf8only)).await?;
    put(master_key::CASESENSITIVITY, case).await?;
    put(master_key::VERSION, version).await?;
    for (key, limit) in master_key::DEFAULT_QUOTAS.into_iter().zip(props.default_quotas).filter(|(_, n)| *n != 0) {
        put(key, limit).await?;
    }

    let has_attrs = version >= ZPL_VERSION_SA;
    let table = match has_attrs {
        true => {
            let sa_master = SaTable::create(&os, tx).await?;
            put(master_key::SA_ATTRS, sa_master.0).await?;
            Some(SaTable::load(&os, sa_master).await?)
        }
        false => None,
    };
    let queue = zap::create(&os, ObjectType::UNLINKED_SET, 0, tx).await?;
    put(master_key::DELETE_QUEUE, queue.object().0).await?;

    let normflags = crate::names::normflags(props.normalization, props.casesensitivity);
    let root = zap::create_spec(&os, new_file_spec(&os, ObjectType::DIRECTORY), normflags, tx).await?;
    let projid = has_attrs && os.flags() & OBJSET_PROJECTQUOTA_COMPLETE != 0;
    let mode = S_IFDIR | u64::from(owner.mode & 0o7777);
    let aces = trivial_acl(mode, true);
    let time = times(owner.time);
    let attrs = ZnodeAttrs {
        mode,
        size: 2,
        generation: tx.txg().0,
        uid: owner.uid.into(),
        gid: owner.gid.into(),
        parent: root.object().0,
        flags: new_pflags(mode, projid, version),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        links: 2,
        dacl_count: aces.len() as u64,
        ..ZnodeAttrs::default()
    };
    match &table {
        Some(table) => {
            let more = NewZnode { aces: &aces_to_bytes(&aces), projid, ..NewZnode::default() };
            SaHandle::create_znode(&root, table, &attrs, more, tx).await?;
        }
        None => SaHandle::create_old(&root, version, (&attrs, &aces), None, tx).await?,
    }
    put(master_key::ROOT, root.object().0).await
}
