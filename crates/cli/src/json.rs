//! `-j`: the output of commands as JSON, in the shape of OpenZFS 2.3 (`output_version`, then
//! objects by name).

use admin::view::fmt;
use admin::view::{DatasetView, PoolView, PropView, VdevProps, VdevView};
use serde_json::{Map, Value, json};

use crate::opts::Parsed;
use crate::zpool_out::{LIST_COLUMNS, Style, help_page, vdev_fields, vdev_rows};

/// What `--json-int`, `--json-pool-key-guid` and `--json-flat-vdevs` ask for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Shape {
    /// Numbers are integers instead of strings.
    pub integers: bool,
    /// The objects of pools are found by their guids instead of their names.
    pub by_guid: bool,
    /// All vdevs of a pool are in one object, each with the name of the one that it is in.
    pub flat: bool,
}

impl Shape {
    /// The long options, for [`crate::opts::Spec`]; their letters are no letters of users.
    pub const LONG: [(&'static str, bool, char); 4] = [
        ("json", false, 'j'),
        ("json-int", false, '1'),
        ("json-pool-key-guid", false, '2'),
        ("json-flat-vdevs", false, '3'),
    ];

    /// What a command line asks for. The error says which option has no meaning without `-j`.
    pub fn of(p: &Parsed) -> Result<Shape, String> {
        let alone = |(_, _, letter): &&(&str, bool, char)| !p.has('j') && p.has(*letter);
        if let Some((name, ..)) = Shape::LONG.iter().find(alone) {
            return Err(format!("'--{name}' only works with '-j' option"));
        }
        Ok(Shape { integers: p.has('1'), by_guid: p.has('2'), flat: p.has('3') })
    }

    /// The output of a command in this shape.
    fn applied(self, mut value: Value) -> Value {
        if self.flat
            && let Some(Value::Object(pools)) = value.get_mut("pools")
        {
            pools.values_mut().filter_map(Value::as_object_mut).for_each(flatten);
        }
        if self.by_guid
            && let Some(Value::Object(pools)) = value.get_mut("pools")
        {
            let by_guid =
                |(name, pool): (String, Value)| (pool["pool_guid"].as_str().map_or(name, str::to_string), pool);
            *pools = std::mem::take(pools).into_iter().map(by_guid).collect();
        }
        if self.integers {
            with_integers(&mut value);
        }
        value
    }
}

/// Keys whose values are names, also where they have only digits.
const NAMES: [&str; 9] =
    ["name", "path", "pool", "parent", "dataset", "snapshot_name", "filesystem", "mountpoint", "data"];

/// Strings of digits become integers.
fn with_integers(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(with_integers),
        Value::Object(all) => {
            for (_, inner) in all.iter_mut().filter(|(key, _)| !NAMES.contains(&key.as_str())) {
                with_integers(inner);
            }
        }
        Value::String(text) if text.bytes().all(|b| b.is_ascii_digit()) => {
            if let Ok(n) = text.parse::<u64>() {
                *value = json!(n);
            }
        }
        _ => {}
    }
}

/// The keys under which a pool has vdevs of a class.
const CLASSES: [&str; 5] = ["dedup", "special", "logs", "l2cache", "spares"];

/// Puts all vdevs of a pool into one object, in order, each with the name of the one above it.
fn flatten(pool: &mut Map<String, Value>) {
    fn add(vdevs: Value, above: &str, out: &mut Map<String, Value>) {
        let Value::Object(vdevs) = vdevs else { return };
        for (name, mut vdev) in vdevs {
            let inner = vdev.as_object_mut().and_then(|v| v.remove("vdevs"));
            if let Some(v) = vdev.as_object_mut().filter(|_| !above.is_empty()) {
                v.insert("parent".into(), json!(above));
            }
            out.insert(name.clone(), vdev);
            inner.into_iter().for_each(|inner| add(inner, &name, out));
        }
    }
    let name = pool.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
    let mut all = Map::new();
    if let Some(vdevs) = pool.get_mut("vdevs") {
        add(vdevs.take(), "", &mut all);
        for class in CLASSES {
            pool.remove(class).into_iter().for_each(|vdevs| add(vdevs, &name, &mut all));
        }
        pool.insert("vdevs".into(), Value::Object(all));
    }
}

fn version(command: &str) -> Value {
    json!({ "command": command, "vers_major": 0, "vers_minor": 1 })
}

fn text(value: &Value) -> String {
    let mut out = serde_json::to_string(value).unwrap_or_default();
    out.push('\n');
    out
}

fn source(p: &PropView) -> Value {
    let (kind, data) = match p.source.as_str() {
        "-" => ("NONE", "-"),
        "default" => ("DEFAULT", "-"),
        "local" => ("LOCAL", "-"),
        "received" => ("RECEIVED", "-"),
        "temporary" => ("TEMPORARY", "-"),
        other => ("INHERITED", other.strip_prefix("inherited from ").unwrap_or(other)),
    };
    json!({ "type": kind, "data": data })
}

fn properties<'a>(props: impl Iterator<Item = &'a PropView>, exact: bool) -> Value {
    let one = |p: &PropView| {
        let value = if exact { &p.exact } else { &p.value };
        (p.name.clone(), json!({ "value": value, "source": source(p) }))
    };
    Value::Object(props.map(one).collect())
}

/// The numbers of `zpool status`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// `-p`: exact.
    pub exact: bool,
    /// `-d`: with wrong checksums of direct I/O, of which there are none.
    pub direct: bool,
}

/// The form of vdevs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `zpool status`: errors and space.
    Status(Numbers),
    /// `zpool list -v`: the columns as properties.
    List(bool),
}

/// Sizes and counts are strings, short unless `exact`.
fn size(n: u64, exact: bool) -> Value {
    json!(if exact { n.to_string() } else { fmt::bytes(n) })
}

fn moment(secs: u64, exact: bool) -> Value {
    json!(if exact { secs.to_string() } else { fmt::moment(secs) })
}

/// The class of a vdev; vdevs below have the class of the top-level vdev.
fn class_of<'a>(v: &'a VdevView, above: &'a str) -> &'a str {
    match (v.is_log, v.bias.as_str()) {
        (true, _) => "log",
        (_, "") if above.is_empty() => "normal",
        (_, "") => above,
        (_, bias) => bias,
    }
}

fn vdev(v: &VdevView, above: &str, form: Form) -> Value {
    let class = class_of(v, above);
    let mut out = Map::new();
    out.insert("name".into(), json!(v.name));
    out.insert("vdev_type".into(), json!(v.kind));
    out.insert("guid".into(), json!(v.guid.to_string()));
    if matches!(v.kind.as_str(), "disk" | "file") {
        out.insert("path".into(), json!(v.name));
    }
    out.insert("class".into(), json!(class));
    out.insert("state".into(), json!(v.state));
    match form {
        Form::List(exact) => {
            let style = Style { exact, ..Style::default() };
            let mut props = Map::new();
            let values = vdev_fields(v, style).into_iter().chain([v.state.clone()]);
            for (name, value) in LIST_COLUMNS.iter().skip(1).zip(values) {
                props.insert((*name).into(), json!({ "value": value, "source": { "type": "NONE", "data": "-" } }));
            }
            out.insert("properties".into(), Value::Object(props));
        }
        Form::Status(Numbers { exact, direct }) if class != "spare" => {
            for (name, n) in [("alloc_space", v.alloc), ("total_space", v.space), ("phys_space", v.psize)] {
                if n > 0 {
                    out.insert(name.into(), size(n, exact));
                }
            }
            let count = |n: u64| json!(if exact { n.to_string() } else { fmt::num(n) });
            for (name, n) in ["read_errors", "write_errors", "checksum_errors"].iter().zip(v.errors) {
                out.insert((*name).into(), count(n));
            }
            if v.deferred {
                out.insert("resilver_deferred".into(), json!("1"));
            }
            if v.children.is_empty() {
                out.insert("slow_ios".into(), count(v.slow_ios));
            }
            match (v.removing, v.noalloc) {
                (true, _) => drop(out.insert("removing".into(), json!("1"))),
                (false, true) => drop(out.insert("noalloc".into(), json!("1"))),
                _ => {}
            }
            if direct {
                out.insert("dio_verify_errors".into(), json!("0"));
            }
        }
        Form::Status(_) => {}
    }
    let inside = v.children.iter().filter(|c| v.kind != "root" || class_of(c, "") == "normal");
    let inside: Map<String, Value> = inside.map(|c| (c.name.clone(), vdev(c, class, form))).collect();
    if !inside.is_empty() {
        out.insert("vdevs".into(), Value::Object(inside));
    }
    Value::Object(out)
}

/// The classes other than normal, each with its vdevs.
fn classes(p: &PoolView, form: Form, out: &mut Map<String, Value>) {
    let tops = |class: &'static str| p.vdevs.children.iter().filter(|v| class_of(v, "") == class).collect::<Vec<_>>();
    let aux = |list: &'static str| match list {
        "l2cache" => p.caches.iter().collect::<Vec<_>>(),
        _ => p.spares.iter().collect(),
    };
    for (key, class, list) in [
        ("dedup", "dedup", tops("dedup")),
        ("special", "special", tops("special")),
        ("logs", "log", tops("log")),
        ("l2cache", "l2cache", aux("l2cache")),
        ("spares", "spare", aux("spares")),
    ] {
        if !list.is_empty() {
            let all: Map<String, Value> = list.iter().map(|v| (v.name.clone(), vdev(v, class, form))).collect();
            out.insert(key.into(), Value::Object(all));
        }
    }
}

/// What every object of a pool begins with.
fn head(p: &PoolView, typed: bool) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("name".into(), json!(p.name));
    if typed {
        out.insert("type".into(), json!("POOL"));
    }
    out.insert("state".into(), json!(p.state));
    out.insert("pool_guid".into(), json!(p.guid.to_string()));
    out.insert("txg".into(), json!(p.txg.to_string()));
    out.insert("spa_version".into(), json!("5000"));
    out.insert("zpl_version".into(), json!("5"));
    out
}

/// `zpool status` of pools.
pub fn statuses(pools: &[PoolView], numbers: Numbers, shape: Shape) -> String {
    let one = |p: &PoolView| {
        let mut out = head(p, false);
        status(p, numbers, &mut out);
        (p.name.clone(), Value::Object(out))
    };
    let all: Map<String, Value> = pools.iter().map(one).collect();
    text(&shape.applied(json!({ "output_version": version("zpool status"), "pools": all })))
}

/// Pools with these properties; with their devices if `devices`.
pub fn pools(
    command: &str,
    pools: &[PoolView],
    columns: &[String],
    (exact, shape): (bool, Shape),
    devices: bool,
) -> String {
    let one = |p: &PoolView| {
        let mut out = head(p, true);
        let wanted = p.props.iter().filter(|q| columns.iter().any(|c| c == "all" || *c == q.name));
        out.insert("properties".into(), properties(wanted, exact));
        if devices {
            let form = Form::List(exact);
            let normal = p.vdevs.children.iter().filter(|v| class_of(v, "") == "normal");
            let mut vdevs: Map<String, Value> = normal.map(|v| (v.name.clone(), vdev(v, "", form))).collect();
            classes(p, form, &mut vdevs);
            out.insert("vdevs".into(), Value::Object(vdevs));
        }
        (p.name.clone(), Value::Object(out))
    };
    let all: Map<String, Value> = pools.iter().map(one).collect();
    text(&shape.applied(json!({ "output_version": version(command), "pools": all })))
}

/// A vdev of a pool and its class, by its guid.
fn find_vdev<'a>(v: &'a VdevView, above: &'a str, guid: &str) -> Option<(&'a VdevView, &'a str)> {
    let class = class_of(v, above);
    if v.guid.to_string() == guid {
        return Some((v, class));
    }
    // The root has a class that does not pass on.
    let above = if v.kind == "root" { "" } else { class };
    v.children.iter().find_map(|c| find_vdev(c, above, guid))
}

/// These properties of vdevs of a pool (`zpool get PROPERTY POOL VDEV`).
pub fn vdev_props(pool: &PoolView, vdevs: &[VdevProps], wanted: &[String], (exact, shape): (bool, Shape)) -> String {
    let one = |v: &VdevProps| {
        let value = |name: &str| v.props.iter().find(|q| q.name == name).map_or("-", |q| q.exact.as_str());
        let rows = vdev_rows(v, wanted);
        let name = rows.first().map_or_else(|| v.name.clone(), |(shown, _)| shown.clone());
        let aux = pool.caches.iter().map(|c| (c, "l2cache")).chain(pool.spares.iter().map(|s| (s, "spare")));
        let mut aux = aux.filter(|(c, _)| c.guid.to_string() == value("guid"));
        let class = find_vdev(&pool.vdevs, "", value("guid")).or_else(|| aux.next()).map_or("normal", |(_, c)| c);
        let mut out = Map::new();
        out.insert("name".into(), json!(name));
        out.insert("type".into(), json!("VDEV"));
        out.insert("vdev_type".into(), json!(v.kind));
        out.insert("guid".into(), json!(value("guid")));
        if matches!(v.kind.as_str(), "disk" | "file") {
            out.insert("path".into(), json!(v.name));
        }
        out.insert("class".into(), json!(class));
        out.insert("state".into(), json!(value("state")));
        let shown = rows.iter().map(|(_, q)| q).filter(|q| q.name != "name");
        out.insert("properties".into(), properties(shown, exact));
        (name, Value::Object(out))
    };
    let all: Map<String, Value> = vdevs.iter().map(one).collect();
    let head = Value::Object(head(pool, false));
    text(&shape.applied(json!({ "output_version": version("zpool get"), "pool": head, "vdevs": all })))
}

/// What is mounted (`zfs mount`), file systems with their places; nothing if none is.
pub fn mounts(all: &[(String, String)]) -> String {
    let one = |(name, at): &(String, String)| (name.clone(), json!({ "filesystem": name, "mountpoint": at }));
    let all: Map<String, Value> = all.iter().map(one).collect();
    match all.is_empty() {
        true => String::new(),
        false => text(&json!({ "output_version": version("zfs mount"), "datasets": all })),
    }
}

/// The object of `zpool status`.
fn status(p: &PoolView, numbers: Numbers, out: &mut Map<String, Value>) {
    let exact = numbers.exact;
    for (name, text) in [("status", &p.status), ("action", &p.action)] {
        if let Some(text) = text {
            out.insert(name.into(), json!(text));
        }
    }
    if let Some(name) = &p.msgid {
        out.insert("msgid".into(), json!(name));
        out.insert("moreinfo".into(), json!(help_page(name)));
    }
    if let Some(s) = &p.scan {
        let mut scan = json!({
            "function": s.function,
            "state": s.state,
            "start_time": moment(s.start, exact),
            "end_time": moment(s.end, exact),
            "to_examine": size(s.to_examine, exact),
            "examined": size(s.examined, exact),
            "processed": size(s.processed, exact),
            "errors": s.errors.to_string(),
            "pass_start": s.pass_start.to_string(),
            "scrub_pause": if s.paused_at == 0 { json!("-") } else { moment(s.paused_at, exact) },
            "scrub_spent_paused": s.pass_paused.to_string(),
            "issued": size(s.issued, exact),
        });
        if let (Some(e), Some(of)) = (p.error_scrub.as_ref().filter(|e| e.start > s.start), scan.as_object_mut()) {
            of.insert("err_scrub_func".into(), json!("ERRORSCRUB"));
            of.insert("err_scrub_state".into(), json!(e.state));
            of.insert("err_scrub_start_time".into(), moment(e.start, exact));
            of.insert("err_scrub_end_time".into(), moment(e.end, exact));
            of.insert("err_scrub_examined".into(), json!(e.examined.to_string()));
            of.insert("err_scrub_to_examine".into(), json!(e.to_examine.to_string()));
            of.insert("err_scrub_pause".into(), json!(e.paused_at.to_string()));
        }
        out.insert("scan_stats".into(), scan);
    }
    if let Some(r) = &p.removal {
        let stats = json!({
            "name": r.vdev,
            "state": r.state,
            "removing_vdev": r.id.to_string(),
            "start_time": moment(r.start, exact),
            "end_time": moment(r.end, exact),
            "to_copy": size(r.to_copy, exact),
            "copied": size(r.copied, exact),
            "mapping_memory": size(r.memory, exact),
        });
        out.insert("removal_stats".into(), stats);
    }
    if let Some(c) = &p.checkpoint {
        let state = if c.discarding { "DISCARDING" } else { "EXISTS" };
        let stats = json!({ "state": state, "start_time": moment(c.start, exact), "space": size(c.space, exact) });
        out.insert("checkpoint_stats".into(), stats);
    }
    if let Some(e) = &p.expand {
        let stats = json!({
            "name": e.vdev,
            "state": if e.finished { "FINISHED" } else { "SCANNING" },
            "expanding_vdev": e.id.to_string(),
            "start_time": moment(e.start, exact),
            "end_time": moment(e.end, exact),
            "to_reflow": size(e.total, exact),
            "reflowed": size(e.copied, exact),
            "waiting_for_resilver": u64::from(e.waiting).to_string(),
        });
        out.insert("raidz_expand_stats".into(), stats);
    }
    let form = Form::Status(numbers);
    out.insert("vdevs".into(), json!({ p.name.as_str(): vdev(&p.vdevs, "", form) }));
    classes(p, form, out);
    out.insert("error_count".into(), json!(p.data_errors.to_string()));
}

/// Datasets with these properties.
pub fn datasets(command: &str, list: &[DatasetView], columns: &[String], (exact, shape): (bool, Shape)) -> String {
    let one = |d: &DatasetView| {
        let wanted = d.props.iter().filter(|q| columns.iter().any(|c| c == "all" || *c == q.name));
        let createtxg = d.props.iter().find(|p| p.name == "createtxg").map_or("0", |p| p.exact.as_str());
        let out = json!({
            "name": d.name,
            "type": d.kind.to_uppercase(),
            "pool": d.name.split(['/', '@']).next().unwrap_or(""),
            "createtxg": createtxg,
            "properties": properties(wanted, exact),
        });
        (d.name.clone(), out)
    };
    let all: Map<String, Value> = list.iter().map(one).collect();
    text(&shape.applied(json!({ "output_version": version(command), "datasets": all })))
}

#[cfg(test)]
mod tests {
    use admin::view::CheckpointView;

    use super::*;

    #[test]
    fn the_output_takes_other_shapes() {
        let leaf = |name: &str| json!({ "name": name, "guid": "12", "state": "ONLINE" });
        let mirror = json!({ "name": "mirror-0", "vdevs": { "1": leaf("1"), "b": leaf("b") } });
        let root = json!({ "name": "7", "vdevs": { "mirror-0": mirror } });
        let pool = json!({ "name": "7", "pool_guid": "99", "logs": { "l": leaf("l") }, "vdevs": { "7": root } });
        let value = json!({ "pools": { "7": pool } });
        let shape = Shape { integers: true, by_guid: true, flat: true };
        let out = shape.applied(value.clone());
        let pool = &out["pools"]["99"];
        assert_eq!((&pool["name"], &pool["pool_guid"], &pool["logs"]), (&json!("7"), &json!(99), &Value::Null));
        let parents = ["7", "mirror-0", "1", "b", "l"].map(|name| pool["vdevs"][name]["parent"].as_str());
        assert_eq!(parents, [None, Some("7"), Some("mirror-0"), Some("mirror-0"), Some("7")]);
        assert_eq!((&pool["vdevs"]["1"]["guid"], &pool["vdevs"]["1"]["name"]), (&json!(12), &json!("1")));
        assert_eq!(Shape::default().applied(value.clone()), value);
        let spec = crate::opts::Spec { letters: "j", long: &Shape::LONG };
        let of =
            |line: &[&str]| Shape::of(&spec.parse(&line.iter().map(|w| w.to_string()).collect::<Vec<_>>()).unwrap());
        assert_eq!(of(&["-j", "--json-int"]), Ok(Shape { integers: true, ..Shape::default() }));
        assert!(of(&["--json-flat-vdevs"]).is_err_and(|e| e.contains("'--json-flat-vdevs' only works")));
    }

    #[test]
    fn properties_carry_value_and_source() {
        let props = vec![
            PropView { name: "used".into(), value: "1K".into(), exact: "1024".into(), source: "-".into() },
            PropView {
                name: "atime".into(),
                value: "off".into(),
                exact: "off".into(),
                source: "inherited from tank".into(),
            },
        ];
        let ds = DatasetView { name: "tank/a".into(), kind: "filesystem".into(), props };
        let out = datasets("zfs list", &[ds], &["used".to_string(), "atime".to_string()], (true, Shape::default()));
        let back: Value = serde_json::from_str(&out).unwrap();
        let d = &back["datasets"]["tank/a"];
        assert_eq!(d["type"], "FILESYSTEM");
        assert_eq!(d["pool"], "tank");
        assert_eq!(d["properties"]["used"]["value"], "1024");
        assert_eq!(d["properties"]["atime"]["source"], json!({ "type": "INHERITED", "data": "tank" }));
        assert_eq!(back["output_version"]["command"], "zfs list");
    }

    #[test]
    fn pools_carry_their_devices() {
        let leaf = VdevView {
            kind: "file".into(),
            name: "/a".into(),
            psize: 64,
            state: "ONLINE".into(),
            ..VdevView::default()
        };
        let log = VdevView { name: "/l".into(), is_log: true, space: 1 << 20, ..leaf.clone() };
        let root = VdevView {
            kind: "root".into(),
            name: "tank".into(),
            children: vec![leaf.clone(), log],
            ..VdevView::default()
        };
        let pool = PoolView {
            name: "tank".into(),
            state: "ONLINE".into(),
            vdevs: root,
            spares: vec![VdevView { name: "/s".into(), state: "AVAIL".into(), ..leaf.clone() }],
            caches: vec![VdevView { name: "/c".into(), ..leaf }],
            checkpoint: Some(CheckpointView { start: 5, space: 2048, discarding: false }),
            ..PoolView::default()
        };
        let text = statuses(std::slice::from_ref(&pool), Numbers { exact: false, direct: false }, Shape::default());
        assert_eq!(text.lines().count(), 1, "{text}");
        let back: Value = serde_json::from_str(&text).unwrap();
        let tank = &back["pools"]["tank"];
        assert!(tank["vdevs"]["tank"]["vdevs"]["/l"].is_null() && tank["type"].is_null(), "{text}");
        assert_eq!(tank["logs"]["/l"]["class"], "log");
        assert_eq!(tank["logs"]["/l"]["total_space"], "1M");
        assert_eq!(tank["l2cache"]["/c"]["class"], "l2cache");
        assert_eq!(
            (&tank["spares"]["/s"]["state"], &tank["spares"]["/s"]["class"]),
            (&json!("AVAIL"), &json!("spare"))
        );
        assert_eq!(tank["checkpoint_stats"]["space"], "2K");
        let columns: Vec<String> = LIST_COLUMNS.iter().map(|c| c.to_string()).collect();
        let list: Value =
            serde_json::from_str(&pools("zpool list", &[pool], &columns, (true, Shape::default()), true)).unwrap();
        let vdevs = &list["pools"]["tank"]["vdevs"];
        assert_eq!(vdevs["logs"]["/l"]["properties"]["size"]["value"], "64");
        assert_eq!(vdevs["spares"]["/s"]["properties"]["health"]["value"], "AVAIL");
        assert_eq!(list["pools"]["tank"]["type"], "POOL");
        assert_eq!(back["pools"]["tank"]["vdevs"]["tank"]["vdevs"]["/a"]["path"], "/a");
    }
}
