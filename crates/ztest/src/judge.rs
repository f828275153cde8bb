//! Running the judges: zdb, and those beside the project where they exist.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Txg;
use ondisk::feature::{FeatureId, Release};
use ondisk::label::{CONFIG_SIZE, LabelConfig, config_offset, label_offsets, parse_config};
use sim::DiskImage;

use crate::judge_known;
use crate::lab::POOL;
pub use crate::zdb_run::has_zdb;
use crate::zdb_run::{self, run};
use crate::{Check, Fault};

/// The judges to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// None: only the model.
    None,
    /// zdb.
    Zdb,
    /// All judges.
    Full,
}

/// The result of the judges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All asked found nothing wrong.
    Good,
    /// A required judge is not installed. Never counts as good.
    Missing(String),
    /// Something is wrong.
    Bad(Fault),
}

/// A folder that goes away.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new folder. Two of one name may live at the same time.
    pub fn new(name: &str) -> std::io::Result<Scratch> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let base = std::env::var_os("ZTEST_TMP").map_or_else(std::env::temp_dir, PathBuf::from);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("ztest-{}-{number}-{name}", std::process::id()));
        // Left behind by an earlier process of the same number.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Keeps the images of a pool that cannot be made again, in a folder that stays; a sentence says
/// where.
pub fn keep(images: &[DiskImage], name: &str) -> String {
    let kept = || -> Check<PathBuf> {
        let scratch = Scratch::new(&format!("kept-{name}")).map_err(|e| e.to_string())?;
        save(images, scratch.path())?;
        let path = scratch.path().to_path_buf();
        std::mem::forget(scratch);
        Ok(path)
    };
    match kept() {
        Ok(path) => format!("the pool is kept in {}", path.display()),
        Err(e) => format!("the pool could not be kept: {e}"),
    }
}

/// Writes the images as sparse files.
pub fn save(images: &[DiskImage], dir: &Path) -> Check {
    std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    for (n, image) in images.iter().enumerate() {
        image.save(dir.join(format!("disk{n}.img"))).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    Ok(())
}

/// The folder of the judges, from the environment or beside the project.
pub fn judges() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("WEIR_JUDGES") {
        return Some(PathBuf::from(path));
    }
    let mut at = Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf();
    loop {
        let here = at.join("shared/judges");
        if here.join("judge").is_file() {
            return Some(here);
        }
        if !at.pop() {
            return None;
        }
    }
}

/// Lines of zdb's output that mean errors, with any exit status.
fn trouble(text: &str) -> Option<String> {
    const WORDS: [&str; 7] = ["leaked", "double", "mismatch", "MOS_LEAK", "ASSERT", "panic", "error"];
    let bad: Vec<&str> = text
        .lines()
        .flat_map(|l| l.split('\r'))
        .filter(|l| !l.contains("verify nothing leaked") && !l.contains("completed ("))
        .filter(|l| WORDS.iter().any(|w| l.contains(w)))
        .take(4)
        .collect();
    if bad.is_empty() { None } else { Some(bad.join(" | ")) }
}

/// Scratch folders have names that are text everywhere but in strange settings of ZTEST_TMP.
pub(crate) fn utf8(dir: &Path) -> Check<&str> {
    dir.to_str().ok_or_else(|| format!("{}: the folder's name is not UTF-8", dir.display()))
}

/// The last lines of an output, in one line.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

/// Which zdb looks at a pool.
#[derive(Clone, Copy)]
enum By {
    /// The installed one.
    Installed,
    /// That of OpenZFS 2.4.
    V24,
}

/// Whether zdb finds leaks of so many bytes, and nothing else. Leaks on removed vdevs are also
/// mismatches of what is obsolete there, with exit status 2.
fn only_leaks(text: &str, bytes: u64) -> bool {
    let is_leak = |l: &str| l.contains("leaked") || l.starts_with("obsolete indirect mapping count mismatch for");
    let rest: Vec<&str> = text.lines().filter(|l| !is_leak(l)).collect();
    bytes > 0 && text.contains(&format!("(leaked {bytes})")) && trouble(&rest.join("\n")).is_none()
}

/// `waiting`: bytes that zdb takes for leaked, while blocks without references wait in the log of a
/// dedup table.
fn zdb(by: By, dir: &Path, flag: &str, pool: &str, waiting: u64) -> Check {
    let args = ["-e", "-p", utf8(dir)?, flag, pool];
    let done = match by {
        By::Installed => zdb_run::zdb(&args),
        By::V24 => zdb_run::zdb24(&args),
    };
    let (status, text) = done.ok_or("zdb is not there")?;
    let excused = flag == "-bcc" && only_leaks(&text, waiting);
    let blocks = flag == "-bcc" && !excused;
    if blocks && !text.contains("No leaks (block sum matches space maps exactly)") {
        return Err(format!("zdb {flag}: status {status}: {}", last_lines(&text)));
    }
    if blocks && let Some(bad) = trouble(&text) {
        return Err(format!("zdb {flag}: {bad}"));
    }
    if status != 0 && !(excused && status == 2) {
        return Err(format!("zdb {flag}: status {status}: {}", trouble(&text).unwrap_or_else(|| last_lines(&text))));
    }
    if flag != "-bcc"
        && let Some(line) = text.lines().find(|l| l.contains("mismatch") || l.contains("MOS_LEAK"))
    {
        return Err(format!("zdb {flag}: {line}"));
    }
    Ok(())
}

/// Runs zdb with these flags on the images in a folder.
pub fn ask_zdb(dir: &Path, flags: &[&str]) -> Verdict {
    ask_zdb_about(dir, flags, POOL)
}

fn ask_zdb_about(dir: &Path, flags: &[&str], pool: &str) -> Verdict {
    if !has_zdb() {
        return Verdict::Missing("zdb (zfsutils-linux)".into());
    }
    match flags.iter().try_for_each(|f| zdb(By::Installed, dir, f, pool, 0)) {
        Ok(()) => Verdict::Good,
        Err(why) => Verdict::Bad(why),
    }
}

/// Has zdb recompute the space of the images, that of OpenZFS 2.4 if the labels list a feature that
/// older ones do not know.
pub fn ask_about_space(images: &[DiskImage], name: &str) -> Verdict {
    ask_about_space_of(images, name, POOL)
}

/// The same for a pool of that name.
pub fn ask_about_space_of(images: &[DiskImage], name: &str, pool: &str) -> Verdict {
    if is_newer(images) {
        return judge24_with(images, name, pool, &["-bcc"]);
    }
    let scratch = match Scratch::new(name) {
        Ok(scratch) => scratch,
        Err(e) => return Verdict::Missing(format!("a scratch folder: {e}")),
    };
    match save(images, scratch.path()) {
        Ok(()) => ask_zdb_about(scratch.path(), &["-bcc"], pool),
        Err(why) => Verdict::Missing(why),
    }
}

/// Has the zdb of OpenZFS 2.4 judge the images of a pool of that name.
pub fn judge24(images: &[DiskImage], name: &str, pool: &str) -> Verdict {
    judge24_with(images, name, pool, &["-bcc", "-dd", "-dddd"])
}

/// The same with these flags of zdb, one run for each.
pub fn judge24_with(images: &[DiskImage], name: &str, pool: &str, flags: &[&str]) -> Verdict {
    if zdb_run::zdb24_program().is_none() {
        return Verdict::Missing("zdb of OpenZFS 2.4 (shared/judges/get-zfs24)".into());
    }
    let scratch = match Scratch::new(name) {
        Ok(scratch) => scratch,
        Err(e) => return Verdict::Missing(format!("a scratch folder: {e}")),
    };
    if let Err(why) = save(images, scratch.path()) {
        return Verdict::Missing(why);
    }
    let ask = |flag: &str| match zdb(By::V24, scratch.path(), flag, pool, 0) {
        Err(why) if flag == "-bcc" => match waiting(images, scratch.path(), pool) {
            0 => Err(why),
            waiting => zdb(By::V24, scratch.path(), flag, pool, waiting),
        },
        said => said,
    };
    match flags.iter().try_for_each(|f| ask(f)) {
        Ok(()) => Verdict::Good,
        Err(why) => Verdict::Bad(why),
    }
}

/// The first label.
fn label_of(image: &DiskImage) -> Option<LabelConfig> {
    let at = config_offset(*label_offsets(image.size()).first()?);
    let label = parse_config(&image.read_vec(at, CONFIG_SIZE), at).ok()?;
    LabelConfig::from_nvlist(&label).ok()
}

/// Whether the labels list a feature of OpenZFS 2.2 or later, which the zdb of 2.1 does not know.
fn is_newer(images: &[DiskImage]) -> bool {
    let lists = images.iter().filter_map(label_of).map(|label| label.features_for_read);
    lists.flatten().filter_map(|guid| FeatureId::by_guid(&guid)).any(|id| id.get().release >= Release::OpenZfs22)
}

/// Judges the images.
pub fn judge(images: &[DiskImage], level: Level, name: &str) -> Verdict {
    judge_pool(images, level, name, POOL)
}

/// Judges the images of a pool of that name.
pub fn judge_pool(images: &[DiskImage], level: Level, name: &str, pool: &str) -> Verdict {
    if level == Level::None {
        return Verdict::Good;
    }
    if level == Level::Zdb && is_newer(images) {
        return judge24(images, name, pool);
    }
    let scratch = match Scratch::new(name) {
        Ok(scratch) => scratch,
        Err(e) => return Verdict::Missing(format!("a scratch folder: {e}")),
    };
    // A device that was removed has a label of txg 0; zfsdump would take it for one of the pool.
    let is_there = |image: &&DiskImage| label_of(image).is_none_or(|label| label.txg != Txg(0));
    let there: Vec<DiskImage> = images.iter().filter(is_there).cloned().collect();
    if let Err(why) = save(&there, scratch.path()) {
        return Verdict::Missing(why);
    }
    // `judge` runs zdb itself.
    if level == Level::Zdb {
        return ask_zdb_about(scratch.path(), &["-bcc", "-dd", "-dddd"], pool);
    }
    let Some(judges) = judges() else { return Verdict::Missing("the folder shared/judges".into()) };
    let mut c = judge_command(&judges.join("judge"));
    c.arg(scratch.path()).arg(pool);
    match run(c) {
        Some((0, _)) => Verdict::Good,
        Some((3, text)) if judge_known::lacks_known_only(&text) => Verdict::Good,
        Some((3, text)) => Verdict::Missing(text.lines().filter(|l| l.starts_with("--")).collect::<Vec<_>>().join(" ")),
        Some((_, text)) if is_excused(&text, images, &judges, scratch.path(), pool) => Verdict::Good,
        Some((_, text)) => Verdict::Bad(text.lines().filter(|l| !l.starts_with("ok")).collect::<Vec<_>>().join(" | ")),
        None => Verdict::Missing("judge cannot be run".into()),
    }
}

/// Runs `judge`, where that is possible with a folder of its own for the machine's list of pools:
/// zhack writes the pool that it imports into the list, and zdb of another judge, which looks at a
/// pool of the same name, fails then.
fn judge_command(judge: &Path) -> Command {
    let with_own = |program: &Path| {
        let mut c = Command::new("unshare");
        c.args(["--mount", "sh", "-c", "mount -t tmpfs none /etc/zfs && exec \"$0\" \"$@\""]).arg(program);
        c
    };
    let is_possible = run(with_own(Path::new("true"))).is_some_and(|(status, _)| status == 0);
    if is_possible { with_own(judge) } else { Command::new(judge) }
}

/// Bytes of blocks that wait in the logs of dedup tables: by the checker, or by zdb where it cannot
/// read the pool.
fn waiting(images: &[DiskImage], dir: &Path, pool: &str) -> u64 {
    let by_zdb = || {
        let args = ["-e", "-p", utf8(dir).ok()?, "-DDDDD", pool];
        zdb_run::zdb24(&args).map(|(_, text)| judge_known::bytes_in_logs(&text))
    };
    crate::snaps::waiting(images).or_else(by_zdb).unwrap_or(0)
}

/// Whether all that the judges found is known to be no fault of the pool. They show the last lines
/// of each only, so zfsdump is run again for all of its lines.
fn is_excused(said: &str, images: &[DiskImage], judges: &Path, dir: &Path, pool: &str) -> bool {
    let waiting = if said.contains("(leaked ") { waiting(images, dir, pool) } else { 0 };
    let Some(by) = judge_known::excused(said, waiting) else { return false };
    if !by.contains(&"zfsdump check") {
        return true;
    }
    let mut c = Command::new("python3");
    c.arg(judges.join("zfsdump.py")).arg("-p").arg(dir).args(["-n", pool, "check", "--strict"]);
    run(c).is_some_and(|(_, text)| judge_known::are_known_of_zfsdump(text.lines()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_folders_of_one_name_do_not_meet() {
        let first = Scratch::new("same").unwrap();
        std::fs::write(first.path().join("a"), b"a").unwrap();
        let second = Scratch::new("same").unwrap();
        assert_ne!(first.path(), second.path());
        drop(second);
        assert!(first.path().join("a").exists());
    }
}
