//! The terminal as a screen: its size, single keys, and its state, which is always restored at the
//! end.

use std::io::{IsTerminal, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::process::Signals;

/// Columns and rows of the terminal on standard output, if it is one and reports them.
pub fn terminal_size() -> Option<(usize, usize)> {
    let size = tcgetwinsize(stdout()).ok();
    size.map(|s| (usize::from(s.ws_col), usize::from(s.ws_row))).filter(|(w, h)| *w > 0 && *h > 0)
}

/// The event that ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The time is over.
    Time,
    /// A key, by the byte that it sends.
    Key(u8),
    /// One of the signals that are held back.
    Signal,
}

/// The alternate screen of the terminal on standard output, with keys from standard input as they
/// are typed and not shown. Dropped, the terminal is as it was.
pub struct Screen {
    /// How standard input was, if it is a terminal.
    before: Option<Termios>,
}

impl Screen {
    /// Takes the terminal; none if standard output is not one.
    pub fn take() -> Option<Screen> {
        if !std::io::stdout().is_terminal() {
            return None;
        }
        let before = tcgetattr(stdin()).ok();
        if let Some(mut keys) = before.clone() {
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            keys.special_codes[SpecialCodeIndex::VMIN] = 1;
            keys.special_codes[SpecialCodeIndex::VTIME] = 0;
            // A program that is stopped would leave its screen to the shell.
            keys.special_codes[SpecialCodeIndex::VSUSP] = 0;
            let _ = tcsetattr(stdin(), OptionalActions::Now, &keys);
        }
        say("\x1b[?1049h\x1b[?25l");
        Some(Screen { before })
    }

    /// Shows these lines from the top on, and nothing else.
    pub fn show(&self, lines: &[String]) {
        say(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")));
    }

    /// Waits so long at most for a key or one of the signals.
    pub fn wait(&self, signals: &Signals, span: Duration) -> Woken {
        // SAFETY: the set is initialised; the descriptor, if there is one, is ours alone.
        let fd = unsafe {
            let fd = libc::signalfd(-1, signals.set(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        let Some(fd) = fd else {
            return if signals.wait_for(span) { Woken::Signal } else { Woken::Time };
        };
        let until = Instant::now() + span;
        loop {
            let keys = stdin();
            let mut fds = [PollFd::new(&fd, PollFlags::IN), PollFd::new(&keys, PollFlags::IN)];
            // Without a terminal there are no keys.
            let watched = if self.before.is_some() { 2 } else { 1 };
            let left = until.saturating_duration_since(Instant::now());
            let ready = poll(&mut fds[..watched], Timespec::try_from(left).ok().as_ref()).is_ok_and(|n| n > 0);
            if ready && !fds[0].revents().is_empty() {
                // Taken with no wait, so that it does not end the program later.
                signals.wait_for(Duration::ZERO);
                return Woken::Signal;
            }
            if ready && fds[1].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
                return Woken::Signal;
            }
            if ready {
                let mut key = [0u8];
                if rustix::io::read(keys, &mut key) == Ok(1) {
                    return Woken::Key(key[0]);
                }
                return Woken::Signal;
            }
            if Instant::now() >= until {
                return Woken::Time;
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        say("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.before {
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

/// A terminal that went away is no error.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
