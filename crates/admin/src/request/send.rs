//! Requests about sending snapshots.

use base::Result;
use dsl::send::SendOpts;
use ondisk::stream::Token;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Direction, Kind, Request, pool_part};

pub(super) const KINDS: &[Kind] =
    &[Kind::of::<SendStream>(), Kind::of::<SendSize>(), Kind::of::<SendRest>(), Kind::of::<SendRestSize>()];

/// What is sent, and how.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct SendWhat {
    /// The snapshot.
    pub name: String,
    /// The snapshot that the receiver has, or a bookmark of it.
    pub from: Option<String>,
    /// `-L`: blocks above 128 KiB are not cut.
    pub large_blocks: bool,
    /// `-e`: blocks that lie in their pointer are sent so.
    pub embedded: bool,
    /// `-c`: compressed blocks are sent as they are stored.
    pub compressed: bool,
    /// `-w`: all blocks are sent as they are stored.
    pub raw: bool,
}

impl SendWhat {
    pub(crate) fn opts(&self) -> SendOpts {
        SendOpts {
            large_blocks: self.large_blocks,
            embedded: self.embedded,
            compressed: self.compressed,
            raw: self.raw,
        }
    }
}

/// `zfs send`: a snapshot, or what changed since an earlier one, as a stream. The stream of the
/// request is the send stream; an error after its first byte leaves it without its end, by which a
/// receiver knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendStream(pub SendWhat);

/// What was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SentView {
    /// Records.
    pub records: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Request for SendStream {
    const NAME: &'static str = "SendStream";
    const TITLE: &'static str = "zfs send";
    const STREAM: Option<Direction> = Some(Direction::ToClient);
    type Reply = SentView;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<SentView> {
        let pool = pool_part(&self.0.name).to_string();
        cx.report_on_pool(&pool, move |e, to| async move { e.send(&self.0, to).await })
    }
}

/// `zfs send -n` and `-v`: about how many bytes a stream would have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendSize(pub SendWhat);

impl Request for SendSize {
    const NAME: &'static str = "SendSize";
    const TITLE: &'static str = "zfs send -n";
    type Reply = u64;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<u64> {
        let running = cx.pools.pool_of(&self.0.name)?;
        cx.on(&running, move |e| async move { e.send_size(&self.0).await })
    }
}

/// `zfs send -t`: the rest of a stream that broke off at the receiver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendRest {
    /// The receiver's token.
    pub token: String,
}

impl Request for SendRest {
    const NAME: &'static str = "SendRest";
    const TITLE: &'static str = "zfs send -t";
    const STREAM: Option<Direction> = Some(Direction::ToClient);
    type Reply = SentView;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<SentView> {
        let token = Token::parse(&self.token).map_err(|e| e.at("cannot resume send"))?;
        let pool = pool_part(&token.to_name).to_string();
        cx.report_on_pool(&pool, move |e, to| async move { e.send_rest(&token, to).await })
    }
}

/// `zfs send -t` with `-n` or `-v`: how many bytes the rest of a stream has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendRestSize {
    /// The receiver's token.
    pub token: String,
}

impl Request for SendRestSize {
    const NAME: &'static str = "SendRestSize";
    const TITLE: &'static str = "zfs send -n -t";
    type Reply = u64;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<u64> {
        let token = Token::parse(&self.token).map_err(|e| e.at("cannot resume send"))?;
        let running = cx.pools.pool_of(&token.to_name)?;
        cx.on(&running, move |e| async move { e.send_rest_size(&token).await })
    }
}
