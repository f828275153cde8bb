//! `zfs receive -c`: damaged blocks of snapshots are mended from streams of them (`dsl`'s
//! `receive::heal`), and leave the lists that `zpool status -v` shows.

use base::{Error, Result};
use dsl::receive::{Head, Input};

use crate::engine::PoolEngine;
use crate::fs::receive::name_for;
use crate::request::{Naming, ReceiveView, ReceiveWhat, ReceivedView};

impl PoolEngine {
    /// Mends the snapshots that the stream is of; of a package each that it has.
    pub(super) async fn heal(
        &self,
        what: &ReceiveWhat,
        head: Head,
        input: &mut Input<'_>,
        view: &mut ReceiveView,
    ) -> Result<()> {
        let sent_as = String::from_utf8_lossy(&head.begin.to_name).into_owned();
        let top = sent_as.split('@').next().unwrap_or_default();
        if !head.is_package() {
            return self.heal_part(what, head, top, input, view).await;
        }
        while let Some(head) = input.begin().await.map_err(|e| e.at("cannot receive"))? {
            if head.is_package() {
                return Err(Error::invalid("cannot receive: a package lies within another"));
            }
            self.heal_part(what, head, top, input, view).await?;
        }
        Ok(())
    }

    async fn heal_part(
        &self,
        what: &ReceiveWhat,
        head: Head,
        top: &str,
        input: &mut Input<'_>,
        view: &mut ReceiveView,
    ) -> Result<()> {
        let (since, at) = (self.pool.rt().now(), input.offset());
        let sent_as = String::from_utf8_lossy(&head.begin.to_name).into_owned();
        let snapshot = name_for(Naming::Given, &what.target, &sent_as, top)?;
        let place = || format!("cannot heal '{snapshot}'");
        let mut healed = 0;
        if what.dry_run {
            input.skip().await.map_err(|e| e.at(place()))?;
        } else {
            let healing = self.pool.dsl().begin_heal(&snapshot, &head).await?;
            let done = healing.data(input).await;
            healed = done.blocks.len() as u64;
            if healed > 0 {
                let listed = self.pool.scan().forget_healed(&done.blocks).await;
                view.warnings.extend(listed.err().map(|e| e.to_string()));
            }
            if let Some(e) = done.error {
                return Err(e.at(place()));
            }
        }
        view.snapshots.push(ReceivedView {
            incremental: head.begin.from_guid.0 != 0,
            sent_as,
            snapshot,
            was_here: false,
            healed: Some(healed),
            bytes: input.offset() - at + ondisk::stream::RECORD_SIZE as u64,
            nanos: self.pool.rt().now().0 - since.0,
        });
        Ok(())
    }
}
