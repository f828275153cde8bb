//! `zfs snapshot`, `rollback`, `clone`, `promote`, `hold`, `release`, `holds`, `bookmark`.

use admin::request::{Bookmark, FsClone, Hold, Holds, Promote, Redact, Rollback, Snapshot};
use admin::view::HoldView;
use base::Error;

use crate::opts::Parsed;
use crate::table::{Column, scripted, table};
use crate::{Done, Fail, ask, print, properties};

fn usage<T>(what: &str, topic: &'static str) -> Result<T, Fail> {
    Err(Fail::Usage(what.into(), topic))
}

/// `zfs snapshot`
pub fn snapshot(p: &Parsed) -> Done {
    if p.operands.is_empty() {
        return usage("missing snapshot argument", "snapshot");
    }
    if let Some(bad) = p.operands.iter().find(|n| !n.contains('@')) {
        return usage(&format!("missing '@' delimiter in snapshot name '{bad}'"), "snapshot");
    }
    let props = properties(p, 'o', "snapshot")?;
    let done: Done = ask(&Snapshot { names: p.operands.clone(), recursive: p.has('r'), props });
    match done {
        Err(Fail::Error(e)) if p.has('r') || p.operands.len() > 1 => {
            eprintln!("{e}\nno snapshots were created");
            Err(Fail::AlreadyReported)
        }
        other => other,
    }
}

/// `zfs rollback`
pub fn rollback(p: &Parsed) -> Done {
    let [name] = p.operands.as_slice() else {
        let what = if p.operands.is_empty() { "missing dataset argument" } else { "too many arguments" };
        return usage(what, "rollback");
    };
    let (recursive, clones, force) = (p.has('r'), p.has('R'), p.has('f'));
    ask(&Rollback { name: name.clone(), recursive, clones, force })
}

/// `zfs clone`
pub fn clone(p: &Parsed) -> Done {
    let [snapshot, name] = p.operands.as_slice() else {
        let what = match p.operands.len() {
            0 => "missing source dataset argument",
            1 => "missing target dataset argument",
            _ => "too many arguments",
        };
        return usage(what, "clone");
    };
    let props = properties(p, 'o', "clone")?;
    let props = crate::zfs_owners::with_numbers(props, &format!("cannot create '{name}'"))?;
    let (parents, no_mount) = (p.has('p'), p.has('u'));
    let clone = FsClone { snapshot: snapshot.clone(), name: name.clone(), props, parents, no_mount };
    crate::zfs::ask_and_warn(&clone)
}

/// `zfs promote`
pub fn promote(p: &Parsed) -> Done {
    let [name] = p.operands.as_slice() else {
        let what = if p.operands.is_empty() { "missing clone filesystem argument" } else { "too many arguments" };
        return usage(what, "promote");
    };
    crate::zfs::file_system_name(name)?;
    ask(&Promote { name: name.clone() })
}

/// `zfs hold` and `zfs release`
pub fn hold(p: &Parsed, release: bool) -> Done {
    let topic = if release { "release" } else { "hold" };
    let Some((tag, names)) = p.operands.split_first().filter(|(_, names)| !names.is_empty()) else {
        return usage("missing tag or snapshot argument", topic);
    };
    if !release && tag.starts_with('.') {
        return usage("tag may not start with '.'", topic);
    }
    if let Some(bad) = names.iter().find(|n| !n.contains('@')) {
        return Err(Error::invalid(format!("'{bad}' is not a snapshot")).into());
    }
    ask(&Hold { tag: tag.clone(), names: names.to_vec(), recursive: p.has('r'), release })
}

/// `zfs holds`
pub fn holds(p: &Parsed) -> Done {
    if p.operands.is_empty() {
        return usage("missing snapshot argument", "holds");
    }
    let mut holds: Vec<HoldView> = Vec::new();
    let done = crate::zpool::for_each_name(&p.operands, |name| {
        holds.extend(ask(&Holds { names: vec![name], recursive: p.has('r') })?);
        Ok(())
    })?;
    if holds.is_empty() && done.is_err() {
        return done;
    }
    let rows: Vec<Vec<String>> =
        holds.into_iter().map(|h| vec![h.name, h.tag, admin::view::fmt::date(h.time)]).collect();
    if p.has('H') {
        print(&scripted(&rows));
    } else {
        let columns = [Column::text("NAME"), Column::text("TAG"), Column::text("TIMESTAMP")];
        print(&table(&columns, &rows));
    }
    done
}

/// `zfs redact`
pub fn redact(p: &Parsed) -> Done {
    let [snapshot, bookmark, by @ ..] = p.operands.as_slice() else { return usage("too few arguments", "redact") };
    if by.is_empty() {
        return usage("too few arguments", "redact");
    }
    ask(&Redact { snapshot: snapshot.clone(), bookmark: bookmark.clone(), by: by.to_vec() })
}

/// `zfs bookmark`
pub fn bookmark(p: &Parsed) -> Done {
    let [from, to] = p.operands.as_slice() else {
        let what = if p.operands.is_empty() { "missing snapshot argument" } else { "missing bookmark argument" };
        return usage(what, "bookmark");
    };
    // One of the two may be without the name of the file system.
    let whole = |name: &str, other: &str| match name.starts_with(['@', '#']) {
        true => format!("{}{name}", other.split(['@', '#']).next().unwrap_or("")),
        false => name.to_string(),
    };
    let (from, to) = (&whole(from, to), &whole(to, from));
    ask(&Bookmark { from: from.clone(), to: to.clone() })
}
