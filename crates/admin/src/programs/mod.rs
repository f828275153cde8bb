//! Channel programs (`zfs program`): Lua on the thread of the request, its calls on the engine.
//!
//! **Normal path.** The thread of the request runs the program ([`program::run`]). The engine
//! serves its calls, which come over a [`desk`]: for a program that may change the pool within one
//! sync task ([`dsl::DslPool::sync_task`]), so that all it reads is one state and all it changes is
//! one txg; with `-n` from the open txg, where only the checks of changes are made. `calls` does
//! the changes and lists, `props` the properties.
//!
//! **Bounds.** The txg waits for the program, so there is a limit on the time that all of it may
//! take ([`SPAN`]) beside that on its instructions: a function of Lua may take long without one.
//! Behind that limit the txg goes on, and the next call of the program ends it.

mod calls;
pub(crate) mod desk;
mod props;

use std::rc::Rc;

use base::{Nanos, Result};
use dmu::Tx;

use crate::engine::PoolEngine;
use desk::Counter;

/// The longest time that a txg waits for a program: more than the limit on instructions takes.
const SPAN: Nanos = Nanos(60_000_000_000);

impl PoolEngine {
    /// Serves the calls of a program until it ends. `changes`: it may change the pool.
    pub(crate) async fn program(self: Rc<Self>, counter: Counter, changes: bool) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        if !changes {
            let tx = Rc::new(Tx::syncing(self.pool.txg().open_txg()));
            self.serve_calls(&counter, false, &tx).await;
            return Ok(());
        }
        let engine = self.clone();
        let served = self.pool.dsl().sync_task(move |_, tx| {
            Box::pin(async move {
                engine.serve_calls(&counter, true, &tx).await;
                Ok(())
            })
        });
        served.await?;
        self.show_volumes().await;
        Ok(())
    }

    async fn serve_calls(self: &Rc<Self>, counter: &Counter, changes: bool, tx: &Rc<Tx>) {
        let rt = self.pool.rt();
        let served = async {
            while let Some(asked) = counter.next().await {
                rt.spend(rt::cost::DMU_OBJECT).await;
                counter.answer(self.answer(asked, changes, tx).await);
            }
        };
        // A call that has begun is done to its end: a change that is left in the middle is none.
        let mut served = std::pin::pin!(served);
        let late = rt.timeout(SPAN, served.as_mut()).await.is_none();
        if late {
            counter.close();
            served.await;
        }
    }
}
