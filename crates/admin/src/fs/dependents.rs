//! The dependents of a dataset, and the refusals that list them.
//!
//! Dependents of a file system are its children, its snapshots and their clones; of a snapshot its
//! clones; each with its own dependents. A dataset can be destroyed only after its dependents, so
//! lists here have the dependents first. The texts are those of OpenZFS, which programs match: the
//! reason on the first line, then the option that destroys them, then one name per line.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use dsl::Dataset;
use ondisk::objset::ObjsetType;

use crate::engine::PoolEngine;

/// Names that a refused rollback lists at most (OpenZFS 2.1 stops there as well).
const YOUNGER_MAX: usize = 32;

/// The refusal to destroy `target`, a `kind` ("filesystem", "snapshot" ...), because of
/// `dependents`, their names in the order of destruction; none if `recursive` permits it.
pub fn destroy_refusal(kind: &str, target: &str, recursive: bool, dependents: &[String]) -> Option<Error> {
    let within = |name: &&String| name.strip_prefix(target).is_some_and(|rest| rest.starts_with(['/', '@']));
    let (what, letter, wrong) = if recursive || kind == "snapshot" {
        ("dependent clones", "-R", ErrorKind::Busy)
    } else {
        ("children", "-r", ErrorKind::NotEmpty)
    };
    let list: Vec<&String> = dependents.iter().filter(|n| within(n) == (letter == "-r")).collect();
    (!list.is_empty()).then(|| {
        let mut text =
            format!("cannot destroy '{target}': {kind} has {what}\nuse '{letter}' to destroy the following datasets:");
        list.iter().for_each(|n| text.extend(["\n", n]));
        Error::new(wrong, text)
    })
}

/// The refusal to roll back to `target`: it would destroy `names`, later snapshots and bookmarks,
/// or with `clones` clones of them.
pub fn rollback_refusal(target: &str, clones: bool, names: &[String]) -> Error {
    let (why, letter, what) = if clones {
        ("clones of previous snapshots exist", "-R", "clones and dependents")
    } else {
        ("more recent snapshots or bookmarks exist", "-r", "snapshots and bookmarks")
    };
    let mut text =
        format!("cannot rollback to '{target}': {why}\nuse '{letter}' to force deletion of the following {what}:");
    names.iter().take(YOUNGER_MAX).for_each(|n| text.extend(["\n", n]));
    if names.len() > YOUNGER_MAX {
        text.push_str(&format!("\nOutput limited to {YOUNGER_MAX} snapshots/bookmarks"));
    }
    Error::new(ErrorKind::Exists, text)
}

impl PoolEngine {
    /// Names of the dependents of `ds`, in the order of destruction.
    pub(crate) async fn dependents(&self, ds: &Rc<Dataset>) -> Result<Vec<String>> {
        let mut out = Vec::new();
        let mut seen = BTreeSet::from([ds.name()]);
        self.add_dependents(ds, &mut seen, &mut out).await?;
        Ok(out)
    }

    fn add_dependents<'a>(
        &'a self,
        ds: &'a Rc<Dataset>,
        seen: &'a mut BTreeSet<String>,
        out: &'a mut Vec<String>,
    ) -> rt::LocalBoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let next: Vec<Rc<Dataset>> = if ds.is_snapshot() {
                self.pool.dsl().clones_of(ds).await?
            } else {
                let children = ds.dir().children().into_iter().filter(|c| !c.name().starts_with('$'));
                let heads = children.filter_map(|c| c.head());
                heads.chain(self.pool.dsl().snapshots(ds).await?).collect()
            };
            for dependent in next {
                let name = dependent.name();
                if seen.insert(name.clone()) {
                    self.add_dependents(&dependent, seen, out).await?;
                    out.push(name);
                }
            }
            Ok(())
        })
    }

    /// "snapshot", "volume" or "filesystem".
    pub(crate) async fn kind_of(&self, ds: &Dataset) -> &'static str {
        match ds.is_snapshot() {
            true => "snapshot",
            false if ds.os_type().await.is_ok_and(|t| t == ObjsetType::Zvol) => "volume",
            false => "filesystem",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_list_what_the_letter_would_destroy() {
        let names = |list: &[&str]| list.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let refused = |kind, target, recursive, list: &[&str]| {
            destroy_refusal(kind, target, recursive, &names(list)).map(|e| e.to_string())
        };
        let all = ["p/a/b", "q/c", "p/a@s", "p/ab"];
        assert_eq!(
            refused("filesystem", "p/a", false, &all).unwrap(),
            "cannot destroy 'p/a': filesystem has children\nuse '-r' to destroy the following datasets:\np/a/b\np/a@s"
        );
        assert_eq!(
            refused("filesystem", "p/a", true, &all).unwrap(),
            "cannot destroy 'p/a': filesystem has dependent clones\nuse '-R' to destroy the following datasets:\nq/c\np/ab"
        );
        assert_eq!(
            refused("snapshot", "p/a@s", false, &["p/c"]).unwrap(),
            "cannot destroy 'p/a@s': snapshot has dependent clones\nuse '-R' to destroy the following datasets:\np/c"
        );
        for (kind, target, recursive, list) in [
            ("filesystem", "p/a", false, &[] as &[&str]),
            ("filesystem", "p/a", true, &["p/a/b", "p/a@s"]),
            ("filesystem", "p/a", false, &["q/c"]),
            ("snapshot", "p/a@s", false, &[]),
        ] {
            assert_eq!(refused(kind, target, recursive, list), None, "{target} {list:?}");
        }
    }

    #[test]
    fn a_refused_rollback_lists_32_names_at_most() {
        let names: Vec<String> = (0..40).map(|n| format!("p@{n}")).collect();
        let text = rollback_refusal("p@x", false, &names).to_string();
        assert!(
            text.starts_with("cannot rollback to 'p@x': more recent snapshots or bookmarks exist\nuse '-r' to force")
        );
        assert_eq!(text.lines().count(), 2 + 32 + 1);
        let text = rollback_refusal("p@x", true, &names[..1]).to_string();
        assert!(text.ends_with("use '-R' to force deletion of the following clones and dependents:\np@0"), "{text}");
    }
}
