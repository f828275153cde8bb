//! Keys and values with their lines, and the mistakes that name them.

use base::{Error, Nanos, Result};
use toml::de::{DeTable, DeValue};

/// A key and its value as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its line, from 1.
    pub line: usize,
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

/// A table of a file: `pool`, `run` or `job`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Section {
    /// The line of its header.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// What is in it, in the order of the file.
    pub entries: Vec<Entry>,
}

/// Where a value stands.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The file.
    pub file: &'a str,
    /// The line, from 1.
    pub line: usize,
    /// The key.
    pub key: &'a str,
}

impl Place<'_> {
    /// The sentence for a mistake.
    pub fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::invalid(format!("{}:{}: {}: {what}", self.file, self.line, self.key))
    }
    /// The sentence for a key that means nothing.
    pub fn unknown(&self, known: &[&str]) -> Error {
        self.error(format!("there is no such key here, only {}", known.join(", ")))
    }
    /// A whole number.
    pub fn number(&self, value: &str, least: u64, most: u64) -> Result<u64> {
        match value.parse::<u64>() {
            Ok(n) if (least..=most).contains(&n) => Ok(n),
            _ => Err(self.error(format!("'{value}' is not a number from {least} to {most}"))),
        }
    }
    /// A number.
    pub fn real(&self, value: &str, least: f64, most: f64) -> Result<f64> {
        match value.parse::<f64>() {
            Ok(n) if (least..=most).contains(&n) => Ok(n),
            _ => Err(self.error(format!("'{value}' is not a number from {least} to {most}"))),
        }
    }
    /// A size in bytes such as 8k.
    pub fn size(&self, value: &str, least: u64, most: u64) -> Result<u64> {
        match dsl::props::parse_size(value) {
            Ok(n) if (least..=most).contains(&n) => Ok(n),
            Ok(_) => Err(self.error(format!("'{value}' is not a size from {least} to {most} bytes"))),
            Err(_) => Err(self.error(format!("'{value}' is not a size such as 8k"))),
        }
    }
    /// A time such as 5s, 100ms or 50us.
    pub fn span(&self, value: &str) -> Result<Nanos> {
        crate::layout::parse_span(value)
            .ok_or_else(|| self.error(format!("'{value}' is not a time such as 5s, 100ms or 50us")))
    }
    /// A value of the property that the key names.
    pub fn property(&self, value: &str) -> Result<()> {
        let known = dsl::props::find(self.key).ok_or_else(|| self.error("there is no such property"))?;
        known.parse(value).map(|_| ()).map_err(|_| self.error(format!("'{value}' is not a value of it")))
    }
}

/// The line of a byte of a text, from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count() + 1
}

/// The sections of a TOML file: tables `pool` and `run`, and an array of tables `job`, in the order
/// of the file.
pub fn toml(file: &str, text: &str) -> Result<Vec<Section>> {
    let all = DeTable::parse(text).map_err(|e| {
        let line = line_of(text, e.span().map_or(0, |s| s.start));
        Error::invalid(format!("{file}:{line}: {}", e.message().replace('\n', ", ")))
    })?;
    let mut out = Vec::new();
    for (key, value) in all.get_ref() {
        let line = line_of(text, key.span().start);
        let name: &str = key.get_ref();
        let place = Place { file, line, key: name };
        match (name, value.get_ref()) {
            ("pool" | "run", DeValue::Table(table)) => out.push(section(&place, text, table)?),
            ("job", DeValue::Array(tables)) => {
                for each in tables {
                    let line = line_of(text, each.span().start);
                    match each.get_ref() {
                        DeValue::Table(table) => out.push(section(&Place { line, ..place }, text, table)?),
                        _ => return Err(Place { line, ..place }.error("it is no table: write [[job]]")),
                    }
                }
            }
            ("job", _) => return Err(place.error("it is no array of tables: write [[job]]")),
            ("pool" | "run", _) => return Err(place.error(format!("it is no table: write [{name}]"))),
            _ => return Err(place.unknown(&["[pool]", "[run]", "[[job]]"])),
        }
    }
    out.sort_by_key(|section| section.line);
    Ok(out)
}

/// The keys and values of a table.
pub(crate) fn section(place: &Place, text: &str, table: &DeTable) -> Result<Section> {
    let mut entries = Vec::new();
    for (key, value) in table {
        let line = line_of(text, key.span().start);
        let value = match value.get_ref() {
            DeValue::String(s) => s.to_string(),
            DeValue::Integer(n) if n.radix() == 10 => n.as_str().replace('_', ""),
            DeValue::Float(n) => n.as_str().replace('_', ""),
            DeValue::Boolean(b) => b.to_string(),
            _ => {
                let place = Place { file: place.file, line, key: key.get_ref() };
                return Err(place.error("its value is no text, number, true or false"));
            }
        };
        entries.push(Entry { line, key: key.get_ref().to_string(), value });
    }
    entries.sort_by_key(|entry| entry.line);
    Ok(Section { line: place.line, name: place.key.to_string(), entries })
}
