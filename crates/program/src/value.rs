//! Values that go into a program or come out of it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ffi::{self, State};

/// Tables within each other, in what a program returns (`ZCP_NVLIST_MAX_DEPTH`).
pub const DEPTH_MAX: usize = 20;

/// A value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Value {
    /// `nil`
    Nil,
    /// A boolean.
    Bool(bool),
    /// A number.
    Int(i64),
    /// A string; bytes that are no UTF-8 are replaced.
    Text(String),
    /// A table whose keys are 1 and so on.
    List(Vec<Value>),
    /// A table with its keys as text: numbers first, in their order, then the others in theirs.
    Table(Vec<(String, Value)>),
}

/// An order of keys that does not depend on hashes.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Int(i64),
    Other(String),
}

impl Value {
    /// Pushes it; the allocator must be without limit.
    pub(crate) fn push(&self, state: State) {
        ffi::reserve(state, 4);
        match self {
            Value::Nil => ffi::push_nil(state),
            Value::Bool(b) => ffi::push_bool(state, *b),
            Value::Int(n) => ffi::push_int(state, *n),
            Value::Text(t) => ffi::push_text(state, t.as_bytes()),
            Value::List(items) => {
                ffi::push_table(state);
                for (n, item) in (1..).zip(items) {
                    ffi::push_int(state, n);
                    item.push(state);
                    ffi::raw_set(state, -3);
                }
            }
            Value::Table(items) => {
                ffi::push_table(state);
                for (key, item) in items {
                    ffi::push_text(state, key.as_bytes());
                    item.push(state);
                    ffi::raw_set(state, -3);
                }
            }
        }
    }

    /// The value at an index of the stack, which belongs to `key` of what is above it. The error is
    /// a sentence of OpenZFS's.
    pub(crate) fn read(state: State, index: i32, key: &str, depth: usize) -> Result<Value, String> {
        if !ffi::reserve(state, 4) {
            return Err("Lua stack overflow".to_string());
        }
        let index = ffi::absolute(state, index);
        match ffi::kind(state, index) {
            ffi::NIL => Ok(Value::Nil),
            ffi::BOOLEAN => Ok(Value::Bool(ffi::to_bool(state, index))),
            ffi::NUMBER => Ok(Value::Int(ffi::to_int(state, index))),
            ffi::STRING => Ok(Value::Text(text_at(state, index))),
            ffi::TABLE => Value::read_table(state, index, depth),
            other => Err(format!("Invalid value type '{}' for key '{key}'", ffi::kind_name(other))),
        }
    }

    fn read_table(state: State, index: i32, depth: usize) -> Result<Value, String> {
        let mut items: Vec<(Key, Value)> = Vec::new();
        let mut seen = BTreeSet::new();
        ffi::push_nil(state);
        while ffi::next(state, index) {
            let key = match ffi::kind(state, -2) {
                ffi::STRING => Key::Other(text_at(state, -2)),
                ffi::BOOLEAN => Key::Other(ffi::to_bool(state, -2).to_string()),
                ffi::NUMBER => Key::Int(ffi::to_int(state, -2)),
                other => return Err(format!("Invalid key type '{}' in table", ffi::kind_name(other))),
            };
            let name = key.text();
            if !seen.insert(name.clone()) {
                return Err(format!("Collision of key '{name}' in table"));
            }
            if depth >= DEPTH_MAX {
                return Err(format!("Maximum table depth ({DEPTH_MAX}) exceeded for table"));
            }
            items.push((key, Value::read(state, -1, &name, depth + 1)?));
            ffi::pop(state, 1);
        }
        items.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Value::Table(items.into_iter().map(|(key, value)| (key.text(), value)).collect()))
    }

    /// Bytes of the list with this value under `key`, as OpenZFS packs it for its caller, nearly.
    pub fn packed_size(&self, key: &str) -> u64 {
        let round = |n: usize| n.next_multiple_of(8) as u64;
        let head = round(16 + key.len() + 1);
        head + match self {
            Value::Nil => 0,
            Value::Bool(_) | Value::Int(_) => 8,
            Value::Text(t) => round(t.len() + 1),
            Value::List(items) => 40 + items.iter().map(|v| v.packed_size("1")).sum::<u64>(),
            Value::Table(items) => 40 + items.iter().map(|(k, v)| v.packed_size(k)).sum::<u64>(),
        }
    }
}

impl Key {
    fn text(&self) -> String {
        match self {
            Key::Int(n) => n.to_string(),
            Key::Other(text) => text.clone(),
        }
    }
}

/// The string at an index up to its first NUL, as C has it.
pub(crate) fn text_at(state: State, index: i32) -> String {
    let bytes = ffi::to_text(state, index);
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
