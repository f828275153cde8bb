//! The newest messages of the process: what it logs, and the commands that changed pools. OpenZFS's
//! `dbgmsg`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of messages that are kept (`zfs_dbgmsg_maxsize`).
const SIZE_MAX: usize = 4 << 20;
/// Bytes that a message costs beside its text.
const COST: usize = 64;
/// The longest message; the rest is cut off.
const LEN_MAX: usize = 64 << 10;

/// Messages with their seconds since 1970, oldest first.
#[derive(Default, Debug)]
struct Ring {
    all: VecDeque<(u64, String)>,
    size: usize,
}

/// The messages.
#[derive(Default, Debug)]
pub struct Messages(Mutex<Ring>);

impl Messages {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one of now; the oldest go when there is no room.
    pub fn add(&self, text: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        self.add_at(now, text);
    }

    fn add_at(&self, now: u64, text: &str) {
        // A line each.
        let mut line: String = text.chars().map(|c| if c == '\n' { ' ' } else { c }).collect();
        line.truncate(line.floor_char_boundary(LEN_MAX));
        let mut ring = self.lock();
        ring.size += line.len() + COST;
        ring.all.push_back((now, line));
        while ring.size > SIZE_MAX {
            let Some((_, gone)) = ring.all.pop_front() else { break };
            ring.size -= gone.len() + COST;
        }
    }

    /// Forgets all.
    pub fn clear(&self) {
        *self.lock() = Ring::default();
    }

    /// A table of them.
    pub fn text(&self) -> String {
        let ring = self.lock();
        let mut out = format!("{:<12} {:<8}\n", "timestamp", "message");
        for (time, text) in &ring.all {
            let _ = writeln!(out, "{time:<12} {text}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_until_they_are_cleared() {
        let m = Messages::default();
        m.add_at(1_700_000_000, "command: zfs snapshot tank@a\nx");
        assert_eq!(m.text(), "timestamp    message \n1700000000   command: zfs snapshot tank@a x\n");
        let long = "é".repeat(LEN_MAX);
        (0..200).for_each(|n| m.add_at(n, &long));
        let text = m.text();
        assert!(text.len() <= SIZE_MAX && text.len() > SIZE_MAX - 2 * LEN_MAX, "{}", text.len());
        assert!(!text.contains("snapshot") && text.lines().last().is_some_and(|l| l.starts_with("199 ")));
        m.clear();
        assert_eq!(m.text().lines().count(), 1);
    }
}
