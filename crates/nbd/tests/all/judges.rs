//! Real clients against a small server on a socket. A client that the machine lacks is named in
//! the output and its test passes; Debian has them in `libnbd-bin`, `python3-libnbd`, `qemu-utils`,
//! `nbdkit` and `fio`.

use std::path::Path;
use std::process::Command;

use nbd::{Export, Fault};

use crate::rng::Rng;
use crate::server::{Exports, Listening, disk, full};

const MIB: usize = 1 << 20;

/// Whether a program is there.
fn have(program: &str, package: &str) -> bool {
    let dirs = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/bin", "/usr/local/sbin"];
    let found = dirs.iter().any(|dir| Path::new(dir).join(program).exists());
    if !found {
        eprintln!("NOT RUN: {program} is not installed ({package})");
    }
    found
}

/// A program to run. The packages' own python comes first, since their modules are its.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", format!("/usr/bin:/bin:{}", std::env::var("PATH").unwrap_or_default()));
    command
}

/// Runs a program: whether it succeeded, and all that it said.
fn tried(program: &str, args: &[&str]) -> (bool, String) {
    let out = command(program).args(args).output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Runs a program that must succeed: all that it said.
fn run(program: &str, args: &[&str]) -> String {
    let (good, said) = tried(program, args);
    assert!(good, "{program} {args:?}: {said}");
    said
}

/// A default export with everything, one that is read-only, one with large blocks, a plain one.
fn exports() -> Exports {
    let all = full("tank/all", 16 * MIB);
    let (export, locked) = full("tank/locked", MIB);
    locked.lock().unwrap().write(65_536, &[0x5a; 8192]);
    let locked = (Export { read_only: true, rotational: true, ..export }, locked);
    let (export, blocks) = full("tank/blocks", 4 * MIB);
    let blocks = (Export { block_min: 4096, block_preferred: 16 << 10, block_max: MIB as u32, ..export }, blocks);
    vec![all, locked, blocks, (Export::new("tank/plain", MIB as u64), disk(MIB))]
}

/// An image of data, zeros and holes.
fn image(len: usize) -> Vec<u8> {
    let mut rng = Rng(7);
    let mut image = vec![0; len];
    for _ in 0..12 {
        let at = rng.below(len - 200_000);
        let n = 1 + rng.below(200_000);
        let data = rng.bytes(n);
        image[at..at + n].copy_from_slice(&data);
    }
    image
}

fn no_faults(server: &Listening) {
    assert_eq!(*server.faults.lock().unwrap(), []);
}

#[test]
fn nbdinfo_describes_exports() {
    if !have("nbdinfo", "libnbd-bin") {
        return;
    }
    let exports = exports();
    exports[0].1.lock().unwrap().write(MIB as u64, &[1; 65_536]);
    exports[0].1.lock().unwrap().write(2 * MIB as u64, &[0; 65_536]);
    let server = Listening::new("nbdinfo", &exports);
    let all = server.uri("tank/all");
    assert_eq!(run("nbdinfo", &["--size", &all]).trim(), "16777216");
    let said = run("nbdinfo", &["--json", &all]);
    for part in [
        "newstyle-fixed",
        "\"structured\": true",
        "\"export-name\": \"tank/all\"",
        "\"description\": \"the disk tank/all\"",
        "\"base:allocation\"",
        "\"export-size\": 16777216",
        "\"block_size_minimum\": 1",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for what in ["cache", "df", "fast-zero", "flush", "fua", "multi-conn", "structured-reply", "trim", "zero"] {
        run("nbdinfo", &["--can", what, &all]);
        let denied = !tried("nbdinfo", &["--can", what, &server.uri("tank/plain")]).0;
        assert_eq!(denied, !["df", "structured-reply"].contains(&what), "{what} of a plain export");
    }
    let locked = server.uri("tank/locked");
    run("nbdinfo", &["--is", "read-only", &locked]);
    run("nbdinfo", &["--is", "rotational", &locked]);
    assert!(!tried("nbdinfo", &["--can", "trim", &locked]).0 && !tried("nbdinfo", &["--is", "read-only", &all]).0);
    let said = run("nbdinfo", &["--list", &server.uri("")]);
    for (export, _) in &exports {
        assert!(said.contains(&format!("export=\"{}\"", export.name)), "{said}");
    }
    let map = run("nbdinfo", &["--map", &all]);
    let rows: Vec<Vec<&str>> = map.lines().map(|l| l.split_whitespace().take(3).collect()).collect();
    let want = [
        ["0", "1048576", "3"],
        ["1048576", "65536", "0"],
        ["1114112", "983040", "3"],
        ["2097152", "65536", "2"],
        ["2162688", "14614528", "3"],
    ];
    assert_eq!(rows, want);
    let (good, said) = tried("nbdinfo", &[&server.uri("tank/none")]);
    assert!(!good && said.contains("No such file"), "{said}");
    no_faults(&server);
}

#[test]
fn nbdcopy_copies_both_ways() {
    if !have("nbdcopy", "libnbd-bin") {
        return;
    }
    let exports = exports();
    let server = Listening::new("nbdcopy", &exports);
    let image = image(16 * MIB);
    let (there, back) = (server.file("there"), server.file("back"));
    std::fs::write(&there, &image).unwrap();
    let uri = server.uri("tank/all");
    for (n, args) in
        [&["--flush"][..], &["--synchronous"], &["--allocated", "-S", "0"], &["--connections=4", "-T", "2"]]
            .iter()
            .enumerate()
    {
        // What was there before must go.
        exports[0].1.lock().unwrap().write(n as u64 * 70_000, &vec![9; 5 * MIB]);
        run("nbdcopy", &[*args, &[there.as_str(), &uri]].concat());
        assert!(exports[0].1.lock().unwrap().bytes == image, "{args:?}");
        run("nbdcopy", &[*args, &[uri.as_str(), &back]].concat());
        assert!(std::fs::read(&back).unwrap() == image, "{args:?}");
    }
    run("nbdcopy", &["--no-extents", &uri, &back]);
    assert!(std::fs::read(&back).unwrap() == image);
    let blocks = server.uri("tank/blocks");
    std::fs::write(&there, &image[..4 * MIB]).unwrap();
    run("nbdcopy", &[&there, &blocks]);
    assert!(exports[2].1.lock().unwrap().bytes == image[..4 * MIB]);
    // From one export to another.
    run("nbdcopy", &[&blocks, &uri]);
    assert!(exports[0].1.lock().unwrap().bytes[..4 * MIB] == image[..4 * MIB]);
    assert!(!tried("nbdcopy", &[&there, &server.uri("tank/locked")]).0);
    no_faults(&server);
}

/// Calls of libnbd, sound ones and such as its own checks would hold back.
const SHELL: &str = r#"
import os, errno
h.set_strict_mode(0)
def fails(number, call, *args, **named):
    try:
        call(*args, **named)
    except nbd.Error as e:
        assert e.errnum == number, (e.errno, e.string, args[1:])
    else:
        raise AssertionError(("no error", args[1:]))
def uri(name):
    return "nbd+unix:///%s?socket=%s" % (name, os.environ["SOCK"])
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri("tank/all"))
assert h.get_structured_replies_negotiated() and h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
size = h.get_size()
h.pwrite(b"abc" * 1000, 12345)
assert h.pread(3000, 12345) == b"abc" * 1000
h.pwrite(b"d" * 4096, 65536, nbd.CMD_FLAG_FUA)
h.zero(1024, 66000, nbd.CMD_FLAG_NO_HOLE)
h.zero(512, 65536, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(1024, 66000) == bytes(1024)
fails(errno.ENOTSUP, h.zero, 512, 65536, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
h.trim(65536, 0)
h.cache(65536, 0)
h.flush()
extents = []
def extent(context, offset, entries, err):
    assert context == "base:allocation" and err.value == 0
    extents.append((offset, list(entries)))
h.pwrite(b"x" * 8192, 1 << 20)
h.block_status(4 << 20, 0, extent)
assert len(extents) == 1 and sum(extents[0][1][::2]) == 4 << 20, extents
extents.clear()
h.block_status(1 << 20, 1 << 20, extent, nbd.CMD_FLAG_REQ_ONE)
assert extents == [(1 << 20, [8192, 0])], extents
chunks = []
def chunk(data, offset, status, err):
    chunks.append((offset, len(data), status))
h.pread_structured(3 << 20, 0, chunk)
assert len(chunks) > 1 and sum(c[1] for c in chunks) == 3 << 20
chunks.clear()
h.pread_structured(3 << 20, 0, chunk, nbd.CMD_FLAG_DF)
assert chunks == [(0, 3 << 20, nbd.READ_DATA)], chunks
fails(errno.EINVAL, h.pread, 1, size)
fails(errno.ENOSPC, h.pwrite, b"x" * 600, size - 512)
fails(errno.ENOSPC, h.zero, 1024, size - 512)
fails(errno.EINVAL, h.trim, 1024, size - 512)
fails(errno.EINVAL, h.pread, 512, 0, 1 << 9)
h.shutdown()

h = nbd.NBD(); h.set_strict_mode(0)
h.connect_uri(uri("tank/locked"))
assert h.is_read_only() and h.is_rotational() and not h.can_trim()
assert h.pread(8192, 65536) == b"\x5a" * 8192
fails(errno.EPERM, h.pwrite, b"x" * 512, 0)
fails(errno.EPERM, h.trim, 512, 0)
fails(errno.EPERM, h.zero, 512, 0)
h.shutdown()

h = nbd.NBD(); h.set_strict_mode(0)
h.connect_uri(uri("tank/blocks"))
assert h.get_block_size(nbd.SIZE_MINIMUM) == 4096 and h.get_block_size(nbd.SIZE_MAXIMUM) == 1 << 20
fails(errno.EINVAL, h.pread, 512, 0)
fails(errno.EINVAL, h.pwrite, b"x" * 512, 4096)
fails(errno.EOVERFLOW, h.pread, 2 << 20, 0)
fails(errno.EINVAL, h.pwrite, bytes(2 << 20), 0)
h.pwrite(b"y" * (1 << 20), 0)
assert h.pread(1 << 20, 0) == b"y" * (1 << 20)
h.zero(4 << 20, 0)
assert h.pread(1 << 20, 0) == bytes(1 << 20)
h.shutdown()

# Without structured replies; then as a client of before the fixed newstyle.
for flags, structured in ((nbd.HANDSHAKE_FLAG_MASK, False), (nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE, True), (0, True)):
    h = nbd.NBD(); h.set_strict_mode(0)
    h.set_request_structured_replies(structured)
    h.set_handshake_flags(flags)
    h.connect_uri(uri("tank/all"))
    assert h.get_structured_replies_negotiated() == (structured and flags != 0)
    assert h.get_protocol() == ("newstyle-fixed" if flags else "newstyle")
    assert h.pread(8192, 1 << 20) == b"x" * 8192
    fails(errno.EINVAL, h.pread, 1, size)
    h.pwrite(b"z" * 77, 5)
    assert h.pread(77, 5) == b"z" * 77
    h.shutdown()

# Options one by one.
h = nbd.NBD(); h.set_strict_mode(0)
h.set_opt_mode(True)
h.set_full_info(True)
h.connect_uri(uri("tank/none"))
fails(errno.ENOENT, h.opt_info)
names = []
assert h.opt_list(lambda name, text: names.append((name, text))) == 4
assert names[0] == ("tank/all", "the disk tank/all"), names
h.set_export_name("")
h.opt_info()
assert h.get_canonical_export_name() == "tank/all" and h.get_export_description() == "the disk tank/all"
contexts = []
h.add_meta_context("base:")
h.opt_list_meta_context(lambda name: contexts.append(name))
assert contexts == ["base:allocation"], contexts
h.opt_go()
assert h.pread(77, 5) == b"z" * 77
h.shutdown()
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(uri("tank/all"))
h.opt_abort()

# Many requests under way.
h = nbd.NBD()
h.connect_uri(uri("tank/all"))
bufs = [nbd.Buffer.from_bytearray(bytearray([n] * 5000)) for n in range(64)]
cookies = [h.aio_pwrite(b, n * 5000) for n, b in enumerate(bufs)]
while h.aio_in_flight() > 0:
    h.poll(-1)
assert all(h.aio_command_completed(c) for c in cookies)
assert h.pread(64 * 5000, 0) == b"".join(bytes([n] * 5000) for n in range(64))
h.shutdown()
print("all good")
"#;

#[test]
fn libnbd_agrees_in_python() {
    if !have("nbdsh", "python3-libnbd") {
        return;
    }
    let server = Listening::new("nbdsh", &exports());
    let out = command("nbdsh").args(["-c", SHELL]).env("SOCK", server.file("sock")).output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(out.status.success() && said.contains("all good"), "{said}");
    no_faults(&server);
}

#[test]
fn hopeless_clients_are_cut_off() {
    if !have("nbdsh", "python3-libnbd") {
        return;
    }
    let server = Listening::new("cut-off", &exports());
    let uri = server.uri("tank/all");
    // A payload of more than 32 MiB, and an unknown name in the option without an error answer.
    let shell = format!("h.set_strict_mode(0); h.connect_uri(\"{uri}\"); h.pwrite(bytes(33 << 20), 0)");
    assert!(!tried("nbdsh", &["-c", &shell]).0);
    let uri = server.uri("tank/none");
    let shell = format!("h.set_handshake_flags(0); h.connect_uri(\"{uri}\")");
    assert!(!tried("nbdsh", &["-c", &shell]).0);
    let faults = server.faults.lock().unwrap();
    assert!(matches!(faults[..], [Fault::PayloadTooLong { .. }, Fault::NoExport(_)]), "{faults:?}");
}

#[test]
fn qemu_converts_and_compares() {
    if !have("qemu-img", "qemu-utils") {
        return;
    }
    let exports = exports();
    let server = Listening::new("qemu-img", &exports);
    let image = image(16 * MIB);
    let (raw, qcow) = (server.file("raw"), server.file("qcow2"));
    std::fs::write(&raw, &image).unwrap();
    let uri = server.uri("tank/all");
    let said = run("qemu-img", &["info", &uri]);
    assert!(said.contains("virtual size: 16 MiB"), "{said}");
    exports[0].1.lock().unwrap().write(3, &vec![9; 5 * MIB]);
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &raw, &uri]);
    assert!(exports[0].1.lock().unwrap().bytes == image);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &raw, &uri]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &qcow]);
    run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &qcow, &uri]);
    run("qemu-img", &["convert", "-n", "-W", "-m", "8", "-f", "qcow2", "-O", "raw", &qcow, &uri]);
    assert!(exports[0].1.lock().unwrap().bytes == image);
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(map.contains("\"zero\": true, \"data\": false"), "{map}");
    if have("qemu-nbd", "qemu-utils") {
        let said = run("qemu-nbd", &["--list", "-k", &server.file("sock")]);
        for part in
            ["exports available: 4", "export: 'tank/locked'", "description: the disk tank/blocks", "max block: 1048576"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(said.matches("base:allocation").count(), 3, "{said}");
    }
    // An image format on the export itself.
    run("qemu-img", &["create", "-f", "qcow2", &uri, "8M"]);
    run("qemu-img", &["check", "-f", "qcow2", &uri]);
    run("qemu-img", &["bench", "-f", "raw", "-t", "none", "-w", "-c", "500", "-d", "32", &server.uri("tank/blocks")]);
    no_faults(&server);
}

#[test]
fn qemu_reads_back_what_it_wrote() {
    if !have("qemu-io", "qemu-utils") {
        return;
    }
    let exports = exports();
    let server = Listening::new("qemu-io", &exports);
    let io = |export: &str, commands: &[&str]| {
        let uri = server.uri(export);
        let words: Vec<&str> = commands.iter().flat_map(|c| ["-c", c]).collect();
        // It answers failed commands with a text and an exit code.
        tried("qemu-io", &[&["-f", "raw", "-d", "unmap"][..], &words, &[&uri]].concat())
    };
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
        "flush",
        "aio_write -P 0x11 2M 1M",
        "aio_write -P 0x22 3M 1M",
        "aio_flush",
        "read -P 0x11 2M 1M",
        "read -P 0x22 3M 1M",
        "map",
    ];
    for export in ["tank/all", "tank/blocks"] {
        let (good, said) = io(export, &commands);
        assert!(good && !said.contains("failed") && !said.contains("rror"), "{said}");
    }
    let (good, said) = io("tank/plain", &["write -P 7 0 64k", "write -z 0 4k", "read -P 0 0 4k", "read -P 7 4k 60k"]);
    assert!(good && !said.contains("failed"), "{said}");
    assert!(exports[3].1.lock().unwrap().bytes[4096..65_536].iter().all(|b| *b == 7));
    let (good, said) = io("tank/locked", &["write 0 4k"]);
    assert!(!good && said.contains("ermi"), "{said}");
    no_faults(&server);
}

#[test]
fn nbdkit_passes_it_on() {
    if !have("nbdkit", "nbdkit") || !have("nbdcopy", "libnbd-bin") {
        return;
    }
    let exports = exports();
    let server = Listening::new("nbdkit", &exports);
    let image = image(16 * MIB);
    let (there, back) = (server.file("there"), server.file("back"));
    std::fs::write(&there, &image).unwrap();
    let proxied = format!("uri={}", server.uri("tank/all"));
    let shell = format!("nbdinfo $uri && nbdcopy {there} $uri && nbdcopy $uri {back} && nbdinfo --map $uri");
    let said = run("nbdkit", &["-U", "-", "nbd", &proxied, "--run", &shell]);
    assert!(said.contains("export-size: 16777216"), "{said}");
    assert!(exports[0].1.lock().unwrap().bytes == image && std::fs::read(&back).unwrap() == image);
    no_faults(&server);
}

#[test]
fn fio_verifies_its_writes() {
    if !have("fio", "fio") || !run("fio", &["--enghelp"]).contains("nbd") {
        eprintln!("NOT RUN: fio without its engine for nbd");
        return;
    }
    let server = Listening::new("fio", &exports());
    let uri = format!("--uri={}", server.uri("tank/all"));
    let state = format!("--aux-path={}", server.file(""));
    let args = ["--name=a", "--ioengine=nbd", &uri, "--rw=randrw", "--bsrange=512-128k", "--size=16M", "--iodepth=16"];
    run("fio", &[&args[..], &["--verify=crc32c", "--randrepeat=1", "--fsync=50", &state]].concat());
    no_faults(&server);
}
