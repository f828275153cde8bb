//! The intent log: what synchronous writes are acknowledged by (format page 07, behaviour 3.4).
//!
//! A txg takes seconds to get to disk; whoever calls `fsync` cannot wait that long. So what happens
//! to an object set is also noted in memory, in lists (`itx`), and a commit writes from there what
//! it needs into *log blocks* on disk, each of which names the next. When the txg of a record is on
//! disk the record is forgotten; only after a crash is it read again.
//!
//! Words. A *record* says one operation. A *log block* (lwb) holds records and the pointer of its
//! successor; the *chain* begins in the header of the object set. A *commit* makes durable what one
//! object, or all, went through so far. To *claim* is to take the blocks of a chain into the space
//! maps at import; to *replay* is to do again what the records say.
//!
//! Reading order: [`policy`] (what is decided, and the settings), [`block`] and [`chain`] (blocks
//! on disk), [`log`] (commits), `lwb` (a block's life), [`claim`], [`replay`].

/// Whether a mistake is made on purpose: never, outside of the campaign's build.
#[cfg(feature = "planted-bugs")]
macro_rules! planted {
    ($bug:ident) => {
        $crate::bugs::planted($crate::bugs::Bug::$bug)
    };
}
/// Whether a mistake is made on purpose: never, outside of the campaign's build.
#[cfg(not(feature = "planted-bugs"))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

pub mod block;
#[cfg(feature = "planted-bugs")]
pub mod bugs;
pub mod chain;
pub mod claim;
mod itx;
pub mod log;
mod lwb;
pub mod policy;
pub mod replay;
mod stats;

pub use log::{GetData, StoredBlock, Zilog};
pub use policy::{CommitPolicy, ZilTunables};
pub use stats::ZilStats;
