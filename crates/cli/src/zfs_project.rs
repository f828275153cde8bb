//! `zfs project`: the projects of files, by the requests that `chattr -p` and `lsattr -p` use.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use host::Project;

use crate::opts::Parsed;
use crate::{Done, Fail, print};

/// What is done with each file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Shown.
    List,
    /// Compared with a project; none: that of the file or folder which was named.
    Check(Option<u32>),
    /// Given no project; or, with `true`, only that new entries get none.
    Clear(bool),
    /// Given a project (none: that of what was named), and with `true` also the flag.
    Set(Option<u32>, bool),
}

/// How folders are treated.
#[derive(Clone, Copy, Debug)]
struct How {
    work: Work,
    recursive: bool,
    only_itself: bool,
    /// Names end with NUL, and nothing else is said.
    nul: bool,
}

/// The work and the way that options ask for; the error is a mistake in them.
fn how(p: &Parsed) -> Result<How, String> {
    let works: Vec<char> = p.options().iter().map(|(l, _)| *l).filter(|l| "Ccs".contains(*l)).collect();
    if works.len() > 1 {
        return Err("cannot specify '-C' '-c' '-s' together".to_string());
    }
    let id = match p.value('p') {
        None => None,
        Some(text) => {
            let number = match text.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => text.parse::<u32>(),
            };
            let fits = number.ok().filter(|n| *n != u32::MAX);
            Some(fits.ok_or_else(|| format!("invalid project ID '{text}': it must be less than {}", u32::MAX))?)
        }
    };
    // Of -d and -r the last one counts.
    let last = p.options().iter().rev().map(|(l, _)| *l).find(|l| matches!(l, 'd' | 'r'));
    let work = match (works.first(), id) {
        (Some('C'), _) => Work::Clear(p.has('k')),
        (Some('c'), id) => Work::Check(id),
        (Some(_), id) => Work::Set(id, true),
        (None, Some(id)) => Work::Set(Some(id), false),
        (None, None) => Work::List,
    };
    let clears = matches!(work, Work::Clear(_));
    let useless = |letter: char| Err(format!("'-{letter}' cannot be used here"));
    if p.has('k') && !clears {
        return Err("'-k' is only valid together with '-C'".to_string());
    }
    if p.has('0') && !matches!(work, Work::Check(_)) {
        return Err("'-0' is only valid together with '-c'".to_string());
    }
    if last == Some('d') && !matches!(work, Work::List | Work::Check(_)) {
        return useless('d');
    }
    if clears && id.is_some() {
        return useless('p');
    }
    Ok(How { work, recursive: last == Some('r'), only_itself: last == Some('d'), nul: p.has('0') })
}

/// Opens what is to be asked, without waiting for the other end of a pipe.
fn open(path: &Path) -> io::Result<File> {
    const O_NONBLOCK_NOCTTY: i32 = 0o4000 | 0o400;
    OpenOptions::new().read(true).custom_flags(O_NONBLOCK_NOCTTY).open(path)
}

fn fail(what: &str, path: &Path, e: &io::Error) -> Fail {
    eprintln!("failed to {what} {}: {e}", path.display());
    Fail::AlreadyReported
}

impl How {
    /// One file or folder; `gone` is no failure for those below what was named.
    fn one(&self, path: &Path, below: bool) -> Done {
        let file = match open(path) {
            Err(e) if below && e.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file.map_err(|e| fail("open", path, &e))?,
        };
        let now = host::project_of(&file).map_err(|e| fail("get the project of", path, &e))?;
        let new = match self.work {
            Work::List => {
                let flag = if now.inherit { 'P' } else { '-' };
                print(&format!("{:>5} {flag} {}\n", now.id, path.display()));
                return Ok(());
            }
            Work::Check(id) => {
                self.check(path, now, id.unwrap_or(0));
                return Ok(());
            }
            Work::Clear(keep) => Project { id: if keep { now.id } else { 0 }, inherit: false },
            Work::Set(id, flag) => Project { id: id.unwrap_or(0), inherit: now.inherit || flag },
        };
        if new == now {
            return Ok(());
        }
        host::set_project(&file, new).map_err(|e| fail("set the project of", path, &e))
    }

    fn check(&self, path: &Path, now: Project, id: u32) {
        let (wrong, flag) = (now.id != id, !now.inherit);
        let name = path.display();
        if self.nul {
            if wrong || flag {
                print(&format!("{name}\0"));
            }
            return;
        }
        if wrong {
            print(&format!("{name} - project ID is not set properly ({}/{id})\n", now.id));
        }
        if flag {
            print(&format!("{name} - project inherit flag is not set\n"));
        }
    }

    /// What was named, and what it asks for below it.
    fn target(mut self, path: &Path) -> Done {
        let meta = fs::metadata(path).map_err(|e| fail("stat", path, &e))?;
        if !meta.is_file() && !meta.is_dir() {
            eprintln!("{}: only files and folders have projects", path.display());
            return Err(Fail::AlreadyReported);
        }
        if !meta.is_dir() && (self.recursive || self.only_itself) {
            let letter = if self.recursive { 'r' } else { 'd' };
            eprintln!("'-{letter}' option on non-dir target {}", path.display());
            return Err(Fail::AlreadyReported);
        }
        // Without a project, that of what was named counts for all below it.
        if let Work::Check(id @ None) | Work::Set(id @ None, _) = &mut self.work {
            let file = open(path).map_err(|e| fail("open", path, &e))?;
            *id = Some(host::project_of(&file).map_err(|e| fail("get the project of", path, &e))?.id);
        }
        self.one(path, false)?;
        let lists = matches!(self.work, Work::List | Work::Check(_));
        if !meta.is_dir() || self.only_itself || !(self.recursive || lists) {
            return Ok(());
        }
        let mut folders = vec![path.to_path_buf()];
        while let Some(folder) = folders.pop() {
            self.folder(&folder, &mut folders)?;
        }
        Ok(())
    }

    fn folder(&self, folder: &Path, folders: &mut Vec<PathBuf>) -> Done {
        let entries = match fs::read_dir(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|e| fail("open", folder, &e))?,
        };
        for entry in entries {
            let entry = entry.map_err(|e| fail("read", folder, &e))?;
            let kind = match entry.file_type() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                kind => kind.map_err(|e| fail("stat", &entry.path(), &e))?,
            };
            // The request goes through an open file: links, pipes and devices have none.
            if !kind.is_file() && !kind.is_dir() {
                continue;
            }
            self.one(&entry.path(), true)?;
            if kind.is_dir() && self.recursive {
                folders.push(entry.path());
            }
        }
        Ok(())
    }
}

/// `zfs project`
pub fn project(p: &Parsed) -> Done {
    let how = how(p).map_err(|e| Fail::Usage(e, "project"))?;
    if p.operands.is_empty() {
        return Err(Fail::Usage("missing file or directory target(s)".into(), "project"));
    }
    let mut done = Ok(());
    for name in &p.operands {
        if let Err(e) = how.target(Path::new(name)) {
            done = Err(e);
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opts::Spec;

    #[test]
    fn options_choose_the_work() {
        let parse = |text: &str| {
            let args: Vec<String> = text.split(' ').filter(|a| !a.is_empty()).map(String::from).collect();
            how(&Spec { letters: "0Ccdkp:rs", long: &[] }.parse(&args).unwrap())
        };
        let work = |text: &str| parse(text).map(|h| (h.work, h.recursive, h.only_itself));
        assert_eq!(work(""), Ok((Work::List, false, false)));
        assert_eq!(work("-d -r"), Ok((Work::List, true, false)));
        assert_eq!(work("-c -r -d"), Ok((Work::Check(None), false, true)));
        assert_eq!(work("-rs -p 0x10"), Ok((Work::Set(Some(16), true), true, false)));
        assert_eq!(work("-p 5"), Ok((Work::Set(Some(5), false), false, false)));
        assert_eq!(work("-Ck"), Ok((Work::Clear(true), false, false)));
        for bad in
            ["-c -C", "-c -k", "-C -d", "-C -p 1", "-C -0", "-s -d", "-s -0", "-k", "-0", "-p -1", "-p 4294967295"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
