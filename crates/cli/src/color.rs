//! Colours of `zpool status`, as OpenZFS has them: with `ZFS_COLOR` set and a terminal that can.
//!
//! The text is made without them; this puts them in: labels bold, states that are not well and
//! what is said of them yellow or red, errors that are not 0 red.

use std::io::IsTerminal;

const RED: &str = "\x1b[0;31m";
const YELLOW: &str = "\x1b[0;33m";
const BOLD: &str = "\x1b[1m";
const RESET: &str = "\x1b[0m";

/// The words before a colon that begin a paragraph.
const LABELS: &[&str] =
    &["pool", "state", "status", "action", "see", "scan", "remove", "checkpoint", "expand", "config", "errors"];

/// Whether the output is to have colours.
pub(crate) fn wanted() -> bool {
    let set = |name: &str| std::env::var(name).is_ok_and(|v| !matches!(v.as_str(), "" | "0" | "no" | "NO" | "off"));
    let term = std::env::var("TERM").unwrap_or_default();
    set("ZFS_COLOR")
        && !set("NO_COLOR")
        && std::io::stdout().is_terminal()
        && !matches!(&*term, "" | "dumb" | "unknown")
}

/// The colour of a state.
fn of_state(state: &str) -> Option<&'static str> {
    match state {
        "FAULTED" | "SUSPENDED" | "UNAVAIL" => Some(RED),
        "OFFLINE" | "DEGRADED" | "REMOVED" => Some(YELLOW),
        _ => None,
    }
}

fn in_color(color: &str, text: &str) -> String {
    format!("{color}{text}{RESET}")
}

/// Where the word that begins at or after `from` begins and ends.
fn word(line: &str, from: usize) -> Option<(usize, usize)> {
    let rest = line.get(from..)?;
    let start = from + rest.find(|c: char| !c.is_whitespace())?;
    let end = line[start..].find(char::is_whitespace).map_or(line.len(), |n| start + n);
    Some((start, end))
}

/// A row of the table of devices.
fn row(line: &str) -> String {
    let Some((state, end)) = word(line, 0).and_then(|(_, end)| word(line, end)) else { return line.to_string() };
    // The column of states has eight places.
    let end = end.max(state + 8).min(line.len());
    let mut out = match line.get(..end).zip(of_state(line[state..end].trim_end())) {
        Some((head, color)) => in_color(color, head),
        None => line.get(..end).unwrap_or(line).to_string(),
    };
    let mut at = end;
    for _ in 0..3 {
        let Some((start, end)) = word(line, at).filter(|(s, _)| line[*s..].starts_with(|c: char| c.is_ascii_digit()))
        else {
            break;
        };
        let number = &line[start..end];
        out.push_str(&line[at..start]);
        out.push_str(&if number == "0" { number.to_string() } else { in_color(RED, number) });
        at = end;
    }
    out.push_str(line.get(at..).unwrap_or(""));
    out
}

/// The text of `zpool status` with colours.
pub(crate) fn status(text: &str) -> String {
    let mut out = String::new();
    let mut in_table = false;
    // The colour of lines that go on with a paragraph.
    let mut paragraph: Option<&str> = None;
    for line in text.lines() {
        let label = line.trim_start_matches(' ').split_once(':').map(|(label, _)| label);
        let colored = match label.filter(|l| LABELS.contains(l)) {
            Some(label) => {
                in_table = label == "config";
                let end = line.find(':').map_or(0, |n| n + 1);
                let (head, value) = line.split_at(end);
                let spaces = head.len() - head.trim_start_matches(' ').len();
                paragraph = matches!(label, "status" | "action").then_some(YELLOW);
                let color = match label {
                    "state" => of_state(value.trim()),
                    _ => paragraph,
                };
                match (label, color) {
                    ("errors", _) if value == " No known data errors" => line.to_string(),
                    ("errors", _) => in_color(RED, line),
                    (_, color) => {
                        let text = value.trim_start_matches(' ');
                        let gap = &value[..value.len() - text.len()];
                        let text = color.map_or(text.to_string(), |c| in_color(c, text));
                        format!("{}{}{gap}{text}", &head[..spaces], in_color(BOLD, &head[spaces..]))
                    }
                }
            }
            None if in_table && line.starts_with("\tNAME ") => in_color(BOLD, line),
            None if in_table && line.starts_with('\t') => row(line),
            None => match paragraph.filter(|_| line.starts_with('\t')) {
                Some(color) => in_color(color, line),
                None => line.to_string(),
            },
        };
        out.push_str(&colored);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_has_a_colour() {
        let plain = "  pool: tank\n state: DEGRADED\nstatus: One or more\n\tdevices.\n  scan: none requested\n\
            config:\n\n\tNAME        STATE     READ WRITE CKSUM\n\ttank        DEGRADED     0     0     0\n\
            \t  a b\n\t  sda       FAULTED      0    12     0  too many errors\n\t  sdb       ONLINE       0     0    1K\n\
            \nerrors: 3 data errors, use '-v' for a list\n";
        let red = |s: &str| format!("\x1b[0;31m{s}\x1b[0m");
        let bold = |s: &str| format!("\x1b[1m{s}\x1b[0m");
        let yellow = |s: &str| format!("\x1b[0;33m{s}\x1b[0m");
        let want = [
            format!("  {} tank", bold("pool:")),
            format!(" {} {}", bold("state:"), yellow("DEGRADED")),
            format!("{} {}", bold("status:"), yellow("One or more")),
            yellow("\tdevices."),
            format!("  {} none requested", bold("scan:")),
            bold("config:"),
            String::new(),
            bold("\tNAME        STATE     READ WRITE CKSUM"),
            format!("{}     0     0     0", yellow("\ttank        DEGRADED")),
            "\t  a b".to_string(),
            format!("{}     0    {}     0  too many errors", red("\t  sda       FAULTED "), red("12")),
            format!("\t  sdb       ONLINE       0     0    {}", red("1K")),
            String::new(),
            red("errors: 3 data errors, use '-v' for a list"),
        ];
        assert_eq!(status(plain).lines().collect::<Vec<_>>(), want);
    }

    #[test]
    fn any_text_keeps_its_words() {
        for text in ["", "\t", "config:\n\t\n\tx\n\t\u{e4} \u{f6}\u{fc}\n\tNAME \n", "errors:", ":\n: :\n state:\n"] {
            let colored = status(text);
            let mut plain = colored;
            for code in [RED, YELLOW, BOLD, RESET] {
                plain = plain.replace(code, "");
            }
            assert_eq!(plain.lines().collect::<Vec<_>>(), text.lines().collect::<Vec<_>>());
        }
    }
}
