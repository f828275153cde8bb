//! Lines of progress while `zfs send` sends.
//!
//! The stream is followed record by record, so that in packages each line has the snapshot that is
//! under way, and the bytes of its own stream.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admin::view::fmt::bytes;
use codec::checksum::Endian;
use ondisk::stream::record::Begin;
use ondisk::stream::{RECORD_SIZE, Record};

/// Pause between two lines of progress, as in OpenZFS.
const PERIOD: Duration = Duration::from_secs(1);
/// Where the kernel keeps the name of this process.
const COMM: &str = "/proc/self/comm";

/// How it speaks about what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Says {
    /// Not at all.
    Nothing,
    /// `-v`: for people.
    Text,
    /// `-vP`: for programs.
    Parsable,
}

/// The lines of progress: one each second, also while no bytes come. They end when it is dropped.
pub struct Progress {
    shared: Arc<Shared>,
    clock: Option<JoinHandle<()>>,
}

/// What the thread that prints shares with the one that sends.
struct Shared {
    state: Mutex<State>,
    ends: Condvar,
}

struct State {
    says: Says,
    /// With `-V`: about how many bytes the whole stream has.
    title: Option<u64>,
    follow: Follow,
    /// Bytes of the whole stream.
    all: u64,
    /// The heading of the snapshot under way is printed.
    begun: bool,
    ended: bool,
}

impl Progress {
    /// Before the first byte. Without a thread, which a system may refuse, there are no lines.
    pub fn new(says: Says, title: Option<u64>) -> Progress {
        let state = State { says, title, follow: Follow::default(), all: 0, begun: false, ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), ends: Condvar::new() });
        let own = shared.clone();
        let clock = std::thread::Builder::new().name("progress".into()).spawn(move || own.tick());
        Progress { shared, clock: clock.ok() }
    }

    /// More bytes go out.
    pub fn sent(&mut self, more: &[u8]) {
        let state = &mut *self.shared.lock();
        state.all += more.len() as u64;
        let begun = &mut state.begun;
        state.follow.take(more, &mut |_| *begun = false);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.ends.notify_all();
        if let Some(clock) = self.clock.take() {
            let _ = clock.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints until the end.
    fn tick(&self) {
        let mut state = self.lock();
        let mut next = Instant::now() + PERIOD;
        while !state.ended {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                next += PERIOD;
                state.print();
                continue;
            }
            state = self.ends.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn print(&mut self) {
        if let Some(total) = self.title {
            // The kernel keeps 15 bytes; who may not write there does without.
            let _ = std::fs::write(COMM, title(self.all, total));
        }
        let Follow { name, bytes: sent, .. } = &self.follow;
        if name.is_empty() {
            return;
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let t = host::local_time(since_1970.as_secs() as i64);
        let time = format!("{:02}:{:02}:{:02}", t.hour, t.minute, t.second);
        match self.says {
            Says::Nothing => {}
            Says::Parsable => eprintln!("{time}\t{sent}\t{name}"),
            Says::Text => {
                if !std::mem::replace(&mut self.begun, true) {
                    eprintln!("TIME        SENT   SNAPSHOT {name}");
                }
                eprintln!("{time}   {:>5}   {name}", bytes(*sent));
            }
        }
    }
}

/// The name of the process.
fn title(sent: u64, total: u64) -> String {
    let percent = if total < 100 { 100 } else { (sent / (total / 100)).min(100) };
    format!("sending {percent}%")
}

/// Where in a stream its bytes are.
#[derive(Default)]
struct Follow {
    /// The snapshot of the last stream that began.
    name: String,
    /// Bytes of that stream.
    bytes: u64,
    /// The beginning of the next record.
    head: Vec<u8>,
    /// Bytes of payload before it.
    payload: u64,
    /// It was no stream after all.
    lost: bool,
}

impl Follow {
    /// Takes the next bytes; `begins` gets the names of snapshots whose streams begin.
    fn take(&mut self, mut rest: &[u8], begins: &mut dyn FnMut(&str)) {
        while !rest.is_empty() && !self.lost {
            let skip = rest.len().min(usize::try_from(self.payload).unwrap_or(usize::MAX));
            self.payload -= skip as u64;
            self.bytes += skip as u64;
            rest = &rest[skip..];
            let missing = (RECORD_SIZE - self.head.len()).min(rest.len());
            self.head.extend_from_slice(&rest[..missing]);
            rest = &rest[missing..];
            if let Ok(head) = <&[u8; RECORD_SIZE]>::try_from(self.head.as_slice()) {
                self.bytes += RECORD_SIZE as u64;
                // weir's streams are little-endian.
                match Record::decode(head, Endian::Little) {
                    Ok(record) => self.record(&record, begins),
                    Err(_) => self.lost = true,
                }
                self.head.clear();
            }
        }
    }

    fn record(&mut self, record: &Record, begins: &mut dyn FnMut(&str)) {
        self.payload = record.payload_len();
        if let Record::Begin(begin) = record
            && begin.header_type() == Begin::SUBSTREAM
        {
            self.name = String::from_utf8_lossy(&begin.to_name).into_owned();
            self.bytes = RECORD_SIZE as u64;
            begins(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use ondisk::stream::StreamWriter;
    use ondisk::stream::record::{End, Write};

    use super::*;

    #[test]
    fn a_package_is_followed_in_pieces_of_any_length() {
        let begin = |kind, name: &str, payload_len| {
            Record::Begin(Begin {
                version_info: kind,
                to_name: name.into(),
                payload_len,
                objset_type: 2,
                ..Begin::default()
            })
        };
        let end = Record::End(End::default());
        let write = Record::Write(Write { logical_size: 1024, ..Write::default() });
        let mut stream = Vec::new();
        let mut add = |writer: &mut StreamWriter, record: &Record, payload: &[u8]| {
            stream.extend(writer.record(record, payload));
            stream.extend(payload);
        };
        let mut frame = StreamWriter::new(Endian::Little);
        add(&mut frame, &begin(Begin::PACKAGE, "p@b", 40), &[7; 40]);
        add(&mut frame, &end, &[]);
        for name in ["p@a", "p@b"] {
            let mut writer = StreamWriter::new(Endian::Little);
            add(&mut writer, &begin(Begin::SUBSTREAM, name, 0), &[]);
            add(&mut writer, &write, &[1; 1024]);
            add(&mut writer, &end, &[]);
        }
        for piece in [1, 7, 312, 1000, 1 << 20] {
            let (mut follow, mut names) = (Follow::default(), Vec::new());
            stream.chunks(piece).for_each(|part| follow.take(part, &mut |name| names.push(name.to_string())));
            assert_eq!((names.join(" ").as_str(), follow.bytes, follow.lost), ("p@a p@b", 3 * 312 + 1024, false));
        }
        let mut follow = Follow::default();
        follow.take(&[255; 1000], &mut |_| panic!("this is no stream"));
        assert!(follow.lost);
    }

    #[test]
    fn the_title_fits_the_kernel() {
        for (sent, total, want) in [(0, 0, 100), (0, 1000, 0), (500, 1000, 50), (2000, 1000, 100)] {
            assert_eq!(title(sent, total), format!("sending {want}%"));
        }
    }
}
