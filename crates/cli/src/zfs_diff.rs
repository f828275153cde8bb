//! `zfs diff`.

use admin::request::{DiffItem, DiffLine, FsDiff, unescaped};
use base::Error;

use crate::opts::Parsed;
use crate::{Done, Fail, ask_each};

/// How lines are printed.
#[derive(Clone, Copy, Default, Debug)]
struct Style {
    /// `-F`: with the type of the file.
    classify: bool,
    /// `-H`: a tab between the names of a renamed file.
    scripted: bool,
    /// `-t`: with the change time.
    times: bool,
    /// `-h`: names as they are.
    plain: bool,
}

/// `zfs diff`
pub fn diff(p: &Parsed) -> Done {
    let (from, to) = match p.operands.as_slice() {
        [] => return Err(Fail::Usage("must provide at least one snapshot name".into(), "diff")),
        [from] => states(from, None)?,
        [from, to] => states(from, Some(to))?,
        _ => return Err(Fail::Usage("too many arguments".into(), "diff")),
    };
    let style = Style { classify: p.has('F'), scripted: p.has('H'), times: p.has('t'), plain: p.has('h') };
    ask_each(&FsDiff { from, to }, &mut |item| match item {
        Some(DiffItem::Line(line)) => print_bytes(&style.line(&line)),
        // As in OpenZFS, this is no failure of the command.
        Some(DiffItem::Failed(text)) => {
            eprintln!("{text}");
            true
        }
        None => true,
    })
}

/// Prints to standard output; false if nobody reads it any more.
fn print_bytes(bytes: &[u8]) -> bool {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).is_ok()
}

/// The full names of the earlier snapshot and of the later snapshot or file system. Either may lack
/// the file system, which is that of the other one.
fn states(from: &str, to: Option<&str>) -> Result<(String, String), Fail> {
    let Some(to) = to else {
        let fs = from.split_once('@').filter(|(fs, snap)| !fs.is_empty() && !snap.is_empty());
        let (fs, _) = fs.ok_or_else(|| {
            Error::invalid(format!("Badly formed snapshot name {from}: it is to be FILESYSTEM@SNAPSHOT"))
        })?;
        return Ok((from.to_string(), fs.to_string()));
    };
    let part = |name: &str| {
        let (fs, snap) = name.split_once('@').map_or((name, None), |(fs, snap)| (fs, Some(snap)));
        (fs.to_string(), snap.map(str::to_string))
    };
    let ((from_fs, from_snap), (to_fs, to_snap)) = (part(from), part(to));
    let (Some(from_snap), Some(fs)) =
        (from_snap.filter(|s| !s.is_empty()), [&from_fs, &to_fs].into_iter().find(|fs| !fs.is_empty()))
    else {
        let why = format!("Unable to determine which snapshots to compare: '{from}' and '{to}'");
        return Err(Error::invalid(format!("{why}, the first is to be a snapshot")).into());
    };
    if to_snap.as_deref() == Some("") {
        let why = format!("Unable to determine which snapshots to compare: '{to}' lacks the name after the '@'");
        return Err(Error::invalid(why).into());
    }
    let or = |own: &String| if own.is_empty() { fs.clone() } else { own.clone() };
    let to = match to_snap {
        Some(snap) => format!("{}@{snap}", or(&to_fs)),
        None => or(&to_fs),
    };
    Ok((format!("{}@{from_snap}", or(&from_fs)), to))
}

impl Style {
    /// A change, as OpenZFS prints it.
    fn line(self, line: &DiffLine) -> Vec<u8> {
        let mut out = Vec::new();
        if self.times {
            out.extend(format!("{:>10}.{:09}\t", line.ctime.0, line.ctime.1).bytes());
        }
        out.extend(format!("{}\t", line.sign).bytes());
        if self.classify {
            out.extend(format!("{}\t", line.kind).bytes());
        }
        let mut path = |path: &str| match self.plain {
            true => out.extend(unescaped(path)),
            false => out.extend(path.bytes()),
        };
        path(&line.path);
        if let Some(renamed) = &line.renamed {
            path(if self.scripted { "\t" } else { " -> " });
            path(renamed);
        }
        if line.links != 0 {
            out.extend(format!("\t({:+})", line.links).bytes());
        }
        out.push(b'\n');
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_name_may_lack_the_file_system() {
        for (from, to, want) in [
            ("p/f@a", None, ("p/f@a", "p/f")),
            ("p/f@a", Some("p/f@b"), ("p/f@a", "p/f@b")),
            ("p/f@a", Some("@b"), ("p/f@a", "p/f@b")),
            ("p/f@a", Some("p/f"), ("p/f@a", "p/f")),
            ("@a", Some("p/f@b"), ("p/f@a", "p/f@b")),
            ("@a", Some("p/f"), ("p/f@a", "p/f")),
            ("p/f@a", Some("p/clone@b"), ("p/f@a", "p/clone@b")),
        ] {
            assert_eq!(states(from, to).unwrap(), (want.0.to_string(), want.1.to_string()), "{from} {to:?}");
        }
        for (from, to, want) in [
            ("p/f", None, "Badly formed snapshot name p/f"),
            ("@a", None, "Badly formed snapshot name @a"),
            ("p/f", Some("p/f@b"), "Unable to determine which snapshots to compare"),
            ("@a", Some("@b"), "Unable to determine which snapshots to compare"),
            ("p/f@", Some("p/f"), "Unable to determine which snapshots to compare"),
            ("p/f@a", Some("p/f@"), "Unable to determine which snapshots to compare"),
        ] {
            let Err(Fail::Error(e)) = states(from, to) else { panic!("{from} {to:?}") };
            assert!(e.to_string().starts_with(want), "{e}");
        }
    }

    #[test]
    fn lines_are_those_of_openzfs() {
        let line = |sign, path: &str, renamed: Option<&str>, links| DiffLine {
            sign,
            kind: 'F',
            path: path.into(),
            renamed: renamed.map(str::to_string),
            links,
            ctime: (1_700_000_000, 5),
        };
        let renamed = line('R', "/p/a\\0040b", Some("/p/\\0303\\0251"), 0);
        let none = Style::default();
        let style = |letters: &str| Style {
            classify: letters.contains('F'),
            scripted: letters.contains('H'),
            times: letters.contains('t'),
            plain: letters.contains('h'),
        };
        for (style, line, want) in [
            (none, &line('+', "/p/x", None, 0), "+\t/p/x\n"),
            (none, &line('M', "/p/x", None, -2), "M\t/p/x\t(-2)\n"),
            (style("F"), &line('M', "/p/x", None, 1), "M\tF\t/p/x\t(+1)\n"),
            (style("t"), &line('-', "/p/x", None, 0), "1700000000.000000005\t-\t/p/x\n"),
            (none, &renamed, "R\t/p/a\\0040b -> /p/\\0303\\0251\n"),
            (style("H"), &renamed, "R\t/p/a\\0040b\t/p/\\0303\\0251\n"),
            (style("h"), &renamed, "R\t/p/a b -> /p/é\n"),
        ] {
            assert_eq!(String::from_utf8(style.line(line)).unwrap(), want, "{style:?}");
        }
        let old = DiffLine { ctime: (-1, 0), ..line('M', "/", None, 0) };
        assert_eq!(style("t").line(&old), b"        -1.000000000\tM\t/\n");
    }
}
