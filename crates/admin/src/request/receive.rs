//! Requests about receiving snapshots.

use base::Result;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Direction, Identity, Kind, Need, Request, Rights, Secret, pool_part};

use crate::fs::receive::Receiver;

pub(super) const KINDS: &[Kind] = &[Kind::of::<ReceiveStream>(), Kind::of::<ReceiveAbort>()];

/// How the name of a received snapshot is made of the target and the name in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum Naming {
    /// The target is the file system, or the snapshot.
    #[default]
    Given,
    /// `-d`: all but the name of the pool goes behind the target.
    Prefix,
    /// `-e`: the last part goes behind the target.
    Tail,
}

/// What a stream becomes, and how.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ReceiveWhat {
    /// The target.
    pub target: String,
    /// What of the name in the stream is used.
    pub naming: Naming,
    /// `-F`: a target that exists is rolled back, or replaced.
    pub force: bool,
    /// `-s`: what was received of a stream that breaks off is kept.
    pub resumable: bool,
    /// `-u`: new file systems are not mounted.
    pub no_mount: bool,
    /// `-M`: a target in use is unmounted all the same.
    pub force_unmount: bool,
    /// `-c`: damaged blocks of the snapshot, which is here, are mended.
    #[serde(default)]
    pub heal: bool,
    /// `-n`: the stream is read, and nothing done.
    pub dry_run: bool,
    /// `-h`: holds of the stream are not taken.
    pub no_holds: bool,
    /// `-o origin=`: the snapshot that a new target becomes a clone of.
    pub origin: Option<String>,
    /// `-o`: properties of the target; below it they are inherited.
    pub props: Vec<(String, String)>,
    /// `-x`: properties of the stream that do not count.
    pub exclude: Vec<String>,
    /// The key of a new target, if the properties ask for one.
    #[serde(default)]
    pub key: Option<Secret>,
}

/// `zfs receive`: a stream becomes snapshots. The stream of the request is the send stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceiveStream(pub ReceiveWhat);

/// A snapshot that was received.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceivedView {
    /// The stream was incremental.
    pub incremental: bool,
    /// Its name in the stream.
    pub sent_as: String,
    /// Its name here.
    pub snapshot: String,
    /// It was here before, so that its stream was passed over.
    pub was_here: bool,
    /// Blocks of it that were mended, if that was asked for.
    #[serde(default)]
    pub healed: Option<u64>,
    /// Bytes of its stream.
    pub bytes: u64,
    /// How long it took, in nanoseconds.
    pub nanos: u64,
}

/// The outcome of a receive.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ReceiveView {
    /// The snapshots, in the order in which they came.
    pub snapshots: Vec<ReceivedView>,
    /// What could not be done beside them, such as mounts.
    pub warnings: Vec<String>,
    /// Properties that could not be received, one sentence each: all the same a success.
    #[serde(default)]
    pub refused: Vec<String>,
}

impl Request for ReceiveStream {
    const NAME: &'static str = "ReceiveStream";
    const TITLE: &'static str = "zfs receive";
    const RIGHTS: Rights = Rights::Delegable;
    const STREAM: Option<Direction> = Some(Direction::FromClient);
    type Reply = ReceiveView;
    fn changes(&self) -> Changes {
        if self.0.dry_run { Changes::Nothing } else { Changes::pool_of(&self.0.target) }
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::Receive(self.0.target.clone())]
    }
    fn run(self, cx: &Cx<'_>) -> Result<ReceiveView> {
        let pool = pool_part(&self.0.target).to_string();
        let (maker, limited) = (cx.caller.maker(), cx.caller.limited());
        let mut what = self.0;
        what.no_mount |= maker.leaves_unmounted();
        cx.fill_pool(&pool, move |e, from| async move { e.receive(&what, Receiver { maker, limited }, from).await })
    }
}

/// `zfs receive -A`: gives up an interrupted receive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceiveAbort {
    /// The target.
    pub name: String,
}

impl Request for ReceiveAbort {
    const NAME: &'static str = "ReceiveAbort";
    const TITLE: &'static str = "zfs receive -A";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.name)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::on(&self.name, &["destroy", "mount"])]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.name)?;
        cx.on(&running, move |e| async move { e.receive_abort(&self.name).await })
    }
}
