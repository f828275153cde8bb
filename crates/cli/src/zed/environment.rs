//! The environment of zedlets: the fields of an event as `ZEVENT_...`, and what they need to know
//! of weir.
//!
//! Values have the forms of OpenZFS 2.1: numbers in decimal, but guids in hexadecimal of 16 digits;
//! elements of arrays with a space between; states with their names beside them (`..._STR`).

use std::collections::BTreeMap;
use std::path::Path;

use admin::view::{EventView, FieldView};

use super::zedlets::{PATH, subclass};
use crate::version;

/// Bytes of a variable with its name that OpenZFS gives to zedlets; longer ones are left out.
const LEN_MAX: usize = 4096;

/// Variables of this process that zedlets have too: those of weir lead to the same daemon, and the
/// administrator's are in `/etc/default/weir`.
pub fn is_kept(name: &str) -> bool {
    name == "TZ" || name.starts_with("WEIR_")
}

/// What is the same for all events.
pub struct Around(BTreeMap<String, String>);

impl Around {
    /// For zedlets of a folder. `commands` are the paths of zpool and so on.
    pub fn of_process(zedlets: &Path, path: Option<&str>, commands: BTreeMap<&str, String>) -> Around {
        let kept = std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
        Around::new(kept.filter(|(name, _)| is_kept(name)).collect(), zedlets, path, commands)
    }

    fn new(
        mut vars: BTreeMap<String, String>,
        zedlets: &Path,
        path: Option<&str>,
        commands: BTreeMap<&str, String>,
    ) -> Around {
        let mut put = |name: &str, value: String| drop(vars.insert(name.to_string(), value));
        put("IFS", " \t\n".into());
        put("PATH", path.unwrap_or(PATH).into());
        commands.into_iter().for_each(|(name, path)| put(&name.to_uppercase(), path));
        put("ZFS_ALIAS", version::alias());
        put("ZFS_VERSION", version::OPENZFS.into());
        put("ZFS_RELEASE", version::release());
        put("ZED_PID", std::process::id().to_string());
        put("ZED_ZEDLET_DIR", zedlets.display().to_string());
        put("ZED_VERSION", version::OPENZFS.into());
        Around(vars)
    }
}

/// The environment for an event, and the names of fields that are too long for it.
pub fn of_event(e: &EventView, around: &Around) -> (BTreeMap<String, String>, Vec<String>) {
    let mut out = Vars { vars: around.0.clone(), left_out: Vec::new() };
    for (name, field) in &e.fields {
        out.put(name, &value(name, field));
        if let (Some(state), FieldView::Uint64(n)) = (state_names(name), field) {
            out.put(&format!("{name}_str"), state(*n));
        }
    }
    out.put("class", &e.class);
    out.put("subclass", subclass(&e.class));
    out.put("eid", &e.eid.to_string());
    out.put("time_secs", &e.secs.to_string());
    out.put("time_nsecs", &e.nanos.to_string());
    out.put("time_string", &date(e.secs));
    (out.vars, out.left_out)
}

struct Vars {
    vars: BTreeMap<String, String>,
    left_out: Vec<String>,
}

impl Vars {
    /// Adds a field of the event.
    fn put(&mut self, name: &str, value: &str) {
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return;
        }
        let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let var: String = "ZEVENT_".chars().chain(name.chars().map(upper)).collect();
        // With the sign between and the zero behind.
        if var.len() + value.len() + 2 > LEN_MAX {
            self.left_out.push(var.chars().take(64).collect());
        } else {
            self.vars.insert(var, value.replace('\0', " "));
        }
    }
}

/// A field as OpenZFS's event daemon writes it.
fn value(name: &str, field: &FieldView) -> String {
    fn joined<T>(all: &[T], text: impl Fn(&T) -> String) -> String {
        all.iter().map(text).collect::<Vec<_>>().join(" ")
    }
    let is_guid = name.ends_with("_guid") || name.ends_with("_guids");
    let unsigned = |n: &u64| if is_guid { format!("0x{n:016X}") } else { n.to_string() };
    match field {
        FieldView::Flag(on) => u8::from(*on).to_string(),
        FieldView::Int32(n) => n.to_string(),
        FieldView::Int64(n) => n.to_string(),
        FieldView::Uint64(n) => unsigned(n),
        FieldView::Text(text) => text.clone(),
        FieldView::Int64s(all) => joined(all, i64::to_string),
        FieldView::Uint64s(all) => joined(all, unsigned),
        FieldView::Texts(all) => joined(all, String::clone),
        FieldView::Fields(_) | FieldView::Other => "_NOT_IMPLEMENTED_".into(),
    }
}

/// What turns the number in a field into the name of a state, if it is one.
fn state_names(field: &str) -> Option<fn(u64) -> &'static str> {
    match field {
        "vdev_state" | "vdev_laststate" => Some(|n| match n {
            0 | 2 => "OFFLINE",
            3 => "REMOVED",
            4 => "UNAVAIL",
            5 => "FAULTED",
            6 => "DEGRADED",
            7 => "ONLINE",
            _ => "UNKNOWN",
        }),
        "pool_state" => Some(|n| match n {
            0 => "ACTIVE",
            1 => "EXPORTED",
            2 => "DESTROYED",
            3 => "SPARE",
            4 => "L2CACHE",
            5 => "UNINITIALIZED",
            6 => "UNAVAIL",
            7 => "POTENTIALLY_ACTIVE",
            _ => "UNKNOWN",
        }),
        _ => None,
    }
}

/// A time in the local time zone, with what that is ahead of UTC.
fn date(secs: i64) -> String {
    // What the calendar of the C library can do.
    let secs = secs.clamp(-(1 << 50), 1 << 50);
    let t = host::local_time(secs);
    let minutes = minutes_ahead(&t, secs);
    let (sign, ahead) = if minutes < 0 { ('-', -minutes) } else { ('+', minutes) };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}{sign}{:02}{:02}",
        t.year,
        t.month,
        t.day,
        t.hour,
        t.minute,
        t.second,
        ahead / 60,
        ahead % 60
    )
}

/// Minutes that a local time is ahead of the same moment in UTC.
fn minutes_ahead(t: &host::LocalTime, secs: i64) -> i64 {
    // Days since 1970 by the rules of the calendar: March begins the year, so that the odd day ends
    // it.
    let (month, year) = (i64::from(t.month), i64::from(t.year) - i64::from(t.month <= 2));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + i64::from(t.day) - 1;
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = year * 365 + leaps + day_of_year - 719_468;
    let local = ((days * 24 + i64::from(t.hour)) * 60 + i64::from(t.minute)) * 60 + i64::from(t.second);
    (local - secs).div_euclid(60)
}

#[cfg(test)]
mod tests {
    use host::LocalTime;

    use super::*;

    fn around() -> Around {
        let kept = [("WEIR_MAIL", "root"), ("TZ", "UTC")].map(|(n, v)| (n.to_string(), v.to_string()));
        Around::new(kept.into(), Path::new("/z"), None, [("zpool", "/x/zpool".to_string())].into())
    }

    fn event(fields: Vec<(&str, FieldView)>) -> EventView {
        let fields = fields.into_iter().map(|(n, f)| (n.to_string(), f)).collect();
        EventView { eid: 7, class: "ereport.fs.zfs.vdev.x".into(), secs: 5, nanos: 9, pool: "tank".into(), fields }
    }

    #[test]
    fn fields_have_the_forms_of_openzfs() {
        let text = |s: &str| FieldView::Text(s.into());
        let (vars, left_out) = of_event(
            &event(vec![
                ("version", FieldView::Uint64(0)),
                ("class", text("ereport.fs.zfs.vdev.x")),
                ("pool", text("tank one")),
                ("pool_guid", FieldView::Uint64(0xab)),
                ("pool_state", FieldView::Uint64(1)),
                ("pool_context", FieldView::Int32(-1)),
                ("vdev_state", FieldView::Uint64(7)),
                ("vdev_laststate", FieldView::Uint64(4)),
                ("vdev_spare_guids", FieldView::Uint64s(vec![1, u64::MAX])),
                ("vdev_spare_paths", FieldView::Texts(vec!["/a".into(), "/b".into()])),
                ("cksum_histogram", FieldView::Uint64s(vec![1, 20])),
                ("zio_level", FieldView::Int64(-2)),
                ("detector", FieldView::Fields(Vec::new())),
                ("odd-name.x", FieldView::Flag(true)),
                ("time", FieldView::Int64s(vec![5, 9])),
                ("eid", FieldView::Uint64(7)),
            ]),
            &around(),
        );
        assert!(left_out.is_empty());
        for (name, want) in [
            ("ZEVENT_VERSION", "0"),
            ("ZEVENT_CLASS", "ereport.fs.zfs.vdev.x"),
            ("ZEVENT_SUBCLASS", "vdev.x"),
            ("ZEVENT_POOL", "tank one"),
            ("ZEVENT_POOL_GUID", "0x00000000000000AB"),
            ("ZEVENT_POOL_STATE", "1"),
            ("ZEVENT_POOL_STATE_STR", "EXPORTED"),
            ("ZEVENT_POOL_CONTEXT", "-1"),
            ("ZEVENT_VDEV_STATE", "7"),
            ("ZEVENT_VDEV_STATE_STR", "ONLINE"),
            ("ZEVENT_VDEV_LASTSTATE_STR", "UNAVAIL"),
            ("ZEVENT_VDEV_SPARE_GUIDS", "0x0000000000000001 0xFFFFFFFFFFFFFFFF"),
            ("ZEVENT_VDEV_SPARE_PATHS", "/a /b"),
            ("ZEVENT_CKSUM_HISTOGRAM", "1 20"),
            ("ZEVENT_ZIO_LEVEL", "-2"),
            ("ZEVENT_DETECTOR", "_NOT_IMPLEMENTED_"),
            ("ZEVENT_ODD_NAME_X", "1"),
            ("ZEVENT_TIME", "5 9"),
            ("ZEVENT_TIME_SECS", "5"),
            ("ZEVENT_TIME_NSECS", "9"),
            ("ZEVENT_EID", "7"),
            ("ZED_ZEDLET_DIR", "/z"),
            ("ZED_PID", &std::process::id().to_string()),
            ("ZPOOL", "/x/zpool"),
            ("ZFS_VERSION", "2.1.11"),
            ("IFS", " \t\n"),
            ("PATH", PATH),
            ("WEIR_MAIL", "root"),
            ("TZ", "UTC"),
        ] {
            assert_eq!(vars.get(name).map(String::as_str), Some(want), "{name}");
        }
        assert!(vars["ZEVENT_TIME_STRING"].starts_with("19"), "{}", vars["ZEVENT_TIME_STRING"]);
    }

    #[test]
    fn hostile_events_are_harmless() {
        let long = FieldView::Text("x".repeat(LEN_MAX));
        let fits = FieldView::Text("é".repeat((LEN_MAX - "ZEVENT_FITS=".len() - 1) / 2));
        let (vars, left_out) = of_event(
            &event(vec![
                ("", FieldView::Flag(true)),
                ("1", FieldView::Flag(true)),
                ("=x", FieldView::Flag(true)),
                ("é", FieldView::Flag(true)),
                ("aé=b\0c\n", FieldView::Text("a\0b".into())),
                ("long", long),
                ("fits", fits),
                ("many", FieldView::Uint64s(vec![u64::MAX; 100_000])),
                ("path", FieldView::Text("/evil".into())),
                ("pool_state", FieldView::Uint64(u64::MAX)),
                ("vdev_state", FieldView::Text("7".into())),
                ("subclass", FieldView::Text("other".into())),
                ("eid", FieldView::Text("other".into())),
            ]),
            &around(),
        );
        assert_eq!(left_out, ["ZEVENT_LONG", "ZEVENT_MANY"]);
        assert_eq!((vars["PATH"].as_str(), vars["ZEVENT_PATH"].as_str()), (PATH, "/evil"));
        assert_eq!((vars["ZEVENT_POOL_STATE_STR"].as_str(), vars["ZEVENT_SUBCLASS"].as_str()), ("UNKNOWN", "vdev.x"));
        assert_eq!((vars["ZEVENT_A__B_C_"].as_str(), vars["ZEVENT_EID"].as_str()), ("a b", "7"));
        assert!(vars.contains_key("ZEVENT_FITS") && !vars.contains_key("ZEVENT_VDEV_STATE_STR"));
        for (name, value) in &vars {
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{name}");
            assert!(!value.contains('\0') && name.len() + value.len() + 2 <= LEN_MAX, "{name}");
        }
        for secs in [i64::MIN, -1, i64::MAX] {
            of_event(&EventView { secs, nanos: u32::MAX, class: String::new(), ..event(vec![]) }, &around());
        }
    }

    #[test]
    fn dates_say_what_they_are_ahead_of_utc() {
        let at = |year, month, day, hour, minute| LocalTime { year, month, day, weekday: 0, hour, minute, second: 45 };
        // 2014-02-07 13:43:45 in UTC.
        assert_eq!(minutes_ahead(&at(2014, 2, 7, 13, 43), 1_391_780_625), 0);
        assert_eq!(minutes_ahead(&at(2014, 2, 7, 19, 13), 1_391_780_625), 330);
        assert_eq!(minutes_ahead(&at(2014, 2, 6, 23, 43), 1_391_780_625), -840);
        // 2000-02-29 23:59:45 in UTC.
        assert_eq!(minutes_ahead(&at(2000, 3, 1, 0, 59), 951_868_785), 60);
        assert_eq!(minutes_ahead(&at(1969, 12, 31, 22, 59), -15), -60);
    }
}
