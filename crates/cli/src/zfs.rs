//! The command `zfs`.

use admin::fs::owners::Owners;
use admin::fs::temp_props::MountHow;
use admin::request::{
    Datasets, FsDestroy, FsInherit, FsRename, FsSet, Mount, Mounted, Request, Select, SnapRename, Unmount,
};
use admin::view::{DatasetView, Destroyed};
use base::Error;

use crate::opts::Parsed;
use crate::zfs_out::{self, LIST_COLUMNS, SPACE_COLUMNS, SortKey};
use crate::zpool::{fields, for_each_name, parse_for, run_other};
use crate::zpool_out::get_table;
use crate::{
    Done, Fail, ask, assignment, json, print, unique, wait, zfs_allow, zfs_create, zfs_diff, zfs_key, zfs_owners,
    zfs_program, zfs_project, zfs_receive, zfs_rewrite, zfs_send, zfs_share, zfs_snap, zfs_upgrade,
};

/// Runs `zfs ARGS`.
pub fn run(args: &[String]) -> Done {
    let Some(command) = args.first() else { return Err(Fail::Usage("missing command".into(), "")) };
    let rest = &args[1..];
    const J: &[(&str, bool, char)] = &[("json", false, 'j')];
    match command.as_str() {
        "create" => zfs_create::create(&parse(rest, "Pnpuvo:V:b:s", &[], "create")?),
        "destroy" => destroy(&parse(rest, "fnpRrvd", &[], "destroy")?),
        "snapshot" | "snap" => zfs_snap::snapshot(&parse(rest, "ro:", &[], "snapshot")?),
        "rollback" => zfs_snap::rollback(&parse(rest, "rRf", &[], "rollback")?),
        "clone" => zfs_snap::clone(&parse(rest, "po:u", &[], "clone")?),
        "promote" => zfs_snap::promote(&parse(rest, "", &[], "promote")?),
        "hold" => zfs_snap::hold(&parse(rest, "r", &[], "hold")?, false),
        "release" => zfs_snap::hold(&parse(rest, "r", &[], "release")?, true),
        "holds" => zfs_snap::holds(&parse(rest, "rH", &[], "holds")?),
        "bookmark" => zfs_snap::bookmark(&parse(rest, "", &[], "bookmark")?),
        "redact" => zfs_snap::redact(&parse(rest, "", &[], "redact")?),
        "send" => zfs_send::send(&parse(rest, zfs_send::LETTERS, zfs_send::LONG, "send")?),
        "diff" => zfs_diff::diff(&parse(rest, "FHth", &[], "diff")?),
        "receive" | "recv" => zfs_receive::receive(&parse(rest, "vMnsFhdeucAo:x:", &[], "receive")?),
        "list" => list(&parse(rest, "Hprd:o:t:s:S:j", &json::Shape::LONG[..2], "list")?),
        "get" => get(&parse(rest, "Hprd:o:s:t:j", &json::Shape::LONG[..2], "get")?),
        "set" => set(&parse(rest, "u", &[], "set")?),
        "load-key" => zfs_key::load(&parse(rest, "rnaL:", &[], "load-key")?),
        "unload-key" => zfs_key::unload(&parse(rest, "ra", &[], "unload-key")?),
        "change-key" => zfs_key::change(&parse(rest, "lio:", &[], "change-key")?),
        "inherit" => inherit(&parse(rest, "rS", &[], "inherit")?),
        "rename" => rename(&parse(rest, "fpur", &[], "rename")?),
        "program" => zfs_program::program(&parse(rest, zfs_program::LETTERS, J, "program")?),
        "rewrite" => zfs_rewrite::rewrite(&parse(rest, "Prvxl:o:", &[], "rewrite")?),
        "mount" => mount(&parse(rest, "afjlvOo:", &[("json", false, 'j')], "mount")?),
        "wait" => wait::delete_queue(&parse(rest, "t:", &[], "wait")?),
        "unmount" | "umount" => unmount(&parse(rest, "afu", &[], "unmount")?),
        "share" => zfs_share::share(&parse(rest, "al", &[], "share")?),
        "unshare" => zfs_share::unshare(&parse(rest, "a", &[], "unshare")?),
        "userspace" => zfs_owners::space(&parse(rest, "Hinpo:s:S:t:", &[], "userspace")?, Owners::Users, "userspace"),
        "groupspace" => {
            zfs_owners::space(&parse(rest, "Hinpo:s:S:t:", &[], "groupspace")?, Owners::Groups, "groupspace")
        }
        "projectspace" => {
            zfs_owners::space(&parse(rest, "Hpo:s:S:", &[], "projectspace")?, Owners::Projects, "projectspace")
        }
        "allow" => zfs_allow::allow(&parse(rest, "ldugecs", &[], "allow")?),
        "unallow" => zfs_allow::unallow(&parse(rest, "ldugecsr", &[], "unallow")?),
        "upgrade" => zfs_upgrade::upgrade(&parse(rest, "arvV:", &[], "upgrade")?),
        "project" => zfs_project::project(&parse(rest, "0Ccdkp:rs", &[], "project")?),
        other => run_other("zfs", other, rest, &[]),
    }
}

fn parse(
    args: &[String],
    letters: &'static str,
    long: &'static [(&'static str, bool, char)],
    topic: &'static str,
) -> Result<Parsed, Fail> {
    parse_for("zfs", args, letters, long, topic)
}

/// Fails for the name of a snapshot or bookmark.
pub(crate) fn file_system_name(name: &str) -> Done {
    let kinds = [('@', "snapshot"), ('#', "bookmark")];
    match kinds.iter().find(|(sign, _)| name.contains(*sign) && !name.starts_with('/')) {
        Some((sign, kind)) => {
            Err(Error::invalid(format!("cannot open '{name}': {kind} delimiter '{sign}' is not expected here")).into())
        }
        None => Ok(()),
    }
}

/// Selects one dataset, without properties.
pub(crate) fn select_one(name: &str) -> Select {
    let (names, wanted) = (vec![name.to_string()], vec!["name".to_string()]);
    Select { filesystems: true, volumes: true, snapshots: true, depth: Some(0), names, wanted, ..Select::default() }
}

fn destroy(p: &Parsed) -> Done {
    let [name] = p.operands.as_slice() else {
        let what = if p.operands.is_empty() { "missing dataset argument" } else { "too many arguments" };
        return Err(Fail::Usage(what.into(), "destroy"));
    };
    if name.starts_with('/') {
        return Err(Error::invalid(format!("cannot open '{name}': leading slash in name")).into());
    }
    let dry_run = p.has('n');
    // As in OpenZFS, and in its order: a bookmark is destroyed by its plain name only.
    let refused = [('n', "dryrun"), ('d', "defer destroy"), ('r', "recursive"), ('R', "recursive")];
    if name.contains('#')
        && let Some((_, what)) = refused.iter().find(|(letter, _)| p.has(*letter))
    {
        return Err(Error::invalid(format!("{what} is not supported with bookmark")).into());
    }
    if p.has('d') && !name.contains('@') {
        return Err(Fail::Usage("invalid option 'd': only snapshots can be destroyed later".into(), "destroy"));
    }
    let request = FsDestroy {
        name: name.clone(),
        recursive: p.has('r'),
        clones: p.has('R'),
        defer: p.has('d'),
        force: p.has('f'),
        dry_run,
    };
    let done: Destroyed = ask(&request)?;
    let (word, gain) = if dry_run { ("would destroy", "would reclaim") } else { ("will destroy", "will reclaim") };
    let mut text = String::new();
    if p.has('p') {
        text.extend(done.names.iter().map(|n| format!("destroy\t{n}\n")));
        text.extend(done.reclaim.map(|n| format!("reclaim\t{n}\n")));
    } else if p.has('v') {
        text.extend(done.names.iter().map(|n| format!("{word} {n}\n")));
        text.extend(done.reclaim.map(|n| format!("{gain} {}\n", admin::view::fmt::bytes(n))));
    }
    print(&text);
    Ok(())
}

/// The types that `-t` names.
fn types(p: &Parsed, topic: &'static str, select: &mut Select) -> Result<bool, Fail> {
    let mut any = false;
    for word in p.values('t').flat_map(|v| v.split(',')) {
        if !any {
            (select.filesystems, select.volumes, select.snapshots) = (false, false, false);
            select.bookmarks = false;
        }
        any = true;
        match word {
            "filesystem" | "fs" => select.filesystems = true,
            "volume" | "vol" => select.volumes = true,
            "snapshot" | "snap" => select.snapshots = true,
            "bookmark" => select.bookmarks = true,
            "all" => {
                (select.filesystems, select.volumes, select.snapshots) = (true, true, true);
                select.bookmarks = true;
            }
            other => return Err(Fail::Usage(format!("invalid type '{other}'"), topic)),
        }
    }
    Ok(any)
}

/// The depth that `-r` and `-d` ask for.
fn depth(p: &Parsed, topic: &'static str) -> Result<Option<u32>, Fail> {
    match p.value('d') {
        Some(d) => d.parse().map(Some).map_err(|_| Fail::Usage(format!("'{d}' is not a depth"), topic)),
        None if p.has('r') => Ok(None),
        None => Ok(Some(0)),
    }
}

/// Names are datasets, or paths in mounted file systems.
fn names(operands: &[String]) -> Result<Vec<String>, Fail> {
    let path = |n: &String| {
        if n.starts_with('/') || n.starts_with("./") || n == "." || n.starts_with("../") {
            // The daemon sees the folder that holds it only.
            if let Err(e) = std::fs::metadata(n)
                && matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
            {
                return Err(Error::not_found(format!("cannot open '{n}': no such file or directory")).into());
            }
            crate::absolute(n)
        } else {
            Ok(n.trim_end_matches('/').to_string())
        }
    };
    operands.iter().map(path).collect()
}

/// As [`names`], where OpenZFS takes no path: the property of what a path is in would be changed.
fn only_names(operands: &[String]) -> Result<Vec<String>, Fail> {
    match operands.iter().find(|n| n.starts_with('/')) {
        Some(path) => Err(Error::invalid(format!("cannot open '{path}': leading slash in name")).into()),
        None => names(operands),
    }
}

fn list(p: &Parsed) -> Done {
    let shape = json::Shape::of(p).map_err(|e| Fail::Usage(e, "list"))?;
    let exact = p.has('p') || shape.integers;
    let mut columns: Vec<String> = Vec::new();
    let mut select = Select { filesystems: true, volumes: true, ..Select::default() };
    let typed = types(p, "list", &mut select)?;
    for name in p.values('o').flat_map(|v| v.split(',')) {
        if name == "space" {
            columns.extend(SPACE_COLUMNS.iter().map(|c| c.to_string()));
            continue;
        }
        let known = zfs_out::canonical(name);
        columns
            .push(known.ok_or_else(|| Fail::Usage(format!("bad property list: invalid property '{name}'"), "list"))?);
    }
    if columns.is_empty() {
        columns = LIST_COLUMNS.iter().map(|c| c.to_string()).collect();
    }
    let mut keys = Vec::new();
    for (letter, name) in p.options().iter().filter(|(l, _)| matches!(l, 's' | 'S')) {
        let known =
            zfs_out::canonical(name).ok_or_else(|| Fail::Usage(format!("invalid property '{name}'"), "list"))?;
        keys.push(SortKey { name: known, descending: *letter == 'S' });
    }
    select.names = names(&p.operands)?;
    select.depth = depth(p, "list")?;
    select.by_type = p.has('r') || p.has('d');
    if !typed && select.names.iter().any(|n| n.contains('@')) {
        select.snapshots = select.names.iter().all(|n| n.contains('@'));
    }
    if !p.has('j') {
        select.wanted = columns.iter().cloned().chain(keys.iter().map(|k| k.name.clone())).collect();
    }
    let asked = zfs_owners::Asked::replace(&mut select.wanted);
    let (mut datasets, done) = datasets(select)?;
    asked.restore(&mut datasets);
    crate::local_times(&mut datasets);
    zfs_out::sort(&mut datasets, &keys);
    if p.has('j') {
        print(&json::datasets("zfs list", &datasets, &columns, (exact, shape)));
    } else if datasets.is_empty() {
        if !p.has('H') && done.is_ok() {
            eprintln!("no datasets available");
        }
    } else {
        print(&zfs_out::list(&datasets, &columns, p.has('H'), p.has('p')));
    }
    done
}

/// The selected datasets, and the result for the names: as in OpenZFS a missing dataset is an
/// error, and the others are shown.
fn datasets(select: Select) -> Result<(Vec<DatasetView>, Done), Fail> {
    if select.names.len() < 2 {
        return Ok((ask(&Datasets(select))?, Ok(())));
    }
    let mut out: Vec<DatasetView> = Vec::new();
    let done = for_each_name(&select.names, |name| {
        let one = Select { names: vec![name], ..select.clone() };
        out.extend(ask(&Datasets(one))?);
        Ok(())
    })?;
    let mut seen = std::collections::BTreeSet::new();
    out.retain(|d| seen.insert(d.name.clone()));
    Ok((out, done))
}

fn get(p: &Parsed) -> Done {
    let shape = json::Shape::of(p).map_err(|e| Fail::Usage(e, "get"))?;
    let exact = p.has('p') || shape.integers;
    let fields = fields(p, &["name", "property", "value", "received", "source"], "get")?;
    let Some((wanted, operands)) = p.operands.split_first() else {
        return Err(Fail::Usage("missing property argument".into(), "get"));
    };
    let wanted: Vec<String> = wanted.split(',').map(str::to_string).collect();
    if let Some(bad) = wanted.iter().find(|w| zfs_out::canonical(w).is_none() && (*w != "all" || wanted.len() > 1)) {
        return Err(Fail::Usage(format!("bad property list: invalid property '{bad}'"), "get"));
    }
    let mut sources: Vec<String> = Vec::new();
    for word in p.values('s').flat_map(|v| v.split(',')) {
        if !["local", "default", "inherited", "received", "temporary", "none"].contains(&word) {
            return Err(Fail::Usage(format!("invalid source '{word}'"), "get"));
        }
        sources.push(word.to_string());
    }
    let mut select = Select { filesystems: true, volumes: true, snapshots: true, ..Select::default() };
    types(p, "get", &mut select)?;
    select.names = names(operands)?;
    select.depth = depth(p, "get")?;
    select.by_type = p.has('r') || p.has('d');
    if !p.has('j') && !wanted.iter().any(|w| w == "all") {
        select.wanted = wanted.iter().filter_map(|w| zfs_out::canonical(w)).collect();
    }
    let asked = zfs_owners::Asked::replace(&mut select.wanted);
    let (mut datasets, done) = datasets(select)?;
    asked.restore(&mut datasets);
    crate::local_times(&mut datasets);
    if p.has('j') {
        let columns: Vec<String> = wanted.iter().map(|w| zfs_out::canonical(w).unwrap_or_else(|| w.clone())).collect();
        print(&json::datasets("zfs get", &datasets, &columns, (exact, shape)));
        return done;
    }
    let rows = zfs_out::rows(&datasets, &wanted, &sources).map_err(|e| Fail::Usage(e, "get"))?;
    if !rows.is_empty() {
        print(&get_table(&rows, &fields, p.has('H'), p.has('p')));
    }
    done
}

fn set(p: &Parsed) -> Done {
    let (props, rest): (Vec<&String>, Vec<&String>) = p.operands.iter().partition(|o| o.contains('='));
    if props.is_empty() {
        return Err(Fail::Usage("missing property=value argument(s)".into(), "set"));
    }
    if rest.is_empty() {
        return Err(Fail::Usage("missing dataset name(s)".into(), "set"));
    }
    if p.operands.iter().skip_while(|o| o.contains('=')).any(|o| o.contains('=')) {
        return Err(Fail::Usage("invalid argument order: properties come before datasets".into(), "set"));
    }
    let props = unique(props.into_iter().map(|o| assignment(o, "set")).collect::<Result<Vec<_>, _>>()?)?;
    let rest: Vec<String> = rest.into_iter().cloned().collect();
    let props = zfs_owners::with_numbers(props, "cannot set property")?;
    ask_and_warn(&FsSet { names: only_names(&rest)?, props, no_remount: p.has('u') })
}

fn inherit(p: &Parsed) -> Done {
    let Some((prop, rest)) = p.operands.split_first() else {
        return Err(Fail::Usage("missing property argument".into(), "inherit"));
    };
    if rest.is_empty() {
        return Err(Fail::Usage("missing dataset argument".into(), "inherit"));
    }
    if dsl::props::find(prop).is_none() && !dsl::props::is_user_prop(prop) {
        return Err(Fail::Usage(format!("invalid property '{prop}'"), "inherit"));
    }
    ask_and_warn(&FsInherit {
        names: only_names(rest)?,
        prop: prop.clone(),
        recursive: p.has('r'),
        received: p.has('S'),
    })
}

fn rename(p: &Parsed) -> Done {
    let [from, to] = p.operands.as_slice() else {
        let what = match p.operands.len() {
            0 => "missing source dataset argument",
            1 => "missing target dataset argument",
            _ => "too many arguments",
        };
        return Err(Fail::Usage(what.into(), "rename"));
    };
    if let Some((fs, _)) = from.split_once('@') {
        // The new name may be without that of the file system.
        let to = match to.split_once('@') {
            Some(("", last)) => format!("{fs}@{last}"),
            None => format!("{fs}@{to}"),
            Some(_) => to.clone(),
        };
        if p.has('p') {
            let why = format!("cannot open '{from}': operation not applicable to datasets of this type");
            return Err(Error::invalid(why).into());
        }
        let from = from.clone();
        return ask(&SnapRename { from, to, recursive: p.has('r') });
    }
    if p.has('r') {
        return Err(Fail::Usage("-r renames snapshots only".into(), "rename"));
    }
    ask(&FsRename {
        from: from.clone(),
        to: to.clone(),
        parents: p.has('p'),
        no_remount: p.has('u'),
        force: p.has('f'),
    })
}

fn mount(p: &Parsed) -> Done {
    if p.has('j') && (p.options().len() > 1 || !p.operands.is_empty()) {
        return Err(Fail::Usage("-j lists what is mounted, without other letters and names".into(), "mount"));
    }
    let mut how = MountHow::parse(p.values('o')).map_err(|e| e.at("cannot mount"))?;
    how.temp.over = p.has('O');
    how.temp.redacted = p.has('f');
    if p.has('a') && how.remount {
        return Err(Error::invalid("cannot mount: -o remount changes one mount: name its file system").into());
    }
    p.operands.iter().try_for_each(|name| file_system_name(name))?;
    match (p.has('a'), p.operands.as_slice()) {
        (true, []) if p.has('l') => zfs_key::load_for_mount(None)?,
        (false, [name]) if p.has('l') => zfs_key::load_for_mount(Some(name))?,
        _ => {}
    }
    match (p.has('a'), p.operands.as_slice()) {
        (false, []) => {
            let all: Vec<(String, String)> = ask(&Mounted)?;
            if p.has('j') {
                print(&json::mounts(&all));
                return Ok(());
            }
            print(&all.iter().map(|(n, at)| format!("{n:<30}  {at}\n")).collect::<String>());
            Ok(())
        }
        (true, []) => ask_and_warn(&Mount { name: None, how, at: None }),
        (false, [name]) => ask_and_warn(&Mount { name: Some(name.clone()), how, at: None }),
        _ => Err(Fail::Usage("too many arguments".into(), "mount")),
    }
}

/// The file systems of pools that an import mounts, outer ones first.
pub(crate) fn mountable(pools: &[String]) -> Result<Vec<String>, Fail> {
    let wanted: Vec<String> = ["name", "canmount", "mountpoint", "mounted", "keystatus"].map(str::to_string).to_vec();
    let select = Select { filesystems: true, names: pools.to_vec(), wanted, ..Select::default() };
    let all: Vec<DatasetView> = ask(&Datasets(select))?;
    let mut out: Vec<(String, String)> = Vec::new();
    for d in &all {
        let value = |name: &str| d.props.iter().find(|p| p.name == name).map_or("", |p| p.exact.as_str());
        let place = value("mountpoint");
        let is_wanted = value("canmount") == "on" && value("mounted") == "no" && value("keystatus") != "unavailable";
        if is_wanted && place.starts_with('/') {
            out.push((place.to_string(), d.name.clone()));
        }
    }
    out.sort();
    Ok(out.into_iter().map(|(_, name)| name).collect())
}

/// Sends a request whose reply is a list of warnings, and prints them.
pub(crate) fn ask_and_warn<R: Request<Reply = Vec<String>>>(request: &R) -> Done {
    let warnings: Vec<String> = ask(request)?;
    warnings.iter().for_each(|w| eprintln!("{w}"));
    Ok(())
}

fn unmount(p: &Parsed) -> Done {
    match (p.has('a'), p.operands.as_slice()) {
        (true, []) => ask(&Unmount { target: None, force: p.has('f'), keys: p.has('u') }),
        (false, [target]) => {
            // A path is absolute here, as for OpenZFS.
            let target = match target.starts_with('/') {
                true => crate::absolute(target)?,
                false => target.clone(),
            };
            ask(&Unmount { target: Some(target), force: p.has('f'), keys: p.has('u') })
        }
        (false, []) => Err(Fail::Usage("missing filesystem argument".into(), "unmount")),
        _ => Err(Fail::Usage("too many arguments".into(), "unmount")),
    }
}
