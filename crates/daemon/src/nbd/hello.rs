//! The handshake of a connection, on a thread of its own, and what the server's threads and the
//! connections share.
//!
//! A handshake may take [`HELLO_LIMIT`] in all; there are [`HELLOS_MAX`] at once, and a connection
//! beyond that is closed. Questions about volumes go to the engine threads of their pools.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, PoisonError};
use std::sync::{Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use admin::fs::volume_folder::VolumeInfo;
use admin::keeper::Level;
use admin::pool_set::PoolSet;
use admin::request::pool_part;
use base::{Error, ErrorKind, Result};
use nbd::{Export, Fault, Handshake, Listed, Step, Terms};

/// Time for a handshake. A person at a client's keyboard is not part of it.
const HELLO_LIMIT: Duration = Duration::from_secs(30);
/// Handshakes at once.
const HELLOS_MAX: usize = 32;
/// The largest read or write: what clients may send if they are told nothing.
pub(super) const PAYLOAD_MAX: u32 = 32 << 20;
/// Connections of a server at most, and at least, whatever the memory.
const CONNECTIONS: (usize, usize) = (8, 64);
/// The part of the machine's memory that all connections of a server may hold.
const MEMORY_PART: u64 = 8;
/// The smallest preferred size of a block that clients can be told.
const PREFERRED_MIN: u32 = 512;
/// Bytes read at once: more than any usual option has.
const CHUNK: usize = 4096;

/// What a server serves.
#[derive(Clone, Debug)]
pub(super) enum Exports {
    /// Every volume, and every snapshot of one.
    All,
    /// These.
    These(Vec<String>),
}

/// A server as its threads and connections see it.
pub(super) struct Shared {
    pub(super) pools: Weak<PoolSet>,
    pub(super) exports: Exports,
    pub(super) read_only: bool,
    state: Mutex<State>,
    changed: Condvar,
    connections_max: usize,
}

/// The connections of a server.
#[derive(Default)]
pub(super) struct State {
    /// By number, to end them from outside.
    sockets: BTreeMap<u64, Stream>,
    next: u64,
    /// Those in their handshake.
    hellos: usize,
    /// Those that use a volume.
    pub(super) clients: u64,
    pub(super) faults: u64,
    pub(super) last_fault: Option<String>,
}

/// A socket of either family.
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn try_clone(&self) -> std::io::Result<Stream> {
        Ok(match self {
            Stream::Unix(s) => Stream::Unix(s.try_clone()?),
            Stream::Tcp(s) => Stream::Tcp(s.try_clone()?),
        })
    }
    fn end(&self) {
        // An error means that it has ended.
        let _ = match self {
            Stream::Unix(s) => s.shutdown(std::net::Shutdown::Both),
            Stream::Tcp(s) => s.shutdown(std::net::Shutdown::Both),
        };
    }
    /// Reads and writes give up after `span`.
    fn set_limit(&self, span: Duration) -> std::io::Result<()> {
        // No time at all would mean no limit.
        let span = Some(span.max(Duration::from_millis(1)));
        match self {
            Stream::Unix(s) => s.set_read_timeout(span).and_then(|()| s.set_write_timeout(span)),
            Stream::Tcp(s) => s.set_read_timeout(span).and_then(|()| s.set_write_timeout(span)),
        }
    }
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(s) => s.read(buf),
            Stream::Tcp(s) => s.read(buf),
        }
    }
    /// Sends all of `data` before `end`; None if that fails. A client that takes a byte now and
    /// then has no longer than one that takes none.
    fn send_before(&mut self, end: Instant, mut data: &[u8]) -> Option<()> {
        while !data.is_empty() {
            self.set_limit(end.checked_duration_since(Instant::now())?).ok()?;
            let sent = match self {
                Stream::Unix(s) => s.write(data),
                Stream::Tcp(s) => s.write(data),
            };
            data = data.get(sent.ok().filter(|n| *n > 0)?..)?;
        }
        Some(())
    }
    /// For the engine: it does not block, and short answers leave at once.
    fn for_engine(self) -> std::io::Result<OwnedFd> {
        Ok(match self {
            Stream::Unix(s) => s.set_nonblocking(true).map(|()| s.into())?,
            Stream::Tcp(s) => s.set_nodelay(true).and_then(|()| s.set_nonblocking(true)).map(|()| s.into())?,
        })
    }
}

/// A connection in the list of its server; dropping it takes it out.
pub(super) struct Client {
    shared: Arc<Shared>,
    id: u64,
    uses: std::cell::Cell<bool>,
}

impl Client {
    /// It uses a volume from now on.
    pub(super) fn begins(&self) {
        if !self.uses.replace(true) {
            self.shared.state().clients += 1;
        }
    }
    /// Writes an error to the log.
    pub(super) fn say(&self, text: &str) {
        if let Some(pools) = self.shared.pools.upgrade() {
            pools.say(Level::Err, text);
        }
    }
    /// The client broke the rules.
    pub(super) fn note_fault(&self, fault: &Fault) {
        let mut state = self.shared.state();
        state.faults += 1;
        state.last_fault = Some(fault.to_string());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let socket = {
            let mut state = self.shared.state();
            state.clients -= u64::from(self.uses.get());
            state.sockets.remove(&self.id)
        };
        drop(socket);
        self.shared.changed.notify_all();
    }
}

/// Counts a handshake until it is dropped.
struct Hello<'a>(&'a Shared);

impl Drop for Hello<'_> {
    fn drop(&mut self) {
        self.0.state().hellos -= 1;
    }
}

impl Shared {
    pub(super) fn new(pools: Weak<PoolSet>, exports: Exports, read_only: bool) -> Arc<Shared> {
        let fit = host::physmem_bytes() / MEMORY_PART / super::conn::WINDOW;
        let connections_max = usize::try_from(fit).unwrap_or(usize::MAX).clamp(CONNECTIONS.0, CONNECTIONS.1);
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Shared { pools, exports, read_only, state, changed, connections_max })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new connection, if there is room for it.
    pub(super) fn take(self: &Arc<Self>, stream: Stream) {
        let id = {
            let mut state = self.state();
            if state.hellos >= HELLOS_MAX || state.sockets.len() >= self.connections_max {
                return;
            }
            let Ok(copy) = stream.try_clone() else { return };
            state.hellos += 1;
            state.next += 1;
            let id = state.next;
            state.sockets.insert(id, copy);
            id
        };
        let client = Client { shared: self.clone(), id, uses: std::cell::Cell::new(false) };
        let shared = self.clone();
        let lead = move || {
            let hello = Hello(&shared);
            let agreed = shared.lead(stream, &client);
            drop(hello);
            if let Some((terms, rest, fd)) = agreed {
                shared.move_to_engine(terms, rest, fd, client);
            }
        };
        if std::thread::Builder::new().name("weir-nbd-hello".into()).spawn(lead).is_err() {
            // The closure is gone, and with it the connection.
            self.state().hellos -= 1;
        }
    }

    /// Leads a handshake; what was agreed on, the bytes that came behind it, and the socket.
    fn lead(&self, mut stream: Stream, client: &Client) -> Option<(Terms, Vec<u8>, OwnedFd)> {
        let end = Instant::now() + HELLO_LIMIT;
        let mut shake = Handshake::new();
        let mut buf = [0; CHUNK];
        let (mut at, mut have) = (0, 0);
        loop {
            let step = shake.take(&buf[at..have]);
            let (n, step) = step.map_err(|fault| client.note_fault(&fault)).ok()?;
            at += n;
            match step {
                Step::More => {
                    stream.set_limit(end.checked_duration_since(Instant::now())?).ok()?;
                    (at, have) = (0, stream.read(&mut buf).ok().filter(|n| *n > 0)?);
                }
                Step::Send => stream.send_before(end, &shake.output())?,
                Step::Find(name) => shake.found(self.find(&name)),
                Step::List => match self.list() {
                    Ok(list) => shake.listed(Ok(&list)),
                    Err(e) => shake.listed(Err(e)),
                },
                Step::Start(terms) => return Some((terms, buf[at..have].to_vec(), stream.for_engine().ok()?)),
                Step::End => return None,
            }
        }
    }

    fn move_to_engine(&self, terms: Terms, rest: Vec<u8>, fd: OwnedFd, client: Client) {
        let Some(pools) = self.pools.upgrade() else { return };
        let Some(running) = pools.running(pool_part(&terms.export.name)) else { return };
        let serve = move |rt: &rt::Rt| super::conn::serve(rt.clone(), fd, terms, rest, client);
        // It runs alone from now on.
        drop(running.thread.call(serve));
    }

    /// The export of that name, as clients are told of it.
    fn find(&self, name: &str) -> Result<Export> {
        let name = if name.is_empty() { self.default_name()? } else { name.to_string() };
        let served = match &self.exports {
            Exports::All => true,
            Exports::These(names) => names.contains(&name),
        };
        if !served {
            return Err(Error::not_found(format!("'{name}' is not served here: ask for the list of exports")));
        }
        Ok(export_of(self.info(&name)?, self.read_only))
    }

    /// What is known of a volume.
    pub(super) fn info(&self, name: &str) -> Result<VolumeInfo> {
        let ends = || Error::new(ErrorKind::Interrupted, "the daemon ends");
        let running = self.pools.upgrade().ok_or_else(ends)?.running(pool_part(name));
        let missing = || Error::not_found(format!("cannot open '{name}': dataset does not exist"));
        let name = name.to_string();
        running.ok_or_else(missing)?.thread.with_pool(move |e| async move { e.volume_info(&name).await })
    }

    /// The names of all exports.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        if let Exports::These(names) = &self.exports {
            return Ok(names.clone());
        }
        let mut all = Vec::new();
        for running in self.pools.upgrade().map(|p| p.all_running()).unwrap_or_default() {
            all.extend(running.thread.with_pool(|e| async move {
                Ok(e.shown_volumes().await.iter().map(|ds| ds.name()).collect::<Vec<_>>())
            })?);
        }
        Ok(all)
    }

    fn list(&self) -> Result<Vec<Listed>> {
        Ok(self.names()?.into_iter().map(|name| Listed { name, description: String::new() }).collect())
    }

    /// The export that the empty name stands for: the only one.
    fn default_name(&self) -> Result<String> {
        match &self.names()?[..] {
            [one] => Ok(one.clone()),
            more => Err(Error::not_found(format!("there are {} exports here: ask for one by its name", more.len()))),
        }
    }

    /// The clients that use a volume, once they are none or have had that time to leave: one that
    /// has just hung up is not there to a person, and still is to the engine.
    pub(super) fn clients_after(&self, limit: Duration) -> u64 {
        let waited = self.changed.wait_timeout_while(self.state(), limit, |s| s.clients > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.clients
    }

    /// Ends all connections, and waits until they have ended; false if some have not in that time.
    pub(super) fn end_all(&self, limit: Duration) -> bool {
        let state = self.state();
        state.sockets.values().for_each(Stream::end);
        let waited = self.changed.wait_timeout_while(state, limit, |s| !s.sockets.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.sockets.is_empty()
    }
}

/// What clients are told of a volume. Any range can be read and written; whole blocks need no
/// read-modify-write.
fn export_of(info: VolumeInfo, read_only: bool) -> Export {
    Export {
        block_min: 1,
        block_preferred: info.block_size.clamp(PREFERRED_MIN, PAYLOAD_MAX),
        block_max: PAYLOAD_MAX,
        read_only: read_only || info.read_only,
        flush: true,
        fua: true,
        trim: true,
        write_zeroes: true,
        fast_zero: true,
        cache: true,
        multi_conn: true,
        block_status: true,
        ..Export::new(info.name, info.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(block_size: u32, read_only: bool) -> VolumeInfo {
        let name = "tank/vol".to_string();
        VolumeInfo { name, object: 7, size: 1 << 30, block_size, read_only, referenced: 0, created: 0 }
    }

    #[test]
    fn every_volume_makes_an_export() {
        for (block, preferred) in [(512, 512), (16 << 10, 16 << 10), (16 << 20, 16 << 20)] {
            for (volume, server) in [(false, false), (true, false), (false, true)] {
                let export = export_of(info(block, volume), server);
                export.check().unwrap();
                assert_eq!((export.block_preferred, export.read_only), (preferred, volume || server));
            }
        }
    }

    #[test]
    fn connections_beyond_the_limit_are_closed() {
        let shared = Shared::new(Weak::new(), Exports::These(vec!["tank/vol".into()]), false);
        let mut ours = Vec::new();
        for _ in 0..=HELLOS_MAX.min(shared.connections_max) {
            let (a, b) = UnixStream::pair().unwrap();
            shared.take(Stream::Unix(b));
            ours.push(a);
        }
        // The last one reads its end, the others the greeting.
        let mut buf = [0; 18];
        assert_eq!(ours.pop().unwrap().read(&mut buf).unwrap(), 0);
        for mut one in ours.drain(..) {
            one.read_exact(&mut buf).unwrap();
            assert!(buf.starts_with(b"NBDMAGICIHAVEOPT"));
        }
        assert!(shared.end_all(Duration::from_secs(60)));
        let state = shared.state();
        assert_eq!((state.hellos, state.clients, state.faults), (0, 0, 0));
    }

    #[test]
    fn a_client_that_makes_no_sense_is_counted() {
        let shared = Shared::new(Weak::new(), Exports::All, false);
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(&[0xff; 64]).unwrap();
        shared.take(Stream::Unix(b));
        let mut all = Vec::new();
        // What the server has not read makes the end an error.
        let _ = a.read_to_end(&mut all);
        assert!(shared.end_all(Duration::from_secs(60)));
        assert_eq!((all.len(), shared.state().faults), (18, 1));
        assert!(shared.state().last_fault.as_ref().unwrap().contains("unknown flags"));
    }
}
