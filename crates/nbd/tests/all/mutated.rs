//! Damaged sessions: whatever comes, there is an answer or a typed error, no panic, and little
//! memory.

use crate::client::{self, CACHE, DISC, FLUSH, READ, STATUS, TRIM, WRITE, ZEROES};
use crate::rng::Rng;
use crate::server::{Server, full};

const SIZE: usize = 32 << 10;
const SESSIONS: u64 = 100_000;

/// A sound session of random parts.
fn session(rng: &mut Rng) -> Vec<u8> {
    let mut out = rng.pick(&[3u32, 3, 3, 1, 0]).to_be_bytes().to_vec();
    for _ in 0..rng.below(5) {
        let name = rng.pick(&["", "a", "none"]);
        out.extend(match rng.below(6) {
            0 => client::option(3, &[]),
            1 => client::option(6, &client::info(name, &[1, 2, 3])),
            2 => client::option(8, &[]),
            3 => client::option(9, &client::contexts(name, &["base:"])),
            4 => client::option(10, &client::contexts(name, &["base:allocation", "x:y"])),
            _ => client::option(rng.pick(&[5, 11, 12]), &[1, 2, 3][..rng.below(4)]),
        });
    }
    out.extend(match rng.below(4) {
        0 => client::option(1, b"a"),
        _ => client::option(7, &client::info("a", &[3])),
    });
    for cookie in 0..rng.below(8) {
        let kind = rng.pick(&[READ, WRITE, FLUSH, TRIM, CACHE, ZEROES, STATUS]);
        let (offset, length) = (rng.below(SIZE / 512) as u64 * 512, 512 * (1 + rng.below(4)) as u32);
        let (offset, length) = if kind == FLUSH { (0, 0) } else { (offset, length) };
        let payload = if kind == WRITE { vec![cookie as u8; length as usize] } else { Vec::new() };
        out.extend(client::request(kind, 0, cookie as u64, offset, length, &payload));
    }
    out.extend(client::request(DISC, 0, 9, 0, 0, &[]));
    out
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(3) {
        // The front has the options, which are short beside payloads.
        let end = if rng.one_in(2) { bytes.len() } else { bytes.len().min(120) };
        let at = rng.below(end.max(1)).min(bytes.len());
        match rng.below(7) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.next() as u8),
            2 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            3 if at < bytes.len() => bytes[at] = rng.pick(&[0, 1, 3, 0x7f, 0x80, 0xff]),
            4 if at + 4 <= bytes.len() => {
                let number = rng.pick(&[0u32, 1, 512, 4096, 16 << 10, (16 << 10) + 1, 1 << 20, 32 << 20, u32::MAX]);
                bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
            }
            5 => {
                let n = rng.below(64).min(bytes.len() - at);
                let piece = bytes[at..at + n].to_vec();
                let to = rng.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            _ => {
                let n = rng.below(64).min(bytes.len() - at);
                bytes.drain(at..at + n);
            }
        }
    }
}

/// Runs a session: all that was sent, and how it ended (`None`: it waits for more).
fn run(input: &[u8], rng: &mut Rng) -> (Vec<u8>, Option<String>) {
    let mut server = Server::new(&vec![full("a", SIZE)]);
    let mut out = server.feed(&[]);
    for piece in rng.pieces(input) {
        out.extend(server.feed(piece));
        assert!(server.held() <= input.len(), "no memory for what has not come");
        // An option or a request of at least 16 bytes gives at most the disk and a long message.
        assert!(out.len() <= (input.len() / 16 + 2) * (SIZE + 8192), "answers are bounded");
    }
    let end = server.over().map(|how| match how {
        Ok(()) => "ended".to_string(),
        Err(fault) => fault.to_string(),
    });
    (out, end)
}

#[test]
fn damaged_sessions_end_well() {
    let (mut waits, mut ended, mut faults) = (0, 0, std::collections::BTreeMap::<String, u32>::new());
    for seed in 0..SESSIONS {
        let result = std::panic::catch_unwind(|| {
            let mut rng = Rng(seed);
            let mut input = session(&mut rng);
            damage(&mut rng, &mut input);
            let (out, end) = run(&input, &mut rng);
            if seed % 8 == 0 {
                assert!((out, end.clone()) == run(&input, &mut rng), "the result does not depend on the pieces");
            }
            end
        });
        match result {
            Ok(None) => waits += 1,
            Ok(Some(how)) if how == "ended" => ended += 1,
            Ok(Some(fault)) => *faults.entry(fault.split(' ').take(2).collect::<Vec<_>>().join(" ")).or_default() += 1,
            Err(why) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(why);
            }
        }
    }
    // The damage reaches every stage.
    assert!(waits > 1000 && ended > 1000 && faults.len() >= 5, "{waits} {ended} {faults:?}");
}
