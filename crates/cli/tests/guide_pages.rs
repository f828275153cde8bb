//! The pages of the guide whose commands can be run: each command does what the page shows.
//!
//! A block that begins with three backticks and `console` has commands behind `$ `, their further
//! lines behind `> `, and their output. All of a page runs in one shell, with a daemon and a folder
//! of its own for `/tmp/guide`. Words must be those of the page; figures, dates and columns may
//! differ.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::process::Command;

use common::machine::Machine;
use common::{WEIR, outcome_of};
use host::TempDir;

/// Where the pages work.
const FOLDER: &str = "/tmp/guide";
const DATE_WORDS: [&str; 19] = [
    "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep",
    "Oct", "Nov", "Dec",
];

/// A command and its output.
#[derive(Debug)]
struct Step {
    line: String,
    output: Vec<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if inside && let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: command.to_string(), output: Vec::new() });
        } else if inside {
            let step = steps.last_mut().expect("a command comes first");
            match line.strip_prefix('>') {
                Some(more) if step.output.is_empty() && is_open(&step.line) => {
                    step.line.push('\n');
                    step.line.push_str(more.strip_prefix(' ').unwrap_or(more));
                }
                _ => step.output.push(line.to_string()),
            }
        }
    }
    steps
}

/// Whether more of the command comes: the text that it is given, or the rest of a loop.
fn is_open(line: &str) -> bool {
    let begins = line.lines().filter(|l| l.trim_start().starts_with("for ") && !l.ends_with("done")).count();
    line.contains("<<") || begins > line.lines().filter(|l| l.trim() == "done").count()
}

/// The words of a line, with figures, guids and dates as `#`.
fn words(line: &str) -> Vec<&str> {
    let word = |w| match w {
        _ if DATE_WORDS.contains(&w) => "#",
        // A path or a name with a digit is a word, a size is not.
        _ if w.trim_start_matches('(').starts_with(|c: char| c.is_ascii_digit()) => "#",
        // The width of a table.
        _ if w.len() > 1 && w.chars().all(|c| c == '-') => "--",
        // A guid.
        _ if w.len() == 16 && w.chars().all(|c| c.is_ascii_hexdigit()) => "#",
        _ => w,
    };
    line.split_whitespace().map(word).collect()
}

fn is_same(want: &[String], got: &[String]) -> bool {
    want.len() == got.len() && want.iter().zip(got).all(|(w, g)| words(w) == words(g))
}

/// What each command says, until one fails.
fn run(steps: &[Step], dir: &TempDir) -> Vec<Vec<String>> {
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["weir", "zpool", "zfs", "zinject"] {
        std::os::unix::fs::symlink(WEIR, bin.join(name)).unwrap();
    }
    let folder = dir.join("guide").display().to_string();
    let mut script = "exec 2>&1\n".to_string();
    for step in steps {
        let line = step.line.replace(FOLDER, &folder);
        script.push_str(&format!("{line}\ncode=$?; echo @@@; test $code = 0 || exit $code\n"));
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut c = common::command_in(dir.path(), "sh");
    let said = outcome_of(c.args(["-c", &script]).env("PATH", path).output().unwrap()).out.replace(&folder, FOLDER);
    let mut stop: Command = common::command_in(dir.path(), WEIR);
    let _ = stop.args(["daemon", "stop", "-f"]).output();
    let parts = said.split("@@@\n").map(|part| part.lines().map(|l| l.trim_end().to_string()).collect());
    parts.collect()
}

fn check_page(name: &str, least: usize) {
    if !common::can_mount(name) {
        return;
    }
    let at = format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/{}.md"), name);
    let page = std::fs::read_to_string(at).unwrap();
    let steps = steps(&page);
    assert!(steps.len() >= least, "{name}: {} commands", steps.len());
    let dir = TempDir::new("guide").unwrap();
    let said = run(&steps, &dir);
    for (n, step) in steps.iter().enumerate() {
        let got = said.get(n).cloned().unwrap_or_default();
        let (want, got) = (&step.output, &got);
        assert!(
            is_same(want, got),
            "{name}: '{}' says\n{}\nthe page has\n{}",
            step.line,
            got.join("\n"),
            want.join("\n")
        );
    }
    assert_eq!(said.len(), steps.len() + 1, "{name}: a command failed");
    assert!(!dir.join("guide").exists(), "{name} leaves nothing");
}

#[test]
fn everyday_jobs() {
    check_page("everyday", 40);
}

#[test]
fn when_something_goes_wrong() {
    check_page("recovery", 20);
}

#[test]
fn moving_in() {
    check_page("moving-in", 14);
}

#[test]
fn tuning() {
    check_page("tuning", 14);
}

#[test]
fn the_devices_of_a_pool() {
    check_page("devices", 20);
}

#[test]
fn sending_and_receiving() {
    check_page("send-receive", 35);
}

#[test]
fn volumes() {
    check_page("volumes", 9);
}

#[test]
fn faults_on_purpose() {
    check_page("faults", 20);
}

#[test]
fn rescue() {
    check_page("rescue", 12);
}

#[test]
fn clones() {
    check_page("clones", 10);
}

#[test]
fn channel_programs() {
    check_page("channel-programs", 8);
}

/// The page on delegation has two users: root's commands stand behind `# `, joe's behind `$ `.
#[test]
fn delegation() {
    const JOE: u32 = 64_131;
    if !common::can_mount("delegation") {
        return;
    }
    let Some(m) = Machine::new("guide-delegation", JOE, JOE + 1) else { return };
    m.ok(0, 0, &format!("zpool create -O mountpoint={} --size 128M tank a.img", m.dir.join("tank").display()));
    m.ok(0, 0, "zfs create -p tank/home/joe");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/delegation.md")).unwrap();
    let block = page.split("```\n").nth(1).unwrap().replace("zfs allow joe ", &format!("zfs allow -u {JOE} "));
    let block = block.replace("user joe ", &format!("user (unknown: {JOE}) "));
    let mut commands = 0;
    for part in
        format!("\n{block}").replace("\n# ", "\n@0 ").replace("\n$ ", &format!("\n@{JOE} ")).split("\n@").skip(1)
    {
        let (line, want) = part.split_once('\n').unwrap_or((part, ""));
        let (user, line) = line.split_once(' ').unwrap();
        let said = m.say(user.parse().unwrap(), 0, line);
        let got = format!("{}{}", said.out, said.err);
        assert_eq!(got.trim_end(), want.trim_end(), "{line}");
        commands += 1;
    }
    assert_eq!(commands, 8);
    m.ok(0, 0, "zpool destroy tank");
}

#[test]
fn pages_are_read_as_they_are_meant() {
    let page = "text\n```console\n$ a b\none  2 3K\n$ c\n```\n```\n$ not this\n```\n";
    let here = steps("```console\n$ cat <<E\n> a  b\n>\n> E\na  b\n\n```\n");
    assert_eq!((here[0].line.as_str(), here[0].output.len()), ("cat <<E\na  b\n\nE", 2));
    let steps = steps(page);
    assert_eq!(steps.len(), 2);
    assert!(is_same(&steps[0].output, &["one 5 7.1M".to_string()]));
    assert!(!is_same(&steps[0].output, &["two 5 7.1M".to_string()]));
    assert!(!is_same(&steps[0].output, &[]) && steps[1].output.is_empty());
    assert_eq!(words("on Mon Nov 30 20:44:17 2026"), words("on Tue Dec 1 01:00:00 2027"));
}
