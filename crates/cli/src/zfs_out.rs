//! The output of `zfs`: pure functions from views to text.

use std::cmp::Ordering;

use admin::fs::owners::OwnerProp;
use admin::view::{DatasetView, PropView};
use dsl::props::{self, PropType};

use crate::opts::Parsed;
use crate::table::{Column, scripted, table};

/// Columns of `zfs list` without `-o`.
pub const LIST_COLUMNS: &[&str] = &["name", "used", "available", "referenced", "mountpoint"];
/// Columns of `-o space`.
pub const SPACE_COLUMNS: &[&str] =
    &["name", "available", "used", "usedbysnapshots", "usedbydataset", "usedbyrefreservation", "usedbychildren"];

/// Properties that only views have.
const VIEW_ONLY: &[&str] = &[
    "name",
    "filesystem_count",
    "snapshot_count",
    "ivsetguid",
    "keylocation",
    "keyformat",
    "pbkdf2iters",
    "defer_destroy",
    "userrefs",
    "clones",
];

/// The full name of a property, if there is one of that name.
pub fn canonical(name: &str) -> Option<String> {
    if VIEW_ONLY.contains(&name)
        || props::is_user_prop(name)
        || name.starts_with("written@")
        || OwnerProp::parse(name).is_some()
    {
        return Some(name.to_string());
    }
    props::find(name).map(|p| p.name.to_string())
}

/// Headers that differ from the name in capitals.
const HEADERS: &[(&str, &str)] = &[
    ("available", "AVAIL"),
    ("referenced", "REFER"),
    ("compressratio", "RATIO"),
    ("reservation", "RESERV"),
    ("volblocksize", "VOLBLOCK"),
    ("recordsize", "RECSIZE"),
    ("compression", "COMPRESS"),
    ("readonly", "RDONLY"),
    ("casesensitivity", "CASE"),
    ("refreservation", "REFRESERV"),
    ("usedbysnapshots", "USEDSNAP"),
    ("usedbydataset", "USEDDS"),
    ("usedbychildren", "USEDCHILD"),
    ("usedbyrefreservation", "USEDREFRESERV"),
    ("dnodesize", "DNSIZE"),
    ("refcompressratio", "REFRATIO"),
    ("logicalused", "LUSED"),
    ("logicalreferenced", "LREFER"),
    ("filesystem_limit", "FSLIMIT"),
    ("snapshot_limit", "SSLIMIT"),
    ("filesystem_count", "FSCOUNT"),
    ("snapshot_count", "SSCOUNT"),
    ("redundant_metadata", "REDUND_MD"),
    ("defer_destroy", "DEFER_DESTROY"),
];

fn column(name: &str) -> Column {
    let header = HEADERS.iter().find(|(n, _)| *n == name).map_or_else(|| name.to_uppercase(), |(_, h)| h.to_string());
    match (name, props::find(name).map(|p| p.ty)) {
        // OpenZFS mixes up two tables here; scripts depend on the result.
        ("referenced", _) => Column::number(&header).wide(8),
        ("compressratio" | "refcompressratio", _) => Column::number(&header),
        ("type", _) => Column::text(&header).wide(10),
        ("creation", _) => Column::text(&header),
        (_, Some(PropType::Size { .. })) => Column::number(&header),
        (_, Some(PropType::Number)) => Column::number(&header).growing(),
        (_, Some(PropType::Index(words))) => Column::text(&header)
            .wide(words.iter().map(|(w, _)| w.len()).max().unwrap_or(0).max(if words.len() == 2 { 5 } else { 0 })),
        (_, Some(PropType::Compression)) => Column::text(&header).wide("zstd-fast-1000".len()),
        (_, Some(PropType::Checksum)) => Column::text(&header).wide("fletcher4".len()),
        _ => Column::text(&header),
    }
}

fn prop<'a>(ds: &'a DatasetView, name: &str) -> Option<&'a PropView> {
    ds.props.iter().find(|p| p.name == name)
}

fn field(ds: &DatasetView, name: &str, exact: bool) -> String {
    if name == "name" {
        return ds.name.clone();
    }
    prop(ds, name).map_or_else(|| "-".to_string(), |p| if exact { p.exact.clone() } else { p.value.clone() })
}

/// A column to sort by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SortKey {
    /// The property.
    pub name: String,
    /// `-S`: the largest first.
    pub descending: bool,
}

/// Sorts by these columns, the first is the most important; rows without a value go to the bottom.
/// Equal rows keep their order.
pub fn sort(datasets: &mut [DatasetView], keys: &[SortKey]) {
    datasets.sort_by(|a, b| {
        keys.iter().map(|k| compare(a, b, k)).find(|o| *o != Ordering::Equal).unwrap_or(Ordering::Equal)
    });
}

fn compare(a: &DatasetView, b: &DatasetView, key: &SortKey) -> Ordering {
    let value = |d: &DatasetView| Some(field(d, &key.name, true)).filter(|v| v != "-");
    let (x, y) = match (value(a), value(b)) {
        (Some(x), Some(y)) => (x, y),
        (Some(_), None) => return Ordering::Less,
        (None, Some(_)) => return Ordering::Greater,
        (None, None) => return Ordering::Equal,
    };
    let order = match (x.parse::<f64>(), y.parse::<f64>()) {
        (Ok(x), Ok(y)) => x.total_cmp(&y),
        _ => x.cmp(&y),
    };
    if key.descending { order.reverse() } else { order }
}

/// `zfs list`.
pub fn list(datasets: &[DatasetView], columns: &[String], script: bool, exact: bool) -> String {
    let rows: Vec<Vec<String>> =
        datasets.iter().map(|d| columns.iter().map(|c| field(d, c, exact)).collect()).collect();
    if script {
        return scripted(&rows);
    }
    let mut cols: Vec<Column> = columns.iter().map(|c| column(c)).collect();
    if exact {
        cols.iter_mut().for_each(|c| c.grows = true);
    }
    table(&cols, &rows)
}

/// The output of `zfs create` with `-v` or `-P`, with or without `-n`.
pub fn created(name: &str, props: &[(String, String)], p: &Parsed) -> String {
    let (machine, verbose) = (p.has('P'), p.has('v') || p.has('P'));
    if !verbose {
        return String::new();
    }
    let mut out = String::new();
    if p.has('p') {
        out.push_str(match (machine, p.has('n')) {
            (true, _) => "create_ancestors\t",
            (_, true) => "would create ancestors of ",
            _ => "create ancestors of ",
        });
        out.push_str(&format!("{name}\n"));
    }
    out.push_str(match (machine, p.has('n')) {
        (true, _) => "create\t",
        (_, true) => "would create ",
        _ => "create ",
    });
    out.push_str(&format!("{name}\n"));
    for (prop, value) in props {
        out.push_str(&if machine { format!("property\t{prop}\t{value}\n") } else { format!("\t{prop}={value}\n") });
    }
    out
}

/// The word of `-s` for a source.
fn source_word(source: &str) -> &str {
    match source {
        "-" => "none",
        s if s.starts_with("inherited") => "inherited",
        s => s,
    }
}

/// The rows of `zfs get`; `sources` empty for all. The error names a property that does not exist.
pub fn rows(
    datasets: &[DatasetView],
    wanted: &[String],
    sources: &[String],
) -> Result<Vec<(String, PropView)>, String> {
    let fits = |p: &PropView| sources.is_empty() || sources.iter().any(|s| s == source_word(&p.source));
    let mut names = Vec::new();
    for name in wanted {
        let known = if name == "all" { Some(name.clone()) } else { canonical(name) };
        names.push(known.ok_or_else(|| format!("invalid property '{name}'"))?);
    }
    let mut out = Vec::new();
    for ds in datasets {
        for name in &names {
            if name == "all" {
                out.extend(ds.props.iter().filter(|p| fits(p)).map(|p| (ds.name.clone(), p.clone())));
                continue;
            }
            let none = || PropView { name: name.clone(), value: "-".into(), exact: "-".into(), source: "-".into() };
            let found = match name.as_str() {
                "name" => PropView { value: ds.name.clone(), exact: ds.name.clone(), ..none() },
                _ => prop(ds, name).cloned().unwrap_or_else(none),
            };
            if fits(&found) {
                out.push((ds.name.clone(), found));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ds(name: &str, kind: &str, props: &[(&str, &str, &str, &str)]) -> DatasetView {
        let row = |(n, v, e, s): &(&str, &str, &str, &str)| PropView {
            name: n.to_string(),
            value: v.to_string(),
            exact: e.to_string(),
            source: s.to_string(),
        };
        DatasetView { name: name.into(), kind: kind.into(), props: props.iter().map(row).collect() }
    }

    /// Rows of the reference pool `single`.
    fn some() -> Vec<DatasetView> {
        let fs =
            |name: &str, used: (&str, &str), refer: (&str, &str), lrefer: &str, ratio: &str, origin: Option<&str>| {
                let mount = format!("/mnt/{name}");
                let mut props = vec![
                    ("type", "filesystem", "filesystem", "-"),
                    ("creation", "Fri Nov 20 17:27 2026", "1795195647", "-"),
                    ("used", used.0, used.1, "-"),
                    ("available", "92.2M", "96706048", "-"),
                    ("referenced", refer.0, refer.1, "-"),
                    ("logicalreferenced", lrefer, "1", "-"),
                    ("compressratio", ratio, "1", "-"),
                    ("mountpoint", mount.as_str(), mount.as_str(), "inherited from tank"),
                ];
                if let Some(o) = origin {
                    props.push(("origin", o, o, "-"));
                }
                ds(name, "filesystem", &props)
            };
        let mut snap = ds(
            "tank/files@one",
            "snapshot",
            &[
                ("type", "snapshot", "snapshot", "-"),
                ("creation", "Fri Nov 20 17:27 2026", "1795195651", "-"),
                ("used", "2.31M", "2426368", "-"),
                ("referenced", "16.8M", "17648128", "-"),
                ("logicalreferenced", "16.7M", "1", "-"),
                ("compressratio", "1.00x", "1", "-"),
            ],
        );
        snap.props.push(PropView { name: "version".into(), value: "5".into(), exact: "5".into(), source: "-".into() });
        vec![
            fs("tank", ("27.8M", "29123072"), ("282K", "289280"), "260K", "1.46x", None),
            fs("tank/clone", ("34.5K", "35328"), ("16.8M", "17647616"), "16.7M", "1.00x", Some("tank/files@one")),
            snap,
            fs("tank/zstd", ("382K", "391168"), ("382K", "391168"), "5.86M", "17.29x", None),
        ]
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|c| c.to_string()).collect()
    }

    #[test]
    fn list_has_the_layout_of_openzfs() {
        let columns = names(&[
            "name",
            "type",
            "used",
            "available",
            "referenced",
            "logicalreferenced",
            "compressratio",
            "creation",
            "origin",
            "mountpoint",
        ]);
        let want = "\
NAME            TYPE         USED  AVAIL     REFER  LREFER  RATIO  CREATION               ORIGIN          MOUNTPOINT
tank            filesystem  27.8M  92.2M      282K    260K  1.46x  Fri Nov 20 17:27 2026  -               /mnt/tank
tank/clone      filesystem  34.5K  92.2M     16.8M   16.7M  1.00x  Fri Nov 20 17:27 2026  tank/files@one  /mnt/tank/clone
tank/files@one  snapshot    2.31M      -     16.8M   16.7M  1.00x  Fri Nov 20 17:27 2026  -               -
tank/zstd       filesystem   382K  92.2M      382K   5.86M  17.29x  Fri Nov 20 17:27 2026  -               /mnt/tank/zstd
";
        assert_eq!(list(&some(), &columns, false, false), want);
        assert_eq!(list(&some()[..1], &names(&["name", "used"]), true, true), "tank\t29123072\n");
    }

    #[test]
    fn sorting_is_numeric_and_puts_holes_last() {
        let mut all = some();
        sort(&mut all, &[SortKey { name: "used".into(), descending: false }]);
        let order: Vec<&str> = all.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(order, ["tank/clone", "tank/zstd", "tank/files@one", "tank"]);
        sort(
            &mut all,
            &[
                SortKey { name: "available".into(), descending: true },
                SortKey { name: "name".into(), descending: true },
            ],
        );
        let order: Vec<&str> = all.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(order, ["tank/zstd", "tank/clone", "tank", "tank/files@one"]);
    }

    #[test]
    fn get_chooses_by_name_and_source() {
        let all = some();
        let got = rows(&all, &names(&["mountpoint", "used"]), &names(&["inherited"])).unwrap();
        assert_eq!(got.len(), 3);
        let got = rows(&all[2..3], &names(&["mountpoint"]), &[]).unwrap();
        assert_eq!(got[0].1.value, "-");
        assert_eq!(rows(&all[..1], &names(&["all"]), &[]).unwrap().len(), all[0].props.len());
        assert_eq!(rows(&all, &names(&["nonsense"]), &[]).unwrap_err(), "invalid property 'nonsense'");
        assert!(rows(&all, &names(&["avail", "org.me:note", "name"]), &[]).is_ok());
    }
}
