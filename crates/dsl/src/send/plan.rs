//! Which streams make a package, and its list (format page 25 section 5).
//!
//! **Words.** A *package* is a list of file systems, snapshots and properties, and after it the
//! streams of the list's snapshots. The *target* is the snapshot that was named; its part after the
//! `@` names the snapshots of the file systems below as well. A *member* is a file system that is
//! sent; a *step* is one stream.
//!
//! **Normal path.** [`plan`] walks the tree of file systems ([`Walk::visit`]): who is a member,
//! with which entry of the list. Then it orders the members, parents before children and origins
//! before clones, and goes through the snapshots of each ([`steps_of`]): each is sent since the one
//! sent before it, the first one since the *from* snapshot, the origin of a clone, or in full.
//!
//! All of this is pure: `package` reads the tree and sends the steps. Order, keys and types are
//! those of OpenZFS, since its receivers read the list.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, ErrorKind, Result};
use ondisk::nvlist::{NvList, NvValue};

use crate::props::PropValue;

/// Longest list that OpenZFS receives, in bytes (format page 25 section 5).
const LIST_MAX: usize = 64 << 20;

/// Properties or holds by name, in the order of their ZAP.
pub(super) type Named<T> = Vec<(String, T)>;

/// A snapshot, as far as packages know it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Snap {
    /// The part of its name after the `@`.
    pub name: String,
    pub guid: u64,
    /// The txg that made it.
    pub txg: u64,
    pub props: Named<PropValue>,
    pub holds: Named<u64>,
}

/// The snapshot that a clone was made from.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Origin {
    /// Its full name.
    pub name: String,
    pub guid: u64,
}

/// A file system or volume, and those below it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Fs {
    /// Its full name.
    pub name: String,
    /// Of its head.
    pub guid: u64,
    /// The txg that made it.
    pub txg: u64,
    pub origin: Option<Origin>,
    /// `Some`: it is encrypted; true: with a key of its own.
    pub encroot: Option<bool>,
    pub props: Named<PropValue>,
    /// Oldest first.
    pub snaps: Vec<Snap>,
    /// In the order of their ZAP.
    pub children: Vec<Fs>,
}

impl Fs {
    /// The number of its snapshots, and of those below.
    pub fn snapshots(&self) -> u64 {
        self.snaps.len() as u64 + self.children.iter().map(Fs::snapshots).sum::<u64>()
    }
}

/// The letters of `zfs send` that make packages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PackageOpts {
    /// `-R`: everything below as well, with all snapshots.
    pub replicate: bool,
    /// `-I`: the snapshots between as well.
    pub all: bool,
    /// `-p`: properties.
    pub props: bool,
    /// `-b`: properties as they were received, without local changes.
    pub backup: bool,
    /// `-h`: holds.
    pub holds: bool,
    /// `-s`: file systems that lack the target are left out with a warning.
    pub skip_missing: bool,
    /// `-w`: the streams are raw.
    pub raw: bool,
    /// `-X`: file systems to leave out, with what is below them.
    pub exclude: Vec<String>,
}

impl PackageOpts {
    /// Whether the package has a list: with `-I` alone it has none.
    pub fn has_list(&self) -> bool {
        self.replicate || self.props || self.holds || (self.backup && !self.all)
    }
}

/// What the package is made since.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Since {
    /// The beginning.
    Nothing,
    /// The origin of the first file system, a clone.
    Origin,
    /// Snapshots with this name after the `@`.
    Snap(String),
}

impl Since {
    fn snap(&self) -> Option<&str> {
        if let Since::Snap(name) = self { Some(name) } else { None }
    }
}

/// A stream of a package.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The snapshot that is sent.
    pub name: String,
    /// The full name of the one it is sent since.
    pub from: Option<String>,
    /// The same if it is of the same file system, after the `@` only.
    pub since: Option<String>,
}

/// Something to tell the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The text, as OpenZFS has it.
    pub text: String,
    /// Of interest with `-v` only.
    pub verbose: bool,
}

impl Note {
    fn warning(text: String) -> Note {
        Note { text, verbose: false }
    }
    fn aside(text: String) -> Note {
        Note { text, verbose: true }
    }
}

/// A plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// The list, if the package has one.
    pub list: Option<NvList>,
    pub steps: Vec<Step>,
    pub notes: Vec<Note>,
    /// A file system cannot be sent, which the notes say; the others can.
    pub incomplete: bool,
}

/// A file system that is sent.
struct Member<'a> {
    fs: &'a Fs,
    /// Guid of the snapshot of its parent that must be received before; 0: none.
    parent_from: u64,
    /// Guids of its snapshots in the list.
    guids: Vec<u64>,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The target, after the `@`.
    pub to: &'a str,
    pub since: &'a Since,
    pub opts: &'a PackageOpts,
    /// All snapshots between: `-I`, or `-R` without a *from*.
    pub all: bool,
}

impl Wanted<'_> {
    fn is_to(&self, snap: &Snap) -> bool {
        snap.name == self.to
    }
    fn is_from(&self, snap: &Snap) -> bool {
        self.since.snap() == Some(snap.name.as_str())
    }
    /// The snapshots of `fs` that are looked at.
    fn candidates<'f>(&self, fs: &'f Fs) -> Vec<&'f Snap> {
        let txg = |is: &dyn Fn(&Snap) -> bool| fs.snaps.iter().find(|s| is(s)).map(|s| s.txg);
        let (first, last) = (txg(&|s| self.is_from(s)).unwrap_or(0), txg(&|s| self.is_to(s)).unwrap_or(u64::MAX));
        let fits = |s: &Snap| match (self.opts.replicate, self.all) {
            (true, _) => true,
            (false, true) => (first..=last).contains(&s.txg),
            (false, false) => self.is_to(s),
        };
        fs.snaps.iter().filter(|s| fits(s)).collect()
    }
}

/// Plans the package for the target of `top`.
///
/// # Errors
/// `NotFound` if a file system lacks the target; `Denied` if an encrypted one would be sent with
/// properties and not raw; `TooBig` if the list is too long to be received; `CrossDevice` if
/// nothing can be sent.
pub(super) fn plan(top: &Fs, wanted: Wanted<'_>) -> Result<Plan> {
    let mut out = Plan { list: None, steps: Vec::new(), notes: Vec::new(), incomplete: false };
    let members = if wanted.opts.has_list() {
        let mut walk = Walk { top, wanted, entries: NvList::new(), members: Vec::new(), notes: Vec::new() };
        walk.visit(top, 0, 0)?;
        out.notes = walk.notes;
        out.list = Some(header(wanted, walk.entries)?);
        walk.members
    } else {
        vec![Member { fs: top, parent_from: 0, guids: Vec::new() }]
    };
    let origins: BTreeSet<u64> = members.iter().filter_map(|m| m.fs.origin.as_ref().map(|o| o.guid)).collect();
    for i in order(&members) {
        let fs = members[i].fs;
        let (steps, warning) = steps_of(fs, wanted, &origins);
        out.steps.extend(steps);
        if let Some(text) = warning {
            out.incomplete = true;
            out.notes.push(Note::warning(text));
        }
    }
    if out.steps.is_empty() {
        let why = out.notes.iter().filter(|n| !n.verbose).map(|n| n.text.as_str()).collect::<Vec<_>>().join("\n");
        return Err(Error::new(ErrorKind::CrossDevice, why));
    }
    Ok(out)
}

fn header(wanted: Wanted<'_>, entries: NvList) -> Result<NvList> {
    let mut list = NvList::new();
    if let Some(from) = wanted.since.snap() {
        list.put_str("fromsnap", from);
    }
    list.put_str("tosnap", wanted.to);
    if !wanted.opts.replicate {
        list.put_flag("not_recursive");
    }
    if wanted.opts.raw {
        list.put_flag("raw");
    }
    list.put_list("fss", entries);
    Ok(list)
}

/// The bytes of a package's list. Error: `TooBig`.
pub(super) fn packed(list: &NvList) -> Result<Vec<u8>> {
    let packed = list.encode_xdr();
    match packed.len() {
        0..=LIST_MAX => Ok(packed),
        len => Err(Error::new(
            ErrorKind::TooBig,
            format!(
                "the list of snapshots and properties is too large to be received: {len} bytes, more than \
                 {LIST_MAX}; select a smaller number of snapshots to send"
            ),
        )),
    }
}

/// The walk that finds the members and makes the list.
struct Walk<'a> {
    top: &'a Fs,
    wanted: Wanted<'a>,
    entries: NvList,
    members: Vec<Member<'a>>,
    notes: Vec<Note>,
}

impl<'a> Walk<'a> {
    /// Visits a file system below one with the target of txg `to_txg` (0: none), whose children are
    /// received after its snapshot `parent_from`.
    fn visit(&mut self, fs: &'a Fs, parent_from: u64, to_txg: u64) -> Result<()> {
        let Wanted { to, opts, .. } = self.wanted;
        if opts.exclude.contains(&fs.name) {
            return Ok(());
        }
        let Some(target) = fs.snaps.iter().find(|s| self.wanted.is_to(s)) else {
            return self.without_target(fs, to_txg);
        };
        let mut entry = NvList::new().with_str("name", fs.name.as_str()).with_u64("parentfromsnap", parent_from);
        if let Some(origin) = &fs.origin {
            entry.put_u64("origin", origin.guid);
        }
        if opts.props || opts.backup || opts.replicate {
            entry.put_list("props", list_of(&fs.props));
        }
        if let Some(is_root) = fs.encroot {
            if is_root {
                entry.put_flag("is_encroot");
            }
            if !opts.raw {
                let why = format!("encrypted dataset {} may not be sent with properties without the raw flag", fs.name);
                return Err(Error::new(ErrorKind::Denied, format!("cannot send {}@{to}: {why}", self.top.name)));
            }
        }
        let (guids, own_from) = self.snapshots(fs, target.txg, &mut entry);
        self.entries.push(format!("0x{:x}", fs.guid), NvValue::List(entry));
        self.members.push(Member { fs, parent_from, guids });
        if opts.replicate {
            for child in &fs.children {
                self.visit(child, own_from, target.txg)?;
            }
        }
        Ok(())
    }

    /// A file system without the target.
    fn without_target(&mut self, fs: &Fs, to_txg: u64) -> Result<()> {
        let Wanted { to, opts, .. } = self.wanted;
        if to_txg != 0 && fs.txg > to_txg {
            let text = format!("skipping dataset {}: snapshot {to} does not exist", fs.name);
            self.notes.push(Note::aside(text));
            return Ok(());
        }
        if opts.skip_missing {
            let what = format!("skipping dataset {} and its children", fs.name);
            self.notes.push(Note::warning(format!("WARNING: {what}: snapshot {to} does not exist")));
            return Ok(());
        }
        let how = if opts.replicate { " recursively" } else { "" };
        let why = format!("snapshot {}@{to} does not exist", fs.name);
        Err(Error::not_found(format!("cannot send {}@{to}{how}: {why}", self.top.name)))
    }

    /// Adds the snapshots of `fs` to its entry. Their guids, and that which its children are
    /// received after.
    fn snapshots(&mut self, fs: &Fs, to_txg: u64, entry: &mut NvList) -> (Vec<u64>, u64) {
        let wanted = self.wanted;
        let opts = wanted.opts;
        let (mut snaps, mut props, mut holds) = (NvList::new(), NvList::new(), NvList::new());
        let (mut guids, mut own_from) = (Vec::new(), 0);
        let no_from = wanted.since.snap().is_none();
        let mut seen_from = if wanted.all { no_from } else { !no_from };
        let mut seen_to = false;
        for snap in wanted.candidates(fs) {
            if snap.txg > to_txg {
                let why = format!("because it was created after the destination snapshot ({})", wanted.to);
                self.notes.push(Note::aside(format!("skipping snapshot {}@{} {why}", fs.name, snap.name)));
                continue;
            }
            let (is_from, is_to) = (wanted.is_from(snap), wanted.is_to(snap));
            snaps.push(snap.name.as_str(), NvValue::Uint64(snap.guid));
            guids.push(snap.guid);
            // Children of a new file system follow its target.
            if is_from || (own_from == 0 && is_to) {
                own_from = snap.guid;
            }
            if !opts.replicate {
                if !seen_from && is_from {
                    seen_from = true;
                    continue;
                }
                if (seen_to || !seen_from) && !(is_to && no_from) {
                    continue;
                }
                seen_to |= is_to;
            }
            props.push(snap.name.as_str(), NvValue::List(list_of(&snap.props)));
            if opts.holds {
                let tags = snap.holds.iter().map(|(tag, time)| (tag.clone(), NvValue::Uint64(*time)));
                holds.push(snap.name.as_str(), NvValue::List(tags.collect()));
            }
        }
        entry.put_list("snaps", snaps);
        entry.put_list("snapprops", props);
        if opts.holds {
            entry.put_list("snapholds", holds);
        }
        (guids, own_from)
    }
}

fn list_of(props: &Named<PropValue>) -> NvList {
    let value = |v: &PropValue| match v {
        PropValue::Num(n) => NvValue::Uint64(*n),
        PropValue::Text(t) => NvValue::String(t.as_str().into()),
    };
    props.iter().map(|(name, v)| (name.clone(), value(v))).collect()
}

/// The order of sending: that of the list, but parents before children and origins before clones.
fn order(members: &[Member<'_>]) -> Vec<usize> {
    let mut owner: BTreeMap<u64, usize> = BTreeMap::new();
    for (i, member) in members.iter().enumerate() {
        for guid in &member.guids {
            owner.entry(*guid).or_insert(i);
        }
    }
    let mut sent = vec![false; members.len()];
    let mut out = Vec::new();
    while out.len() < members.len() {
        let before = out.len();
        for (i, member) in members.iter().enumerate() {
            let origin = member.fs.origin.as_ref().map_or(0, |o| o.guid);
            let waits = |guid: u64| owner.get(&guid).is_some_and(|&of| of != i && !sent[of]);
            if !sent[i] && !waits(member.parent_from) && !waits(origin) {
                sent[i] = true;
                out.push(i);
            }
        }
        if out.len() == before {
            // Promotions can make a parent a clone of its child: the list's order is as good as
            // any.
            out.extend((0..members.len()).filter(|i| !sent[*i]));
        }
    }
    out
}

/// The streams of a file system, and what is wrong if its target is not among them. `origins` are
/// the snapshots that members are clones of.
fn steps_of(fs: &Fs, wanted: Wanted<'_>, origins: &BTreeSet<u64>) -> (Vec<Step>, Option<String>) {
    let replicate = wanted.opts.replicate;
    let has_from = fs.snaps.iter().any(|s| wanted.is_from(s));
    let mut seen_from = wanted.since.snap().is_none() || (replicate && !has_from);
    let mut seen_to = false;
    let mut last: Option<&Snap> = None;
    let mut steps = Vec::new();
    for snap in wanted.candidates(fs) {
        if !seen_from && wanted.is_from(snap) {
            seen_from = true;
            last = Some(snap);
            continue;
        }
        if seen_to || !seen_from {
            continue;
        }
        let is_to = wanted.is_to(snap);
        seen_to |= is_to;
        // Of those between only what clones need.
        let is_origin = replicate && origins.contains(&snap.guid);
        if !(wanted.all || is_to || is_origin) {
            continue;
        }
        let since = last.map(|s| s.name.clone());
        let from = match &since {
            Some(name) => Some(format!("{}@{name}", fs.name)),
            None if replicate || *wanted.since == Since::Origin => fs.origin.as_ref().map(|o| o.name.clone()),
            None => None,
        };
        steps.push(Step { name: format!("{}@{}", fs.name, snap.name), from, since });
        last = Some(snap);
    }
    let full = format!("{}@{}", fs.name, wanted.to);
    let warning = match wanted.since.snap() {
        _ if seen_to => return (steps, None),
        Some(from) => {
            let is = if has_from { "is not earlier than it" } else { "does not exist" };
            format!("WARNING: could not send {full}:\nincremental source ({}@{from}) {is}", fs.name)
        }
        None => format!("WARNING: could not send {full}: does not exist"),
    };
    (steps, Some(warning))
}

#[cfg(test)]
mod tests;
