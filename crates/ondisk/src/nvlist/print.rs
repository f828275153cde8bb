//! Lists as text: the layout of `zdb -l` and `zdb -C`, that of `zstream dump`, and JSON.

use std::fmt::{self, Write};

use super::{NvList, NvValue};

/// A list with every line indented; see [`NvList::indented`].
pub struct Indented<'a>(&'a NvList, usize);

impl NvList {
    /// The list as zdb prints it, each line `indent` spaces in: `name: number`, `name: 'string'`,
    /// `name[i]: element`, a presence as its bare name, and nested lists 4 further in below
    /// `name:`.
    pub fn indented(&self, indent: usize) -> Indented<'_> {
        Indented(self, indent)
    }
    /// The list as `nvlist_print` of OpenZFS has it, which `zstream dump` uses: a line for the
    /// version, then `name = value` a tab in, numbers without a sign in hexadecimal digits, and
    /// nested lists between `name = (embedded nvlist)` and `(end name)`.
    pub fn tabbed(&self) -> Tabbed<'_> {
        Tabbed(self, 0)
    }
    /// The list as a JSON object. A presence is `true`; strings that are not UTF-8 have the
    /// replacement character in them.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        json_list(&mut out, self);
        out
    }
}

/// A list in another layout; see [`NvList::tabbed`].
pub struct Tabbed<'a>(&'a NvList, usize);

impl fmt::Display for Tabbed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Tabbed(list, depth) = self;
        let tabs = |more: usize| "\t".repeat(depth + more);
        writeln!(f, "{}nvlist version: 0", tabs(0))?;
        for (name, value) in list.iter() {
            match value {
                NvValue::List(l) => {
                    writeln!(
                        f,
                        "{}{name} = (embedded nvlist)\n{}{}(end {name})\n",
                        tabs(1),
                        Tabbed(l, depth + 1),
                        tabs(1)
                    )?;
                }
                NvValue::ListArray(a) => {
                    writeln!(f, "{}{name} = (array of embedded nvlists)", tabs(1))?;
                    for (i, l) in a.iter().enumerate() {
                        let (list, tabs) = (Tabbed(l, depth + 1), tabs(1));
                        writeln!(f, "{tabs}(start {name}[{i}])\n{list}{tabs}(end {name}[{i}])")?;
                    }
                    writeln!(f)?;
                }
                v => match tabbed_values(v) {
                    // An empty array has no name either.
                    values if values.is_empty() => writeln!(f)?,
                    values => writeln!(f, "{}{name} = {}", tabs(1), values.join(" "))?,
                },
            }
        }
        Ok(())
    }
}

/// A value, or the elements of an array, as `nvlist_print` writes them.
fn tabbed_values(v: &NvValue) -> Vec<String> {
    fn each<T>(a: &[T], text: impl Fn(&T) -> String) -> Vec<String> {
        a.iter().map(text).collect()
    }
    let one = |text: String| vec![text];
    match v {
        NvValue::Boolean => one("1".to_string()),
        NvValue::BooleanValue(b) => one(u8::from(*b).to_string()),
        NvValue::Byte(n) => one(format!("0x{n:02x}")),
        NvValue::Uint8(n) => one(format!("0x{n:x}")),
        NvValue::Uint16(n) => one(format!("0x{n:x}")),
        NvValue::Uint32(n) => one(format!("0x{n:x}")),
        NvValue::Uint64(n) => one(format!("0x{n:x}")),
        NvValue::Hrtime(n) => one(format!("0x{n:x}")),
        NvValue::Double(bits) => one(format!("0x{:.6}", f64::from_bits(*bits))),
        NvValue::ByteArray(a) => each(a, |n| format!("0x{n:02x}")),
        NvValue::Uint8Array(a) => each(a, |n| format!("0x{n:x}")),
        NvValue::Uint16Array(a) => each(a, |n| format!("0x{n:x}")),
        NvValue::Uint32Array(a) => each(a, |n| format!("0x{n:x}")),
        NvValue::Uint64Array(a) => each(a, |n| format!("0x{n:x}")),
        NvValue::BooleanArray(a) => each(a, |b| u8::from(*b).to_string()),
        NvValue::StringArray(a) => a.clone(),
        NvValue::String(s) => one(s.clone()),
        NvValue::RawString(s) => one(String::from_utf8_lossy(s).into_owned()),
        // Numbers with a sign are in decimal in both layouts.
        v => elements(v).unwrap_or_else(|| one(scalar(v))),
    }
}

impl fmt::Display for NvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.indented(0).fmt(f)
    }
}

impl fmt::Display for Indented<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Indented(list, indent) = self;
        for (name, value) in list.iter() {
            write!(f, "{:indent$}{name}", "")?;
            match value {
                NvValue::Boolean => f.write_str("\n")?,
                NvValue::List(l) => write!(f, ":\n{}", l.indented(indent + 4))?,
                NvValue::ListArray(a) => {
                    for (i, l) in a.iter().enumerate() {
                        let head = if i == 0 { String::new() } else { format!("{:indent$}{name}", "") };
                        write!(f, "{head}[{i}]:\n{}", l.indented(indent + 4))?;
                    }
                    // An empty array prints nothing in zdb; the name is already out, so mark it as
                    // empty.
                    if a.is_empty() {
                        f.write_str(":\n")?;
                    }
                }
                v => match elements(v) {
                    None => writeln!(f, ": {}", scalar(v))?,
                    Some(e) if e.is_empty() => f.write_str(":\n")?,
                    Some(e) => {
                        for (i, text) in e.iter().enumerate() {
                            let head = if i == 0 { String::new() } else { format!("{:indent$}{name}", "") };
                            writeln!(f, "{head}[{i}]: {text}")?;
                        }
                    }
                },
            }
        }
        Ok(())
    }
}

/// A scalar as zdb prints it.
fn scalar(v: &NvValue) -> String {
    match v {
        NvValue::String(s) => format!("'{s}'"),
        NvValue::RawString(s) => format!("'{}'", String::from_utf8_lossy(s)),
        NvValue::BooleanValue(b) => b.to_string(),
        NvValue::Double(bits) => f64::from_bits(*bits).to_string(),
        v => v.as_integer().map_or_else(String::new, |i| i.to_string()),
    }
}

/// The elements of an array of scalars as zdb prints them; `None` for anything else.
fn elements(v: &NvValue) -> Option<Vec<String>> {
    fn each<T: ToString>(a: &[T]) -> Option<Vec<String>> {
        Some(a.iter().map(T::to_string).collect())
    }
    match v {
        NvValue::ByteArray(a) | NvValue::Uint8Array(a) => each(a),
        NvValue::Int8Array(a) => each(a),
        NvValue::Int16Array(a) => each(a),
        NvValue::Uint16Array(a) => each(a),
        NvValue::Int32Array(a) => each(a),
        NvValue::Uint32Array(a) => each(a),
        NvValue::Int64Array(a) => each(a),
        NvValue::Uint64Array(a) => each(a),
        NvValue::BooleanArray(a) => each(a),
        NvValue::StringArray(a) => Some(a.iter().map(|s| format!("'{s}'")).collect()),
        _ => None,
    }
}

fn json_string(out: &mut String, s: &str) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if (c as u32) < 0x20 => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn json_list(out: &mut String, list: &NvList) {
    out.push('{');
    for (i, (name, value)) in list.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        json_string(out, name);
        out.push(':');
        json_value(out, value);
    }
    out.push('}');
}

fn json_array<T>(out: &mut String, a: &[T], f: impl Fn(&mut String, &T)) {
    out.push('[');
    for (i, v) in a.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        f(out, v);
    }
    out.push(']');
}

fn json_value(out: &mut String, value: &NvValue) {
    match value {
        NvValue::Boolean => out.push_str("true"),
        NvValue::String(s) => json_string(out, s),
        NvValue::RawString(s) => json_string(out, &String::from_utf8_lossy(s)),
        NvValue::List(l) => json_list(out, l),
        NvValue::ListArray(a) => json_array(out, a, json_list),
        NvValue::StringArray(a) => json_array(out, a, |o, s| json_string(o, s)),
        NvValue::Double(bits) if !f64::from_bits(*bits).is_finite() => out.push_str("null"),
        v => match elements(v) {
            Some(e) => json_array(out, &e, |o, s| o.push_str(s)),
            None => out.push_str(&scalar(v)),
        },
    }
}
