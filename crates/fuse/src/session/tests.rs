//! A session against a socket in place of the device.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use bdev::Bytes;
use host::{Engine, EngineConfig};
use rt::sync::Notify;
use rt::trace::{Event, FsOp, Groups, OpKind};

use super::*;
use crate::handler::{Attr, Caller, Entry, WriteHow};
use crate::proto::opcode;
use crate::wire::Put;

/// Has one name; a lookup of `slow` waits for the lookup of another name.
struct Fs {
    other: Notify,
    looked: Cell<bool>,
    written: Rc<Cell<u64>>,
}

impl Handler for Fs {
    fn traced(&self, node: u64) -> Option<(u64, u64)> {
        (node != 99).then_some((7, node))
    }
    async fn lookup(&self, _: Caller, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        match name {
            b"slow" => {
                while !self.looked.get() {
                    self.other.notified().await;
                }
            }
            _ => {
                self.looked.set(true);
                self.other.notify_all();
            }
        }
        Ok(Entry { node: parent + 1, ..Entry::default() })
    }
    async fn getattr(&self, node: u64, _: Option<u64>) -> Result<Attr, Errno> {
        Ok(Attr { ino: node, ..Attr::default() })
    }
    async fn read(&self, _: u64, _: u64, offset: u64, size: u32, _: bool) -> Result<Vec<Bytes>, Errno> {
        // Small slices: of a large read more than one system call takes.
        let bytes = Bytes::copy_from(&(0..512).map(|i| i as u8).collect::<Vec<u8>>());
        let (mut out, mut at, end) = (Vec::new(), offset, offset.saturating_add(size.into()));
        while at < end {
            let (from, n) = ((at % 256) as usize, (end - at).min(100));
            out.push(bytes.slice(from..from + n as usize));
            at += n;
        }
        Ok(out)
    }
    async fn write(&self, _: Caller, _: u64, _: u64, offset: u64, data: Vec<Bytes>, _: WriteHow) -> Result<u32, Errno> {
        let mut n = 0;
        for b in data {
            assert!(b.iter().enumerate().all(|(i, &v)| v == (offset + u64::from(n) + i as u64) as u8));
            n += b.len() as u32;
        }
        self.written.set(self.written.get() + u64::from(n));
        Ok(n)
    }
}

fn request(opcode: u32, unique: u64, node: u64, args: &[u8]) -> Vec<u8> {
    let mut r = Vec::new();
    r.u32((IN_HEADER + args.len()) as u32);
    r.u32(opcode);
    r.u64(unique);
    r.u64(node);
    r.zeros(16);
    r.raw(args);
    r
}

fn init_args() -> Vec<u8> {
    let mut args = Vec::new();
    for v in [7, 45, 131_072, 0xffff_ffff, 0xffff] {
        args.u32(v);
    }
    args.zeros(44);
    args
}

/// The kernel's side of a session: messages of a socket have ends, as requests have.
struct Kernel(UnixDatagram);

impl Kernel {
    fn send(&self, message: &[u8]) {
        self.0.send(message).expect("send");
    }
    /// The next reply: its request, its error, its body.
    fn reply(&self) -> (u64, i32, Vec<u8>) {
        let mut buf = vec![0; 200_000];
        let n = self.0.recv(&mut buf).expect("a reply");
        assert_eq!(u32::from_ne_bytes(buf[..4].try_into().expect("four")) as usize, n);
        let error = i32::from_ne_bytes(buf[4..8].try_into().expect("four"));
        let unique = u64::from_ne_bytes(buf[8..16].try_into().expect("eight"));
        (unique, error, buf[16..n].to_vec())
    }
    fn ask(&self, opcode: u32, unique: u64, args: &[u8]) -> (i32, Vec<u8>) {
        self.send(&request(opcode, unique, 1, args));
        let (answered, error, body) = self.reply();
        assert_eq!(answered, unique);
        (error, body)
    }
}

/// Runs `kernel` on a thread against a session; its counters and bytes written then.
fn with_session(kernel: impl FnOnce(Kernel) + Send + 'static) -> (SessionStats, u64) {
    with_listener(Groups(0), kernel).0
}

/// The same, with the operations that a listener of these groups gets.
fn with_listener(groups: Groups, kernel: impl FnOnce(Kernel) + Send + 'static) -> ((SessionStats, u64), Vec<FsOp>) {
    with_idle(IDLE_AFTER, groups, kernel)
}

/// The same for a session that is cool after this time.
fn with_idle(
    idle_after: Nanos,
    groups: Groups,
    kernel: impl FnOnce(Kernel) + Send + 'static,
) -> ((SessionStats, u64), Vec<FsOp>) {
    let engine = Engine::new(EngineConfig::default()).expect("an engine");
    let rt = engine.rt();
    let seen: Rc<RefCell<Vec<FsOp>>> = Rc::default();
    let ops = seen.clone();
    let _listening = rt.tracer().listen(groups, move |_, event| {
        if let Event::Op(op) = *event {
            ops.borrow_mut().push(op);
        }
    });
    let (ours, theirs) = UnixDatagram::pair().expect("pair");
    ours.set_nonblocking(true).expect("fcntl");
    let written = Rc::new(Cell::new(0));
    let fs = Fs { other: Notify::new(), looked: Cell::new(false), written: written.clone() };
    let fd = Rc::new(OwnedFd::from(ours));
    let core = Session::start_with(&rt, fd, fs, false, false, idle_after).expect("a session");
    engine.block_on(host::blocking(move || kernel(Kernel(theirs)))).expect("the kernel does not panic");
    assert!(!core.is_over());
    ((core.stats(), written.get()), seen.take())
}

#[test]
fn operations_are_traced_for_those_who_listen() {
    let talk = |k: Kernel| {
        assert_eq!(k.ask(opcode::INIT, 1, &init_args()).0, 0);
        let mut named = request(opcode::LOOKUP, 2, 5, b"quick\0");
        // The thread, behind node, user and group.
        named[32..36].copy_from_slice(&77u32.to_ne_bytes());
        k.send(&named);
        assert_eq!(k.reply().1, 0);
        let mut args = Vec::new();
        args.u64(0);
        args.u64(300);
        args.u32(4);
        args.zeros(20);
        assert_eq!(k.ask(opcode::READ, 3, &args).0, 0);
        args.extend((0..4).map(|i| (300 + i) as u8));
        assert_eq!(k.ask(opcode::WRITE, 4, &args).0, 0);
        assert_eq!(k.ask(opcode::FSYNC, 5, &[0; 16]).0, -libc::ENOSYS);
        k.send(&request(opcode::GETATTR, 6, 99, &[0; 16]));
        assert_eq!(k.reply().1, 0);
    };
    let (_, ops) = with_listener(Groups::OP, talk);
    let seen: Vec<_> = ops.iter().map(|o| (o.kind, o.client, o.object, o.target, o.offset, o.len, o.ok)).collect();
    let want = [
        (OpKind::Lookup, 77, 5, 6, 0, 0, true),
        (OpKind::Read, 0, 1, 0, 300, 4, true),
        (OpKind::Write, 0, 1, 0, 300, 4, true),
        (OpKind::Fsync, 0, 1, 0, 0, 0, false),
    ];
    assert_eq!(seen, want);
    assert!(ops.iter().all(|o| o.dataset == 7 && !o.sync));
    assert!(with_listener(Groups::IO, talk).1.is_empty(), "listeners of other groups");
}

#[test]
fn requests_are_answered_side_by_side() {
    let (stats, written) = with_session(|k| {
        assert_eq!(k.ask(opcode::GETATTR, 1, &[0; 16]).0, -libc::EIO, "before the beginning");
        let (error, body) = k.ask(opcode::INIT, 2, &init_args());
        assert_eq!((error, body.len()), (0, 64));
        assert_eq!(k.ask(opcode::INIT, 3, &init_args()).0, -libc::EINVAL, "twice");
        // Two that wait, and one that makes them go on.
        for unique in [4, 5] {
            k.send(&request(opcode::LOOKUP, unique, 1, b"slow\0"));
        }
        k.send(&request(opcode::FORGET, 6, 1, &[0; 8]));
        assert_eq!(k.ask(opcode::GETATTR, 7, &[0; 16]).1[16..24], 1u64.to_ne_bytes());
        k.send(&request(opcode::LOOKUP, 8, 9, b"quick\0"));
        let mut answered: Vec<_> = (0..3).map(|_| k.reply()).map(|(u, e, body)| (u, e, body[0])).collect();
        answered.sort_unstable();
        assert_eq!(answered, [(4, 0, 2), (5, 0, 2), (8, 0, 10)]);
        // Data, in both directions.
        for size in [0usize, 1, 4096, 70_000, 131_072] {
            let mut args = Vec::new();
            args.u64(0);
            args.u64(77);
            args.u32(size as u32);
            args.zeros(20);
            let (error, body) = k.ask(opcode::READ, 10, &args);
            assert_eq!(error, 0);
            let want: Vec<u8> = (0..size).map(|i| (77 + i) as u8).collect();
            assert!(body == want);
            args.extend(&want);
            let (error, body) = k.ask(opcode::WRITE, 11, &args);
            assert_eq!((error, &body[..4]), (0, &(size as u32).to_ne_bytes()[..]));
            // A size that differs from the data sent.
            args.pop();
            assert_eq!(k.ask(opcode::WRITE, 12, &args).0, -libc::EINVAL);
        }
    });
    assert_eq!(written, 1 + 4096 + 70_000 + 131_072);
    assert_eq!((stats.waited, stats.refused), (2, 5));
}

#[test]
fn nonsense_is_answered_once() {
    let (stats, _) = with_session(|k| {
        k.send(b"short");
        let mut wrong = request(opcode::GETATTR, 1, 1, &[0; 16]);
        wrong[0] += 1;
        k.send(&wrong);
        assert_eq!(k.reply(), (1, -libc::EINVAL, vec![]));
        assert_eq!(k.ask(opcode::INIT, 2, &init_args()).0, 0);
        let mut z = 5u64;
        let mut next = || {
            z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            z >> 33
        };
        for unique in 3..3000 {
            let op = (next() % 56) as u32;
            let fill = next();
            let args: Vec<u8> = (0..next() % 130).map(|_| if fill & 1 == 0 { next() as u8 } else { 0 }).collect();
            let mut message = request(op, unique, next(), &args);
            if fill & 6 == 0 {
                // Extensions that may be longer than everything.
                message[36] = next() as u8 & 0x1f;
            }
            if matches!(op, opcode::FORGET | opcode::BATCH_FORGET) || op == opcode::WRITE && args.len() > 40 {
                continue;
            }
            k.send(&message);
            assert_eq!(k.reply().0, unique);
        }
        assert_eq!(k.ask(opcode::GETATTR, 3000, &[0; 16]).0, 0);
    });
    assert!(stats.refused > 100);
}

/// A session whose leader takes its read back all the time: each request is answered once.
#[test]
fn cool_sessions_lose_nothing() {
    let ((stats, written), _) = with_idle(Nanos::from_us(20), Groups(0), |k| {
        assert_eq!(k.ask(opcode::INIT, 1, &init_args()).0, 0);
        let mut write = Vec::new();
        write.u64(0);
        write.u64(0);
        write.u32(100_000);
        write.zeros(20);
        write.extend((0..100_000).map(|i| i as u8));
        for n in 0..2000 {
            let unique = 2 + 10 * n;
            // Some that wait, and what makes them go on, without a look at the answers.
            let burst = n % 4;
            (0..burst).for_each(|i| k.send(&request(opcode::LOOKUP, unique + i, 1, b"slow\0")));
            k.send(&request(opcode::LOOKUP, unique + burst, 1, b"quick\0"));
            let mut answered: Vec<u64> = (0..=burst).map(|_| k.reply().0).collect();
            answered.sort_unstable();
            assert_eq!(answered, (unique..=unique + burst).collect::<Vec<_>>());
            if n % 50 == 0 {
                assert_eq!(k.ask(opcode::WRITE, unique + 9, &write).0, 0);
            }
        }
    });
    assert_eq!(written, 40 * 100_000);
    assert_eq!(stats.requests, 1 + (0..2000).map(|n| 1 + n % 4).sum::<u64>() + 40);
}

/// A session without requests waits without buffers, and has some again for the next request.
#[test]
fn idle_sessions_become_cool_again_and_again() {
    let engine = Engine::new(EngineConfig::default()).expect("an engine");
    let rt = engine.rt();
    let (ours, theirs) = UnixDatagram::pair().expect("pair");
    ours.set_nonblocking(true).expect("fcntl");
    let fs = Fs { other: Notify::new(), looked: Cell::new(false), written: Rc::default() };
    let fd = Rc::new(OwnedFd::from(ours));
    let core = Session::start_with(&rt, fd, fs, false, false, Nanos::from_ms(1)).expect("a session");
    let kernel = Rc::new(Kernel(theirs));
    for unique in 1..4 {
        let message = match unique {
            1 => request(opcode::INIT, 1, 1, &init_args()),
            _ => request(opcode::GETATTR, unique, 1, &[0; 16]),
        };
        kernel.send(&message);
        let socket = kernel.0.try_clone().expect("a socket");
        let answered = engine.block_on(host::blocking(move || Kernel(socket).reply().0)).expect("no panic");
        assert_eq!(answered, unique);
        assert!(!core.is_cool.get() || core.stats().requests == unique);
        engine.block_on(async {
            while !core.is_cool.get() {
                rt.sleep(Nanos::from_ms(1)).await;
            }
        });
    }
}
