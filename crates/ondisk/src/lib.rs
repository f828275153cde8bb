//! The on-disk format of OpenZFS: bytes to types and back, without I/O.
//!
//! A block that was read goes through [`byteswap::swap_block`] once if its block pointer marks it
//! big-endian; every parser here assumes little-endian bytes after that, and every builder writes
//! little-endian. All bytes are treated as hostile: parsers give `base::Error` of kind `Corrupt`
//! and never panic, loop without bound, or allocate more than a small multiple of their input.

pub mod blkptr;
pub mod bpobj;
pub mod brt;
pub mod bytes;
pub mod byteswap;
pub mod ddt;
pub mod dnode;
pub mod dsl;
pub mod feature;
pub mod gang;
pub mod history;
pub mod indirect;
pub mod l2arc;
pub mod label;
pub mod nvlist;
pub mod object_type;
pub mod objset;
pub mod redact;
pub mod sa;
pub mod scan;
pub mod space_map;
pub mod stream;
pub mod uberblock;
pub mod vdev_config;
pub mod version;
pub mod zap;
pub mod zil;
pub mod zil_record;
pub mod zpl;
