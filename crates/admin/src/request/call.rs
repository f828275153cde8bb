//! A request on the wire.
//!
//! The body of its message is a line and the arguments. The line has the name of the request, and
//! if it changes something a space and the command line that it comes from, as a JSON string. The
//! arguments are JSON. They may hold a key, so they are kept in memory that is locked and
//! overwritten.

use std::io::{self, Write};

use base::{Error, Result};
use host::SecretBytes;

use super::{AnyRequest, Changes, Kind, Request, Rights};

/// Longest name of a request, in bytes.
const NAME_MAX: usize = 64;

/// A request on the wire.
pub struct Call {
    line: String,
    args: SecretBytes,
}

/// The first line of a body, without its end, and the rest.
fn split(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = body.iter().position(|b| *b == b'\n')?;
    Some((&body[..end], &body[end + 1..]))
}

/// The name at the beginning of a line, and the rest after the space.
fn name_of(line: &[u8]) -> (&[u8], Option<&[u8]>) {
    match line.iter().take(NAME_MAX + 1).position(|b| *b == b' ') {
        Some(end) => (&line[..end], Some(&line[end + 1..])),
        None => (line, None),
    }
}

impl Call {
    /// A request with the command line that it comes from.
    pub fn of<R: Request>(request: &R, command: Option<&str>) -> Result<Call> {
        let bad = |e: serde_json::Error| Error::invalid(format!("the request cannot be written: {e}"));
        let mut line = R::NAME.to_string();
        if let Some(command) = command {
            line.push(' ');
            line.push_str(&serde_json::to_string(command).map_err(bad)?);
        }
        let mut args = SecretBytes::default();
        serde_json::to_writer(&mut args, request).map_err(bad)?;
        Ok(Call { line, args })
    }

    /// Writes it as one message.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let len = u32::try_from(self.line.len() + 1 + self.args.len());
        let len = len.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the message is too long"))?;
        let mut head = len.to_le_bytes().to_vec();
        head.extend_from_slice(self.line.as_bytes());
        head.push(b'\n');
        to.write_all(&head)?;
        to.write_all(&self.args)?;
        to.flush()
    }

    /// Whether the body of a message is a request that another user than the owner may make, if
    /// only with permissions, by its name alone.
    pub fn is_public(body: &[u8]) -> bool {
        let Some((line, _)) = split(body) else { return false };
        Kind::named(name_of(line).0).is_some_and(|k| k.rights != Rights::Owner)
    }

    /// The request in the body of a message, and its command line if it changes something.
    pub fn parse(body: &[u8]) -> Result<(Box<dyn AnyRequest>, Option<String>)> {
        let bad = |why: String| Error::invalid(format!("the request cannot be read: {why}"));
        let (line, args) = split(body).ok_or_else(|| bad("it has no arguments".to_string()))?;
        let (name, command) = name_of(line);
        let kind = Kind::named(name).ok_or_else(|| bad("its name is not known".to_string()))?;
        let command = command.map(serde_json::from_slice::<String>).transpose().map_err(|e| bad(e.to_string()))?;
        let request = (kind.parse)(args).map_err(|e| bad(e.to_string()))?;
        let command = command.filter(|_| request.changes() != Changes::Nothing);
        Ok((request, command))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Info, LoadKey, Mounted, PoolCreate, PoolDestroy, PoolHistory, Pools, Stop};
    use super::*;
    use crate::request::Secret;

    fn body<R: Request>(request: &R, command: Option<&str>) -> Vec<u8> {
        let mut wire = Vec::new();
        Call::of(request, command).unwrap().write(&mut wire).unwrap();
        assert_eq!(wire[..4], (wire.len() as u32 - 4).to_le_bytes());
        wire.split_off(4)
    }

    #[test]
    fn calls_come_back() {
        let create = PoolCreate { name: "tank".into(), size: Some(1 << 30), ..PoolCreate::default() };
        for (body, want, command) in [
            (body(&Info, None), format!("{Info:?}"), None),
            (body(&create, Some("zpool create\n\"tank\"")), format!("{create:?}"), Some("zpool create\n\"tank\"")),
            // Read-only requests have none.
            (body(&Mounted, Some("zfs mount")), format!("{Mounted:?}"), None),
        ] {
            let (request, line) = Call::parse(&body).unwrap();
            assert_eq!((format!("{request:?}"), line.as_deref()), (want, command));
        }
    }

    #[test]
    fn keys_come_through_and_are_not_shown() {
        let key = Secret(b"a passphrase".as_slice().into());
        let request = LoadKey { name: "tank/e".into(), key, check_only: false };
        let (back, _) = Call::parse(&body(&request, None)).unwrap();
        let shown = format!("{back:?}");
        assert!(shown.contains("Secret") && !shown.contains("97"), "{shown}");
        let mut again = Vec::new();
        back.call(None).unwrap().write(&mut again).unwrap();
        assert_eq!(again[4..], body(&request, None));
    }

    #[test]
    fn a_name_is_a_whole_word_at_the_beginning() {
        for (body, public) in [
            (body(&Pools { names: vec![] }, None), true),
            (body(&Mounted, Some("x")), true),
            (body(&Stop { force: true }, None), false),
            (body(&PoolHistory { pool: "Pools".into() }, None), false),
            (body(&PoolDestroy { pool: "tank".into(), force: true }, Some("Pools")), false),
            (b"Stop Pools\n{}".to_vec(), false),
            (b" Pools\n{}".to_vec(), false),
            (b"Poolsx\n{}".to_vec(), false),
            (b"Pools".to_vec(), false),
            (b"{\"Pools\":{}}\n".to_vec(), false),
            (b"\n".to_vec(), false),
            (b"".to_vec(), false),
        ] {
            assert_eq!(Call::is_public(&body), public, "{}", String::from_utf8_lossy(&body));
        }
    }

    #[test]
    fn hostile_calls_are_errors() {
        let deep = |n: usize| [b"Pools\n".as_slice(), &b"[".repeat(n)].concat();
        for body in [
            b"".as_slice(),
            b"\n",
            b"{}",
            b"Pools",
            b"Pools\n",
            b"Pools\n{",
            b"Pools\n{}x",
            b"Pools x\n{\"names\":[]}",
            b"Nothing\n{}",
            b"\xff\xff\n{}",
            &deep(200_000),
            &b"a".repeat(100_000),
        ] {
            let e = Call::parse(body).err().unwrap().to_string();
            assert!(e.starts_with("the request cannot be read: "), "{e}");
        }
    }
}
