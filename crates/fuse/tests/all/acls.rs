//! POSIX ACLs act as on the file system of the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Setup, with_mount};
use host::TempDir;

/// `acltype=posix`.
const POSIX: (&str, u64) = ("acltype", 1);

fn sh(dir: &Path, script: &str) -> String {
    let done = Command::new("sh").args(["-c", script]).current_dir(dir).output().unwrap();
    String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr)
}

/// Whether the requirements are met, a folder with ACLs to compare with included.
fn can_compare(dir: &Path) -> bool {
    let can = sh(dir, "touch x && setfacl -m u:1:r x && command -v getfattr setpriv >/dev/null && echo good");
    if can != "good\n" {
        eprintln!("SKIPPED: no tools for ACLs, or no ACLs in {}: nothing was compared", dir.display());
    }
    can == "good\n"
}

fn compare(props: &'static [(&'static str, u64)]) {
    with_mount(Setup { props, ..Setup::default() }, |root| {
        let here = TempDir::new("acls").unwrap();
        fs::set_permissions(here.path(), fs::Permissions::from_mode(0o755)).unwrap();
        if !can_compare(here.path()) {
            return;
        }
        let script = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/acls.sh")).unwrap();
        let [want, got] = [here.path(), &root].map(|place| {
            let dir = place.join("dir");
            fs::create_dir(&dir).unwrap();
            sh(&dir, &script)
        });
        assert!(want.lines().count() > 300, "{want}");
        for (n, (w, g)) in want.lines().zip(got.lines()).enumerate() {
            let before: Vec<&str> = want.lines().take(n).collect();
            assert_eq!(g, w, "line {n}, after\n{}", before[n.saturating_sub(12)..].join("\n"));
        }
        assert_eq!(want.lines().count(), got.lines().count());
    });
}

#[test]
fn acls_with_the_attributes() {
    compare(&[POSIX]);
}

#[test]
fn acls_in_hidden_folders() {
    compare(&[POSIX, ("xattr", 1)]);
}

#[test]
fn without_acls_there_are_none() {
    with_mount(Setup::default(), |root| {
        if sh(&root, "command -v setfacl getfattr").lines().count() != 2 {
            eprintln!("SKIPPED: no tools for ACLs");
            return;
        }
        let said =
            sh(&root, "umask 022; touch f; setfacl -m u:1:r f; getfattr -n system.posix_acl_access f; stat -c %a f");
        assert_eq!(said.matches("Operation not supported").count(), 2, "{said}");
        assert!(said.contains("644\n"), "{said}");
    });
}
