//! `zfs program`.

use std::io::{Read, Write};

use admin::request::Program;
use base::{Error, ErrorKind};
use program::{End, Limits, Value};

use crate::opts::Parsed;
use crate::{Done, Fail, ask_bytes};

/// Letters of its options.
pub(crate) const LETTERS: &str = "nt:m:j";
/// What stands before an error, as in OpenZFS.
const FAILED: &str = "Channel program execution failed";

/// `zfs program`
pub(crate) fn program(p: &Parsed) -> Done {
    let limits = Limits {
        instructions: number(p, 't', Limits::USUAL.instructions)?,
        memory: number(p, 'm', Limits::USUAL.memory)?,
    };
    let [pool, file, args @ ..] = p.operands.as_slice() else {
        return Err(Fail::Usage("invalid number of arguments".into(), "program"));
    };
    let text = read(file)?;
    // OpenZFS makes room for the answer before it looks at the limits.
    if limits.memory > i64::MAX as u64 {
        return failed("Return value too large.");
    }
    let request = Program { pool: pool.clone(), text, args: args.to_vec(), limits, read_only: p.has('n') };
    let end = match ask_bytes(&request, &mut |_| Ok(())) {
        Err(Fail::Error(e)) if e.kind() == ErrorKind::Denied => {
            return failed("Permission denied. Channel programs must be run as root.");
        }
        other => other?,
    };
    match end {
        End::Returned(value) => {
            let text = if p.has('j') { json(value.as_ref()) } else { shown(value.as_ref()) };
            let written = std::io::stdout().write_all(text.as_bytes());
            written.map_err(|e| Error::new(ErrorKind::Io, format!("cannot write the output: {e}")).into())
        }
        End::Failed(why) => failed(&why),
        End::TimedOut(why, instructions) => failed(&format!("{why}\n{instructions} Lua instructions")),
        End::OutOfMemory => failed("Memory limit exhausted."),
        End::TooLarge => failed("Return value too large."),
        End::BadLimits => failed("Invalid instruction or memory limit."),
    }
}

fn failed(why: &str) -> Done {
    eprintln!("{FAILED}:\n{why}");
    Err(Fail::AlreadyReported)
}

/// A limit, which may be decimal, octal or hexadecimal.
fn number(p: &Parsed, letter: char, default: u64) -> Result<u64, Fail> {
    let Some(text) = p.value(letter) else { return Ok(default) };
    let parsed = match (text.strip_prefix("0x").or(text.strip_prefix("0X")), text.strip_prefix('0')) {
        (Some(hexadecimal), _) => u64::from_str_radix(hexadecimal, 16),
        (None, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8),
        _ => text.parse(),
    };
    parsed.map_err(|_| Fail::Usage(format!("invalid argument '{text}': expected integer"), "program"))
}

/// The text of the program; `-` is standard input.
fn read(file: &str) -> Result<String, Fail> {
    let mut bytes = Vec::new();
    let place = if file == "-" { "standard input" } else { file };
    let read = match file {
        "-" => std::io::stdin().read_to_end(&mut bytes),
        _ => match std::fs::File::open(file) {
            Ok(mut file) => file.read_to_end(&mut bytes),
            Err(e) => return Err(Error::new(ErrorKind::Io, format!("cannot open '{place}': {e}")).into()),
        },
    };
    read.map_err(|e| Error::new(ErrorKind::Io, format!("cannot read '{place}': {e}")))?;
    // Only strings and comments could have other bytes.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The result as a list of names and values.
fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "Channel program fully executed with no return value.\n".to_string() };
    let mut out = "Channel program fully executed with return value:\n".to_string();
    line("return", value, 4, &mut out);
    out
}

fn line(name: &str, value: &Value, indent: usize, out: &mut String) {
    out.push_str(&" ".repeat(indent));
    out.push_str(name);
    match value {
        Value::Nil => out.push('\n'),
        Value::Bool(b) => out.push_str(&format!(": {b}\n")),
        Value::Int(n) => out.push_str(&format!(": {n}\n")),
        Value::Text(t) => out.push_str(&format!(": '{t}'\n")),
        Value::List(items) => {
            out.push_str(":\n");
            (1..).zip(items).for_each(|(n, item): (u64, _)| line(&n.to_string(), item, indent + 4, out));
        }
        Value::Table(items) => {
            out.push_str(":\n");
            items.iter().for_each(|(name, item)| line(name, item, indent + 4, out));
        }
    }
}

/// The result as JSON, without a line's end, as OpenZFS writes it.
fn json(value: Option<&Value>) -> String {
    let mut out = "{".to_string();
    if let Some(value) = value {
        member("return", value, &mut out);
    }
    out.push('}');
    out
}

fn member(name: &str, value: &Value, out: &mut String) {
    quoted(name, out);
    out.push(':');
    let mut object = |members: &mut dyn Iterator<Item = (String, &Value)>| {
        out.push('{');
        for (n, (name, item)) in members.enumerate() {
            if n > 0 {
                out.push(',');
            }
            member(&name, item, out);
        }
        out.push('}');
    };
    match value {
        Value::List(items) => object(&mut (1..).zip(items).map(|(n, item): (u64, _)| (n.to_string(), item))),
        Value::Table(items) => object(&mut items.iter().map(|(name, item)| (name.clone(), item))),
        // A name without a value is true.
        Value::Nil => out.push_str("true"),
        Value::Bool(b) => out.push_str(&b.to_string()),
        Value::Int(n) => out.push_str(&n.to_string()),
        Value::Text(text) => quoted(text, out),
    }
}

/// A string of ASCII; characters beyond the basic plane are left out, as in OpenZFS.
fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='\u{7f}' => out.push(c),
            _ if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => {}
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_print_as_in_openzfs() {
        let table = |items: &[(&str, Value)]| {
            Value::Table(items.iter().map(|(name, value)| (name.to_string(), value.clone())).collect())
        };
        let value = table(&[
            ("1", table(&[])),
            ("bar", Value::Nil),
            ("baz", Value::Int(-2)),
            ("foo", Value::Text("a\"é\u{1}".into())),
            ("yes", Value::Bool(true)),
        ]);
        let want = "Channel program fully executed with return value:\n    return:\n        1:\n        bar\n        \
                    baz: -2\n        foo: 'a\"é\u{1}'\n        yes: true\n";
        assert_eq!(shown(Some(&value)), want);
        let want = r#"{"return":{"1":{},"bar":true,"baz":-2,"foo":"a\"\u00e9\u0001","yes":true}}"#;
        assert_eq!(json(Some(&value)), want);
        assert_eq!((json(None), json(Some(&Value::Nil))), ("{}".into(), "{\"return\":true}".into()));
        assert_eq!(shown(None), "Channel program fully executed with no return value.\n");
    }
}
