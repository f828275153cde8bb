//! Shares: mounted file systems for other machines, by NFS and SMB.
//!
//! weir serves neither. As OpenZFS it tells the servers of the system: a file of exports(5) and
//! exportfs(8) for NFS, usershares of Samba and its `net` for SMB.
//!
//! **Shared**: the file or the list of usershares has the place where a file system is mounted.
//! Those two alone say so, which outlive the daemon and may be changed by others.
//!
//! The normal path: a file system whose `sharenfs` or `sharesmb` is not `off` is shared when it is
//! mounted, and shared anew when the property changes; its shares end before it is unmounted, since
//! a server keeps it in use. `zfs unshare` ends them by hand, `zfs share` makes them again.
//!
//! Sharing never fails a command that is about something else: what goes wrong is a warning. The
//! programs of the system may take long, so they run on a thread of their own, with a limit.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::{Error, ErrorKind, Nanos, Result};
use dsl::{Dataset, Dir};
use serde::{Deserialize, Serialize};

use super::mounts::MountPoint;
use super::temp_props::TempProps;
use crate::engine::{PoolEngine, front_end, say};
use crate::keeper::Level;

pub(crate) mod nfs;
mod smb;

/// Time for the programs of the system: they may ask for names on the network.
const SHARE_LIMIT: Nanos = Nanos::from_secs(60);

/// The root of the system whose servers share; `/`, but for tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShareRoot(pub PathBuf);

impl ShareRoot {
    fn exports(&self) -> PathBuf {
        self.0.join("etc/exports.d/zfs.exports")
    }
    fn exportfs(&self) -> PathBuf {
        self.0.join("usr/sbin/exportfs")
    }
    fn net(&self) -> PathBuf {
        self.0.join("usr/bin/net")
    }
    fn usershares(&self) -> PathBuf {
        self.0.join("var/lib/samba/usershares")
    }
}

/// A protocol of shares.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Protocol {
    /// NFS, by the property `sharenfs`.
    Nfs,
    /// SMB, by the property `sharesmb`.
    Smb,
}

impl Protocol {
    /// Both.
    pub const ALL: &[Protocol] = &[Protocol::Nfs, Protocol::Smb];

    /// That of this name.
    pub fn parse(name: &str) -> Option<Protocol> {
        match name {
            "nfs" => Some(Protocol::Nfs),
            "smb" => Some(Protocol::Smb),
            _ => None,
        }
    }

    /// Whether file systems of this directory are to be shared by it.
    fn is_on(self, dir: &Dir) -> bool {
        dir.prop(self.prop()).0.text() != "off"
    }

    /// Its property.
    pub fn prop(self) -> &'static str {
        match self {
            Protocol::Nfs => "sharenfs",
            Protocol::Smb => "sharesmb",
        }
    }
}

/// How one place is to be shared from now on. A protocol that is not told stays as it is.
#[derive(Clone, Debug)]
pub(super) struct Share {
    name: String,
    place: PathBuf,
    /// The lines of exports(5); none of them: not shared.
    nfs: Option<Vec<Vec<u8>>>,
    smb: Option<bool>,
}

impl Share {
    /// Ends all shares of a place.
    fn end(name: &str, place: &Path) -> Share {
        Share { name: name.to_string(), place: place.to_path_buf(), nfs: Some(Vec::new()), smb: Some(false) }
    }
}

/// The places that are shared.
#[derive(Default)]
struct Shared {
    nfs: BTreeSet<PathBuf>,
    smb: BTreeSet<PathBuf>,
}

impl Shared {
    fn now(root: &ShareRoot) -> Shared {
        let text = nfs::read(&root.exports()).unwrap_or_default();
        let nfs = nfs::places(&text).into_iter().collect();
        Shared { nfs, smb: smb::list(&root.usershares()).into_iter().map(|(_, place)| place).collect() }
    }

    fn has(&self, place: &Path, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Nfs => self.nfs.contains(place),
            Protocol::Smb => self.smb.contains(place),
        }
    }
}

/// Runs a program without output of its own; says what was wrong.
fn run(program: &Path, words: &[OsString]) -> std::result::Result<(), String> {
    let out =
        Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let said = |err: &[u8]| String::from_utf8_lossy(err).lines().next().unwrap_or("it failed").trim().to_string();
    match out {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(format!("{}: {}", program.display(), said(&out.stderr))),
        Err(e) => Err(format!("{}: {e}", program.display())),
    }
}

/// What went wrong as an error of a command that is about shares.
fn nothing_wrong(wrong: &[String], between: &str) -> Result<()> {
    if wrong.is_empty() { Ok(()) } else { Err(Error::new(ErrorKind::Io, wrong.join(between))) }
}

/// Makes these shares what they are to be, on a thread that may wait; returns what went wrong, a
/// sentence each. `all`: places of the file at which nothing is mounted are dropped as well.
fn apply(root: &ShareRoot, shares: &[Share], all: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Err(why) = apply_nfs(root, shares, all) {
        let named: Vec<&str> =
            shares.iter().filter(|s| s.nfs.as_ref().is_some_and(|l| !l.is_empty())).map(|s| s.name.as_str()).collect();
        wrong.push(match named.as_slice() {
            [] => format!("a share by NFS has not ended: {why}"),
            [one] => format!("'{one}' is not shared by NFS: {why}"),
            [first, rest @ ..] => format!("'{first}' and {} others are not shared by NFS: {why}", rest.len()),
        });
    }
    let mut there: HashMap<PathBuf, Vec<String>> = HashMap::new();
    for (name, place) in smb::list(&root.usershares()) {
        there.entry(place).or_default().push(name);
    }
    for Share { name, place, smb, .. } in shares {
        let mut old = there.get(place).into_iter().flatten();
        let done = match smb {
            None => Ok(()),
            Some(wanted) => {
                let ended = old.try_for_each(|share| run(&root.net(), &smb::delete(share)));
                ended.and_then(|()| match wanted {
                    true if !root.net().exists() || !root.usershares().is_dir() => {
                        Err("install Samba and let it have usershares".to_string())
                    }
                    true => run(&root.net(), &smb::add(name, place)),
                    false => Ok(()),
                })
            }
        };
        if let Err(why) = done {
            wrong.push(match smb {
                Some(true) => format!("'{name}' is not shared by SMB: {why}"),
                _ => format!("the share of '{name}' by SMB has not ended: {why}"),
            });
        }
    }
    wrong
}

fn apply_nfs(root: &ShareRoot, shares: &[Share], all: bool) -> std::result::Result<(), String> {
    let file = root.exports();
    let failed = |e: std::io::Error| format!("'{}': {e}", file.display());
    let mut of: Vec<(&Path, &[Vec<u8>])> = Vec::new();
    of.extend(shares.iter().filter_map(|s| s.nfs.as_ref().map(|lines| (s.place.as_path(), lines.as_slice()))));
    let wanted = of.iter().any(|(_, lines)| !lines.is_empty());
    // Without a share there is nothing to wait for, nor rights to have.
    if !wanted {
        let there: HashSet<PathBuf> = nfs::places(&nfs::read(&file).map_err(failed)?).into_iter().collect();
        if there.is_empty() || !all && !of.iter().any(|(p, _)| there.contains(*p)) {
            return Ok(());
        }
    }
    if wanted && !root.exportfs().exists() {
        return Err(format!("'{}' is missing: install an NFS server", root.exportfs().display()));
    }
    // Its folder belongs to the server's package; there is none without it.
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    // The engines of other pools write the file too, and so does OpenZFS.
    let _lock = nfs::lock(&file).map_err(failed)?;
    let old = nfs::read(&file).map_err(failed)?;
    let known = if all { nfs::places(&old) } else { Vec::new() };
    let table = if all { host::MountTable::read().map_err(|e| e.to_string())? } else { host::MountTable::default() };
    let told: HashSet<&Path> = of.iter().map(|(p, _)| *p).collect();
    let is_stale = |p: &&PathBuf| !told.contains(p.as_path()) && table.top_at(p).is_none();
    let stale: Vec<&PathBuf> = known.iter().filter(is_stale).collect();
    of.extend(stale.into_iter().map(|p| (p.as_path(), &[][..])));
    let new = nfs::with_lines(&old, &of);
    if new != old {
        nfs::write(&file, &new).map_err(failed)?;
    } else if !wanted {
        return Ok(());
    }
    if root.exportfs().exists() { run(&root.exportfs(), &["-ra".into()]) } else { Ok(()) }
}

impl PoolEngine {
    /// How a mounted file system is to be shared.
    fn share_of(&self, ds: &Dataset, place: PathBuf, protocols: &[Protocol]) -> Share {
        let dir = ds.dir();
        let value = |p: Protocol| dir.prop(p.prop()).0.text().to_string();
        // What mount(8) put somewhere is shared by hand.
        let is_legacy = matches!(self.mount_point(&dir), MountPoint::Legacy);
        let is_on = |p: Protocol| !is_legacy && value(p) != "off" && (p == Protocol::Smb || nfs::is_valid(&value(p)));
        let lines = || match is_on(Protocol::Nfs) {
            true => nfs::lines(&place, &value(Protocol::Nfs), ds.phys().fsid_guid),
            false => Vec::new(),
        };
        let nfs = protocols.contains(&Protocol::Nfs).then(lines);
        let smb = protocols.contains(&Protocol::Smb).then(|| is_on(Protocol::Smb));
        Share { name: ds.name(), place, nfs, smb }
    }

    /// Runs [`apply`] on a thread of its own.
    async fn apply_shares(&self, shares: Vec<Share>, all: bool) -> Vec<String> {
        let Ok(Some(root)) = front_end().map(|f| f.shares()) else { return Vec::new() };
        if shares.is_empty() && !all {
            return Vec::new();
        }
        let done = self.pool.rt().timeout(SHARE_LIMIT, host::blocking(move || apply(&root, &shares, all)));
        match done.await {
            Some(Ok(wrong)) => wrong,
            Some(Err(e)) => vec![e.to_string()],
            None => vec!["the NFS or SMB server of the system does not answer".to_string()],
        }
    }

    /// Shares those of these file systems that are mounted, as their properties say, or ends their
    /// shares; what goes wrong is a warning of the command.
    pub(crate) async fn share_these(&self, names: &[String], protocols: &[Protocol]) {
        let shares = self.shares_of(names, protocols);
        self.warn_of_shares(self.apply_shares(shares, false).await);
    }

    fn shares_of(&self, names: &[String], protocols: &[Protocol]) -> Vec<Share> {
        let places = names.iter().filter_map(|n| Some((n, self.mounts.path_of(n)?)));
        let found = places.filter_map(|(n, place)| Some((self.pool.dsl().find(n).ok()?, place)));
        found.map(|(ds, place)| self.share_of(&ds, place, protocols)).collect()
    }

    /// Ends all shares of these places.
    pub(super) async fn end_shares(&self, places: impl IntoIterator<Item = (&String, &PathBuf)>) {
        let shares = places.into_iter().map(|(name, place)| Share::end(name, place)).collect();
        self.warn_of_shares(self.apply_shares(shares, false).await);
    }

    fn warn_of_shares(&self, wrong: Vec<String>) {
        for sentence in wrong {
            say(Level::Warning, &sentence);
            let sentence = format!("warning: {sentence}");
            if !self.mounts.has_notice(&sentence) {
                self.mounts.add_notice(sentence);
            }
        }
    }

    async fn shared(&self) -> Result<Shared> {
        let Some(root) = front_end()?.shares() else { return Ok(Shared::default()) };
        host::blocking(move || Shared::now(&root)).await
    }

    /// `zfs share NAME`: mounts it, if it is not, and shares it.
    pub async fn fs_share(&self, name: &str) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let ds = self.find(name)?;
        self.check_mountable_kind(&ds).await?;
        self.share_one(&ds).await.map_err(|e| e.at(format!("cannot share '{name}'")))
    }

    async fn share_one(&self, ds: &std::rc::Rc<Dataset>) -> Result<()> {
        let (dir, name) = (ds.dir(), ds.name());
        let on: Vec<Protocol> = Protocol::ALL.iter().copied().filter(|p| p.is_on(&dir)).collect();
        if on.is_empty() {
            return Err(Error::invalid(
                "legacy share: use exports(5) or smb.conf(5) to share this filesystem, or set the sharenfs or sharesmb property",
            ));
        }
        match self.mount_point(&dir) {
            MountPoint::Legacy => {
                return Err(Error::invalid(
                    "legacy mountpoint: use exports(5) or smb.conf(5) to share this filesystem",
                ));
            }
            MountPoint::None => return Err(Error::invalid("no mountpoint set")),
            MountPoint::Path(_) if dir.prop("canmount").0.num() == 0 => {
                return Err(Error::invalid("'canmount' property is set to 'off'"));
            }
            MountPoint::Path(_) => {}
        }
        match self.mounts.path_of(&name) {
            Some(place) => {
                let shared = self.shared().await?;
                if on.iter().all(|p| shared.has(&place, *p)) {
                    return Err(Error::new(ErrorKind::Exists, "filesystem already shared"));
                }
            }
            None => self.mount_alone(ds, TempProps::default(), None).await?,
        }
        let wrong = self.apply_shares(self.shares_of(&[name], Protocol::ALL), false).await;
        nothing_wrong(&wrong, "; ")
    }

    /// `zfs share -a`: shares all that are to be shared and drops what is left of others; mounts
    /// those that are to be mounted.
    pub async fn fs_share_all(&self, protocols: &[Protocol]) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let is_on = |name: &str| {
            let dir = self.pool.dsl().find_dir(name);
            dir.is_ok_and(|d| protocols.iter().any(|p| p.is_on(&d)))
        };
        let mut wrong = Vec::new();
        for (_, name) in self.places_to_mount(TempProps::default()).await {
            if is_on(&name)
                && let Ok(ds) = self.pool.dsl().find(&name)
                && let Err(e) = self.mount_alone(&ds, TempProps::default(), None).await
            {
                wrong.push(e.to_string());
            }
        }
        let names: Vec<String> = self.mounts.list().into_iter().map(|(n, _)| n).filter(|n| is_on(n)).collect();
        wrong.extend(self.apply_shares(self.shares_of(&names, protocols), true).await);
        nothing_wrong(&wrong, "\n")
    }

    /// `zfs unshare`, with a name or mount point.
    pub async fn fs_unshare(&self, name: &str) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let ds = self.find(name)?;
        self.check_mountable_kind(&ds).await?;
        let cannot = |e: Error| e.at(format!("cannot unshare '{name}'"));
        let dir = ds.dir();
        if !Protocol::ALL.iter().any(|p| p.is_on(&dir)) {
            return Err(cannot(Error::invalid(
                "legacy share: use exportfs(8) or smbcontrol(1) to unshare this filesystem",
            )));
        }
        let none = || cannot(Error::not_found("not currently shared"));
        let place = self.mounts.path_of(&ds.name()).ok_or_else(none)?;
        let shared = self.shared().await?;
        if !Protocol::ALL.iter().any(|p| shared.has(&place, *p)) {
            return Err(none());
        }
        let wrong = self.apply_shares(vec![Share::end(&ds.name(), &place)], false).await;
        nothing_wrong(&wrong, "; ").map_err(cannot)
    }

    /// `zfs unshare -a`, of these protocols.
    pub async fn fs_unshare_all(&self, protocols: &[Protocol]) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let ended = |(name, place): (String, PathBuf)| Share {
            nfs: protocols.contains(&Protocol::Nfs).then(Vec::new),
            smb: protocols.contains(&Protocol::Smb).then_some(false),
            ..Share::end(&name, &place)
        };
        let shared = self.shared().await?;
        let mut all = self.mounts.list();
        all.retain(|(_, place)| protocols.iter().any(|p| shared.has(place, *p)));
        let wrong = self.apply_shares(all.into_iter().map(ended).collect(), false).await;
        nothing_wrong(&wrong, "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system whose `exportfs` and `net` note what they are called with; `net` makes usershares.
    fn system(dir: &Path) -> ShareRoot {
        let root = ShareRoot(dir.to_path_buf());
        for program in [root.exportfs(), root.net()] {
            std::fs::create_dir_all(program.parent().unwrap()).unwrap();
            let log = dir.join("log");
            let shares = root.usershares();
            let text = format!(
                "#!/bin/sh\necho \"$*\" >> {}\ncase $4 in add) printf 'path=%s\\n' \"$6\" > {s}/\"$5\";; delete) rm {s}/\"$5\";; esac\n",
                log.display(),
                s = shares.display()
            );
            std::fs::write(&program, text).unwrap();
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::create_dir_all(root.usershares()).unwrap();
        root
    }

    fn on(name: &str, place: &str) -> Share {
        let place = PathBuf::from(place);
        Share { name: name.into(), nfs: Some(nfs::lines(&place, "on", 1)), smb: Some(true), place }
    }

    #[test]
    fn shares_are_told_to_both_servers() {
        let dir = host::TempDir::new("shares").unwrap();
        let root = system(&dir.join("root"));
        assert_eq!(apply(&root, &[on("t/a", "/a"), on("t/b", "/b")], false), [""; 0]);
        let now = Shared::now(&root);
        for (place, protocol) in [("/a", Protocol::Nfs), ("/b", Protocol::Nfs), ("/a", Protocol::Smb)] {
            assert!(now.has(Path::new(place), protocol), "{place} {protocol:?}");
        }
        assert_eq!(apply(&root, &[Share { smb: None, ..Share::end("t/a", Path::new("/a")) }], false), [""; 0]);
        let now = Shared::now(&root);
        assert!(!now.has(Path::new("/a"), Protocol::Nfs) && now.has(Path::new("/a"), Protocol::Smb));
        // Nothing is mounted at /b.
        assert_eq!(apply(&root, &[], true), [""; 0]);
        assert!(!Shared::now(&root).has(Path::new("/b"), Protocol::Nfs));
        let log = std::fs::read_to_string(dir.join("root/log")).unwrap();
        assert_eq!(log.lines().filter(|l| *l == "-ra").count(), 3, "{log}");
        assert_eq!(log.lines().filter(|l| l.contains("usershare add")).count(), 2, "{log}");
    }

    #[test]
    fn a_missing_server_is_a_sentence() {
        let dir = host::TempDir::new("shares").unwrap();
        let root = ShareRoot(dir.join("root"));
        let wrong = apply(&root, &[on("t/a", "/a")], false);
        assert!(wrong[0].starts_with("'t/a' is not shared by NFS: ") && wrong[0].ends_with("install an NFS server"));
        assert_eq!(wrong[1], "'t/a' is not shared by SMB: install Samba and let it have usershares");
        assert_eq!(apply(&root, &[Share::end("t/a", Path::new("/a"))], true), [""; 0]);
        assert!(!root.exports().exists());
    }
}
