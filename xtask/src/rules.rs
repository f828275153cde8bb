//! Forbidden names in sources: the rules of ARCHITECTURE.md that can be checked by the names in a
//! file.
//!
//! Every rule has a list of exceptions, each with its reason; an exception that no longer matches
//! anything is a breach too. Files of tests and items behind `#[cfg(test)]` are exempt. Clippy
//! checks the rest: `unwrap` outside tests, and borrows of a RefCell held across an await
//! (`await_holding_refcell_ref`), which is why the rules forbid switching that lint off.

use std::collections::BTreeMap;
use std::path::Path;

use crate::layers::ORDER;
use crate::source;

/// Names forbidden in engine crates.
const WORLD: &[&str] = &[
    "std::fs",
    "std::thread",
    "std::net",
    "std::env",
    "std::process",
    "SystemTime",
    "Instant",
    "libc::",
    "rustix::",
    "tokio::time",
    "tokio::spawn",
    "getrandom",
    "raw_os_error",
    "println!",
    "eprintln!",
];
/// Names forbidden in all crates: leftovers, mocks, and types that differ between tests and users.
const ANYWHERE: &[&str] =
    &["todo!(", "unimplemented!(", "dbg!(", "cfg(not(test))", "cfg!(test)", "mockall", "allow(clippy::await_holding"];
/// Crates that may use `unsafe`.
const UNSAFE: &[&str] = &["codec", "bdev", "host", "program"];

/// An exception: file below `crates`, the name allowed, and why.
type Exception = (&'static str, &'static str, &'static str);

/// Statics and thread-locals.
const GLOBALS: &[Exception] = &[
    ("admin/src/engine.rs", "THIS", "what belongs to this pool's thread"),
    ("admin/src/waits.rs", "MINE", "the request that this thread answers"),
    ("arc/src/bugs.rs", "PLANTED", "mistakes on purpose, in builds for ztest only"),
    ("bdev/src/arena.rs", "ARENA", "memory of buffers is the process's, as the allocator's is"),
    ("bdev/src/arena.rs", "SOURCE", "set once at the start: where that memory comes from"),
    ("bdev/src/bytes.rs", "ZERO_PAGES", "zeros that never change, aligned for devices"),
    ("bdev/src/pool.rs", "LISTS", "free lists in front of the arena; a buffer may end on any thread"),
    ("cli/src/main.rs", "ALLOCATOR", "the allocator of the program"),
    ("codec/src/checksum.rs", "LAST", "the last salt with its key schedule: a cache of a pure function"),
    ("codec/src/fletcher.rs", "BEST", "which kernel this processor runs best"),
    ("codec/src/gzip.rs", "DECODER", "state of zlib, used again"),
    ("codec/src/gzip.rs", "ENCODER", "state of zlib, used again"),
    ("codec/src/raidz.rs", "BEST", "which kernel this processor runs best"),
    ("codec/src/raidz.rs", "EXP", "a table"),
    ("codec/src/raidz.rs", "LOG", "a table"),
    ("codec/src/zstandard.rs", "DECODER", "contexts of zstd, used again"),
    ("codec/src/zstandard.rs", "ENCODER", "contexts of zstd, used again"),
    ("dmu/src/bugs.rs", "PLANTED", "mistakes on purpose, in builds for ztest only"),
    ("dsl/src/bugs.rs", "PLANTED", "mistakes on purpose, in builds for ztest only"),
    ("fuse/src/zfs/clone.rs", "SOURCES", "files that one mount of this thread offered, and another takes"),
    ("host/src/engine.rs", "ENGINES", "the loops of this thread, to find one from an `Rt`"),
    ("host/src/tempdir.rs", "NEXT", "numbers for names of folders in tests"),
    ("host/src/usdt.rs", "$semaphore", "tracers write there from outside"),
    ("ondisk/src/feature.rs", "FEATURES", "a table"),
    ("openweir/src/engine.rs", "HERE", "the engine whose thread this is, to refuse calls that would wait for it"),
    ("openweir/src/inside.rs", "ENGINES", "numbers that tell engines apart"),
    ("openweir/src/objects.rs", "BATCHES", "numbers that tell batches apart"),
    ("rt/src/rank.rs", "CURRENT", "the locks that the task being polled holds; a lock knows no world"),
    ("sim/src/devices/image.rs", "ZEROS", "zeros that never change"),
    ("spa/src/bugs.rs", "PLANTED", "mistakes on purpose, in builds for ztest only"),
    ("zdb/src/raidz.rs", "EXP", "a table"),
    ("zdb/src/raidz.rs", "LOG", "a table"),
    ("zil/src/bugs.rs", "PLANTED", "mistakes on purpose, in builds for ztest only"),
    ("zio/src/bugs.rs", "PLANTED", "mistakes on purpose, in builds for ztest only"),
    ("ztest/src/judge.rs", "COUNT", "numbers for names of folders"),
    ("ztest/src/main.rs", "ALLOCATOR", "the allocator of the program"),
    ("ztest/src/sends.rs", "PROGRAM", "compiled once for all threads"),
    ("ztest/src/zdb_run.rs", "LIBRARY", "found once for all threads"),
];
/// Collections in the order of a hash.
const HASHED: &[Exception] = &[("dmu/src/ctx.rs", "HashMap", "looked up by place only, never walked")];
/// Locks of threads in the engine, which has one thread.
const THREAD_LOCKS: &[Exception] = &[
    ("bdev/src/arena.rs", "Mutex", "buffers end on any thread"),
    ("rt/src/handle.rs", "Mutex", "results of CPU jobs, which run on threads in production"),
    ("rt/src/join.rs", "Mutex", "wakers may be called from any thread"),
];
/// Error numbers in the engine.
const ERRNO: &[Exception] = &[("spa/src/zevent.rs", "errno", "events carry OpenZFS's numbers as data")];

/// The exceptions of a rule, and which of them were met.
struct Exceptions(Vec<(Exception, bool)>);

impl Exceptions {
    fn new(list: &[Exception]) -> Exceptions {
        Exceptions(list.iter().map(|e| (*e, false)).collect())
    }
    fn excuse(&mut self, file: &str, name: &str) -> bool {
        let found = self.0.iter_mut().find(|((f, n, _), _)| *f == file && *n == name);
        found.map(|(_, met)| *met = true).is_some()
    }
    fn idle(&self, rule: &str) -> Vec<String> {
        let idle = self.0.iter().filter(|(_, met)| !met);
        idle.map(|((f, n, _), _)| format!("crates/{f}: {n} is excused by the rule on {rule} and is not there"))
            .collect()
    }
}

/// All rules on their way over the sources.
struct Rules {
    globals: Exceptions,
    hashed: Exceptions,
    locks: Exceptions,
    errno: Exceptions,
    /// Lock ranks: number and name, and where each was declared.
    ranks: BTreeMap<String, String>,
    breaches: Vec<String>,
}

impl Rules {
    fn new() -> Rules {
        Rules {
            globals: Exceptions::new(GLOBALS),
            hashed: Exceptions::new(HASHED),
            locks: Exceptions::new(THREAD_LOCKS),
            errno: Exceptions::new(ERRNO),
            ranks: BTreeMap::new(),
            breaches: Vec::new(),
        }
    }
}

/// Every breach in the crates of the workspace, one a line.
pub(crate) fn breaches() -> Vec<String> {
    let mut rules = Rules::new();
    let crates = crate::root().join("crates");
    source::each_file(&crates, &mut |path, text| {
        let name = path.strip_prefix(&crates).unwrap_or(path).to_string_lossy().into_owned();
        rules.file(&name, text);
    });
    let mut all = rules.breaches;
    all.extend(rules.globals.idle("globals"));
    all.extend(rules.hashed.idle("hashing"));
    all.extend(rules.locks.idle("locks of threads"));
    all.extend(rules.errno.idle("error numbers"));
    all
}

impl Rules {
    /// Looks at a file of a crate; `file` is its path below `crates`.
    fn file(&mut self, file: &str, text: &str) {
        for (n, line) in text.lines().enumerate().filter(|(_, line)| cites_behaviour(line)) {
            let cite = "cite OpenZFS's name or a format page";
            self.breaches.push(format!("crates/{file}:{}: {cite}, not {:?}", n + 1, line.trim()));
        }
        let path = Path::new(file);
        let krate = file.split('/').next().unwrap_or_default();
        let engine = ORDER.contains(&krate);
        if source::only_tests(path) || !path.components().any(|c| c.as_os_str() == "src") {
            return;
        }
        let whole = source::code(text);
        let code = source::without_tests(&whole);
        let mut say = |line: usize, what: String| self.breaches.push(format!("crates/{file}:{line}: {what}"));
        for (n, line) in code.lines().enumerate() {
            if engine {
                for name in WORLD.iter().filter(|name| names(line, name)) {
                    say(n + 1, format!("engine code names {name}"));
                }
                for name in ["HashMap", "HashSet"].iter().filter(|name| names(line, name)) {
                    if !self.hashed.excuse(file, name) {
                        say(n + 1, format!("{name}: no order of the engine may depend on hashing"));
                    }
                }
                if is_errno(line) && !self.errno.excuse(file, "errno") {
                    say(n + 1, "error numbers belong to the edges".to_string());
                }
                if line.contains("std::sync::") {
                    for name in ["Mutex", "RwLock", "Condvar"].iter().filter(|name| names(line, name)) {
                        if !self.locks.excuse(file, name) {
                            say(n + 1, format!("the engine has one thread: no std::sync::{name}"));
                        }
                    }
                }
                // Ranks are declared with a number; where a lock is made its rank is a name.
                if let Some(rank) = rank(line, text.lines().nth(n).unwrap_or_default())
                    && let Some(other) = self.ranks.insert(rank.clone(), format!("crates/{file}:{}", n + 1))
                {
                    say(n + 1, format!("the lock rank {rank} is also that of {other}"));
                }
            }
            if !UNSAFE.contains(&krate) && (names(line, "unsafe") || allows_unsafe(line)) {
                say(n + 1, format!("unsafe outside {}", UNSAFE.join(", ")));
            }
            for global in globals(line) {
                if !self.globals.excuse(file, global) {
                    say(
                        n + 1,
                        format!("{global} is a global: pass it, or excuse it with a reason in xtask/src/rules.rs"),
                    );
                }
            }
        }
        for (n, line) in whole.lines().enumerate() {
            for name in ANYWHERE.iter().filter(|name| line.contains(**name)) {
                say(n + 1, format!("names {}", name.trim_end_matches('(')));
            }
        }
        for (n, what) in test_swaps(&whole) {
            say(n, format!("a {what} that only tests have: types are the same in tests"));
        }
    }
}

/// Whether `line` cites a numbered section on behaviour: no such document is in the repository.
fn cites_behaviour(line: &str) -> bool {
    line.split("behaviour ").skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether `line` has `name` as whole words.
fn names(line: &str, name: &str) -> bool {
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(name).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + name.len()..].chars().next());
        let open = !name.ends_with(|c: char| c.is_alphanumeric());
        !word(before) && (open || !word(after))
    })
}

/// Whether a line switches the lint on unsafe code off; forbidding it again is allowed.
fn allows_unsafe(line: &str) -> bool {
    names(line, "unsafe_code") && (names(line, "allow") || names(line, "expect"))
}

/// The names of the statics that a line declares. `'static` is none.
fn globals(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("static ") {
        if line[..at].ends_with(|c: char| c == '\'' || c == '_' || c.is_alphanumeric()) {
            continue;
        }
        let rest = line[at + 7..].trim_start().trim_start_matches("mut ").trim_start_matches("ref ");
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').unwrap_or(rest.len());
        if rest[end..].trim_start().starts_with(':') {
            found.push(&rest[..end]);
        }
    }
    found
}

/// Whether a line names error numbers of the operating system.
fn is_errno(line: &str) -> bool {
    const NUMBERS: &[&str] = &["EIO", "ENOENT", "ENOSPC", "EEXIST", "EACCES", "EPERM", "EINVAL", "ENXIO", "EBUSY"];
    names(line, "errno") || NUMBERS.iter().any(|n| names(line, n))
}

/// The number and the name of a lock rank that a line declares, from its code and its text.
fn rank(code: &str, text: &str) -> Option<String> {
    let at = code.find("Rank(")? + 5;
    let number = code[at..].split(',').next()?.trim();
    let name = text[at..].split('"').nth(1)?;
    number.starts_with(|c: char| c.is_ascii_digit()).then(|| format!("{number} ({name})"))
}

/// Types, imports and statics behind `#[cfg(test)]`, with their lines: tests would not test the
/// code of users.
fn test_swaps(code: &str) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (n, line) in lines.iter().enumerate().filter(|(_, l)| l.contains("#[cfg(test)]")) {
        let behind = line.split("#[cfg(test)]").nth(1).unwrap_or_default();
        let next = std::iter::once(behind).chain(lines[n + 1..].iter().copied());
        let item = next.map(str::trim).find(|l| !l.is_empty() && !l.starts_with("#[")).unwrap_or_default();
        let kind = item.split_whitespace().find(|w| !w.starts_with("pub") && !w.ends_with(')')).unwrap_or_default();
        if ["type", "struct", "enum", "static", "const", "trait"].contains(&kind) {
            found.push((n + 1, kind));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked_at(file: &str, text: &str) -> Vec<String> {
        let mut rules = Rules::new();
        rules.file(file, text);
        rules.breaches
    }

    #[test]
    fn what_the_engine_must_not_say_is_found() {
        for text in [
            "use std::fs;",
            "let t = Instant::now();",
            "unsafe { f() }",
            "#![allow(unsafe_code, missing_docs)]",
            "static A: u8 = 0;",
            "thread_local! {\n    static B: Cell<u8> = const { Cell::new(0) };\n}",
            "let m: HashMap<u8, u8> = m;",
            "use std::sync::{Arc, Mutex};",
            "return Err(ENOENT);",
            "#[cfg(test)]\ntype Clock = Fake;",
            "#[cfg(not(test))]\nfn f() {}",
            "fn f() { todo!() }",
            "println!();",
            "const A: Rank = Rank(1, \"a\");\nconst B: Rank = Rank(1, \"a\");",
            "#[cfg(test)]\nfn a() { b() }\nuse std::env;",
            "// As OpenZFS does (behaviour 3.1).",
        ] {
            assert_eq!(looked_at("dmu/src/x.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn what_is_allowed_is_not() {
        for text in [
            "// std::fs, unsafe, todo!()",
            "// OpenZFS's behaviour is another.",
            "let s = \"std::fs unsafe {\";",
            "fn f(a: &'static str) {}",
            "let unsafely = InstantLike;",
            "#![forbid(unsafe_code)]",
            "use std::sync::Arc;",
            "#[cfg(test)]\nmod tests { use std::fs; static A: u8 = 0; }",
            "const A: Rank = Rank(1, \"a\");\nconst B: Rank = Rank(2, \"a\");",
            "#[cfg(test)]\npub(crate) fn check() {}",
        ] {
            assert_eq!(looked_at("dmu/src/x.rs", text), Vec::<String>::new(), "{text}");
        }
        assert!(looked_at("dmu/src/ctx.rs", "let m = HashMap::new();").is_empty());
        assert!(looked_at("dmu/src/tests/a.rs", "use std::fs;").is_empty());
        assert!(looked_at("host/src/x.rs", "use std::fs; unsafe {}").is_empty());
    }

    #[test]
    fn exceptions_have_reasons_and_an_order() {
        for list in [GLOBALS, HASHED, THREAD_LOCKS, ERRNO] {
            assert!(list.is_sorted_by_key(|(file, name, _)| (*file, *name)));
            assert!(list.iter().all(|(_, _, why)| why.len() >= 7));
        }
    }
}
