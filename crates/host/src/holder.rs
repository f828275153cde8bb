//! The holder of a busy block device, for the error message.
//!
//! The kernel reports only that a device is busy. The reason is elsewhere: in the list of mounts,
//! the swap areas, the holders in sysfs (md, device mapper), and the same for its partitions and
//! for the disk that it is a partition of.

use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The holder of the block device at `path`, such as "it is mounted at '/home'"; None if unknown.
pub fn holder(path: &Path) -> Option<String> {
    let meta = std::fs::metadata(path).ok()?;
    if !meta.file_type().is_block_device() {
        return None;
    }
    let own = |dev: u64| held(dev);
    let dev = meta.rdev();
    if let Some(why) = own(dev) {
        return Some(format!("it {why}"));
    }
    let sys = sysfs(dev);
    for (name, part) in partitions(&sys) {
        if let Some(why) = own(part) {
            return Some(format!("its partition {name} {why}"));
        }
    }
    if sys.join("partition").exists()
        && let Some(disk) = number_in(&sys.join("../dev"))
        && let Some(why) = own(disk)
    {
        return Some(format!("the disk that it is part of {why}"));
    }
    None
}

fn sysfs(dev: u64) -> PathBuf {
    // Canonical, so that `..` is the disk of a partition.
    let link = PathBuf::from(format!("/sys/dev/block/{}:{}", libc::major(dev), libc::minor(dev)));
    std::fs::canonicalize(&link).unwrap_or(link)
}

/// The device number in a file such as `dev` of sysfs.
fn number_in(file: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    number(text.trim())
}

fn number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn partitions(sys: &Path) -> Vec<(String, u64)> {
    let Ok(list) = std::fs::read_dir(sys) else { return Vec::new() };
    let of = |e: std::fs::DirEntry| {
        let at = e.path();
        at.join("partition").exists().then_some(())?;
        Some((e.file_name().to_string_lossy().into_owned(), number_in(&at.join("dev"))?))
    };
    let mut out: Vec<_> = list.filter_map(|e| of(e.ok()?)).collect();
    out.sort();
    out
}

/// The holder of the device with this number itself.
fn held(dev: u64) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(at) = mounted_at(&mounts, dev, &block_number) {
        return Some(format!("is mounted at '{at}'"));
    }
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swap = |l: &str| l.split_whitespace().next().map(|f| block_number(&unescape(f))) == Some(Some(dev));
    if swaps.lines().skip(1).any(swap) {
        return Some("is a swap area in use".to_string());
    }
    let holders = std::fs::read_dir(sysfs(dev).join("holders")).ok()?;
    let mut names: Vec<String> =
        holders.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    let name = names.first()?;
    // Device mapper names are not those of sysfs.
    let nice = std::fs::read_to_string(format!("/sys/block/{name}/dm/name"));
    Some(format!("is part of '{}'", nice.map_or(name.clone(), |n| n.trim().to_string())))
}

fn block_number(path: &str) -> Option<u64> {
    std::fs::metadata(path).ok().filter(|m| m.file_type().is_block_device()).map(|m| m.rdev())
}

/// Where a device is mounted, from the text of `/proc/self/mountinfo` (proc_pid_mountinfo(5));
/// `block` gives the number of a device by its path, for file systems that show a number of their
/// own.
fn mounted_at(text: &str, dev: u64, block: &dyn Fn(&str) -> Option<u64>) -> Option<String> {
    text.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (number_of, place) = (number(words.nth(2)?)?, words.nth(1)?);
        let source = words.skip_while(|w| *w != "-").nth(2);
        let same =
            number_of == dev || source.filter(|s| s.starts_with('/')).and_then(|s| block(&unescape(s))) == Some(dev);
        same.then(|| unescape(place))
    })
}

/// Undoes the octal escapes of lists in /proc.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&b) = bytes.get(at) {
        let code = bytes.get(at + 1..at + 4).filter(|d| b == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        match code {
            Some(d) => {
                let n = d.iter().fold(0u32, |n, c| n * 8 + u32::from(c - b'0'));
                out.push(n as u8);
                at += 4;
            }
            None => {
                out.push(b);
                at += 1;
            }
        }
    }
    std::ffi::OsString::from_vec(out).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn mounts_are_found_by_number_and_by_source() {
        let text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    30 22 0:40 /sub /data\\040of\\040all rw shared:1 master:2 - btrfs /dev/sdb rw\n\
                    31 22 0:41 / /proc rw - proc proc rw\n";
        let block = |p: &str| (p == "/dev/sdb").then(|| libc::makedev(8, 16));
        let at = |major, minor| mounted_at(text, libc::makedev(major, minor), &block);
        assert_eq!(at(8, 1).unwrap(), "/");
        assert_eq!(at(8, 16).unwrap(), "/data of all");
        assert_eq!(at(8, 17), None);
        assert_eq!(mounted_at("nonsense\n1 2 x:y\n", 0, &block), None);
        assert_eq!(holder(Path::new("/proc/self/mountinfo")), None);
    }
}
