//! `-j`: what the commands show as JSON, in the shape of OpenZFS 2.3 (`output_version`, then objects by name).

use daemon::proto::{DatasetView, PoolView, PropView, VdevView};
use serde_json::{Map, Value, json};

fn version(command: &str) -> Value {
    json!({ "command": command, "vers_major": 0, "vers_minor": 1 })
}

fn text(value: &Value) -> String {
    let mut out = serde_json::to_string_pretty(value).unwrap_or_default();
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

fn vdev(v: &VdevView) -> Value {
    let mut out = Map::new();
    out.insert("name".into(), json!(v.name));
    out.insert("vdev_type".into(), json!(v.kind));
    out.insert("guid".into(), json!(v.guid.to_string()));
    out.insert("state".into(), json!(v.state));
    if v.psize > 0 {
        out.insert("path".into(), json!(v.name));
        out.insert("phys_space".into(), json!(v.psize.to_string()));
    }
    out.insert("alloc_space".into(), json!(v.alloc.to_string()));
    out.insert("total_space".into(), json!(v.space.to_string()));
    for (name, n) in ["read_errors", "write_errors", "checksum_errors"].iter().zip(v.errors) {
        out.insert((*name).into(), json!(n.to_string()));
    }
    if !v.children.is_empty() {
        out.insert("vdevs".into(), children(v));
    }
    Value::Object(out)
}

fn children(v: &VdevView) -> Value {
    Value::Object(v.children.iter().map(|c| (c.name.clone(), vdev(c))).collect())
}

/// Pools with these properties; with their devices if `devices`.
pub fn pools(command: &str, pools: &[PoolView], columns: Option<&[String]>, exact: bool, devices: bool) -> String {
    let one = |p: &PoolView| {
        let mut out = json!({
            "name": p.name,
            "type": "POOL",
            "state": p.state,
            "pool_guid": p.guid.to_string(),
            "txg": p.txg.to_string(),
            "spa_version": "5000",
            "zpl_version": "5",
        });
        if let Some(columns) = columns {
            let wanted = p.props.iter().filter(|q| columns.iter().any(|c| c == "all" || *c == q.name));
            out["properties"] = properties(wanted, exact);
        }
        if devices {
            out["vdevs"] = json!({ p.name.as_str(): vdev(&p.vdevs) });
            out["error_count"] = json!(p.data_errors.to_string());
            if let Some(s) = &p.scan {
                out["scan_stats"] = json!({
                    "function": s.function,
                    "state": s.state,
                    "start_time": s.start.to_string(),
                    "end_time": s.end.to_string(),
                    "to_examine": s.to_examine.to_string(),
                    "examined": s.examined.to_string(),
                    "processed": s.processed.to_string(),
                    "errors": s.errors.to_string(),
                    "issued": s.issued.to_string(),
                });
            }
            if let Some(status) = &p.status {
                out["status"] = json!(status);
            }
            if let Some(action) = &p.action {
                out["action"] = json!(action);
            }
        }
        (p.name.clone(), out)
    };
    let all: Map<String, Value> = pools.iter().map(one).collect();
    text(&json!({ "output_version": version(command), "pools": all }))
}

/// Datasets with these properties.
pub fn datasets(command: &str, list: &[DatasetView], columns: &[String], exact: bool) -> String {
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
    text(&json!({ "output_version": version(command), "datasets": all }))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let out = datasets("zfs list", &[ds], &["used".to_string(), "atime".to_string()], true);
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
        let root = VdevView { kind: "root".into(), name: "tank".into(), children: vec![leaf], ..VdevView::default() };
        let pool = PoolView { name: "tank".into(), state: "ONLINE".into(), vdevs: root, ..PoolView::default() };
        let back: Value = serde_json::from_str(&pools("zpool status", &[pool], None, false, true)).unwrap();
        assert_eq!(back["pools"]["tank"]["vdevs"]["tank"]["vdevs"]["/a"]["path"], "/a");
    }
}
