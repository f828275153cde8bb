//! Programs with a host that notes its calls.

use super::*;

#[derive(Default)]
struct Notes(Vec<Call>);

impl Host for Notes {
    fn call(&mut self, call: Call) -> Answer {
        self.0.push(call.clone());
        match call {
            Call::List(_, name) if name == "gone" => Answer::BadArgument("no such dataset 'gone'".into()),
            Call::List(_, name) => {
                Answer::Items(["a", "gone", "b"].map(|n| vec![Value::Text(format!("{name}/{n}"))]).into())
            }
            Call::GetProp { .. } => Answer::Values(vec![Value::Int(7), Value::Nil]),
            Call::SystemProps(_) => Answer::Values(vec![Value::List(vec![Value::Text("used".into())])]),
            Call::Change(_, false) => Answer::Done(16, Some(Value::List(vec![Value::Text("s".into())]))),
            Call::Change(_, true) => Answer::Done(0, None),
            _ => Answer::Values(vec![Value::Bool(true)]),
        }
    }
    fn exists(&mut self, name: &str) -> bool {
        !name.ends_with("gone")
    }
}

const LIMITS: Limits = Limits::USUAL;

fn end(text: &str) -> End {
    run(text, &Value::Nil, LIMITS, &mut Notes::default())
}

fn failure(text: &str) -> String {
    match end(text) {
        End::Failed(why) => why,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn numbers_are_whole_and_wrap() {
    for text in [
        "18446744073709551615 + 1 == -18446744073709551616",
        "7 / 2 == 3 and -7 / 2 == -4 and -7 % 3 == 2",
        "2 ^ 62 == 4611686018427387904 and 2 ^ 64 == 0 and 2 ^ -1 == 0",
        "0x7fffffffffffffff + 1 == 0x8000000000000000",
        "tostring(1234567890123) == '1234567890123'",
        "tonumber('0x') == nil and tonumber('08') == nil and tonumber('010') == 8",
        "(-9223372036854775807 - 1) / -1 == -9223372036854775807 - 1",
        "string.format('%d %x', -1, 255) == '-1 ff'",
        "pcall == nil and load == nil and dofile == nil and print == nil and io == nil and os == nil",
        "EEXIST == 17 and ENOTSUP == 95",
    ] {
        assert_eq!(end(&format!("return {text}")), End::Returned(Some(Value::Bool(true))), "{text}");
    }
    for text in ["1.0", "-1.5", "1e3"] {
        assert!(failure(&format!("return {text}")).contains("malformed number near"), "{text}");
    }
    for (text, why) in [
        ("local a = 0 return 1 / a", "attempt to divide by zero"),
        ("return 1 / 0", "attempt to divide by zero"),
        ("return 1 % 0", "attempt to perform 'n%0'"),
    ] {
        let shown = failure(text);
        assert_eq!(
            shown,
            format!(
                "[string \"channel program\"]:1: {why}\nstack traceback:\n\t[string \"channel program\"]:1: in main chunk"
            )
        );
    }
}

#[test]
fn results_become_values() {
    let table = |items: Vec<(&str, Value)>| Value::Table(items.into_iter().map(|(k, v)| (k.to_string(), v)).collect());
    for (text, want) in [
        ("", None),
        ("return nil", Some(Value::Nil)),
        ("return 'a\\0b'", Some(Value::Text("a".into()))),
        (
            "return {[10]=1, [9]=2, b=true, a={}, [true]=3}",
            Some(table(vec![
                ("9", Value::Int(2)),
                ("10", Value::Int(1)),
                ("a", table(vec![])),
                ("b", Value::Bool(true)),
                ("true", Value::Int(3)),
            ])),
        ),
        ("return ...", Some(Value::Nil)),
    ] {
        assert_eq!(end(text), End::Returned(want), "{text}");
    }
    for (text, why) in [
        ("return 1, 2", "Multiple return values not supported"),
        ("return assert", "Invalid value type 'function' for key 'return'"),
        ("return {[{}]=1}", "Invalid key type 'table' in table"),
        ("return {[true]=1, ['true']=2}", "Collision of key 'true' in table"),
        ("return {0, ['1']=0}", "Collision of key '1' in table"),
        ("local a = {} a.a = a return a", "Maximum table depth (20) exceeded for table"),
    ] {
        assert_eq!(failure(text), why);
    }
    assert!(failure("error({})").starts_with("stack traceback:\n\t[C]: in function 'error'"));
    assert!(failure("setmetatable({}, {__gc = function() end})").contains("finalizers are not supported"));
}

#[test]
fn limits_hold() {
    let forever = run("while true do end", &Value::Nil, Limits { instructions: 1000, ..LIMITS }, &mut Notes::default());
    let End::TimedOut(text, n) = forever else { panic!("{forever:?}") };
    assert!(text.contains("Channel program timed out."), "{text}");
    assert!((1001..=1200).contains(&n), "{n}");
    // A coroutine has no limit of its own, and hides no error.
    let hidden = "while true do coroutine.resume(coroutine.create(function() while true do end end)) end";
    assert!(matches!(end(hidden), End::TimedOut(..)));
    let grows = "local a = {} local i = 0 while true do i = i + 1 a[i] = 'entry ' .. i end";
    assert_eq!(run(grows, &Value::Nil, Limits { memory: 100_000, ..LIMITS }, &mut Notes::default()), End::OutOfMemory);
    assert_eq!(
        run("return 1 .. 2", &Value::Nil, Limits { memory: 1, ..LIMITS }, &mut Notes::default()),
        End::OutOfMemory
    );
    assert_eq!(end("return string.rep('x', 1000000000)"), End::OutOfMemory);
    let large = "local t = {} for i = 1, 5000 do t[i] = ('a'):rep(100) end return t";
    assert!(matches!(end(large), End::Returned(Some(_))));
    // One string of Lua, many of the list.
    let shared = "local t, s = {}, ('a'):rep(1000) for i = 1, 5000 do t[i] = s end return t";
    let small = Limits { memory: 1_000_000, ..LIMITS };
    assert_eq!(run(shared, &Value::Nil, small, &mut Notes::default()), End::TooLarge);
    assert!(LIMITS.within(&Limits::MOST) && Limits::MOST.within(&Limits::MOST));
    for bad in [Limits { memory: 200_000_000, ..LIMITS }, Limits { instructions: 0, ..LIMITS }] {
        assert!(!bad.within(&Limits::MOST), "{bad:?}");
    }
}

#[test]
fn calls_reach_the_host() {
    let mut notes = Notes::default();
    let args = Value::Table(vec![("argv".into(), Value::List(vec![Value::Text("t/f".into())]))]);
    let text = "
        local f = (...).argv[1]
        local names = {}
        for n in zfs.list.children(f) do names[#names + 1] = n end
        assert(#names == 2 and names[1] == 't/f/a' and names[2] == 't/f/b')
        local value, source = zfs.get_prop(f, 'used')
        assert(value == 7 and source == nil)
        local err, details = zfs.check.promote(f)
        assert(err == EBUSY and details[1] == 's')
        assert(zfs.sync.destroy{f .. '@s', defer=true} == 0)
        return zfs.list.system_properties(f)";
    let done = run(text, &args, LIMITS, &mut notes);
    assert_eq!(done, End::Returned(Some(Value::Table(vec![("1".into(), Value::Text("used".into()))]))));
    let destroy = Call::Change(Change::Destroy { name: "t/f@s".into(), defer: true }, true);
    assert_eq!(notes.0[3], destroy);
    for (text, why) in [
        ("zfs.sync.destroy()", "too few arguments: destroy{<filesystem | snapshot(string)>, defer=(boolean)}"),
        ("zfs.sync.destroy('a', 'b')", "too many positional arguments: destroy{"),
        ("zfs.sync.destroy(12)", "arg 1 wrong type (is 'number', expected 'string'): destroy{"),
        ("zfs.sync.destroy{'a', bar=true}", "invalid kwarg 'bar': destroy{"),
        ("zfs.sync.destroy{'a', defer=1}", "kwarg 'defer' wrong type (is 'number', expected 'boolean'): destroy{"),
        ("zfs.sync.destroy{'a', 1}", "too many positional arguments: destroy{"),
        ("zfs.sync.destroy{'a', defer=true}", "'deferred' kwarg only supported for snapshots: a"),
        ("zfs.list.clones('gone')", "bad argument #1 to 'clones' (no such dataset 'gone')"),
    ] {
        assert!(failure(text).starts_with(&format!("[string \"channel program\"]:1: {why}")), "{}", failure(text));
    }
}
