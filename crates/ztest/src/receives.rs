//! Random histories, sent in random forms and received on other layouts.
//!
//! A pool gets files, snapshots, clones, promotions and rollbacks ([`snaps`]), then files with
//! holes and long attributes. Chains of its snapshots are sent: full, from the snapshot before or
//! from the origin of a clone, with random letters. A pool with another layout receives them; some
//! streams break off, once or several times, and go on by their token or begin again; now and then
//! the power goes while one is received. Each received snapshot must have the guid and the objects
//! of that which was sent. Some snapshots are sent redacted, and what belongs to them
//! ([`redacted`]). Then blocks of them are damaged, and healed from the streams (`heal`). At the
//! end the devices go to the checker and to the judges.

mod cut;
mod heal;
mod redacted;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Guid, Nanos, ObjectId};
use bdev::Bytes;
use codec::checksum::Checksum;
use dsl::Dataset;
use dsl::receive::{Input, RECV, ReceiveOpts, Source};
use dsl::send::{SendOpts, Sink};
use ondisk::stream::{RECORD_SIZE, Token};
use rt::LocalBoxFuture;
use sim::{DiskImage, Rng};
use spa::{GroupKind, Pool};
use zpl::{Cred, Fallocate, MountOpts, SetXattr, Zfs};

use crate::Check;
use crate::lab::{Lab, Layout, POOL, SHAPES};
use crate::snaps;

pub use cut::cuts;

/// Operations on the pool that sends.
const OPS: u64 = 60;
/// Streams of one pool at most.
const STREAMS: usize = 20;
/// Smallest device of a pool that receives, in bytes.
const DEVICE_MIN: u64 = 192 << 20;
/// File systems whose files are changed before they are sent.
const CHANGED: usize = 3;
/// The longest that a part of a seed may take, in virtual time.
const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);
/// Letters of `zfs send`.
const LETTERS: [&str; 6] = ["", "e", "c", "L", "ec", "ecL"];
/// Bytes over which the content of objects is summed up: independent of the size of their blocks.
const PIECE: u64 = 128 << 10;

/// What was received of a seed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Streams.
    pub streams: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Times that one broke off.
    pub stops: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Blocks that were damaged and healed.
    pub healed: u64,
}

/// Collects a stream.
#[derive(Default)]
pub(crate) struct Collect(pub Vec<u8>);

impl Sink for Collect {
    fn put(&mut self, record: [u8; RECORD_SIZE], payload: Bytes) -> LocalBoxFuture<'_, base::Result<()>> {
        self.0.extend(record);
        self.0.extend(&payload[..]);
        Box::pin(async { Ok(()) })
    }
}

/// Gives a stream up to `end`; then it is over, or nothing comes any more.
pub(crate) struct Feed {
    stream: Rc<Vec<u8>>,
    at: usize,
    end: usize,
    /// Set when nothing comes any more; none: the stream is over then.
    stalls: Option<Rc<Cell<bool>>>,
}

impl Feed {
    /// All of a stream.
    pub(crate) fn whole(stream: &[u8]) -> Feed {
        Feed { stream: Rc::new(stream.to_vec()), at: 0, end: stream.len(), stalls: None }
    }

    fn upto(stream: &Rc<Vec<u8>>, end: usize) -> Feed {
        Feed { stream: stream.clone(), at: 0, end, stalls: None }
    }
}

impl Source for Feed {
    fn take(&mut self, len: usize) -> LocalBoxFuture<'_, base::Result<Bytes>> {
        if let Some(stalled) = &self.stalls
            && self.at + len > self.end
        {
            stalled.set(true);
            return Box::pin(std::future::pending());
        }
        let end = self.end.min(self.at + len);
        let part = Bytes::copy_from(&self.stream[self.at..end]);
        self.at = end;
        Box::pin(async move { Ok(part) })
    }
}

/// An object, whatever its blocks are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Object {
    types: (u8, u8),
    bonus: Vec<u8>,
    spill: Option<Vec<u8>>,
    pieces: Vec<(u64, Checksum)>,
}

pub(crate) type Objects = BTreeMap<u64, Object>;

pub(crate) async fn objects_of(snap: &Dataset) -> base::Result<Objects> {
    objects_without(snap, &BTreeSet::new()).await
}

/// The objects of a snapshot with zeros in place of some blocks.
async fn objects_without(snap: &Dataset, gone: &BTreeSet<redacted::Place>) -> base::Result<Objects> {
    let os = snap.objset().await?;
    let mut out = Objects::new();
    let mut from = ObjectId(1);
    while let Some(object) = os.objects(from).await? {
        from = ObjectId(object.0 + 1);
        let dn = os.hold(object).await?;
        let (mut pieces, mut at) = (Vec::new(), 0);
        let size = u64::from(dn.block_size());
        while let Some(data) = dn.next_data(at).await? {
            let piece = data / PIECE;
            let mut bytes = vec![0; PIECE as usize];
            dn.read(piece * PIECE, &mut bytes).await?;
            let (from, to) = (piece * PIECE, (piece + 1) * PIECE);
            for (_, blkid) in gone.range((object.0, from / size)..=(object.0, (to - 1) / size)) {
                let (start, end) = ((blkid * size).max(from), ((blkid + 1) * size).min(to));
                bytes[(start - from) as usize..(end - from) as usize].fill(0);
            }
            if bytes.iter().any(|b| *b != 0) {
                pieces.push((piece, codec::fletcher::fletcher4(&bytes)));
            }
            at = (piece + 1) * PIECE;
        }
        let spill = dn.spill().await?.map(|b| b.to_vec());
        let types = (dn.otype().0, dn.bonus_type().0);
        out.insert(object.0, Object { types, bonus: dn.bonus().to_vec(), spill, pieces });
    }
    Ok(out)
}

/// The first difference between what was sent and what is there.
fn difference(sent: &Objects, there: &Objects) -> Option<String> {
    if let Some((object, _)) = there.iter().find(|(object, _)| !sent.contains_key(object)) {
        return Some(format!("object {object} was not sent"));
    }
    sent.iter().find_map(|(object, a)| {
        let Some(b) = there.get(object) else { return Some(format!("object {object} is missing")) };
        if (a.types, &a.bonus, &a.spill) != (b.types, &b.bonus, &b.spill) {
            return Some(format!("object {object} has other attributes"));
        }
        let other = a.pieces.iter().zip(&b.pieces).find(|(p, q)| p != q);
        let what = || format!("object {object}: {} pieces, {} of them sent", b.pieces.len(), a.pieces.len());
        (a.pieces != b.pieces).then(|| format!("{}, the first other one is {other:?}", what()))
    })
}

/// A snapshot that was sent.
struct Sent {
    name: String,
    guid: Guid,
    from: Option<String>,
    letters: &'static str,
    stream: Rc<Vec<u8>>,
    objects: Objects,
    /// The name that it gets.
    target: String,
    /// The snapshot that it becomes a clone of.
    origin: Option<String>,
    /// Guids of the snapshots that it is redacted by.
    redaction: Option<Vec<u64>>,
}

impl Sent {
    fn fs(&self) -> &str {
        self.target.split('@').next().unwrap_or_default()
    }

    fn opts(&self, resumable: bool) -> ReceiveOpts {
        ReceiveOpts { resumable, origin: self.origin.clone(), ..ReceiveOpts::default() }
    }
}

/// The pool that sends.
struct Sender {
    pool: Rc<Pool>,
    /// Where snapshots went: by their names.
    went: BTreeMap<String, String>,
    sent: Vec<Sent>,
}

/// Makes, cuts and changes files in some file systems, with holes and attributes that need a block
/// of their own; a snapshot after each round.
async fn change_files(pool: &Pool, rng: &mut Rng) -> base::Result<()> {
    let dsl = pool.dsl();
    for head in dsl.all().into_iter().take(CHANGED) {
        let Ok(zfs) = Zfs::open(&head, MountOpts::default()).await else { continue };
        for round in 0..3 {
            for _ in 0..10 {
                let name = format!("changed{}", rng.below(5)).into_bytes();
                let obj = match zfs.lookup(zfs.root(), &name).await {
                    Ok(found) => found.obj,
                    Err(_) => zfs.create(zfs.root(), &name, 0o644, &Cred::default(), true).await?.obj,
                };
                match rng.below(5) {
                    0 => zfs.truncate(obj, rng.below(500_000)).await.map(drop)?,
                    1 => {
                        let (at, len) = (rng.below(300_000), 1 + rng.below(300_000));
                        zfs.fallocate(obj, Fallocate::PunchHole, at, len).await?;
                    }
                    2 => {
                        let value = vec![rng.below(256) as u8; 1 + rng.below(3000) as usize];
                        zfs.setxattr(obj, format!("user.{}", rng.below(3)).as_bytes(), &value, SetXattr::Any).await?;
                    }
                    _ => {
                        let mut data = vec![0; 1 + rng.below(300_000) as usize];
                        rng.fill(&mut data);
                        let at = rng.below(4) * 70_000;
                        zfs.write(obj, at, vec![Bytes::copy_from(&data)], false).await?;
                    }
                }
            }
            pool.sync().await?;
            dsl.snapshot(vec![format!("{}@changed{round}", head.name())], false, Vec::new()).await?;
        }
        zfs.unmount().await?;
    }
    Ok(())
}

impl Sender {
    /// Sends chains of snapshots of all file systems, parents of clones before these.
    async fn send_all(&mut self, rng: &mut Rng) -> base::Result<()> {
        let dsl = self.pool.dsl().clone();
        let mut left: Vec<Rc<Dataset>> = dsl.all();
        let mut fs = 0;
        while !left.is_empty() && self.sent.len() < STREAMS {
            let before = left.len();
            for head in std::mem::take(&mut left) {
                let origin = dsl.origin_of(&head).await?;
                let waits = origin.as_ref().is_some_and(|o| {
                    let of = o.name().split('@').next().unwrap_or_default().to_string();
                    of != head.name() && !self.went.contains_key(&o.name()) && !self.is_done(&of)
                });
                if waits && before > 0 && rng.percent(80) {
                    left.push(head);
                    continue;
                }
                fs += 1;
                let origin = origin.map(|o| o.name()).filter(|o| self.went.contains_key(o));
                self.send_chain(&head, origin, fs, rng).await?;
            }
        }
        Ok(())
    }

    /// Whether snapshots of a file system were sent.
    fn is_done(&self, fs: &str) -> bool {
        self.went.keys().any(|name| name.split('@').next() == Some(fs))
    }

    async fn send_chain(
        &mut self,
        head: &Rc<Dataset>,
        origin: Option<String>,
        fs: usize,
        rng: &mut Rng,
    ) -> base::Result<()> {
        let letters = LETTERS[rng.below(LETTERS.len() as u64) as usize];
        let mut last = origin.filter(|_| rng.percent(80));
        for snap in self.pool.dsl().snapshots(head).await? {
            if rng.percent(25) || self.sent.len() >= STREAMS {
                continue;
            }
            let name = snap.name();
            let has = |letter| letters.contains(letter);
            let opts = SendOpts { large_blocks: has('L'), embedded: has('e'), compressed: has('c'), raw: false };
            let mut sink = Collect::default();
            self.pool.dsl().send(&name, last.as_deref(), opts, &mut sink).await?;
            let target = format!("{POOL}/fs{fs}@{}", snap.snapname());
            self.went.insert(name.clone(), target.clone());
            self.sent.push(Sent {
                guid: Guid(snap.phys().guid),
                from: last.replace(name.clone()),
                name,
                letters,
                stream: Rc::new(sink.0),
                objects: objects_of(&snap).await?,
                target,
                origin: None,
                redaction: None,
            });
        }
        Ok(())
    }

    /// The rest of a stream that broke off.
    async fn rest(&self, token: &str) -> base::Result<Rc<Vec<u8>>> {
        let mut sink = Collect::default();
        let dsl = self.pool.dsl();
        let found = dsl.find_token(&Token::parse(token)?, SendOpts::default()).await?;
        dsl.send_found(&found, &mut sink).await?;
        Ok(Rc::new(sink.0))
    }
}

/// How a stream is received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Whole,
    /// It breaks off so many times and goes on.
    Resumed(u64),
    /// It breaks off, and begins again.
    Again,
    /// The power goes while the rest of the stream is waited for; with or without a token
    /// afterwards.
    Stalled(bool),
    /// The power goes at any moment.
    Cut(bool),
}

impl Way {
    fn draw(rng: &mut Rng) -> Way {
        match rng.below(20) {
            0..7 => Way::Whole,
            7..11 => Way::Resumed(1 + rng.below(3)),
            11..13 => Way::Again,
            13..15 => Way::Stalled(rng.percent(50)),
            _ => Way::Cut(rng.percent(50)),
        }
    }
}

/// The worlds of the two pools.
struct Worlds {
    from: Lab,
    sender: Sender,
    to: Lab,
    layout: Layout,
    /// The pool that receives.
    pool: Option<Rc<Pool>>,
    counts: Counts,
    rng: Rng,
}

fn say(e: base::Error) -> String {
    format!("{e:?}")
}

/// Runs something in a world to its end.
pub(crate) fn within<T>(lab: &Lab, work: impl Future<Output = base::Result<T>>) -> Check<T> {
    let done = lab.sim.try_block_on_for(SPAN_MAX, work);
    done.map_err(|report| format!("stalled: {report}"))?.map_err(say)
}

pub(crate) async fn receive(pool: &Pool, target: &str, feed: &mut Feed, opts: ReceiveOpts) -> base::Result<()> {
    let mut input = Input::new(pool.dsl().ctx().rt().clone(), feed);
    let Some(head) = input.begin().await? else { return Err(base::Error::corrupt("nothing came")) };
    pool.dsl().receive(target, head, opts, &mut input).await.map(drop)
}

/// The token of an interrupted receive into a file system, if there is one.
async fn token_of(pool: &Pool, fs: &str) -> base::Result<Option<String>> {
    match pool.dsl().find(fs) {
        Ok(head) => pool.dsl().resume_token(&head).await,
        Err(_) => Ok(None),
    }
}

impl Worlds {
    fn pool(&self) -> Rc<Pool> {
        self.pool.clone().expect("a pool is made first")
    }

    /// The token of an interrupted receive.
    fn token(&self, fs: &str) -> Check<Option<String>> {
        let pool = self.pool();
        within(&self.to, token_of(&pool, fs))
    }

    /// Receives a stream up to `end`; true if all of it came.
    fn try_receive(&self, sent: &Sent, stream: &Rc<Vec<u8>>, end: usize, resumable: bool) -> Check<bool> {
        let pool = self.pool();
        let mut feed = Feed::upto(stream, end);
        let done = within(&self.to, receive(&pool, &sent.target, &mut feed, sent.opts(resumable)));
        match (done, end == stream.len()) {
            (Ok(()), true) => Ok(true),
            (Ok(()), false) => Err("a part of the stream was taken for all of it".into()),
            (Err(_), false) => Ok(false),
            (Err(e), true) => Err(e),
        }
    }

    /// Receives a stream that breaks off `stops` times.
    fn receive_in_parts(&mut self, sent: &Sent, stops: u64) -> Check {
        let mut left = stops;
        loop {
            let stream = match self.token(sent.fs())? {
                Some(token) => within(&self.from, self.sender.rest(&token))?,
                None => sent.stream.clone(),
            };
            let end = if left > 0 { self.rng.below(stream.len() as u64) as usize } else { stream.len() };
            if self.try_receive(sent, &stream, end, true)? {
                return Ok(());
            }
            left -= 1;
            self.counts.stops += 1;
        }
    }

    /// Receives a stream when the power goes, and what is missing of it afterwards. `half`: it
    /// stops there first; else the power goes at any moment.
    fn receive_cut(&mut self, sent: &Sent, half: Option<usize>, resumable: bool) -> Check {
        let stalled = Rc::new(Cell::new(false));
        let mut feed = Feed::upto(&sent.stream, half.unwrap_or(sent.stream.len()));
        feed.stalls = half.map(|_| stalled.clone());
        let (pool, target, rt) = (self.pool(), sent.target.clone(), self.to.sim.rt());
        let opts = sent.opts(resumable);
        let syncs = self.rng.percent(60);
        // From a microsecond to seconds: every step of a receive is met.
        let after = Nanos((1_000 << self.rng.below(24)) + self.rng.below(1_000_000));
        let done: Rc<Cell<bool>> = Rc::default();
        let ended = done.clone();
        within(&self.to, async {
            let receiving = pool.clone();
            drop(rt.spawn("receive", async move {
                let got = receive(&receiving, &target, &mut feed, opts).await;
                ended.set(got.is_ok());
                got
            }));
            if half.is_none() {
                rt.sleep(after).await;
                return Ok(());
            }
            while !stalled.get() {
                rt.sleep(Nanos::from_us(200)).await;
            }
            if syncs { pool.sync().await } else { Ok(()) }
        })?;
        drop((pool, self.pool.take()));
        self.counts.cuts += 1;
        let seed = self.rng.next_u64();
        let Lab { sim, disks, .. } = std::mem::replace(&mut self.to, Lab::with_images(0, Vec::new(), true));
        self.to = Lab::with_images(seed, sim.power_cut(&disks, seed), true);
        let pool = within(&self.to, self.to.import(false, self.layout.opts()))?;
        self.pool = Some(pool.clone());
        let is_seen = within(&self.to, async { Ok(pool.dsl().find_snapshot(&sent.target).await.is_ok()) })?;
        match (is_seen, done.get()) {
            (true, _) if half.is_some() => return Err("half of it is seen after a power cut".into()),
            (false, true) => return Err("it was received, and is gone after a power cut".into()),
            // Its content is compared next.
            (true, _) => return Ok(()),
            (false, false) => {}
        }
        let is_kept = self.token(sent.fs())?.is_some();
        let is_hidden = pool.dsl().all().iter().any(|d| d.is_partial());
        if is_hidden != is_kept || (is_kept && !resumable) {
            return Err(format!("after a power cut something is left: {is_hidden}, with a token: {is_kept}"));
        }
        self.receive_in_parts(sent, 0)
    }

    fn receive_one(&mut self, sent: &Sent, way: Way) -> Check {
        let half = 1 + self.rng.below(sent.stream.len() as u64 - 1) as usize;
        match way {
            Way::Whole => drop(self.try_receive(sent, &sent.stream, sent.stream.len(), false)?),
            Way::Resumed(stops) => self.receive_in_parts(sent, stops)?,
            Way::Again => {
                self.try_receive(sent, &sent.stream, half, false)?;
                self.counts.stops += 1;
                self.receive_in_parts(sent, 0)?;
            }
            Way::Stalled(resumable) => self.receive_cut(sent, Some(half), resumable)?,
            Way::Cut(resumable) => self.receive_cut(sent, None, resumable)?,
        }
        self.check(sent)
    }

    /// Compares a received snapshot with that which was sent.
    fn check(&mut self, sent: &Sent) -> Check {
        let pool = self.pool();
        let (guid, there, redaction) = within(&self.to, async {
            let snap = pool.dsl().find_snapshot(&sent.target).await?;
            Ok((snap.phys().guid, objects_of(&snap).await?, pool.dsl().dataset_redaction(&snap).await?))
        })?;
        if Guid(guid) != sent.guid {
            return Err("it has another guid".into());
        }
        if redaction != sent.redaction {
            return Err(format!("it is redacted by {redaction:?}, not by {:?}", sent.redaction));
        }
        if let Some(what) = difference(&sent.objects, &there) {
            return Err(what);
        }
        if pool.dsl().all().iter().any(|d| d.name().contains(RECV)) {
            return Err("what received is still there".into());
        }
        self.counts.streams += 1;
        self.counts.bytes += sent.stream.len() as u64;
        Ok(())
    }
}

/// The layout that receives.
fn layout_of(rng: &mut Rng) -> Layout {
    let shape = &SHAPES[rng.below(SHAPES.len() as u64) as usize];
    let mut layout = Layout::draw(rng, 256 << 20).shaped(shape, rng);
    // Room for all streams beside the slop, which is half of a small pool.
    layout.devices.iter_mut().for_each(|size| *size = (*size).max(DEVICE_MIN));
    layout.features = ondisk::feature::features_of_2_1();
    layout
}

/// Whether the checker reads pools of a layout: it does not know draid, zdb does.
fn is_read(layout: &Layout) -> bool {
    !layout.shape.groups.iter().any(|g| matches!(g.0, GroupKind::Draid { .. }))
}

/// One seed: what was received, and the disks that received, exported.
pub fn run_seed(seed: u64) -> Check<(Counts, Vec<DiskImage>)> {
    let (images, from_layout) = snaps::images_after(seed, OPS, true)?;
    let from = Lab::with_images(seed, images, true);
    let mut rng = Rng::stream(seed, 0x4ecf);
    let mut sender = within(&from, async {
        let pool = from.import(false, from_layout.opts()).await?;
        change_files(&pool, &mut rng).await?;
        let mut sender = Sender { pool, went: BTreeMap::new(), sent: Vec::new() };
        sender.send_all(&mut rng).await?;
        sender.send_redacted(&mut rng).await?;
        Ok(sender)
    })?;
    let all = std::mem::take(&mut sender.sent);
    let layout = layout_of(&mut rng);
    let to = Lab::new(seed ^ 0xfeed, &layout);
    let pool = within(&to, to.create(&layout, Vec::new()))?;
    let mut worlds = Worlds { from, sender, to, layout, pool: Some(pool), counts: Counts::default(), rng };
    for sent in &all {
        let way = Way::draw(&mut worlds.rng);
        worlds.receive_one(sent, way).map_err(|e| {
            format!("{} from {:?} with '{}' as {} ({way:?}): {e}", sent.name, sent.from, sent.letters, sent.target)
        })?;
    }
    worlds.heal(&all)?;
    let pool = worlds.pool.take().expect("it is there");
    within(&worlds.to, async { pool.export().await })?;
    within(&worlds.from, async { worlds.sender.pool.export().await })?;
    drop(pool);
    let images = worlds.to.images();
    if is_read(&from_layout) {
        snaps::check_images(&worlds.from.images())?;
    }
    if is_read(&worlds.layout) {
        snaps::check_images(&images)?;
    }
    Ok((worlds.counts, images))
}
