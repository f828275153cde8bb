//! `zfs send`: a snapshot as a stream, from the engine to the client.

use base::Result;
use bdev::Bytes;
use dsl::send::{SendOpts, Sink};
use ondisk::stream::RECORD_SIZE;
use rt::LocalBoxFuture;

use crate::engine::PoolEngine;
use crate::request::SentView;
use crate::request::stream::{Chunk, Outlet};

/// Payloads are not copied on their way from the engine.
impl Sink for Outlet {
    fn put(&mut self, record: [u8; RECORD_SIZE], payload: Bytes) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.chunk(Chunk::Own(record.to_vec())).await?;
            if payload.is_empty() { Ok(()) } else { self.chunk(Chunk::Shared(payload)).await }
        })
    }
}

impl PoolEngine {
    /// Sends a snapshot, or what changed in it since its earlier snapshot `from`, to `to`.
    pub(crate) async fn send(
        &self,
        name: &str,
        from: Option<&str>,
        opts: SendOpts,
        mut to: Outlet,
    ) -> Result<SentView> {
        let sent = self.pool.dsl().send(name, from, opts, &mut to).await?;
        Ok(SentView { records: sent.records, bytes: sent.bytes })
    }
}
