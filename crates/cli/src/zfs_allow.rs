//! `zfs allow` and `zfs unallow`: who gets which permissions where, and the list of them.
//!
//! Names of users and groups become numbers here, and numbers names: they are those of the machine
//! that the command runs on.

use std::collections::BTreeMap;

use admin::request::{Allow, Allowed, AllowedView, Grant, Unallow};
use base::Error;

use crate::opts::Parsed;
use crate::{Done, Fail, ask, print};

/// Width of the line above the permissions on a dataset.
const WIDTH: usize = 70;

/// Who gets permissions.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Who {
    /// Users and groups, by names and numbers with commas.
    Named(String),
    /// Everyone.
    Everyone,
    /// Who makes datasets below.
    Creators,
    /// Who has this set of permissions.
    Set(String),
}

/// What a command line asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Asked {
    who: Who,
    perms: Option<String>,
    dataset: String,
}

/// Takes the operands apart; `un`: permissions may be left out. None: a list is asked for.
fn asked(p: &Parsed, un: bool) -> Result<Option<Asked>, String> {
    let given = |letters: &str| letters.chars().filter(|l| p.has(*l)).count();
    if given("uge") > 1 {
        return Err("-u, -g, and -e are mutually exclusive".into());
    }
    for (letter, others) in [('s', "sugecld"), ('c', "cugesld"), ('e', "eugsc")] {
        if p.has(letter) && given(others) > 1 {
            return Err(format!("invalid options combined with -{letter}"));
        }
    }
    let mut operands = p.operands.as_slice();
    let who = if p.has('c') {
        Some(Who::Creators)
    } else if p.has('e') {
        Some(Who::Everyone)
    } else if !p.has('s') && given("ug") == 0 && operands.first().is_some_and(|o| o == "everyone") {
        operands = &operands[1..];
        Some(Who::Everyone)
    } else {
        None
    };
    let number = || "wrong number of parameters".to_string();
    if who.is_none() && !p.has('s') && !un && operands.len() == 1 {
        return Ok(None);
    }
    let who = match who {
        Some(who) => who,
        None => {
            let (first, rest) = operands.split_first().ok_or_else(number)?;
            operands = rest;
            if p.has('s') { Who::Set(first.clone()) } else { Who::Named(first.clone()) }
        }
    };
    let (perms, dataset) = match operands {
        [perms, dataset] => (Some(perms.clone()), dataset.clone()),
        [dataset] if un => (None, dataset.clone()),
        _ => return Err(number()),
    };
    if let Who::Set(name) = &who
        && !name.starts_with('@')
    {
        return Err("invalid set name: missing '@' prefix".into());
    }
    Ok(Some(Asked { who, perms, dataset }))
}

/// The kind of holder and the number that a name or number stands for.
fn holder(p: &Parsed, word: &str) -> Result<(char, u32), String> {
    let number = word.parse::<u32>().ok();
    let user = || match number {
        Some(id) => host::user_name(id).map(|_| id),
        None => host::user_id(word),
    };
    let group = || match number {
        Some(id) => host::group_name(id).map(|_| id),
        None => host::group_id(word),
    };
    if p.has('u') {
        return user().or(number).map(|id| ('u', id)).ok_or_else(|| format!("invalid user {word}"));
    }
    if p.has('g') {
        return group().or(number).map(|id| ('g', id)).ok_or_else(|| format!("invalid group {word}"));
    }
    let found = user().map(|id| ('u', id)).or_else(|| group().map(|id| ('g', id)));
    found.ok_or_else(|| format!("invalid user/group {word}"))
}

/// What is granted, or taken away.
fn grants(p: &Parsed, asked: &Asked) -> Result<Vec<Grant>, String> {
    let holders: Vec<(char, String)> = match &asked.who {
        Who::Everyone => vec![('e', String::new())],
        Who::Creators => vec![('c', String::new())],
        Who::Set(name) => vec![('s', name.clone())],
        Who::Named(list) => {
            let each = |word: &str| holder(p, word).map(|(kind, id)| (kind, id.to_string()));
            list.split(',').filter(|w| !w.is_empty()).map(each).collect::<Result<_, _>>()?
        }
    };
    let both = !p.has('l') && !p.has('d');
    let mut out = Vec::new();
    for (kind, id) in holders {
        let places: &[char] = match kind {
            'c' | 's' => &['-'],
            _ if both => &['l', 'd'],
            _ => &['l', 'd'][usize::from(!p.has('l'))..1 + usize::from(p.has('d'))],
        };
        for place in places {
            for (kind, sets) in [(kind, false), (kind.to_ascii_uppercase(), true)] {
                let who = format!("{kind}{place}${id}");
                let Some(perms) = &asked.perms else {
                    out.push(Grant { who, perms: None });
                    continue;
                };
                let words = perms.split(',').filter(|w| !w.is_empty() && w.starts_with('@') == sets);
                let perms: Vec<String> = words.map(str::to_string).collect();
                if !perms.is_empty() {
                    out.push(Grant { who, perms: Some(perms) });
                }
            }
        }
    }
    if out.is_empty() {
        return Err("missing permission argument".into());
    }
    Ok(out)
}

/// `zfs allow`.
pub fn allow(p: &Parsed) -> Done {
    let usage = |what: String| Fail::Usage(what, "allow");
    let Some(asked) = asked(p, false).map_err(usage)? else {
        let [dataset] = p.operands.as_slice() else { return Err(usage("wrong number of parameters".into())) };
        crate::zfs::file_system_name(dataset)?;
        let all: Vec<AllowedView> = ask(&Allowed { name: dataset.clone() })?;
        print(&all.iter().map(|on| listed(on, host::user_name, host::group_name)).collect::<String>());
        return Ok(());
    };
    crate::zfs::file_system_name(&asked.dataset)?;
    let grants = grants(p, &asked).map_err(|e| Fail::from(Error::invalid(e)))?;
    ask(&Allow { name: asked.dataset, grants })
}

/// `zfs unallow`.
pub fn unallow(p: &Parsed) -> Done {
    let usage = |what: String| Fail::Usage(what, "unallow");
    let asked = asked(p, true).map_err(usage)?.ok_or_else(|| usage("wrong number of parameters".into()))?;
    crate::zfs::file_system_name(&asked.dataset)?;
    let grants = grants(p, &asked).map_err(|e| Fail::from(Error::invalid(e)))?;
    ask(&Unallow { name: asked.dataset, grants, recursive: p.has('r') })
}

/// A holder in the order of the list: sets, creators, users, groups, everyone, each by name or
/// number as text.
type Holder = (usize, String);

/// Where permissions count.
#[derive(Clone, Copy, Default)]
struct Places {
    local: bool,
    below: bool,
}

/// The lines about one dataset; `user` and `group` give names to numbers.
fn listed(on: &AllowedView, user: fn(u32) -> Option<String>, group: fn(u32) -> Option<String>) -> String {
    let mut holders: BTreeMap<Holder, BTreeMap<&str, Places>> = BTreeMap::new();
    for (who, perms) in &on.grants {
        let mut letters = who.chars();
        let (Some(kind), Some(place)) = (letters.next(), letters.next()) else { continue };
        let Some(order) = "scuge".find(kind.to_ascii_lowercase()) else { continue };
        let id = letters.as_str().trim_start_matches('$').to_string();
        let held = holders.entry((order, id)).or_default();
        for perm in perms {
            let places = held.entry(perm).or_default();
            places.local |= place == 'l';
            places.below |= place == 'd';
        }
    }
    let mut out = format!("{:-<WIDTH$}\n", format!("---- Permissions on {} ", on.name));
    for (order, title) in [(0, "Permission sets:\n"), (1, "Create time permissions:\n")] {
        let mut title = Some(title);
        for ((_, id), perms) in holders.iter().filter(|((o, _), _)| *o == order) {
            let space = if id.is_empty() { "" } else { " " };
            let perms: Vec<&str> = perms.keys().copied().collect();
            out.push_str(&format!("{}\t{id}{space}{}\n", title.take().unwrap_or(""), perms.join(",")));
        }
    }
    let name = |order: usize, id: &str| {
        let named = |of: fn(u32) -> Option<String>| id.parse().ok().and_then(of);
        let named = if order == 2 { named(user) } else { named(group) };
        named.unwrap_or_else(|| format!("(unknown: {id})"))
    };
    for (local, below, title) in [
        (true, false, "Local permissions:\n"),
        (false, true, "Descendent permissions:\n"),
        (true, true, "Local+Descendent permissions:\n"),
    ] {
        let mut title = Some(title);
        for ((order, id), perms) in holders.iter().filter(|((o, _), _)| *o > 1) {
            let here = perms.iter().filter(|(_, at)| at.local == local && at.below == below);
            let here: Vec<&str> = here.map(|(perm, _)| *perm).collect();
            if here.is_empty() {
                continue;
            }
            let who = match order {
                2 => format!("user {}", name(2, id)),
                3 => format!("group {}", name(3, id)),
                _ => "everyone".to_string(),
            };
            out.push_str(&format!("{}\t{who} {}\n", title.take().unwrap_or(""), here.join(",")));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opts::Spec;

    fn parse(line: &str) -> Parsed {
        let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        Spec { letters: "ldugecsr", long: &[] }.parse(&words).unwrap()
    }

    /// The keys and permissions that a command line means.
    fn meant(line: &str, un: bool) -> Result<String, String> {
        let p = parse(line);
        let asked = asked(&p, un)?.ok_or("a list")?;
        let words = |g: &Grant| format!("{}={}", g.who, g.perms.clone().unwrap_or_default().join(","));
        let all: Vec<String> = grants(&p, &asked)?.iter().map(words).collect();
        Ok(all.join(" "))
    }

    #[test]
    fn command_lines_name_holders_and_places() {
        for (line, want) in [
            ("root send,@a t", "ul$0=send Ul$0=@a ud$0=send Ud$0=@a"),
            ("-l 0 send t", "ul$0=send"),
            ("-d root send t", "ud$0=send"),
            ("-ld root send t", "ul$0=send ud$0=send"),
            ("-u 4242424 send t", "ul$4242424=send ud$4242424=send"),
            ("-g root,7 send t", "gl$0=send gd$0=send gl$7=send gd$7=send"),
            ("everyone send t", "el$=send ed$=send"),
            ("-le @a t", "El$=@a"),
            ("-c send,mount t", "c-$=send,mount"),
            ("-s @a send,@b t", "s-$@a=send S-$@a=@b"),
        ] {
            assert_eq!(meant(line, false).as_deref(), Ok(want), "{line}");
            assert_eq!(meant(line, true).as_deref(), Ok(want), "{line}");
        }
        for (line, want) in [
            ("root t", "ul$0= Ul$0= ud$0= Ud$0="),
            ("-l everyone t", "el$= El$="),
            ("-e t", "el$= El$= ed$= Ed$="),
            ("-c t", "c-$= C-$="),
            ("-s @a t", "s-$@a= S-$@a="),
        ] {
            assert_eq!(meant(line, true).as_deref(), Ok(want), "{line}");
        }
        assert_eq!(meant("t", false), Err("a list".into()));
        for (line, why) in [
            ("-ug root send t", "-u, -g, and -e are mutually exclusive"),
            ("-cl send t", "invalid options combined with -c"),
            ("-se @a send t", "invalid options combined with -s"),
            ("-s a send t", "invalid set name: missing '@' prefix"),
            ("root send t u", "wrong number of parameters"),
            ("-e send", "wrong number of parameters"),
            ("-c", "wrong number of parameters"),
            ("", "wrong number of parameters"),
            ("no-such-user send t", "invalid user/group no-such-user"),
            ("4242424 send t", "invalid user/group 4242424"),
            ("-u no-such-user send t", "invalid user no-such-user"),
            ("-g no-such-user send t", "invalid group no-such-user"),
            ("root , t", "missing permission argument"),
        ] {
            assert_eq!(meant(line, false), Err(why.to_string()), "{line}");
        }
        assert_eq!(meant("t", true), Err("wrong number of parameters".into()));
    }

    #[test]
    fn the_list_is_that_of_openzfs() {
        let grants: &[(&str, &[&str])] = &[
            ("C-$", &["@ops"]),
            ("Ul$1000", &["@ops"]),
            ("c-$", &["destroy", "mount"]),
            ("ed$", &["send"]),
            ("el$", &["send"]),
            ("gd$7", &["hold"]),
            ("s-$@ops", &["hold", "release"]),
            ("s-$@a", &["send"]),
            ("S-$@a", &["@ops"]),
            ("ud$1000", &["snapshot"]),
            ("ud$999", &["clone"]),
            ("ul$1000", &["create", "snapshot"]),
        ];
        let view = |name: &str, grants: &[(&str, &[&str])]| AllowedView {
            name: name.to_string(),
            grants: grants.iter().map(|(w, p)| (w.to_string(), p.iter().map(|p| p.to_string()).collect())).collect(),
        };
        let user = |id: u32| (id == 1000).then(|| "joe".to_string());
        let text = listed(&view("tank/joe", grants), user, |_| None);
        let want = "---- Permissions on tank/joe -----------------------------------------\n\
            Permission sets:\n\t@a @ops,send\n\t@ops hold,release\n\
            Create time permissions:\n\t@ops,destroy,mount\n\
            Local permissions:\n\tuser joe @ops,create\n\
            Descendent permissions:\n\tuser (unknown: 999) clone\n\tgroup (unknown: 7) hold\n\
            Local+Descendent permissions:\n\tuser joe snapshot\n\teveryone send\n";
        assert_eq!(text, want);
        assert_eq!(text.lines().next().map(str::len), Some(WIDTH));
        let long = format!("tank/{}", "a".repeat(80));
        assert!(listed(&view(&long, &[]), user, |_| None).ends_with("a \n"));
    }
}
