//! Set-id bits and capabilities leave a file exactly when they do on the file system of the
//! machine, and at once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Setup, with_mount};
use host::TempDir;

/// The output of `privileges.sh` in a folder.
fn table(dir: &Path, program: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/privileges.sh");
    let done = Command::new("sh").arg(script).arg(program).current_dir(dir).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Cases that a FUSE server cannot distinguish (docs/posix.md). In none of these does weir leave
/// more privileges than others do. In the last it returns success instead of refusing, and changes
/// nothing.
const KNOWN: [(&str, &[&str]); 3] = [
    // The kernel removes the capability, and then sends the same as if set-id bits were to go, too.
    (", both of 6777 0:0 by root:", &["allocate", "punch", "zero", "write at two places", "copy a range", "overwrite"]),
    // A caller with CAP_FSETID that is neither root nor the owner.
    (" 0:0 by strong:", &["allocate", "punch", "zero", "give to nobody else"]),
    (" 0:0 by user:", &["give to nobody else"]),
];

fn is_known(line: &str) -> bool {
    KNOWN.iter().any(|(of, what)| line.contains(of) && what.iter().any(|w| line.starts_with(w)))
}

/// Lines in which the two differ.
fn differences(want: &str, got: &str) -> Vec<String> {
    assert_eq!(want.lines().count(), got.lines().count(), "lines");
    let pairs = want.lines().zip(got.lines()).filter(|(w, g)| w != g && !is_known(w));
    pairs.map(|(w, g)| format!("here: {w}\nweir: {g}")).collect()
}

/// A folder that other users reach.
fn open_folder() -> TempDir {
    let dir = TempDir::new("privileges").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn compare(setup: Setup) {
    with_mount(setup, |root| {
        let missing = ["setpriv", "setfattr", "getfattr", "fallocate", "perl"].iter().find(|tool| {
            !Command::new("sh").arg("-c").arg(format!("command -v {tool}")).output().unwrap().status.success()
        });
        if let Some(tool) = missing {
            eprintln!("SKIPPED: {tool} is not installed: privileges were not compared");
            return;
        }
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        let here = open_folder();
        let program = here.join("id");
        fs::copy("/usr/bin/id", &program).unwrap();
        let dir = here.join("dir");
        fs::create_dir(&dir).unwrap();
        let want = table(&dir, &program);
        // The folder itself must be one where they have an effect, or the comparison is void.
        let untouched = "read, 6777 of 6777 0:0 by user: ended 0, runs as 0:0,";
        if !want.contains(untouched) {
            eprintln!("SKIPPED: set-id bits have no effect in {}: privileges were not compared", dir.display());
            return;
        }
        let dir = root.join("dir");
        fs::create_dir(&dir).unwrap();
        let got = table(&dir, &program);
        let bad = differences(&want, &got);
        assert!(bad.is_empty(), "{} of {} differ:\n{}", bad.len(), want.lines().count(), bad.join("\n"));
    });
}

#[test]
fn privileges_go_as_elsewhere() {
    compare(Setup::default());
}
