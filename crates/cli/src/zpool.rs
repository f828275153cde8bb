//! The command `zpool`.

use admin::fs::temp_props::{MountHow, TempProps};
use admin::pool::vdev_spec::VdevSpec;
use admin::request::{
    LabelClear, Mount, PoolAdd, PoolAttach, PoolCheckpoint, PoolClear, PoolCreate, PoolDdtPrune, PoolDedup,
    PoolDestroy, PoolDetach, PoolExport, PoolFreeze, PoolHistory, PoolImport, PoolOffline, PoolOnline, PoolPrefetch,
    PoolReguid, PoolRemove, PoolRemoveCancel, PoolRemoveEstimate, PoolReopen, PoolScan, PoolSet, PoolSplit, PoolSync,
    PoolWork, Pools, Search, VdevGet, VdevSet,
};
use admin::view::{Candidate, Created, Imported, PoolView, SplitDone, VdevView};
use base::{Error, ErrorKind};

use crate::opts::{Parsed, Spec};
use crate::scripts::{self, Device, Told};
use crate::zpool_out::{self, LIST_COLUMNS, Style};
use crate::{
    Done, Fail, absolute, ask, ask_each, assignment, color, dedup_out, help, json, print, print_to_reader, zpool_scrub,
};

/// Runs `zpool ARGS`.
pub fn run(args: &[String]) -> Done {
    let Some(command) = args.first() else { return Err(Fail::Usage("missing command".into(), "")) };
    let rest = &args[1..];
    match command.as_str() {
        "create" => create(&parse(rest, "fndo:O:m:R:t:", &[("size", true, 'z')], "create")?),
        "destroy" => destroy(&parse(rest, "f", &[], "destroy")?),
        "import" => import(&parse(rest, "ac:Dd:fmNno:R:lsFXtT:", &[("rewind-to-checkpoint", false, 'k')], "import")?),
        "checkpoint" => checkpoint(&parse(rest, "dw", &[("discard", false, 'd'), ("wait", false, 'w')], "checkpoint")?),
        "ddtprune" => ddtprune(&parse(rest, "d:p:", &[], "ddtprune")?),
        "prefetch" => prefetch(&parse(rest, "t:", &[], "prefetch")?),
        "history" => history(&parse(rest, "il", &[], "history")?),
        "upgrade" => crate::zpool_upgrade::run(&parse(rest, "avV:", &[], "upgrade")?),
        "wait" => crate::wait::run(&parse(rest, "Hpt:T:", &[], "wait")?),
        "events" => crate::events::run(&parse(rest, "vHfc", &[], "events")?),
        "export" => export(&parse(rest, "afF", &[], "export")?),
        "list" => list(&parse(rest, "HgLpPvo:j", &json::Shape::LONG[..3], "list")?),
        "status" => status(&parse(rest, "c:DdegiLpPstvxj", &json::Shape::LONG, "status")?),
        "get" => get(&parse(rest, "Hpo:j", &json::Shape::LONG[..3], "get")?),
        "set" => set(&parse(rest, "", &[], "set")?),
        "sync" => {
            let p = parse(rest, "f", &[], "sync")?;
            let force = p.has('f');
            ask(&PoolSync { names: p.operands, force })
        }
        "freeze" => {
            let p = parse(rest, "", &[], "freeze")?;
            ask(&PoolFreeze { pool: only_operand(&p, "pool name", "freeze")?.to_string() })
        }
        "add" => add(&parse(rest, "fgLnPo:", &[("size", true, 'z')], "add")?),
        "attach" => attach(&parse(rest, "fswo:", &[("size", true, 'z')], "attach")?, "attach"),
        "replace" => attach(&parse(rest, "fswo:", &[("size", true, 'z')], "replace")?, "replace"),
        "detach" => detach(&parse(rest, "", &[], "detach")?),
        "remove" => remove(&parse(rest, "npsw", &[], "remove")?),
        "trim" => {
            const LONG: &[(&str, bool, char)] = &[
                ("all", false, 'a'),
                ("cancel", false, 'c'),
                ("secure", false, 'd'),
                ("rate", true, 'r'),
                ("suspend", false, 's'),
                ("wait", false, 'w'),
            ];
            work(&parse(rest, "adcswr:", LONG, "trim")?, false)
        }
        "initialize" => {
            const LONG: &[(&str, bool, char)] = &[
                ("all", false, 'a'),
                ("cancel", false, 'c'),
                ("suspend", false, 's'),
                ("uninit", false, 'u'),
                ("wait", false, 'w'),
            ];
            work(&parse(rest, "acsuw", LONG, "initialize")?, true)
        }
        "iostat" => crate::iostat::run(&parse(rest, "c:vlqwryT:pHjgLPn", &[("json", false, 'j')], "iostat")?),
        "offline" => offline(&parse(rest, "tf", &[], "offline")?),
        "online" => online(&parse(rest, "e", &[], "online")?),
        "scrub" => zpool_scrub::scrub(&parse(rest, "aCE:epS:sw", &[("all", false, 'a')], "scrub")?),
        "resilver" => zpool_scrub::resilver(&parse(rest, "", &[], "resilver")?),
        "clear" => clear(&parse(rest, "", &[], "clear")?),
        "reguid" => reguid(&parse(rest, "g:", &[], "reguid")?),
        "split" => split(&parse(rest, "gLlnPo:R:", &[], "split")?),
        "reopen" => reopen(&parse(rest, "n", &[], "reopen")?),
        "labelclear" => labelclear(&parse(rest, "f", &[], "labelclear")?),
        other => run_other("zpool", other, rest, &[]),
    }
}

/// Runs what all programs have: version and help. `not_yet` are commands of OpenZFS that weir does
/// not have yet.
pub(crate) fn run_other(program: &'static str, command: &str, rest: &[String], not_yet: &[&str]) -> Done {
    match command {
        "version" | "-V" | "--version" => crate::version::run(program, rest),
        "help" | "-h" | "--help" | "-?" => help::print_topic(program, rest),
        other if not_yet.contains(&other) => Err(Error::unsupported(format!(
            "'{program} {other}' is not something that weir does yet: 'weir help {program}' lists what it does"
        ))
        .into()),
        other => Err(Fail::Usage(format!("unrecognized command '{other}'"), "")),
    }
}

/// Parses the options of a subcommand; `-h` and `--help` print its help and end it, `-h` of
/// commands of OpenZFS with the status of a wrong usage, as there.
pub(crate) fn parse_for(
    program: &str,
    args: &[String],
    letters: &'static str,
    long: &'static [(&'static str, bool, char)],
    topic: &'static str,
) -> Result<Parsed, Fail> {
    // Some commands have a letter -h: with more behind it that is meant.
    let is_letter = letters.contains('h') && args.len() > 1;
    let asks = args.iter().any(|a| a == "--help");
    if asks || !is_letter && args.first().is_some_and(|a| a == "-h") {
        print(&help::topic(&format!("{program} {topic}")).unwrap_or_default());
        // To commands of OpenZFS -h is a letter that they do not have.
        let is_unknown = !asks && matches!(program, "zpool" | "zfs");
        std::process::exit(if is_unknown { 2 } else { 0 });
    }
    Spec { letters, long }.parse(args).map_err(|e| Fail::Usage(e, topic))
}

fn parse(
    args: &[String],
    letters: &'static str,
    long: &'static [(&'static str, bool, char)],
    topic: &'static str,
) -> Result<Parsed, Fail> {
    parse_for("zpool", args, letters, long, topic)
}

/// The only operand.
fn only_operand<'a>(p: &'a Parsed, what: &str, topic: &'static str) -> Result<&'a str, Fail> {
    match p.operands.as_slice() {
        [] => Err(Fail::Usage(format!("missing {what} argument"), topic)),
        [only] => Ok(only),
        _ => Err(Fail::Usage("too many arguments".into(), topic)),
    }
}

/// The path of a device as a user names it: absolute, relative to here, or a name in /dev.
fn device_path(arg: &str) -> Result<String, Fail> {
    if !arg.contains('/') && !std::path::Path::new(arg).exists() {
        let dev = format!("/dev/{arg}");
        if std::path::Path::new(&dev).exists() {
            return Ok(dev);
        }
    }
    absolute(arg)
}

fn create(p: &Parsed) -> Done {
    let [name, vdevs @ ..] = p.operands.as_slice() else {
        return Err(Fail::Usage("missing pool name argument".into(), "create"));
    };
    if vdevs.is_empty() {
        return Err(Fail::Usage("missing vdev specification".into(), "create"));
    }
    let (on_disk, name) = (name, p.value('t').unwrap_or(name));
    let pairs = |letter: char| crate::properties(p, letter, "create");
    let size = p.value('z').map(dsl::props::parse_size).transpose();
    let size = size.map_err(|e| Fail::Usage(format!("--size: {e}"), "create"))?;
    let mut devices = Vec::new();
    for vdev in vdevs {
        // Words such as mirror are no paths.
        devices.push(if daemon_word(vdev) { vdev.clone() } else { device_path(vdev)? });
    }
    let fs_props = pairs('O')?;
    let key = crate::zfs_key::key_for_new(name, &fs_props)?;
    let fs_props = crate::zfs_owners::with_numbers(fs_props, &format!("cannot create '{name}'"))?;
    let request = PoolCreate {
        name: name.to_string(),
        devices,
        size,
        props: pairs('o')?,
        fs_props,
        key,
        mountpoint: p.value('m').map(str::to_string),
        altroot: p.value('R').map(str::to_string),
        force: p.has('f'),
        dry_run: p.has('n'),
        no_features: p.has('d'),
        on_disk_name: Some(on_disk.clone()).filter(|on_disk| on_disk != name),
    };
    let created: Created = ask(&request)?;
    created.notices.iter().for_each(|w| eprintln!("{w}"));
    if p.has('n') {
        let layout = zpool_out::layout(name, None, &VdevSpec::parse(&created.devices)?, Style::default());
        print(&format!("would create '{name}' with the following layout:\n\n{layout}"));
    }
    Ok(())
}

fn daemon_word(arg: &str) -> bool {
    admin::pool::vdev_spec::vdev_word(arg).is_some() && !std::path::Path::new(arg).exists()
}

fn destroy(p: &Parsed) -> Done {
    let pool = only_operand(p, "pool", "destroy")?.to_string();
    ask(&PoolDestroy { pool, force: p.has('f') })
}

fn import(p: &Parsed) -> Done {
    if p.has('l') && p.has('N') {
        return Err(Fail::Usage("-l is incompatible with -N".into(), "import"));
    }
    if p.has('X') {
        let why = "cannot import: weir goes back to one of the last few states only (-F), not further (-X)";
        return Err(Error::unsupported(why).into());
    }
    if p.has('n') && !p.has('F') && p.value('T').is_none() {
        return Err(Fail::Usage("-n can be used with -F or -T only".into(), "import"));
    }
    let paths = p.values('d').map(absolute).collect::<Result<Vec<_>, _>>()?;
    if p.has('c') && p.has('d') {
        return Err(Fail::Usage("-c is incompatible with -d".into(), "import"));
    }
    let cache_file = p.value('c').map(absolute).transpose()?;
    let search = Search { paths, destroyed: p.has('D'), cache_file };
    let (pool, new_name) = match (p.has('a'), p.operands.as_slice()) {
        (true, []) | (false, []) => (None, None),
        (false, [pool]) => (Some(pool.clone()), None),
        (false, [pool, new]) => (Some(pool.clone()), Some(new.clone())),
        _ => return Err(Fail::Usage("too many arguments".into(), "import")),
    };
    if pool.is_none() && !p.has('a') {
        let found: Vec<Candidate> = ask(&PoolScan(search))?;
        if found.is_empty() {
            eprintln!("no pools available to import");
        }
        let all: Vec<String> = found.iter().map(zpool_out::candidate).collect();
        print(&all.join("\n"));
        return Ok(());
    }
    let (props, mount) = props_and_mount(p, "import")?;
    let txg = |text: &str| text.parse().map_err(|_| Fail::Usage(format!("invalid txg value '{text}'"), "import"));
    let to_txg: Option<u64> = p.value('T').map(txg).transpose()?;
    let request = PoolImport {
        search,
        pool,
        new_name,
        force: p.has('f'),
        // A file system whose key is loaded first may have others below it.
        no_mount: p.has('N') || p.has('l'),
        altroot: p.value('R').map(str::to_string),
        props,
        mount,
        rewind: p.has('F'),
        to_txg,
        dry_run: p.has('n'),
        missing_log: p.has('m'),
        temporary_name: p.has('t'),
        to_checkpoint: p.has('k'),
    };
    if request.temporary_name && request.new_name.is_none() {
        return Err(Fail::Usage("-t needs the name that the pool is to have".into(), "import"));
    }
    let dry_run = request.dry_run;
    let mut done: Imported = match ask(&request) {
        Ok(done) => done,
        Err(Fail::Error(e)) => {
            tell_of_features(&request, &e);
            return Err(e.into());
        }
        Err(other) => return Err(other),
    };
    if p.has('l') && !done.pools.is_empty() {
        mount_with_keys(&mut done, mount)?;
    }
    for sentence in done.notices.iter().chain(&done.failures).chain(&done.unmounted) {
        eprintln!("{sentence}");
    }
    if !done.unmounted.is_empty() {
        // As in OpenZFS: a success.
        eprintln!("Import was successful, but unable to mount some datasets");
    }
    if done.pools.is_empty() && done.failures.is_empty() && !dry_run {
        eprintln!("no pools available to import");
    }
    if done.failures.is_empty() { Ok(()) } else { Err(Fail::AlreadyReported) }
}

/// `zpool import -l`: loads the keys of the pools, then mounts their file systems.
fn mount_with_keys(done: &mut Imported, temp: TempProps) -> Done {
    if let Err(Fail::Error(e)) = crate::zfs_key::load_of_pools(&done.pools) {
        done.unmounted.push(e.to_string());
    }
    for at in crate::zfs::mountable(&done.pools)? {
        match ask(&Mount { name: Some(at), how: MountHow { temp, remount: false }, at: None }) {
            Ok(warnings) => done.notices.extend(warnings),
            Err(Fail::Error(e)) => done.unmounted.push(e.to_string()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn checkpoint(p: &Parsed) -> Done {
    let pool = only_operand(p, "pool", "checkpoint")?.to_string();
    if p.has('w') && !p.has('d') {
        return Err(Fail::Usage("-w can be used with -d only".into(), "checkpoint"));
    }
    ask(&PoolCheckpoint { pool, discard: p.has('d'), wait: p.has('w') })
}

fn ddtprune(p: &Parsed) -> Done {
    let number = |letter: char, most: u64, what: &str| match p.values(letter).last() {
        None => Ok(None),
        Some(text) => match text.parse::<u64>().ok().filter(|n| (1..=most).contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(Fail::Usage(format!("invalid {what} value"), "ddtprune")),
        },
    };
    let (days, percent) = (number('d', u64::MAX, "days")?, number('p', 100, "percentage")?);
    match (days, percent) {
        (Some(_), Some(_)) => return Err(Fail::Usage("-d cannot be combined with -p option".into(), "ddtprune")),
        (None, None) => return Err(Fail::Usage("missing amount option (-d|-p <value>)".into(), "ddtprune")),
        _ => {}
    }
    ask(&PoolDdtPrune { pool: only_operand(p, "pool", "ddtprune")?.to_string(), days, percent })
}

fn prefetch(p: &Parsed) -> Done {
    let pool = only_operand(p, "pool name", "prefetch")?.to_string();
    let (ddt, brt) = match p.values('t').last() {
        None => (true, true),
        Some("ddt") => (true, false),
        Some("brt") => (false, true),
        Some(_) => return Err(Fail::Usage("unsupported prefetch type".into(), "prefetch")),
    };
    ask(&PoolPrefetch { pool, ddt, brt })
}

/// The names of all pools.
pub(crate) fn all_pools() -> Result<Vec<String>, Fail> {
    Ok(ask(&Pools { names: Vec::new() })?.into_iter().map(|v| v.name).collect())
}

fn history(p: &Parsed) -> Done {
    let pools = match p.operands.is_empty() {
        true => all_pools()?,
        false => p.operands.clone(),
    };
    for_each_name(&pools, |pool| {
        let mut head = Some(format!("History for '{pool}':\n"));
        ask_each(&PoolHistory { pool }, &mut |line| {
            let line = line.and_then(|l| zpool_out::history_line(&l, p.has('i'), p.has('l')));
            let text = head.take().into_iter().chain(line).collect::<String>();
            text.is_empty() || print_to_reader(&text)
        })?;
        print(&(head.unwrap_or_default() + "\n"));
        Ok(())
    })?
}

fn export(p: &Parsed) -> Done {
    match (p.has('a'), p.operands.is_empty()) {
        (true, false) => return Err(Fail::Usage("too many arguments".into(), "export")),
        (false, true) => return Err(Fail::Usage("missing pool argument".into(), "export")),
        _ => {}
    }
    let (force, stays_cached) = (p.has('f') || p.has('F'), p.has('F'));
    ask(&PoolExport { pools: p.operands.clone(), all: p.has('a'), force, stays_cached })
}

fn style(p: &Parsed) -> Style {
    Style {
        scripted: p.has('H'),
        exact: p.has('p'),
        full_paths: p.has('P'),
        real_paths: p.has('L'),
        verbose: p.has('v'),
        guids: p.has('g'),
        init: p.has('i'),
        trim: p.has('t'),
        unhealthy: p.has('e'),
        slow: p.has('s'),
        direct: p.has('d'),
    }
}

fn list(p: &Parsed) -> Done {
    let shape = json::Shape::of(p).map_err(|e| Fail::Usage(e, "list"))?;
    let mut columns: Vec<String> = Vec::new();
    for name in p.values('o').flat_map(|v| v.split(',')) {
        let known = admin::pool::props::canonical(name);
        columns
            .push(known.ok_or_else(|| Fail::Usage(format!("bad property list: invalid property '{name}'"), "list"))?);
    }
    if columns.is_empty() {
        columns = LIST_COLUMNS.iter().map(|c| c.to_string()).collect();
    }
    let (pools, done) = pools(&p.operands)?;
    let style = style(p);
    if p.has('j') {
        print(&json::pools("zpool list", &pools, &columns, (style.exact || shape.integers, shape), style.verbose));
    } else if pools.is_empty() && !style.scripted && done.is_ok() {
        print("no pools available\n");
    } else if !pools.is_empty() {
        print(&zpool_out::list(&pools, &columns, style));
    }
    done
}

/// These pools, or all, and the result for the names: as in OpenZFS a missing pool is an error, and
/// the others are shown.
fn pools(names: &[String]) -> Result<(Vec<PoolView>, Done), Fail> {
    if names.len() < 2 {
        return Ok((ask(&Pools { names: names.to_vec() })?, Ok(())));
    }
    let mut out: Vec<PoolView> = Vec::new();
    let done = for_each_name(names, |name| {
        out.extend(ask(&Pools { names: vec![name] })?);
        Ok(())
    })?;
    Ok((out, done))
}

/// Calls `what` with each name. Errors are printed, and do not stop the others.
pub(crate) fn for_each_name(names: &[String], mut what: impl FnMut(String) -> Done) -> Result<Done, Fail> {
    let mut done: Done = Ok(());
    for name in names {
        match what(name.clone()) {
            Err(Fail::Error(e)) if e.kind() == ErrorKind::NotFound => {
                eprintln!("{e}");
                done = Err(Fail::AlreadyReported);
            }
            other => other?,
        }
    }
    Ok(done)
}

/// The devices below a vdev, for scripts.
fn devices_of(pool: &str, vdev: &VdevView, out: &mut Vec<Device>) {
    if vdev.children.is_empty() {
        out.push((pool.to_string(), vdev.name.clone()));
    }
    vdev.children.iter().for_each(|c| devices_of(pool, c, out));
}

/// The words of `-o`: properties of the pool, and options of the mounts.
fn props_and_mount(p: &Parsed, command: &'static str) -> Result<(Vec<(String, String)>, TempProps), Fail> {
    let (props, words): (Vec<&str>, Vec<&str>) = p.values('o').partition(|o| o.contains('='));
    let props = props.into_iter().map(|o| assignment(o, command)).collect::<Result<Vec<_>, _>>()?;
    let how = MountHow::parse(words.into_iter()).map_err(|e| e.at(format!("cannot {command}")))?;
    if how.remount {
        return Err(Error::invalid(format!("cannot {command}: nothing is mounted that -o remount could change")).into());
    }
    Ok((props, how.temp))
}

/// The features that keep a pool from being imported, one a line.
fn tell_of_features(request: &PoolImport, why: &Error) {
    let Some(pool) = request.pool.as_ref().filter(|_| why.kind() == ErrorKind::Unsupported) else { return };
    let Ok(found) = ask::<PoolScan>(&PoolScan(request.search.clone())) else { return };
    let of = |c: &&Candidate| (c.name == *pool || c.guid.to_string() == *pool) && !c.features.is_empty();
    if let Some(c) = found.iter().find(of) {
        print(&zpool_out::missing_features(c));
    }
}

fn status(p: &Parsed) -> Done {
    let shape = json::Shape::of(p).map_err(|e| Fail::Usage(e, "status"))?;
    if p.has('c') {
        scripts::check()?;
    }
    let (mut pools, done) = pools(&p.operands)?;
    let any = !pools.is_empty();
    if p.has('x') {
        // Pools that were asked for by name are told of one by one.
        let (healthy, other): (Vec<_>, Vec<_>) = pools.into_iter().partition(zpool_out::is_healthy);
        if !p.has('j') && !p.operands.is_empty() {
            healthy.iter().for_each(|q| print(&format!("pool '{}' is healthy\n", q.name)));
            if other.is_empty() {
                return done;
            }
        }
        pools = other;
    }
    if p.has('j') {
        print(&json::statuses(
            &pools,
            json::Numbers { exact: p.has('p') || shape.integers, direct: p.has('d') },
            shape,
        ));
        return done;
    }
    if pools.is_empty() {
        // The first is an answer, the second is an error.
        if any {
            print("all pools are healthy\n");
        } else if done.is_ok() {
            eprintln!("no pools available");
        }
        return done;
    }
    let told = p.value('c').map(|list| {
        let mut devices = Vec::new();
        for q in &pools {
            q.vdevs.children.iter().chain(&q.caches).for_each(|v| devices_of(&q.name, v, &mut devices));
        }
        Told::by(list, devices)
    });
    for (n, q) in pools.iter().enumerate() {
        let gap = if n > 0 { "\n" } else { "" };
        let text = zpool_out::status(q, style(p), told.as_ref());
        let text = if color::wanted() { color::status(&text) } else { text };
        print(&format!("{gap}{text}"));
        if p.has('D') {
            print(&dedup_out::lines(&ask(&PoolDedup { pool: q.name.clone() })?, p.has('p')));
        }
    }
    done
}

/// The fields of `get`.
pub(crate) fn fields(p: &Parsed, allowed: &[&str], topic: &'static str) -> Result<Vec<String>, Fail> {
    let mut out = Vec::new();
    for name in p.values('o').flat_map(|v| v.split(',')) {
        match name {
            "all" => out.extend(allowed.iter().map(|f| f.to_string())),
            f if allowed.contains(&f) => out.push(f.to_string()),
            f => return Err(Fail::Usage(format!("invalid column name '{f}'"), topic)),
        }
    }
    if out.is_empty() {
        out = ["name", "property", "value", "source"].map(str::to_string).to_vec();
    }
    Ok(out)
}

fn get(p: &Parsed) -> Done {
    let shape = json::Shape::of(p).map_err(|e| Fail::Usage(e, "get"))?;
    let fields = fields(p, &["name", "property", "value", "source"], "get")?;
    let Some((wanted, names)) = p.operands.split_first() else {
        return Err(Fail::Usage("missing property argument".into(), "get"));
    };
    let wanted: Vec<String> = wanted.split(',').map(str::to_string).collect();
    if let [pool, vdevs @ ..] = names
        && !vdevs.is_empty()
    {
        let known: Vec<PoolView> = ask(&Pools { names: Vec::new() })?;
        let is_pool = |name: &String| known.iter().any(|p| p.name == *name);
        if is_pool(pool) && !vdevs.iter().all(is_pool) {
            return get_of_vdevs(p, &wanted, &fields, pool, vdevs);
        }
    }
    if let Some(bad) =
        wanted.iter().find(|w| admin::pool::props::canonical(w).is_none() && (*w != "all" || wanted.len() > 1))
    {
        return Err(Fail::Usage(format!("bad property list: invalid property '{bad}'"), "get"));
    }
    let (pools, done) = pools(names)?;
    if p.has('j') {
        let columns: Vec<String> =
            wanted.iter().map(|w| admin::pool::props::canonical(w).unwrap_or_else(|| w.clone())).collect();
        print(&json::pools("zpool get", &pools, &columns, (p.has('p') || shape.integers, shape), false));
        return done;
    }
    let mut rows = Vec::new();
    for pool in &pools {
        rows.extend(zpool_out::pool_rows(pool, &wanted).map_err(|e| Fail::Usage(e, "get"))?);
    }
    if !rows.is_empty() {
        print(&zpool_out::get_table(&rows, &fields, p.has('H'), p.has('p')));
    }
    done
}

/// `zpool get PROPERTY POOL VDEV ...`, or `all-vdevs`.
fn get_of_vdevs(p: &Parsed, wanted: &[String], fields: &[String], pool: &str, vdevs: &[String]) -> Done {
    let shape = json::Shape::of(p).map_err(|e| Fail::Usage(e, "get"))?;
    let exact = p.has('p') || shape.integers;
    if let Some(bad) = wanted.iter().find(|w| *w != "all" && !admin::pool::vdev_props::is_known(w)) {
        return Err(Fail::Usage(format!("bad property list: invalid property '{bad}'"), "get"));
    }
    let names = match vdevs {
        [one] if one == "all-vdevs" => Vec::new(),
        some => some.iter().map(|v| pool_member(v)).collect(),
    };
    let all = ask(&VdevGet { pool: pool.to_string(), vdevs: names })?;
    if p.has('j') {
        let of: Vec<PoolView> = ask(&Pools { names: vec![pool.to_string()] })?;
        of.iter().for_each(|pool| print(&json::vdev_props(pool, &all, wanted, (exact, shape))));
        return Ok(());
    }
    let rows: Vec<_> = all.iter().flat_map(|v| zpool_out::vdev_rows(v, wanted)).collect();
    print(&zpool_out::get_table(&rows, fields, p.has('H'), p.has('p')));
    Ok(())
}

fn set(p: &Parsed) -> Done {
    match p.operands.as_slice() {
        [] => Err(Fail::Usage("missing property=value argument".into(), "set")),
        [_] => Err(Fail::Usage("missing pool name".into(), "set")),
        [what, pool] => {
            let (name, value) = assignment(what, "set")?;
            ask(&PoolSet { pool: pool.clone(), name, value })
        }
        [what, pool, vdev] => {
            let (name, value) = assignment(what, "set")?;
            ask(&VdevSet { pool: pool.clone(), vdev: pool_member(vdev), name, value })
        }
        _ => Err(Fail::Usage("too many pool names".into(), "set")),
    }
}

/// A pool and at least one device of it; devices that are files here are named by their full path.
fn pool_and_devices(p: &Parsed, topic: &'static str) -> Result<(String, Vec<String>), Fail> {
    match p.operands.as_slice() {
        [] => Err(Fail::Usage("missing pool name".into(), topic)),
        [_] => Err(Fail::Usage("missing device name".into(), topic)),
        [pool, devices @ ..] => Ok((pool.clone(), devices.iter().map(|d| pool_member(d)).collect())),
    }
}

/// A device of a pool as a user names it: its path if that exists, else its name in listings.
pub(crate) fn pool_member(arg: &str) -> String {
    match device_path(arg) {
        Ok(path) if std::path::Path::new(&path).exists() => path,
        _ => arg.to_string(),
    }
}

fn size_option(p: &Parsed, topic: &'static str) -> Result<Option<u64>, Fail> {
    let size = p.value('z').map(dsl::props::parse_size).transpose();
    size.map_err(|e| Fail::Usage(format!("--size: {e}"), topic))
}

fn add(p: &Parsed) -> Done {
    let [pool, vdevs @ ..] = p.operands.as_slice() else {
        return Err(Fail::Usage("missing pool name argument".into(), "add"));
    };
    if vdevs.is_empty() {
        return Err(Fail::Usage("missing vdev specification".into(), "add"));
    }
    let mut devices = Vec::new();
    for vdev in vdevs {
        devices.push(if daemon_word(vdev) { vdev.clone() } else { device_path(vdev)? });
    }
    let request = PoolAdd {
        pool: pool.clone(),
        devices,
        size: size_option(p, "add")?,
        props: p.values('o').map(|v| assignment(v, "add")).collect::<Result<Vec<_>, _>>()?,
        force: p.has('f'),
        dry_run: p.has('n'),
    };
    let created: Created = ask(&request)?;
    if p.has('n') {
        let before: Vec<PoolView> = ask(&Pools { names: vec![pool.clone()] })?;
        let layout = zpool_out::layout(pool, before.first(), &VdevSpec::parse(&created.devices)?, style(p));
        print(&format!("would update '{pool}' to the following configuration:\n\n{layout}"));
    }
    Ok(())
}

fn attach(p: &Parsed, verb: &'static str) -> Done {
    let (pool, target, new) = match p.operands.as_slice() {
        [] => return Err(Fail::Usage("missing pool name argument".into(), verb)),
        [_] => return Err(Fail::Usage("missing <device> specification".into(), verb)),
        [pool, target] if verb == "replace" => (pool, target, None),
        [_, _] => return Err(Fail::Usage("missing <new_device> specification".into(), verb)),
        [pool, target, new] => (pool, target, Some(new)),
        _ => return Err(Fail::Usage("too many arguments".into(), verb)),
    };
    let new = match new {
        // A distributed spare has a name and no path.
        Some(new) if new.starts_with("draid") && !std::path::Path::new(new).exists() => Some(new.clone()),
        Some(new) => Some(device_path(new)?),
        None => None,
    };
    let request = PoolAttach {
        pool: pool.clone(),
        target: pool_member(target),
        device: new,
        replace: verb == "replace",
        sequential: p.has('s'),
        size: size_option(p, verb)?,
        props: p.values('o').map(|v| assignment(v, verb)).collect::<Result<Vec<_>, _>>()?,
        force: p.has('f'),
    };
    ask(&request)?;
    match (p.has('w'), verb) {
        (false, _) => Ok(()),
        // A spare needs a resilver.
        (_, "replace") => crate::wait::until_idle(pool, &["replace", "resilver"]),
        _ => crate::wait::until_idle(pool, &["resilver", "raidz_expand"]),
    }
}

fn detach(p: &Parsed) -> Done {
    match p.operands.as_slice() {
        [] => Err(Fail::Usage("missing pool name argument".into(), "detach")),
        [_] => Err(Fail::Usage("missing <device> specification".into(), "detach")),
        [pool, device] => ask(&PoolDetach { pool: pool.clone(), device: pool_member(device) }),
        _ => Err(Fail::Usage("too many arguments".into(), "detach")),
    }
}

fn work(p: &Parsed, initialize: bool) -> Done {
    let topic = if initialize { "initialize" } else { "trim" };
    if p.has('a') && !p.operands.is_empty() {
        return Err(Fail::Usage("-a cannot be combined with individual pools or vdevs".into(), topic));
    }
    if p.operands.is_empty() && !p.has('a') {
        return Err(Fail::Usage("missing pool name argument".into(), topic));
    }
    let stops: Vec<char> = ['c', 's', 'u'].into_iter().filter(|letter| p.has(*letter)).collect();
    match stops[..] {
        [first, second, ..] => {
            return Err(Fail::Usage(format!("-{second} cannot be combined with -{first}"), topic));
        }
        [letter] if p.has('w') => return Err(Fail::Usage(format!("-w cannot be used with -{letter}"), topic)),
        _ => {}
    }
    if p.has('d') {
        return Err(Error::unsupported("cannot trim: weir has no secure trims (-d) yet").into());
    }
    let rate = match p.value('r').map(dsl::props::parse_size) {
        None => 0,
        Some(Ok(rate)) => rate,
        Some(Err(_)) => return Err(Fail::Usage("invalid value for rate".into(), topic)),
    };
    let request = |pool: &str, devices: &[String], wait: bool| PoolWork {
        pool: pool.to_string(),
        initialize,
        suspend: p.has('s'),
        cancel: p.has('c'),
        forget: p.has('u'),
        rate,
        wait,
        devices: devices.iter().map(|d| pool_member(d)).collect(),
    };
    if let Some((pool, devices)) = p.operands.split_first() {
        return ask(&request(pool, devices, p.has('w')));
    }
    // All begin before the first is waited for. One that cannot does not stop the others.
    let (mut begun, mut done) = (Vec::new(), Ok(()));
    for pool in all_pools()? {
        match ask(&request(&pool, &[], false)) {
            Ok(()) => begun.push(pool),
            Err(Fail::Error(e)) => {
                eprintln!("{e}");
                done = Err(Fail::AlreadyReported);
            }
            Err(other) => return Err(other),
        }
    }
    for pool in begun.iter().filter(|_| p.has('w')) {
        crate::wait::until_idle(pool, &[topic])?;
    }
    done
}

fn remove(p: &Parsed) -> Done {
    if p.has('s') && p.has('w') {
        return Err(Fail::Usage("invalid option combination: -w cannot be used with -s".into(), "remove"));
    }
    if p.has('s') {
        return match p.operands.as_slice() {
            [] => Err(Fail::Usage("missing pool name argument".into(), "remove")),
            [_] if p.has('n') => Err(Fail::Usage("-n cannot be used with -s".into(), "remove")),
            [pool] => ask(&PoolRemoveCancel { pool: pool.clone() }),
            _ => Err(Fail::Usage("too many arguments".into(), "remove")),
        };
    }
    let (pool, devices) = pool_and_devices(p, "remove")?;
    if p.has('n') {
        let sizes: Vec<u64> = ask(&PoolRemoveEstimate { pool, devices: devices.clone() })?;
        for (device, size) in p.operands.iter().skip(1).zip(sizes) {
            print(&match p.has('p') {
                true => format!("{device} {size}\n"),
                false => format!("Memory that will be used after removing {device}: {}\n", admin::view::fmt::num(size)),
            });
        }
        return Ok(());
    }
    let wait = p.has('w').then(|| pool.clone());
    ask(&PoolRemove { pool, devices })?;
    wait.map_or(Ok(()), |pool| crate::wait::until_idle(&pool, &["remove"]))
}

fn offline(p: &Parsed) -> Done {
    let (pool, devices) = pool_and_devices(p, "offline")?;
    ask(&PoolOffline { pool, devices, temporary: p.has('t'), fault: p.has('f'), degrade: false })
}

fn online(p: &Parsed) -> Done {
    let (pool, devices) = pool_and_devices(p, "online")?;
    ask(&PoolOnline { pool, devices, expand: p.has('e') })
}

fn clear(p: &Parsed) -> Done {
    match p.operands.as_slice() {
        [] => Err(Fail::Usage("missing pool name".into(), "clear")),
        [pool] => ask(&PoolClear { pool: pool.clone(), device: None }),
        [pool, device] => ask(&PoolClear { pool: pool.clone(), device: Some(pool_member(device)) }),
        _ => Err(Fail::Usage("too many arguments".into(), "clear")),
    }
}

fn reguid(p: &Parsed) -> Done {
    let guid = match p.value('g').map(|text| (text, text.parse::<u64>())) {
        None => None,
        Some((_, Ok(guid))) if guid != 0 => Some(guid),
        Some((text, _)) => return Err(Fail::Usage(format!("invalid GUID '{text}'"), "reguid")),
    };
    let pool = only_operand(p, "pool name", "reguid")?.to_string();
    ask(&PoolReguid { pool, guid })
}

fn split(p: &Parsed) -> Done {
    let altroot = p.value('R').map(str::to_string);
    let (props, mount) = props_and_mount(p, "split")?;
    let mount_options = p.values('o').any(|o| !o.contains('='));
    match altroot.is_some() {
        false if mount_options => {
            return Err(Fail::Usage("setting mntopts is only valid when importing the pool".into(), "split"));
        }
        false if p.has('l') => {
            return Err(Fail::Usage("loading keys is only valid when importing the pool".into(), "split"));
        }
        _ => {}
    }
    let (pool, new_name, devices) = match p.operands.as_slice() {
        [] => return Err(Fail::Usage("Missing pool name".into(), "split")),
        [_] => return Err(Fail::Usage("Missing new pool name".into(), "split")),
        [pool, new, devices @ ..] => (pool.clone(), new.clone(), devices),
    };
    let request = PoolSplit {
        pool,
        new_name: new_name.clone(),
        devices: devices.iter().map(|d| pool_member(d)).collect(),
        props,
        mount,
        altroot,
        dry_run: p.has('n'),
        guids: p.has('g'),
    };
    let SplitDone { layout, imported: mut done } = ask(&request)?;
    if p.has('n') {
        let layout = zpool_out::layout(&new_name, None, &VdevSpec::parse(&layout)?, style(p));
        print(&format!("would create '{new_name}' with the following layout:\n\n{layout}"));
        return Ok(());
    }
    if p.has('l') && !done.pools.is_empty() {
        done.unmounted.clear();
        mount_with_keys(&mut done, mount)?;
    }
    done.notices.iter().chain(&done.unmounted).for_each(|sentence| eprintln!("{sentence}"));
    if done.unmounted.is_empty() {
        return Ok(());
    }
    eprintln!("Split was successful, but the datasets could not all be mounted");
    eprintln!("Try doing 'zpool import' with a different altroot");
    Err(Fail::AlreadyReported)
}

fn reopen(p: &Parsed) -> Done {
    let pools = if p.operands.is_empty() { all_pools()? } else { p.operands.clone() };
    let mut done = Ok(());
    for pool in pools {
        match ask(&PoolReopen { pool, keep_scrub: p.has('n') }) {
            Err(Fail::Error(e)) => {
                eprintln!("{e}");
                done = Err(Fail::AlreadyReported);
            }
            other => other?,
        }
    }
    done
}

fn labelclear(p: &Parsed) -> Done {
    let path = device_path(only_operand(p, "vdev name", "labelclear")?)?;
    ask(&LabelClear { path, force: p.has('f') })
}
