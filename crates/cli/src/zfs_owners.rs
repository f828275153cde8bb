//! `zfs userspace`, `groupspace` and `projectspace`, and the names of users and groups in
//! properties such as `userquota@joe`, which the daemon knows by their numbers.

use std::cmp::Ordering;

use admin::fs::owners::{OwnerProp, OwnerView, Owners};
use admin::request::OwnerUses;
use admin::view::{DatasetView, fmt};
use base::Error;

use crate::opts::Parsed;
use crate::table::{Column, scripted, table};
use crate::{Done, Fail, ask, print};

/// Fields, in the order in which all are shown.
const FIELDS: [&str; 6] = ["type", "name", "used", "quota", "objused", "objquota"];

/// The number of a user, group or project with that name or number.
fn number(owners: Owners, who: &str) -> Option<u32> {
    let named = match owners {
        Owners::Users => host::user_id(who),
        Owners::Groups => host::group_id(who),
        Owners::Projects => None,
    };
    named.or_else(|| who.parse().ok())
}

fn name_of(owners: Owners, id: u64) -> Option<String> {
    let id = u32::try_from(id).ok()?;
    match owners {
        Owners::Users => host::user_name(id),
        Owners::Groups => host::group_name(id),
        Owners::Projects => None,
    }
}

/// The property with the number of its owner: `userquota@1000` for `userquota@joe`. None if there
/// is no such user or group.
fn numeric(prop: &OwnerProp<'_>) -> Option<String> {
    number(prop.owners, prop.who).map(|id| format!("{}{id}", prop.prefix))
}

/// Properties that are to be set, with numbers for names. Fails for owners that do not exist.
pub fn with_numbers(props: Vec<(String, String)>, what: &str) -> Result<Vec<(String, String)>, Fail> {
    let one = |(name, value): (String, String)| match OwnerProp::parse(&name) {
        None => Ok((name, value)),
        Some(prop) => match numeric(&prop) {
            Some(name) => Ok((name, value)),
            None => Err(Error::invalid(format!("{what}: '{name}' has an invalid user/group name")).into()),
        },
    };
    props.into_iter().map(one).collect()
}

/// The names under which properties of owners were asked for, with those that the daemon knows.
pub struct Asked(Vec<(String, String)>);

impl Asked {
    /// Replaces names in a list of properties. One of an owner that does not exist stays: it has no
    /// value.
    pub fn replace(wanted: &mut [String]) -> Asked {
        let mut out = Vec::new();
        for name in wanted {
            let Some(number) = OwnerProp::parse(name).as_ref().and_then(numeric) else { continue };
            if number != *name {
                out.push((std::mem::replace(name, number.clone()), number));
            }
        }
        Asked(out)
    }

    /// Puts the names that were asked for into the answers.
    pub fn restore(&self, datasets: &mut [DatasetView]) {
        for ds in datasets {
            for (asked, number) in &self.0 {
                if let Some(found) = ds.props.iter().find(|p| p.name == *number) {
                    let named = admin::view::PropView { name: asked.clone(), ..found.clone() };
                    ds.props.push(named);
                }
            }
        }
    }
}

/// A line: the type of owner, its name or number, and the figures.
struct Line {
    kind: &'static str,
    name: Option<String>,
    of: OwnerView,
}

impl Line {
    fn field(&self, field: &str, exact: bool) -> String {
        let bytes = |n: u64| if exact { n.to_string() } else { fmt::bytes(n) };
        let count = |n: Option<u64>| match n {
            None => "-".to_string(),
            Some(n) if exact => n.to_string(),
            Some(n) => fmt::num(n),
        };
        match field {
            "type" => self.kind.to_string(),
            "name" => self.name.clone().unwrap_or_else(|| self.of.id.to_string()),
            "used" => bytes(self.of.used),
            "quota" if self.of.quota == 0 && !exact => "none".to_string(),
            "quota" => bytes(self.of.quota),
            "objused" => count(self.of.objused),
            _ if self.of.objquota == Some(0) && !exact => "none".to_string(),
            _ => count(self.of.objquota),
        }
    }

    fn compare(&self, other: &Line, key: &str) -> Ordering {
        match key {
            "type" => self.kind.cmp(other.kind),
            "used" => self.of.used.cmp(&other.of.used),
            "quota" => self.of.quota.cmp(&other.of.quota),
            // Names before numbers, as in a list that is sorted by text.
            _ => match (&self.name, &other.name) {
                (Some(a), Some(b)) => a.cmp(b),
                (None, None) => self.of.id.cmp(&other.of.id),
                (None, Some(_)) => Ordering::Less,
                (Some(_), None) => Ordering::Greater,
            },
        }
    }
}

/// Whose lines are shown: by the command, or with `-t`.
fn types(p: &Parsed, usual: Owners, topic: &'static str) -> Result<Vec<Owners>, Fail> {
    if !p.has('t') {
        return Ok(vec![usual]);
    }
    let mut out = Vec::new();
    for word in p.values('t').flat_map(|v| v.split(',')) {
        match word {
            "all" => out.extend([Owners::Users, Owners::Groups]),
            "posixuser" => out.push(Owners::Users),
            "posixgroup" => out.push(Owners::Groups),
            // There are none: weir has no names of SMB.
            "smbuser" | "smbgroup" => {}
            other => return Err(Fail::Usage(format!("invalid type '{other}' for -t option"), topic)),
        }
    }
    out.sort_by_key(|o| *o as u8);
    out.dedup();
    Ok(out)
}

/// `zfs userspace`, `groupspace` and `projectspace`.
pub fn space(p: &Parsed, usual: Owners, topic: &'static str) -> Done {
    let usage = |what: String| Fail::Usage(what, topic);
    let [name] = p.operands.as_slice() else {
        let what = if p.operands.is_empty() { "missing dataset name" } else { "too many arguments" };
        return Err(usage(what.to_string()));
    };
    let mut fields: Vec<&str> = p.values('o').flat_map(|v| v.split(',')).collect();
    if let Some(bad) = fields.iter().find(|f| !FIELDS.contains(f)) {
        return Err(usage(format!("invalid type '{bad}' for -o option")));
    }
    if fields.is_empty() {
        fields = FIELDS.to_vec();
    }
    let mut keys = Vec::new();
    for (letter, key) in p.options().iter().filter(|(l, _)| matches!(l, 's' | 'S')) {
        if !FIELDS[..4].contains(&key.as_str()) {
            return Err(usage(format!("invalid field '{key}'")));
        }
        keys.push((key.as_str(), *letter == 'S'));
    }
    keys.extend([("type", false), ("name", false)]);
    let name = match name.starts_with(['/', '.']) {
        true => crate::absolute(name)?,
        false => name.clone(),
    };
    let mut lines: Vec<Line> = Vec::new();
    for owners in types(p, usual, topic)? {
        let kind = match owners {
            Owners::Users => "POSIX User",
            Owners::Groups => "POSIX Group",
            Owners::Projects => "Project",
        };
        let all: Vec<OwnerView> = ask(&OwnerUses { name: name.clone(), owners })?;
        let named = |id: u64| if p.has('n') { None } else { name_of(owners, id) };
        lines.extend(all.into_iter().map(|of| Line { kind, name: named(of.id), of }));
    }
    let order = |a: &Line, b: &Line| {
        let by = |(key, reverse): &(&str, bool)| match reverse {
            true => b.compare(a, key),
            false => a.compare(b, key),
        };
        keys.iter().map(by).find(|o| *o != Ordering::Equal).unwrap_or(Ordering::Equal)
    };
    lines.sort_by(order);
    if lines.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> =
        lines.iter().map(|l| fields.iter().map(|f| l.field(f, p.has('p'))).collect()).collect();
    if p.has('H') {
        print(&scripted(&rows));
        return Ok(());
    }
    let column = |f: &&str| match *f {
        "type" | "name" => Column::text(&f.to_uppercase()),
        _ => Column { right: true, ..Column::text(&f.to_uppercase()) },
    };
    let columns: Vec<Column> = fields.iter().map(column).collect();
    print(&table(&columns, &rows));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_and_restored() {
        let mut wanted = ["used", "userquota@root", "userquota@0", "groupused@no such group"].map(String::from);
        let asked = Asked::replace(&mut wanted);
        assert_eq!(wanted, ["used", "userquota@0", "userquota@0", "groupused@no such group"]);
        let prop = |name: &str| admin::view::PropView {
            name: name.into(),
            value: "1M".into(),
            exact: "1048576".into(),
            source: "local".into(),
        };
        let mut all = [DatasetView { name: "a".into(), kind: "filesystem".into(), props: vec![prop("userquota@0")] }];
        asked.restore(&mut all);
        assert_eq!(all[0].props, [prop("userquota@0"), prop("userquota@root")]);
        let set = |name: &str| with_numbers(vec![(name.to_string(), "1M".to_string())], "cannot set");
        assert_eq!(set("groupquota@root").ok().map(|p| p[0].0.clone()).as_deref(), Some("groupquota@0"));
        assert!(set("userquota@root-122").is_err() && set("projectquota@root").is_err());
    }

    #[test]
    fn lines_are_those_of_openzfs() {
        let of = OwnerView { id: 7, used: 1536, quota: 0, objused: Some(3), objquota: None };
        let line = Line { kind: "POSIX User", name: None, of };
        let fields = |exact| FIELDS.map(|f| line.field(f, exact)).join(" ");
        assert_eq!(fields(false), "POSIX User 7 1.50K none 3 -");
        assert_eq!(fields(true), "POSIX User 7 1536 0 3 -");
    }
}
