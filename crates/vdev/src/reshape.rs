//! Changes of the tree while it is in use: attaching and detaching leaves.
//!
//! A top-level vdev has two descriptions: its nodes ([`VdevKind`]) and its configuration
//! ([`VdevConfig`]); nodes correspond by guid. The functions here are pure: they take both and
//! return both, changed. The caller must apply the change where it is safe:
//!
//! * *Nodes never change.* An operation in flight keeps the nodes that it began with; leaves are
//!   shared, so that queues, counters and dirty time logs stay. A change is one
//!   [`Top::set_kind`](crate::Top::set_kind) and becomes visible to the next operation.
//! * *A change happens between two txgs*, in syncing context before the first write of a txg. All
//!   writes of earlier txgs have completed. Writes for later txgs at that time (log blocks) may
//!   have gone to the old nodes only: the dirty time log of a new leaf covers all txgs that may be
//!   open then.
//! * *The configuration of the same txg describes the new tree*, and the guid sum of its uberblock
//!   counts it. A power cut before that uberblock leaves the old tree.
//!
//! When a top-level mirror is left with one child, the child takes over its guid, so that an older
//! label never looks like another top-level vdev (as in OpenZFS). When a top-level leaf becomes a
//! mirror, the mirror gets a new guid: the leaf keeps its own, which its labels name.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result, Txg};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};

use crate::dtl::TxgSet;
use crate::node::{Absent, Dspare, Mirror, MirrorRole, Raidz, VdevKind};
use crate::reflow::Reflow;
use crate::width::{Expansions, Progress};

/// A vdev: nodes and configuration.
#[derive(Clone)]
pub struct Shape {
    /// Its nodes.
    pub kind: VdevKind,
    /// Its configuration in MOS form.
    pub config: VdevConfig,
}

/// The vdev type of a role in the configuration.
fn config_kind(role: MirrorRole) -> ConfigKind {
    match role {
        MirrorRole::Mirror => ConfigKind::Mirror,
        MirrorRole::Replacing => ConfigKind::Replacing,
        MirrorRole::Spare => ConfigKind::Spare,
    }
}

/// Moves the keys that only a top-level vdev's configuration has.
fn move_top_keys(from: &mut VdevConfig, to: &mut VdevConfig) {
    to.metaslab_array = from.metaslab_array.take();
    to.metaslab_shift = from.metaslab_shift.take();
    to.ashift = from.ashift.take();
    to.asize = from.asize.take();
    to.is_log = from.is_log.take();
    to.alloc_bias = from.alloc_bias.take();
    to.zap_top = from.zap_top.take();
    to.expansion_time = from.expansion_time.take();
}

/// Changes the vdev `guid` of a configuration.
fn edit(config: &mut VdevConfig, guid: Guid, f: impl FnOnce(&mut VdevConfig)) -> Result<()> {
    let found = config.find_mut(guid);
    f(found.ok_or_else(|| Error::corrupt(format!("vdev {guid} is not in the configuration")))?);
    Ok(())
}

impl VdevKind {
    /// A copy with other children; only for nodes with children.
    pub fn with_children(&self, children: Vec<VdevKind>) -> VdevKind {
        match self {
            VdevKind::Mirror(m) => {
                VdevKind::Mirror(Rc::new(Mirror { guid: m.guid, role: m.role, children, errors: m.errors.clone() }))
            }
            VdevKind::Raidz(r) => r.remade(children, r.expansions.clone()),
            VdevKind::Draid(d) => VdevKind::Draid(Rc::new(crate::DraidNode {
                guid: d.guid,
                layout: d.layout.clone(),
                children,
                errors: d.errors.clone(),
            })),
            other => other.clone(),
        }
    }

    /// The parent of node `guid`.
    pub fn parent_of(&self, guid: Guid) -> Option<VdevKind> {
        if self.children().iter().any(|c| c.guid() == Some(guid)) {
            return Some(self.clone());
        }
        self.children().iter().find_map(|c| c.parent_of(guid))
    }

    /// Its role if it acts as a mirror.
    pub fn role(&self) -> Option<MirrorRole> {
        match self {
            VdevKind::Mirror(m) => Some(m.role),
            _ => None,
        }
    }

    /// Whether it is a leaf, with a device or without.
    pub fn is_leaf(&self) -> bool {
        matches!(self, VdevKind::Leaf(_) | VdevKind::Absent(_) | VdevKind::Dspare(_))
    }

    /// A copy with another guid.
    fn renamed(&self, guid: Guid) -> VdevKind {
        match self {
            VdevKind::Leaf(l) => {
                l.set_guid(guid);
                self.clone()
            }
            VdevKind::Absent(a) => {
                VdevKind::Absent(Rc::new(Absent { guid, path: a.path.clone(), condition: a.condition.clone() }))
            }
            VdevKind::Dspare(d) => VdevKind::Dspare(Rc::new(Dspare {
                guid,
                path: d.path.clone(),
                spare: d.spare,
                condition: d.condition.clone(),
            })),
            VdevKind::Mirror(m) => VdevKind::Mirror(Rc::new(Mirror {
                guid,
                role: m.role,
                children: m.children.clone(),
                errors: m.errors.clone(),
            })),
            other => other.clone(),
        }
    }

    /// The txgs with blocks that are unreadable without the node `without` (`DTL_OUTAGE` of
    /// OpenZFS); all txgs if too few children are open.
    pub fn outage(&self, without: Option<Guid>) -> TxgSet {
        let own = self.guid().is_some() && self.guid() == without;
        let missed = |health: crate::Health, missing: TxgSet| match own || !health.is_open() {
            true => TxgSet::all(),
            false => missing,
        };
        let below = |tolerates: usize| {
            let children: Vec<TxgSet> = self.children().iter().map(|c| c.outage(without)).collect();
            TxgSet::in_more_than(&children, tolerates)
        };
        match self {
            _ if own => TxgSet::all(),
            VdevKind::Leaf(l) => missed(l.condition.health(), l.condition.missing()),
            VdevKind::Dspare(d) => missed(d.condition.health(), d.condition.missing()),
            VdevKind::Absent(_) | VdevKind::Missing => TxgSet::all(),
            VdevKind::Mirror(m) => below(m.children.len().saturating_sub(1)),
            VdevKind::Raidz(r) => below(r.parity as usize),
            VdevKind::Draid(d) => below(d.layout.parity as usize),
            VdevKind::Indirect(_) | VdevKind::Hole => TxgSet::new(),
        }
    }
}

/// Attaches the leaf `new` to the node `target`: as a child of `target`'s parent if that has the
/// role already, else both below a new node `parent`.
pub fn attach(shape: &Shape, target: Guid, role: MirrorRole, parent: Guid, new: Shape) -> Result<Shape> {
    let Shape { kind, mut config } = shape.clone();
    let gone = || Error::not_found(format!("vdev {target} is not there any more"));
    kind.find(target).ok_or_else(gone)?;
    let above = kind.parent_of(target);
    if let Some(above) = above.filter(|p| p.role() == Some(role)) {
        let at = above.guid().ok_or_else(gone)?;
        edit(&mut config, at, |c| {
            let id = c.children.len() as u64;
            c.children.push(VdevConfig { id, ..new.config });
        })?;
        let add = |p: &VdevKind| {
            let mut children = p.children().to_vec();
            children.push(new.kind.clone());
            p.with_children(children)
        };
        return Ok(Shape { kind: kind.replace(at, &add), config });
    }
    edit(&mut config, target, |c| {
        let mut node = VdevConfig::new(config_kind(role), c.id, parent);
        move_top_keys(c, &mut node);
        node.create_txg = c.create_txg;
        let mut old = std::mem::replace(c, node);
        old.id = 0;
        c.children = vec![old, VdevConfig { id: 1, ..new.config }];
    })?;
    let wrap = |old: &VdevKind| {
        let children = vec![old.clone(), new.kind.clone()];
        VdevKind::Mirror(Rc::new(Mirror { guid: parent, role, children, errors: Default::default() }))
    };
    Ok(Shape { kind: kind.replace(target, &wrap), config })
}

/// Detaches the node `target` from its mirror, replacing or spare vdev. A node left with one child
/// is replaced by the child, which takes over its guid if it was the top-level vdev. Also returns
/// the configuration of the detached node.
pub fn detach(shape: &Shape, target: Guid) -> Result<(Shape, VdevConfig)> {
    let Shape { kind, mut config } = shape.clone();
    let above = kind.parent_of(target).filter(|p| p.role().is_some());
    let above = above.ok_or_else(|| Error::invalid("only applicable to mirror and replacing vdevs"))?;
    let at = above.guid().expect("a mirror has a guid");
    let left: Vec<VdevKind> = above.children().iter().filter(|c| c.guid() != Some(target)).cloned().collect();
    let is_top = kind.guid() == Some(at);
    let mut taken = None;
    edit(&mut config, at, |node| {
        if let Some(i) = node.children.iter().position(|c| c.guid == target) {
            taken = Some(node.children.remove(i));
        }
        for (i, c) in node.children.iter_mut().enumerate() {
            c.id = i as u64;
        }
        if node.children.len() == 1 {
            let mut only = node.children.remove(0);
            move_top_keys(node, &mut only);
            only.id = node.id;
            if is_top {
                only.guid = node.guid;
            }
            *node = only;
        }
    })?;
    let taken = taken.ok_or_else(|| Error::corrupt(format!("vdev {target} is not in the configuration")))?;
    let rest = |node: &VdevKind| match &left[..] {
        [only] if is_top => only.renamed(at),
        [only] => only.clone(),
        _ => node.with_children(left.clone()),
    };
    Ok((Shape { kind: kind.replace(at, &rest), config }, taken))
}

/// Minimal size in bytes, without labels, of a device for the leaf `target` (`vdev_get_min_asize`
/// of OpenZFS): enough for the metaslabs of the top-level vdev.
pub fn min_asize(kind: &VdevKind, target: Guid, asize: u64, ms_shift: u8) -> u64 {
    let whole = if ms_shift == 0 { asize } else { asize >> ms_shift << ms_shift };
    let share = match kind {
        VdevKind::Raidz(r) => r.widths().child_asize(whole),
        VdevKind::Draid(d) => d.layout.child_asize(whole),
        _ => whole,
    };
    match kind.find(target) {
        Some(_) => share,
        None => whole,
    }
}

/// Begins the expansion of a RAID-Z: `new` is its last child from now on, nothing is moved yet.
pub fn begin_expansion(shape: &Shape, new: Shape) -> Result<Shape> {
    let Shape { kind, mut config } = shape.clone();
    let VdevKind::Raidz(raidz) = &kind else { return Err(Error::invalid("only a raidz can be expanded")) };
    if raidz.expansions.reflow.is_some() {
        return Err(Error::new(ErrorKind::Busy, "the raidz is being expanded already"));
    }
    let id = config.children.len() as u64;
    config.children.push(VdevConfig { id, ..new.config });
    config.raidz_expanding = true;
    let mut children = raidz.children.clone();
    children.push(new.kind);
    let reflow = Some(Reflow::new(Progress::default()));
    let expansions = Expansions { txgs: raidz.expansions.txgs.clone(), reflow, era: Rc::default() };
    Ok(Shape { kind: raidz.remade(children, expansions), config })
}

/// Ends the expansion of a RAID-Z: everything is moved, blocks born in `first` or later are wider.
pub fn end_expansion(shape: &Shape, first: Txg) -> Result<Shape> {
    let Shape { kind, mut config } = shape.clone();
    let VdevKind::Raidz(raidz) = &kind else { return Err(Error::invalid("only a raidz can be expanded")) };
    let mut txgs = raidz.expansions.txgs.clone();
    txgs.push(first);
    config.raidz_expanding = false;
    config.raidz_expand_txgs.clone_from(&txgs);
    let expansions = Expansions { txgs, reflow: None, era: raidz.expansions.era.clone() };
    Ok(Shape { kind: raidz.remade(raidz.children.clone(), expansions), config })
}

impl Raidz {
    fn remade(&self, children: Vec<VdevKind>, expansions: Expansions) -> VdevKind {
        let (guid, parity, errors) = (self.guid, self.parity, self.errors.clone());
        VdevKind::Raidz(Rc::new(Raidz { guid, parity, children, expansions, errors }))
    }
}

/// The ranges of leaf `guid` (offset in its address space, length) that hold `len` bytes at `start`
/// of the top-level vdev `kind`, and no other data, only their parity. Whole sectors; `start` and
/// `len` are whole allocation units or free ranges.
pub fn leaf_ranges(kind: &VdevKind, ashift: u8, guid: Guid, start: u64, len: u64) -> Vec<(u64, u64)> {
    let child = |children: &[VdevKind]| children.iter().position(|c| c.find(guid).is_some());
    match kind {
        VdevKind::Raidz(r) => {
            let range = child(&r.children).and_then(|own| r.widths().child_range(ashift, own, start, len));
            range.into_iter().collect()
        }
        VdevKind::Draid(d) => match child(&d.children) {
            Some(own) => d.layout.child_ranges(own, start, len),
            None => Vec::new(),
        },
        _ => vec![(start, len)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtl::{Condition, Health};
    use base::{ObjectId, Txg};

    fn leaf(guid: u64) -> Shape {
        let mut config = VdevConfig::new(ConfigKind::File, 0, Guid(guid));
        config.path = Some(format!("/d{guid}"));
        config.zap_leaf = Some(ObjectId(guid));
        let condition = Rc::new(Condition::new(Health::Unavail));
        let path = format!("/d{guid}");
        Shape { kind: VdevKind::Absent(Rc::new(Absent { guid: Guid(guid), path, condition })), config }
    }

    fn top(guid: u64) -> Shape {
        let mut s = leaf(guid);
        s.config.id = 3;
        s.config.asize = Some(1 << 30);
        s.config.metaslab_array = Some(ObjectId(77));
        s.config.zap_top = Some(ObjectId(78));
        s.config.create_txg = Some(Txg(4));
        s
    }

    /// Nodes and configuration agree.
    fn show(s: &Shape) -> String {
        fn kind(k: &VdevKind) -> String {
            let guid = k.guid().map_or(0, |g| g.0);
            let word = k.role().map_or("leaf".to_string(), |r| format!("{r:?}").to_lowercase());
            let below: Vec<String> = k.children().iter().map(kind).collect();
            format!("{word}:{guid}({})", below.join(","))
        }
        fn config(c: &VdevConfig) -> String {
            let word = if c.children.is_empty() { "leaf".to_string() } else { c.kind.to_string() };
            assert!(c.children.iter().enumerate().all(|(i, c)| c.id == i as u64), "ids are places");
            let below: Vec<String> = c.children.iter().map(config).collect();
            format!("{word}:{}({})", c.guid.0, below.join(","))
        }
        assert_eq!(kind(&s.kind), config(&s.config));
        assert_eq!(s.config.id, 3);
        assert_eq!(s.config.asize, Some(1 << 30), "the top has the size");
        assert!(s.config.children.iter().all(|c| c.asize.is_none() && c.zap_top.is_none()));
        kind(&s.kind)
    }

    #[test]
    fn leaves_come_and_go() {
        let one = top(1);
        let two = attach(&one, Guid(1), MirrorRole::Mirror, Guid(50), leaf(2)).expect("sane");
        assert_eq!(show(&two), "mirror:50(leaf:1(),leaf:2())");
        let three = attach(&two, Guid(2), MirrorRole::Mirror, Guid(51), leaf(3)).expect("sane");
        assert_eq!(show(&three), "mirror:50(leaf:1(),leaf:2(),leaf:3())");
        let replacing = attach(&three, Guid(2), MirrorRole::Replacing, Guid(52), leaf(4)).expect("sane");
        assert_eq!(show(&replacing), "mirror:50(leaf:1(),replacing:52(leaf:2(),leaf:4()),leaf:3())");
        let more = attach(&replacing, Guid(4), MirrorRole::Replacing, Guid(53), leaf(5)).expect("sane");
        assert_eq!(show(&more), "mirror:50(leaf:1(),replacing:52(leaf:2(),leaf:4(),leaf:5()),leaf:3())");
        let (done, gone) = detach(&more, Guid(2)).expect("sane");
        assert_eq!(gone.zap_leaf, Some(ObjectId(2)));
        let (done, _) = detach(&done, Guid(4)).expect("sane");
        assert_eq!(show(&done), "mirror:50(leaf:1(),leaf:5(),leaf:3())");
        let (done, _) = detach(&done, Guid(1)).expect("sane");
        let (done, _) = detach(&done, Guid(3)).expect("sane");
        assert_eq!(show(&done), "leaf:50()", "the last one stands for the mirror");
        assert_eq!((done.config.zap_top, done.config.zap_leaf), (Some(ObjectId(78)), Some(ObjectId(5))));
        assert!(detach(&done, Guid(50)).is_err());
        // A spare over a device that is being replaced.
        let spare = attach(&replacing, Guid(52), MirrorRole::Spare, Guid(60), leaf(6)).expect("sane");
        assert_eq!(show(&spare), "mirror:50(leaf:1(),spare:60(replacing:52(leaf:2(),leaf:4()),leaf:6()),leaf:3())");
        assert!(attach(&spare, Guid(99), MirrorRole::Mirror, Guid(61), leaf(7)).is_err());
    }

    #[test]
    fn outages_are_counted_by_txg() {
        let open = |missing: &[(u64, u64)]| {
            let condition = Rc::new(Condition::default());
            missing.iter().for_each(|(a, b)| condition.miss(*a, *b));
            VdevKind::Dspare(Rc::new(Dspare {
                guid: Guid(missing.len() as u64 + 10),
                path: String::new(),
                spare: 0,
                condition,
            }))
        };
        let mirror = |children: Vec<VdevKind>| {
            let role = MirrorRole::Mirror;
            VdevKind::Mirror(Rc::new(Mirror { guid: Guid(9), role, children, errors: Default::default() }))
        };
        let m = mirror(vec![open(&[(4, 10)]), open(&[(8, 20), (30, 40)])]);
        assert_eq!(m.outage(None).runs(), [(8, 10)]);
        assert_eq!(m.outage(Some(Guid(11))).runs(), [(8, 20), (30, 40)]);
        assert_eq!(m.outage(Some(Guid(9))), TxgSet::all());
        let m = mirror(vec![leaf(1).kind, open(&[])]);
        assert!(m.outage(None).is_empty());
        assert_eq!(m.outage(Some(Guid(10))), TxgSet::all());
    }
}
