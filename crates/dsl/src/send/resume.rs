//! Streams for receives that were interrupted (format page 21 section 4).
//!
//! `zfs receive -s` keeps what it has when its stream breaks off, and where that was. As a *token*
//! this goes to the sender, who makes a stream from there on ([`DslPool::find_token`]). What was
//! received can also be sent on as it is ([`DslPool::find_saved`]): that stream has no END, so that
//! its receiver can go on with a token of its own.
//!
//! Tokens name snapshots by guid, since those may have new names by now.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, ResultExt};
use ondisk::stream::{Sent, Token};

use super::tree::Resume;
use super::{Job, Named, SendOpts, Sink, Start};
use crate::dataset::Dataset;
use crate::pool::DslPool;
use crate::redact::same_snaps;

/// Where the errors of tokens come from.
const PLACE: &str = "cannot resume send";

/// What a stream was found to be.
pub struct Found {
    /// The snapshot, or what was received in part.
    pub name: String,
    /// The snapshot or bookmark that it starts from.
    pub from: Option<String>,
    job: Job,
    /// Bytes that a receiver has already.
    received: u64,
}

impl SendOpts {
    /// With what the stream that was interrupted had.
    fn or_token(self, token: &Token) -> SendOpts {
        SendOpts {
            large_blocks: self.large_blocks || token.large_block_ok,
            embedded: self.embedded || token.embed_ok,
            compressed: self.compressed || token.compress_ok,
            raw: self.raw || token.raw_ok,
        }
    }
}

impl DslPool {
    /// Finds what a token means. Errors: `NotFound` if a snapshot, or the redaction bookmark of a
    /// redacted stream, is gone; `Invalid` if that is not complete.
    pub async fn find_token(&self, token: &Token, opts: SendOpts) -> Result<Found> {
        self.found_by_token(token, opts).await.at(|| PLACE)
    }

    async fn found_by_token(&self, token: &Token, opts: SendOpts) -> Result<Found> {
        let ds = self.snapshot_with_guid(token).await?;
        let (from, name) = self.token_start(&ds, token).await?.unzip();
        let redact = self.token_redaction(&ds, token).await?;
        let at = Resume { object: token.object, offset: token.offset };
        let resume = Some(at).filter(|at| at.object.0 != 0 || at.offset != 0);
        let job = Job { resume, redact, ..Job::new(ds.clone(), from, opts.or_token(token)) };
        Ok(Found { name: ds.name(), from: name, job, received: token.bytes })
    }

    /// Finds what an interrupted receive into `name` left, and its token. Errors: `NotFound` if it
    /// left nothing; `Busy` while a receive goes on.
    pub async fn find_saved(&self, name: &str) -> Result<(Found, Token)> {
        let fs = self.find(name)?;
        self.found_in(&fs).await.at(|| format!("cannot send '{name}'"))
    }

    async fn found_in(&self, fs: &Rc<Dataset>) -> Result<(Found, Token)> {
        let name = fs.name();
        let ds = self.receiver_of(fs);
        let token = self.saved(&ds).await?.filter(|token| !token.to_name.is_empty()).ok_or_else(|| {
            let why = "which 'zfs receive -s' leaves when it is interrupted";
            Error::not_found(format!("it has no partially received state, {why}"))
        })?;
        if ds.is_used() {
            return Err(Error::new(ErrorKind::Busy, "target is busy; if a filesystem, it must not be mounted"));
        }
        let (from, from_name) = self.token_start(&ds, &token).await?.unzip();
        // Its snapshots are those of the file system that it will become.
        let from = match from {
            Some(start) => Some(Start { is_clone: !self.is_of(fs, &start).await?, ..start }),
            None => None,
        };
        let phys = ds.phys();
        let named = Named {
            guid: token.to_guid,
            name: token.to_name.clone(),
            own_guid: Guid(phys.guid),
            creation_time: phys.creation_time,
            is_whole: false,
        };
        let job = Job { named: Some(named), ..Job::new(ds, from, SendOpts::default().or_token(&token)) };
        Ok((Found { name, from: from_name, job, received: 0 }, token))
    }

    /// Sends what was found to `sink`. Errors: those of [`DslPool::send`].
    pub async fn send_found(&self, found: &Found, sink: &mut dyn Sink) -> Result<Sent> {
        self.send_job(&found.job, Some(sink)).await.at(|| format!("cannot send '{}'", found.name))
    }

    /// About how many bytes [`DslPool::send_found`] would send.
    pub async fn found_size(&self, found: &Found) -> Result<u64> {
        let size = self.job_size(&found.job).await.at(|| format!("cannot send '{}'", found.name))?;
        Ok(size.saturating_sub(found.received))
    }

    async fn is_of(&self, fs: &Dataset, start: &Start) -> Result<bool> {
        match start.object {
            Some(object) => Ok(self.hold_dataset(object).await?.dir().object == fs.dir().object),
            None => Ok(!start.is_clone),
        }
    }

    /// The snapshot that a token is about: that with its guid which is nearest to where it was.
    async fn snapshot_with_guid(&self, token: &Token) -> Result<Rc<Dataset>> {
        if let Some(snap) = self.snapshot_near(&token.to_name, token.to_guid).await? {
            snap.load_features().await?;
            return Ok(snap);
        }
        let name = &token.to_name;
        Err(match self.find_snapshot(name).await {
            Ok(_) => Error::not_found(format!("'{name}' is no longer the same snapshot used in the initial send")),
            Err(_) => Error::not_found(format!("'{name}' used in the initial send no longer exists")),
        })
    }

    /// The list of the redaction bookmark of `ds` by which the stream was redacted.
    async fn token_redaction(&self, ds: &Rc<Dataset>, token: &Token) -> Result<Option<ObjectId>> {
        let Some(wanted) = &token.redact_snaps else { return Ok(None) };
        // What was received redacted is sent so without a bookmark.
        if ds.redaction().is_some_and(|has| same_snaps(&has, wanted)) {
            return Ok(None);
        }
        let mut incomplete = false;
        if let Some(head) = ds.dir().head() {
            for mark in self.bookmarks(&head).await?.into_iter().filter(|m| m.guid() == ds.phys().guid) {
                match self.redaction_of(&mark).await? {
                    Some(has) if !same_snaps(&has.snaps, wanted) => {}
                    Some(has) if has.is_complete => return Ok(mark.redaction_obj()),
                    Some(_) => incomplete = true,
                    None => {}
                }
            }
        }
        Err(match incomplete {
            true => Error::invalid("incomplete redaction bookmark provided"),
            false => Error::not_found("no appropriate redaction bookmark exists"),
        })
    }

    /// The start that a token names for a stream of `ds`, and its name. If what the receiver has of
    /// it is redacted, the start is one that says so.
    async fn token_start(&self, ds: &Rc<Dataset>, token: &Token) -> Result<Option<(Start, String)>> {
        let Some(guid) = token.from_guid else { return Ok(None) };
        let fits = |has: Option<Vec<u64>>| match (&token.book_redact_snaps, has) {
            (None, _) => true,
            (Some(wanted), Some(has)) => same_snaps(wanted, &has),
            (Some(_), None) => false,
        };
        let mut at = ds.phys();
        while let Some(older) = self.snapshot_before(ds, &at).await? {
            at = older.phys();
            older.load_features().await?;
            if at.guid == guid.0 && fits(older.redaction()) {
                let head = older.dir().head();
                if let Some(head) = head.filter(|_| older.snapname().is_empty()) {
                    older.set_snapname(&self.name_of_snapshot(&head, older.object).await?);
                }
                return Ok(Some((self.start_at(ds, &older).await?, older.name())));
            }
        }
        for head in ds.dir().head().into_iter().chain(self.all()) {
            for mark in self.bookmarks(&head).await?.into_iter().filter(|b| b.guid() == guid.0) {
                // From a redaction bookmark more is sent, unless the stream is raw.
                let has = self.redaction_of(&mark).await?.map(|r| r.snaps);
                if fits(has.clone()) && (token.book_redact_snaps.is_some() || has.is_none() || token.raw_ok) {
                    let name = format!("{}#{}", head.name(), mark.name);
                    return Ok(Some((self.start_of(ds, &name).await?, name)));
                }
            }
        }
        Err(Error::not_found(format!("incremental source {:#x} no longer exists", guid.0)))
    }
}
