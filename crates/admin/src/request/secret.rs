//! Keys between a command and the engine, always in memory that is locked, and overwritten when
//! freed.

use std::fmt;

use host::SecretBytes;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest key in bytes. The longest valid one is a passphrase of 512 bytes.
pub const SECRET_MAX: usize = 8192;

/// A key; its debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub SecretBytes);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Secret;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a key of at most {SECRET_MAX} bytes")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Secret, A::Error> {
                let mut bytes = SecretBytes::with_room(SECRET_MAX);
                while let Some(byte) = seq.next_element::<u8>()? {
                    if bytes.len() == SECRET_MAX {
                        return Err(A::Error::invalid_length(SECRET_MAX + 1, &self));
                    }
                    bytes.push(&[byte]);
                }
                Ok(Secret(bytes))
            }
        }
        from.deserialize_seq(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_a_longest() {
        for (bytes, good) in [(SECRET_MAX, true), (SECRET_MAX + 1, false)] {
            let text = serde_json::to_string(&vec![7u8; bytes]).unwrap();
            assert_eq!(serde_json::from_str::<Secret>(&text).is_ok(), good, "{bytes}");
        }
        assert!(serde_json::from_str::<Secret>("[256]").is_err());
    }
}
