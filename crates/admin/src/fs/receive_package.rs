//! Packages: streams of several snapshots, with a list of the file systems that they are of (format
//! page 25 sections 5 and 9).
//!
//! The list says for each file system its properties, its snapshots by their guids, and where it
//! stood. An increment of a whole tree (`zfs send -R -i`) also tells by it what was renamed and,
//! for `-F`, what was destroyed at the sender: that is done here before the streams and after them.
//! them.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result};
use dsl::Dataset;
use dsl::props::{self, Prop, PropValue};
use dsl::receive::{Head, Input};
use ondisk::nvlist::{NvList, NvValue};

use crate::engine::PoolEngine;
use crate::fs::mounts::{Force, Unmounted};
use crate::fs::receive::{Part, Receiver, parse_given};
use crate::request::{ReceiveView, ReceiveWhat};

/// Times that a tree is gone over while something changes.
const PASSES_MAX: usize = 64;

/// A file system in the list of a package.
struct Listed {
    /// Its snapshots: guids and names.
    snaps: BTreeMap<u64, String>,
    props: Vec<(String, PropValue)>,
    /// User properties of its snapshots, by their names.
    snap_props: BTreeMap<String, Vec<(String, PropValue)>>,
    /// Tags of holds of its snapshots, by their names.
    holds: BTreeMap<String, Vec<String>>,
    /// Its name at the sender.
    name: String,
    /// The last common snapshot of its parent; 0 for the top.
    parent_from: u64,
    /// The snapshot that it is a clone of.
    origin: Option<u64>,
    /// It has a key of its own. The list says nothing of others, and of those that are not
    /// encrypted.
    is_encroot: bool,
}

/// The list of a package.
pub(super) struct List {
    fss: Vec<Listed>,
    /// The file system of each snapshot, by its guid.
    of: BTreeMap<u64, usize>,
    /// The snapshot that the increments start from.
    from_snap: Option<String>,
    /// There are snapshots of a whole tree.
    recursive: bool,
    /// The streams are raw.
    raw: bool,
}

fn values(list: &NvList) -> Vec<(String, PropValue)> {
    let value = |v: &NvValue| match v {
        NvValue::Uint64(n) => Some(PropValue::Num(*n)),
        NvValue::String(text) => Some(PropValue::Text(text.clone())),
        _ => None,
    };
    list.iter().filter_map(|(name, v)| Some((name.to_string(), value(v)?))).collect()
}

/// The lists within a list.
fn lists<'a>(list: &'a NvList, name: &str) -> impl Iterator<Item = (String, &'a NvList)> {
    let within = |(name, v): (&str, &'a NvValue)| match v {
        NvValue::List(own) => Some((name.to_string(), own)),
        _ => None,
    };
    list.list(name).into_iter().flat_map(NvList::iter).filter_map(within)
}

impl List {
    /// The list after the BEGIN of a package; a package may have none.
    pub(super) fn parse(list: &NvList) -> List {
        let fss: Vec<Listed> = lists(list, "fss").map(|(_, fs)| Listed::parse(fs)).collect();
        List {
            of: fss.iter().enumerate().flat_map(|(n, fs)| fs.snaps.keys().map(move |guid| (*guid, n))).collect(),
            fss,
            from_snap: list.str("fromsnap").map(str::to_string),
            recursive: !list.contains("not_recursive"),
            raw: list.contains("raw"),
        }
    }

    /// The file system of a snapshot.
    fn of(&self, guid: Guid) -> Option<&Listed> {
        self.of.get(&guid.0).map(|n| &self.fss[*n])
    }

    /// What is known about the stream of a snapshot.
    fn part(&self, top: &str, guid: Guid) -> Part {
        let recursive = self.recursive;
        let Some(fs) = self.of(guid) else { return Part { top: top.into(), recursive, ..Part::default() } };
        let snap = fs.snaps.get(&guid.0).map_or("", String::as_str);
        Part {
            top: top.into(),
            is_below: fs.name != top,
            recursive,
            parent_snap: Guid(fs.parent_from),
            props: Some(fs.received()),
            snap_props: fs.snap_props.get(snap).cloned().unwrap_or_default(),
            holds: fs.holds.get(snap).cloned().unwrap_or_default(),
        }
    }
}

impl Listed {
    fn parse(fs: &NvList) -> Listed {
        let snaps = fs.list("snaps").into_iter().flat_map(NvList::iter);
        let tags = |own: &NvList| own.iter().map(|(tag, _)| tag.to_string()).collect();
        Listed {
            snaps: snaps
                .filter_map(|(name, v)| match v {
                    NvValue::Uint64(guid) => Some((*guid, name.to_string())),
                    _ => None,
                })
                .collect(),
            props: fs.list("props").map(values).unwrap_or_default(),
            snap_props: lists(fs, "snapprops").map(|(name, own)| (name, values(own))).collect(),
            holds: lists(fs, "snapholds").map(|(name, own)| (name, tags(own))).collect(),
            name: fs.str("name").unwrap_or_default().to_string(),
            parent_from: fs.u64("parentfromsnap").unwrap_or(0),
            origin: fs.u64("origin").filter(|guid| *guid != 0),
            is_encroot: fs.bool_flag("is_encroot"),
        }
    }

    /// The properties that can be set here, with values that a user could give them.
    fn received(&self) -> Vec<(String, PropValue)> {
        let is_taken = |(name, value): &&(String, PropValue)| match props::find(name) {
            Some(known) => known.settable() && !matches!(known.name, "keylocation" | "volsize") && can_be(known, value),
            None => props::is_user_prop(name) && matches!(value, PropValue::Text(text) if text.len() < 8192),
        };
        self.props.iter().filter(is_taken).cloned().collect()
    }

    /// The last part of its name.
    fn last(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or_default()
    }
}

/// Whether a user could set that value: what comes in a stream may be anything.
fn can_be(prop: &Prop, value: &PropValue) -> bool {
    let text = prop.format(value, !matches!(value, PropValue::Num(0 | u64::MAX)));
    let parsed = parse_given(&[(prop.name.to_string(), text)]);
    parsed.is_ok_and(|values| values.first().is_some_and(|(_, v)| v == value))
}

impl PoolEngine {
    /// Receives all parts of a package whose BEGIN is `head`.
    pub(super) async fn receive_package(
        &self,
        what: &ReceiveWhat,
        by: &Receiver,
        head: Head,
        input: &mut Input<'_>,
        view: &mut ReceiveView,
    ) -> Result<()> {
        let Head { begin, list } = head;
        let cost = rt::cost::COPY.cost(u64::from(begin.payload_len) * 16);
        let list = self.pool.rt().cpu(cost, move || List::parse(&list)).await;
        if list.recursive && !list.fss.is_empty() && what.target.contains('@') {
            let text = "cannot receive: cannot specify snapshot name for multi-snapshot stream";
            return Err(Error::invalid(text));
        }
        let sent_as = String::from_utf8_lossy(&begin.to_name).into_owned();
        let top = sent_as.split('@').next().unwrap_or_default().to_string();
        let follows = list.recursive && list.from_snap.is_some() && !what.dry_run;
        let tree = super::receive::name_for(what.naming, &what.target, &format!("{top}@"), &top)?;
        let tree = tree.trim_end_matches('@');
        if follows && by.limited.is_some() {
            let why = "only the owner of the daemon follows what was renamed and destroyed at the sender";
            let advice = "send each file system without -R";
            return Err(Error::new(ErrorKind::Denied, format!("cannot receive: permission denied: {why}: {advice}")));
        }
        if follows {
            self.follow(what, tree, &list, view).await?;
        }
        while let Some(head) = input.begin().await.map_err(|e| e.at("cannot receive"))? {
            if head.is_package() {
                return Err(Error::invalid("cannot receive: a package lies within another"));
            }
            let part = list.part(&top, head.begin.to_guid);
            self.receive_part(what, by, head, part, input, view).await?;
        }
        if list.raw && !what.dry_run {
            self.take_keys(what, (tree, &top), by, &list, view).await?;
        }
        if follows {
            self.follow(what, tree, &list, view).await?;
        }
        Ok(())
    }

    /// File systems that came raw get their keys from where they have them at the sender: from
    /// their parents, or from the place that is told with them, unless `-o` tells another.
    async fn take_keys(
        &self,
        what: &ReceiveWhat,
        (tree, top): (&str, &str),
        by: &Receiver,
        list: &List,
        view: &mut ReceiveView,
    ) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let dsl = self.pool.dsl();
        let is_told = what.props.iter().any(|(name, _)| name == "keylocation");
        for head in self.heads_in(tree) {
            let name = head.name();
            if let Some(who) = &by.limited
                && !self.has_permission(who, &name, "change-key").await?
            {
                continue;
            }
            let snaps = dsl.snapshots(&head).await?;
            // Several may have a snapshot in common: then it is the one with this place in the
            // tree.
            let is_it = |fs: &&Listed| snaps.iter().any(|s| fs.snaps.contains_key(&s.phys().guid));
            let place = |fs: &&Listed| fs.name.strip_prefix(top) == name.strip_prefix(tree);
            let Some(listed) = list.fss.iter().filter(is_it).max_by_key(place) else { continue };
            if !listed.is_encroot {
                if name != tree {
                    dsl.inherit_received_key(&name).await?;
                }
                continue;
            }
            let given = listed.props.iter().find(|(prop, _)| prop == "keylocation");
            let given = given.and_then(|(_, value)| if let PropValue::Text(text) = value { Some(text) } else { None });
            if let Some(place) = given.filter(|_| name != tree || !is_told)
                && dsl.is_encryption_root(&head.dir())
                && head.dir().prop("keylocation").0.text() != place
            {
                let set = self.set_inner(&name, &[("keylocation".to_string(), place.clone())], false).await;
                view.warnings.extend(set.err().map(|e| e.to_string()));
            }
        }
        Ok(())
    }

    /// The file systems of a tree, parents first.
    fn heads_in(&self, tree: &str) -> Vec<Rc<Dataset>> {
        let is_in = |name: &str| name == tree || name.strip_prefix(tree).is_some_and(|rest| rest.starts_with('/'));
        let mut heads: Vec<Rc<Dataset>> = self.pool.dsl().all();
        heads.retain(|h| !h.dir().is_hidden() && is_in(&h.name()));
        heads.sort_by_key(|h| h.name());
        heads
    }

    /// Promotes, renames and, with `-F`, destroys below `tree` what was promoted, renamed and
    /// destroyed at the sender. What cannot be done now is tried again after the rest.
    async fn follow(&self, what: &ReceiveWhat, tree: &str, list: &List, view: &mut ReceiveView) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        for _ in 0..PASSES_MAX {
            let mut changed = false;
            for head in self.heads_in(tree).into_iter().rev() {
                if !head.is_gone() {
                    changed |= self.follow_one(what, (tree, &head), list, view).await?;
                }
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }

    /// Makes one file system as it is at the sender; true if something changed.
    async fn follow_one(
        &self,
        what: &ReceiveWhat,
        (tree, head): (&str, &Rc<Dataset>),
        list: &List,
        view: &mut ReceiveView,
    ) -> Result<bool> {
        let (dsl, name) = (self.pool.dsl().clone(), head.name());
        let snaps = dsl.snapshots(head).await?;
        // By the newest: a promotion at the sender gives older ones to another file system.
        let Some(listed) = snaps.iter().rev().find_map(|s| list.of(Guid(s.phys().guid))) else {
            let names: Vec<String> = snaps.iter().map(|s| s.name()).collect();
            drop(snaps);
            return if what.force && name != tree { self.destroy_gone(what, &name, names).await } else { Ok(false) };
        };
        if self.is_to_be_promoted(head, listed).await? {
            dsl.promote(&name).await?;
            return Ok(true);
        }
        let gone = snaps.iter().filter(|s| list.of(Guid(s.phys().guid)).is_none()).map(|s| s.name());
        let gone: Vec<String> = gone.filter(|_| what.force).collect();
        let renamed = snaps.iter().filter_map(|s| {
            let wanted = list.of(Guid(s.phys().guid))?.snaps.get(&s.phys().guid)?;
            (*wanted != s.snapname()).then(|| (s.name(), format!("{name}@{wanted}")))
        });
        let renamed: Vec<(String, String)> = renamed.collect();
        drop(snaps);
        let mut changed = false;
        if !gone.is_empty() {
            dsl.destroy_snapshots(gone, false).await?;
            changed = true;
        }
        for (old, new) in renamed {
            // One whose name is still taken comes in a later pass.
            if dsl.find_snapshot(&new).await.is_err() {
                dsl.rename_snapshot(&old, &new, false).await?;
                changed = true;
            }
        }
        if name != tree && self.follow_name(what, (tree, head), listed, view).await? {
            changed = true;
        }
        Ok(changed)
    }

    /// Destroys a file system that the sender does not have, unless others depend on it still.
    async fn destroy_gone(&self, what: &ReceiveWhat, name: &str, snaps: Vec<String>) -> Result<bool> {
        let dsl = self.pool.dsl();
        let head = self.find(name)?;
        if !self.dependents(&head).await?.iter().all(|d| snaps.contains(d)) {
            return Ok(false);
        }
        drop(head);
        self.unmount_these(&[name.to_string()], Force::full(what.force_unmount)).await?;
        if !snaps.is_empty() {
            dsl.destroy_snapshots(snaps, false).await?;
        }
        dsl.destroy_fs(name).await?;
        Ok(true)
    }

    /// Whether a clone has become the file system that its origin belongs to.
    async fn is_to_be_promoted(&self, head: &Rc<Dataset>, listed: &Listed) -> Result<bool> {
        let Some(origin) = self.pool.dsl().origin_of(head).await? else { return Ok(false) };
        Ok(listed.origin.is_none() && listed.snaps.contains_key(&origin.phys().guid))
    }

    /// Renames a file system to where it stands at the sender; true if it was elsewhere.
    async fn follow_name(
        &self,
        what: &ReceiveWhat,
        (tree, head): (&str, &Rc<Dataset>),
        listed: &Listed,
        view: &mut ReceiveView,
    ) -> Result<bool> {
        let (dsl, name) = (self.pool.dsl(), head.name());
        let Some((parent, last)) = name.rsplit_once('/') else { return Ok(false) };
        let mut above = parent.to_string();
        if listed.parent_from != 0 {
            for other in self.heads_in(tree) {
                let snaps = dsl.snapshots(&other).await?;
                if snaps.iter().any(|s| s.phys().guid == listed.parent_from) {
                    above = other.name();
                    break;
                }
            }
        }
        let wanted_last = if listed.last().is_empty() { last } else { listed.last() };
        let wanted = format!("{above}/{wanted_last}");
        if wanted == name || wanted.starts_with(&format!("{name}/")) {
            return Ok(false);
        }
        // What stands there may have to go somewhere else first.
        let aside = format!("{tree}/recv-{:x}", head.phys().guid);
        let to = match dsl.find_dir(&wanted) {
            Err(_) => &wanted,
            Ok(_) if name != aside => &aside,
            Ok(_) => return Ok(false),
        };
        let unmounted = self.unmount_these(std::slice::from_ref(&name), Force::full(what.force_unmount)).await?;
        let done = dsl.rename(&name, to).await;
        let again: Vec<_> = unmounted
            .into_iter()
            .map(|u| match (u.name.strip_prefix(&name), &done) {
                (Some(rest), Ok(())) => Unmounted { name: format!("{to}{rest}"), ..u },
                _ => u,
            })
            .collect();
        let errors = self.mount_again(&again).await;
        view.warnings.extend(errors.iter().map(Error::to_string));
        done.map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_say_what_belongs_to_a_snapshot() {
        let fs = NvList::new()
            .with_str("name", "p/a/b")
            .with_u64("parentfromsnap", 7)
            .with_list(
                "props",
                NvList::new()
                    .with_u64("compression", 15)
                    .with_str("x:y", "z")
                    .with_u64("used", 5)
                    .with_u64("recordsize", 3)
                    .with_str("atime", "off")
                    .with_u64("copies", 9),
            )
            .with_list("snaps", NvList::new().with_u64("one", 11).with_u64("two", 12))
            .with_list("snapholds", NvList::new().with_list("two", NvList::new().with_u64("keep", 1)))
            .with_list("snapprops", NvList::new().with_list("two", NvList::new().with_str("m:n", "o")));
        let list = NvList::new()
            .with_str("fromsnap", "one")
            .with_str("tosnap", "two")
            .with_list("fss", NvList::new().with_list("0x5", fs));
        let parsed = List::parse(&list);
        assert!(parsed.recursive && parsed.from_snap.as_deref() == Some("one"));
        assert!(parsed.of(Guid(13)).is_none());
        let b = parsed.of(Guid(12)).unwrap();
        assert_eq!((b.last(), b.parent_from, b.snaps[&12].as_str()), ("b", 7, "two"));
        let names: Vec<String> = b.received().into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["compression", "x:y"]);
        let part = parsed.part("p/a", Guid(12));
        assert!(part.is_below && part.holds == ["keep"] && b.origin.is_none() && !b.is_encroot);
        assert!(!parsed.part("p/a/b", Guid(12)).is_below && parsed.part("p", Guid(13)).props.is_none());
        assert_eq!(b.snap_props["two"], [("m:n".to_string(), PropValue::Text("o".into()))]);
        assert!(!List::parse(&NvList::new().with_flag("not_recursive")).recursive);
    }
}
