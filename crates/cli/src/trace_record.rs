//! `weir trace record`: a recording of the operations of a pool's users, as a file.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use admin::request::{TraceRecord, TraceRecordEnd};
use base::{Error, ErrorKind};

use crate::opts::Parsed;
use crate::zpool::parse_for;
use crate::{Done, Fail, ask, ask_bytes, print};

/// The file of a recording. It is replaced only by one that has begun.
pub(crate) struct Output<'p> {
    path: &'p str,
    file: Option<File>,
}

impl<'p> Output<'p> {
    /// Not begun.
    pub(crate) fn new(path: &'p str) -> Output<'p> {
        Output { path, file: None }
    }

    /// Writes bytes behind the others.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> base::Result<()> {
        let path = self.path;
        let failed = |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot write '{path}': {e}"));
        let out = match &mut self.file {
            Some(out) => out,
            None => self.file.insert(File::create(path).map_err(failed)?),
        };
        out.write_all(bytes).map_err(failed)
    }
}

/// How many seconds `-s` asks for.
pub(crate) fn seconds(p: &Parsed, topic: &'static str) -> Result<Option<u64>, Fail> {
    match p.value('s').map(|text| (text, text.parse::<u64>())) {
        None => Ok(None),
        Some((_, Ok(n))) if n > 0 => Ok(Some(n)),
        Some((text, _)) => Err(Fail::Usage(format!("'{text}' is not a number of seconds above 0"), topic)),
    }
}

/// Runs `weir trace record ARGS`.
pub fn run(args: &[String]) -> Done {
    let p = parse_for("trace", args, "o:s:", &[("output", true, 'o'), ("seconds", true, 's')], "record")?;
    let usage = |text: String| Err(Fail::Usage(text, "record"));
    let [pool] = p.operands.as_slice() else { return usage("one pool is needed".into()) };
    let Some(path) = p.value('o') else { return usage("the file of the recording is missing (-o FILE)".into()) };
    let seconds = seconds(&p, "record")?;
    let mut out = Output::new(path);
    let signals = host::Signals::hold();
    let token = token();
    let mut ending = false;
    let request = TraceRecord { pool: pool.clone(), seconds, token };
    let recorded = ask_bytes(&request, &mut |bytes| {
        out.put(bytes)?;
        // Something comes ten times a second, also from an idle pool.
        if !ending && signals.wait_for(Duration::ZERO) {
            ending = true;
            let asked = ask(&TraceRecordEnd { pool: pool.clone(), token });
            asked.map_err(|_| Error::new(ErrorKind::Interrupted, "the recording was interrupted"))?;
        }
        Ok(())
    })?;
    let seconds = recorded.span as f64 / 1e9;
    print(&format!("{} operations in {seconds:.1} s, {} bytes in '{path}'\n", recorded.ops, recorded.bytes));
    if recorded.lost > 0 {
        print(&format!("{} more operations were lost: they came faster than they were taken\n", recorded.lost));
    }
    Ok(())
}

/// A number that no other recording has.
pub(crate) fn token() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::from(std::process::id()) << 32 | u64::from(since.subsec_nanos())
}
