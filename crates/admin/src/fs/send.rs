//! `zfs send`: a snapshot as a stream, from the engine to the client.

use base::Result;
use bdev::Bytes;
use dsl::send::Sink;
use ondisk::stream::{RECORD_SIZE, Token};
use rt::LocalBoxFuture;

use crate::engine::PoolEngine;
use crate::request::stream::{Chunk, Outlet};
use crate::request::{SendWhat, SentView};

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
    /// Sends a snapshot, or what changed in it since an earlier one.
    pub(crate) async fn send(&self, what: &SendWhat, mut to: Outlet) -> Result<SentView> {
        let sent = self.pool.dsl().send(&what.name, what.from.as_deref(), what.opts(), &mut to).await?;
        Ok(SentView { records: sent.records, bytes: sent.bytes })
    }

    /// Sends the rest of a stream.
    pub(crate) async fn send_rest(&self, token: &Token, mut to: Outlet) -> Result<SentView> {
        let sent = self.pool.dsl().send_rest(token, Some(&mut to)).await?;
        Ok(SentView { records: sent.records, bytes: sent.bytes })
    }

    /// How many bytes [`PoolEngine::send_rest`] would send.
    pub(crate) async fn send_rest_size(&self, token: &Token) -> Result<u64> {
        Ok(self.pool.dsl().send_rest(token, None).await?.bytes)
    }

    /// About how many bytes [`PoolEngine::send`] would send.
    pub(crate) async fn send_size(&self, what: &SendWhat) -> Result<u64> {
        self.pool.dsl().send_size(&what.name, what.from.as_deref(), what.opts()).await
    }
}
