//! Properties as programs see them: numbers as numbers, lists as tables, the name of a dataset as
//! the source.

use std::rc::Rc;

use dsl::Dataset;
use dsl::props::{self, DatasetKind};
use program::{Answer, Value};

use crate::engine::PoolEngine;
use crate::fs::owners::{OwnerProp, What};
use crate::request::Select;
use crate::view::PropView;

/// Properties whose values are numbers (`PROP_TYPE_NUMBER` in OpenZFS).
const NUMBERS: &[&str] = &[
    "used",
    "available",
    "referenced",
    "volblocksize",
    "usedbysnapshots",
    "usedbydataset",
    "usedbychildren",
    "usedbyrefreservation",
    "userrefs",
    "written",
    "logicalused",
    "logicalreferenced",
    "quota",
    "reservation",
    "volsize",
    "refquota",
    "refreservation",
    "filesystem_limit",
    "snapshot_limit",
    "recordsize",
    "special_small_blocks",
    "pbkdf2iters",
    "creation",
    "createtxg",
    "guid",
    "objsetid",
    "snapshots_changed",
    "inconsistent",
];
/// Ratios, which are hundredths.
const RATIOS: &[&str] = &["compressratio", "refcompressratio"];
/// Properties that lists do not show.
const HIDDEN: &[&str] = &["name", "prevsnap", "unique", "numclones", "useraccounting", "inconsistent", "iscsioptions"];
/// Properties that change with the dataset or never, which have no source.
const READ_ONLY: &[&str] = &["volblocksize", "version"];
/// Counters of what is below a file system with a limit.
const COUNTS: &[&str] = &["filesystem_count", "snapshot_count"];

fn kinds() -> [DatasetKind; 4] {
    [DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot, DatasetKind::VolumeSnapshot]
}

impl PoolEngine {
    async fn program_kind(&self, ds: &Dataset) -> DatasetKind {
        let head = if ds.is_snapshot() { ds.dir().head() } else { None };
        match (ds.is_snapshot(), self.props_kind(head.as_deref().unwrap_or(ds)).await) {
            (false, kind) => kind,
            (true, DatasetKind::Volume) => DatasetKind::VolumeSnapshot,
            (true, _) => DatasetKind::Snapshot,
        }
    }

    async fn view_of(&self, ds: &Dataset, wanted: &str) -> Vec<PropView> {
        let select = Select {
            names: vec![ds.name()],
            depth: Some(0),
            filesystems: true,
            volumes: true,
            snapshots: ds.is_snapshot(),
            wanted: vec![wanted.to_string()],
            ..Select::default()
        };
        let views = self.select(&select).await.unwrap_or_default();
        views.into_iter().next().map(|v| v.props).unwrap_or_default()
    }

    /// `zfs.list.user_properties`: name, value and source of each.
    pub(super) async fn user_props(&self, ds: &Dataset) -> Vec<Vec<Value>> {
        let props = self.view_of(ds, "a:a").await.into_iter().filter(|p| props::is_user_prop(&p.name));
        props.map(|p| vec![Value::Text(p.name), Value::Text(p.exact), source(&p.source, ds)]).collect()
    }

    /// `zfs.list.system_properties`
    pub(super) async fn system_props(&self, ds: &Dataset) -> Answer {
        let is_clone = matches!(self.pool.dsl().origin_of(ds).await, Ok(Some(_)));
        let names = props::shown_of(self.program_kind(ds).await).into_iter();
        let names = names.filter(|n| *n != "mounted" && (*n != "origin" || is_clone));
        Answer::Values(vec![Value::List(names.map(|n| Value::Text(n.to_string())).collect())])
    }

    /// `zfs.get_prop`: value and source, or nothing for a property that the dataset has not.
    pub(super) async fn program_prop(&self, name: &str, prop: &str) -> Answer {
        let written = prop.starts_with("written@");
        let known = written
            || props::is_user_prop(prop)
            || OwnerProp::parse(prop).is_some()
            || HIDDEN.contains(&prop)
            || matches!(prop, "receive_resume_token" | "redact_snaps")
            || kinds().into_iter().any(|kind| props::shown_of(kind).contains(&prop));
        if !known {
            return Answer::Error(format!("'{prop}' is not a valid property"));
        }
        let ds = match self.held(name).await {
            Ok(ds) => ds,
            Err(answer) => return answer,
        };
        if let Some(snap) = prop.strip_prefix("written@") {
            let full = if snap.contains('@') { snap.to_string() } else { format!("{}@{snap}", ds.dir().full_name()) };
            if let Err(answer) = self.held(&full).await {
                return answer;
            }
        }
        let pair = |value: Value, source: Value| Answer::Values(vec![value, source]);
        if let Some(pair) = self.hidden_prop(&ds, prop).await {
            return pair;
        }
        let view = self.view_of(&ds, prop).await;
        let Some(found) = view.into_iter().find(|p| p.name == prop) else { return Answer::Values(Vec::new()) };
        if COUNTS.contains(&prop) {
            // Nothing is counted before there is a limit.
            return match number(&found.exact) {
                count @ Value::Int(0..) => pair(count, Value::Nil),
                _ => Answer::Values(Vec::new()),
            };
        }
        if written || OwnerProp::parse(prop).is_some() {
            let value = number(&found.exact);
            let limit = OwnerProp::parse(prop).is_some_and(|p| matches!(p.what, What::Quota));
            return match value {
                Value::Int(0) | Value::Nil if limit => Answer::Values(Vec::new()),
                value => pair(value, Value::Text(name.to_string())),
            };
        }
        let source = if READ_ONLY.contains(&prop) { Value::Nil } else { source(&found.source, &ds) };
        if NUMBERS.contains(&prop) {
            return pair(number(&found.exact), source);
        }
        if RATIOS.contains(&prop) {
            return pair(number(&found.exact.replace('.', "")), source);
        }
        pair(Value::Text(found.exact), source)
    }

    /// Properties that no list shows, and those with a form of their own.
    async fn hidden_prop(&self, ds: &Rc<Dataset>, prop: &str) -> Option<Answer> {
        let phys = ds.phys();
        let none = Answer::Values(Vec::new());
        let value = match prop {
            "mounted" | "iscsioptions" => return Some(none),
            "name" => Value::Text(ds.name()),
            "unique" => Value::Int(phys.unique_bytes.cast_signed()),
            "inconsistent" => Value::Int(i64::from(ds.is_partial())),
            "useraccounting" => Value::Int(i64::from(self.program_kind(ds).await != DatasetKind::Volume)),
            "numclones" if ds.is_snapshot() => Value::Int(phys.num_children.saturating_sub(1).cast_signed()),
            "numclones" => return Some(none),
            "clones" if ds.is_snapshot() => {
                let clones = self.pool.dsl().clones_of(ds).await.unwrap_or_default();
                let clones = clones.iter().filter(|c| !c.dir().is_hidden());
                Value::List(clones.map(|c| Value::Text(c.name())).collect())
            }
            "prevsnap" if ds.is_snapshot() => return Some(none),
            "prevsnap" => {
                let snaps = self.pool.dsl().snapshots(ds).await.unwrap_or_default();
                let last = snaps.into_iter().max_by_key(|s| s.phys().creation_txg);
                let Some(last) = last else { return Some(none) };
                Value::Text(last.name())
            }
            "receive_resume_token" if ds.is_snapshot() => return Some(none),
            "receive_resume_token" => match self.pool.dsl().resume_token(ds).await {
                Ok(Some(token)) => Value::Text(token),
                _ => return Some(none),
            },
            _ => return None,
        };
        Some(Answer::Values(vec![value, Value::Nil]))
    }
}

/// A number, which wraps around beyond 63 bits as in OpenZFS; nil for what is none.
fn number(text: &str) -> Value {
    text.parse::<u64>().map_or(Value::Nil, |n| Value::Int(n.cast_signed()))
}

/// The source as programs see it: `default`, or the dataset that has the value.
fn source(shown: &str, ds: &Dataset) -> Value {
    match shown {
        "-" => Value::Nil,
        "local" | "received" => Value::Text(ds.name()),
        other => Value::Text(other.strip_prefix("inherited from ").unwrap_or(other).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_and_words_are_none() {
        assert_eq!(number("10"), Value::Int(10));
        assert_eq!(number("18446744073709551615"), Value::Int(-1));
        assert_eq!(number("-"), Value::Nil);
    }

    #[test]
    fn numbers_and_ratios_are_properties() {
        for name in NUMBERS.iter().chain(RATIOS).filter(|n| !HIDDEN.contains(n)) {
            assert!(kinds().into_iter().any(|kind| props::shown_of(kind).contains(name)), "{name}");
        }
    }
}
