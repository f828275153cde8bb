//! `zfs diff`.

use base::Result;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Direction, Identity, Kind, Need, Report, Request, Rights, pool_part};

pub(super) const KINDS: &[Kind] = &[Kind::of::<FsDiff>()];

/// `zfs diff`: what changed in a file system since a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsDiff {
    /// The full name of the snapshot.
    pub from: String,
    /// The later snapshot, or the file system as it is now.
    pub to: String,
}

/// A change of a file. Paths are in printable ASCII: [`escaped`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiffLine {
    /// `+`, `-`, `M` or `R`.
    pub sign: char,
    /// The type of the file, a letter of `-F`.
    pub kind: char,
    /// The path, with the mount point.
    pub path: String,
    /// The new path of a file that was renamed.
    pub renamed: Option<String>,
    /// How many more names it has.
    pub links: i64,
    /// The change time: seconds since 1970 and nanoseconds.
    pub ctime: (i64, u32),
}

/// An item of a diff.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DiffItem {
    /// A change.
    Line(DiffLine),
    /// A file could not be looked at, in a sentence.
    Failed(String),
}

impl Request for FsDiff {
    const NAME: &'static str = "FsDiff";
    const TITLE: &'static str = "zfs diff";
    const RIGHTS: Rights = Rights::Delegable;
    const STREAM: Option<Direction> = Some(Direction::ToClient);
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::on(&self.from, &["diff"]), Need::on(&self.to, &["diff"])]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let pool = pool_part(&self.to).to_string();
        cx.report_on_pool(&pool, move |e, to| async move { e.diff(&self.from, &self.to, to).await })
    }
}

impl Report for FsDiff {
    type Item = DiffItem;
}

/// A path as OpenZFS prints it: what is no visible ASCII, and the backslash, as a backslash and
/// four octal digits.
pub fn escaped(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path {
        match byte {
            b'\\' | 0..=b' ' | 0x7f.. => out.push_str(&format!("\\{byte:04o}")),
            visible => out.push(char::from(*visible)),
        }
    }
    out
}

/// The bytes of an [`escaped`] path.
pub fn unescaped(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let digits = tail.get(..4).filter(|_| *byte == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(escaped) => {
                out.push(escaped);
                rest = &tail[4..];
            }
            None => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_and_come_back() {
        for (path, text) in [
            (&b"/p/a b"[..], "/p/a\\0040b"),
            ("/é\\\n".as_bytes(), "/\\0303\\0251\\0134\\0012"),
            (b"/\x7f~!", "/\\0177~!"),
            (b"", ""),
        ] {
            assert_eq!(escaped(path), text);
            assert_eq!(unescaped(text), path);
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescaped(&escaped(&all)), all);
        // What nobody escaped stays as it is.
        assert_eq!(unescaped("\\9\\00"), b"\\9\\00");
    }
}
