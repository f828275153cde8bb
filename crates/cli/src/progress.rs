//! A progress bar; nothing if standard error is no terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const SHOW_AFTER: Duration = Duration::from_millis(400);
/// Pause between two updates.
const PERIOD: Duration = Duration::from_millis(80);

/// One bar, redrawn in place.
pub struct Bar {
    terminal: bool,
    started: Instant,
    drawn: Option<Instant>,
}

impl Bar {
    /// Not drawn yet.
    pub fn new() -> Bar {
        Bar { terminal: std::io::stderr().is_terminal(), started: Instant::now(), drawn: None }
    }

    /// Shows the progress; `total` 0 if it is not known.
    pub fn show(&mut self, what: &str, done: u64, total: u64) {
        let now = Instant::now();
        let too_soon = self.drawn.is_some_and(|t| now - t < PERIOD);
        if !self.terminal || now - self.started < SHOW_AFTER || too_soon {
            return;
        }
        let width = host::terminal_width().unwrap_or(80);
        let mut err = std::io::stderr().lock();
        let _ = write!(err, "\r{}\x1b[K", picture(what, done, total, width));
        let _ = err.flush();
        self.drawn = Some(now);
    }

    /// Removes it.
    pub fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "\r\x1b[K");
            let _ = err.flush();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The bar as text of less than `width` characters.
fn picture(what: &str, done: u64, total: u64, width: usize) -> String {
    if total == 0 {
        return format!("{what}: {done}").chars().take(width.saturating_sub(1)).collect();
    }
    let percent = done.min(total) * 100 / total;
    let room = width.saturating_sub(what.chars().count() + 10).min(40);
    if room < 5 {
        return format!("{percent:3}%");
    }
    let full = room * percent as usize / 100;
    format!("{what} [{}{}] {percent:3}%", "#".repeat(full), "-".repeat(room - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fit_the_terminal() {
        assert_eq!(picture("copying", 1, 2, 80), format!("copying [{}{}]  50%", "#".repeat(20), "-".repeat(20)));
        assert_eq!(picture("copying", 5, 2, 30), format!("copying [{}] 100%", "#".repeat(13)));
        assert_eq!(picture("copying", 5, 0, 80), "copying: 5");
        assert_eq!(picture("copying", 1, 4, 12), " 25%");
    }
}
