//! The layer rules of ARCHITECTURE.md, checked against `cargo metadata` and the sources.
//!
//! 1. Each crate may depend on those below it only ([`ALLOWED`] lists every edge that may exist).
//! 2. Engine crates name no threads, files, clocks or entropy ([`FORBIDDEN`]).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Crates from the bottom up; a crate may use any crate that stands before it, unless [`EXTRA_RULES`] says less.
const ORDER: &[&str] = &[
    "base", "codec", "ondisk", "rt", "bdev", "vdev", "metaslab", "zio", "arc", "txg", "dmu", "zil", "dsl", "spa",
    "zpl", "zvol",
];
/// Edges of the crates around the engine. `*` stands for every engine crate.
const EDGES: &[(&str, &[&str])] = &[
    ("host", &["base", "rt", "bdev"]),
    ("sim", &["base", "rt", "bdev"]),
    ("zdb", &["base", "codec", "ondisk"]),
    ("fuse", &["base", "rt", "bdev", "host", "zpl"]),
    ("daemon", &["*", "host", "fuse", "zdb"]),
    ("cli", &["*", "host", "fuse", "daemon", "zdb", "lab"]),
    ("lab", &["*", "sim"]),
    ("openweir", &["*", "host", "sim"]),
    ("ztest", &["*", "sim", "host", "zdb"]),
    ("xtask", &[]),
];
/// zpl and zvol stand on dmu, zil and dsl, not on the assembly in spa.
const EXTRA_RULES: &[(&str, &[&str])] = &[("zpl", &["spa"]), ("zvol", &["spa", "zpl"]), ("rt", &["codec", "ondisk"])];
/// What an engine crate must not name, outside its tests.
const FORBIDDEN: &[&str] = &[
    "std::fs",
    "std::thread",
    "std::net",
    "std::env",
    "std::process",
    "SystemTime",
    "Instant",
    "libc::",
    "tokio::time",
    "tokio::spawn",
    "getrandom",
];
/// Crates that may say `unsafe`.
const UNSAFE: &[&str] = &["codec", "bdev", "host"];

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
    let mut breaches = Vec::new();
    for (krate, deps) in metadata()? {
        for dep in deps {
            if !allowed(&krate, &dep) {
                breaches.push(format!("crate {krate} must not depend on {dep}"));
            }
        }
    }
    let crates = crate::root().join("crates");
    for krate in ORDER {
        scan(&crates.join(krate).join("src"), &mut |path, text| {
            // What stands behind the first `#[cfg(test)]` of a file is its tests, by the project's habit.
            let code = text.split("#[cfg(test)]").next().unwrap_or("");
            for (n, line) in code.lines().enumerate() {
                let line = line.split("//").next().unwrap_or("");
                for name in FORBIDDEN.iter().filter(|f| line.contains(**f)) {
                    breaches.push(format!("{}:{}: engine code names {name}", path.display(), n + 1));
                }
                if !UNSAFE.contains(krate) && line.split_whitespace().any(|w| w == "unsafe") {
                    breaches.push(format!("{}:{}: unsafe outside {}", path.display(), n + 1, UNSAFE.join(", ")));
                }
            }
        });
    }
    if breaches.is_empty() { Ok(()) } else { Err(format!("layer rules broken:\n  {}", breaches.join("\n  "))) }
}

fn scan(dir: &Path, each: &mut dyn FnMut(&Path, &str)) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "tests") {
                scan(&path, each);
            }
        } else if path.extension().is_some_and(|e| e == "rs")
            && path.file_name().is_some_and(|n| n != "tests.rs")
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            each(&path, &text);
        }
    }
}

/// Normal (not dev) dependencies between members of the workspace.
fn metadata() -> Result<BTreeMap<String, Vec<String>>, String> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(crate::root())
        .output()
        .map_err(|e| format!("cargo metadata cannot run: {e}"))?;
    let all: serde_json::Value = serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let mut edges = BTreeMap::new();
    for package in all["packages"].as_array().into_iter().flatten() {
        let deps = package["dependencies"].as_array().into_iter().flatten();
        let inner = deps.filter(|d| d["path"].is_string() && d["kind"].is_null()).filter_map(|d| d["name"].as_str());
        edges.insert(package["name"].as_str().unwrap_or("").to_string(), inner.map(str::to_string).collect());
    }
    Ok(edges)
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
}
