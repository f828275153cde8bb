//! Power cuts while a stream is received, and while a receive is rolled back.
//!
//! Some streams of a random history are received; the next one on disks that are logged, in one of
//! these ways ([`Ends`]): to its end; up to a part, after which what came is rolled back, kept for
//! resuming, or kept and then aborted. For each completion the disks are put together as a power
//! cut at that moment may leave them. Then the snapshot is there with all that was sent, or not at
//! all; it is there if the receive had ended well; what is kept of a part is hidden and has
//! a token; and what was received before is still there. Now and then the stream is received again,
//! and the devices go to the checker.

use std::cell::Cell;
use std::rc::Rc;

use base::Nanos;
use sim::{DiskImage, DiskLog, Rng};
use spa::Pool;

use super::{
    Feed, Sender, Sent, change_files, difference, is_read, layout_of, objects_of, receive, say, token_of, within,
};
use crate::Check;
use crate::cuts::{completions, images_at};
use crate::lab::{Lab, Layout};
use crate::snaps;

/// Operations on the pool that sends.
const OPS: u64 = 25;
/// Streams that are received before, at most.
const BEFORE: u64 = 6;
/// Of the cuts every so many is gone on from.
const GONE_ON: u64 = 25;

/// How the receive that is cut ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    /// All of the stream comes.
    Whole,
    /// A part comes, and is rolled back.
    RolledBack,
    /// A part comes, and is kept.
    Kept,
    /// A part comes, is kept, and aborted.
    Aborted,
}

/// A receive that was recorded.
struct Recorded<'a> {
    before: &'a [Sent],
    sent: &'a Sent,
    ends: Ends,
    resumable: bool,
    /// The moment from which on the snapshot must be there.
    acked: Option<u64>,
    layout: Layout,
}

/// Receives a stream as `ends` says; true if it is there.
async fn receive_so(pool: &Pool, sent: &Sent, ends: Ends, resumable: bool, half: usize) -> base::Result<bool> {
    let whole = ends == Ends::Whole;
    let mut feed = Feed::upto(&sent.stream, if whole { sent.stream.len() } else { half });
    let got = receive(pool, &sent.target, &mut feed, sent.opts(resumable)).await;
    if whole {
        return got.map(|()| true);
    }
    if got.is_ok() {
        return Err(base::Error::corrupt("a part of the stream was taken for all of it"));
    }
    if ends == Ends::Aborted && token_of(pool, sent.fs()).await?.is_some() {
        pool.dsl().abort_receive(sent.fs()).await?;
    }
    Ok(false)
}

impl Recorded<'_> {
    /// Whether a pool holds the snapshot; errors: it holds something else than it may.
    async fn seen(&self, pool: &Pool, moment: u64) -> Check<bool> {
        for earlier in self.before {
            let found = pool.dsl().find_snapshot(&earlier.target).await.map_err(say)?;
            if found.phys().guid != earlier.guid.0 {
                return Err(format!("'{}', received before, has another guid", earlier.target));
            }
        }
        let Ok(snap) = pool.dsl().find_snapshot(&self.sent.target).await else {
            if self.acked.is_some_and(|at| at <= moment) {
                return Err("it was received, and is gone".into());
            }
            let is_kept = token_of(pool, self.sent.fs()).await.map_err(say)?.is_some();
            let is_hidden = pool.dsl().all().iter().any(|d| d.is_partial());
            if is_hidden != is_kept || (is_kept && !self.resumable) {
                return Err(format!("something is left: {is_hidden}, with a token: {is_kept}"));
            }
            return Ok(false);
        };
        if self.ends != Ends::Whole {
            return Err("a part of it is seen".into());
        }
        if snap.phys().guid != self.sent.guid.0 {
            return Err("it has another guid".into());
        }
        match difference(&self.sent.objects, &objects_of(&snap).await.map_err(say)?) {
            Some(what) => Err(what),
            None => Ok(true),
        }
    }

    /// Imports the disks of a cut, and judges them; `goes_on`: receives the stream again.
    fn verify(&self, images: Vec<DiskImage>, (cut_seed, moment): (u64, u64), goes_on: bool) -> Check {
        let lab = Lab::with_images(cut_seed, images, true);
        within(&lab, async {
            let pool = lab.import(false, self.layout.opts()).await?;
            let judged = self.judge(&pool, moment, goes_on).await;
            if judged.is_ok() && goes_on {
                pool.export().await?;
            }
            Ok(judged)
        })??;
        if goes_on && is_read(&self.layout) {
            // A file system that is destroyed in the background may be freed in part.
            snaps::check_partly(&lab.images())?;
        }
        Ok(())
    }

    async fn judge(&self, pool: &Pool, moment: u64, goes_on: bool) -> Check {
        if self.seen(pool, moment).await? || !goes_on {
            return Ok(());
        }
        if pool.dsl().all().iter().any(|d| d.is_partial()) {
            pool.dsl().abort_receive(self.sent.fs()).await.map_err(say)?;
        }
        receive_so(pool, self.sent, Ends::Whole, false, 0).await.map_err(say)?;
        let snap = pool.dsl().find_snapshot(&self.sent.target).await.map_err(say)?;
        let there = objects_of(&snap).await.map_err(say)?;
        difference(&self.sent.objects, &there).map_or(Ok(()), Err)
    }
}

/// One seed: the number of cuts.
pub fn cuts(seed: u64, every: usize) -> Check<u64> {
    let (images, from_layout) = snaps::images_after(seed, OPS, true)?;
    let from = Lab::with_images(seed, images, true);
    let mut rng = Rng::stream(seed, 0x4ecc);
    let all = within(&from, async {
        let pool = from.import(false, from_layout.opts()).await?;
        change_files(&pool, &mut rng).await?;
        let mut sender = Sender { pool, went: Default::default(), sent: Vec::new() };
        sender.send_all(&mut rng).await?;
        let Sender { pool, sent, .. } = sender;
        pool.export().await?;
        Ok(sent)
    })?;
    let at = rng.below((all.len() as u64).min(BEFORE + 1)) as usize;
    let Some((before, [sent, ..])) = all.split_at_checked(at) else { return Ok(0) };
    let ends = [Ends::Whole, Ends::Whole, Ends::RolledBack, Ends::Kept, Ends::Aborted][rng.below(5) as usize];
    let resumable = match ends {
        Ends::Whole => rng.percent(50),
        _ => ends != Ends::RolledBack,
    };
    let half = 1 + rng.below(sent.stream.len() as u64 - 1) as usize;
    let layout = layout_of(&mut rng);
    let to = Lab::new(seed ^ 0xfeed, &layout);
    let acked: Rc<Cell<Option<u64>>> = Rc::default();
    within(&to, async {
        let pool = to.create(&layout, Vec::new()).await?;
        for earlier in before {
            receive_so(&pool, earlier, Ends::Whole, false, 0).await?;
        }
        to.start_logs(&pool).await.map_err(base::Error::invalid)?;
        if receive_so(&pool, sent, ends, resumable, half).await? {
            acked.set(Some(to.sim.io_seq()));
        }
        // What was rolled back is freed in the background.
        to.sim.rt().sleep(Nanos::from_secs(12)).await;
        Ok(())
    })?;
    let logs: Vec<DiskLog> = to.disks.iter().filter_map(|d| d.take_log()).collect();
    to.sim.crash();
    std::mem::forget(to);
    let recorded = Recorded { before, sent, ends, resumable, acked: acked.get(), layout };
    let moments = completions(&logs);
    let mut replays: Vec<_> = logs.iter().map(DiskLog::replay).collect();
    let mut count = 0;
    for moment in moments.into_iter().step_by(every) {
        let cut_seed = seed.wrapping_mul(1_000_003).wrapping_add(moment);
        let images = images_at(&mut replays, moment, cut_seed);
        let goes_on = Rng::stream(cut_seed, 0x60).one_in(GONE_ON);
        recorded
            .verify(images, (cut_seed, moment), goes_on)
            .map_err(|e| format!("{} as {} ({ends:?}), cut at {moment}: {e}", sent.name, sent.target))?;
        count += 1;
    }
    Ok(count)
}
