//! `zfs create`: file systems, and with `-V` volumes.

use admin::fs::ops::parse_props;
use admin::fs::volumes::{NewVolume, PlannedVolume};
use admin::request::{Datasets, FsCreate, Pools, VolumePlan};
use base::Error;
use dsl::props::{DatasetKind, is_default_quota};
use dsl::volume::BLOCK_SIZE;

use crate::opts::Parsed;
use crate::zfs::{ask_and_warn, select_one};
use crate::zfs_out;
use crate::{Done, Fail, ask, assignment, print, unique, zfs_key};

/// A size of a volume or its blocks; `what` names it.
fn size(what: &str, text: &str) -> Result<u64, Fail> {
    dsl::props::parse_size(text)
        .map_err(|e| match e.to_string().contains("too large") {
            true => "numeric value is too large",
            false => "bad numeric value",
        })
        .map_err(|why| Fail::Error(Error::invalid(format!("bad {what} '{text}': {why}"))))
}

/// The properties that the options give, in their order; the size of a volume is one of them.
fn given(p: &Parsed) -> Result<Vec<(String, String)>, Fail> {
    let mut out = Vec::new();
    for (letter, value) in p.options() {
        match letter {
            'V' => out.push(("volsize".to_string(), size("volume size", value)?.to_string())),
            'b' => out.push(("volblocksize".to_string(), size("volume block size", value)?.to_string())),
            'o' => out.push(assignment(value, "create")?),
            _ => {}
        }
    }
    unique(out)
}

/// The list that `-v` shows of a volume: what was given, then what was computed.
fn completed(given: &[(String, String)], plan: &PlannedVolume) -> Vec<(String, String)> {
    let mut out = given.to_vec();
    let mut put = |name: &str, value: u64| {
        let value = value.to_string();
        if !out.iter().any(|(n, v)| n == name && *v == value) {
            out.retain(|(n, _)| n != name);
            out.push((name.to_string(), value));
        }
    };
    if plan.block_size != BLOCK_SIZE && !given.iter().any(|(n, _)| n == "volblocksize") {
        put("volblocksize", u64::from(plan.block_size));
    }
    put("volsize", plan.size);
    if let Some(reserved) = plan.refreservation {
        put("refreservation", reserved);
    }
    out
}

/// Runs `zfs create`.
pub fn create(p: &Parsed) -> Done {
    let volume = p.has('V');
    let usage = |what: &str| Err(Fail::Usage(what.into(), "create"));
    if !volume && (p.has('b') || p.has('s')) {
        return usage("'-s' and '-b' can only be used when creating a volume");
    }
    if volume && p.has('u') {
        return usage("'-u' can only be used when creating a filesystem");
    }
    let [name] = p.operands.as_slice() else {
        return usage(match (p.operands.is_empty(), volume) {
            (true, true) => "missing volume argument",
            (true, false) => "missing filesystem argument",
            _ => "too many arguments",
        });
    };
    if !p.has('p') && !name.contains('/') {
        return Err(Error::invalid(format!("cannot create '{name}': missing dataset name")).into());
    }
    let mut props = given(p)?;
    let exists = || ask(&Datasets(select_one(name))).is_ok();
    let shown = p.has('v') || p.has('P');
    if p.has('p') && (p.has('n') || shown) && exists() {
        return Ok(());
    }
    let mut new = None;
    let mut text = String::new();
    if volume {
        let all = props.clone();
        let bytes = props.iter().find(|(n, _)| n == "volsize").and_then(|(_, v)| v.parse().ok()).unwrap_or(0);
        props.retain(|(n, _)| n != "volsize");
        let volume = NewVolume { size: bytes, sparse: p.has('s') };
        if p.has('n') || shown {
            let plan: PlannedVolume = ask(&VolumePlan { name: name.clone(), props: props.clone(), volume })
                .map_err(|e| verb(e, if p.has('n') { "verify" } else { "create" }, name))?;
            text = zfs_out::created(name, &completed(&all, &plan), p);
        }
        new = Some(volume);
    } else {
        text.push_str(&zfs_out::created(name, &props, p));
    }
    if p.has('n') {
        if !volume {
            check_creation(name, &props).map_err(|e| e.at(format!("cannot verify '{name}'")))?;
            ask(&Pools { names: vec![name.split('/').next().unwrap_or("").to_string()] })?;
        }
        print(&text);
        return Ok(());
    }
    let key = zfs_key::key_for_new(name, &props)?;
    let props = crate::zfs_owners::with_numbers(props, &format!("cannot create '{name}'"))?;
    let (parents, no_mount) = (p.has('p'), p.has('u'));
    ask_and_warn(&FsCreate { name: name.clone(), props, parents, no_mount, key, volume: new })?;
    print(&text);
    Ok(())
}

/// The failure of a plan, as that of the command.
fn verb(fail: Fail, verb: &str, name: &str) -> Fail {
    match fail {
        Fail::Error(e) => Fail::Error(e.at(format!("cannot {verb} '{name}'"))),
        other => other,
    }
}

/// Checks name and values of a new file system, without the daemon.
fn check_creation(name: &str, props: &[(String, String)]) -> base::Result<()> {
    dsl::check_name(name)?;
    let of_keys = ["encryption", "keyformat", "keylocation", "pbkdf2iters"];
    let rest: Vec<_> =
        props.iter().filter(|(n, _)| !of_keys.contains(&n.as_str()) && !is_default_quota(n)).cloned().collect();
    parse_props(&rest, DatasetKind::Filesystem, true).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect()
    }

    #[test]
    fn what_was_computed_follows_what_was_given() {
        let plan = PlannedVolume { size: 1 << 20, block_size: 16 << 10, refreservation: Some(5), warning: None };
        let sparse = PlannedVolume { refreservation: None, ..plan.clone() };
        let given = list(&[("volsize", "1048576"), ("compression", "lz4")]);
        assert_eq!(completed(&given, &sparse), given);
        let want = list(&[("volsize", "1048576"), ("compression", "lz4"), ("refreservation", "5")]);
        assert_eq!(completed(&given, &plan), want);
        // Rounded up, with larger blocks than elsewhere.
        let given = list(&[("volsize", "1048000"), ("refreservation", "auto")]);
        let plan = PlannedVolume { block_size: 32 << 10, ..plan };
        let want = list(&[("volblocksize", "32768"), ("volsize", "1048576"), ("refreservation", "5")]);
        assert_eq!(completed(&given, &plan), want);
    }
}
