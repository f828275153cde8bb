//! Volumes over NBD: the daemon's servers against a small client of our own and against those that
//! the machine has. A client that it lacks is named in the output; Debian has them in `libnbd-bin`,
//! `python3-libnbd`, `qemu-utils` and `nbdkit`.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::world::World;
use common::{Outcome, outcome_of};

const MIB: u64 = 1 << 20;
/// Far above normal: a client that waits longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// A pool with a file system, a volume of 64 MiB and a snapshot of it.
fn world(tag: &str) -> World {
    let w = World::without_mounts(tag);
    w.ok("zpool create -O mountpoint=none --size 512M tank a.img");
    w.ok("zfs create tank/dir");
    w.ok("zfs create -V 64M tank/vol");
    w
}

/// The socket of the daemon's server.
fn socket(w: &World) -> String {
    w.path("run/nbd.sock")
}

fn uri(w: &World, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket(w))
}

/// Whether a program is there.
fn have(program: &str, package: &str) -> bool {
    let found = ["/usr/bin", "/usr/sbin"].iter().any(|dir| std::path::Path::new(dir).join(program).exists());
    if !found {
        eprintln!("NOT RUN: {program} is not installed ({package})");
    }
    found
}

/// Runs a client. The packages' own python comes first.
fn client(w: &World, program: &str, args: &[&str]) -> Outcome {
    let mut c = w.command(program);
    c.env("PATH", format!("/usr/bin:/bin:{}", std::env::var("PATH").unwrap_or_default()));
    outcome_of(c.args(args).stdin(Stdio::null()).output().unwrap())
}

/// Runs a client that must succeed: all that it said.
fn good(w: &World, program: &str, args: &[&str]) -> String {
    let o = client(w, program, args);
    assert_eq!(o.code, 0, "{program} {args:?}: {}{}", o.out, o.err);
    o.out + &o.err
}

/// Runs lines of Python with `h` connected to each export.
fn python(w: &World, uris: &[String], script: &str) -> String {
    let begin = "import nbd\ndef to(u):\n  h = nbd.NBD()\n  h.add_meta_context('base:allocation')\n  h.connect_uri(u)\n  return h\n";
    let connect: String = uris.iter().enumerate().map(|(n, u)| format!("h{n} = to('{u}')\n")).collect();
    good(w, "python3", &["-c", &format!("{begin}{connect}{script}")])
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &code.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn request(kind: u16, cookie: u64, offset: u64, length: u32, payload: &[u8]) -> Vec<u8> {
    let head = [&0x2560_9513u32.to_be_bytes()[..], &0u16.to_be_bytes(), &kind.to_be_bytes()].concat();
    [
        head,
        cookie.to_be_bytes().to_vec(),
        offset.to_be_bytes().to_vec(),
        length.to_be_bytes().to_vec(),
        payload.to_vec(),
    ]
    .concat()
}

/// What a client sends to choose an export.
fn choose(export: &str) -> Vec<u8> {
    let name = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes(), &0u16.to_be_bytes()].concat();
    [&3u32.to_be_bytes()[..], &option(7, &name)].concat()
}

/// A client with simple replies.
struct Plain<S>(S);

impl Plain<UnixStream> {
    fn new(w: &World, export: &str) -> Plain<UnixStream> {
        let socket = UnixStream::connect(socket(w)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Plain(socket).begin(export)
    }
}

impl<S: Read + Write> Plain<S> {
    fn begin(mut self, export: &str) -> Plain<S> {
        self.0.write_all(&choose(export)).unwrap();
        let mut greeting = [0; 18];
        self.0.read_exact(&mut greeting).unwrap();
        loop {
            let mut head = [0; 20];
            self.0.read_exact(&mut head).unwrap();
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut data = vec![0; number(16) as usize];
            self.0.read_exact(&mut data).unwrap();
            match number(12) {
                1 => return self,
                3 => {}
                other => panic!("{export}: {other:#x} {}", String::from_utf8_lossy(&data)),
            }
        }
    }
    /// The cookie and error of a reply; a read's has data behind it.
    fn reply(&mut self) -> (u64, u32) {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        (u64::from_be_bytes(head[8..].try_into().unwrap()), u32::from_be_bytes(head[4..8].try_into().unwrap()))
    }
    fn write(&mut self, offset: u64, data: &[u8]) {
        self.0.write_all(&request(WRITE, 1, offset, data.len() as u32, data)).unwrap();
        assert_eq!(self.reply(), (1, 0));
    }
    fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        self.0.write_all(&request(READ, 2, offset, length, &[])).unwrap();
        assert_eq!(self.reply(), (2, 0));
        let mut data = vec![0; length as usize];
        self.0.read_exact(&mut data).unwrap();
        data
    }
    fn flush(&mut self) {
        self.0.write_all(&request(FLUSH, 3, 0, 0, &[])).unwrap();
        assert_eq!(self.reply(), (3, 0));
    }
}

/// Deterministic noise.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn servers_start_and_stop() {
    let w = world("nbd-servers");
    let at = format!("unix:{}", socket(&w));
    assert_eq!(w.ok("nbd list"), "no volume is served\n");
    w.fails("nbd start tank/none", &["dataset does not exist"]);
    w.fails("nbd start tank/dir", &["'tank/dir' is no volume"]);
    w.fails("nbd start -l 0.0.0.0:0 tank/vol", &["loopback addresses only"]);
    w.fails("nbd start -l nonsense tank/vol", &["unix:PATH or 127.0.0.1:PORT"]);
    for wrong in ["nbd start", "nbd start -a tank/vol", "nbd nonsense", "nbd list x"] {
        assert_eq!(w.say(wrong).code, 2, "{wrong}");
    }
    w.ok("zfs snapshot tank/vol@s");
    assert_eq!(w.ok("nbd start tank/vol tank/vol@s"), format!("{}\n{}\n", uri(&w, "tank/vol"), uri(&w, "tank/vol@s")));
    w.fails("nbd start tank/vol", &["serves already", "nbd stop"]);
    assert_eq!(w.ok("nbd list -H"), format!("{at}\trw\t0\t0\ttank/vol,tank/vol@s\n"));
    // A port that the kernel chooses, all volumes, nothing to be written.
    let port = w.ok("nbd start -r -l 127.0.0.1:0 -a");
    let port = port.trim().strip_prefix("nbd://").unwrap().trim_end_matches('/').to_string();
    let mut one = Plain(TcpStream::connect(&port).unwrap()).begin("tank/vol");
    assert_eq!(one.read(0, 4096), [0; 4096]);
    one.0.write_all(&request(WRITE, 9, 0, 512, &[1; 512])).unwrap();
    assert_eq!(one.reply(), (9, 1), "not permitted");
    w.fails(&format!("nbd stop {port}"), &["has clients (1)", "nbd stop -f"]);
    assert_eq!(w.ok("nbd list -H").lines().next().unwrap(), format!("{port}\tro\t1\t0\tall"));
    w.ok(&format!("nbd stop -f {port}"));
    let mut rest = Vec::new();
    one.0.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty() && TcpStream::connect(&port).is_err(), "it has ended");
    w.fails("nbd stop 127.0.0.1:1", &["nothing is served at '127.0.0.1:1'"]);
    w.ok("nbd stop unix:run/nbd.sock");
    assert_eq!(w.ok("nbd list"), "no volume is served\n");
    assert!(!std::path::Path::new(&socket(&w)).exists());
}

#[test]
fn what_was_flushed_survives_the_daemon() {
    let w = world("nbd-flush");
    w.ok("nbd start tank/vol");
    let (mut a, mut b) = (Plain::new(&w, "tank/vol"), Plain::new(&w, "tank/vol"));
    let mut rng = Rng(1);
    let data = rng.bytes(300_000);
    a.write(12_345, &data);
    // The flush of one connection covers the other's writes.
    b.flush();
    assert!(b.read(12_345, 300_000) == data);
    w.kill_daemon();
    w.ok("nbd start tank/vol");
    assert!(Plain::new(&w, "tank/vol").read(12_345, 300_000) == data);
    w.ok("nbd stop -f");
    w.ok("zpool scrub -w tank");
    assert!(w.ok("zpool status tank").contains("No known data errors"));
}

#[test]
fn many_requests_at_once_are_each_answered() {
    let w = world("nbd-pipeline");
    w.ok("nbd start tank/vol");
    let mut one = Plain::new(&w, "tank/vol");
    let mut rng = Rng(2);
    // Of all sizes, at any place: more than may be under way, and more bytes than they may hold.
    let mut expected = vec![0u8; 16 << 20];
    let mut batch = Vec::new();
    for cookie in 0..400u64 {
        let len = 1 + rng.below(if cookie % 10 == 0 { 1 << 20 } else { 9000 });
        // Each in a place of its own, since they may be carried out in any order.
        let at = cookie as usize * 40_000;
        let data = rng.bytes(len.min(40_000));
        expected[at..at + data.len()].copy_from_slice(&data);
        batch.extend(request(WRITE, cookie, at as u64, data.len() as u32, &data));
    }
    let mut reader = one.0.try_clone().unwrap();
    let sender = std::thread::spawn(move || reader.write_all(&batch).map(|()| drop(reader)));
    let mut seen: Vec<u64> =
        (0..400).map(|_| one.reply()).map(|(cookie, e)| (e == 0).then_some(cookie).unwrap()).collect();
    sender.join().unwrap().unwrap();
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..400));
    // 32 reads of 16 MiB: their answers come whole, whatever their order.
    let all: Vec<u8> = (0..32).flat_map(|c| request(READ, c, 0, 16 << 20, &[])).collect();
    one.0.write_all(&all).unwrap();
    for _ in 0..32 {
        assert_eq!(one.reply().1, 0);
        let mut data = vec![0; 16 << 20];
        one.0.read_exact(&mut data).unwrap();
        assert!(data == expected);
    }
}

#[test]
fn a_client_that_does_not_read_stops_itself_only() {
    let w = world("nbd-slow");
    w.ok("nbd start tank/vol");
    let mut slow = Plain::new(&w, "tank/vol");
    let all: Vec<u8> = (0..1000).flat_map(|c| request(READ, c, 0, 1 << 20, &[])).collect();
    slow.0.write_all(&all).unwrap();
    let mut other = Plain::new(&w, "tank/vol");
    for n in 0..50u64 {
        other.write(n * MIB, &[n as u8 + 1; 4096]);
        assert_eq!(other.read(n * MIB, 4096), [n as u8 + 1; 4096]);
    }
    other.flush();
    // It begins to read: all of its answers come.
    let mut data = vec![0; 1 << 20];
    for _ in 0..1000 {
        assert_eq!(slow.reply().1, 0);
        slow.0.read_exact(&mut data).unwrap();
    }
    let peak = w.ok("daemon status");
    let peak = peak.lines().next().unwrap().rsplit(' ').next().unwrap();
    assert!(!peak.ends_with('G') || peak.starts_with("1."), "peak memory {peak}");
}

#[test]
fn a_pool_with_clients_is_busy() {
    let w = world("nbd-busy");
    w.ok("nbd start tank/vol");
    let mut one = Plain::new(&w, "tank/vol");
    one.write(0, &[7; 65_536]);
    for (command, force) in [("zpool export tank", "zpool export -f"), ("zfs destroy tank/vol", "-f")] {
        w.fails(command, &["busy", "tank/vol", "NBD", force]);
    }
    assert_eq!(one.read(0, 512), [7; 512], "nothing has changed");
    w.fails("daemon stop", &["busy", "daemon stop -f"]);
    w.ok("zpool export -f tank");
    let mut rest = Vec::new();
    one.0.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "the connection has ended");
    w.ok("zpool import -d . tank");
    let mut one = Plain::new(&w, "tank/vol");
    assert_eq!(one.read(0, 512), [7; 512]);
    // A client that leaves makes nothing busy.
    drop(one);
    w.ok("zpool export tank");
    // And the server answers that there is no such volume.
    let mut again = UnixStream::connect(socket(&w)).unwrap();
    again.write_all(&choose("tank/vol")).unwrap();
    let mut answer = [0; 38];
    again.read_exact(&mut answer).unwrap();
    assert_eq!(answer[30..34], 0x8000_0006u32.to_be_bytes());
}

#[test]
fn killed_clients_leave_nothing() {
    if !have("python3", "python3") || !std::path::Path::new("/usr/lib/python3/dist-packages/nbd.py").exists() {
        return eprintln!("NOT RUN: python3-libnbd is not installed");
    }
    let w = world("nbd-killed");
    w.ok("nbd start tank/vol");
    let script = format!(
        "import nbd\nh = nbd.NBD()\nh.connect_uri('{}')\nprint('up', flush=True)\nwhile True:\n  h.pwrite(bytearray(1 << 20), 0)\n",
        uri(&w, "tank/vol")
    );
    for _ in 0..5 {
        let mut child = Command::new("/usr/bin/python3").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut up = [0; 3];
        child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    w.ok("zpool export tank");
}

/// A session of sound parts.
fn session(rng: &mut Rng) -> Vec<u8> {
    let mut out = 3u32.to_be_bytes().to_vec();
    for _ in 0..rng.below(4) {
        let code = [3, 5, 6, 8, 9, 10, 11][rng.below(7)];
        let data = if matches!(code, 6 | 9 | 10) { b"\0\0\0\x08tank/vol\0\0\0\0".to_vec() } else { Vec::new() };
        out.extend(option(code, &data));
    }
    out.extend(option(7, b"\0\0\0\x08tank/vol\0\0"));
    for cookie in 0..rng.below(12) as u64 {
        let kind = rng.below(9) as u16;
        let (at, len) = (512 * rng.below(200_000) as u64, 512 * (1 + rng.below(64)) as u32);
        let (at, len) = if kind == FLUSH { (0, 0) } else { (at, len) };
        let payload = if kind == WRITE { rng.bytes(len as usize) } else { Vec::new() };
        out.extend(request(kind, cookie, at, len, &payload));
    }
    out
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len());
        match rng.below(5) {
            0 => bytes.truncate(at.max(1)),
            1 => bytes[at] = rng.next() as u8,
            2 => bytes[at] ^= 1 << rng.below(8),
            3 => bytes.insert(at, rng.next() as u8),
            _ => {
                let end = (at + 4).min(bytes.len());
                bytes[at..end].fill([0, 0xff, 0x7f][rng.below(3)]);
            }
        }
    }
}

/// Whatever comes, the connection ends, and the next client is served. `WEIR_NBD_SESSIONS=N` runs
/// more of them than the test command does; each has some six requests.
#[test]
fn damaged_sessions_harm_nobody() {
    let w = world("nbd-damaged");
    w.ok("nbd start tank/vol");
    let mut watcher = Plain::new(&w, "tank/vol");
    let sessions = std::env::var("WEIR_NBD_SESSIONS").map_or(3000, |n| n.parse().unwrap());
    let (mut requests, mut sent_bytes) = (0u64, 0u64);
    for seed in 0..sessions {
        let mut rng = Rng(seed);
        let mut bytes = session(&mut rng);
        requests += bytes.windows(4).filter(|w| *w == 0x2560_9513u32.to_be_bytes()).count() as u64;
        damage(&mut rng, &mut bytes);
        sent_bytes += bytes.len() as u64;
        let mut socket = UnixStream::connect(socket(&w)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut sender = socket.try_clone().unwrap();
        // The server may close early.
        let sent = std::thread::spawn(move || {
            let _ = sender.write_all(&bytes);
            let _ = sender.shutdown(std::net::Shutdown::Write);
        });
        let mut answers = Vec::new();
        if let Err(e) = socket.read_to_end(&mut answers) {
            assert_ne!(e.kind(), std::io::ErrorKind::WouldBlock, "seed {seed} hangs");
        }
        sent.join().unwrap();
        if seed % 100 == 0 {
            assert_eq!(watcher.read(0, 4096).len(), 4096, "seed {seed}");
        }
    }
    let listed = w.ok("nbd list -H");
    let faults: u64 = listed.split('\t').nth(3).unwrap().parse().unwrap();
    assert!(faults > sessions / 30, "{listed}");
    drop(watcher);
    let peak = w.ok("daemon status");
    let peak = peak.lines().next().unwrap().rsplit(' ').next().unwrap();
    assert!(!peak.ends_with('G') || peak.starts_with("1."), "peak memory {peak}");
    println!("{sessions} sessions, {requests} requests, {sent_bytes} bytes, {faults} faults, peak memory {peak}");
    w.ok("zpool scrub -w tank");
    assert!(w.ok("zpool status tank").contains("No known data errors"));
    w.ok("zpool export tank");
}

#[test]
fn libnbd_finds_what_it_expects() {
    if !have("nbdinfo", "libnbd-bin") || !have("nbdcopy", "libnbd-bin") {
        return;
    }
    let w = world("nbd-libnbd");
    w.ok("zfs create -V 128k -o volblocksize=4k tank/small");
    w.ok("nbd start -a");
    let said = good(&w, "nbdinfo", &["--json", &uri(&w, "tank/vol")]);
    for part in [
        "newstyle-fixed",
        "\"export-name\": \"tank/vol\"",
        "\"base:allocation\"",
        "\"export-size\": 67108864",
        "\"block_size_minimum\": 1",
        "\"block_size_preferred\": 16384",
        "\"block_size_maximum\": 33554432",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for what in ["cache", "df", "fast-zero", "flush", "fua", "multi-conn", "structured-reply", "trim", "zero"] {
        good(&w, "nbdinfo", &["--can", what, &uri(&w, "tank/vol")]);
    }
    let said = good(&w, "nbdinfo", &["--list", &uri(&w, "")]);
    assert!(said.contains("export=\"tank/vol\"") && said.contains("export=\"tank/small\""), "{said}");
    let said = client(&w, "nbdinfo", &[&uri(&w, "tank/none")]);
    // Newer clients show the server's words.
    let why = ["dataset does not exist", "No such file or directory"];
    assert!(said.code != 0 && why.iter().any(|w| said.err.contains(w)), "{}", said.err);
    // An image there and back, over several connections, and its map.
    let mut rng = Rng(3);
    let mut image = vec![0; 64 << 20];
    for _ in 0..20 {
        let (at, n) = (rng.below(63 << 20), rng.below(1 << 20));
        let data = rng.bytes(n);
        image[at..at + n].copy_from_slice(&data);
    }
    fs::write(w.path("there"), &image).unwrap();
    good(&w, "nbdcopy", &["there", &uri(&w, "tank/vol")]);
    good(&w, "nbdcopy", &["--connections=4", "--requests=32", &uri(&w, "tank/vol"), "back"]);
    assert!(fs::read(w.path("back")).unwrap() == image);
    w.ok("zpool sync");
    let map = good(&w, "nbdinfo", &["--map", &uri(&w, "tank/vol")]);
    let rows: Vec<Vec<u64>> =
        map.lines().map(|l| l.split_whitespace().take(3).map(|n| n.parse().unwrap()).collect()).collect();
    assert!(rows.len() > 3 && rows.iter().map(|r| r[1]).sum::<u64>() == 64 * MIB, "{map}");
    for row in &rows {
        let (from, len) = (row[0] as usize, row[1] as usize);
        let zero = image[from..from + len].iter().all(|b| *b == 0);
        assert!(row[2] == 0 || zero, "{from} {len} is no hole: {map}");
    }
    // A snapshot keeps its content, and refuses writes.
    w.ok("zfs snapshot tank/vol@s");
    good(&w, "nbdcopy", &["--destination-is-zero", "/dev/null", &uri(&w, "tank/small")]);
    good(&w, "nbdinfo", &["--is", "read-only", &uri(&w, "tank/vol@s")]);
    good(&w, "nbdcopy", &[&uri(&w, "tank/vol@s"), "snap"]);
    assert!(fs::read(w.path("snap")).unwrap() == image);
}

#[test]
fn libnbd_in_python() {
    if !std::path::Path::new("/usr/lib/python3/dist-packages/nbd.py").exists() {
        return eprintln!("NOT RUN: python3-libnbd is not installed");
    }
    let w = world("nbd-python");
    w.ok("nbd start tank/vol");
    let u = uri(&w, "tank/vol");
    let script = "
M = 1 << 20
assert h0.get_size() == 64 * M and h0.can_multi_conn() and h0.can_fast_zero()
h0.pwrite(b'a' * 3 * M, 1000)
assert h1.pread(3 * M, 1000) == b'a' * 3 * M, 'written'
h0.pwrite(b'b' * 4096, 4096, nbd.CMD_FLAG_FUA)
h0.zero(M, M)
h0.zero(100, 2 * M + 50, nbd.CMD_FLAG_NO_HOLE)
h0.trim(16384, 65536)
h0.zero(32768, 131072, nbd.CMD_FLAG_FAST_ZERO)
try:
  h0.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
  assert False, 'zeros that take space are not fast'
except nbd.Error as e:
  assert e.errnum == 95, e
h0.cache(M, 0)
h0.flush()
d = bytearray(b'a' * 3 * M)
d[4096 - 1000:8192 - 1000] = b'b' * 4096
d[M - 1000:2 * M - 1000] = bytes(M)
d[2 * M + 50 - 1000:2 * M + 150 - 1000] = bytes(100)
d[65536 - 1000:65536 - 1000 + 16384] = bytes(16384)
d[131072 - 1000:131072 - 1000 + 32768] = bytes(32768)
assert h1.pread(3 * M, 1000) == bytes(d), 'zeroed'
for bad in [lambda: h0.pread(1, 64 * M), lambda: h0.pwrite(b'x', 64 * M)]:
  h0.set_strict_mode(0)
  try:
    bad()
    assert False, 'beyond the end'
  except nbd.Error as e:
    assert e.errnum in (22, 28), e
# Many at once, on two connections.
bufs = [nbd.Buffer.from_bytearray(bytearray([n + 1]) * 65536) for n in range(64)]
cookies = [(h, h.aio_pwrite(b, n * 65536 + 32 * M)) for n, b in enumerate(bufs) for h in [[h0, h1][n % 2]]]
for h, c in cookies:
  while not h.aio_command_completed(c):
    h.poll(-1)
h1.flush()
for n in range(64):
  assert h0.pread(65536, n * 65536 + 32 * M) == bytes([n + 1]) * 65536, n
extents = []
h0.block_status(64 * M, 0, lambda c, o, e, err: extents.extend(e))
assert sum(extents[::2]) <= 64 * M and len(extents) >= 2, extents
h0.shutdown()
h1.shutdown()
print('done')
";
    assert_eq!(python(&w, &[u.clone(), u], script).trim(), "done");
    w.ok("zpool export tank");
}

#[test]
fn qemu_uses_a_volume() {
    if !have("qemu-img", "qemu-utils") || !have("qemu-io", "qemu-utils") {
        return;
    }
    let w = world("nbd-qemu");
    w.ok("nbd start tank/vol");
    let u = uri(&w, "tank/vol");
    let commands = [
        "write -P 0xab 0 1M",
        "write -f -P 0xcd 1000 3000",
        "read -P 0xcd 1000 3000",
        "read -P 0xab 4000 1000k",
        "write -z 64k 64k",
        "read -P 0 64k 64k",
        "write -z -u 128k 64k",
        "read -P 0 128k 64k",
        "discard 256k 64k",
        "read -P 0 256k 64k",
        "aio_write -P 0x11 2M 1M",
        "aio_write -P 0x22 3M 1M",
        "aio_flush",
        "flush",
        "read -P 0x11 2M 1M",
        "read -P 0x22 3M 1M",
    ];
    let words: Vec<&str> = commands.iter().flat_map(|c| ["-c", c]).collect();
    let said = good(&w, "qemu-io", &[&["-f", "raw", "-d", "unmap"][..], &words, &[&u]].concat());
    assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
    fs::write(w.path("image"), Rng(4).bytes(64 << 20)).unwrap();
    good(&w, "qemu-img", &["convert", "-n", "-m", "8", "-W", "-f", "raw", "-O", "raw", "image", &u]);
    good(&w, "qemu-img", &["compare", "-f", "raw", "-F", "raw", "image", &u]);
    good(&w, "qemu-img", &["create", "-f", "qcow2", &u, "32M"]);
    good(&w, "qemu-img", &["check", "-f", "qcow2", &u]);
    good(&w, "qemu-img", &["bench", "-f", "raw", "-t", "none", "-w", "-c", "2000", "-d", "32", &u]);
    if have("nbdkit", "nbdkit") {
        let proxied = format!("uri={u}");
        let said =
            good(&w, "nbdkit", &["-U", "-", "nbd", &proxied, "--run", "nbdinfo --size $uri && nbdcopy $uri - | wc -c"]);
        assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["67108864", "67108864"]);
    }
    w.ok("zpool export tank");
}
