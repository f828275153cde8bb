//! The events of all pools, for `zpool events`: a ring of bounded length that begins with the
//! daemon and ends with it.
//!
//! Pools post from their engine threads ([`PoolSink`]); commands read by number
//! ([`Zevents::after`]), so that a follower misses no event that the ring still has. Text in
//! payloads, which comes from disks and users, is cut to one line of limited length when an event
//! is posted: that bounds the memory of an event, and no reader has to care.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::WallTime;
use ondisk::nvlist::{NvList, NvValue};
use spa::EventSink;

use crate::keeper::Keeper;
use crate::pool::cache_file::Changes;
use crate::view::{EventView, EventsView, FieldView};

/// `zfs_zevent_len_max` of OpenZFS 2.1.
pub const LEN_MAX: u64 = 512;
/// Events of one answer.
const ANSWER_MAX: usize = 256;
/// Bytes of a string in a payload; the rest is left out.
const STRING_MAX: usize = 4096;
/// Time that a follower waits before it looks whether its client is still there.
const PATIENCE: Duration = Duration::from_secs(1);

struct Ring {
    next: u64,
    events: VecDeque<EventView>,
    max: usize,
}

/// The ring.
pub struct Zevents {
    ring: Mutex<Ring>,
    more: Condvar,
}

impl Default for Zevents {
    fn default() -> Zevents {
        Zevents {
            ring: Mutex::new(Ring { next: 1, events: VecDeque::new(), max: LEN_MAX as usize }),
            more: Condvar::new(),
        }
    }
}

impl Zevents {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Limits the ring to the newest `max` events.
    pub fn set_max(&self, max: u64) {
        let mut ring = self.lock();
        ring.max = usize::try_from(max).unwrap_or(usize::MAX);
        while ring.events.len() > ring.max {
            ring.events.pop_front();
        }
    }

    /// Adds an event, and drops the oldest if the ring is full.
    pub fn post(&self, class: String, time: WallTime, mut payload: NvList) {
        let mut ring = self.lock();
        let eid = ring.next;
        ring.next += 1;
        if ring.max == 0 {
            return;
        }
        while ring.events.len() >= ring.max {
            ring.events.pop_front();
        }
        let pool = payload.str("pool").unwrap_or_default().to_string();
        let version = payload.remove("version");
        let mut all: NvList = NvList::new();
        version.into_iter().for_each(|v| all.put("version", v));
        all.put_str("class", class.clone());
        payload.into_iter().for_each(|(name, value)| all.put(&name, value));
        all.put("time", NvValue::Int64Array(vec![time.secs, time.nanos.into()]));
        all.put_u64("eid", eid);
        let fields = fields(&all, 0);
        ring.events.push_back(EventView { eid, class, secs: time.secs, nanos: time.nanos, pool, fields });
        self.more.notify_all();
    }

    /// Events with higher numbers than `eid`, of one pool or of all; with `wait`, as soon as there
    /// is one, or none after a second.
    pub fn after(&self, eid: u64, pool: Option<&str>, wait: bool) -> EventsView {
        let mut ring = self.lock();
        let wanted = |e: &EventView| e.eid > eid && pool.is_none_or(|p| e.pool == p);
        if wait && !ring.events.iter().any(wanted) {
            let waited = self.more.wait_timeout_while(ring, PATIENCE, |r| !r.events.iter().any(wanted));
            ring = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let events: Vec<EventView> = ring.events.iter().filter(|e| wanted(e)).take(ANSWER_MAX).cloned().collect();
        let last = match events.last() {
            Some(e) if events.len() == ANSWER_MAX => e.eid,
            _ => ring.next - 1,
        };
        EventsView { more: events.len() == ANSWER_MAX, events, last }
    }

    /// Drops all events, and returns their number.
    pub fn clear(&self) -> u64 {
        std::mem::take(&mut self.lock().events).len() as u64
    }
}

/// The event of a pool that has written its configuration.
const CONFIG_SYNC: &str = "sysevent.fs.zfs.config_sync";

/// The event sink of a pool.
pub struct PoolSink {
    /// The ring.
    pub events: Arc<Zevents>,
    /// The log.
    pub keeper: Arc<dyn Keeper>,
    /// Those who keep cache files.
    pub changes: Arc<Changes>,
}

impl EventSink for PoolSink {
    fn post(&self, class: String, time: WallTime, payload: NvList) {
        self.keeper.event(&class, &payload);
        if class == CONFIG_SYNC {
            self.changes.add(payload.str("pool").unwrap_or_default());
        }
        self.events.post(class, time, payload);
    }
}

/// The fields of a payload. Lists within lists end somewhere.
fn fields(list: &NvList, depth: usize) -> Vec<(String, FieldView)> {
    list.iter().map(|(name, value)| (printable(name), field(value, depth))).collect()
}

fn field(value: &NvValue, depth: usize) -> FieldView {
    match value {
        NvValue::List(inner) => FieldView::Fields(if depth < 4 { fields(inner, depth + 1) } else { Vec::new() }),
        NvValue::String(s) => FieldView::Text(printable(s)),
        NvValue::StringArray(all) => FieldView::Texts(all.iter().map(|s| printable(s)).collect()),
        NvValue::Uint64Array(all) => FieldView::Uint64s(all.clone()),
        NvValue::Int64Array(all) => FieldView::Int64s(all.clone()),
        NvValue::BooleanValue(b) => FieldView::Flag(*b),
        NvValue::Int32(n) => FieldView::Int32(*n),
        NvValue::Int64(n) => FieldView::Int64(*n),
        other => other.as_integer().map_or(FieldView::Other, |i| FieldView::Uint64(i as u64)),
    }
}

/// Untrusted text, on one line and of limited length.
fn printable(s: &str) -> String {
    let end = (0..=STRING_MAX.min(s.len())).rev().find(|&n| s.is_char_boundary(n)).unwrap_or(0);
    s[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(pool: &str) -> NvList {
        NvList::new().with_u64("version", 0).with_str("pool", pool)
    }

    fn eids(view: &EventsView) -> Vec<u64> {
        view.events.iter().map(|e| e.eid).collect()
    }

    #[test]
    fn the_ring_is_bounded_and_read_by_number() {
        let ring = Zevents::default();
        let time = WallTime { secs: 1, nanos: 2 };
        ring.set_max(4);
        (0..6).for_each(|i| ring.post("c".into(), time, event(if i % 2 == 0 { "a" } else { "b" })));
        let all = ring.after(0, None, false);
        assert_eq!((eids(&all), all.last, all.more), (vec![3, 4, 5, 6], 6, false));
        assert_eq!(eids(&ring.after(3, Some("b"), false)), [4, 6]);
        assert_eq!(eids(&ring.after(5, None, true)), [6], "what is there is not waited for");
        ring.set_max(1);
        assert_eq!(ring.clear(), 1);
        ring.set_max(u64::MAX);
        (0..300).for_each(|_| ring.post("c".into(), time, event("a")));
        let first = ring.after(6, None, false);
        assert_eq!((first.events.len(), first.last, first.more), (256, 262, true));
        let rest = ring.after(first.last, None, false);
        assert_eq!((rest.events.len(), rest.last, rest.more), (44, 306, false));
        ring.set_max(0);
        ring.post("c".into(), time, event("a"));
        assert_eq!(ring.after(0, None, false), EventsView { events: Vec::new(), last: 307, more: false });
    }

    #[test]
    fn a_follower_is_woken() {
        let ring = Arc::new(Zevents::default());
        let theirs = ring.clone();
        let follower = std::thread::spawn(move || theirs.after(0, Some("a"), true));
        ring.post("c".into(), WallTime { secs: 1, nanos: 2 }, event("b"));
        ring.post("c".into(), WallTime { secs: 1, nanos: 2 }, event("a"));
        assert_eq!(eids(&follower.join().expect("it ends")), [2]);
    }

    #[test]
    fn payloads_are_fields_in_their_order() {
        let ring = Zevents::default();
        let mut nv = event("tank").with_u64("pool_guid", 255);
        nv.put("pool_context", NvValue::Int32(-1));
        nv.put("detector", NvValue::List(NvList::new().with_str("scheme", "zfs\n")));
        nv.put("vdev_spare_paths", NvValue::StringArray(vec!["/a".into(), "/b".into()]));
        nv.put("history_internal_str", NvValue::String("ä".repeat(STRING_MAX)));
        ring.post("sysevent.fs.zfs.x".into(), WallTime { secs: 16, nanos: 17 }, nv);
        let text = |s: &str| FieldView::Text(s.into());
        let want = [
            ("version", FieldView::Uint64(0)),
            ("class", text("sysevent.fs.zfs.x")),
            ("pool", text("tank")),
            ("pool_guid", FieldView::Uint64(255)),
            ("pool_context", FieldView::Int32(-1)),
            ("detector", FieldView::Fields(vec![("scheme".into(), text("zfs "))])),
            ("vdev_spare_paths", FieldView::Texts(vec!["/a".into(), "/b".into()])),
            ("history_internal_str", text(&"ä".repeat(STRING_MAX / 2))),
            ("time", FieldView::Int64s(vec![16, 17])),
            ("eid", FieldView::Uint64(1)),
        ];
        assert_eq!(ring.after(0, None, false).events[0].fields, want.map(|(n, f)| (n.to_string(), f)));
    }
}
