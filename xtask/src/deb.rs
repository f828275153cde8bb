//! `cargo xtask deb`: the Debian package.
//!
//! What is in the package stands in one place, `[package.metadata.deb]` of `crates/cli`, in the
//! form of cargo-deb, so that `cargo deb` makes the same one once this has written the generated
//! files (`--stage`). The package itself is made by `dpkg-deb`, which every Debian has.
//!
//! Generated files are in `target/packaging`: manual pages, completions, the list of crates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::layers::packages;

/// Pages of commands whose names other packages have as well: links of alternatives lead to them.
const OF_OPENZFS: &[&str] = &["zpool", "zfs", "zstream", "zdb", "zed", "mount.zfs"];

/// Runs `cargo xtask deb ARGS`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let usage = "usage: cargo xtask deb [--stage] [--binary FILE] [--to FOLDER]";
    let (mut binary, mut to, mut only_stage) = (None, crate::root().join("target/debian"), false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match (arg.as_str(), args.len()) {
            ("--stage", _) => only_stage = true,
            ("--binary", 1..) => binary = args.next().map(PathBuf::from),
            ("--to", 1..) => to = args.next().map(PathBuf::from).unwrap_or_default(),
            _ => return Err(usage.to_string()),
        }
    }
    let binary = match binary {
        Some(binary) => binary,
        None => {
            done(
                Command::new(env!("CARGO"))
                    .args(["build", "--release", "-p", "openweir-cli"])
                    .current_dir(crate::root()),
            )?;
            target().join("release/weir")
        }
    };
    let generated = crate::root().join("target/packaging");
    generate(&binary, &generated)?;
    if only_stage {
        println!("{}", generated.display());
        return Ok(());
    }
    let file = build(&binary, &generated, &to, "xz")?;
    println!("{}", file.display());
    Ok(())
}

/// Cargo's folder of built programs.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::root().join("target"), PathBuf::from)
}

fn failed(what: &Path, e: std::io::Error) -> String {
    format!("{}: {e}", what.display())
}

fn made(dir: &Path) -> Result<(), String> {
    fs::create_dir_all(dir).map_err(|e| failed(dir, e))
}

fn write(file: &Path, text: impl AsRef<[u8]>) -> Result<(), String> {
    made(file.parent().unwrap_or(Path::new("/")))?;
    fs::write(file, text).map_err(|e| failed(file, e))
}

fn set_mode(file: &Path, mode: &str) -> Result<(), String> {
    let bits = u32::from_str_radix(mode, 8).map_err(|e| format!("'{mode}' is not a mode: {e}"))?;
    fs::set_permissions(file, fs::Permissions::from_mode(bits)).map_err(|e| failed(file, e))
}

/// Runs a command; its output, or what went wrong.
fn done(command: &mut Command) -> Result<Vec<u8>, String> {
    let o = command.output().map_err(|e| format!("{command:?} cannot run: {e}"))?;
    if o.status.success() {
        return Ok(o.stdout);
    }
    Err(format!(
        "{command:?}: {}\n{}{}",
        o.status,
        String::from_utf8_lossy(&o.stdout),
        String::from_utf8_lossy(&o.stderr)
    ))
}

/// Writes what the program and cargo know into `to`: `man8`, `man8-names`, completions,
/// `crates.gz`.
fn generate(binary: &Path, to: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(to);
    let all = to.join("man8-all");
    done(Command::new(binary).arg("man").arg(&all))?;
    let mut pages = Vec::new();
    for entry in fs::read_dir(&all).map_err(|e| failed(&all, e))? {
        let name = entry.map_err(|e| failed(&all, e))?.file_name().to_string_lossy().into_owned();
        let shared = OF_OPENZFS.iter().any(|p| name == format!("{p}.8") || name.starts_with(&format!("{p}-")));
        let folder = to.join(if shared { "man8-names" } else { "man8" });
        made(&folder)?;
        let at = folder.join(&name);
        fs::rename(all.join(&name), &at).map_err(|e| failed(&at, e))?;
        pages.push(at);
    }
    done(Command::new("gzip").arg("-9nf").args(&pages))?;
    fs::remove_dir(&all).map_err(|e| failed(&all, e))?;
    for shell in ["bash", "zsh", "fish"] {
        write(&to.join(format!("weir.{shell}")), done(Command::new(binary).args(["completions", shell]))?)?;
    }
    write(&to.join("crates"), crates()?)?;
    done(Command::new("gzip").arg("-9nf").arg(to.join("crates")))?;
    Ok(())
}

/// The crates of others that the workspace uses, a line each: name, version, licence, where from.
fn crates() -> Result<String, String> {
    let mut c = Command::new(env!("CARGO"));
    let out = done(c.args(["metadata", "--format-version", "1"]).current_dir(crate::root()))?;
    let all: Value = serde_json::from_slice(&out).map_err(|e| format!("cargo metadata: {e}"))?;
    let text = |p: &Value, key: &str| p[key].as_str().unwrap_or("-").to_string();
    let others = all["packages"].as_array().into_iter().flatten().filter(|p| p["source"].is_string());
    let mut lines: Vec<String> = others
        .map(|p| ["name", "version", "license", "repository"].map(|key| text(p, key)).join("\t") + "\n")
        .collect();
    lines.sort();
    Ok(lines.concat())
}

/// A file of the package: where it comes from, where it goes, its mode.
type Asset = (PathBuf, String, String);

/// The metadata of cargo-deb, and the version.
fn metadata() -> Result<(Value, String), String> {
    let all = packages()?;
    let cli = all.iter().find(|p| p["name"] == "openweir-cli").ok_or("there is no package openweir-cli")?;
    Ok((cli["metadata"]["deb"].clone(), cli["version"].as_str().unwrap_or_default().to_string()))
}

fn assets(deb: &Value, binary: &Path, generated: &Path) -> Result<Vec<Asset>, String> {
    let mut out = Vec::new();
    for asset in deb["assets"].as_array().into_iter().flatten() {
        let part = |n: usize| asset[n].as_str().unwrap_or_default().to_string();
        let (from, to, mode) = (part(0), part(1), part(2));
        let path = match (from.as_str(), from.strip_prefix("../../target/packaging/")) {
            ("target/release/weir", _) => binary.to_path_buf(),
            (_, Some(name)) => generated.join(name),
            (_, None) => crate::root().join("crates/cli").join(&from),
        };
        let files = matching(&path)?;
        if files.is_empty() {
            return Err(format!("there is no file '{}'", path.display()));
        }
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let to = if to.ends_with('/') { format!("{to}{name}") } else { to.clone() };
            out.push((file, to, mode.clone()));
        }
    }
    Ok(out)
}

/// The files that a path with at most one `*`, in its last part, names.
fn matching(path: &Path) -> Result<Vec<PathBuf>, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((before, behind)) = name.split_once('*') else {
        return Ok(path.exists().then(|| path.to_path_buf()).into_iter().collect());
    };
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| failed(dir, e))? {
        let path = entry.map_err(|e| failed(dir, e))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let fits = name.len() >= before.len() + behind.len() && name.starts_with(before) && name.ends_with(behind);
        if fits && path.is_file() {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}

/// The newest version of the C library's interface that the program asks for: `2.34`.
fn libc_of(program: &[u8]) -> String {
    let mark = b"GLIBC_2.";
    let number = |at: usize| {
        let digits = program[at + mark.len()..].iter().take_while(|b| b.is_ascii_digit()).take(3);
        digits.fold(0u32, |n, d| n * 10 + u32::from(d - b'0'))
    };
    let found = (0..program.len().saturating_sub(mark.len())).filter(|at| program[*at..].starts_with(mark));
    format!("2.{}", found.map(number).max().unwrap_or(0))
}

/// Builds the package from a tree below `to`; returns its path.
fn build(binary: &Path, generated: &Path, to: &Path, compression: &str) -> Result<PathBuf, String> {
    let (deb, version) = metadata()?;
    let text = |key: &str| deb[key].as_str().unwrap_or_default().to_string();
    let arch = String::from_utf8_lossy(&done(Command::new("dpkg").arg("--print-architecture"))?).trim().to_string();
    let name = text("name");
    let tree = to.join("tree");
    let _ = fs::remove_dir_all(&tree);
    let mut size = 0;
    for (from, to, mode) in assets(&deb, binary, generated)? {
        let at = tree.join(&to);
        made(at.parent().unwrap_or(&tree))?;
        size += fs::copy(&from, &at).map_err(|e| failed(&from, e))?;
        set_mode(&at, &mode)?;
    }
    let program = fs::read(binary).map_err(|e| failed(binary, e))?;
    let depends = text("depends").replace("$auto", &format!("libc6 (>= {}), libgcc-s1", libc_of(&program)));
    let mut control = format!("Package: {name}\nVersion: {version}\nArchitecture: {arch}\n");
    let lines = [
        ("Maintainer", text("maintainer")),
        ("Installed-Size", (size / 1024).to_string()),
        ("Depends", depends),
        ("Recommends", text("recommends")),
        ("Section", text("section")),
        ("Priority", text("priority")),
    ];
    lines.iter().for_each(|(key, value)| control += &format!("{key}: {value}\n"));
    let long: Vec<String> = text("extended-description").lines().map(|l| format!(" {}\n", l.trim())).collect();
    control += &format!("Description: {}\n{}", text("synopsis"), long.concat());
    let debian = tree.join("DEBIAN");
    write(&debian.join("control"), control)?;
    let conf = deb["conf-files"].as_array().into_iter().flatten().filter_map(Value::as_str);
    write(&debian.join("conffiles"), conf.map(|f| format!("{f}\n")).collect::<String>())?;
    let scripts = crate::root().join("crates/cli").join(text("maintainer-scripts"));
    for script in ["postinst", "prerm"] {
        let at = debian.join(script);
        fs::copy(scripts.join(script), &at).map_err(|e| failed(&scripts.join(script), e))?;
        set_mode(&at, "755")?;
    }
    // Whatever umask the folders were made with.
    done(Command::new("find").arg(&tree).args(["-type", "d", "-exec", "chmod", "755", "{}", "+"]))?;
    let file = to.join(format!("{name}_{version}_{arch}.deb"));
    let mut c = Command::new("dpkg-deb");
    done(c.args(["--root-owner-group", &format!("-Z{compression}"), "--build"]).arg(&tree).arg(&file))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(tag: &str) -> Scratch {
            let dir = std::env::temp_dir().join(format!("weir-{tag}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).expect("a folder for temporary files");
            Scratch(dir)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// What a test needs of this machine; a message and None if that is not there.
    fn package(dir: &Path) -> Option<PathBuf> {
        let binary = std::env::current_exe().ok()?.parent()?.parent()?.join("weir");
        let has_dpkg = Command::new("dpkg-deb").arg("--version").output().is_ok();
        if !has_dpkg || !binary.exists() {
            eprintln!("NOT RUN: the Debian package: dpkg-deb and {} have to be there", binary.display());
            return None;
        }
        let generated = dir.join("generated");
        generate(&binary, &generated).expect("generated files");
        Some(build(&binary, &generated, &dir.join("out"), "none").expect("a package"))
    }

    fn run_in(root: &Path, args: &[&str]) -> Result<String, String> {
        let mut c = Command::new("dpkg");
        c.arg(format!("--root={}", root.display())).args([
            "--force-depends",
            "--force-script-chrootless",
            "--force-unsafe-io",
        ]);
        done(c.args(args).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
            .map(|o| String::from_utf8_lossy(&o).into_owned())
    }

    #[test]
    fn the_package_has_everything_and_stands_beside_another_one() {
        let dir = Scratch::new("deb");
        let Some(deb) = package(&dir.0) else { return };
        let tree = dir.0.join("x");
        done(Command::new("dpkg").arg("-x").arg(&deb).arg(&tree)).unwrap();
        for file in [
            "usr/bin/weir",
            "usr/lib/systemd/system/weir.service",
            "usr/lib/systemd/system/weir-scrub-weekly@.timer",
            "usr/lib/systemd/system/weir-trim-monthly@.timer",
            "etc/weir/events.d/all-mail",
            "usr/share/man/man8/weir-daemon.8.gz",
            "usr/share/weir/man8/zpool-create.8.gz",
            "usr/share/weir/man8/mount.zfs.8.gz",
            "usr/share/weir/man8/zed.8.gz",
            "usr/share/bash-completion/completions/weir",
            "usr/share/zsh/vendor-completions/_weir",
            "usr/share/fish/vendor_completions.d/weir.fish",
            "usr/share/doc/weir/copyright",
            "usr/share/doc/weir/guide/install.md",
        ] {
            assert!(tree.join(file).is_file(), "{file} is not in the package");
        }
        assert!(!tree.join("usr/share/man/man8/zpool.8.gz").exists(), "a name of another package");
        let said = done(Command::new(tree.join("usr/bin/weir")).arg("version")).unwrap();
        assert!(String::from_utf8_lossy(&said).contains(env!("CARGO_PKG_VERSION")));
        units_are_valid(&tree);
        if !rustix::process::geteuid().is_root() {
            eprintln!("NOT RUN: installing the package: only root may");
            return;
        }
        // Alone on a machine it has the names, until it is removed.
        let root = dir.0.join("alone");
        empty_machine(&root);
        run_in(&root, &["-i", &deb.display().to_string()]).unwrap();
        let leads = |link: &str| fs::read_link(root.join("etc/alternatives").join(link)).ok();
        for (link, name, target) in [
            ("usr/sbin/zpool", "zpool", "/usr/bin/weir"),
            ("usr/sbin/mount.zfs", "mount.zfs", "/usr/bin/weir"),
            ("usr/sbin/zed", "zed", "/usr/bin/weir"),
            ("usr/share/man/man8/zfs-send.8.gz", "zfs-send.8.gz", "/usr/share/weir/man8/zfs-send.8.gz"),
        ] {
            assert!(root.join(link).is_symlink(), "{link}");
            assert_eq!(leads(name), Some(PathBuf::from(target)), "{link}");
        }
        run_in(&root, &["-r", "weir"]).unwrap();
        assert!(!root.join("usr/sbin/zpool").is_symlink() && !root.join("usr/bin/weir").exists());
        assert!(root.join("etc/weir/events.d/all-mail").exists(), "settings stay until a purge");
        // Where zpool is another's, that stays.
        let root = dir.0.join("beside");
        empty_machine(&root);
        write(&root.join("usr/sbin/zpool"), "another").unwrap();
        let said = run_in(&root, &["-i", &deb.display().to_string()]).unwrap();
        assert!(said.contains("use 'weir zpool'"), "{said}");
        run_in(&root, &["-r", "weir"]).unwrap();
        assert_eq!(fs::read_to_string(root.join("usr/sbin/zpool")).unwrap(), "another");
    }

    /// What dpkg and its scripts want of a machine.
    fn empty_machine(root: &Path) {
        for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/alternatives"] {
            made(&root.join(folder)).unwrap();
        }
        for folder in ["etc/alternatives", "var/log", "usr/sbin", "usr/share/man/man8"] {
            made(&root.join(folder)).unwrap();
        }
        for file in ["var/lib/dpkg/status", "var/lib/dpkg/available"] {
            write(&root.join(file), "").unwrap();
        }
    }

    fn units_are_valid(tree: &Path) {
        if Command::new("systemd-analyze").arg("--version").output().is_err() {
            eprintln!("NOT RUN: systemd-analyze verify: it is not installed");
            return;
        }
        let folder = tree.join("usr/lib/systemd/system");
        let units = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
        let units = units.map(|name| format!("{}:{}", folder.join(&name).display(), name.replace("@.", "@tank.")));
        let o = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=one"])
            .args(units)
            .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&o.stderr).into_owned();
        // Programs that the units name are in this tree, not on the machine.
        let ours = said.lines().filter(|l| l.contains("weir") && !l.contains("is not executable"));
        assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new());
    }

    #[test]
    fn the_newest_interface_of_the_library_counts() {
        assert_eq!(libc_of(b"xGLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.17\0"), "2.34");
        assert_eq!(libc_of(b""), "2.0");
    }
}
