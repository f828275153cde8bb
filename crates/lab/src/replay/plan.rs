//! The plan of a replay: a recording as chains of steps on files that are known by index.
//!
//! Object numbers of a recording become *slots*: one for each object and life of it (a number is
//! used again after its object was removed). An object that the recording did not see being made is
//! there before it begins. A recording has no names, so a removal does not say which file: it is
//! the one of that directory that was used last and is not used later; if there is none, another
//! file is made for it before.
//!
//! **Chains.** The operations of a client are a chain: each begins when the one before has ended
//! and the time between the two, the client's own, has passed again. Operations of a client that
//! overlapped (read-ahead) are in further chains, which begin when they began. The kernel's own
//! (thread 0: pages written back) follow the clock alone.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, Nanos, Result};
use rt::oplog::{OpRecord, Recording};
use rt::trace::OpKind;

/// Operations beyond this byte of a file cannot be replayed.
const OFFSET_MAX: u64 = 1 << 42;
/// Most bytes of one operation; longer ones are replayed as this long. Requests of FUSE have at
/// most as many.
const LEN_MAX: u64 = 1 << 20;
/// Most bytes of files that must be there before.
const BEFORE_MAX: u64 = 64 << 30;

/// Longest recording: a day, and some time for the last operations.
const SPAN_MAX: Nanos = Nanos(90_000 * 1_000_000_000);
/// Most chains: operations under way at once.
const CHAINS_MAX: usize = 1 << 16;

/// The root directory's slot.
pub const ROOT: usize = 0;

/// A file or directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// It is a directory.
    pub is_dir: bool,
    /// The directory that it is in at first.
    pub dir: usize,
    /// Its size before the recording in bytes; `None` if it is made in it.
    pub before: Option<u64>,
}

/// What a step does, with slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Looks up the name of a slot in a directory; a name that is missing if `None`.
    Lookup(usize, Option<usize>),
    /// Reads attributes.
    GetAttr(usize),
    /// Changes attributes.
    Touch(usize),
    /// Sets the size.
    Truncate(usize, u64),
    /// Makes a file, and opens it, or a directory.
    Make(usize),
    /// Removes a file or directory.
    Remove(usize),
    /// Moves a file to a directory.
    Move(usize, usize),
    /// Gives a file a further name in a directory.
    Link(usize, usize),
    /// Opens a file.
    Open(usize),
    /// Closes a file.
    Release(usize),
    /// Reads a range.
    Read(usize, u64, u64),
    /// Writes a range; durably if true.
    Write(usize, u64, u64, bool),
    /// Makes a file durable.
    Fsync(usize),
    /// Lists a directory.
    List(usize),
    /// Lists extended attributes.
    Xattr(usize),
    /// Makes everything durable.
    SyncFs,
}

/// A step of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Time after the end of the step before; of the first step, and of chains by the clock, since
    /// the begin.
    pub wait: Nanos,
    /// What it does.
    pub act: Act,
    /// The kind in the recording.
    pub kind: OpKind,
    /// How long it took there.
    pub took: Nanos,
    /// Whether it counts: it worked there.
    pub counts: bool,
}

/// Steps one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// They begin at their time, whether or not the step before was late.
    pub by_clock: bool,
    /// In order.
    pub steps: Vec<Step>,
}

/// A plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The first is the root.
    pub slots: Vec<Slot>,
    /// In the order in which they begin.
    pub chains: Vec<Chain>,
    /// The dataset with most operations.
    pub dataset: u64,
    /// From the begin of the recording to the end of its last operation.
    pub span: Nanos,
}

/// Slots while the plan is made.
#[derive(Default)]
struct Slots {
    all: Vec<Slot>,
    /// The slot of each object that lives.
    live: BTreeMap<(u64, u64), usize>,
    /// The time of the last use of each.
    last_use: Vec<u64>,
}

impl Slots {
    fn new_slot(&mut self, slot: Slot) -> usize {
        self.all.push(slot);
        self.last_use.push(0);
        self.all.len() - 1
    }

    /// The slot of an object; one that was there before if it has none.
    fn of(&mut self, dataset: u64, object: u64) -> usize {
        if let Some(&slot) = self.live.get(&(dataset, object)) {
            return slot;
        }
        let slot = self.new_slot(Slot { is_dir: false, dir: ROOT, before: Some(0) });
        self.live.insert((dataset, object), slot);
        slot
    }
}

fn is_on_dir(kind: OpKind) -> bool {
    use OpKind::{Create, Link, Lookup, MakeDir, ReadDir, Remove, RemoveDir, Rename};
    matches!(kind, Lookup | Create | MakeDir | Remove | RemoveDir | Rename | Link | ReadDir)
}

impl Plan {
    /// The plan of a recording.
    ///
    /// # Errors
    /// `Invalid` if it has no operations, or its files are too large.
    pub fn new(recording: &Recording) -> Result<Plan> {
        let ops = &recording.ops;
        if ops.is_empty() {
            return Err(Error::invalid("the recording has no operations: there is nothing to replay"));
        }
        if let Some(at) = ops.iter().position(|o| o.end > SPAN_MAX || o.op.took > SPAN_MAX) {
            return Err(Error::invalid(format!("operation {at} of the recording takes or ends after more than a day")));
        }
        let mut order: Vec<usize> = (0..ops.len()).collect();
        order.sort_by_key(|&i| (ops[i].begin(), i));
        let (acts, slots) = acts(ops, &order)?;
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        ops.iter().for_each(|o| *counts.entry(o.op.dataset).or_default() += 1);
        let busiest = counts.iter().max_by_key(|(id, n)| (**n, std::cmp::Reverse(**id)));
        let chains = chains(ops, &order, &acts);
        if chains.len() > CHAINS_MAX {
            let n = chains.len();
            return Err(Error::invalid(format!(
                "the recording has {n} operations under way at once: at most {CHAINS_MAX}"
            )));
        }
        let last = ops.last().map_or(Nanos(0), |o| o.end);
        Ok(Plan { slots, chains, dataset: busiest.map_or(0, |(id, _)| *id), span: recording.span.unwrap_or(last) })
    }
}

impl Plan {
    /// The share of their time in which clients wait for the pool, between the begin of their first
    /// operation and the end of their last; the rest they take themselves. What the kernel writes
    /// back follows the clock and does not count.
    pub fn waiting(&self) -> f64 {
        let (mut waits, mut all) = (0.0, 0.0);
        for chain in self.chains.iter().filter(|chain| !chain.by_clock) {
            for (at, step) in chain.steps.iter().enumerate() {
                waits += step.took.0 as f64;
                all += step.took.0 as f64 + if at == 0 { 0.0 } else { step.wait.0 as f64 };
            }
        }
        waits / f64::max(all, 1.0)
    }
}

/// What each operation does, and the slots.
fn acts(ops: &[OpRecord], order: &[usize]) -> Result<(Vec<Act>, Vec<Slot>)> {
    let mut slots = Slots::default();
    slots.new_slot(Slot { is_dir: true, dir: ROOT, before: Some(0) });
    // Operations that make objects, in the order of their ends: an object has its slot from then
    // on.
    let makes = |o: &OpRecord| matches!(o.op.kind, OpKind::Create | OpKind::MakeDir) && o.op.ok && o.op.target != 0;
    let mut next_made = 0;
    let mut by_end: Vec<usize> = (0..ops.len()).filter(|&i| makes(&ops[i])).collect();
    by_end.sort_by_key(|&i| (ops[i].end, i));
    let mut out = vec![Act::SyncFs; ops.len()];
    let mut pending: BTreeMap<usize, usize> = BTreeMap::new();
    // Removals: which file is known only when all uses are.
    let mut removals: Vec<(usize, usize, u64, bool)> = Vec::new();
    for &i in order {
        let OpRecord { op, .. } = ops[i];
        let begin = ops[i].begin().0;
        while let Some(&m) = by_end.get(next_made).filter(|&&m| ops[m].end.0 <= begin && m != i) {
            let Some(&slot) = pending.get(&m) else { break };
            slots.live.insert((ops[m].op.dataset, ops[m].op.target), slot);
            next_made += 1;
        }
        let (offset, len) = (op.offset, op.len.min(LEN_MAX));
        if matches!(op.kind, OpKind::Read | OpKind::Write | OpKind::Truncate)
            && offset.checked_add(len).is_none_or(|end| end > OFFSET_MAX)
        {
            return Err(Error::invalid(format!("operation {i} of the recording is beyond 4 TiB of its file")));
        }
        let slot = slots.of(op.dataset, op.object);
        slots.last_use[slot] = slots.last_use[slot].max(begin);
        if is_on_dir(op.kind) {
            slots.all[slot].is_dir = true;
        }
        let target = (op.target != 0 && !makes(&ops[i])).then(|| slots.of(op.dataset, op.target));
        if let Some(t) = target {
            slots.last_use[t] = slots.last_use[t].max(begin);
            if op.kind == OpKind::Lookup && slots.all[t].before.is_some() && t != slot && t != ROOT {
                slots.all[t].dir = slot;
            }
        }
        out[i] = match op.kind {
            _ if !op.ok && op.kind != OpKind::Lookup => Act::GetAttr(slot),
            OpKind::Lookup => Act::Lookup(slot, target),
            OpKind::GetAttr => Act::GetAttr(slot),
            OpKind::SetAttr | OpKind::Allocate => Act::Touch(slot),
            OpKind::Truncate => Act::Truncate(slot, offset),
            OpKind::Create | OpKind::MakeDir if op.target != 0 => {
                let is_dir = op.kind == OpKind::MakeDir;
                let new = slots.new_slot(Slot { is_dir, dir: slot, before: None });
                slots.last_use[new] = begin;
                pending.insert(i, new);
                Act::Make(new)
            }
            OpKind::Create | OpKind::MakeDir => Act::Lookup(slot, None),
            OpKind::Remove | OpKind::RemoveDir => {
                removals.push((i, slot, begin, op.kind == OpKind::RemoveDir));
                Act::GetAttr(slot)
            }
            OpKind::Rename => {
                let to = target.unwrap_or(slot);
                slots.all[to].is_dir = true;
                // Which file is not known: the one of the directory that was used last.
                let of_dir = (0..slots.all.len()).rev().take(64);
                let last = of_dir.filter(|&s| !slots.all[s].is_dir && slots.all[s].dir == slot);
                match last.max_by_key(|&s| (slots.last_use[s], s)) {
                    Some(file) => Act::Move(file, to),
                    None => Act::Touch(to),
                }
            }
            OpKind::Link => target.map_or(Act::Touch(slot), |file| Act::Link(file, slot)),
            OpKind::Open => Act::Open(slot),
            OpKind::Release => Act::Release(slot),
            OpKind::Read => {
                grow(&mut slots.all[slot], offset + len);
                Act::Read(slot, offset, len)
            }
            OpKind::Write => {
                grow(&mut slots.all[slot], offset + len);
                Act::Write(slot, offset, len, op.sync)
            }
            OpKind::Fsync => Act::Fsync(slot),
            OpKind::ReadDir => Act::List(slot),
            OpKind::Xattr => Act::Xattr(slot),
            OpKind::SyncFs => Act::SyncFs,
        };
    }
    remove(&mut slots, &removals, &mut out);
    no_circles(&mut slots.all);
    let before: u64 = slots.all.iter().filter_map(|s| s.before).fold(0, u64::saturating_add);
    if before > BEFORE_MAX {
        let gib = before >> 30;
        return Err(Error::invalid(format!("the recorded files have {gib} GiB: at most 64 can be replayed")));
    }
    Ok((out, slots.all))
}

/// A file that is there before has what is read and overwritten.
fn grow(slot: &mut Slot, end: u64) {
    if let Some(size) = &mut slot.before {
        *size = (*size).max(end);
    }
}

/// Finds what each removal removes.
fn remove(slots: &mut Slots, removals: &[(usize, usize, u64, bool)], out: &mut [Act]) {
    // By directory and kind, in the order of the last use.
    let mut by_use: BTreeMap<(usize, bool), BTreeSet<(u64, usize)>> = BTreeMap::new();
    for (s, slot) in slots.all.iter().enumerate().skip(1) {
        by_use.entry((slot.dir, slot.is_dir)).or_default().insert((slots.last_use[s], s));
    }
    for &(i, dir, begin, is_dir) in removals {
        let there = by_use.entry((dir, is_dir)).or_default();
        let found = there.range(..(begin, 0)).next_back().copied();
        let victim = match found {
            Some(entry) => {
                there.remove(&entry);
                entry.1
            }
            None => slots.new_slot(Slot { is_dir, dir, before: Some(0) }),
        };
        out[i] = Act::Remove(victim);
    }
}

/// Directories that lie in each other, as a damaged recording may have them, lie in the root; so
/// does what was there before a directory that it was found in later.
fn no_circles(slots: &mut [Slot]) {
    for s in 1..slots.len() {
        let (mut at, mut steps) = (s, 0);
        while at != ROOT && steps < 64 {
            (at, steps) = (slots[at].dir, steps + 1);
        }
        // Deeper than 64 counts as one: no path of a system is.
        let dir = &slots[slots[s].dir];
        let is_there = slots[s].before.is_none() || dir.before.is_some();
        if at != ROOT || !dir.is_dir || !is_there {
            slots[s].dir = ROOT;
        }
    }
}

/// The chains of a recording's operations.
fn chains(ops: &[OpRecord], order: &[usize], acts: &[Act]) -> Vec<Chain> {
    let mut out: Vec<(Nanos, Chain)> = Vec::new();
    // The chains of each client, by the end of their last operation.
    let mut of_client: BTreeMap<u32, BTreeSet<(Nanos, usize)>> = BTreeMap::new();
    for &i in order {
        let (op, begin) = (ops[i].op, ops[i].begin());
        let by_clock = op.client == 0;
        let mine = of_client.entry(op.client).or_default();
        // The one that ended last before this one began.
        let free = mine.range(..=(begin, usize::MAX)).next_back().copied();
        let chain = match free {
            Some(entry) => {
                mine.remove(&entry);
                entry.1
            }
            None => {
                out.push((begin, Chain { by_clock, steps: Vec::new() }));
                out.len() - 1
            }
        };
        let wait = match free {
            Some((end, _)) if !by_clock => Nanos(begin.0 - end.0),
            _ => begin,
        };
        out[chain].1.steps.push(Step { wait, act: acts[i], kind: op.kind, took: op.took, counts: op.ok });
        mine.insert((ops[i].end, chain));
    }
    out.into_iter().map(|(_, chain)| chain).collect()
}

#[cfg(test)]
mod tests {
    use rt::trace::FsOp;

    use super::*;

    /// An operation of client 5 in dataset 1: begin and end in us, kind, object, target, offset,
    /// length.
    fn op(span: (u64, u64), kind: OpKind, object: u64, target: u64, range: (u64, u64)) -> OpRecord {
        let took = Nanos::from_us(span.1 - span.0);
        let (offset, len) = range;
        let op = FsOp { kind, client: 5, dataset: 1, object, target, offset, len, sync: false, ok: true, took };
        OpRecord { end: Nanos::from_us(span.1), op }
    }

    fn plan(ops: Vec<OpRecord>) -> Plan {
        Plan::new(&Recording { ops, ..Recording::default() }).unwrap()
    }

    #[test]
    fn clients_keep_their_order_and_their_own_time() {
        let mut kernel = op((12, 14), OpKind::Write, 9, 0, (0, 10));
        kernel.op.client = 0;
        let p = plan(vec![
            op((0, 10), OpKind::Read, 9, 0, (0, 10)),
            kernel,
            // Overlaps the next.
            op((13, 20), OpKind::Read, 9, 0, (20, 10)),
            op((15, 25), OpKind::Read, 9, 0, (30, 10)),
            op((40, 41), OpKind::GetAttr, 9, 0, (0, 0)),
        ]);
        let waits: Vec<(bool, Vec<u64>)> =
            p.chains.iter().map(|c| (c.by_clock, c.steps.iter().map(|s| s.wait.0 / 1000).collect())).collect();
        // They wait for 10 + 7 of 20 us, and for 10 + 1 of 26.
        assert!((p.waiting() - 28.0 / 46.0).abs() < 1e-9, "{}", p.waiting());
        // The last follows the one that ended at 25.
        assert_eq!(waits, [(false, vec![0, 3]), (true, vec![12]), (false, vec![15, 15])]);
        assert_eq!((p.slots.len(), p.slots[1].before, p.dataset), (2, Some(40), 1));
    }

    #[test]
    fn objects_have_lives_and_removals_find_what_is_not_used_later() {
        let p = plan(vec![
            op((0, 1), OpKind::Lookup, 3, 20, (0, 0)),
            op((2, 3), OpKind::Create, 3, 21, (0, 0)),
            op((4, 5), OpKind::Write, 21, 0, (0, 100)),
            op((6, 7), OpKind::Write, 20, 0, (50, 10)),
            op((8, 9), OpKind::Remove, 3, 0, (0, 0)),
            op((10, 11), OpKind::Create, 3, 21, (0, 0)),
            op((12, 13), OpKind::Read, 21, 0, (0, 5)),
            op((14, 15), OpKind::GetAttr, 20, 0, (0, 0)),
            op((16, 17), OpKind::RemoveDir, 3, 0, (0, 0)),
        ]);
        let acts: Vec<Act> = p.chains[0].steps.iter().map(|s| s.act).collect();
        let Act::Make(first) = acts[1] else { panic!("{acts:?}") };
        let Act::Make(second) = acts[5] else { panic!("{acts:?}") };
        assert_ne!(first, second);
        assert_eq!(acts[2], Act::Write(first, 0, 100, false));
        // Not 20, which is used later.
        assert_eq!(acts[4], Act::Remove(first));
        assert_eq!(acts[6], Act::Read(second, 0, 5));
        let Act::Remove(dir) = acts[8] else { panic!("{acts:?}") };
        assert!(p.slots[dir].is_dir && p.slots[dir].before == Some(0), "made for it");
        let Act::Lookup(parent, Some(old)) = acts[0] else { panic!("{acts:?}") };
        assert_eq!((p.slots[old].dir, p.slots[old].before), (parent, Some(60)));
        assert_eq!(p.slots[first].before, None);
    }

    #[test]
    fn what_cannot_be_replayed_has_a_reason() {
        let fails = |ops: Vec<OpRecord>| Plan::new(&Recording { ops, ..Recording::default() }).unwrap_err().to_string();
        assert!(fails(vec![]).contains("no operations"));
        assert!(fails(vec![op((0, 1), OpKind::Read, 1, 0, (u64::MAX, 1))]).contains("beyond 4 TiB"));
        assert!(fails(vec![op((0, 1), OpKind::Read, 1, 0, (100 << 30, 1))]).contains("at most 64"));
    }
}
