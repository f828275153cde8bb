//! The terminal as a screen: its size, single keys, and its state, which is always restored at the
//! end.

use std::io::{IsTerminal, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::process::Signals;

/// Columns and rows of the terminal on standard output, if it is one and reports them.
pub fn terminal_size() -> Option<(usize, usize)> {
    // SAFETY: winsize is plain data that the request fills.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) == 0).then_some(size)
    };
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
    before: Option<libc::termios>,
}

impl Screen {
    /// Takes the terminal; none if standard output is not one.
    pub fn take() -> Option<Screen> {
        if !std::io::stdout().is_terminal() {
            return None;
        }
        // SAFETY: termios is plain data for which zeros are a value; tcgetattr fills it and keeps
        // no pointer.
        let before = unsafe {
            let mut now: libc::termios = std::mem::zeroed();
            (libc::tcgetattr(libc::STDIN_FILENO, &raw mut now) == 0).then_some(now)
        };
        if let Some(mut keys) = before {
            keys.c_lflag &= !(libc::ICANON | libc::ECHO);
            (keys.c_cc[libc::VMIN], keys.c_cc[libc::VTIME]) = (1, 0);
            // A program that is stopped would leave its screen to the shell.
            keys.c_cc[libc::VSUSP] = 0;
            // SAFETY: a valid pointer to the result of tcgetattr, changed.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw const keys) };
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
            let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // A negative descriptor is passed over.
            let mut fds = [entry(fd.as_raw_fd()), entry(if self.before.is_some() { libc::STDIN_FILENO } else { -1 })];
            let left = until.saturating_duration_since(Instant::now()).as_millis();
            // SAFETY: an array of two entries, which lives until the call ends.
            let n = unsafe { libc::poll(fds.as_mut_ptr(), 2, i32::try_from(left).unwrap_or(i32::MAX)) };
            if n > 0 && fds[0].revents != 0 {
                // Taken with no wait, so that it does not end the program later.
                signals.wait_for(Duration::ZERO);
                return Woken::Signal;
            }
            if n > 0 && fds[1].revents & (libc::POLLHUP | libc::POLLERR) != 0 {
                return Woken::Signal;
            }
            if n > 0 {
                let mut key = 0u8;
                // SAFETY: one byte for one byte.
                if unsafe { libc::read(libc::STDIN_FILENO, (&raw mut key).cast(), 1) } == 1 {
                    return Woken::Key(key);
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
            // SAFETY: a valid pointer to the result of tcgetattr.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, before) };
        }
    }
}

/// A terminal that went away is no error.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
