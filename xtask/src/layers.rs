//! The edges between crates, checked against `cargo metadata`, and the map of ARCHITECTURE.md,
//! checked against both.
//!
//! 1. Each crate may depend on those below it only ([`ORDER`], [`EDGES`]), and an edge that is
//!    allowed by name exists.
//! 2. The table of layers in ARCHITECTURE.md names every crate, engine crates in their order.
//! 3. The traits that rule 1 of ARCHITECTURE.md names exist at the named places, and it names each
//!    public trait of an engine crate that another crate implements.
//!
//! Names forbidden in sources are in [`crate::rules`].

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::source;

/// Engine crates from the bottom up; a crate may use any crate that stands before it, unless
/// [`EXTRA_RULES`] allows fewer.
pub(crate) const ORDER: &[&str] = &[
    "base", "codec", "ondisk", "rt", "bdev", "vdev", "metaslab", "zio", "arc", "txg", "dmu", "zil", "dsl", "spa",
    "zpl", "zvol", "nbd",
];
/// Edges of the crates around the engine. `*` stands for every engine crate.
const EDGES: &[(&str, &[&str])] = &[
    ("host", &["base", "rt", "bdev"]),
    ("sim", &["base", "rt", "bdev"]),
    ("zdb", &["base", "codec", "ondisk"]),
    // What proves a block is its checksum: geometry and ciphers may be the engine's.
    ("rescue", &["base", "codec", "ondisk", "vdev", "zio", "zdb"]),
    // Predicts with the allocator and the vdevs of the engine, on the disks of the simulator.
    ("defrag", &["base", "ondisk", "rt", "vdev", "metaslab", "host", "sim", "zdb"]),
    ("zstream", &["base", "codec", "ondisk"]),
    ("fuse", &["base", "rt", "bdev", "host", "zpl", "zvol"]),
    ("program", &[]),
    ("admin", &["*", "host", "program"]),
    ("daemon", &["*", "host", "fuse", "admin"]),
    ("cli", &["*", "host", "program", "admin", "daemon", "zdb", "rescue", "defrag", "zstream", "lab", "openweir"]),
    // Maps of metaslabs are those of the checker, which reads the modelled disks.
    ("lab", &["*", "sim", "zdb"]),
    ("ztest", &["*", "sim", "zdb", "rescue"]),
    ("openweir", &["*", "host", "sim"]),
    ("xtask", &[]),
];
/// zpl and zvol stand on dmu, zil and dsl, not on the assembly in spa.
const EXTRA_RULES: &[(&str, &[&str])] = &[("zpl", &["spa"]), ("zvol", &["spa", "zpl"]), ("rt", &["codec", "ondisk"])];

fn allowed(from: &str, to: &str) -> bool {
    if let Some((_, list)) = EDGES.iter().find(|(c, _)| *c == from) {
        return list.contains(&to) || (list.contains(&"*") && ORDER.contains(&to));
    }
    if EXTRA_RULES.iter().any(|(c, less)| *c == from && less.contains(&to)) {
        return false;
    }
    match (ORDER.iter().position(|c| *c == from), ORDER.iter().position(|c| *c == to)) {
        (Some(f), Some(t)) => t < f,
        _ => false,
    }
}

/// Checks every rule; the error lists each breach on a line.
pub(crate) fn run() -> Result<(), String> {
    let edges = metadata()?;
    let mut breaches = edge_breaches(&edges);
    let path = crate::root().join("ARCHITECTURE.md");
    let map = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let crates: Vec<&str> = edges.keys().map(String::as_str).filter(|c| *c != "xtask").collect();
    breaches.extend(map_breaches(&map, &crates));
    breaches.extend(trait_breaches(&map));
    breaches.extend(unnamed_traits(&map, &crates));
    breaches.extend(crate::rules::breaches());
    if breaches.is_empty() { Ok(()) } else { Err(format!("layer rules broken:\n  {}", breaches.join("\n  "))) }
}

/// Edges that must not be, and edges that are allowed by name but unused.
fn edge_breaches(edges: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut breaches = Vec::new();
    for (krate, deps) in edges {
        let odd = deps.iter().filter(|dep| !allowed(krate, dep));
        breaches.extend(odd.map(|dep| format!("crate {krate} must not depend on {dep}")));
    }
    for (krate, list) in EDGES {
        let Some(deps) = edges.get(*krate) else {
            breaches.push(format!("there is no crate {krate}, which EDGES names"));
            continue;
        };
        let idle = list.iter().filter(|to| **to != "*" && !deps.iter().any(|d| d == *to));
        breaches.extend(idle.map(|to| format!("crate {krate} may depend on {to} and does not: take it out of EDGES")));
    }
    breaches
}

/// The crates that the table of layers in `map` names, in its order.
fn crates_of_table(map: &str) -> Vec<&str> {
    let rows = map.lines().skip_while(|l| !l.starts_with("| crate |")).skip(2).take_while(|l| l.starts_with('|'));
    rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2)).collect()
}

fn map_breaches(map: &str, crates: &[&str]) -> Vec<String> {
    let table = crates_of_table(map);
    let missing = crates.iter().filter(|c| !table.contains(c));
    let mut breaches: Vec<String> =
        missing.map(|c| format!("ARCHITECTURE.md: the table of layers lacks the crate {c}")).collect();
    let gone = table.iter().filter(|c| !crates.contains(c));
    breaches.extend(gone.map(|c| format!("ARCHITECTURE.md: there is no crate {c}, which the table of layers names")));
    let engine: Vec<&str> = table.iter().copied().filter(|c| ORDER.contains(c)).collect();
    if breaches.is_empty() && engine != ORDER {
        breaches.push(format!("ARCHITECTURE.md: the order of the table is {engine:?}, that of the code {ORDER:?}"));
    }
    breaches
}

/// Names like `metaslab::SpaceMapStore` and `dmu::{SpaceGate, FeatureUse}` of the rule *Down only*,
/// as (crate, trait).
fn traits_of_rule(map: &str) -> Vec<(&str, &str)> {
    let Some(from) = map.find("**Down only**") else { return Vec::new() };
    let rule = &map[from..];
    let rule = &rule[..rule.find("\n2. ").unwrap_or(rule.len())];
    let mut named = Vec::new();
    for quoted in rule.split('`').skip(1).step_by(2).filter(|q| q.contains("::")) {
        let krate = quoted.split("::").next().unwrap_or_default();
        let last = quoted.rsplit("::").next().unwrap_or_default();
        let names = last.trim_matches(['{', '}']).split(',');
        named.extend(names.map(|name| (krate, name.trim())));
    }
    named
}

fn trait_breaches(map: &str) -> Vec<String> {
    let named = traits_of_rule(map);
    if named.is_empty() {
        return vec!["ARCHITECTURE.md: the rule \"Down only\" names no trait".to_string()];
    }
    let mut breaches = Vec::new();
    for (krate, name) in named {
        let mut found = false;
        source::each_file(&crate::root().join("crates").join(krate).join("src"), &mut |_, text| {
            let code = source::code(text);
            let names: Vec<&str> = source::words(&code).map(|(_, w)| w).collect();
            found |= names.windows(2).any(|w| w == ["trait", name]);
        });
        if !found {
            breaches.push(format!("ARCHITECTURE.md: {krate} has no trait {name}"));
        }
    }
    breaches
}

/// The public traits that `code` declares.
fn declared(code: &str) -> Vec<String> {
    let words: Vec<&str> = source::words(code).map(|(_, w)| w).collect();
    words.windows(3).filter(|w| w[..2] == ["pub", "trait"]).map(|w| w[2].to_string()).collect()
}

/// `header` without its generic arguments.
fn without_generics(header: &str) -> String {
    let mut depth = 0;
    let outside = |c: &char| {
        depth += i32::from(*c == '<');
        let is_outside = depth == 0;
        depth -= i32::from(*c == '>');
        is_outside
    };
    header.chars().filter(outside).collect()
}

/// The names of the traits that `code` implements, without their paths.
fn implemented(code: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for (at, word) in code.match_indices("impl") {
        let rest = &code[at + word.len()..];
        let starts = code[..at].ends_with([' ', '\n', '}', ']']) || at == 0;
        if !starts || !rest.starts_with([' ', '<', '\n']) {
            continue;
        }
        let header = without_generics(&rest[..rest.find(['{', ';']).unwrap_or(rest.len())]);
        // `impl Trait` as a type of an argument has no `for`.
        if let Some((path, _)) = header.split_once(" for ") {
            let name = path.trim().rsplit([' ', ':']).next().unwrap_or_default();
            out.insert(name.to_string());
        }
    }
    out
}

/// Whether a path in `code` (of a use or elsewhere) leads to `name` of the crate `krate`.
fn refers_to(code: &str, krate: &str, name: &str) -> bool {
    code.split(';').any(|statement| {
        let words: Vec<&str> = source::words(statement).map(|(_, w)| w).collect();
        words.contains(&name) && statement.contains(&format!("{krate}::")) && words.contains(&krate)
    })
}

/// Public traits of engine crates that another crate implements and that the rule does not name.
fn unnamed_traits(map: &str, crates: &[&str]) -> Vec<String> {
    let named = traits_of_rule(map);
    let dir = |krate: &str| crate::root().join("crates").join(krate).join("src");
    let mut traits: Vec<(&str, String)> = Vec::new();
    for krate in ORDER {
        source::each_file(&dir(krate), &mut |_, text| {
            traits.extend(declared(&source::code(text)).into_iter().map(|name| (*krate, name)));
        });
    }
    traits.retain(|(krate, name)| !named.contains(&(krate, name)));
    let mut breaches = Vec::new();
    for user in crates {
        source::each_file(&dir(user), &mut |path, text| {
            if source::only_tests(path) {
                return;
            }
            let code = source::without_tests(&source::code(text));
            let made = implemented(&code);
            let met =
                |(krate, name): &&(&str, String)| krate != user && made.contains(name) && refers_to(&code, krate, name);
            breaches.extend(traits.iter().filter(met).map(|(krate, name)| {
                format!("ARCHITECTURE.md: rule 1 does not name {krate}::{name}, which {user} implements")
            }));
        });
    }
    breaches.sort();
    breaches.dedup();
    breaches
}

/// Normal (not dev) dependencies between members of the workspace.
fn metadata() -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut edges = BTreeMap::new();
    for package in packages()? {
        let deps = package["dependencies"].as_array().into_iter().flatten();
        let inner = deps.filter(|d| d["path"].is_string() && d["kind"].is_null()).filter_map(|d| d["name"].as_str());
        let inner = inner.map(|name| short(name).to_string()).collect();
        edges.insert(short(package["name"].as_str().unwrap_or("")).to_string(), inner);
    }
    Ok(edges)
}

/// A crate's name in the sources: in the registry it stands behind the name of the library.
fn short(name: &str) -> &str {
    name.strip_prefix("openweir-").unwrap_or(name)
}

/// The members of the workspace, from `cargo metadata`.
pub(crate) fn packages() -> Result<Vec<serde_json::Value>, String> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(crate::root())
        .output()
        .map_err(|e| format!("cargo metadata cannot run: {e}"))?;
    let all: serde_json::Value = serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    Ok(all["packages"].as_array().cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_go_down_only() {
        assert!(allowed("dmu", "zio") && allowed("zpl", "dsl") && allowed("cli", "spa") && allowed("ondisk", "codec"));
        assert!(!allowed("zio", "dmu") && !allowed("zpl", "spa") && !allowed("zdb", "dmu") && !allowed("base", "rt"));
        assert!(!allowed("host", "vdev") && !allowed("codec", "ondisk"));
    }

    #[test]
    fn idle_edges_are_breaches() {
        let all = EDGES.iter().map(|(c, to)| (c.to_string(), to.iter().map(|t| t.to_string()).collect::<Vec<_>>()));
        let mut edges: BTreeMap<_, _> = all.map(|(c, to)| (c, to.into_iter().filter(|t| t != "*").collect())).collect();
        assert_eq!(edge_breaches(&edges), Vec::<String>::new());
        edges.insert("sim".to_string(), vec!["base".to_string(), "rt".to_string(), "spa".to_string()]);
        assert_eq!(edge_breaches(&edges).len(), 2);
    }

    #[test]
    fn the_table_of_layers_is_read_and_compared() {
        let map = "x\n| crate | holds |\n|---|---|\n| `base` | a `b` |\n| edges: `host`, `sim` | c |\n\n| `d` | e |\n";
        assert_eq!(crates_of_table(map), ["base", "host", "sim"]);
        assert_eq!(map_breaches(map, &["base", "host", "rt"]).len(), 2);
        assert_eq!(map_breaches(map, &["base", "host", "sim"]).len(), 1, "rt and the others are not there");
    }

    #[test]
    fn traits_of_the_rule_are_read() {
        let map = "1. **Down only** See `a::T`, `b`, `c::d::{U, V}`.\n2. `e::W`";
        assert_eq!(traits_of_rule(map), [("a", "T"), ("c", "U"), ("c", "V")]);
    }

    #[test]
    fn implemented_traits_are_found() {
        let code = "impl<T: A<u8>> x::B<T> for C<T> where T: D {}\nimpl E for F {}\nfn f(g: impl G) -> impl H { for i in j {} }\nimpl K {}\n";
        assert_eq!(implemented(code).into_iter().collect::<Vec<_>>(), ["B", "E"]);
        assert_eq!(declared("pub trait A {}\npub(crate) trait B {}\ntrait C: A {}\npub trait D<T> {}"), ["A", "D"]);
    }

    #[test]
    fn traits_of_the_same_name_are_told_apart() {
        assert!(refers_to("use dsl::walk::{Visitor, Walk};\nimpl Visitor for X {}", "dsl", "Visitor"));
        assert!(refers_to("impl dsl::walk::Visitor for X {}", "dsl", "Visitor"));
        assert!(!refers_to("use serde::de::Visitor;\nuse dsl::Dir;\nimpl Visitor for X {}", "dsl", "Visitor"));
    }

    #[test]
    fn a_trait_that_the_rule_forgets_is_a_breach() {
        let map = std::fs::read_to_string(crate::root().join("ARCHITECTURE.md")).expect("the map");
        let crates = [ORDER, &["admin", "openweir"]].concat();
        assert_eq!(unnamed_traits(&map, &crates), Vec::<String>::new());
        let found = unnamed_traits(&map.replace("spa::EventSink", "spa::DeviceDoor"), &crates);
        let lines: Vec<&str> = found.iter().filter_map(|l| l.split("name ").nth(1)).collect();
        assert_eq!(lines, ["spa::EventSink, which admin implements", "spa::EventSink, which openweir implements"]);
    }
}
