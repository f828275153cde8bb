//! Options as `getopt` reads them: letters that may be joined, values joined or apart, options and
//! operands in any order, `--` ends the options. With `POSIXLY_CORRECT` in the environment the
//! first operand ends them.

/// The options of a command.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Letters; one that takes a value is followed by `:`.
    pub letters: &'static str,
    /// Long options: name, whether it takes a value, and the letter that it stands for.
    pub long: &'static [(&'static str, bool, char)],
}

/// A parsed command line.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Parsed {
    options: Vec<(char, String)>,
    /// The operands, in order.
    pub operands: Vec<String>,
}

impl Parsed {
    /// Whether the option was given.
    pub fn has(&self, letter: char) -> bool {
        self.options.iter().any(|(l, _)| *l == letter)
    }
    /// The last value of the option.
    pub fn value(&self, letter: char) -> Option<&str> {
        self.options.iter().rev().find(|(l, _)| *l == letter).map(|(_, v)| v.as_str())
    }
    /// All values of the option, in order.
    pub fn values(&self, letter: char) -> impl Iterator<Item = &str> {
        self.options.iter().filter(move |(l, _)| *l == letter).map(|(_, v)| v.as_str())
    }
    /// All options, in order.
    pub fn options(&self) -> &[(char, String)] {
        &self.options
    }
}

impl Spec {
    fn takes_value(&self, letter: char) -> Option<bool> {
        let at = self.letters.find(letter).filter(|_| letter != ':')?;
        Some(self.letters[at + letter.len_utf8()..].starts_with(':'))
    }

    /// Parses; the error is the message for the user.
    pub fn parse(&self, args: &[String]) -> Result<Parsed, String> {
        self.parse_as(args, std::env::var_os("POSIXLY_CORRECT").is_some())
    }

    /// Parses; if `posix`, what comes after the first operand is operands.
    fn parse_as(&self, args: &[String], posix: bool) -> Result<Parsed, String> {
        let mut out = Parsed::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if arg == "--" {
                out.operands.extend(args.cloned());
                break;
            }
            if let Some(long) = arg.strip_prefix("--") {
                let (name, joined) = long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v.to_string())));
                let found = self.long.iter().find(|(n, _, _)| *n == name);
                let (_, takes, letter) = found.ok_or_else(|| format!("invalid option '--{name}'"))?;
                let value = match (takes, joined) {
                    (false, None) => String::new(),
                    (false, Some(_)) => return Err(format!("option '--{name}' takes no value")),
                    (true, Some(v)) => v,
                    (true, None) => {
                        args.next().ok_or_else(|| format!("missing argument for '--{name}' option"))?.clone()
                    }
                };
                out.options.push((*letter, value));
                continue;
            }
            let Some(letters) = arg.strip_prefix('-').filter(|l| !l.is_empty()) else {
                out.operands.push(arg.clone());
                if posix {
                    out.operands.extend(args.cloned());
                    break;
                }
                continue;
            };
            for (i, letter) in letters.char_indices() {
                match self.takes_value(letter) {
                    None => return Err(format!("invalid option '{letter}'")),
                    Some(false) => out.options.push((letter, String::new())),
                    Some(true) => {
                        let joined = &letters[i + letter.len_utf8()..];
                        let value = if joined.is_empty() {
                            args.next().ok_or_else(|| format!("missing argument for '{letter}' option"))?.clone()
                        } else {
                            joined.to_string()
                        };
                        out.options.push((letter, value));
                        break;
                    }
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: Spec = Spec { letters: "fno:R:", long: &[("size", true, 's'), ("json", false, 'j')] };

    fn parse(line: &str) -> Result<Parsed, String> {
        SPEC.parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn options_and_operands_mix() {
        let p = parse("-fn tank -o a=1 -ob=2 /dev/x -R/mnt --size 1G --size=2G -- -x").unwrap();
        assert!(p.has('f') && p.has('n') && !p.has('j'));
        assert_eq!(p.values('o').collect::<Vec<_>>(), ["a=1", "b=2"]);
        assert_eq!(p.value('R'), Some("/mnt"));
        assert_eq!(p.value('s'), Some("2G"));
        assert_eq!(p.operands, ["tank", "/dev/x", "-x"]);
        assert_eq!(parse("-").unwrap().operands, ["-"]);
        assert_eq!(parse("-fo v").unwrap().value('o'), Some("v"));
    }

    #[test]
    fn operands_end_options_for_posix() {
        let words: Vec<String> = ["-f", "all", "-n", "--", "-x"].map(str::to_string).to_vec();
        let p = SPEC.parse_as(&words, true).unwrap();
        assert!(p.has('f') && !p.has('n'));
        assert_eq!(p.operands, ["all", "-n", "--", "-x"]);
        assert!(SPEC.parse_as(&words, false).unwrap().has('n'));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, want) in [
            ("-x", "invalid option 'x'"),
            ("-fx", "invalid option 'x'"),
            ("-:", "invalid option ':'"),
            ("-o", "missing argument for 'o' option"),
            ("--nonsense", "invalid option '--nonsense'"),
            ("--size", "missing argument for '--size' option"),
            ("--json=1", "option '--json' takes no value"),
            ("-ä", "invalid option 'ä'"),
        ] {
            assert_eq!(parse(line).unwrap_err(), want, "{line}");
        }
    }
}
