//! Random sessions of the naive client: options in any order, then requests, whose effects are
//! compared with an array of bytes.

use nbd::Export;

use crate::client::{self, CACHE, DISC, FLUSH, Link, READ, STATUS, TRIM, WRITE, ZEROES};
use crate::rng::Rng;
use crate::server::{Exports, Server, disk, full};

const SIZE: usize = 64 << 10;
const SESSIONS: u64 = 400;
const UNKNOWN: u32 = 0x8000_0006;
const INVALID: u32 = 0x8000_0003;
const UNSUPPORTED: u32 = 0x8000_0001;
const POLICY: u32 = 0x8000_0002;

/// A default export with random features, and others.
fn exports(rng: &mut Rng) -> Exports {
    let mut first = full("tank/a", SIZE);
    let e = &mut first.0;
    e.block_min = rng.pick(&[1, 1, 512, 4096]);
    e.read_only = rng.one_in(6);
    e.rotational = rng.one_in(2);
    for feature in
        [&mut e.flush, &mut e.fua, &mut e.trim, &mut e.write_zeroes, &mut e.fast_zero, &mut e.cache, &mut e.multi_conn]
    {
        *feature = !rng.one_in(4);
    }
    // Something to read, also where nothing can be written.
    for _ in 0..rng.below(5) {
        let at = rng.below(SIZE - 8192);
        let data = {
            let n = 1 + rng.below(8192);
            rng.bytes(n)
        };
        first.1.lock().unwrap().write(at as u64, &data);
    }
    let plain = (Export::new("tank/plain", 4096), disk(4096));
    vec![first, plain, full("tank/c", 8192)]
}

/// The same exports with disks of their own.
fn copy(exports: &Exports) -> Exports {
    let again = |(e, d): &(Export, _)| {
        let d: &std::sync::Arc<std::sync::Mutex<crate::disk::Disk>> = d;
        (e.clone(), std::sync::Arc::new(std::sync::Mutex::new(d.lock().unwrap().clone())))
    };
    exports.iter().map(again).collect()
}

/// What was agreed on, as the client sees it.
struct Agreed {
    structured: bool,
    context: Option<u32>,
    flags: u16,
}

/// Options in random order; `None`: the client aborted.
fn negotiate(link: &mut Link, exports: &Exports, rng: &mut Rng) -> Option<Agreed> {
    assert_eq!(link.bytes(16), b"NBDMAGICIHAVEOPT");
    assert_eq!(link.u16(), 3);
    let flags = rng.pick(&[3u32, 3, 3, 1, 2, 0]);
    link.send(&flags.to_be_bytes());
    let mut agreed = Agreed { structured: false, context: None, flags: 0 };
    let rounds = if flags & 1 == 1 { rng.below(9) } else { 0 };
    for _ in 0..rounds {
        one_option(link, exports, rng, &mut agreed);
    }
    let name = rng.pick(&["", "tank/a"]);
    if flags & 1 == 1 && rng.one_in(20) {
        assert_eq!(link.ask(2, b"bye"), [(1, Vec::new())]);
        return None;
    }
    let go = flags & 1 == 1 && !rng.one_in(4);
    let size = if go {
        let kinds = rng.pick(&[&[][..], &[3], &[1, 2, 3], &[77]]);
        let answers = link.ask(7, &client::info(name, kinds));
        let (last, infos) = answers.split_last().unwrap();
        assert_eq!(*last, (1, Vec::new()));
        let find = |kind: u16| {
            let all: Vec<&Vec<u8>> = infos
                .iter()
                .map(|(t, d)| (*t == 3).then_some(d).unwrap())
                .filter(|d| d[..2] == kind.to_be_bytes())
                .collect();
            assert!(all.len() <= 1);
            all.first().map(|d| d[2..].to_vec())
        };
        assert_eq!(find(1), kinds.contains(&1).then(|| b"tank/a".to_vec()));
        assert_eq!(find(2), kinds.contains(&2).then(|| b"the disk tank/a".to_vec()));
        let block = [exports[0].0.block_min, 4096, 32 << 20].map(u32::to_be_bytes).concat();
        assert_eq!(find(3), Some(block));
        let export = find(0).unwrap();
        agreed.flags = u16::from_be_bytes(export[8..].try_into().unwrap());
        u64::from_be_bytes(export[..8].try_into().unwrap())
    } else {
        link.send(&client::option(1, name.as_bytes()));
        let size = link.u64();
        agreed.flags = link.u16();
        if flags & 2 == 0 {
            assert_eq!(link.bytes(124), [0; 124]);
        }
        size
    };
    assert_eq!((size, link.left()), (SIZE as u64, 0));
    Some(agreed)
}

fn one_option(link: &mut Link, exports: &Exports, rng: &mut Rng, agreed: &mut Agreed) {
    let good = rng.pick(&["", "tank/a"]);
    let kinds = |answers: &[(u32, Vec<u8>)]| answers.iter().map(|a| a.0).collect::<Vec<_>>();
    match rng.below(11) {
        0 => {
            let answers = link.ask(3, &[]);
            let names =
                exports.iter().map(|(e, _)| [client::text(&e.name), e.description.as_bytes().to_vec()].concat());
            let want: Vec<_> = names.map(|data| (2, data)).chain([(1, Vec::new())]).collect();
            assert_eq!(answers, want);
        }
        1 => assert_eq!(kinds(&link.ask(6, &client::info(good, &[]))), [3, 3, 1]),
        2 => {
            let code = rng.pick(&[6, 7]);
            assert_eq!(kinds(&link.ask(code, &client::info("tank/none", &[1]))), [UNKNOWN]);
        }
        3 | 4 => {
            assert_eq!(link.ask(8, &[]), [(1, Vec::new())]);
            agreed.structured = true;
        }
        5 => {
            let answers = link.ask(9, &client::contexts(good, rng.pick(&[&[][..], &["base:"], &["base:allocation"]])));
            assert_eq!(kinds(&answers), if agreed.structured { vec![4, 1] } else { vec![INVALID] });
        }
        6 | 7 => {
            let (name, queries): (&str, &[&str]) = rng.pick(&[
                (good, &["base:allocation"][..]),
                (good, &["x:y", "base:allocation"]),
                ("tank/c", &["base:allocation"]),
                ("tank/plain", &["base:allocation"]),
                ("tank/none", &["base:allocation"]),
                (good, &["base:"]),
                (good, &[]),
            ]);
            let answers = link.ask(10, &client::contexts(name, queries));
            agreed.context = None;
            if answers.len() == 2 {
                assert_eq!((answers[0].0, &answers[0].1[4..]), (4, &b"base:allocation"[..]));
                // Those of another export end with the choice of this one.
                let id = u32::from_be_bytes(answers[0].1[..4].try_into().unwrap());
                agreed.context = (name == good).then_some(id);
                assert!(agreed.structured && queries.contains(&"base:allocation"));
            }
        }
        8 => assert_eq!(kinds(&link.ask(5, &[])), [POLICY]),
        9 => assert_eq!(kinds(&link.ask(11, &[])), [UNSUPPORTED]),
        _ => {
            let data = {
                let n = rng.below(200);
                rng.bytes(n)
            };
            assert_eq!(kinds(&link.ask(1000, &data)), [UNSUPPORTED]);
        }
    }
}

/// A request, what it should give, and what it should do.
struct Planned {
    kind: u16,
    flags: u16,
    offset: usize,
    length: usize,
    payload: Vec<u8>,
    error: u32,
}

/// A request; most are valid.
fn plan(rng: &mut Rng, export: &Export, agreed: &Agreed) -> Planned {
    let (min, has) = (export.block_min as usize, |bit: u16| agreed.flags & bit != 0);
    let blocks = SIZE / min;
    let first = rng.below(blocks);
    let longest = (blocks - first).min(if rng.one_in(8) { blocks } else { 1 + 12_000 / min });
    let (mut offset, mut length) = (first * min, (1 + rng.below(longest)) * min);
    let mut kinds = vec![READ, READ];
    if !has(1 << 1) {
        kinds.extend([WRITE, WRITE]);
    }
    for (bit, kind) in [(1 << 2, FLUSH), (1 << 5, TRIM), (1 << 6, ZEROES), (1 << 10, CACHE)] {
        if has(bit) {
            kinds.push(kind);
        }
    }
    if agreed.context.is_some() {
        kinds.extend([STATUS, STATUS]);
    }
    let mut kind = rng.pick(&kinds);
    let mut flags = 0;
    for (wanted, flag) in [
        (has(1 << 3), 1),
        (kind == ZEROES, 2),
        (kind == READ && has(1 << 7), 4),
        (kind == STATUS, 8),
        (kind == ZEROES && has(1 << 11), 16),
    ] {
        if wanted && rng.one_in(3) {
            flags |= flag;
        }
    }
    // The server of this test finds zeros that stay allocated slow.
    let mut error = if flags & 18 == 18 { 95 } else { 0 };
    if kind == FLUSH {
        (offset, length) = (0, 0);
    } else if rng.one_in(12) {
        let beyond = if kind == WRITE || kind == ZEROES { 28 } else { 22 };
        (offset, length, error) = match rng.below(5) {
            0 => (offset, 0, 22),
            1 => (SIZE, min, beyond),
            2 => (SIZE - min, 2 * min, beyond),
            3 if min > 1 => (offset + 1, length, 22),
            4 if min > 1 => (offset, length - 1, 22),
            _ => (SIZE - 1, SIZE, beyond),
        };
    } else if rng.one_in(30) {
        (flags, error) = (flags | 0x100, 22);
    } else if rng.one_in(30) && has(1 << 1) {
        (kind, flags, error) = (rng.pick(&[WRITE, TRIM, ZEROES]), 0, 1);
    } else if rng.one_in(30) {
        (kind, flags, error) = (rng.pick(&[8, 99]), 0, 22);
    } else if rng.one_in(10) && agreed.context.is_none() {
        (kind, flags, error) = (STATUS, 0, 22);
    }
    let payload = if kind == WRITE { rng.bytes(length) } else { Vec::new() };
    Planned { kind, flags, offset, length, payload, error }
}

/// Does to the model what the request does, and compares the answer with it.
fn check(link: &mut Link, p: &Planned, cookie: u64, agreed: &Agreed, model: &mut [u8]) {
    let range = p.offset..p.offset.saturating_add(p.length).min(SIZE).max(p.offset);
    match p.kind {
        READ => {
            let answer =
                link.read_answer(agreed.structured, p.flags & 4 != 0, cookie, p.offset as u64, p.length as u32);
            let want = if p.error == 0 { Ok(model[range].to_vec()) } else { Err(p.error) };
            assert_eq!(answer, want);
        }
        STATUS if p.error == 0 => {
            let extents = link.status_answer(cookie, agreed.context.unwrap()).unwrap();
            let mut at = p.offset;
            for (n, (length, state)) in extents.iter().enumerate() {
                let end = at + *length as usize;
                assert!(*length > 0 && end <= p.offset + p.length && *state < 4);
                assert!(*state & 2 == 0 || model[at..end].iter().all(|b| *b == 0), "zeros that are none");
                assert!(n == 0 || extents[n - 1].1 != *state, "extents of one state are joined");
                at = end;
            }
            assert!(if p.flags & 8 != 0 { extents.len() == 1 } else { at == p.offset + p.length });
        }
        _ => {
            assert_eq!(link.plain_answer(cookie), p.error, "{} {} {} {}", p.kind, p.flags, p.offset, p.length);
            if p.error == 0 {
                match p.kind {
                    WRITE => model[range].copy_from_slice(&p.payload),
                    // The disk of this test zeros what is trimmed.
                    TRIM | ZEROES => model[range].fill(0),
                    _ => {}
                }
            }
        }
    }
}

fn session(seed: u64) {
    let mut rng = Rng(seed);
    let exports = exports(&mut rng);
    let again = copy(&exports);
    let mut model = exports[0].1.lock().unwrap().bytes.clone();
    let mut link = Link::new(Server::new(&exports), Rng(seed ^ 1));
    if let Some(agreed) = negotiate(&mut link, &exports, &mut rng) {
        assert_eq!(agreed.flags, exports[0].0.flags(agreed.structured));
        let mut cookie = seed << 32;
        for _ in 0..rng.below(12) {
            // Several requests at once.
            let batch: Vec<Planned> = (0..1 + rng.below(5)).map(|_| plan(&mut rng, &exports[0].0, &agreed)).collect();
            let send = |(n, p): (usize, &Planned)| {
                client::request(p.kind, p.flags, cookie + n as u64, p.offset as u64, p.length as u32, &p.payload)
            };
            let bytes: Vec<u8> = batch.iter().enumerate().flat_map(send).collect();
            link.send(&bytes);
            for p in &batch {
                check(&mut link, p, cookie, &agreed, &mut model);
                cookie += 1;
            }
            assert_eq!(link.left(), 0);
        }
        link.send(&client::request(DISC, 0, 0, 0, 0, &[]));
        assert_eq!(link.server().answered as u64, cookie - (seed << 32));
    }
    assert_eq!((link.left(), link.server().over()), (0, Some(&Ok(()))));
    assert!(exports[0].1.lock().unwrap().bytes == model);
    // The same bytes, cut elsewhere, give the same answers.
    let mut other = Link::new(Server::new(&again), Rng(seed ^ 2));
    other.send(&link.sent);
    assert!(other.received == link.received);
    assert!(again[0].1.lock().unwrap().bytes == model);
}

#[test]
fn random_sessions_agree_with_a_model() {
    for seed in 0..SESSIONS {
        if let Err(why) = std::panic::catch_unwind(|| session(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(why);
        }
    }
}
