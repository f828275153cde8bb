//! Recordings of the operations of users (`weir trace record`): from trace events to the client.
//!
//! A listener encodes operations into a buffer of a fixed size ([`rt::oplog::Writer`]); a task
//! takes it ten times a second and writes it to the request's stream. A client that does not read
//! stops the task, never the pool: the buffer fills, and what comes then is counted as lost. A
//! recording ends after its time, when its client asks for it ([`Recordings::end`]) or goes away,
//! or when it has the size of the longest that is read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, Nanos, Result};
use metaslab::ClassKind;
use ondisk::vdev_config::{VdevConfig, VdevKind};
use rt::oplog::{FILE_MAX, Header, PROPS, Writer};
use rt::trace::{Event, Groups};
use vdev::Top;

use crate::engine::PoolEngine;
use crate::request::stream::{Chunk, Outlet};
use crate::view::{RecordedView, TunableView};

/// How often the buffer is taken.
const STEP: Nanos = Nanos(100_000_000);
/// Recordings of a pool at once.
const RECORDINGS_MAX: usize = 4;

/// A recording under way.
struct Running {
    token: u64,
    end: Cell<bool>,
}

/// The recordings of one pool.
#[derive(Default)]
pub struct Recordings(RefCell<Vec<Rc<Running>>>);

impl Recordings {
    fn begin(&self, token: u64) -> Result<Rc<Running>> {
        let mut all = self.0.borrow_mut();
        // One whose task has been dropped is over.
        all.retain(|r| Rc::strong_count(r) > 1);
        if all.len() >= RECORDINGS_MAX {
            return Err(Error::invalid(format!("{RECORDINGS_MAX} recordings of this pool are under way already")));
        }
        let new = Rc::new(Running { token, end: Cell::new(false) });
        all.push(new.clone());
        Ok(new)
    }

    /// Has the recordings with this token end soon; whether there are any.
    pub fn end(&self, token: u64) -> bool {
        let all = self.0.borrow();
        let with_token = all.iter().filter(|r| r.token == token && Rc::strong_count(r) > 1);
        with_token.map(|r| r.end.set(true)).count() > 0
    }
}

/// A top-level vdev of a class in the words of `weir lab replay --layout`; none for one that holds
/// nothing.
fn top_word(config: &VdevConfig, class: ClassKind) -> Option<String> {
    let n = config.children.len();
    let word = match config.kind {
        VdevKind::Mirror => format!("mirror:{n}"),
        VdevKind::Raidz => format!("raidz{}:{n}", config.nparity.unwrap_or(1)),
        VdevKind::Draid => {
            let data = config.draid_ndata.map_or(String::new(), |d| format!(":{d}d"));
            let spares = config.draid_nspares.unwrap_or(0);
            format!("draid{}{data}:{n}c:{spares}s", config.nparity.unwrap_or(1))
        }
        VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect => return None,
        _ => "single".to_string(),
    };
    Some(match class {
        ClassKind::Log => format!("log-{word}"),
        ClassKind::Special => format!("special-{word}"),
        ClassKind::Dedup => format!("dedup-{word}"),
        ClassKind::Normal | ClassKind::EmbeddedLog => word,
    })
}

/// Free bytes of each device of a normal vdev that has `free` bytes.
fn device_free(config: &VdevConfig, free: u64) -> u64 {
    match config.kind {
        VdevKind::Raidz | VdevKind::Draid => free / (config.children.len() as u64).max(1),
        _ => free,
    }
}

impl PoolEngine {
    /// What a recording says of the pool: layout, settings and file systems that are mounted.
    fn recording_header(&self, tunables: &[TunableView]) -> Header {
        let tops: Vec<Rc<Top>> = self.pool.tree().tops.borrow().clone();
        let spaces = self.pool.top_spaces();
        let space = |top: &Top| spaces.iter().find(|s| s.vdev == top.id);
        let class = |top: &Top| space(top).map_or(ClassKind::Normal, |s| s.class);
        let normal = tops.iter().filter_map(|t| Some((t, space(t).filter(|s| s.class == ClassKind::Normal)?)));
        let free: Vec<u64> =
            normal.map(|(t, s)| device_free(&t.shape().config, s.total.saturating_sub(s.alloc))).collect();
        let words: Vec<String> = tops.iter().filter_map(|t| top_word(&t.shape().config, class(t))).collect();
        let ashift = tops.iter().map(|t| t.ashift).max().unwrap_or(12);
        let mut pairs = vec![("layout".to_string(), words.join(",")), ("ashift".to_string(), ashift.to_string())];
        if !free.is_empty() {
            let mean = free.iter().sum::<u64>() / free.len() as u64;
            pairs.push(("device_free".to_string(), mean.to_string()));
        }
        pairs.extend(tunables.iter().map(|t| (format!("tunable.{}", t.name), t.value.clone())));
        for zfs in self.mounts.file_systems() {
            let (dir, id) = (zfs.dataset().dir(), zfs.objset().id());
            for prop in PROPS.iter().filter_map(|name| dsl::props::find(name)) {
                let value = prop.format(&dir.prop(prop.name).0, true);
                pairs.push((format!("dataset.{id}.{}", prop.name), value));
            }
        }
        Header { pairs }
    }

    /// Records operations for `span`, or until [`Recordings::end`] with this token.
    pub(crate) async fn record(
        &self,
        span: Option<Nanos>,
        token: u64,
        tunables: &[TunableView],
        to: Outlet,
    ) -> Result<RecordedView> {
        let running = self.recordings.begin(token)?;
        let rt = self.pool.rt();
        let mut bytes = 0u64;
        let mut put = async |block: Vec<u8>| {
            bytes += block.len() as u64;
            rt.spend(rt::cost::COPY.cost(block.len() as u64)).await;
            to.chunks([Chunk::Own(block)]).await.map(|()| bytes)
        };
        let (begun, worked) = (rt.now(), rt.worked());
        let writer = Rc::new(RefCell::new(Writer::new(begun)));
        let noted = writer.clone();
        let listening = rt.tracer().listen(Groups::OP, move |now, event| {
            if let Event::Op(op) = event {
                noted.borrow_mut().note(now, op);
            }
        });
        put(Writer::head(&self.recording_header(tunables))).await?;
        let end = span.map_or(Nanos(u64::MAX), |span| begun + span);
        let mut next = begun;
        loop {
            next = (next + STEP).max(rt.now()).min(end);
            rt.sleep_until(next).await;
            let block = writer.borrow_mut().take();
            let so_far = put(block).await?;
            // Room for what a buffer holds.
            let full = so_far + 2 * rt::oplog::BLOCK_MAX as u64 > FILE_MAX;
            if running.end.get() || full || rt.now() >= end {
                break;
            }
        }
        let now = rt.now();
        drop(listening);
        let last = writer.borrow_mut().end(now, rt.worked().since(worked));
        let bytes = put(last).await?;
        let (ops, lost) = writer.borrow().counts();
        Ok(RecordedView { ops, lost, bytes, span: now.since(begun).0 })
    }
}

#[cfg(test)]
mod tests {
    use base::Guid;

    use super::*;

    #[test]
    fn vdevs_have_the_words_of_layouts() {
        let leaf = || VdevConfig::new(VdevKind::File, 0, Guid(1));
        let top = |kind, n, nparity| {
            let children = (0..n).map(|_| leaf()).collect();
            VdevConfig { nparity, children, ..VdevConfig::new(kind, 0, Guid(1)) }
        };
        let draid = VdevConfig { draid_ndata: Some(4), draid_nspares: Some(1), ..top(VdevKind::Draid, 11, Some(2)) };
        let words = [
            (leaf(), ClassKind::Normal, Some("single")),
            (top(VdevKind::Mirror, 3, None), ClassKind::Normal, Some("mirror:3")),
            (top(VdevKind::Raidz, 6, Some(2)), ClassKind::Normal, Some("raidz2:6")),
            (top(VdevKind::Mirror, 2, None), ClassKind::Log, Some("log-mirror:2")),
            (top(VdevKind::Mirror, 2, None), ClassKind::Special, Some("special-mirror:2")),
            (leaf(), ClassKind::Dedup, Some("dedup-single")),
            (draid, ClassKind::Normal, Some("draid2:4d:11c:1s")),
            (top(VdevKind::Hole, 0, None), ClassKind::Log, None),
        ];
        for (config, class, word) in words {
            assert_eq!(top_word(&config, class).as_deref(), word);
        }
    }

    #[test]
    fn free_space_is_that_of_a_device() {
        let of = |kind| {
            let children = (0..4).map(|n| VdevConfig::new(VdevKind::File, n, Guid(1))).collect();
            device_free(&VdevConfig { children, ..VdevConfig::new(kind, 0, Guid(1)) }, 1000)
        };
        assert_eq!([VdevKind::Raidz, VdevKind::Draid, VdevKind::Mirror].map(of), [250, 250, 1000]);
        assert_eq!(device_free(&VdevConfig::new(VdevKind::Disk, 0, Guid(1)), 1000), 1000);
    }

    #[test]
    fn recordings_are_ended_by_their_token_and_are_few() {
        let all = Recordings::default();
        let running: Vec<_> = (0..RECORDINGS_MAX as u64).map(|token| all.begin(token).unwrap()).collect();
        assert!(all.begin(9).is_err());
        assert!(all.end(2) && !all.end(9));
        assert_eq!(running.iter().map(|r| r.end.get()).collect::<Vec<_>>(), [false, false, true, false]);
        drop(running);
        assert!(!all.end(2), "they are over");
        assert!(all.begin(9).is_ok());
    }
}
