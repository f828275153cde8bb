//! `zfs send`: snapshots as a stream, from the engine to the client.

use base::Result;
use bdev::Bytes;
use dsl::send::{Found, Sink};
use ondisk::nvlist::NvList;
use ondisk::stream::{RECORD_SIZE, Token};
use rt::LocalBoxFuture;

use crate::engine::PoolEngine;
use crate::request::stream::{Chunk, Outlet};
use crate::request::{PartView, SendItem, SendPlan, SendWhat, SentView, check_not_suspended};

/// Payloads are not copied on their way from the engine.
impl Sink for Outlet {
    fn put(&mut self, record: [u8; RECORD_SIZE], payload: Bytes) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.chunks([Chunk::Own(record.to_vec()), Chunk::Shared(payload)]))
    }
}

impl PoolEngine {
    /// Sends what is asked for.
    pub(crate) async fn send(&self, what: &SendWhat, mut to: Outlet) -> Result<SentView> {
        let (dsl, opts) = (self.pool.dsl(), what.opts());
        let (mut notes, mut incomplete) = (Vec::new(), false);
        let sent = match &what.item {
            SendItem::Snapshot { name, from, .. } if !name.contains('@') => {
                if dsl.is_writable() {
                    check_not_suspended(self)?;
                }
                dsl.send_head(name, from.as_deref(), opts, &mut to).await?
            }
            SendItem::Snapshot { name, from, redact } => {
                dsl.send_redacted(name, from.as_deref(), redact.as_deref(), opts, &mut to).await?
            }
            SendItem::Package { name, from, letters, redact } => {
                let mut package = dsl.package(name, from.as_deref(), &what.package_opts(letters)).await?;
                package.redact = redact.clone();
                notes.extend(package.notes.iter().filter(|n| !n.verbose).map(|n| n.text.clone()));
                incomplete = package.incomplete;
                dsl.send_package(&package, opts, &mut to).await?
            }
            SendItem::Token(_) | SendItem::Saved(_) => {
                let (found, _) = self.found(what).await?;
                dsl.send_found(&found, &mut to).await?
            }
        };
        Ok(SentView { records: sent.records, bytes: sent.bytes, notes, incomplete })
    }

    /// What [`PoolEngine::send`] would send.
    pub(crate) async fn send_plan(&self, what: &SendWhat) -> Result<SendPlan> {
        let (dsl, opts) = (self.pool.dsl(), what.opts());
        let mut out = SendPlan::default();
        match &what.item {
            SendItem::Snapshot { name, from, redact } => {
                let bytes = dsl.send_size(name, from.as_deref(), redact.as_deref(), opts).await?;
                out.parts.push(PartView { name: name.clone(), from: from.clone(), bytes });
            }
            SendItem::Package { name, from, letters, redact } => {
                let mut package = dsl.package(name, from.as_deref(), &what.package_opts(letters)).await?;
                package.redact = redact.clone();
                let sizes = dsl.package_sizes(&package, opts).await?;
                for (step, bytes) in package.steps.iter().zip(sizes) {
                    let from = if package.several { step.since.clone() } else { step.from.clone() };
                    out.parts.push(PartView { name: step.name.clone(), from, bytes });
                }
                out.incomplete = package.incomplete;
                for note in package.notes {
                    if note.verbose { out.asides.push(note.text) } else { out.notes.push(note.text) }
                }
            }
            SendItem::Token(_) | SendItem::Saved(_) => {
                let (found, contents) = self.found(what).await?;
                let bytes = dsl.found_size(&found).await?;
                out.parts.push(PartView { name: found.name.clone(), from: found.from.clone(), bytes });
                out.token = Some(contents.tabbed().to_string());
            }
        }
        Ok(out)
    }

    /// The stream that a token or a saved state means, and what it says.
    async fn found(&self, what: &SendWhat) -> Result<(Found, NvList)> {
        let dsl = self.pool.dsl();
        let SendItem::Saved(name) = &what.item else {
            let SendItem::Token(text) = &what.item else {
                return Err(base::Error::invalid("a snapshot is sent by its name"));
            };
            let token = Token::parse(text).map_err(|e| e.at("cannot resume send"))?;
            return Ok((dsl.find_token(&token, what.opts()).await?, Token::list_of(text)?));
        };
        let (found, token) = dsl.find_saved(name).await?;
        // All of it is sent, from its present place.
        let mut list = token.to_list();
        for key in ["object", "offset", "bytes", "toname"] {
            list.remove(key);
        }
        for key in ["object", "offset", "bytes"] {
            list.put_u64(key, 0);
        }
        list.put_str("toname", name.as_str());
        Ok((found, list))
    }
}
