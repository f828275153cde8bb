//! The output of `zpool`: pure functions from views to text.

use admin::pool::vdev_spec::VdevSpec;
use admin::view::fmt;
use admin::view::{
    Candidate, ErrorScrubView, ExpandView, HistoryLine, LeafWorkView, PoolView, PropView, RebuildView, RemovalView,
    ScanView, VdevProps, VdevView,
};

use crate::scripts::Told;
use crate::table::{Column, line, pad, scripted, table, width_of, widths};

/// Columns of `zpool list` without `-o`.
pub const LIST_COLUMNS: &[&str] = &[
    "name",
    "size",
    "allocated",
    "free",
    "checkpoint",
    "expandsize",
    "fragmentation",
    "capacity",
    "dedupratio",
    "health",
    "altroot",
];

/// The style of numbers and lines.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Style {
    /// `-H`: tabs, no headers.
    pub scripted: bool,
    /// `-p`: exact numbers.
    pub exact: bool,
    /// `-P`: full paths.
    pub full_paths: bool,
    /// `-L`: the targets of symbolic links.
    pub real_paths: bool,
    /// `-v`: with devices.
    pub verbose: bool,
    /// `-g`: guids for names.
    pub guids: bool,
    /// `-i`: how far devices are initialized.
    pub init: bool,
    /// `-t`: how far devices are trimmed.
    pub trim: bool,
    /// `-e`: only vdevs that are not online or have errors, and those above them.
    pub unhealthy: bool,
    /// `-s`: a column of slow operations.
    pub slow: bool,
    /// `-d`: a column of wrong checksums of direct I/O.
    pub direct: bool,
}

impl Style {
    /// Whether a vdev below the root has a line in `zpool status`.
    fn shows(self, vdev: &VdevView) -> bool {
        !self.unhealthy || !is_clean(vdev) || self.slow && has_slow(vdev)
    }
}

/// The header and alignment of a property's column.
fn column(name: &str) -> Column {
    let upper = name.to_uppercase();
    let header = match name {
        "allocated" => "ALLOC",
        "checkpoint" => "CKPOINT",
        "expandsize" => "EXPANDSZ",
        "fragmentation" => "FRAG",
        "capacity" => "CAP",
        "dedupratio" => "DEDUP",
        "readonly" => "RDONLY",
        "listsnapshots" => "LISTSNAPS",
        "autoreplace" => "REPLACE",
        "autoexpand" => "EXPAND",
        "compatibility" => "COMPATIBILITY",
        "bcloneused" => "BCLONE_USED",
        "bclonesaved" => "BCLONE_SAVED",
        "bcloneratio" => "BCLONE_RATIO",
        _ => &upper,
    }
    .to_string();
    match name {
        "health" => Column { right: true, ..Column::text(&header).wide(8) },
        "allocated" | "free" | "checkpoint" | "expandsize" | "fragmentation" | "capacity" | "dedupratio"
        | "freeing" | "leaked" | "bcloneused" | "bclonesaved" | "bcloneratio" => Column::number(&header),
        "size" | "guid" | "load_guid" | "ashift" => Column::number(&header).growing(),
        _ => Column::text(&header),
    }
}

fn prop<'a>(props: &'a [PropView], name: &str) -> Option<&'a PropView> {
    props.iter().find(|p| p.name == name)
}

fn field(pool: &PoolView, name: &str, exact: bool) -> String {
    if name == "name" {
        return pool.name.clone();
    }
    let found = prop(&pool.props, name);
    found.map_or_else(|| "-".to_string(), |p| if exact { p.exact.clone() } else { p.value.clone() })
}

/// The name of a device: the last part of a disk's path, all of a file's.
pub fn leaf_name(vdev: &VdevView, style: Style) -> String {
    if style.guids && vdev.guid != 0 {
        return vdev.guid.to_string();
    }
    path_name(&vdev.name, &vdev.kind, style)
}

/// The path of a device as listings show it; other names stay.
pub fn path_name(path: &str, kind: &str, style: Style) -> String {
    let mut name = path.to_string();
    if style.real_paths && path.starts_with('/') {
        name = std::fs::canonicalize(path).map_or(name, |p| p.display().to_string());
    }
    if kind == "disk" && !style.full_paths {
        name = name.rsplit('/').next().unwrap_or(&name).to_string();
    }
    name
}

/// The tree that `create -n` and `add -n` show: existing and new vdevs.
pub fn layout(pool: &str, before: Option<&PoolView>, new: &VdevSpec, style: Style) -> String {
    fn old(v: &VdevView, depth: usize, with_id: bool, style: Style, out: &mut String) {
        let name = leaf_name(v, style);
        let name = if with_id || v.children.is_empty() {
            name.as_str()
        } else {
            name.rsplit_once('-').map_or(name.as_str(), |n| n.0)
        };
        *out += &format!("\t{}{name}\n", " ".repeat(2 * depth));
        v.children.iter().for_each(|c| old(c, depth + 1, with_id, style, out));
    }
    let device = |path: &String| {
        use std::os::unix::fs::FileTypeExt;
        let is_disk = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
        path_name(path, if is_disk { "disk" } else { "file" }, style)
    };
    let mut out = String::new();
    for class in ["", "dedup", "special", "logs"] {
        let tops = before.map(|p| p.vdevs.children.as_slice()).unwrap_or_default();
        let tops: Vec<&VdevView> = tops.iter().filter(|v| class_of(v) == class).collect();
        let added = new.section(class);
        if !class.is_empty() && tops.is_empty() && added.is_empty() {
            continue;
        }
        out += &format!("\t{}\n", if class.is_empty() { pool } else { class });
        tops.into_iter().for_each(|v| old(v, 1, class.is_empty(), style, &mut out));
        for (group, paths) in added {
            let indent = if let Some(group) = group {
                out += &format!("\t  {group}\n");
                4
            } else {
                2
            };
            paths.iter().for_each(|p| out += &format!("\t{}{}\n", " ".repeat(indent), device(p)));
        }
    }
    let (caches, spares) = before.map_or((&[][..], &[][..]), |p| (&p.caches, &p.spares));
    for (title, there, added) in [("cache", caches, &new.caches), ("spares", spares, &new.spares)] {
        if there.is_empty() && added.is_empty() {
            continue;
        }
        out += &format!("\t{title}\n");
        there.iter().for_each(|v| old(v, 1, true, style, &mut out));
        added.iter().for_each(|p| out += &format!("\t  {}\n", device(p)));
    }
    out
}

/// `zpool list`.
pub fn list(pools: &[PoolView], columns: &[String], style: Style) -> String {
    let mut cols: Vec<Column> = columns.iter().map(|c| column(c)).collect();
    if style.exact {
        cols.iter_mut().for_each(|c| c.grows = true);
    }
    let rows: Vec<Vec<String>> =
        pools.iter().map(|p| columns.iter().map(|c| field(p, c, style.exact)).collect()).collect();
    if !style.verbose {
        return if style.scripted { scripted(&rows) } else { table(&cols, &rows) };
    }
    if let Some(first) = cols.first_mut() {
        let removed = |p: &PoolView| p.removed.iter().map(|(_, v)| name_width(v, 1, style)).max().unwrap_or(0);
        let names = pools.iter().map(|p| name_width(&p.vdevs, 0, style).max(removed(p))).max().unwrap_or(0);
        *first = first.clone().wide(names.max(9));
    }
    let widths = widths(&cols, &rows);
    let mut out = String::new();
    if !style.scripted {
        let header: Vec<String> = cols.iter().map(|c| c.header.clone()).collect();
        out.push_str(&line(&cols, &widths, &header));
    }
    let name_width = widths.first().copied().unwrap_or(0);
    for (pool, row) in pools.iter().zip(&rows) {
        out.push_str(&if style.scripted { row.join("\t") + "\n" } else { line(&cols, &widths, row) });
        let mut removed = pool.removed.iter().peekable();
        for (n, vdev) in pool.vdevs.children.iter().enumerate() {
            while let Some((_, gone)) = removed.next_if(|(before, _)| *before <= n) {
                vdev_line(gone, 1, name_width, style, &mut out);
            }
            if class_of(vdev).is_empty() {
                vdev_line(vdev, 1, name_width, style, &mut out);
            }
        }
        removed.for_each(|(_, gone)| vdev_line(gone, 1, name_width, style, &mut out));
        let dashes = ["-"; 8].map(str::to_string);
        for class in CLASSES {
            let of: Vec<&VdevView> = pool.vdevs.children.iter().filter(|v| class_of(v) == class).collect();
            if !of.is_empty() {
                out.push_str(&vdev_row(class, 0, name_width, &dashes, "-", style));
                of.into_iter().for_each(|v| vdev_line(v, 1, name_width, style, &mut out));
            }
        }
        for (class, of) in [("cache", &pool.caches), ("spare", &pool.spares)] {
            if !of.is_empty() {
                out.push_str(&vdev_row(class, 0, name_width, &dashes, "-", style));
                of.iter().for_each(|v| vdev_line(v, 1, name_width, style, &mut out));
            }
        }
    }
    out
}

/// The columns of a vdev in `zpool list -v` between name and health.
pub fn vdev_fields(vdev: &VdevView, style: Style) -> [String; 8] {
    let num = |n: u64| if style.exact { n.to_string() } else { fmt::num(n) };
    let top = vdev.space > 0;
    let size = if vdev.psize > 0 { vdev.psize } else { vdev.space };
    let on_top = |text: String| if top { text } else { "-".to_string() };
    [
        if size > 0 { num(size) } else { "-".to_string() },
        on_top(num(vdev.alloc)),
        on_top(num(vdev.space.saturating_sub(vdev.alloc))),
        "-".to_string(),
        if vdev.expandable > 0 { num(vdev.expandable) } else { "-".to_string() },
        match vdev.frag {
            Some(frag) if top && style.exact => frag.to_string(),
            Some(frag) if top => format!("{frag}%"),
            _ => "-".to_string(),
        },
        on_top(used_percent(vdev.alloc, vdev.space, style.exact)),
        "-".to_string(),
    ]
}

fn vdev_line(vdev: &VdevView, depth: usize, name_width: usize, style: Style, out: &mut String) {
    let fields = vdev_fields(vdev, style);
    out.push_str(&vdev_row(&leaf_name(vdev, style), depth, name_width, &fields, &vdev.state, style));
    vdev.children.iter().for_each(|c| vdev_line(c, depth + 1, name_width, style, out));
}

fn vdev_row(name: &str, depth: usize, name_width: usize, fields: &[String; 8], state: &str, style: Style) -> String {
    if style.scripted {
        return format!("\t{name}\t{}\t{state}\n", fields.join("\t"));
    }
    let indent = 2 * depth;
    let mut out = format!("{}{}", " ".repeat(indent), pad(name, name_width.saturating_sub(indent), false));
    for (text, width) in fields.iter().zip([5, 5, 5, 7, 8, 5, 5, 5]) {
        out.push_str("  ");
        out.push_str(&pad(text, width, true));
    }
    format!("{out}  {}\n", pad(state, 8, true))
}

/// Used share of a device: three digits.
fn used_percent(alloc: u64, space: u64, exact: bool) -> String {
    let parts = if space == 0 { 0 } else { (u128::from(alloc) * 10_000 / u128::from(space)) as u64 };
    if exact {
        return (parts / 100).to_string();
    }
    let percent = parts as f64 / 100.0;
    match parts {
        0..1000 => format!("{percent:.2}%"),
        1000..10_000 => format!("{percent:.1}%"),
        _ => format!("{percent:.0}%"),
    }
}

/// Width of a column of names, each level indented by two.
fn name_width(vdev: &VdevView, depth: usize, style: Style) -> usize {
    let own = if depth == 0 { width_of(&vdev.name) } else { width_of(&leaf_name(vdev, style)) } + 2 * depth;
    vdev.children.iter().map(|c| name_width(c, depth + 1, style)).max().unwrap_or(0).max(own)
}

/// A paragraph after its label, at most about 80 characters wide; further lines begin with a tab.
fn paragraph(label: &str, text: &str) -> String {
    // Line breaks in the text stay.
    if text.contains('\n') {
        return format!("{label}: {text}\n");
    }
    let mut out = format!("{label}: ");
    let mut column = out.len();
    let mut first = true;
    for word in text.split_whitespace() {
        if !first && column + 1 + word.len() > 78 {
            out.push_str("\n\t");
            column = 8;
        } else if !first {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
        first = false;
    }
    out.push('\n');
    out
}

/// The progress of a trim or initialization: `(100% trimmed, completed at Fri Nov 20 17:27:05
/// 2026)`.
fn leaf_work(w: &LeafWorkView, done: &str) -> String {
    let how = match w.state.as_str() {
        "ACTIVE" => "started",
        "SUSPENDED" => "suspended, started",
        _ => "completed",
    };
    format!("({}% {done}, {how} at {})", w.percent, fmt::moment(w.time))
}

/// What rows of `zpool status` have in common.
#[derive(Clone, Copy)]
struct Rows<'a> {
    pool: &'a str,
    width: usize,
    style: Style,
    told: Option<&'a Told>,
}

fn status_rows(vdev: &VdevView, depth: usize, rows: Rows<'_>, out: &mut String) {
    let Rows { width, style, .. } = rows;
    let name = if depth == 0 { vdev.name.clone() } else { leaf_name(vdev, style) };
    let indent = 2 * depth;
    let count = |n: u64| if style.exact { n.to_string() } else { fmt::num(n) };
    let [r, w, c] = vdev.errors.map(count);
    let name = pad(&name, width.saturating_sub(indent), false);
    out.push_str(&format!("\t{}{name}  {:<8} {r:>5} {w:>5} {c:>5}", " ".repeat(indent), vdev.state));
    if style.slow {
        // Only leaves have them; without -p the others show that.
        let slow = if style.exact || vdev.children.is_empty() { count(vdev.slow_ios) } else { "-".to_string() };
        out.push_str(&format!(" {slow:>5}"));
    }
    if style.direct {
        // A request has its own copy of the data, which no program can change under it.
        out.push_str(&format!(" {:>5}", 0));
    }
    if let Some(why) = &vdev.why {
        out.push_str(&format!("  {why}"));
    }
    match (vdev.removing, vdev.noalloc) {
        (true, _) => out.push_str("  (removing)"),
        (false, true) => out.push_str("  (non-allocating)"),
        _ => {}
    }
    if vdev.resilvering {
        out.push_str("  (resilvering)");
    }
    if vdev.deferred {
        out.push_str("  (awaiting resilver)");
    }
    if vdev.repairing {
        out.push_str("  (repairing)");
    }
    if let Some(told) = rows.told.filter(|_| vdev.children.is_empty()) {
        out.push_str(&told.row(rows.pool, &vdev.name));
    }
    if vdev.children.is_empty() && depth > 0 {
        let no_trim = if vdev.no_trim { "(trim unsupported)" } else { "(untrimmed)" };
        for (work, all, done, doing, none) in [
            (&vdev.init, style.init, "initialized", "(initializing)", "(uninitialized)"),
            (&vdev.trim, style.trim, "trimmed", "(trimming)", no_trim),
        ] {
            match work {
                Some(w) if all => out.push_str(&format!("  {}", leaf_work(w, done))),
                Some(w) if w.state == "ACTIVE" => out.push_str(&format!("  {doing}")),
                None if all => out.push_str(&format!("  {none}")),
                _ => {}
            }
        }
    }
    out.push('\n');
    let shown = || vdev.children.iter().filter(|c| style.shows(c));
    for child in shown().filter(|c| depth > 0 || class_of(c).is_empty()) {
        status_rows(child, depth + 1, rows, out);
    }
    for class in CLASSES.iter().filter(|_| depth == 0) {
        let of: Vec<&VdevView> = shown().filter(|c| class_of(c) == *class).collect();
        if !of.is_empty() {
            out.push_str(&format!("\t{}\n", pad(class, width, false)));
            of.into_iter().for_each(|l| status_rows(l, 1, rows, out));
        }
    }
}

/// The classes that listings have sections for, in their order.
const CLASSES: [&str; 3] = ["dedup", "special", "logs"];

/// The section that a top-level vdev is listed in; empty for normal ones.
fn class_of(vdev: &VdevView) -> &str {
    if vdev.is_log { "logs" } else { &vdev.bias }
}

/// The address of OpenZFS's page about a problem.
pub fn help_page(msgid: &str) -> String {
    format!("https://openzfs.github.io/openzfs-docs/msg/{msgid}")
}

/// `zpool status` of one pool, with what scripts told of its devices.
pub fn status(pool: &PoolView, style: Style, told: Option<&Told>) -> String {
    let mut out = format!("  pool: {}\n state: {}\n", pool.name, pool.state);
    if let Some(text) = &pool.status {
        out.push_str(&paragraph("status", text));
    }
    if let Some(text) = &pool.action {
        out.push_str(&paragraph("action", text));
    }
    if let Some(name) = &pool.msgid {
        out.push_str(&format!("   see: {}\n", help_page(name)));
    }
    // As OpenZFS: a resilver always, of scrubs the last one.
    let errors = pool.error_scrub.as_ref();
    let shows_errors = |s: &ScanView| s.function == "SCRUB" && errors.is_some_and(|e| e.start >= s.start);
    if let Some(e) = errors.filter(|e| pool.scan.as_ref().is_none_or(|s| s.start <= e.start)) {
        out.push_str(&error_scrub(e));
    }
    // Of resilvers and rebuilds the one that is under way, or the last one.
    let rebuilds_now = pool.rebuilds.iter().any(|r| r.state == "SCANNING");
    let rebuilt = pool.rebuilds.iter().map(|r| r.end).max().unwrap_or(0);
    let is_older =
        |s: &ScanView| s.function == "RESILVER" && s.state != "SCANNING" && (rebuilds_now || s.end < rebuilt);
    if let Some(s) = pool.scan.as_ref().filter(|s| !shows_errors(s) && !is_older(s)) {
        out.push_str(&scan(s));
    }
    let resilver = pool.scan.as_ref().filter(|s| s.function == "RESILVER" && !is_older(s));
    if resilver.is_none() {
        pool.rebuilds.iter().for_each(|r| out.push_str(&rebuild(r)));
    }
    if let Some(r) = &pool.removal {
        out.push_str(&removal(r));
    }
    if let Some(c) = &pool.checkpoint {
        out.push_str(&match c.discarding {
            true => format!("checkpoint: discarding, {} remaining.\n", fmt::num(c.space)),
            false => format!("checkpoint: created {}, consumes {}\n", fmt::moment(c.start), fmt::num(c.space)),
        });
    }
    if let Some(e) = &pool.expand {
        out.push_str(&expand(e));
    }
    let aux = pool.caches.iter().chain(&pool.spares).map(|v| name_width(v, 1, style)).max().unwrap_or(0);
    let width = name_width(&pool.vdevs, 0, style).max(10).max(aux);
    out.push_str(&format!(
        "config:\n\n\t{}  {:<8} {:>5} {:>5} {:>5}",
        pad("NAME", width, false),
        "STATE",
        "READ",
        "WRITE",
        "CKSUM"
    ));
    for (name, _) in [(" SLOW", style.slow), ("  DIO", style.direct)].iter().filter(|c| c.1) {
        out.push_str(&format!(" {name}"));
    }
    out.push_str(&told.map(Told::headings).unwrap_or_default());
    out.push('\n');
    let rows = Rows { pool: &pool.name, width, style, told };
    let mut root = pool.vdevs.clone();
    root.state.clone_from(&pool.state);
    status_rows(&root, 0, rows, &mut out);
    let caches: Vec<&VdevView> = pool.caches.iter().filter(|c| style.shows(c)).collect();
    if !caches.is_empty() {
        out.push_str(&format!("\t{}\n", pad("cache", width, false)));
        caches.into_iter().for_each(|c| status_rows(c, 1, rows, &mut out));
    }
    let is_sick = |s: &VdevView| !matches!(s.state.as_str(), "AVAIL" | "INUSE") || s.errors != [0; 3];
    let spares: Vec<&VdevView> = pool.spares.iter().filter(|s| !style.unhealthy || is_sick(s)).collect();
    if !spares.is_empty() {
        out.push_str("\tspares\n");
        for spare in spares {
            let name = pad(&leaf_name(spare, style), width.saturating_sub(2), false);
            let why = spare.why.as_ref().map_or(String::new(), |w| format!("  {w}"));
            out.push_str(&format!("\t  {name}  {:<8}{why}\n", spare.state));
        }
    }
    out.push_str(&match pool.data_errors {
        0 => "\nerrors: No known data errors\n".to_string(),
        _ if style.verbose => {
            let names: String = pool.damaged.iter().map(|name| format!("        {name}\n")).collect();
            format!("\nerrors: Permanent errors have been detected in the following files:\n\n{names}")
        }
        n => format!("\nerrors: {n} data errors, use '-v' for a list\n"),
    });
    out
}

/// What `zpool import` says of features that keep it from importing a pool.
pub fn missing_features(c: &Candidate) -> String {
    let mut out = "This pool uses the following feature(s) not supported by this system:\n".to_string();
    c.features.iter().for_each(|f| out.push_str(&format!("\t{f}\n")));
    if c.action.contains("readonly=on") {
        out.push_str("All unsupported features are only required for writing to the pool.\n");
        out.push_str("The pool can be imported using '-o readonly=on'.\n");
    }
    out
}

/// The scan line of `zpool status`: the last or running scan.
fn scan(s: &ScanView) -> String {
    let resilver = s.function == "RESILVER";
    let what = if resilver { "resilver" } else { "scrub" };
    let (bytes, moment) = (fmt::bytes, fmt::moment);
    match s.state.as_str() {
        "FINISHED" => {
            let done = match resilver {
                true => format!("resilvered {}", bytes(s.processed)),
                false => format!("scrub repaired {}", bytes(s.processed)),
            };
            let took = fmt::span(s.end.saturating_sub(s.start));
            return format!("  scan: {done} in {took} with {} errors on {}\n", s.errors, moment(s.end));
        }
        "CANCELED" => return format!("  scan: {what} canceled on {}\n", moment(s.end)),
        _ => {}
    }
    let paused = s.paused_at != 0;
    let mut out = match paused {
        true => {
            format!("  scan: {what} paused since {}\n\t{what} started on {}\n", moment(s.paused_at), moment(s.start))
        }
        false => format!("  scan: {what} in progress since {}\n", moment(s.start)),
    };
    let until = if paused { s.paused_at } else { s.now };
    let elapsed = until.saturating_sub(s.pass_start).saturating_sub(s.pass_paused).max(1);
    let (met, looked) = (s.pass_examined / elapsed, s.pass_issued / elapsed);
    let (scanned, issued, total) = (bytes(s.examined), bytes(s.issued), bytes(s.to_examine));
    out.push_str(&match paused {
        true => format!("\t{scanned} scanned, {issued} issued, {total} total\n"),
        false => {
            format!("\t{scanned} scanned at {}/s, {issued} issued at {}/s, {total} total\n", bytes(met), bytes(looked))
        }
    });
    let verb = if resilver { "resilvered" } else { "repaired" };
    let percent = 100.0 * s.issued as f64 / s.to_examine.max(1) as f64;
    out.push_str(&format!("\t{} {verb}, {:.2}% done", bytes(s.processed), percent.min(100.0)));
    out.push_str(&match (paused, s.to_examine.checked_sub(s.issued)) {
        (true, _) => "\n".to_string(),
        // Below 10 MiB a second OpenZFS prints no estimate.
        (false, Some(left)) if looked >= 10 << 20 => format!(", {} to go\n", fmt::span(left / looked)),
        _ => ", no estimated completion time\n".to_string(),
    });
    out
}

/// The lines of `zpool status` about a sequential rebuild.
fn rebuild(r: &RebuildView) -> String {
    let (bytes, moment, name) = (fmt::bytes, fmt::moment, &r.vdev);
    match r.state.as_str() {
        "FINISHED" => {
            let (done, took, errors) = (bytes(r.processed), fmt::span(r.time_ms / 1000), r.errors);
            return format!("  scan: resilvered ({name}) {done} in {took} with {errors} errors on {}\n", moment(r.end));
        }
        "CANCELED" => return format!("  scan: resilver ({name}) canceled on {}\n", moment(r.end)),
        _ => {}
    }
    let rate = |n: u64| n / (r.time_ms + 1) * 1000;
    let percent = (100.0 * r.examined as f64 / (r.to_examine + 1) as f64).min(100.0);
    let left = match rate(r.examined) {
        rate if rate >= 10 << 20 => format!("{} to go", fmt::span(r.to_examine.saturating_sub(r.examined) / rate)),
        _ => "no estimated completion time".to_string(),
    };
    format!(
        "  scan: resilver ({name}) in progress since {}\n\t{} scanned at {}/s, {} issued {}/s, {} total\n\t{} resilvered, {percent:.2}% done, {left}\n",
        moment(r.start),
        bytes(r.examined),
        bytes(rate(r.examined)),
        bytes(r.issued),
        bytes(rate(r.issued)),
        bytes(r.to_examine),
        bytes(r.processed),
    )
}

/// The lines of `zpool status` about a scrub of errors.
fn error_scrub(e: &ErrorScrubView) -> String {
    let moment = fmt::moment;
    match e.state.as_str() {
        "FINISHED" => {
            let took = e.end.saturating_sub(e.start);
            let (days, time) = (took / 86_400, fmt::span(took % 86_400));
            return format!(
                " scrub: scrubbed {} error blocks in {days} days {time} on {}\n",
                e.examined,
                moment(e.end)
            );
        }
        "CANCELED" => return format!(" scrub: error scrub canceled on {}\n", moment(e.end)),
        _ => {}
    }
    let begin = match e.paused_at {
        0 => format!(" scrub: error scrub in progress since {}\n", moment(e.start)),
        at => {
            format!(" scrub: error scrub paused since {}\n\terror scrub started on {}\n", moment(at), moment(e.start))
        }
    };
    let done = 100.0 * e.examined as f64 / e.to_examine.saturating_add(e.examined).max(1) as f64;
    format!("{begin}\t{done:.2}% done, issued I/O for {} error blocks\n", e.examined)
}

/// The lines of `zpool status` about the removal of a vdev with data; numbers of bytes without a
/// unit below 1 KiB, as in OpenZFS.
fn removal(r: &RemovalView) -> String {
    let mut out = match r.state.as_str() {
        "FINISHED" => {
            let minutes = r.end.saturating_sub(r.start) / 60;
            let (copied, at) = (fmt::num(r.copied), fmt::moment(r.end));
            format!(
                "Removal of vdev {} copied {copied} in {}h{}m, completed on {at}\n",
                r.id,
                minutes / 60,
                minutes % 60
            )
        }
        "CANCELED" => format!("Removal of {} canceled on {}\n", r.vdev, fmt::moment(r.end)),
        _ => {
            let copied = r.copied.max(1);
            let rate = (copied / r.now.saturating_sub(r.start).max(1)).max(1);
            let minutes = r.to_copy.saturating_sub(copied) / rate / 60;
            let percent = 100.0 * copied as f64 / r.to_copy.max(1) as f64;
            let left = match minutes / 60 {
                hours @ 0..720 => format!("{hours}h{}m to go", minutes % 60),
                _ => "(copy is slow, no estimated time)".into(),
            };
            format!(
                "Evacuation of {} in progress since {}\n\t{} copied out of {} at {}/s, {percent:.2}% done, {left}\n",
                r.vdev,
                fmt::moment(r.start),
                fmt::num(copied),
                fmt::num(r.to_copy),
                fmt::num(rate)
            )
        }
    };
    if r.memory > 0 {
        out.push_str(&format!("\t{} memory used for removed device mappings\n", fmt::num(r.memory)));
    }
    format!("remove: {out}")
}

/// The line of `zpool status` about the expansion of a RAID-Z.
fn expand(e: &ExpandView) -> String {
    let (copied, name) = (fmt::bytes(e.copied), &e.vdev);
    if e.finished {
        let took = fmt::span(e.end.saturating_sub(e.start));
        return format!("expand: expanded {name} copied {copied} in {took}, on {}\n", fmt::moment(e.end));
    }
    let rate = e.copied / e.now.saturating_sub(e.start).max(1);
    let percent = 100.0 * e.copied as f64 / e.total.max(1) as f64;
    let left = e.total.saturating_sub(e.copied).checked_div(rate);
    let slow = || "(copy is slow, no estimated time)".to_string();
    let how = match e.waiting {
        true => "paused for resilver or clear".to_string(),
        false => left.map_or_else(slow, |s| format!("{} to go", fmt::span(s))),
    };
    format!(
        "expand: expansion of {name} in progress since {}\n\t{copied} / {} copied at {}/s, {:.2}% done, {how}\n",
        fmt::moment(e.start),
        fmt::bytes(e.total),
        fmt::bytes(rate),
        percent.min(100.0)
    )
}

/// Whether a vdev and all below it are online and without errors.
fn is_clean(v: &VdevView) -> bool {
    v.state == "ONLINE" && v.errors == [0; 3] && v.children.iter().all(is_clean)
}

/// Whether a device had slow operations.
fn has_slow(v: &VdevView) -> bool {
    v.slow_ios > 0 || v.children.iter().any(has_slow)
}

/// Whether `zpool status -x` leaves the pool out.
pub fn is_healthy(pool: &PoolView) -> bool {
    let resilvers = pool.scan.as_ref().is_some_and(|s| s.function == "RESILVER" && s.state == "SCANNING");
    let resilvering = resilvers || pool.rebuilds.iter().any(|r| r.state == "SCANNING");
    pool.state == "ONLINE" && pool.data_errors == 0 && !resilvering && is_clean(&pool.vdevs)
}

/// `zpool import` without a pool: one candidate.
pub fn candidate(c: &Candidate) -> String {
    let destroyed = if c.destroyed { " (DESTROYED)" } else { "" };
    let mut out = format!("   pool: {}\n     id: {}\n  state: {}{destroyed}\n", c.name, c.guid, c.state);
    if let Some(text) = &c.status {
        out.push_str(&paragraph(" status", text));
    }
    c.features.iter().for_each(|f| out.push_str(&format!("\t{f}\n")));
    out.push_str(&paragraph(" action", &c.action));
    out.push_str(" config:\n\n");
    let style = Style::default();
    let width = name_width(&c.vdevs, 0, style).max(10);
    fn rows(v: &VdevView, depth: usize, width: usize, style: Style, out: &mut String) {
        let name = if depth == 0 { v.name.clone() } else { leaf_name(v, style) };
        let why = v.why.as_ref().map_or(String::new(), |w| format!("  {w}"));
        let name = pad(&name, width.saturating_sub(2 * depth), false);
        out.push_str(&format!("\t{}{name}  {}{why}\n", " ".repeat(2 * depth), v.state));
        v.children.iter().for_each(|c| rows(c, depth + 1, width, style, out));
    }
    rows(&c.vdevs, 0, width, style, &mut out);
    out
}

/// Rows of `zpool get` and `zfs get`: name and property, and the selected fields.
pub fn get_table(rows: &[(String, PropView)], fields: &[String], scripted_style: bool, exact: bool) -> String {
    // OpenZFS sizes the column of values for the names of features.
    let feature = rows.iter().map(|(_, p)| if p.name.starts_with("feature@") { p.name.len() } else { 0 }).max();
    let column = |f: &String| Column::text(&f.to_uppercase()).wide(if f == "value" { feature.unwrap_or(0) } else { 0 });
    let columns: Vec<Column> = fields.iter().map(column).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|(name, p)| {
            let field = |f: &String| match f.as_str() {
                "name" => name.clone(),
                "property" => p.name.clone(),
                "value" if exact => p.exact.clone(),
                "value" => p.value.clone(),
                "received" => "-".to_string(),
                _ => p.source.clone(),
            };
            fields.iter().map(field).collect()
        })
        .collect();
    if scripted_style { scripted(&rows) } else { table(&columns, &rows) }
}

/// The selected properties of a pool for `zpool get`; the error names one that does not exist.
pub fn pool_rows(pool: &PoolView, wanted: &[String]) -> Result<Vec<(String, PropView)>, String> {
    let mut out = Vec::new();
    for name in wanted {
        if name == "all" {
            out.extend(pool.props.iter().map(|p| (pool.name.clone(), p.clone())));
            continue;
        }
        let known = admin::pool::props::canonical(name).ok_or_else(|| format!("invalid property '{name}'"))?;
        let found = if known == "name" {
            Some(PropView {
                name: known.clone(),
                value: pool.name.clone(),
                exact: pool.name.clone(),
                source: "-".into(),
            })
        } else {
            prop(&pool.props, &known).cloned()
        };
        let source = if dsl::props::is_user_prop(&known) { "default" } else { "-" };
        let none = || PropView { name: known.clone(), value: "-".into(), exact: "-".into(), source: source.into() };
        out.push((pool.name.clone(), found.unwrap_or_else(none)));
    }
    Ok(out)
}

/// The selected properties of a vdev for `zpool get`.
pub fn vdev_rows(vdev: &VdevProps, wanted: &[String]) -> Vec<(String, PropView)> {
    let shown = path_name(&vdev.name, &vdev.kind, Style::default());
    let mut out = Vec::new();
    for name in wanted {
        if name == "all" {
            out.extend(vdev.props.iter().map(|p| (shown.clone(), p.clone())));
            continue;
        }
        let row = |value: &str, source: &str| PropView {
            name: name.clone(),
            value: value.into(),
            exact: value.into(),
            source: source.into(),
        };
        let found = match name.as_str() {
            "name" => Some(row(&shown, "-")),
            _ => prop(&vdev.props, name).cloned(),
        };
        out.push((shown.clone(), found.unwrap_or_else(|| row("-", "default"))));
    }
    out
}

/// A line of `zpool history`: a command; `internal` shows internal events too, `long` user and
/// host. Times are in the caller's time zone.
pub fn history_line(line: &HistoryLine, internal: bool, long: bool) -> Option<String> {
    if line.internal && !internal {
        return None;
    }
    let mut out = format!("{} {}", fmt::stamp(line.time), line.text);
    if long {
        let who = match line.who {
            Some(0) => "user 0 (root) ".to_string(),
            Some(who) => match u32::try_from(who).ok().and_then(host::user_name) {
                Some(name) => format!("user {who} ({name}) "),
                None => format!("user {who} "),
            },
            None => String::new(),
        };
        let host = line.host.as_deref().unwrap_or("unknown");
        let zone = line.zone.as_ref().map_or_else(String::new, |z| format!(":{z}"));
        out += &format!(" [{who}on {host}{zone}]");
    }
    out.push('\n');
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pool `single` of the reference pools.
    fn tank() -> PoolView {
        let props = [
            ("size", "240M", "251658240", "-"),
            ("capacity", "11%", "11", "-"),
            ("altroot", "/mnt", "/mnt", "local"),
            ("health", "ONLINE", "ONLINE", "-"),
            ("guid", "4271266945430352225", "4271266945430352225", "-"),
            ("dedupratio", "1.00x", "1.00", "-"),
            ("free", "212M", "222298112", "-"),
            ("allocated", "27.8M", "29360128", "-"),
            ("expandsize", "-", "-", "-"),
            ("fragmentation", "6%", "6", "-"),
            ("checkpoint", "-", "-", "-"),
        ];
        let props =
            props.map(|(n, v, e, s)| PropView { name: n.into(), value: v.into(), exact: e.into(), source: s.into() });
        let leaf = VdevView {
            kind: "disk".into(),
            name: "/dev/img/d0.img".into(),
            guid: 7,
            state: "ONLINE".into(),
            space: 251_658_240,
            psize: 256 << 20,
            alloc: 29_150_000,
            frag: Some(6),
            ..VdevView::default()
        };
        PoolView {
            name: "tank".into(),
            guid: 4_271_266_945_430_352_225,
            state: "ONLINE".into(),
            props: props.to_vec(),
            vdevs: VdevView {
                kind: "root".into(),
                name: "tank".into(),
                state: "ONLINE".into(),
                children: vec![leaf],
                ..VdevView::default()
            },
            ..PoolView::default()
        }
    }

    fn columns(list: &[&str]) -> Vec<String> {
        list.iter().map(|c| c.to_string()).collect()
    }

    /// Names of removed vdevs stand where the vdevs were, without figures.
    #[test]
    fn removed_vdevs_are_listed() {
        let mut pool = tank();
        let gone =
            |n: u64| VdevView { name: format!("indirect-{n}"), guid: n, state: "ONLINE".into(), ..VdevView::default() };
        pool.removed = vec![(0, gone(0)), (1, gone(2))];
        let style = Style { verbose: true, ..Style::default() };
        let row =
            |name: &str| format!("  {name:<10}      -      -      -        -         -      -      -      -    ONLINE");
        let out = list(std::slice::from_ref(&pool), &columns(&["name", "size", "health"]), style);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!((lines[2], lines[4]), (row("indirect-0").as_str(), row("indirect-2").as_str()), "{out}");
        assert!(lines[3].starts_with("  d0.img"), "{out}");
        let out = list(&[pool], &columns(&["name"]), Style { guids: true, scripted: true, ..style });
        assert!(out.ends_with("\t2\t-\t-\t-\t-\t-\t-\t-\t-\tONLINE\n"), "{out}");
    }

    #[test]
    fn status_has_the_layout_of_openzfs() {
        let want = "  pool: tank\n state: ONLINE\nconfig:\n\n\tNAME        STATE     READ WRITE CKSUM\n\ttank        ONLINE       0     0     0\n\t  d0.img    ONLINE       0     0     0\n\nerrors: No known data errors\n";
        assert_eq!(status(&tank(), Style::default(), None), want);
        let mut sick = tank();
        sick.state = "SUSPENDED".into();
        sick.status = Some("word ".repeat(20));
        sick.vdevs.children[0].errors = [0, 3, 20_000];
        let text = status(&sick, Style::default(), None);
        assert!(text.contains("d0.img    ONLINE       0     3 19.5K\n"), "{text}");
        assert!(text.contains("word\n\tword"), "{text}");
        assert!(!is_healthy(&sick) && is_healthy(&tank()));
        // -e: what is unhealthy, and what is above it.
        let only = Style { unhealthy: true, ..Style::default() };
        assert!(!status(&tank(), only, None).contains("d0.img"));
        let leaf = |name: &str| VdevView { name: name.into(), ..tank().vdevs.children[0].clone() };
        let mirror = |name: &str, children| VdevView {
            kind: "mirror".into(),
            name: name.into(),
            state: "ONLINE".into(),
            children,
            ..VdevView::default()
        };
        sick.vdevs.children = vec![
            mirror("mirror-0", vec![leaf("/dev/a"), leaf("/dev/b")]),
            mirror("mirror-1", vec![VdevView { errors: [1, 0, 0], ..leaf("/dev/c") }, leaf("/dev/d")]),
            VdevView { is_log: true, ..leaf("/dev/e") },
        ];
        let names: Vec<String> = status(&sick, only, None)
            .lines()
            .skip_while(|l| !l.contains("READ"))
            .skip(1)
            .take_while(|l| !l.is_empty())
            .map(|l| l.split_whitespace().next().unwrap_or("").to_string())
            .collect();
        assert_eq!(names, ["tank", "mirror-1", "c"]);
    }

    /// The lines of the pools `expanded` and `expanding`.
    #[test]
    fn expansions_have_a_line() {
        const M: u64 = 1 << 20;
        let mut e = ExpandView { vdev: "raidz1-0".into(), start: 1000, end: 1011, ..ExpandView::default() };
        (e.finished, e.copied) = (true, 43 * M + M / 10);
        let at = fmt::moment(1011);
        assert_eq!(expand(&e), format!("expand: expanded raidz1-0 copied 43.1M in 00:00:11, on {at}\n"));
        (e.finished, e.total, e.copied, e.now) = (false, 52 * M, 26 * M, 1013);
        let since = fmt::moment(1000);
        let text = format!(
            "expand: expansion of raidz1-0 in progress since {since}\n\t26M / 52M copied at 2M/s, 50.00% done, 00:00:13 to go\n"
        );
        assert_eq!(expand(&e), text);
        (e.copied, e.now) = (0, 1000);
        let paused = ExpandView { waiting: true, ..e.clone() };
        assert!(expand(&paused).ends_with("% done, paused for resilver or clear\n"));
        assert!(expand(&e).ends_with("0B / 52M copied at 0B/s, 0.00% done, (copy is slow, no estimated time)\n"));
    }

    #[test]
    fn removals_have_a_line() {
        const M: u64 = 1 << 20;
        let mut r = RemovalView { vdev: "mirror-1".into(), id: 1, start: 1000, end: 8300, ..RemovalView::default() };
        (r.state, r.copied, r.memory) = ("FINISHED".into(), 40 * M, 2400);
        let at = fmt::moment(8300);
        let memory = "\t2.34K memory used for removed device mappings\n";
        assert_eq!(removal(&r), format!("remove: Removal of vdev 1 copied 40M in 2h1m, completed on {at}\n{memory}"));
        (r.state, r.memory) = ("CANCELED".into(), 0);
        assert_eq!(removal(&r), format!("remove: Removal of mirror-1 canceled on {at}\n"));
        (r.state, r.to_copy, r.now, r.end) = ("SCANNING".into(), 160 * M, 1010, 0);
        let since = fmt::moment(1000);
        let text = format!(
            "remove: Evacuation of mirror-1 in progress since {since}\n\t40M copied out of 160M at 4M/s, 25.00% done, 0h0m to go\n"
        );
        assert_eq!(removal(&r), text);
        (r.copied, r.now) = (0, 100_000);
        assert!(removal(&r).ends_with("1 copied out of 160M at 1/s, 0.00% done, (copy is slow, no estimated time)\n"));
    }

    #[test]
    fn scans_have_the_layout_of_openzfs() {
        let mut s = ScanView {
            function: "SCRUB".into(),
            state: "FINISHED".into(),
            start: 1000,
            end: 1062,
            ..ScanView::default()
        };
        let at = fmt::moment(1062);
        let mut e = ErrorScrubView { state: "FINISHED".into(), start: 1000, end: 1062, ..ErrorScrubView::default() };
        e.examined = 3;
        assert_eq!(
            error_scrub(&e),
            format!(" scrub: scrubbed 3 error blocks in 0 days 00:01:02 on {}\n", fmt::moment(1062))
        );
        (e.state, e.to_examine, e.paused_at) = ("ERRORSCRUBBING".into(), 1, 1100);
        let (since, begun) = (fmt::moment(1100), fmt::moment(1000));
        assert_eq!(
            error_scrub(&e),
            format!(
                " scrub: error scrub paused since {since}\n\terror scrub started on {begun}\n\t75.00% done, issued I/O for 3 error blocks\n"
            )
        );
        assert_eq!(scan(&s), format!("  scan: scrub repaired 0B in 00:01:02 with 0 errors on {at}\n"));
        s.state = "SCANNING".into();
        (s.to_examine, s.examined, s.issued, s.pass_examined, s.pass_issued) =
            (4 << 30, 2 << 30, 1 << 30, 2 << 30, 1 << 30);
        (s.pass_start, s.now) = (1000, 1010);
        let since = fmt::moment(1000);
        assert_eq!(
            scan(&s),
            format!(
                "  scan: scrub in progress since {since}\n\t2G scanned at 205M/s, 1G issued at 102M/s, 4G total\n\t0B repaired, 25.00% done, 00:00:30 to go\n"
            )
        );
        (s.paused_at, s.function) = (1010, "RESILVER".into());
        assert!(scan(&s).ends_with("\t2G scanned, 1G issued, 4G total\n\t0B resilvered, 25.00% done\n"));
        let mut sick = tank();
        (sick.data_errors, sick.damaged) = (2, vec!["/tank/f".into(), "<metadata>:<0x7>".into()]);
        assert!(status(&sick, Style::default(), None).ends_with("\nerrors: 2 data errors, use '-v' for a list\n"));
        let text = status(&sick, Style { verbose: true, ..Style::default() }, None);
        assert!(text.ends_with("in the following files:\n\n        /tank/f\n        <metadata>:<0x7>\n"), "{text}");
    }

    #[test]
    fn list_has_the_layout_of_openzfs() {
        let verbose = Style { verbose: true, ..Style::default() };
        let want = "NAME        SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT\n\
                    tank        240M  27.8M   212M        -         -     6%    11%  1.00x    ONLINE  /mnt\n  \
                    d0.img    256M  27.8M   212M        -         -     6%  11.6%      -    ONLINE\n";
        assert_eq!(list(&[tank()], &columns(LIST_COLUMNS), verbose), want);
        let plain = "NAME   SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT\n\
                     tank   240M  27.8M   212M        -         -     6%    11%  1.00x    ONLINE  /mnt\n";
        assert_eq!(list(&[tank()], &columns(LIST_COLUMNS), Style::default()), plain);
        let script = Style { scripted: true, exact: true, ..Style::default() };
        assert_eq!(list(&[tank()], &columns(&["name", "size", "health"]), script), "tank\t251658240\tONLINE\n");
        assert_eq!(used_percent(165, 1921, false), "8.58%");
        assert_eq!(used_percent(1, 1, false), "100%");
    }

    #[test]
    fn get_has_the_layout_of_openzfs() {
        let rows = pool_rows(&tank(), &columns(&["size", "health", "cap"])).unwrap();
        let fields = columns(&["name", "property", "value", "source"]);
        let want = "NAME  PROPERTY  VALUE   SOURCE\ntank  size      240M    -\ntank  health    ONLINE  -\ntank  capacity  11%     -\n";
        assert_eq!(get_table(&rows, &fields, false, false), want);
        assert_eq!(get_table(&rows[..1], &fields[2..3], true, true), "251658240\n");
        assert!(pool_rows(&tank(), &columns(&["nonsense"])).is_err());
    }

    #[test]
    fn candidates_have_the_layout_of_openzfs() {
        let c = Candidate {
            name: "tank".into(),
            guid: 42,
            state: "ONLINE".into(),
            action: "The pool can be imported using its name or numeric identifier.".into(),
            vdevs: tank().vdevs,
            ..Candidate::default()
        };
        let want = "   pool: tank\n     id: 42\n  state: ONLINE\n action: The pool can be imported using its name or numeric identifier.\n config:\n\n\ttank        ONLINE\n\t  d0.img    ONLINE\n";
        assert_eq!(candidate(&c), want);
        let c = Candidate {
            state: "UNAVAIL".into(),
            status: Some("The pool uses the following feature(s) not supported on this system:".into()),
            features: vec!["com.example:a (About a.)".into(), "com.example:b".into()],
            action: "The pool cannot be imported. Access the pool on a system that supports the required feature(s), or recreate the pool from backup.".into(),
            ..c
        };
        let want = "   pool: tank\n     id: 42\n  state: UNAVAIL\n status: The pool uses the following feature(s) not supported on this system:\n\tcom.example:a (About a.)\n\tcom.example:b\n action: The pool cannot be imported. Access the pool on a system that\n\tsupports the required feature(s), or recreate the pool from backup.\n config:\n";
        assert!(candidate(&c).starts_with(want), "{}", candidate(&c));
    }
}
