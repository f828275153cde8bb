//! Versions: of this program, and the one that tools look for.
//!
//! Tools decide by the first line of `zfs version` which features they use: they cut it at `zfs-`
//! and the next `-`, and expect two or three numbers between. weir has the formats and commands of
//! OpenZFS 2.1, so the line has that version, followed by weir's own. The second line is the
//! kernel's in OpenZFS.

use serde_json::json;

use crate::zpool::parse_for;
use crate::{Done, Fail, print};

/// The release of OpenZFS whose formats and commands weir has.
pub const OPENZFS: &str = "2.1.11";
const OWN: &str = env!("CARGO_PKG_VERSION");

/// `weir --version`.
pub fn own() -> String {
    format!("weir {OWN} (formats and commands of OpenZFS {OPENZFS})\n")
}

/// What stands behind the version of OpenZFS.
pub fn release() -> String {
    format!("weir{OWN}")
}

/// The version as OpenZFS writes it.
pub fn alias() -> String {
    format!("zfs-{OPENZFS}-{}", release())
}

/// The two lines of `zfs version`.
fn lines() -> [String; 2] {
    [alias(), format!("zfs-kmod-{OPENZFS}-{}", release())]
}

/// `zpool version` and `zfs version`.
pub fn run(program: &'static str, args: &[String]) -> Done {
    let p = parse_for(program, args, "j", &[("json", false, 'j')], "version")?;
    if !p.operands.is_empty() {
        return Err(Fail::Usage("too many arguments".into(), "version"));
    }
    let [userland, kernel] = lines();
    if p.has('j') {
        let command = format!("{program} version");
        let text = serde_json::to_string_pretty(&json!({
            "output_version": { "command": command, "vers_major": 0, "vers_minor": 1 },
            "zfs_version": { "userland": userland, "kernel": kernel },
        }));
        let text = text.map_err(|e| base::Error::invalid(format!("the version cannot be written: {e}")))?;
        print(&format!("{text}\n"));
        return Ok(());
    }
    print(&format!("{userland}\n{kernel}\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_find_the_release_between_the_dashes() {
        let [userland, kernel] = lines();
        for (line, start) in [(userland, "zfs-"), (kernel, "zfs-kmod-")] {
            let number = line.strip_prefix(start).and_then(|l| l.split('-').next()).unwrap();
            let parts: Vec<u32> = number.split('.').map(|n| n.parse().unwrap()).collect();
            assert!(parts[0] == 2 && parts.len() == 3, "{line}");
        }
        assert!(own().starts_with(&format!("weir {OWN} ")));
    }
}
