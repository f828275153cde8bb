//! What the event daemon says: on standard error, or to syslog.

use std::os::unix::net::UnixDatagram;

/// The level of a message: syslog's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Warning = 4,
    Notice = 5,
    /// Only with `-v`.
    Info = 6,
}

/// Where messages go.
pub struct Log {
    least: Level,
    syslog: Option<UnixDatagram>,
    is_syslog: bool,
}

/// syslog's number for daemons, in the place where it belongs.
const FACILITY: u8 = 3 << 3;

impl Log {
    /// Standard error.
    pub fn to_stderr(verbose: bool) -> Log {
        Log { least: if verbose { Level::Info } else { Level::Notice }, syslog: None, is_syslog: false }
    }

    /// syslog, or nothing where there is none.
    pub fn to_syslog(verbose: bool) -> Log {
        let socket = UnixDatagram::unbound().ok().filter(|s| s.set_nonblocking(true).is_ok());
        Log { syslog: socket, is_syslog: true, ..Log::to_stderr(verbose) }
    }

    /// A message, of one sentence.
    pub fn say(&self, level: Level, text: &str) {
        if level > self.least {
            return;
        }
        if !self.is_syslog {
            eprintln!("{text}");
        } else if let Some(socket) = &self.syslog {
            let message = format!("<{}>zed[{}]: {text}", FACILITY | level as u8, std::process::id());
            // Lost where nobody listens, as every message to syslog.
            let _ = socket.send_to(message.as_bytes(), "/dev/log");
        }
    }
}
