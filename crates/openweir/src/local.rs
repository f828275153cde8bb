//! The inside: for code that lives on the engine's thread.
//!
//! Everything of the engine is `!Send` and stays on its thread. [`crate::Engine::local`] takes a
//! closure there; it gets an [`Inside`], from which it reaches the engine's own types, and gives a
//! future that runs as a task beside all others. Only its result, which is `Send`, comes back.
//!
//! ```
//! # use openweir::{Engine, CreateOptions};
//! # fn main() -> openweir::Result<()> {
//! let engine = Engine::start()?;
//! let disk = engine.memory_device(128 << 20).wait()?;
//! let pool = engine.create_pool("tank", disk, CreateOptions::default()).wait()?;
//! let objects = engine
//!     .local(|inside| async move {
//!         let pool = inside.pool("tank")?;
//!         let head = pool.dsl().find("tank")?;
//!         Ok(head.objset().await?.used_objects())
//!     })
//!     .wait()?;
//! assert!(objects > 0);
//! # pool.export().wait()
//! # }
//! ```
//!
//! Rules there: never block the thread (no [`crate::Call::wait`], no lock that another thread holds
//! for long): all pools of the engine stand still meanwhile; hold no `RefCell` borrow across an
//! await; take the engine's locks in their order. A panic there ends the engine, with everything on
//! it. This is the engine's own interface, which changes with every release and has no promise of
//! compatibility; the rest of the crate has.

use std::rc::Rc;

pub use base;
pub use bdev;
pub use dmu;
pub use dsl;
pub use ondisk;
pub use rt;
pub use spa;
pub use zpl;

use crate::error::Result;

/// The state on the engine's thread.
pub struct Inside(pub(crate) Rc<crate::inside::Inside>);

impl Inside {
    /// The engine's world: clock, tasks, timers.
    pub fn rt(&self) -> &rt::Rt {
        self.0.rt()
    }
    /// The open pool of that name.
    pub fn pool(&self, name: &str) -> Result<Rc<spa::Pool>> {
        Ok(self.0.pool_named(name)?.pool.clone())
    }
    /// All open pools, in the order of opening.
    pub fn pools(&self) -> Vec<Rc<spa::Pool>> {
        self.0.pools().iter().map(|p| p.pool.clone()).collect()
    }
    /// The file system that a [`crate::FileSystem`] stands for.
    pub fn filesystem(&self, fs: &crate::FileSystem) -> Result<Rc<zpl::Zfs>> {
        self.0.pool(fs.inner.pool.id())?.fs_state(fs.inner.id)?.zfs()
    }
}
