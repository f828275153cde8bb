//! Unused dependencies, and public items without a use: rustc does not report these, since it
//! compiles one crate at a time.
//!
//! A dependency is used if the crate's sources name it as the first part of a path (`name::` or
//! `use name`); one for tests may also be named by examples, benches and the examples within
//! comments. A public item is named if its name stands anywhere in the workspace but at its
//! declaration: two items of one name hide each other, so reported items are certainly unused, and
//! others may still be dead.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::layers::packages;
use crate::source;

/// Crates whose public items are there for programs outside of the workspace.
const LIBRARIES: &[&str] = &["openweir"];
/// Files whose constants list all of a format or protocol, used or not.
const CATALOGUES: &[&str] = &["crates/ondisk/src/", "crates/fuse/src/proto.rs"];

/// Checks every crate of the workspace; the error lists each finding on a line.
pub(crate) fn run() -> Result<(), String> {
    let mut found = Vec::new();
    let mut used = BTreeSet::new();
    let packages = packages()?;
    for package in &packages {
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap_or_default());
        let dir = manifest.parent().unwrap_or(Path::new(""));
        let shown = manifest.strip_prefix(crate::root()).unwrap_or(&manifest).to_string_lossy().into_owned();
        let sources = Sources::read(dir);
        let deps: Vec<Dependency> =
            package["dependencies"].as_array().into_iter().flatten().filter_map(Dependency::read).collect();
        used.extend(deps.iter().map(|d| d.name.clone()));
        found.extend(idle(&shown, &deps, &sources));
    }
    let manifest = crate::root().join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(|e| format!("{}: {e}", manifest.display()))?;
    let idle = workspace_dependencies(&text).into_iter().filter(|name| !used.contains(*name));
    found.extend(idle.map(|name| format!("Cargo.toml: no crate depends on {name}")));
    found.extend(dead_items());
    if found.is_empty() { Ok(()) } else { Err(format!("unused:\n  {}", found.join("\n  "))) }
}

/// A dependency as a manifest has it.
struct Dependency {
    name: String,
    dev: bool,
    features: Vec<String>,
}

impl Dependency {
    fn read(d: &serde_json::Value) -> Option<Dependency> {
        // A renamed crate goes by its new name.
        let name = d["rename"].as_str().or(d["name"].as_str())?.to_string();
        let features = d["features"].as_array().into_iter().flatten().filter_map(|f| f.as_str());
        Some(Dependency { name, dev: d["kind"] == "dev", features: features.map(str::to_string).collect() })
    }
}

/// The first parts of paths that a crate's sources name.
#[derive(Default)]
struct Sources {
    /// In the code that users run.
    normal: BTreeSet<String>,
    /// Anywhere, examples in comments included.
    any: BTreeSet<String>,
}

impl Sources {
    fn read(dir: &Path) -> Sources {
        let mut it = Sources::default();
        source::each_file(dir, &mut |path, text| {
            let inner = path.strip_prefix(dir).unwrap_or(path);
            let first = inner.components().next().map(|c| c.as_os_str().to_string_lossy().into_owned());
            let folder = first.unwrap_or_default();
            it.file(&folder, source::only_tests(inner), text);
            // Modules that live in the folder of another crate.
            for at in text.split("#[path = \"").skip(1).filter_map(|t| t.split('"').next()) {
                let other = path.with_file_name(at);
                if let Ok(text) = std::fs::read_to_string(&other) {
                    it.file(&folder, source::only_tests(inner), &text);
                }
            }
        });
        it
    }
    fn file(&mut self, folder: &str, tests: bool, text: &str) {
        let code = source::code(text);
        self.any.extend(roots(&code).map(str::to_string));
        let docs: String = text
            .lines()
            .map(str::trim_start)
            .filter_map(|l| l.strip_prefix("///").or_else(|| l.strip_prefix("//!")))
            .flat_map(|l| [l, "\n"])
            .collect();
        self.any.extend(roots(&docs).map(str::to_string));
        if !tests && !["tests", "examples", "benches"].contains(&folder) {
            self.normal.extend(roots(&source::without_tests(&code)).map(str::to_string));
        }
    }
}

/// Identifiers that begin a path (`a::`) or are imported as they are (`use a;`, `use a as b;`).
fn roots(code: &str) -> impl Iterator<Item = &str> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    code.split_inclusive(move |c: char| !word(c))
        .scan(0, |at, piece| {
            let from = *at;
            *at += piece.len();
            Some((from, piece))
        })
        .filter_map(move |(from, piece)| {
            let name = piece.trim_end_matches(|c: char| !word(c));
            if name.is_empty() {
                return None;
            }
            let (before, after) = (code[..from].trim_end(), code[from + name.len()..].trim_start());
            // `crate::a::` has another root; `::a::` has this one; `.a::<b>` is a method.
            let inner = before.ends_with('.')
                || before.strip_suffix("::").is_some_and(|b| b.ends_with(|c: char| word(c) || c == '>'));
            let import = before.ends_with("use") || before.ends_with("extern crate");
            let path = after.starts_with("::") || import && (after.starts_with(';') || after.starts_with("as "));
            (!inner && path).then_some(name)
        })
}

fn idle(manifest: &str, deps: &[Dependency], sources: &Sources) -> Vec<String> {
    let mut found = Vec::new();
    for dep in deps {
        let name = dep.name.replace('-', "_");
        let named = if dep.dev { sources.any.contains(&name) } else { sources.normal.contains(&name) };
        let kind = if dep.dev { "dev-dependency" } else { "dependency" };
        if !named {
            found.push(format!("{manifest}: {kind} {}", dep.name));
        } else if dep.dev && deps.iter().any(|d| !d.dev && d.name == dep.name && d.features == dep.features) {
            found.push(format!("{manifest}: {kind} {}, which is a dependency anyway", dep.name));
        }
    }
    found
}

/// The names of outside crates in the table `[workspace.dependencies]` of a manifest.
fn workspace_dependencies(manifest: &str) -> Vec<&str> {
    let table = manifest.lines().skip_while(|l| *l != "[workspace.dependencies]").skip(1);
    let rows = table.take_while(|l| !l.starts_with('['));
    // Crates of the workspace may be there for those to come.
    let outside = rows.filter(|l| !l.contains("path =")).filter_map(|l| l.split_once('='));
    outside.map(|(name, _)| name.trim()).filter(|n| !n.starts_with('#')).collect()
}

/// Public functions, types and constants of the crates whose name stands nowhere else.
fn dead_items() -> Vec<String> {
    let root = crate::root();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut items = Vec::new();
    for folder in ["crates", "xtask", "fuzz"] {
        source::each_file(&root.join(folder), &mut |path, text| {
            let path = path.strip_prefix(&root).unwrap_or(path).to_string_lossy().into_owned();
            let code = source::code(text);
            for (_, word) in source::words(&code) {
                match counts.get_mut(word) {
                    Some(n) => *n += 1,
                    None => _ = counts.insert(word.to_string(), 1),
                }
            }
            // Names within strings count as well: macros and format strings use them.
            for (at, _) in text.match_indices('{') {
                let name: String = text[at + 1..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                *counts.entry(name).or_default() += 1;
            }
            let library = LIBRARIES.iter().any(|l| path.starts_with(&format!("crates/{l}/")));
            if folder == "crates" && path.contains("/src/") && !library {
                let public = public_items(&source::without_tests(&code));
                let catalogue = CATALOGUES.iter().any(|c| path.starts_with(c));
                let kept = public.into_iter().filter(|(_, item)| !catalogue || item.contains(char::is_lowercase));
                items.extend(kept.map(|(n, item)| (path.clone(), n, item)));
            }
        });
    }
    let dead = items.into_iter().filter(|(_, _, item)| counts.get(item).is_some_and(|n| *n == 1));
    dead.map(|(path, n, item)| format!("{path}:{n}: {item} is public and named nowhere")).collect()
}

/// The public items that `code` declares, with their lines.
fn public_items(code: &str) -> Vec<(usize, String)> {
    const KINDS: &[&str] = &["fn", "struct", "enum", "const", "static", "trait", "type"];
    let mut found = Vec::new();
    for (n, line) in code.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("pub ") else { continue };
        let mut words = rest.split_whitespace().peekable();
        let kind = loop {
            match words.next() {
                Some("async" | "unsafe") => {}
                Some("const") if words.peek() == Some(&"fn") => {}
                kind => break kind.unwrap_or_default(),
            }
        };
        let name = words.next().filter(|_| KINDS.contains(&kind));
        let Some(name) = name else { continue };
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
        found.extend(Some(&name[..end]).filter(|n| !n.is_empty()).map(|name| (n + 1, name.to_string())));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_of_paths_are_found() {
        let code = "use a::b; use c; use d as e; f::g::h(); crate::i::j; ::k::l; m.n::<o>(); p { q } <r as s::T>::u";
        assert_eq!(roots(code).collect::<Vec<_>>(), ["a", "c", "d", "f", "crate", "k", "s"]);
    }

    fn dependency(name: &str, dev: bool) -> Dependency {
        Dependency { name: name.to_string(), dev, features: Vec::new() }
    }

    #[test]
    fn a_dependency_that_only_tests_name_is_idle() {
        let mut sources = Sources::default();
        sources.file("src", false, "use a_a::X;\n#[cfg(test)]\nmod tests { use b::Y; }\n/// `d::e()`\nfn f() {}");
        sources.file("tests", false, "use c::Z;");
        let deps = [("a-a", false), ("b", false), ("b", true), ("c", true), ("a-a", true), ("d", true), ("e", true)];
        let deps: Vec<Dependency> = deps.iter().map(|(n, dev)| dependency(n, *dev)).collect();
        let want = ["dependency b", "dev-dependency b, which", "dev-dependency a-a, which", "dev-dependency e"];
        let got = idle("x", &deps, &sources);
        assert_eq!(got.len(), want.len(), "{got:?}");
        assert!(got.iter().zip(want).all(|(g, w)| g.contains(w)), "{got:?}");
    }

    #[test]
    fn the_table_of_the_workspace_is_read() {
        let text = "[workspace]\na = 1\n[workspace.dependencies]\nb = { c = 1 }\n# d = 2\n\ne-f = \"1\"\ng = { path = \"g\" }\n[g]\nh = 1\n";
        assert_eq!(workspace_dependencies(text), ["b", "e-f"]);
    }

    #[test]
    fn public_items_are_found() {
        let code = "pub fn a() {}\npub const fn b() {}\npub const C: u8 = 0;\n    pub async fn d<T>() {}\npub struct E(u8);\n\
                    pub(crate) fn f() {}\npub g: u8,\npub use h;\npub unsafe fn i();\npub mod j;";
        let names: Vec<String> = public_items(code).into_iter().map(|(_, n)| n).collect();
        assert_eq!(names, ["a", "b", "C", "d", "E", "i"]);
    }
}
