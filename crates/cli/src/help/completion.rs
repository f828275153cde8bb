//! `weir completions`: what shells complete, made of the usage lines of help.
//!
//! One table says for each command which letters it has, which words follow it and what its
//! operands are. bash and zsh read it as a function of the shell, fish as conditions. The names of
//! pools and datasets come from the running daemon, if there is one: a shell starts none.

use std::fmt::Write;

use super::{ALIASES, LAB, OWN, PROGRAMS, Page, commands, pages};
use crate::zpool::parse_for;
use crate::{Done, Fail, print};

/// What can stand behind a command.
#[derive(Clone, Debug, Default)]
struct Row {
    /// The words that call it: `zpool create`, `weir lab`.
    words: String,
    /// What it does.
    summary: String,
    /// Its letters and long options, with what they mean.
    options: Vec<(String, String)>,
    /// Words of which one follows, and what they mean.
    next: Vec<(String, String)>,
    /// What operands and values are, by the names that the scripts know.
    kinds: Vec<&'static str>,
}

/// Runs `weir completions ARGS`: prints the script for a shell.
pub fn run(args: &[String]) -> Done {
    let p = parse_for("completions", args, "", &[], "")?;
    match p.operands.as_slice() {
        [shell] => print(&match shell.as_str() {
            "bash" => bash(),
            "zsh" => zsh(),
            "fish" => fish(),
            other => return Err(Fail::Usage(format!("there is no script for '{other}'"), "")),
        }),
        [] => return Err(Fail::Usage("missing shell".into(), "")),
        _ => return Err(Fail::Usage("too many arguments".into(), "")),
    }
    Ok(())
}

/// The letters and long options in a usage line.
fn options_of(usage: &str) -> impl Iterator<Item = String> {
    let words = usage.split(['[', ']', ' ', '<', '>', '|', ',']).filter(|w| w.starts_with('-') && w.len() > 1);
    words.flat_map(|word| match word.strip_prefix("--") {
        Some(_) => vec![word.to_string()],
        None => word[1..].chars().filter(char::is_ascii_alphanumeric).map(|c| format!("-{c}")).collect(),
    })
}

/// What follows the name of a command that has commands of its own, such as `daemon`: the first
/// words of its usage lines, if they are only letters.
fn parts(page: &Page) -> Vec<String> {
    let mut out = Vec::new();
    for usage in page.usage.iter().filter(|_| !page.name.contains(' ')) {
        let usage = usage.strip_prefix(page.name).unwrap_or(usage).trim_start();
        let first = usage.split(' ').next().unwrap_or_default();
        let words = first.split('|').map(str::to_string);
        let is_word = |w: &String| w.len() > 1 && w.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        // An operand stands at the end of its line.
        if usage != first || first.contains('|') {
            out.extend(words.filter(|w| is_word(w) && !w.starts_with('-')));
        }
    }
    out
}

/// Words of usage lines for what is looked up in folders.
const FILES: &[&str] = &["file", "FILE", "device", "vdev", "path", "folder", "directory", "dir", "DIR", "script"];

/// What the operands of a command and the values of its letters are.
fn kinds(page: &Page) -> Vec<&'static str> {
    let usage = page.usage.join(" ");
    let has = |any: &[&str]| any.iter().any(|w| usage.contains(w));
    let zfs = page.name.starts_with("zfs ");
    let table: [(&'static str, bool); 9] = [
        ("pool", has(&["<pool", "[pool", " pool", "|pool"])),
        ("dataset", zfs && has(&["<filesystem", "[filesystem", "|filesystem", "<snap", "<clone>", "<volume"])),
        ("dataset", page.name == "nbd"),
        ("snapshot", zfs && has(&["snapshot>", "<snapshot", "[snapshot", "@snap", "filesystem|path]"])),
        ("file", usage.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| FILES.contains(&word))),
        ("-o=", has(&["-o property=value"])),
        ("-o", has(&["-o property["])),
        ("set", has(&["<property=value>"])),
        ("property", has(&["property[,...]>", "<property>"])),
    ];
    table.into_iter().filter(|(_, is)| *is).map(|(kind, _)| kind).collect()
}

/// The row of a command.
fn row(page: &Page) -> Row {
    let mut names: Vec<String> = Vec::new();
    for option in page.usage.iter().flat_map(|u| options_of(u)) {
        if !names.contains(&option) {
            names.push(option);
        }
    }
    let items = super::text::items_of(&page.whole_text());
    let meaning = |word: &str| {
        let item = items.iter().find(|i| i.term.split([' ', ',']).any(|t| t == word));
        item.map_or(String::new(), |i| i.meaning.clone())
    };
    let next = parts(page).into_iter().map(|w| (w.clone(), meaning(&w)));
    Row {
        words: page.words(),
        summary: page.summary(),
        options: names.into_iter().map(|o| (o.clone(), meaning(&o))).collect(),
        next: next.collect(),
        kinds: kinds(page),
    }
}

/// The table: programs and groups first, then every command.
fn rows() -> Vec<Row> {
    let mut own: Vec<(String, String)> =
        PROGRAMS.iter().chain(OWN).chain([&LAB]).map(|(n, w)| (n.to_string(), w.to_string())).collect();
    own.push(("version".into(), "the version".into()));
    own.push(("help".into(), "the page of a command".into()));
    let mut out = vec![Row { words: "weir".into(), next: own, ..Row::default() }];
    let all: Vec<Row> = pages().map(row).collect();
    for (name, summary) in PROGRAMS.iter().chain([&LAB]) {
        let words = if *name == LAB.0 { format!("weir {name}") } else { name.to_string() };
        let of = |c: &str| all.iter().find(|r| r.words == format!("{words} {c}")).map_or("", |r| r.summary.as_str());
        let mut next: Vec<_> = commands(name).into_iter().map(|c| (c.to_string(), of(c).to_string())).collect();
        let aliases = ALIASES.iter().filter_map(|(other, real)| Some((other.strip_prefix(*name)?, real)));
        next.extend(aliases.map(|(other, real)| (other.trim().to_string(), format!("as '{real}'"))));
        out.push(Row { words, summary: summary.to_string(), next, ..Row::default() });
    }
    for row in all {
        let other = ALIASES.iter().filter(|(_, real)| *real == row.words).map(|(other, _)| *other);
        let aliases: Vec<Row> = other.map(|words| Row { words: words.to_string(), ..row.clone() }).collect();
        out.push(row);
        out.extend(aliases);
    }
    // `trace record` is a command within another one.
    if let Some(trace) = out.iter_mut().find(|r| r.words == "weir trace") {
        trace.next.push(("record".into(), "record the operations of a pool's users".into()));
    }
    out
}

/// Properties of datasets, or of pools; those that can be set only if `settable`.
fn properties(pool: bool, settable: bool) -> String {
    let all: Vec<&str> = if pool {
        admin::pool::props::names(settable).collect()
    } else {
        let once = |p: &&dsl::props::Prop| p.settable() || matches!(p.kind, dsl::props::PropKind::Once);
        let shown = |p: &&dsl::props::Prop| p.kind != dsl::props::PropKind::Shown;
        dsl::props::PROPS.iter().filter(shown).filter(|p| !settable || once(p)).map(|p| p.name).collect()
    };
    all.join(" ")
}

/// The functions that bash and zsh share: `_weir_row` sets what stands behind a command (`letters`,
/// `next`, `kinds`) and fails if there is none, `_weir_words` prints what may come.
fn shared(shell: &str) -> String {
    let mut out = format!("# Completion of weir for {shell}, made by 'weir completions {shell}'.\n\n_weir_row() {{\n");
    out += "  letters= next= kinds=\n  case $1 in\n";
    for row in rows() {
        let list = |words: &[(String, String)]| words.iter().map(|(w, _)| w.as_str()).collect::<Vec<_>>().join(" ");
        let (options, next, kinds) = (list(&row.options), list(&row.next), row.kinds.join(" "));
        let _ = writeln!(out, "    '{}') letters='{options}' next='{next}' kinds=' {kinds} ' ;;", row.words);
    }
    out += "    *) return 1 ;;\n  esac\n}\n\n";
    let _ = write!(
        out,
        "\
_weir_properties() {{
  case $1 in
    'zpool get') echo '{}' ;;
    'zpool '*) echo '{}' ;;
    'zfs get' | 'zfs list') echo '{}' ;;
    *) echo '{}' ;;
  esac
}}

",
        properties(true, false),
        properties(true, true),
        properties(false, false),
        properties(false, true)
    );
    out + r#"# Commands that list names: of a daemon that runs, the user's or root's.
_weir_ask() {
  if weir daemon status > /dev/null 2>&1; then
    weir "$@" 2> /dev/null
  elif [ -S /run/weir/public.sock ]; then
    WEIR_RUNTIME_DIR=/run/weir weir "$@" 2> /dev/null
  fi
}

# The words that may stand behind the command $1, where $2 is the word before and $3 the one that is
# completed; $4 is 1 directly behind the command.
_weir_words() {
  local command=$1 before=$2 current=$3 letters next kinds
  _weir_row "$command" || return
  case "$kinds$before" in
    *' -o= '*-o) _weir_properties "$command" | tr ' ' '\n' | sed 's/$/=/' && return ;;
    *' -o '*-o) _weir_properties "${command%% *} get" && return ;;
    *' -o= '*-O) _weir_properties 'zfs create' | tr ' ' '\n' | sed 's/$/=/' && return ;;
  esac
  case $current in
    -*) echo "$letters" && return ;;
  esac
  [ "$4" = 1 ] && echo "$next"
  case $kinds in
    *' set '*) _weir_properties "$command" | tr ' ' '\n' | sed 's/$/=/' ;;
    *' property '*) [ "$4" = 1 ] && { echo all; _weir_properties "$command"; } ;;
  esac
  case $kinds in
    *' pool '*) _weir_ask zpool list -H -o name ;;
  esac
  case $kinds$current in
    *' snapshot '*@*) _weir_ask zfs list -H -o name -t snapshot -r "${current%%@*}" ;;
    *' dataset '*) _weir_ask zfs list -H -o name ;;
  esac
}

"#
}

fn bash() -> String {
    shared("bash")
        + r#"_weir() {
  local command=${COMP_WORDS[0]##*/} current=${COMP_LINE:0:COMP_POINT} i=1 word first letters next kinds cut=
  current=${current##*[[:space:]]}
  case $command in
    zpool | zfs | zstream) ;;
    *) command=weir ;;
  esac
  for ((; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    case "$command $word" in
      'weir zpool' | 'weir zfs' | 'weir zstream') command=$word ;;
      *) _weir_row "$command $word" && command="$command $word" || break ;;
    esac
  done
  [ "$i" = "$COMP_CWORD" ] && first=1
  # bash completes what stands behind the last of its separators.
  case $current in
    *[=:@]*) cut=${current%"${current##*[=:@]}"} ;;
  esac
  COMPREPLY=()
  while IFS= read -r word; do
    COMPREPLY+=("${word#"$cut"}")
  done < <(compgen -W "$(_weir_words "$command" "${COMP_WORDS[COMP_CWORD-1]}" "$current" "$first")" -- "$current")
  case ${COMPREPLY[0]} in
    *=) compopt -o nospace 2> /dev/null ;;
  esac
  _weir_row "$command"
  case $kinds in
    *' file '*) compopt -o default 2> /dev/null ;;
  esac
}

complete -F _weir weir zpool zfs zstream
"#
}

fn zsh() -> String {
    "#compdef weir zpool zfs zstream\n".to_string()
        + &shared("zsh")
        + r#"_weir() {
  local command=${words[1]:t} current=${words[CURRENT]} i=2 word first letters next kinds
  case $command in
    zpool | zfs | zstream) ;;
    *) command=weir ;;
  esac
  for ((; i < CURRENT; i++)); do
    word=${words[i]}
    case "$command $word" in
      'weir zpool' | 'weir zfs' | 'weir zstream') command=$word ;;
      *) _weir_row "$command $word" && command="$command $word" || break ;;
    esac
  done
  [ "$i" = "$CURRENT" ] && first=1
  local -a found
  found=(${=$(_weir_words "$command" "${words[CURRENT-1]}" "$current" "$first")})
  compadd -S '' -- ${(M)found:#*=}
  compadd -- ${found:#*=}
  _weir_row "$command"
  case $kinds in
    *' file '*) _files ;;
  esac
}

if [ "$funcstack[1]" = _weir ]; then
  _weir "$@"
else
  compdef _weir weir zpool zfs zstream
fi
"#
}

/// A word of fish in quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn fish() -> String {
    let mut out = r#"# Completion of weir for fish, made by 'weir completions fish'.

# Whether the words before the cursor begin with these, or are these and no more with 'only' first.
function __weir_at
    set -l words (commandline -opc)
    set words[1] (basename $words[1])
    if test $words[1] = weir; and contains -- "$words[2]" zpool zfs zstream
        set -e words[1]
    end
    set -l only $argv[1]
    test $only = only; and set -e argv[1]
    set -l count (count $argv)
    test $only = only; and test (count $words) -ne $count; and return 1
    test (count $words) -ge $count; and test "$words[1..$count]" = "$argv"
end

# Commands that list names: of a daemon that runs, the user's or root's.
function __weir_ask
    if weir daemon status >/dev/null 2>&1
        weir $argv 2>/dev/null
    else if test -S /run/weir/public.sock
        env WEIR_RUNTIME_DIR=/run/weir weir $argv 2>/dev/null
    end
end

complete -c weir -c zpool -c zfs -c zstream -f
"#
    .to_string();
    let each = "complete -c weir -c zpool -c zfs -c zstream";
    for row in rows() {
        let at = |only: &str| quoted(&format!("__weir_at {only}{}", row.words));
        let described = |what: &str| if what.is_empty() { String::new() } else { format!(" -d {}", quoted(what)) };
        for (word, what) in &row.next {
            let _ = writeln!(out, "{each} -n {} -a {word}{}", at("only "), described(what));
        }
        for (option, what) in &row.options {
            let name = match option.strip_prefix("--") {
                Some(long) => format!("-l {long}"),
                None => format!("-s {}", &option[1..]),
            };
            let _ = writeln!(out, "{each} -n {} {name}{}", at(""), described(what));
        }
        let pool = row.words.starts_with("zpool");
        let list = |settable: bool| properties(pool, settable);
        for kind in &row.kinds {
            let (when, words) = match *kind {
                "pool" => (at(""), "(__weir_ask zpool list -H -o name)".to_string()),
                "dataset" => (at(""), "(__weir_ask zfs list -H -o name)".to_string()),
                "snapshot" => {
                    let written = "string match -q \"*@*\" -- (commandline -ct)";
                    let when = quoted(&format!("__weir_at {}; and {written}", row.words));
                    (when, "(__weir_ask zfs list -H -o name -t snapshot)".to_string())
                }
                "set" => (at("only "), format!("{}=", list(true).replace(' ', "= "))),
                "property" => (at("only "), format!("all {}", list(row.words.ends_with("inherit")))),
                "file" => {
                    let _ = writeln!(out, "{each} -n {} -F", at(""));
                    continue;
                }
                _ => continue,
            };
            let _ = writeln!(out, "{each} -n {when} -a {}", quoted(&words));
        }
        if row.kinds.contains(&"-o=") {
            let words = format!("{}=", list(true).replace(' ', "= "));
            let _ = writeln!(out, "{each} -n {} -s o -x -a {}", at(""), quoted(&words));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(words: &str) -> Row {
        rows().into_iter().find(|r| r.words == words).unwrap_or_else(|| panic!("no row of {words}"))
    }

    #[test]
    fn the_table_has_what_help_lists() {
        let words = |list: &[(String, String)]| list.iter().map(|(w, _)| w.clone()).collect::<Vec<_>>();
        for (name, _) in PROGRAMS.iter().chain(OWN).chain([&LAB]) {
            assert!(words(&row_of("weir").next).contains(&name.to_string()), "{name}");
        }
        for page in pages() {
            let row = row_of(&page.words());
            for option in page.usage.iter().flat_map(|u| options_of(u)) {
                assert!(words(&row.options).contains(&option), "{} {option}", page.name);
            }
        }
        for command in commands("zfs") {
            assert!(words(&row_of("zfs").next).contains(&command.to_string()), "{command}");
        }
        assert_eq!(words(&row_of("weir daemon").next), ["start", "stop", "status"]);
        assert_eq!(words(&row_of("weir trace").next)[..2], ["dirty", "txg"]);
        assert!(words(&row_of("weir lab").next).contains(&"zil".to_string()));
        assert_eq!(words(&row_of("weir top").options), ["-i", "-c"]);
        assert!(row_of("weir quickstart").next.is_empty() && row_of("weir zdb").next.is_empty());
        assert!(row_of("zfs recv").summary == row_of("zfs receive").summary);
        assert_eq!(row_of("zpool list").options[0], ("-g".to_string(), "guids for names".to_string()));
    }

    #[test]
    fn operands_are_known_by_the_usage() {
        for (words, want) in [
            ("zpool create", &["pool", "file", "-o="][..]),
            ("zpool scrub", &["pool"]),
            ("zpool set", &["pool", "file", "set"]),
            ("zfs snapshot", &["dataset", "snapshot", "-o="]),
            ("zfs rollback", &["dataset", "snapshot"]),
            ("zfs list", &["dataset", "snapshot", "file", "-o"]),
            ("zfs set", &["dataset", "set"]),
        ] {
            assert_eq!(row_of(words).kinds, want, "{words}");
        }
        assert!(properties(true, true).contains("ashift") && !properties(true, true).contains("capacity"));
        assert!(properties(false, false).contains("used ") && !properties(false, true).contains("used "));
    }
}
