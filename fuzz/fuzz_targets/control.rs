//! Requests on the control socket from hostile bytes: the name that decides who may ask, the
//! arguments, words of command lines that requests carry, and the frame of replies.
#![no_main]

use admin::request::{
    AnyRequest, Call, Info, PoolCheckpoint, PoolCreate, PoolDestroy, PoolHistory, PoolIo, PoolSync, Pools, Stop,
};
use daemon::socket::proto::{REPLY_MAX, Reply, receive};
use libfuzzer_sys::fuzz_target;
use weir_fuzz::{after, seeds};

/// The body of a request's message.
fn body(request: &dyn AnyRequest, command: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    let call = request.call(command).expect("what was parsed can be written");
    call.write(&mut out).expect("a vector takes everything");
    out.split_off(4)
}

fn make_seeds() -> Vec<Vec<u8>> {
    let names = vec!["tank".to_string(), "dozer".to_string()];
    let requests: [(Box<dyn AnyRequest>, Option<&str>); 9] = [
        (Box::new(Info), None),
        (Box::new(Stop { force: true }), None),
        (Box::new(Pools { names: names.clone() }), None),
        (Box::new(PoolIo { names: names.clone() }), None),
        (Box::new(PoolDestroy { pool: "tank".into(), force: false }), Some("zpool destroy tank")),
        (
            Box::new(PoolCreate { name: "tank".into(), size: Some(1 << 30), ..PoolCreate::default() }),
            Some("zpool create --size 1G tank \"a b\""),
        ),
        (Box::new(PoolHistory { pool: "tank".into() }), None),
        (
            Box::new(PoolCheckpoint { pool: "tank".into(), discard: false, wait: true }),
            Some("zpool checkpoint -w tank"),
        ),
        (Box::new(PoolSync { names, force: false }), Some("zpool sync")),
    ];
    let mut out: Vec<Vec<u8>> = requests.iter().map(|(r, command)| after(&[0], &body(&**r, *command))).collect();
    out.push(after(&[1], b"\x04\0\0\0null"));
    out
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&what, data)) = input.split_first() else { return };
    if what % 2 == 1 {
        let mut from = data;
        let _ = receive::<Reply>(&mut from, REPLY_MAX);
        return;
    }
    let Ok((request, command)) = Call::parse(data) else { return };
    let wire = body(&*request, command.as_deref());
    let (again, said) = Call::parse(&wire).expect("what we wrote");
    assert_eq!(said, command);
    assert_eq!(body(&*again, said.as_deref()), wire);
    // What the name of a message promises holds for what it turns out to ask.
    assert_eq!(Call::is_public(data), Call::is_public(&wire), "{request:?}");
});
