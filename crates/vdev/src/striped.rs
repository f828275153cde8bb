//! Blocks with parity: reads use as few columns as possible, writes all of them.
//!
//! A read takes only the data columns while all are available. Columns of children that are
//! offline, stale for the block's birth, or failed, are reconstructed from parity. The caller
//! verifies the checksum; if it is wrong, [`crate::arbitrate`] tries all combinations.
//!
//! CPU work ([`Assembly`], [`Parity`]) is spent within a turn of the engine's thread, or goes to
//! the CPU pool if large. Queueing a write does not wait: if the turn has no room for the parity, a
//! task of its own computes it and queues the columns.

use base::{Error, ErrorKind, Nanos, Result};
use bdev::{Buf, Bytes};
use codec::raidz;
use rt::join::join_all;
use rt::{Place, Rt, cost, place_of};

use crate::done::WriteDone;
use crate::geometry::{Column, Stripe};
use crate::leaf::WriteAs;
use crate::node::{Io, ReplicaState, VdevKind};
use crate::policy::Prio;

/// The data columns of a stripe in `block`.
fn split<'a>(stripe: &Stripe, block: &'a mut [u8]) -> Vec<&'a mut [u8]> {
    let mut rest = block;
    let mut at = 0;
    stripe
        .data()
        .iter()
        .map(|c| {
            if c.len == 0 {
                return <&mut [u8]>::default();
            }
            let (_, tail) = std::mem::take(&mut rest).split_at_mut((c.from - at) as usize);
            let (own, tail) = tail.split_at_mut(c.len as usize);
            (rest, at) = (tail, c.from + c.len);
            own
        })
        .collect()
}

/// Bytes of data in a stripe.
fn data_len(stripe: &Stripe) -> u64 {
    stripe.data().iter().map(|c| c.len).sum()
}

/// Data columns of a stripe to reconstruct from parity.
pub(crate) struct Rebuild {
    /// The stripe.
    pub stripe: Stripe,
    /// Start of its data in the block.
    pub base: u64,
    /// Indexes of the columns, among the data columns.
    pub lost: Vec<usize>,
    /// The parity columns that were read.
    pub parity: Vec<Option<Bytes>>,
}

/// How to assemble a block from columns: the input of a CPU job.
#[derive(Default)]
pub(crate) struct Assembly {
    /// Columns: start in the block, and bytes.
    pub copies: Vec<(usize, Bytes)>,
    /// Reconstructions, which follow the copies.
    pub rebuilds: Vec<Rebuild>,
}

impl Assembly {
    /// CPU time of the work.
    pub fn cost(&self) -> Nanos {
        let copied = self.copies.iter().map(|(_, b)| b.len() as u64).sum();
        let rebuilt = self.rebuilds.iter().map(|r| cost::reconstruction(r.lost.len()).cost(data_len(&r.stripe)));
        rebuilt.fold(cost::COPY.cost(copied), |all, c| all + c)
    }

    /// Copies and reconstructs all columns into `block`.
    pub fn run(&self, block: &mut [u8]) {
        for (at, bytes) in &self.copies {
            block[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        for Rebuild { stripe, base, lost, parity } in &self.rebuilds {
            let known: Vec<Option<&[u8]>> = parity.iter().map(|p| p.as_deref()).collect();
            raidz::reconstruct(&mut split(stripe, &mut block[*base as usize..]), lost, &known);
        }
    }

    /// The block, of `psize` bytes.
    pub async fn block(self, rt: &Rt, psize: u64, prio: Prio) -> Bytes {
        let cost = self.cost();
        let mut out = Buf::for_overwrite(psize as usize);
        let job = move || {
            self.run(&mut out);
            (out, self)
        };
        // Drop the columns on this thread, whose free lists own their memory.
        let (out, _columns) = rt.cpu_as(prio.cpu_class(), cost, job).await;
        out.freeze()
    }
}

/// The parity columns to compute: the input of a CPU job.
pub(crate) struct Parity {
    /// Stripes, and the start of their data in the block.
    stripes: Vec<(Stripe, u64)>,
    block: Bytes,
    /// Each as long as the longest data column.
    room: Vec<Vec<Buf>>,
}

impl Parity {
    /// The parity of `stripes`, with the start of their data in `block`.
    pub fn new(stripes: Vec<(Stripe, u64)>, block: Bytes) -> Parity {
        let room = stripes
            .iter()
            .map(|(s, _)| (0..s.parity).map(|_| Buf::for_overwrite(s.data_len_max() as usize)).collect())
            .collect();
        Parity { stripes, block, room }
    }

    /// CPU time of the work.
    pub fn cost(&self) -> Nanos {
        let one = |s: &Stripe| match s.parity {
            0 => Nanos(0),
            n => cost::parity(n).cost(data_len(s)),
        };
        self.stripes.iter().fold(Nanos(0), |all, (s, _)| all + one(s))
    }

    /// Returns all columns of each stripe, parity first, and the block.
    pub fn run(self) -> (Vec<(Stripe, Vec<Bytes>)>, Bytes) {
        let Parity { stripes, block, room } = self;
        let all = stripes.into_iter().zip(room).map(|((stripe, base), mut room)| {
            let part = |c: &Column| block.slice((base + c.from) as usize..(base + c.from + c.len) as usize);
            let data: Vec<Bytes> = stripe.data().iter().map(part).collect();
            if !room.is_empty() {
                let slices: Vec<&[u8]> = data.iter().map(|b| &b[..]).collect();
                let mut parity: Vec<&mut [u8]> = room.iter_mut().map(|b| &mut b[..]).collect();
                raidz::generate(&slices, &mut parity);
            }
            let columns = room.into_iter().map(Buf::freeze).chain(data).collect();
            (stripe, columns)
        });
        let all = all.collect();
        (all, block)
    }
}

/// Reads a block. The flag: a device failed to read its part.
pub(crate) async fn read(top: &VdevKind, stripes: &[Stripe], psize: u64, io: Io<'_>) -> Result<(Bytes, bool)> {
    // A single data column is the whole block.
    if let [stripe] = stripes
        && let [only] = stripe.data()
        && top.column_node(only).replica_state(io, only.offset) == ReplicaState::Current
        && let Ok((data, failed)) = top.column_node(only).read_at(io, only.offset, only.len).await
    {
        return Ok((data, failed));
    }
    let mut parts = Assembly::default();
    let mut failed = false;
    // Queue the reads of all columns before waiting for the first.
    let mut reads = Vec::new();
    for stripe in stripes {
        for c in stripe.data() {
            let node = top.column_node(c);
            let wanted = c.len > 0 && node.replica_state(io, c.offset) == ReplicaState::Current;
            reads.push(async move {
                match wanted {
                    true => Some(node.read_at(io, c.offset, c.len).await),
                    false => None,
                }
            });
        }
    }
    let mut results = join_all(reads).await.into_iter();
    for stripe in stripes {
        let mut lost = Vec::new();
        for (i, c) in stripe.data().iter().enumerate() {
            match results.next().flatten() {
                Some(Ok((data, again))) => {
                    failed |= again;
                    parts.copies.push((c.from as usize, data));
                }
                Some(Err(e)) if e.kind() == ErrorKind::Interrupted => return Err(e),
                Some(Err(_)) => {
                    failed = true;
                    lost.push(i);
                }
                None if c.len > 0 => lost.push(i),
                None => {}
            }
        }
        if !lost.is_empty() {
            rebuild(top, stripe, &mut parts, lost, io, &mut failed).await?;
        }
    }
    let Some(rt) = top.rt() else {
        return Err(Error::new(ErrorKind::Io, "none of its devices is there"));
    };
    Ok((parts.block(rt, psize, io.prio).await, failed))
}

/// Adds the reconstruction of the data columns `lost` of a stripe from parity; if there is too
/// little parity, stale children are read too.
async fn rebuild(
    top: &VdevKind,
    stripe: &Stripe,
    parts: &mut Assembly,
    mut lost: Vec<usize>,
    io: Io<'_>,
    failed: &mut bool,
) -> Result<()> {
    let len = stripe.data_len_max();
    let mut parity: Vec<Option<Bytes>> = vec![None; stripe.parity];
    let mut stale = Vec::new();
    let mut have = 0;
    for (y, c) in stripe.columns[..stripe.parity].iter().enumerate() {
        if have == lost.len() {
            break;
        }
        let node = top.column_node(c);
        match node.replica_state(io, c.offset) {
            ReplicaState::Current => match node.read_at(io, c.offset, len).await {
                Ok((data, again)) => {
                    *failed |= again;
                    parity[y] = Some(data);
                    have += 1;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
                Err(_) => *failed = true,
            },
            ReplicaState::Stale => stale.push(y),
            ReplicaState::Offline => {}
        }
    }
    // The last resort: stale children may have the block; the checksum decides.
    let mut i = 0;
    while have < lost.len() && i < lost.len() {
        let c = stripe.data()[lost[i]];
        let node = top.column_node(&c);
        if node.replica_state(io, c.offset) == ReplicaState::Stale
            && let Ok((data, _)) = node.read_at(io, c.offset, c.len).await
        {
            parts.copies.push((c.from as usize, data));
            lost.remove(i);
        } else {
            i += 1;
        }
    }
    for y in stale {
        let c: Column = stripe.columns[y];
        if have < lost.len()
            && let Ok((data, _)) = top.column_node(&c).read_at(io, c.offset, len).await
        {
            parity[y] = Some(data);
            have += 1;
        }
    }
    if have < lost.len() {
        let why = format!("{} of its columns cannot be read and {have} parity columns can", lost.len());
        return Err(Error::new(ErrorKind::Io, why));
    }
    if !lost.is_empty() {
        parts.rebuilds.push(Rebuild { stripe: stripe.clone(), base: 0, lost, parity });
    }
    Ok(())
}

/// Writes a block with its parity, also to the `second` places of its stripes if there are any.
/// Completes when every column has; succeeds if no stripe has more failed columns than parity at
/// either place.
pub(crate) fn write(
    top: &VdevKind,
    stripes: Vec<Stripe>,
    second: Vec<Stripe>,
    data: &Bytes,
    how: WriteAs,
) -> WriteDone {
    let job = Parity::new(stripes.into_iter().map(|s| (s, 0)).collect(), data.clone());
    let cost = job.cost();
    let rt = match top.rt() {
        Some(rt) if place_of(cost) == Place::Pool || !rt.try_spend(cost) => rt.clone(),
        _ => return queue(top, job.run().0, &second, how),
    };
    let (done, completer) = WriteDone::pending();
    let (top, rt2) = (top.clone(), rt.clone());
    // Keep a handle so that this thread drops the data last.
    let data = data.clone();
    drop(rt.spawn("parity", async move {
        let (columns, _block) = rt2.cpu_as(how.prio.cpu_class(), cost, move || job.run()).await;
        queue(&top, columns, &second, how).on_done(move |result| completer.complete(result.clone()));
        drop(data);
    }));
    done
}

/// Queues the writes of all columns of some stripes, then those to their second places.
fn queue(top: &VdevKind, stripes: Vec<(Stripe, Vec<Bytes>)>, second: &[Stripe], how: WriteAs) -> WriteDone {
    let mut all = Vec::with_capacity(stripes.len());
    let first = stripes.iter().map(|(stripe, columns)| (stripe, columns));
    let again = second.iter().zip(&stripes).map(|(stripe, (_, columns))| (stripe, columns));
    for (stripe, columns) in first.chain(again) {
        let mut parts = Vec::with_capacity(columns.len());
        let mut failed = 0;
        for (c, bytes) in stripe.columns.iter().zip(columns).filter(|(c, _)| c.size > 0) {
            let pad = c.size as usize - bytes.len();
            match top.column_node(c).write_at(top, c.offset, bytes, pad, how) {
                Some(done) => parts.push(done),
                None => failed += 1,
            }
        }
        if failed > stripe.parity {
            let why = format!("{failed} of the {} devices that a block goes to are not there", stripe.columns.len());
            all.push(WriteDone::ready(Err(Error::new(ErrorKind::Io, why))));
        } else {
            all.push(WriteDone::quorum(parts, stripe.parity - failed));
        }
    }
    WriteDone::join(all)
}
