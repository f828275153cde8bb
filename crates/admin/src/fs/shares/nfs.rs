//! NFS shares: the value of `sharenfs` as lines of exports(5), and the file that has them.
//!
//! The options and their translation are those of OpenZFS on Linux; the lines of one mount point
//! are together in the file, which is the one that OpenZFS writes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{ErrorKind as Io, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The options of exports(5) that are passed on (OpenZFS 2.1, the list of Linux).
#[rustfmt::skip]
const OPTIONS: &[&str] = &[
    "all_squash", "anongid", "anonuid", "async", "auth_nlm", "crossmnt", "fsid", "fsuid", "hide", "insecure", "insecure_locks", "mountpoint", "mp", "no_acl",
    "no_all_squash", "no_auth_nlm", "no_root_squash", "no_subtree_check", "no_wdelay", "nohide", "refer", "replicas", "root_squash", "secure", "secure_locks",
    "subtree_check", "sync", "wdelay",
];
/// The first line of the file.
const HEADER: &[u8] = b"# Written by zfs(8), from the property sharenfs: changes are lost.\n";
/// The value of `on`.
const ON: &str = "rw,crossmnt";

/// The options of a value: names, and what is after their `=`.
fn options(value: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let value = if value == "on" { ON } else { value };
    value.split(',').filter(|o| !o.is_empty()).map(|o| o.split_once('=').map_or((o, None), |(k, v)| (k, Some(v))))
}

/// The hosts of `rw=` and `ro=`, between colons; those in brackets have colons of their own. None
/// if a bracket is not closed, or has something behind it.
fn hosts(list: Option<&str>) -> Option<Vec<String>> {
    let Some(mut rest) = list else { return Some(vec!["*".to_string()]) };
    let mut out = Vec::new();
    loop {
        let (host, after) = match rest.strip_prefix('[') {
            Some(inner) => {
                let (address, after) = inner.split_once(']')?;
                let (mask, next) = after.split_once(':').map_or((after, None), |(mask, next)| (mask, Some(next)));
                if !mask.is_empty() && !mask.starts_with('/') {
                    return None;
                }
                (format!("{address}{mask}"), next)
            }
            None => rest.split_once(':').map_or((rest.to_string(), None), |(h, next)| (h.to_string(), Some(next))),
        };
        // A network of Solaris.
        out.push(host.strip_prefix('@').unwrap_or(&host).to_string());
        match after {
            Some(next) => rest = next,
            None => return Some(out),
        }
    }
}

/// The name in exports(5) of an option that is passed on.
fn passed_on(name: &str) -> Option<&str> {
    match name {
        "anon" => Some("anonuid"),
        "root_mapping" => Some("root_squash,anonuid"),
        "nosub" => Some("subtree_check"),
        _ => OPTIONS.iter().find(|o| **o == name).copied(),
    }
}

/// Whether a value of `sharenfs` is valid.
pub(crate) fn is_valid(value: &str) -> bool {
    // A line of the file ends at a line break, and its options at a bracket.
    let is_plain = |c: char| !c.is_control() && !matches!(c, '(' | ')' | ' ' | '#' | '"' | '\\');
    let known = |(name, of): (&str, Option<&str>)| match name {
        "sec" => of.is_some_and(|s| !s.is_empty()),
        "ro" | "rw" => of.is_none_or(|h| !h.is_empty() && hosts(of).is_some()),
        _ => passed_on(name).is_some(),
    };
    value == "off" || !value.is_empty() && value.chars().all(is_plain) && options(value).all(known)
}

/// The lines that share `place` as a valid value says. A FUSE file system has no identifier of its
/// own for NFS: `fsid` is that of the file system.
pub(super) fn lines(place: &Path, value: &str, fsid: u64) -> Vec<Vec<u8>> {
    let mut common = "no_subtree_check,mountpoint".to_string();
    for (name, of) in options(value) {
        if matches!(name, "sec" | "ro" | "rw") {
            continue;
        }
        let Some(name) = passed_on(name) else { continue };
        common.extend([",", name]);
        if let Some(of) = of {
            common.extend(["=", of]);
        }
    }
    if !options(value).any(|(name, _)| name == "fsid") {
        // As a UUID: numbers of four bytes would meet others.
        common.push_str(&format!(",fsid=77656972-0000-0000-{:04x}-{:012x}", fsid >> 48, fsid & 0xffff_ffff_ffff));
    }
    let (mut out, mut security) = (Vec::new(), "sys");
    for (name, of) in options(value) {
        match name {
            "sec" => security = of.unwrap_or("sys"),
            "ro" | "rw" => {
                for host in hosts(of).unwrap_or_default() {
                    let mut line = escaped(place);
                    line.extend(format!(" {host}(sec={security},{name},{common})").into_bytes());
                    out.push(line);
                }
            }
            _ => {}
        }
    }
    out
}

/// A path as exports(5) has it: spaces, line breaks and backslashes as octal numbers.
fn escaped(place: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for &byte in place.as_os_str().as_bytes() {
        match byte {
            // The last two begin a comment and a quoted path.
            b'\t' | b'\n' | 0x0b | 0x0c | b'\r' | b' ' | b'\\' | b'#' | b'"' => {
                out.extend(format!("\\{byte:03o}").into_bytes());
            }
            _ => out.push(byte),
        }
    }
    out
}

/// The path of a line.
fn place_of(line: &[u8]) -> &[u8] {
    line.split(|b| b.is_ascii_whitespace()).next().unwrap_or(b"")
}

/// The path that an escaped one means.
fn unescaped(place: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = place;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()).filter(|_| byte == b'\\') {
            Some(code) => {
                out.push(code);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

fn entries(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| *b == b'\n').filter(|l| !l.is_empty() && !l.starts_with(b"#"))
}

/// The text with other lines for some places.
pub(super) fn with_lines(text: &[u8], of: &[(&Path, &[Vec<u8>])]) -> Vec<u8> {
    let places: HashSet<Vec<u8>> = of.iter().map(|(place, _)| escaped(place)).collect();
    let kept = entries(text).filter(|l| !places.contains(place_of(l)));
    let new = of.iter().flat_map(|(_, lines)| lines.iter().map(Vec::as_slice));
    let mut out = HEADER.to_vec();
    for line in kept.chain(new) {
        out.extend(line);
        out.push(b'\n');
    }
    out
}

/// The places that the text shares.
pub(super) fn places(text: &[u8]) -> Vec<std::path::PathBuf> {
    let mut all: Vec<_> = entries(text).map(|l| OsStr::from_bytes(&unescaped(place_of(l))).into()).collect();
    all.dedup();
    all
}

/// The file's text; empty if there is none.
pub(super) fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    match std::fs::read(file) {
        Err(e) if e.kind() == Io::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// Waits for the lock of the file, which ends with what is returned.
pub(super) fn lock(file: &Path) -> std::io::Result<std::fs::File> {
    let options = std::fs::OpenOptions::new().create(true).truncate(false).write(true).to_owned();
    let lock = options.open(file.with_extension("exports.lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Replaces the file, so that readers see the old text or the new one.
pub(super) fn write(file: &Path, text: &[u8]) -> std::io::Result<()> {
    let new = file.with_extension("exports.new");
    let mut out = std::fs::File::create(&new)?;
    out.write_all(text)?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Vec<String> {
        let lines = lines(Path::new("/a b"), value, 0x1_0000_0000_0002);
        lines.into_iter().map(|l| String::from_utf8(l).unwrap()).collect()
    }

    #[test]
    fn values_become_lines_as_in_openzfs() {
        const ID: &str = "fsid=77656972-0000-0000-0001-000000000002";
        let base = "no_subtree_check,mountpoint";
        assert_eq!(of("on"), [format!("/a\\040b *(sec=sys,rw,{base},crossmnt,{ID})")]);
        assert_eq!(
            of("sec=krb5,rw=@10.0.0.0/8:*.example.org,sec=sys,ro=[fd00::1]:[fd00::]/64,anon=5,fsid=7"),
            [
                format!("/a\\040b 10.0.0.0/8(sec=krb5,rw,{base},anonuid=5,fsid=7)"),
                format!("/a\\040b *.example.org(sec=krb5,rw,{base},anonuid=5,fsid=7)"),
                format!("/a\\040b fd00::1(sec=sys,ro,{base},anonuid=5,fsid=7)"),
                format!("/a\\040b fd00::/64(sec=sys,ro,{base},anonuid=5,fsid=7)"),
            ]
        );
        assert_eq!(of("sync"), [""; 0]);
    }

    #[test]
    fn values_are_checked() {
        for good in ["off", "on", "rw", "ro=a:b,no_root_squash", "sec=sys,rw=[::1]/128:c", "root_mapping=3,rw"] {
            assert!(is_valid(good), "{good}");
        }
        for bad in
            ["", "ON", "sss", "rw=[::1", "rw=[::1]x", "rw=", "sec", "rw,anonuid=1)\n/etc *(rw", "rw=a b", "rw=a(rw)"]
        {
            assert!(!is_valid(bad), "{bad:?}");
        }
    }

    #[test]
    fn places_have_their_own_lines() {
        let (a, b) = (Path::new("/a"), Path::new("/a/b c\\"));
        let one = with_lines(b"", &[(a, &lines(a, "on", 1)), (b, &lines(b, "ro", 2))]);
        assert_eq!(places(&one), [a, b]);
        let again = with_lines(&one, &[(a, &lines(a, "ro=x:y", 1))]);
        assert_eq!(places(&again), [b, a]);
        assert_eq!(entries(&again).count(), 3);
        let none = with_lines(&again, &[(a, &[]), (b, &[])]);
        assert_eq!(none, HEADER);
    }

    #[test]
    fn every_path_is_read_back() {
        for place in ["/", "/#a", "/\"q\" \t\n", "/\u{fc}\\040", "/a\\"] {
            let place = Path::new(place);
            let text = with_lines(b"", &[(place, &lines(place, "on", 1))]);
            assert_eq!(places(&text), [place]);
            assert_eq!(with_lines(&text, &[(place, &[])]), HEADER);
        }
    }
}
