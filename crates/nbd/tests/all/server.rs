//! A server without a socket: bytes in, bytes out, disks in memory. And one with a socket, which
//! is little more than a thread around it.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use nbd::{Code, Command, Export, Extents, Fault, Handshake, Intake, Listed, Part, Request, Step, Taken, Terms};

use crate::disk::Disk;

/// Exports and their disks; the first is the default.
pub type Exports = Vec<(Export, Arc<Mutex<Disk>>)>;

pub fn disk(size: usize) -> Arc<Mutex<Disk>> {
    Arc::new(Mutex::new(Disk::new(size)))
}

/// An export with every feature and a disk for it.
pub fn full(name: &str, size: usize) -> (Export, Arc<Mutex<Disk>>) {
    let export = Export {
        description: format!("the disk {name}"),
        flush: true,
        fua: true,
        trim: true,
        write_zeroes: true,
        fast_zero: true,
        cache: true,
        multi_conn: true,
        block_status: true,
        ..Export::new(name, size as u64)
    };
    (export, disk(size))
}

enum Phase {
    Handshake(Box<Handshake>),
    Transmission { terms: Box<Terms>, intake: Intake, disk: Arc<Mutex<Disk>> },
    Over(Result<(), Fault>),
}

/// One connection.
pub struct Server {
    exports: Exports,
    phase: Phase,
    /// A write, and its payload so far.
    write: Option<(Request, Vec<u8>)>,
    /// Requests that were answered.
    pub answered: usize,
}

impl Server {
    pub fn new(exports: &Exports) -> Server {
        let phase = Phase::Handshake(Box::default());
        Server { exports: exports.clone(), phase, write: None, answered: 0 }
    }
    /// How the connection ended, if it did.
    pub fn over(&self) -> Option<&Result<(), Fault>> {
        if let Phase::Over(how) = &self.phase { Some(how) } else { None }
    }
    /// Bytes of the client that are kept.
    pub fn held(&self) -> usize {
        self.write.as_ref().map_or(0, |(_, payload)| payload.len())
    }

    /// Takes bytes of the client and gives those for it. All bytes are taken, unless the connection
    /// ends.
    pub fn feed(&mut self, mut input: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            match &mut self.phase {
                Phase::Over(_) => return out,
                Phase::Handshake(shake) => {
                    let (n, step) = match shake.take(input) {
                        Ok(taken) => taken,
                        Err(fault) => {
                            self.phase = Phase::Over(Err(fault));
                            continue;
                        }
                    };
                    input = &input[n..];
                    match step {
                        Step::More => {
                            assert!(input.is_empty(), "a handshake that wants more has taken all");
                            return out;
                        }
                        Step::Send => out.extend(shake.output()),
                        Step::Find(name) => {
                            let found = self.exports.iter().find(|(e, _)| e.name == name || name.is_empty());
                            let missing =
                                || base::Error::not_found(format!("there is no export {name}: ask for a list"));
                            shake.found(found.map(|(e, _)| e.clone()).ok_or_else(missing));
                        }
                        Step::List => {
                            let listed =
                                |e: &Export| Listed { name: e.name.clone(), description: e.description.clone() };
                            let all: Vec<Listed> = self.exports.iter().map(|(e, _)| listed(e)).collect();
                            shake.listed(Ok(&all));
                        }
                        Step::Start(terms) => {
                            let found = self.exports.iter().find(|(e, _)| e.name == terms.export.name);
                            let disk = found.unwrap().1.clone();
                            self.phase = Phase::Transmission { terms: Box::new(terms), intake: Intake::new(), disk };
                        }
                        Step::End => self.phase = Phase::Over(Ok(())),
                    }
                }
                Phase::Transmission { terms, intake, disk } => {
                    if let Some((request, payload)) = &mut self.write {
                        let n = (request.payload() as usize - payload.len()).min(input.len());
                        payload.extend_from_slice(&input[..n]);
                        input = &input[n..];
                        if payload.len() < request.payload() as usize {
                            return out;
                        }
                        serve(terms, &mut disk.lock().unwrap(), request, payload, &mut out);
                        self.answered += 1;
                        self.write = None;
                    }
                    let taken = intake.take(terms, input);
                    match taken {
                        Err(fault) => self.phase = Phase::Over(Err(fault)),
                        Ok((n, taken)) => {
                            input = &input[n..];
                            match taken {
                                Taken::More => {
                                    assert!(input.is_empty(), "an intake that wants more has taken all");
                                    return out;
                                }
                                Taken::Serve(request) if request.payload() > 0 => {
                                    self.write = Some((request, Vec::new()));
                                }
                                Taken::Serve(request) => {
                                    serve(terms, &mut disk.lock().unwrap(), &request, &[], &mut out);
                                    self.answered += 1;
                                }
                                Taken::Refuse(refusal) => {
                                    out.extend(terms.refuse(&refusal));
                                    self.answered += 1;
                                }
                                Taken::End => self.phase = Phase::Over(Ok(())),
                            }
                        }
                    }
                }
            }
        }
    }
}

fn serve(terms: &Terms, disk: &mut Disk, request: &Request, payload: &[u8], out: &mut Vec<u8>) {
    let cookie = request.cookie;
    match request.command {
        Command::Read { span, whole } => {
            for part in terms.read_answer(cookie, span, whole, &disk.runs(span)) {
                match part {
                    Part::Head(head) => out.extend(head.as_slice()),
                    Part::Data(span) => out.extend(disk.read(span)),
                    Part::Zeros(n) => out.resize(out.len() + n as usize, 0),
                }
            }
            return;
        }
        Command::BlockStatus { span, one } => {
            let mut extents = Extents::new(span, one);
            for (length, state) in disk.states(span) {
                if !extents.push(length, state) {
                    break;
                }
            }
            out.extend(extents.finish(cookie));
            return;
        }
        Command::Write { span, .. } => disk.write(span.offset, payload),
        Command::Trim { span, .. } => disk.zero(span, false),
        // Only holes are fast here.
        Command::WriteZeroes { span, no_hole: true, fast: true, .. } => {
            let at = Some(span.offset);
            out.extend(terms.error(cookie, Code::Unsupported, "zeros that stay allocated are not fast here", at));
            return;
        }
        Command::WriteZeroes { span, no_hole, .. } => disk.zero(span, no_hole),
        Command::Flush | Command::Cache { .. } => {}
    }
    out.extend(terms.done(cookie).as_slice());
}

/// A server on a socket in a folder of its own; both go with it.
pub struct Listening {
    folder: PathBuf,
    stop: Arc<AtomicBool>,
    /// What ended connections early.
    pub faults: Arc<Mutex<Vec<Fault>>>,
}

impl Listening {
    pub fn new(name: &str, exports: &Exports) -> Listening {
        let folder = std::env::temp_dir().join(format!("openweir-nbd-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let listener = UnixListener::bind(folder.join("sock")).unwrap();
        let it = Listening { folder, stop: Arc::default(), faults: Arc::default() };
        let (stop, faults, exports) = (it.stop.clone(), it.faults.clone(), exports.clone());
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (server, faults) = (Server::new(&exports), faults.clone());
                std::thread::spawn(move || serve_socket(server, socket.unwrap(), &faults));
            }
        });
        it
    }
    pub fn file(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_string()
    }
    /// The address of an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.file("sock"))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = UnixStream::connect(self.folder.join("sock"));
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One connection on its thread. Clients may close without a word, which is no error.
fn serve_socket(mut server: Server, mut socket: UnixStream, faults: &Mutex<Vec<Fault>>) {
    let mut buf = vec![0; 256 << 10];
    let mut n = 0;
    loop {
        let out = server.feed(&buf[..n]);
        if socket.write_all(&out).is_err() {
            return;
        }
        if let Some(how) = server.over() {
            if let Err(fault) = how {
                faults.lock().unwrap().push(fault.clone());
            }
            return;
        }
        n = match socket.read(&mut buf) {
            Ok(0) | Err(_) => return,
            Ok(n) => n,
        };
    }
}
