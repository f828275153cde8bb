//! The functions of the table `zfs`: their names, their arguments, and the errors about those.

use crate::call::{Call, Change, List};
use crate::ffi::{self, State};
use crate::value::text_at;

/// A function with its arguments as they are called in messages.
#[derive(Debug)]
pub(crate) struct Function {
    /// The table below `zfs`, or nothing.
    pub(crate) group: &'static str,
    /// Its name.
    pub(crate) name: &'static str,
    args: &'static [&'static str],
    /// A boolean with a name.
    option: Option<&'static str>,
}

const fn function(group: &'static str, name: &'static str, args: &'static [&'static str]) -> Function {
    Function { group, name, args, option: None }
}

const HEAD: &[&str] = &["filesystem | volume"];
const ANY: &[&str] = &["filesystem | snapshot | volume"];

/// All functions. Those of `change` are in `zfs.sync` and `zfs.check`.
pub(crate) const FUNCTIONS: &[Function] = &[
    function("", "debug", &["debug string"]),
    function("", "exists", &["dataset"]),
    function("", "get_prop", &["dataset", "property"]),
    function("list", "children", HEAD),
    function("list", "snapshots", HEAD),
    function("list", "user_properties", ANY),
    function("list", "properties", ANY),
    function("list", "clones", &["snapshot"]),
    function("list", "system_properties", &["dataset"]),
    function("list", "bookmarks", &["dataset"]),
    function("list", "holds", &["snapshot"]),
    Function { group: "change", name: "destroy", args: &["filesystem | snapshot"], option: Some("defer") },
    function("change", "clone", &["snapshot", "newdataset"]),
    function("change", "promote", &["clone"]),
    function("change", "rollback", &["filesystem"]),
    function("change", "snapshot", &["filesystem@snapname | volume@snapname"]),
    function("change", "rename_snapshot", &["filesystem | volume", "oldsnapname", "newsnapname"]),
    function("change", "inherit", &["dataset", "property"]),
    function("change", "bookmark", &["snapshot | bookmark", "bookmark"]),
    function("change", "set_prop", &["dataset", "property", "value"]),
];

impl Function {
    fn fault(&self, why: &str) -> String {
        let mut args: Vec<String> = self.args.iter().map(|a| format!("<{a}(string)>")).collect();
        args.extend(self.option.map(|o| format!("{o}=(boolean)")));
        format!("{why}: {}{{{}}}", self.name, args.join(", "))
    }

    /// The call that the arguments on the stack mean; `changes`: of `zfs.sync`.
    pub(crate) fn call(&self, state: State, changes: bool) -> Result<Call, String> {
        ffi::reserve(state, 8);
        let (texts, option) = match ffi::top(state) == 1 && ffi::kind(state, 1) == ffi::TABLE {
            true => self.of_table(state)?,
            false => (self.of_stack(state)?, None),
        };
        let mut texts = texts.into_iter();
        let mut next = || texts.next().unwrap_or_default();
        let change = |change| Ok(Call::Change(change, changes));
        match (self.group, self.name) {
            (_, "debug") => Ok(Call::Debug(next())),
            (_, "exists") => Ok(Call::Exists(next())),
            (_, "get_prop") => Ok(Call::GetProp { dataset: next(), property: next() }),
            (_, "children") => Ok(Call::List(List::Children, next())),
            (_, "snapshots") => Ok(Call::List(List::Snapshots, next())),
            (_, "user_properties" | "properties") => Ok(Call::List(List::UserProps, next())),
            (_, "clones") => Ok(Call::List(List::Clones, next())),
            (_, "bookmarks") => Ok(Call::List(List::Bookmarks, next())),
            (_, "holds") => Ok(Call::List(List::Holds, next())),
            (_, "system_properties") => Ok(Call::SystemProps(next())),
            (_, "destroy") => {
                let name = next();
                if option.is_some() && !name.contains('@') {
                    return Err(format!("'deferred' kwarg only supported for snapshots: {name}"));
                }
                change(Change::Destroy { name, defer: option.unwrap_or(false) })
            }
            (_, "clone") => change(Change::Clone { snapshot: next(), name: next() }),
            (_, "promote") => change(Change::Promote(next())),
            (_, "rollback") => change(Change::Rollback(next())),
            (_, "snapshot") => change(Change::Snapshot(next())),
            (_, "rename_snapshot") => change(Change::RenameSnapshot { dataset: next(), from: next(), to: next() }),
            (_, "inherit") => change(Change::Inherit { dataset: next(), property: next() }),
            (_, "bookmark") => change(Change::Bookmark { from: next(), to: next() }),
            _ => change(Change::SetProp { dataset: next(), property: next(), value: next() }),
        }
    }

    fn wrong_type(&self, n: usize, kind: i32) -> String {
        let why = format!("arg {n} wrong type (is '{}', expected 'string')", ffi::kind_name(kind));
        self.fault(&why)
    }

    /// `f("a", "b")`
    fn of_stack(&self, state: State) -> Result<Vec<String>, String> {
        let mut out = Vec::new();
        for (n, index) in (1..=self.args.len()).zip(1..) {
            match ffi::kind(state, index) {
                -1 => return Err(self.fault("too few arguments")),
                ffi::STRING => out.push(text_at(state, index)),
                kind => return Err(self.wrong_type(n, kind)),
            }
        }
        match ffi::top(state) as usize > self.args.len() {
            true => Err(self.fault("too many positional arguments")),
            false => Ok(out),
        }
    }

    /// `f{"a", option=true}`
    fn of_table(&self, state: State) -> Result<(Vec<String>, Option<bool>), String> {
        let mut out = Vec::new();
        for n in 1..=self.args.len() {
            ffi::push_int(state, n as i64);
            ffi::raw_get(state, 1);
            match ffi::kind(state, -1) {
                ffi::NIL => return Err(self.fault("too few arguments")),
                ffi::STRING => out.push(text_at(state, -1)),
                kind => return Err(self.wrong_type(n, kind)),
            }
            ffi::pop(state, 1);
        }
        let mut option = None;
        if let Some(name) = self.option {
            ffi::push_text(state, name.as_bytes());
            ffi::raw_get(state, 1);
            match ffi::kind(state, -1) {
                ffi::NIL => {}
                ffi::BOOLEAN => option = Some(ffi::to_bool(state, -1)),
                kind => {
                    let kind = ffi::kind_name(kind);
                    let why = format!("kwarg '{name}' wrong type (is '{kind}', expected 'boolean')");
                    return Err(self.fault(&why));
                }
            }
            ffi::pop(state, 1);
        }
        ffi::push_nil(state);
        while ffi::next(state, 1) {
            ffi::pop(state, 1);
            match ffi::kind(state, -1) {
                ffi::NUMBER => {
                    let n = ffi::to_int(state, -1);
                    if n < 1 || n as usize > self.args.len() {
                        return Err(self.fault("too many positional arguments"));
                    }
                }
                ffi::STRING => {
                    let key = text_at(state, -1);
                    if self.option != Some(key.as_str()) {
                        return Err(self.fault(&format!("invalid kwarg '{key}'")));
                    }
                }
                _ => return Err(self.fault("kwarg keys must be strings")),
            }
        }
        Ok((out, option))
    }
}
