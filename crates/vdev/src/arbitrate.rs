//! Combinatorial reconstruction: finds the data that matches the checksum and repairs the rest.
//! Reads use it after a bad plain read, scrub and resilver for every block.
//!
//! 1. Every replica of every column is read, parity too.
//! 2. Candidates are built, the likeliest first: the columns as read, then, for every set of at
//!    most as many columns as there is parity, with that set reconstructed from the others; where
//!    replicas of a column differ, each is tried. The first candidate with the right checksum is
//!    the block. Without a checksum the first candidate is taken.
//!
//!    A block that is older than an expansion of its RAID-Z is many stripes, each with its own
//!    columns on a device that is bad. So sets of devices are tried for all stripes together,
//!    before the combinations: the devices of now, and those of before each expansion, for what
//!    went bad before it was moved (format page 19 section 6).
//! 3. The block determines the bytes of every replica. Replicas that differ, or could not be read,
//!    are rewritten if the caller asks for it.
//!
//! The number of candidates is bounded. CPU work on a candidate (comparing, assembling, its
//! checksum) is spent within a turn, or goes to the CPU pool if large.

use std::rc::Rc;
use std::sync::Arc;

use base::{Error, ErrorKind, Nanos, Result, Txg};
use bdev::{Buf, Bytes};
use rt::join::join_all;
use rt::{Rt, cost};

use crate::done::WriteDone;
use crate::geometry::{Column, Row, Stripe};
use crate::leaf::Leaf;
use crate::node::{Io, ReplicaState, VdevKind};
use crate::policy::Prio;
use crate::striped::{Assembly, Parity, Rebuild};

/// Bound on the candidates of one stripe, and on the candidates tried in all.
const CANDIDATES_MAX: usize = 10_000;
/// Bound on the combinations of differing replicas tried with one set of bad columns.
const VERSIONS_MAX: usize = 64;

/// A check of bytes, on any thread.
type Check = dyn Fn(&[u8]) -> bool + Send + Sync;

/// A test whether bytes are the block, usually by checksum. Cheap to clone.
#[derive(Clone)]
pub struct Verify {
    cost: Nanos,
    matches: Arc<Check>,
}

impl Verify {
    /// Tests with `matches`, which takes `cost` of CPU time and may run on any thread.
    pub fn new(cost: Nanos, matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Verify {
        Verify { cost, matches: Arc::new(matches) }
    }

    /// Whether `bytes` are the block; runs in this turn or in the CPU pool, by cost.
    pub async fn check(&self, rt: &Rt, bytes: &Bytes, prio: Prio) -> bool {
        let (verify, bytes) = (self.clone(), bytes.clone());
        rt.cpu_as(prio.cpu_class(), self.cost, move || (verify.matches)(&bytes)).await
    }
}

/// Called when the block is known: the I/O class of repair writes, or none if the place may have
/// been reallocated.
pub type Repair<'a> = &'a dyn Fn() -> Option<Prio>;

/// A part of a block on one top-level vdev.
pub(crate) struct Part {
    /// The nodes of the vdev.
    pub kind: VdevKind,
    /// Its stripes; their data offsets are relative to `base` in the block.
    pub stripes: Vec<Stripe>,
    /// Their second places, or none ([`crate::width::Widths::second_places`]).
    pub second: Vec<Stripe>,
    /// Start of the part in the block.
    pub base: u64,
}

/// The result of a reconstruction.
#[derive(Debug)]
pub struct Verdict {
    /// The block, or the error.
    pub data: Result<Bytes>,
    /// Replicas that were wrong or could not be read, except stale ones.
    pub bad: u64,
    /// Bytes of repair writes.
    pub repaired: u64,
    /// There is no checksum, and the data is of replicas that may miss it: nothing was repaired.
    pub doubtful: bool,
    /// Resolves when the repair writes complete.
    pub done: WriteDone,
}

struct Replica<'a> {
    leaf: &'a Rc<Leaf>,
    state: ReplicaState,
    content: Option<Bytes>,
    /// The padding of the column is zeros, as it was written.
    padded: bool,
}

struct ColumnState<'a> {
    replicas: Vec<Replica<'a>>,
    /// Distinct contents, those of current replicas first.
    versions: Vec<Bytes>,
    stale: bool,
    /// Bytes of data or parity, without padding.
    len: u64,
}

struct StripeState<'a> {
    stripe: &'a Stripe,
    base: u64,
    columns: Vec<ColumnState<'a>>,
}

/// A recipe for a candidate of one stripe.
struct Choice {
    /// Columns taken for bad, by index in the stripe, ascending.
    bad: Vec<usize>,
    /// Columns of which a version other than the first is used.
    versions: Vec<(usize, usize)>,
}

/// Calls `f` with every set of `k` of `items` until it returns false.
fn combinations(items: &[usize], k: usize, f: &mut dyn FnMut(&[usize]) -> bool) -> bool {
    fn go(items: &[usize], k: usize, chosen: &mut Vec<usize>, f: &mut dyn FnMut(&[usize]) -> bool) -> bool {
        if k == 0 {
            return f(chosen);
        }
        for i in 0..items.len().saturating_sub(k - 1) {
            chosen.push(items[i]);
            let go_on = go(&items[i + 1..], k - 1, chosen, f);
            chosen.pop();
            if !go_on {
                return false;
            }
        }
        true
    }
    go(items, k, &mut Vec::with_capacity(k), f)
}

impl StripeState<'_> {
    /// All candidates, the likeliest first.
    fn choices(&self) -> Vec<Choice> {
        let parity = self.stripe.parity;
        let matters = |i: &usize| self.columns[*i].len > 0;
        let all: Vec<usize> = (0..self.columns.len()).filter(matters).collect();
        let (gone, there): (Vec<usize>, Vec<usize>) = all.iter().partition(|i| self.columns[**i].versions.is_empty());
        let mut out = Vec::new();
        if gone.len() > parity {
            return out;
        }
        let mut add = |more: &[usize]| {
            let mut bad = gone.clone();
            bad.extend_from_slice(more);
            bad.sort_unstable();
            // Without a lost data column the choice of parity does not matter.
            if !more.is_empty() && bad.iter().all(|i| *i < parity) {
                return true;
            }
            self.with_versions(bad, &mut out);
            out.len() < CANDIDATES_MAX
        };
        let stale: Vec<usize> = there.iter().copied().filter(|i| self.columns[*i].stale).collect();
        if !stale.is_empty() && stale.len() + gone.len() <= parity {
            add(&stale);
        }
        for more in 0..=parity - gone.len() {
            if !combinations(&there, more, &mut add) {
                break;
            }
        }
        out
    }

    fn with_versions(&self, bad: Vec<usize>, out: &mut Vec<Choice>) {
        let several: Vec<usize> =
            (0..self.columns.len()).filter(|i| self.columns[*i].versions.len() > 1 && !bad.contains(i)).collect();
        let mut count = vec![0usize; several.len()];
        for _ in 0..VERSIONS_MAX {
            let versions = several.iter().copied().zip(count.iter().copied()).filter(|(_, v)| *v > 0).collect();
            out.push(Choice { bad: bad.clone(), versions });
            // The next number in mixed radix.
            let mut at = 0;
            loop {
                let Some(digit) = count.get_mut(at) else { return };
                *digit += 1;
                if *digit < self.columns[several[at]].versions.len() {
                    break;
                }
                *digit = 0;
                at += 1;
            }
        }
    }

    fn version(&self, choice: &Choice, i: usize) -> &Bytes {
        let v = choice.versions.iter().find(|(c, _)| *c == i).map_or(0, |(_, v)| *v);
        &self.columns[i].versions[v]
    }

    /// Whether a candidate is made of columns of which only replicas are there that may miss it.
    fn uses_stale(&self, choice: &Choice) -> bool {
        let parity = self.stripe.parity;
        let lost = choice.bad.iter().any(|i| *i >= parity);
        (0..self.columns.len()).any(|i| {
            let used = (i >= parity || lost) && !choice.bad.contains(&i);
            used && self.columns[i].len > 0 && self.columns[i].stale
        })
    }

    /// Adds the candidate of this stripe to `parts`, which may be of several stripes.
    fn apply(&self, choice: &Choice, parts: &mut Assembly) {
        let parity = self.stripe.parity;
        let mut lost = Vec::new();
        for (i, c) in self.stripe.data().iter().enumerate() {
            if c.len == 0 {
                continue;
            }
            if choice.bad.contains(&(parity + i)) {
                lost.push(i);
            } else {
                let at = (self.base + c.from) as usize;
                parts.copies.push((at, self.version(choice, parity + i).clone()));
            }
        }
        if !lost.is_empty() {
            let known = |y: usize| (!choice.bad.contains(&y)).then(|| self.version(choice, y).clone());
            let parity = (0..parity).map(known).collect();
            parts.rebuilds.push(Rebuild { stripe: self.stripe.clone(), base: self.base, lost, parity });
        }
    }
}

/// The distinct contents among `all`, in order.
async fn distinct(rt: &Rt, all: Vec<Bytes>, prio: Prio) -> Vec<Bytes> {
    let compared = all.iter().skip(1).map(|b| b.len() as u64).sum();
    let job = move || {
        let mut out: Vec<Bytes> = Vec::with_capacity(1);
        for bytes in &all {
            if !out.contains(bytes) {
                out.push(bytes.clone());
            }
        }
        (out, all)
    };
    let (out, _all) = rt.cpu_as(prio.cpu_class(), cost::COPY.cost(compared), job).await;
    out
}

async fn read_all<'a>(rt: &Rt, parts: &'a [Part], written: Txg, prio: Prio) -> Vec<StripeState<'a>> {
    let mut states = Vec::new();
    let mut reads = Vec::new();
    for part in parts {
        let io = Io { root: &part.kind, written, prio };
        for stripe in &part.stripes {
            let mut columns = Vec::with_capacity(stripe.columns.len());
            for (i, c) in stripe.columns.iter().enumerate() {
                let len = if i < stripe.parity { stripe.data_len_max() } else { c.len };
                // OpenZFS verifies that the padding of columns of RAID-Z and dRAID is zeros, also
                // of columns of padding only.
                let read = if stripe.parity > 0 { c.size } else { len };
                let mut found = Vec::new();
                if read > 0 {
                    part.kind.column_node(c).replicas(io, c.offset, ReplicaState::Current, &mut found, 0);
                }
                let replicas: Vec<Replica> = found
                    .into_iter()
                    .filter(|(_, state)| *state != ReplicaState::Offline)
                    .map(|(leaf, state)| Replica { leaf, state, content: None, padded: true })
                    .collect();
                reads.extend(replicas.iter().map(|r| r.leaf.read_data(c.offset, read, prio)));
                columns.push(ColumnState { replicas, versions: Vec::new(), stale: false, len });
            }
            states.push(StripeState { stripe, base: part.base, columns });
        }
    }
    let mut contents = join_all(reads).await.into_iter();
    for column in states.iter_mut().flat_map(|s| &mut s.columns) {
        for r in &mut column.replicas {
            let Some(read) = contents.next().and_then(Result::ok) else { continue };
            r.padded = read[column.len as usize..].iter().all(|b| *b == 0);
            r.content = Some(read.slice(..column.len as usize));
        }
        if column.len == 0 {
            continue;
        }
        let of = |state: ReplicaState| column.replicas.iter().filter(move |r| r.state == state);
        let all = of(ReplicaState::Current).chain(of(ReplicaState::Stale)).filter_map(|r| r.content.clone());
        column.versions = distinct(rt, all.collect(), prio).await;
        let good = column.replicas.iter().any(|r| r.state == ReplicaState::Current && r.content.is_some());
        column.stale = !good && !column.versions.is_empty();
    }
    states
}

/// Counts to the next combination: the last stripe changes fastest. Returns the first stripe that
/// changed; none at the end.
fn advance(index: &mut [usize], choices: &[Vec<Choice>]) -> Option<usize> {
    for at in (0..index.len()).rev() {
        index[at] += 1;
        if index[at] < choices[at].len() {
            return Some(at);
        }
        index[at] = 0;
    }
    None
}

/// Candidates of all stripes that take sets of devices for bad, as many as there is parity at most.
/// None if there are no several stripes of a RAID-Z.
fn by_device(parts: &[Part], states: &[StripeState<'_>]) -> Vec<Vec<Choice>> {
    let mut out = Vec::new();
    let mut first = 0;
    for part in parts {
        let own = first..first + part.stripes.len();
        first = own.end;
        let VdevKind::Raidz(raidz) = &part.kind else { continue };
        if own.len() < 2 {
            continue;
        }
        let devices = raidz.widths().devices();
        let all: Vec<usize> = (0..devices.len()).collect();
        let mut add = |set: &[usize]| {
            let is_bad = |row: Row, c: &Column| set.iter().any(|i| raidz.widths().is_on(devices[*i], row, c));
            let of = |(n, state): (usize, &StripeState<'_>)| {
                let bad = |i: &usize| {
                    let c = &state.columns[*i];
                    c.len > 0
                        && (c.versions.is_empty()
                            || own.contains(&n) && is_bad(state.stripe.row, &state.stripe.columns[*i]))
                };
                let bad: Vec<usize> = (0..state.columns.len()).filter(bad).collect();
                (bad.len() <= state.stripe.parity).then(|| Choice { bad, versions: Vec::new() })
            };
            out.extend(states.iter().enumerate().map(of).collect::<Option<Vec<Choice>>>());
            out.len() < CANDIDATES_MAX
        };
        for k in 1..=raidz.parity as usize {
            if !combinations(&all, k, &mut add) {
                break;
            }
        }
    }
    out
}

/// The candidate with these choices, from stripe `first` on.
fn assemble<'a>(states: &[StripeState<'_>], choices: impl Iterator<Item = &'a Choice>, first: usize) -> Assembly {
    let mut parts = Assembly::default();
    states.iter().zip(choices).skip(first).for_each(|(state, choice)| state.apply(choice, &mut parts));
    parts
}

/// Assembles a candidate in `out` and tests whether it is the block.
async fn try_candidate(rt: &Rt, parts: Assembly, verify: Option<&Verify>, mut out: Buf, prio: Prio) -> (bool, Buf) {
    let cost = parts.cost() + verify.map_or(Nanos(0), |v| v.cost);
    let verify = verify.cloned();
    let job = move || {
        parts.run(&mut out);
        (verify.is_none_or(|v| (v.matches)(&out)), out, parts)
    };
    // Drop the columns on this thread, whose free lists own their memory.
    let (matches, out, _columns) = rt.cpu_as(prio.cpu_class(), cost, job).await;
    (matches, out)
}

/// Reads all replicas and parity of a block of `psize` bytes, reconstructs it, and repairs. See the
/// module's documentation.
pub(crate) async fn arbitrate(
    parts: &[Part],
    psize: u64,
    written: Txg,
    prio: Prio,
    verify: Option<&Verify>,
    repair: Repair<'_>,
) -> Verdict {
    let fail = |bad: u64, kind: ErrorKind, why: &'static str| Verdict {
        data: Err(Error::new(kind, why)),
        bad,
        repaired: 0,
        doubtful: false,
        done: WriteDone::ready(Ok(())),
    };
    let too_few = || {
        for part in parts {
            part.kind.count_own_error(false);
        }
        fail(0, ErrorKind::Io, "too few of the devices that have it can be read")
    };
    let Some(rt) = parts.iter().find_map(|p| p.kind.rt()) else { return too_few() };
    let states = read_all(rt, parts, written, prio).await;
    let choices: Vec<Vec<Choice>> = states.iter().map(StripeState::choices).collect();
    if choices.iter().any(Vec::is_empty) {
        return too_few();
    }
    let mut out = Buf::for_overwrite(psize as usize);
    let plain = assemble(&states, choices.iter().map(|c| &c[0]), 0);
    let mut found;
    (found, out) = try_candidate(rt, plain, verify, out, prio).await;
    let mut tried = 1;
    if !found {
        for choice in by_device(parts, &states) {
            (found, out) = try_candidate(rt, assemble(&states, choice.iter(), 0), verify, out, prio).await;
            tried += 1;
            if found {
                break;
            }
        }
    }
    // What is in `out` is of another candidate.
    let mut index = vec![0usize; states.len()];
    let mut is_first = true;
    while !found && tried < CANDIDATES_MAX {
        let Some(changed) = advance(&mut index, &choices) else { break };
        let from = if std::mem::take(&mut is_first) { 0 } else { changed };
        let chosen = index.iter().zip(&choices).map(|(i, c)| &c[*i]);
        (found, out) = try_candidate(rt, assemble(&states, chosen, from), verify, out, prio).await;
        tried += 1;
    }
    if !found {
        let mut bad = 0;
        for (part, state) in parts.iter().flat_map(|p| p.stripes.iter().map(move |_| p)).zip(&states) {
            if state.stripe.parity > 0 {
                part.kind.count_own_error(true);
                continue;
            }
            for (column, place) in state.columns.iter().zip(&state.stripe.columns) {
                for r in column.replicas.iter().filter(|r| r.state == ReplicaState::Current && r.content.is_some()) {
                    r.leaf.count_checksum_error(place.offset, place.size);
                    bad += 1;
                }
            }
        }
        return fail(bad, ErrorKind::Checksum, "wrong checksum, whichever devices are believed");
    }
    let block = out.freeze();
    let expected = compare(rt, &states, block.clone(), prio).await;
    // Without a checksum it is the first candidate.
    let uses_stale = |(state, choice): (&StripeState<'_>, &Vec<Choice>)| state.uses_stale(&choice[0]);
    let doubtful = verify.is_none() && states.iter().zip(&choices).any(uses_stale);
    let repair = if doubtful { None } else { repair() };
    let again = match repair {
        Some(prio) if verify.is_some() => write_second_places(parts, &expected, prio),
        _ => Vec::new(),
    };
    let repair = repair.map(|class| (class, prio == Prio::Scrub));
    let verdict = repair_replicas(&states, block, expected, verify.is_some(), written, repair, again);
    Verdict { doubtful, ..verdict }
}

/// Writes what follows from a block to the second places of its stripes, which were not read.
fn write_second_places(parts: &[Part], expected: &[Vec<Expected>], prio: Prio) -> Vec<WriteDone> {
    let mut writes = Vec::new();
    let mut first = 0;
    for part in parts {
        for (stripe, columns) in part.second.iter().zip(&expected[first..]) {
            for (c, (want, _)) in stripe.columns.iter().zip(columns).filter(|(c, _)| c.size > 0) {
                let pad = c.size as usize - want.len();
                writes.extend(part.kind.column_node(c).write_at(&part.kind, c.offset, want, pad, prio.into()));
            }
        }
        first += part.stripes.len();
    }
    writes
}

/// The right bytes of a column, and whether each of its replicas differs; none if it could not be
/// read.
type Expected = (Bytes, Vec<Option<bool>>);
/// The bytes read from a replica, if any, and whether its padding is right.
type Content = (Option<Bytes>, bool);

/// Compares every replica with the bytes that follow from `block`.
async fn compare(rt: &Rt, states: &[StripeState<'_>], block: Bytes, prio: Prio) -> Vec<Vec<Expected>> {
    let job = Parity::new(states.iter().map(|s| (s.stripe.clone(), s.base)).collect(), block);
    let of = |r: &Replica<'_>| (r.content.clone(), r.padded);
    let contents: Vec<Vec<Vec<Content>>> =
        states.iter().map(|s| s.columns.iter().map(|c| c.replicas.iter().map(of).collect()).collect()).collect();
    let compared = contents.iter().flatten().flatten().filter_map(|(c, _)| c.as_ref()).map(|c| c.len() as u64).sum();
    let cost = job.cost() + cost::COPY.cost(compared);
    let job = move || {
        let (stripes, block) = job.run();
        let mut all = Vec::with_capacity(stripes.len());
        for ((_, columns), contents) in stripes.into_iter().zip(&contents) {
            let differs = |want: &Bytes, c: &Option<Bytes>, padded: bool| c.as_ref().map(|c| c != want || !padded);
            let column = |(want, replicas): (Bytes, &Vec<Content>)| {
                let all = replicas.iter().map(|(c, padded)| differs(&want, c, *padded)).collect();
                (want, all)
            };
            all.push(columns.into_iter().zip(contents).map(column).collect());
        }
        (all, block, contents)
    };
    let (expected, _block, _contents) = rt.cpu_as(prio.cpu_class(), cost, job).await;
    expected
}

/// Counts every replica that differs, and rewrites it if `repair` has a class, with whether a scan
/// does it; `writes` are repairs that were queued before.
fn repair_replicas(
    states: &[StripeState<'_>],
    block: Bytes,
    expected: Vec<Vec<Expected>>,
    verified: bool,
    written: Txg,
    repair: Option<(Prio, bool)>,
    mut writes: Vec<WriteDone>,
) -> Verdict {
    let (mut bad, mut repaired) = (0, 0);
    for (state, expected) in states.iter().zip(expected) {
        for ((column, (want, differ)), place) in state.columns.iter().zip(expected).zip(&state.stripe.columns) {
            for (r, differs) in column.replicas.iter().zip(differ) {
                if differs == Some(false) {
                    continue;
                }
                // Without a checksum it is unknown which of two is right.
                if !verified && r.state == ReplicaState::Current && differs == Some(true) {
                    continue;
                }
                if r.state == ReplicaState::Current {
                    bad += 1;
                    if differs == Some(true) {
                        r.leaf.count_checksum_error(place.offset, place.size);
                    }
                }
                if let Some((prio, is_scan)) = repair
                    && r.leaf.dev.info().writable
                {
                    repaired += place.size;
                    if is_scan {
                        r.leaf.condition.note_scan_repair(place.size);
                    }
                    let pad = place.size as usize - want.len();
                    let write = r.leaf.write_data(place.offset, want.clone(), pad, prio);
                    let condition = r.leaf.condition.clone();
                    write.on_done(move |result| {
                        if result.as_ref().is_err_and(|e| e.kind() != ErrorKind::Interrupted) {
                            condition.note_failed_repair(written);
                        }
                    });
                    writes.push(write);
                }
            }
        }
    }
    // A failed repair leaves the old content; the device has counted the error.
    Verdict { data: Ok(block), bad, repaired, doubtful: false, done: WriteDone::join(writes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_complete() {
        let items: Vec<usize> = (0..7).collect();
        for k in 0..=7 {
            let mut seen = std::collections::BTreeSet::new();
            combinations(&items, k, &mut |c| seen.insert(c.to_vec()));
            let want = (0..128u32).filter(|m| m.count_ones() as usize == k).count();
            assert_eq!(seen.len(), want);
        }
    }
}
