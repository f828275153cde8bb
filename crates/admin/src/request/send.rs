//! Requests about sending snapshots.

use base::Result;
use dsl::send::{PackageOpts, SendOpts};
use ondisk::stream::Token;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Direction, Identity, Kind, Need, Request, Rights, pool_part};

pub(super) const KINDS: &[Kind] = &[Kind::of::<SendStream>(), Kind::of::<SendSize>()];

/// What is sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SendItem {
    /// A snapshot, or a file system as it is now.
    Snapshot {
        /// Its full name.
        name: String,
        /// The snapshot that the receiver has, or a bookmark of it.
        from: Option<String>,
        /// The redaction bookmark whose blocks are left out.
        #[serde(default)]
        redact: Option<String>,
    },
    /// Several snapshots, or one with properties or holds.
    Package {
        /// The last snapshot.
        name: String,
        /// The snapshot that the receiver has; a bookmark for a single one.
        from: Option<String>,
        /// What the package has.
        letters: PackageLetters,
        /// The redaction bookmark by which a single stream is sent.
        #[serde(default)]
        redact: Option<String>,
    },
    /// The rest of a stream whose receive was interrupted, by its token.
    Token(String),
    /// What an interrupted receive left in this file system.
    Saved(String),
}

/// The letters of packages.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PackageLetters {
    /// `-R`: all snapshots of the file system and of those below.
    pub replicate: bool,
    /// `-I`: the snapshots between as well.
    pub all: bool,
    /// `-p`: properties.
    pub props: bool,
    /// `-b`: properties as they were received.
    pub backup: bool,
    /// `-h`: holds.
    pub holds: bool,
    /// `-s`: file systems without the snapshot are left out.
    pub skip_missing: bool,
    /// `-X`: these are left out, with what is below them.
    pub exclude: Vec<String>,
}

/// What is sent, and how.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendWhat {
    /// What.
    pub item: SendItem,
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

    /// What the letters mean for a package.
    pub(crate) fn package_opts(&self, letters: &PackageLetters) -> PackageOpts {
        let PackageLetters { replicate, all, props, backup, holds, skip_missing, exclude } = letters.clone();
        PackageOpts { replicate, all, props, backup, holds, skip_missing, raw: self.raw, exclude }
    }

    /// The permissions that it needs.
    fn needs(&self) -> Vec<Need> {
        let name = match &self.item {
            SendItem::Snapshot { name, .. } | SendItem::Package { name, .. } | SendItem::Saved(name) => name.clone(),
            SendItem::Token(text) => return vec![Need::SendByToken(text.clone(), self.opts())],
        };
        let below = matches!(&self.item, SendItem::Package { letters, .. } if letters.replicate);
        vec![Need::Send { name, raw: self.raw, below }]
    }

    /// The pool that it is about. Error: `Invalid` for a damaged token.
    fn pool(&self) -> Result<String> {
        match &self.item {
            SendItem::Snapshot { name, .. } | SendItem::Package { name, .. } | SendItem::Saved(name) => {
                Ok(pool_part(name).to_string())
            }
            SendItem::Token(text) => {
                let token = Token::parse(text).map_err(|e| e.at("cannot resume send"))?;
                Ok(pool_part(&token.to_name).to_string())
            }
        }
    }
}

/// `zfs send`: a snapshot, what changed since an earlier one, or several of these, as a stream. The
/// stream of the request is the send stream; an error after its first byte leaves it without its
/// end, by which a receiver knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendStream(pub SendWhat);

/// What was sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SentView {
    /// Records.
    pub records: u64,
    /// Bytes.
    pub bytes: u64,
    /// Warnings.
    pub notes: Vec<String>,
    /// A file system could not be sent, which the warnings say; the others were.
    pub incomplete: bool,
}

impl Request for SendStream {
    const NAME: &'static str = "SendStream";
    const TITLE: &'static str = "zfs send";
    const RIGHTS: Rights = Rights::Delegable;
    const STREAM: Option<Direction> = Some(Direction::ToClient);
    type Reply = SentView;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        self.0.needs()
    }
    fn run(self, cx: &Cx<'_>) -> Result<SentView> {
        let pool = self.0.pool()?;
        cx.report_on_pool(&pool, move |e, to| async move { e.send(&self.0, to).await })
    }
}

/// `zfs send -n` and `-v`: what will be sent, and about how many bytes that is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendSize(pub SendWhat);

/// A stream that will be sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartView {
    /// The snapshot.
    pub name: String,
    /// What it is sent since, as OpenZFS names it: in packages of several by the part after the
    /// `@`.
    pub from: Option<String>,
    /// About how many bytes.
    pub bytes: u64,
}

/// What will be sent.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct SendPlan {
    /// The streams, in order.
    pub parts: Vec<PartView>,
    /// What the token says, as a text of several lines.
    pub token: Option<String>,
    /// What is of interest with `-v`.
    pub asides: Vec<String>,
    /// Warnings.
    pub notes: Vec<String>,
    /// A file system cannot be sent, which the warnings say; the others can.
    pub incomplete: bool,
}

impl Request for SendSize {
    const NAME: &'static str = "SendSize";
    const TITLE: &'static str = "zfs send -n";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = SendPlan;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        self.0.needs()
    }
    fn run(self, cx: &Cx<'_>) -> Result<SendPlan> {
        let pool = self.0.pool()?;
        cx.on_pool(&pool, move |e| async move { e.send_plan(&self.0).await })
    }
}
