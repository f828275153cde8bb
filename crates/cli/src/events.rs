//! `zpool events`: the events of pools and devices, in OpenZFS's layout.

use admin::request::{Events, EventsClear};
use admin::view::{EventView, FieldView};

use crate::opts::Parsed;
use crate::{Done, Fail, ask, ask_each, print, print_to_reader};

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Runs `zpool events ARGS`.
pub fn run(p: &Parsed) -> Done {
    let pool = match p.operands.as_slice() {
        [] => None,
        [_] if p.has('c') => return Err(Fail::Usage("-c cannot be used with a pool".into(), "events")),
        [pool] => Some(pool.clone()),
        _ => return Err(Fail::Usage("too many arguments".into(), "events")),
    };
    if p.has('c') && ['v', 'H', 'f'].iter().any(|letter| p.has(*letter)) {
        return Err(Fail::Usage("invalid options combined with -c".into(), "events"));
    }
    if p.has('c') {
        let n: u64 = ask(&EventsClear)?;
        print(&format!("cleared {n} events\n"));
        return Ok(());
    }
    ask_each(&Events { pool, follow: p.has('f') }, &mut |e| match e {
        Some(e) => print_to_reader(&event(&e, p.has('H'), p.has('v'))),
        None => p.has('H') || print_to_reader(&format!("{:<30} {}\n", "TIME", "CLASS")),
    })
}

/// An event: its line, with `verbose` followed by its payload.
pub fn event(e: &EventView, scripted: bool, verbose: bool) -> String {
    let t = host::local_time(e.secs);
    let month = MONTHS[(t.month as usize).clamp(1, 12) - 1];
    let time =
        format!("{month} {:>2} {:04} {:02}:{:02}:{:02}.{:09}", t.day, t.year, t.hour, t.minute, t.second, e.nanos);
    let mut out = format!("{time}{}{}\n", if scripted { '\t' } else { ' ' }, e.class);
    if verbose {
        lines(&e.fields, 1, &mut out);
        out.push('\n');
    }
    out
}

/// Fields of an event, a line each: numbers in hexadecimal, arrays with a space after every
/// element.
fn lines(fields: &[(String, FieldView)], depth: usize, out: &mut String) {
    let indent = " ".repeat(8 * depth);
    for (name, value) in fields {
        let text = match value {
            FieldView::Fields(inner) => {
                out.push_str(&format!("{indent}{name} = (embedded nvlist)\n"));
                lines(inner, depth + 1, out);
                out.push_str(&format!("{indent}(end {name})\n"));
                continue;
            }
            FieldView::Flag(b) => u8::from(*b).to_string(),
            FieldView::Int32(n) => format!("{n:#x}"),
            FieldView::Int64(n) => format!("{n:#x}"),
            FieldView::Uint64(n) => format!("{n:#x}"),
            FieldView::Text(s) => format!("\"{s}\""),
            FieldView::Int64s(all) => all.iter().map(|n| format!("{n:#x} ")).collect(),
            FieldView::Uint64s(all) => all.iter().map(|n| format!("{n:#x} ")).collect(),
            FieldView::Texts(all) => all.iter().map(|s| format!("{s} ")).collect(),
            FieldView::Other => "?".into(),
        };
        out.push_str(&format!("{indent}{name} = {text}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_openzfs() {
        let e = EventView {
            eid: 7,
            class: "sysevent.fs.zfs.scrub_start".into(),
            secs: 1_391_768_625,
            nanos: 5,
            pool: "tank".into(),
            fields: vec![("version".into(), FieldView::Uint64(0))],
        };
        let plain = event(&e, false, false);
        let (time, class) = plain.split_at(30);
        // The hour depends on where the test runs.
        assert!(time.starts_with("Feb ") && time.contains(" 2014 ") && time.ends_with(":45.000000005"), "{time}");
        assert_eq!(class, " sysevent.fs.zfs.scrub_start\n");
        assert!(event(&e, true, false).contains("\tsysevent"));
        assert!(event(&e, false, true).ends_with("start\n        version = 0x0\n\n"));
    }

    #[test]
    fn payloads_are_printed_as_openzfs_does() {
        let text = |s: &str| FieldView::Text(s.into());
        let fields = [
            ("class", text("sysevent.fs.zfs.x")),
            ("pool_guid", FieldView::Uint64(255)),
            ("pool_context", FieldView::Int32(-1)),
            ("zio_level", FieldView::Int64(-1)),
            ("detector", FieldView::Fields(vec![("scheme".into(), text("zfs"))])),
            ("vdev_spare_paths", FieldView::Texts(vec!["/a".into(), "/b".into()])),
            ("time", FieldView::Int64s(vec![16, 17])),
            ("on", FieldView::Flag(true)),
        ];
        let mut out = String::new();
        lines(&fields.map(|(n, f)| (n.to_string(), f)), 1, &mut out);
        let want = "        class = \"sysevent.fs.zfs.x\"
        pool_guid = 0xff
        pool_context = 0xffffffff
        zio_level = 0xffffffffffffffff
        detector = (embedded nvlist)
                scheme = \"zfs\"
        (end detector)
        vdev_spare_paths = /a /b \n        time = 0x10 0x11 \n        on = 1\n";
        assert_eq!(out, want);
    }
}
