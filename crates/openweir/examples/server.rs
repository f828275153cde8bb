//! A file server without FUSE: a line protocol on a loopback socket.
//!
//! A client sends `LIST path`, `GET path`, `PUT path length` with that many bytes after the line,
//! `DEL path` or `SNAP name`, and gets `OK length` with that many bytes after the line, or
//! `ERR sentence`. Each connection has a thread; all of them share one file system.
//!
//! `cargo run -p openweir --example server -- /tmp/served.img` serves until it is stopped; without
//! an argument it talks to itself and ends.
#![allow(missing_docs)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use openweir::{CreateOptions, Device, Engine, FileKind, FileSystem, ImportOptions, Pool};

/// Bytes that one request may carry.
const PUT_MAX: usize = 64 << 20;

fn answer(fs: &FileSystem, line: &str, body: &mut dyn Read) -> io::Result<Vec<u8>> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    match verb {
        "LIST" => {
            let mut entries = fs.readdir(rest).wait()?;
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            let mut out = Vec::new();
            for e in entries {
                out.extend_from_slice(&e.name);
                out.extend_from_slice(if e.kind == FileKind::Dir { b"/\n" } else { b"\n" });
            }
            Ok(out)
        }
        "GET" => Ok(fs.read(rest).wait()?),
        "PUT" => {
            let (path, len) = rest.rsplit_once(' ').ok_or_else(|| bad("PUT path length"))?;
            let len: usize = len.parse().map_err(|_| bad("a length is a number"))?;
            if len > PUT_MAX {
                return Err(bad("that is too long"));
            }
            let mut data = vec![0; len];
            body.read_exact(&mut data)?;
            if let Some((dir, _)) = path.rsplit_once('/') {
                fs.mkdir_all(dir).wait()?;
            }
            // Atomic: written under a temporary name first.
            let new = format!("{path}.new");
            fs.write(&new, data).wait()?;
            fs.sync_path(&new).wait()?;
            fs.rename(&new, path).wait()?;
            fs.sync_path(path).wait()?;
            Ok(Vec::new())
        }
        "DEL" => Ok(fs.unlink(rest).wait().map(|()| Vec::new())?),
        "SNAP" => {
            let name = format!("{}@{rest}", fs.name());
            Ok(fs.pool().snapshot(&[&name], false).wait().map(|()| Vec::new())?)
        }
        _ => Err(bad("LIST, GET, PUT, DEL or SNAP")),
    }
}

fn serve_one(fs: &FileSystem, stream: TcpStream) -> io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    let mut line = String::new();
    while input.by_ref().take(4096).read_line(&mut line)? > 0 {
        match answer(fs, line.trim_end_matches(['\r', '\n']), &mut input) {
            Ok(body) => {
                writeln!(out, "OK {}", body.len())?;
                out.write_all(&body)?;
            }
            Err(e) => writeln!(out, "ERR {}", e.to_string().replace('\n', " "))?,
        }
        line.clear();
    }
    Ok(())
}

/// Serves until the listener is gone.
fn serve(fs: &FileSystem, listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        let fs = fs.clone();
        std::thread::spawn(move || serve_one(&fs, stream));
    }
}

/// A client, for the example itself.
struct Client(BufReader<TcpStream>);

impl Client {
    fn to(at: SocketAddr) -> io::Result<Client> {
        Ok(Client(BufReader::new(TcpStream::connect(at)?)))
    }
    fn ask(&mut self, line: &str, body: &[u8]) -> io::Result<Vec<u8>> {
        let stream = self.0.get_mut();
        stream.write_all(format!("{line}\n").as_bytes())?;
        stream.write_all(body)?;
        let mut head = String::new();
        self.0.read_line(&mut head)?;
        let head = head.trim_end();
        match head.strip_prefix("OK ").and_then(|n| n.parse::<usize>().ok()) {
            Some(len) => {
                let mut out = vec![0; len];
                self.0.read_exact(&mut out)?;
                Ok(out)
            }
            None => Err(io::Error::other(head.to_string())),
        }
    }
}

/// Serves a pool in memory and talks to it; returns the final listing.
pub fn run() -> io::Result<String> {
    let engine = Engine::start()?;
    let disk = engine.memory_device(128 << 20).wait()?;
    let pool = engine.create_pool("tank", disk, CreateOptions::default()).wait()?;
    let fs = pool.filesystem("tank").wait()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    std::thread::spawn(move || serve(&fs, &listener));

    let mut client = Client::to(at)?;
    client.ask("PUT notes/today.txt 5", b"hello")?;
    client.ask("SNAP before", b"")?;
    client.ask("PUT notes/today.txt 7", b"goodbye")?;
    let mut other = Client::to(at)?;
    assert_eq!(other.ask("GET notes/today.txt", b"")?, b"goodbye");
    other.ask("PUT notes/b 70000", &[7; 70_000])?;
    assert_eq!(client.ask("GET notes/b", b"")?.len(), 70_000);
    assert!(client.ask("GET missing", b"").is_err_and(|e| e.to_string().contains("missing")));
    assert!(client.ask("FROB", b"").is_err());
    client.ask("PUT notes/c 0", b"")?;
    client.ask("DEL notes/c", b"")?;
    let listed = client.ask("LIST notes", b"")?;
    let before = pool.filesystem("tank@before").wait()?;
    assert_eq!(before.read("notes/today.txt").wait()?, b"hello");
    pool.export().wait()?;
    Ok(String::from_utf8_lossy(&listed).into_owned())
}

/// Serves a pool on an image, which is made if it is not there.
fn serve_image(path: &str) -> io::Result<()> {
    let pool = match std::fs::exists(path)? {
        true => Pool::import(vec![Device::path(path)], ImportOptions::default()).wait()?,
        false => Pool::create("served", Device::new_file(path, 1 << 30), CreateOptions::default()).wait()?,
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("serving {} on {}", pool.name(), listener.local_addr()?);
    serve(&pool.filesystem(pool.name()).wait()?, &listener);
    Ok(())
}

#[allow(dead_code)]
fn main() -> io::Result<()> {
    match std::env::args().nth(1) {
        Some(path) => serve_image(&path),
        None => {
            print!("{}", run()?);
            Ok(())
        }
    }
}
