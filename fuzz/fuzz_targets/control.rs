//! Requests on the control socket from hostile bytes: the frame, the JSON, the access check, and
//! words of command lines that requests carry.
#![no_main]

use daemon::proto::{PoolCreate, REQUEST_MAX, Reply, Request, is_public, receive, send};
use libfuzzer_sys::fuzz_target;
use weir_fuzz::{after, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let names = vec!["tank".to_string(), "dozer".to_string()];
    let requests = [
        Request::Info,
        Request::Stop { force: true },
        Request::Pools { names: names.clone() },
        Request::PoolIo { names },
        Request::PoolDestroy { pool: "tank".into(), force: false },
        Request::PoolCreate(PoolCreate { name: "tank".into(), size: Some(1 << 30), ..PoolCreate::default() }),
        Request::PoolHistory { pool: "tank".into() },
        Request::PoolCheckpoint { pool: "tank".into(), discard: false, wait: true },
        Request::Logged { command: "zpool sync".into(), request: Box::new(Request::Info) },
    ];
    let framed = |r: &Request| {
        let mut out = Vec::new();
        send(&mut out, r).expect("a vector takes everything");
        out
    };
    let mut out: Vec<Vec<u8>> = requests.iter().map(|r| after(&[0], &framed(r))).collect();
    out.extend(requests.iter().map(|r| after(&[1], &framed(r)[4..])));
    out
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&what, data)) = input.split_first() else { return };
    let request = match what % 3 {
        0 => {
            let mut from = data;
            receive::<Request>(&mut from, REQUEST_MAX).ok().flatten()
        }
        1 => serde_json::from_slice::<Request>(data).ok(),
        _ => {
            let mut from = data;
            let _ = receive::<Reply>(&mut from, REQUEST_MAX);
            None
        }
    };
    let Some(request) = request else { return };
    let mut wire = Vec::new();
    send(&mut wire, &request).expect("a vector takes everything");
    let again = receive::<Request>(&mut wire.as_slice(), REQUEST_MAX * 8).expect("what we wrote");
    assert_eq!(again.as_ref(), Some(&request));
    // The access check on the first word of a message agrees with the parsed request.
    let body = if what % 3 == 0 { &data[4..] } else { data };
    assert!(!is_public(body) || is_public(&wire[4..]), "{request:?}");
});
