//! `zinject`: faults on purpose, with the letters and tables of OpenZFS's command.

use std::os::unix::fs::MetadataExt;

use admin::request::{
    DataWish, DeviceWish, InjectionView, PoolCacheDrop, PoolInject, PoolInjectCancel, PoolInjections, PoolOffline, Wish,
};
use base::Error;

use crate::opts::Parsed;
use crate::zpool::{parse_for, pool_member};
use crate::{Done, Fail, absolute, ask, print};

/// Of a million operations all.
const ALWAYS: u32 = 1_000_000;
/// Objects have numbers below this one (format page 03); in a mount within a mount the bits above
/// say which it is.
const OBJECTS: u64 = 1 << 48;
/// Bytes of a dnode (format page 03).
const DNODE: u64 = 512;

/// Letters of OpenZFS that mean nothing here, and why.
const REFUSED: &[(char, &str)] = &[
    ('E', "-E is not supported: nothing in weir waits between the stages of an operation ('-D' delays devices)"),
    ('F', "-F is not supported: weir does not try a failed operation twice, so nothing could fail faster"),
    ('g', "-g is not supported: it is about -I, which stops the machine when its time is over"),
    ('i', "-i is not supported: faults end with the import of a pool, so none can wait for one"),
    ('I', "-I is not supported, since it stops the machine: '-e noop -T write' loses writes of a device"),
    ('m', "-m is not supported: 'zfs unmount' and 'zfs mount' do it"),
    ('p', "-p is not supported: there is no kernel that could stop in one of its functions"),
    ('P', "-P is not supported: faults end with the import of a pool, so none can wait for one"),
    ('s', "-s is not supported: it is about -I and -P, which weir does not have"),
    ('u', "-u is not supported: faults end with the import of a pool, so it cannot be exported with them"),
];

fn usage(why: impl Into<String>) -> Fail {
    Fail::Usage(why.into(), "")
}

/// Runs `zinject ARGS`.
pub fn run(args: &[String]) -> Done {
    if args.first().is_some_and(|a| a == "help") {
        return crate::help::print_topic("zinject", &[]);
    }
    let p = parse_for("zinject", args, "aA:b:c:C:d:D:e:E:f:Fg:i:Il:L:mp:P:qr:s:t:T:u", &[], "")?;
    if let Some((_, why)) = REFUSED.iter().find(|(letter, _)| p.has(*letter)) {
        return Err(Error::unsupported(*why).into());
    }
    if p.options().is_empty() && p.operands.is_empty() {
        return list();
    }
    if let Some(id) = p.value('c') {
        return cancel(&p, id);
    }
    if p.value('d').is_some() {
        return device(&p);
    }
    if p.has('b') || p.has('t') {
        return data(&p);
    }
    if !p.has('a') || p.options().len() > 1 {
        return Err(usage("nothing to do: at least one of -a, -b, -c, -d and -t must be given"));
    }
    ask(&PoolCacheDrop { pools: p.operands.clone() })
}

fn cancel(p: &Parsed, id: &str) -> Done {
    if p.options().len() > 1 {
        return Err(usage("cancel (-c) incompatible with any other options"));
    }
    if !p.operands.is_empty() {
        return Err(usage("extraneous argument to '-c'"));
    }
    if id == "all" {
        ask(&PoolInjectCancel { id: None })?;
        print("removed all registered handlers\n");
        return Ok(());
    }
    let id = id.parse().map_err(|_| usage(format!("invalid handle id '{id}': must be an integer or 'all'")))?;
    ask(&PoolInjectCancel { id: Some(id) })?;
    print(&format!("removed handler {id}\n"));
    Ok(())
}

/// `-f`: of a million operations so many.
fn chance(p: &Parsed) -> Result<u32, Fail> {
    let Some(text) = p.value('f') else { return Ok(ALWAYS) };
    let percent: f64 = text.trim_end_matches('%').parse().unwrap_or(f64::NAN);
    if !(0.0001..=100.0).contains(&percent) {
        return Err(usage(format!("invalid frequency '{text}': it must be in the range 0.0001 to 100 percent")));
    }
    Ok((percent / 100.0 * f64::from(ALWAYS)).round() as u32)
}

/// `-D milliseconds:lanes`
fn delay(text: &str) -> Result<(u64, u32), Fail> {
    let parts = text.split_once(':').and_then(|(ms, lanes)| Some((ms.parse().ok()?, lanes.parse().ok()?)));
    let good = parts.filter(|(ms, lanes)| *ms > 0 && *lanes > 0);
    good.ok_or_else(|| usage(format!("invalid i/o delay value: '{text}' is not milliseconds:lanes")))
}

fn device(p: &Parsed) -> Done {
    if ['b', 'r', 't', 'l', 'C'].iter().any(|letter| p.has(*letter)) {
        return Err(usage("device (-d) incompatible with data error injection"));
    }
    let [pool] = &p.operands[..] else {
        return Err(usage("device (-d) injection requires a single pool name"));
    };
    let device = pool_member(p.value('d').unwrap_or_default());
    match p.value('A').map(str::to_lowercase).as_deref() {
        None => {}
        Some(action @ ("fault" | "degrade")) => {
            let (pool, devices) = (pool.clone(), vec![device]);
            let degrade = action == "degrade";
            return ask(&PoolOffline { pool, devices, temporary: true, fault: !degrade, degrade });
        }
        Some(other) => return Err(usage(format!("invalid action '{other}': must be 'degrade' or 'fault'"))),
    }
    let error = p.value('e').unwrap_or("nxio");
    let ops = p.value('T').unwrap_or("all");
    if error == "corrupt" && (!p.has('f') || ops != "read") {
        return Err(usage("device corrupt errors require io type read and a frequency value"));
    }
    let wish = Wish::Device(DeviceWish {
        device,
        error: error.to_string(),
        ops: ops.to_string(),
        label: p.value('L').map(str::to_string),
        delay: p.value('D').map(delay).transpose()?,
    });
    add(p, pool, wish)
}

/// `-C`: a bit for each copy.
fn copies(p: &Parsed) -> Result<u8, Fail> {
    let Some(text) = p.value('C') else { return Ok(0) };
    let wrong = || usage(format!("invalid DVA list '{text}': DVAs should be 0 indexed and separated by commas"));
    let mut mask = 0;
    for part in text.split(',') {
        let bit = match part {
            "0" => 1,
            "1" => 2,
            "2" => 4,
            _ => return Err(wrong()),
        };
        if mask & bit != 0 {
            return Err(wrong());
        }
        mask |= bit;
    }
    Ok(mask)
}

/// `-r start[,end]`, in bytes; none: all.
fn bytes(p: &Parsed) -> Result<Option<(u64, u64)>, Fail> {
    let Some(text) = p.value('r') else { return Ok(None) };
    let number = |part: &str| dsl::props::parse_size(part).map_err(|e| usage(format!("invalid range '{text}': {e}")));
    let (start, end) = match text.split_once(',') {
        Some((start, end)) => (number(start)?, number(end)?),
        None => (number(text)?, number(text)?.saturating_add(1)),
    };
    match start < end {
        true => Ok(Some((start, end))),
        false => Err(usage(format!("invalid range '{text}': it ends before it starts"))),
    }
}

/// `-b objset:object:level:start[:end]`, hexadecimal; the last block is within.
fn bookmark(text: &str) -> Result<DataWish, Fail> {
    let parts: Option<Vec<u64>> = text.split(':').map(|n| u64::from_str_radix(n, 16).ok()).collect();
    let wrong = || usage(format!("bad raw spec '{text}': must be of the form objset:object:level:start[:end]"));
    let (objset, object, level, start, end) = match parts.as_deref() {
        Some([objset, object, level, start]) => (*objset, *object, *level, *start, *start),
        Some([objset, object, level, start, end]) if start <= end => (*objset, *object, *level, *start, *end),
        _ => return Err(wrong()),
    };
    let level = u8::try_from(level).map_err(|_| wrong())?;
    let range = Some((start, end.saturating_add(1)));
    Ok(DataWish { objset: Some(objset), object, level, range, ..DataWish::default() })
}

fn data(p: &Parsed) -> Done {
    let [target] = &p.operands[..] else {
        let what = if p.has('b') { "raw (-b) format expects a single pool name" } else { "missing object" };
        return Err(usage(what));
    };
    let (target, mut wish) = match (p.value('b'), p.value('t')) {
        (Some(_), Some(_)) => return Err(usage("raw (-b) format with any other options")),
        (Some(_), _) if p.has('r') || p.has('l') || p.has('C') => {
            return Err(usage("raw (-b) format with any other options"));
        }
        (Some(text), _) => (target.clone(), bookmark(text)?),
        (None, kind) => of_file(p, kind.unwrap_or_default(), target)?,
    };
    wish.copies = copies(p)?;
    wish.error = p.value('e').unwrap_or("io").to_string();
    if p.has('L') || p.has('D') || p.has('A') {
        return Err(usage("-A, -D and -L are about devices (-d)"));
    }
    if let Some(ops) = p.value('T').filter(|ops| *ops != "read" && *ops != "all") {
        return Err(usage(format!("invalid I/O type '{ops}': data errors are of reads")));
    }
    add(p, &target, Wish::Data(wish))
}

/// The file at a path of a mount, or its dnode (`-t`).
fn of_file(p: &Parsed, kind: &str, path: &str) -> Result<(String, DataWish), Fail> {
    if matches!(kind, "mos" | "mosdir" | "metadir" | "config" | "bpobj" | "spacemap" | "metaslab" | "errlog") {
        let why =
            format!("-t {kind} is not supported yet: faults are of data and dnodes of file systems (-t data, dnode)");
        return Err(Error::unsupported(why).into());
    }
    if kind != "data" && kind != "dnode" {
        return Err(usage(format!("invalid type '{kind}': it must be data or dnode")));
    }
    let path = absolute(path)?;
    let found = std::fs::symlink_metadata(&path).map_err(|e| Error::not_found(format!("cannot open '{path}': {e}")))?;
    let object = found.ino() % OBJECTS;
    let level = match p.value('l') {
        Some(text) => text.parse().map_err(|_| usage(format!("invalid level '{text}': must be an integer")))?,
        None => 0,
    };
    let wish = DataWish { dataset: Some(path.clone()), level, bytes: true, ..DataWish::default() };
    if kind == "dnode" {
        if p.has('r') {
            return Err(usage("range (-r) incompatible with -t dnode"));
        }
        let start = object * DNODE;
        return Ok((path, DataWish { range: Some((start, start + DNODE)), ..wish }));
    }
    if !found.is_file() {
        return Err(Error::invalid(format!("'{path}' is not a regular file: -t data needs one")).into());
    }
    Ok((path, DataWish { object, range: bytes(p)?, ..wish }))
}

fn add(p: &Parsed, target: &str, wish: Wish) -> Done {
    let view = ask(&PoolInject { target: target.to_string(), chance: chance(p)?, wish })?;
    if p.has('a') {
        ask(&PoolCacheDrop { pools: vec![view.pool.clone()] })?;
    }
    print(&if p.has('q') { format!("{}\n", view.id) } else { added(&view) });
    Ok(())
}

fn range_of(view: &InjectionView) -> Option<String> {
    let (start, end) = view.range?;
    Some(format!("[{start}, {end})"))
}

fn added(view: &InjectionView) -> String {
    let mut out = format!("Added handler {} with the following properties:\n  pool: {}\n", view.id, view.pool);
    match view.guid {
        Some(guid) => out += &format!("  vdev: {guid:x}\niotype: {}\n", view.ops),
        None => {
            let (objset, object, level) = (view.objset, view.object, view.level);
            let range = range_of(view).unwrap_or_else(|| "all".into());
            out += &format!("objset: {objset}\nobject: {object}\n level: {level}\n range: {range}\n");
            out += &format!("  dvas: {:#x}\n", view.copies);
        }
    }
    out
}

fn list() -> Done {
    print(&table(&ask(&PoolInjections)?));
    Ok(())
}

/// Three tables: errors of devices, delays, errors of data.
fn table(all: &[InjectionView]) -> String {
    let mut parts = Vec::new();
    let percent = |v: &InjectionView| format!("{:8.4}%", f64::from(v.chance) * 100.0 / f64::from(ALWAYS));
    let mut part = |head: String, rule: &str, rows: Vec<String>| {
        if !rows.is_empty() {
            parts.push(format!("{head}\n{rule}\n{}", rows.concat()));
        }
    };
    let rows = |is: &dyn Fn(&InjectionView) -> bool, row: &dyn Fn(&InjectionView) -> String| {
        all.iter().filter(|v| is(v)).map(|v| row(v) + "\n").collect::<Vec<String>>()
    };
    let (id, pool, guid, freq, hit, inject) = ("ID", "POOL", "GUID", "FREQ", "MATCH", "INJECT");
    part(
        format!("{id:>3}  {pool:<15}  {guid:<16}  {:<5}  {:<10}  {freq:<9}  {hit:<6}  {inject:<6}", "TYPE", "ERROR"),
        "---  ---------------  ----------------  -----  ----------  ---------  ------  ------",
        rows(&|v| v.guid.is_some() && v.delay.is_none(), &|v| {
            let (guid, freq) = (v.guid.unwrap_or(0), percent(v));
            let begin = format!("{:>3}  {:<15}  {guid:x}  {:<5}  {:<10}", v.id, v.pool, v.ops, v.error);
            format!("{begin}  {freq}  {:>6}  {:>6}", v.matched, v.hits)
        }),
    );
    part(
        format!(
            "{id:>3}  {pool:<15}  {guid:<16}  {:<10}  {:<5}  {freq:<9}  {hit:<6}  {inject:<6}",
            "DELAY (ms)", "LANES"
        ),
        "---  ---------------  ----------------  ----------  -----  ---------  ------  ------",
        rows(&|v| v.guid.is_some() && v.delay.is_some(), &|v| {
            let ((ms, lanes), guid) = (v.delay.unwrap_or_default(), v.guid.unwrap_or(0));
            let begin = format!("{:>3}  {:<15}  {guid:x}  {ms:>10}  {lanes:>5}", v.id, v.pool);
            format!("{begin}  {}  {:>6}  {:>6}", percent(v), v.matched, v.hits)
        }),
    );
    part(
        format!(
            "{id:>3}  {pool:<15}  {:<6}  {:<6}  {:<10}  {:>3}  {:<4}  {:<15}  {hit:<6}  {inject:<6}",
            "OBJSET", "OBJECT", "ERROR", "LVL", "DVAs", "RANGE"
        ),
        "---  ---------------  ------  ------  ----------  ---  ----  ---------------  ------  ------",
        rows(&|v| v.guid.is_none(), &|v| {
            let range = range_of(v).unwrap_or_else(|| "all".into());
            let begin = format!("{:>3}  {:<15}  {:<6}  {:<6}  {:<10}", v.id, v.pool, v.objset, v.object, v.error);
            format!("{begin}  {:<3}  {:#04x}  {range:<15}  {:>6}  {:>6}", v.level, v.copies, v.matched, v.hits)
        }),
    );
    if parts.is_empty() {
        return "No handlers registered.\nRun 'zinject -h' for usage information.\n".into();
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Parsed {
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        parse_for("zinject", &args, "C:D:f:r:b:", &[], "").unwrap_or_else(|e| panic!("{e:?}"))
    }

    #[test]
    fn values_of_letters() {
        let chances = [("", ALWAYS), ("-f 100", ALWAYS), ("-f 0.25", 2500), ("-f 0.0001", 1), ("-f 50%", 500_000)];
        for (line, want) in chances {
            assert_eq!(chance(&parsed(line)).unwrap(), want, "{line}");
        }
        for line in ["-f 0", "-f 101", "-f x", "-f nan", "-f 0.00001"] {
            assert!(chance(&parsed(line)).is_err(), "{line}");
        }
        for (line, want) in [("", 0), ("-C 0", 1), ("-C 0,1", 3), ("-C 2,0", 5), ("-C 0,1,2", 7)] {
            assert_eq!(copies(&parsed(line)).unwrap(), want, "{line}");
        }
        for line in ["-C 3", "-C 0,", "-C ,0", "-C 0,0", "-C 01"] {
            assert!(copies(&parsed(line)).is_err(), "{line}");
        }
        for (line, want) in [("", None), ("-r 4K", Some((4096, 4097))), ("-r 0,1M", Some((0, 1 << 20)))] {
            assert_eq!(bytes(&parsed(line)).unwrap(), want, "{line}");
        }
        for line in ["-r x", "-r 2,1", "-r 1,1", "-r ,"] {
            assert!(bytes(&parsed(line)).is_err(), "{line}");
        }
        assert_eq!(delay("20:100").unwrap(), (20, 100));
        for text in ["20", "0:1", "1:0", "a:b", "1:-1", ":"] {
            assert!(delay(text).is_err(), "{text}");
        }
        let wish = bookmark("36:80:0:3fff").unwrap();
        assert_eq!((wish.objset, wish.object, wish.range), (Some(0x36), 0x80, Some((0x3fff, 0x4000))));
        assert_eq!(bookmark("1:2:1:0:ff").unwrap().range, Some((0, 0x100)));
        for text in ["1:2:3", "1:2:3:4:5:6", "x:2:0:0", "1:2:100:0", "1:2:0:5:4", ""] {
            assert!(bookmark(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tables_are_those_of_openzfs() {
        assert!(table(&[]).starts_with("No handlers registered.\n"));
        let base =
            InjectionView { id: 1, pool: "tank".into(), chance: 500_000, matched: 4, hits: 2, ..Default::default() };
        let guid = Some(0x1234_5678_9abc_def0);
        let io = InjectionView { guid, ops: "read".into(), error: "io".into(), ..base.clone() };
        let slow = InjectionView { id: 2, delay: Some((20, 1)), ..io.clone() };
        let data = InjectionView { id: 3, objset: 54, object: 2, error: "io".into(), copies: 3, ..base };
        let want = "\
\x20ID  POOL             GUID              TYPE   ERROR       FREQ       MATCH   INJECT
---  ---------------  ----------------  -----  ----------  ---------  ------  ------
  1  tank             123456789abcdef0  read   io           50.0000%       4       2

 ID  POOL             GUID              DELAY (ms)  LANES  FREQ       MATCH   INJECT
---  ---------------  ----------------  ----------  -----  ---------  ------  ------
  2  tank             123456789abcdef0          20      1   50.0000%       4       2

 ID  POOL             OBJSET  OBJECT  ERROR       LVL  DVAs  RANGE            MATCH   INJECT
---  ---------------  ------  ------  ----------  ---  ----  ---------------  ------  ------
  3  tank             54      2       io          0    0x03  all                   4       2
";
        assert_eq!(table(&[io, slow, data]), want);
    }
}
