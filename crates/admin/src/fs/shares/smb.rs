//! SMB shares: usershares of Samba, made and removed by its command `net`.

use std::path::{Path, PathBuf};

/// The name of a share: signs that Samba does not take become `_`.
pub(super) fn name_of(fs: &str) -> String {
    fs.chars().map(|c| if matches!(c, '/' | '-' | ':' | ' ') { '_' } else { c }).collect()
}

/// The words of `net` that share a place.
pub(super) fn add(fs: &str, place: &Path) -> Vec<std::ffi::OsString> {
    let mut comment = std::ffi::OsString::from("Comment: ");
    comment.push(place);
    let place = place.as_os_str().to_os_string();
    ["-S", "127.0.0.1", "usershare", "add", &name_of(fs)]
        .map(Into::into)
        .into_iter()
        .chain([place, comment, "Everyone:F".into()])
        .collect()
}

/// The words of `net` that end a share.
pub(super) fn delete(name: &str) -> Vec<std::ffi::OsString> {
    ["-S", "127.0.0.1", "usershare", "delete", name].map(Into::into).to_vec()
}

/// Names and places of all usershares: files of that name with a line `path=`.
pub(super) fn list(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let share = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok().filter(|n| !n.starts_with('.'))?;
        // Members of a group put what they like there.
        let text =
            std::fs::read_to_string(entry.metadata().ok().filter(|m| m.is_file()).map(|_| entry.path())?).ok()?;
        let path = text.lines().find_map(|l| l.strip_prefix("path="))?;
        Some((name, PathBuf::from(path)))
    };
    entries.flatten().filter_map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_openzfs() {
        assert_eq!(name_of("tank/a-b:c d"), "tank_a_b_c_d");
        let words = add("tank/a", Path::new("/tank/a"));
        assert_eq!(
            words.join(std::ffi::OsStr::new("|")),
            "-S|127.0.0.1|usershare|add|tank_a|/tank/a|Comment: /tank/a|Everyone:F"
        );
    }
}
