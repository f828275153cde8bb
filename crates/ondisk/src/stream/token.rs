//! Resume tokens: the text in the property `receive_resume_token` with which `zfs send -t` goes on
//! (format page 21 section 4).
//!
//! `VERSION-SUM-LENGTH-HEX`: the hexadecimal digits are a zlib stream, which holds a native nvlist
//! of LENGTH bytes; SUM is the first word of a fletcher4 over the compressed bytes. A token comes
//! from a command line: each part is bounded before it is used.

use base::{Error, Guid, ObjectId, Result};
use codec::compress::{CompressAlgo, Compression, compress, decompress};
use codec::fletcher::fletcher4;

use crate::nvlist::NvList;

/// The version of tokens, in decimal.
const VERSION: &str = "1";
/// Longest list in a token, in bytes: room for thousands of redaction snapshots, of which a pool
/// refuses far fewer.
const LIST_MAX: usize = 1 << 20;

/// Where a receive was interrupted, and what is to be sent to go on.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Token {
    /// The snapshot that the stream started from; `None`: a full stream.
    pub from_guid: Option<Guid>,
    /// The object that was being received.
    pub object: ObjectId,
    /// Where to go on in it, in bytes.
    pub offset: u64,
    /// Bytes received so far, for progress only.
    pub bytes: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// Its name when it was sent first.
    pub to_name: String,
    /// The stream may have large blocks (`-L`).
    pub large_block_ok: bool,
    /// It may have embedded blocks (`-e`).
    pub embed_ok: bool,
    /// It may have compressed blocks (`-c`).
    pub compress_ok: bool,
    /// It is raw (`-w`).
    pub raw_ok: bool,
    /// Guids of the snapshots that the target is redacted by; `None`: it is not.
    pub redact_snaps: Option<Vec<u64>>,
    /// Guids of the snapshots of the redaction bookmark that the stream started from.
    pub book_redact_snaps: Option<Vec<u64>>,
}

impl Token {
    /// The list in the token: what `zstream token` prints.
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        if let Some(guid) = self.from_guid {
            list.put_u64("fromguid", guid.0);
        }
        list.put_u64("object", self.object.0);
        list.put_u64("offset", self.offset);
        list.put_u64("bytes", self.bytes);
        list.put_u64("toguid", self.to_guid.0);
        list.put_str("toname", &self.to_name);
        for (name, on) in [
            ("largeblockok", self.large_block_ok),
            ("embedok", self.embed_ok),
            ("compressok", self.compress_ok),
            ("rawok", self.raw_ok),
        ] {
            if on {
                list.put_flag(name);
            }
        }
        for (name, guids) in [("redact_snaps", &self.redact_snaps), ("book_redact_snaps", &self.book_redact_snaps)] {
            if let Some(guids) = guids {
                list.put_u64s(name, guids.clone());
            }
        }
        list
    }

    /// The token as a text.
    pub fn encode(&self) -> String {
        let list = self.to_list().encode_native();
        // zlib adds at most 5 bytes for each 16 KiB that does not compress, and 11 in all.
        let room = list.len() + list.len() / 1024 + 64;
        let mut packed = vec![0; room];
        let level = Compression { algo: CompressAlgo::Gzip6, level: 0 };
        let len = compress(level, &list, &mut packed, room).expect("zlib's bound on what it adds holds");
        packed.truncate(len);
        let hex: String = packed.iter().map(|b| format!("{b:02x}")).collect();
        format!("{VERSION}-{:x}-{:x}-{hex}", sum(&packed), list.len())
    }

    /// The list in the token `text`, whatever is in it. Error: `Invalid`, with the reason.
    pub fn list_of(text: &str) -> Result<NvList> {
        let bad = |why: &str| Error::invalid(format!("resume token is corrupt ({why})"));
        let mut parts = text.splitn(3, '-');
        let (version, checksum, rest) = (parts.next(), parts.next(), parts.next());
        let (Some(version), Some(checksum), Some((length, _))) =
            (version, checksum, rest.and_then(|r| r.split_once('-')))
        else {
            return Err(bad("invalid format"));
        };
        if version != VERSION {
            return Err(bad(&format!("invalid version {version}")));
        }
        let hex = text.rsplit('-').next().unwrap_or_default();
        let (Ok(checksum), Ok(length)) = (u64::from_str_radix(checksum, 16), usize::from_str_radix(length, 16)) else {
            return Err(bad("invalid format"));
        };
        let packed = unhex(hex).ok_or_else(|| bad("payload is not hex-encoded"))?;
        if sum(&packed) != checksum {
            return Err(bad("incorrect checksum"));
        }
        // No deflate stream unpacks to more than 1032 times its length.
        if length > LIST_MAX || length / 1032 > packed.len() {
            return Err(bad("decompression failed"));
        }
        let mut list = vec![0; length];
        decompress(CompressAlgo::Gzip6, &packed, &mut list).map_err(|_| bad("decompression failed"))?;
        NvList::decode(&list).map_err(|_| bad("nvlist_unpack failed"))
    }

    /// The token in `text`. Error: `Invalid`, with the reason: damaged, of another version, or
    /// without what is needed to go on.
    pub fn parse(text: &str) -> Result<Token> {
        let list = Token::list_of(text)?;
        let need = |name: &str| {
            list.u64(name).ok_or_else(|| Error::invalid(format!("resume token is corrupt: it does not say '{name}'")))
        };
        Ok(Token {
            from_guid: list.u64("fromguid").map(Guid),
            object: ObjectId(need("object")?),
            offset: need("offset")?,
            bytes: need("bytes")?,
            to_guid: Guid(need("toguid")?),
            to_name: list
                .str("toname")
                .ok_or_else(|| Error::invalid("resume token is corrupt: it does not say 'toname'"))?
                .to_string(),
            large_block_ok: list.contains("largeblockok"),
            embed_ok: list.contains("embedok"),
            compress_ok: list.contains("compressok"),
            raw_ok: list.contains("rawok"),
            redact_snaps: list.u64s("redact_snaps").map(<[u64]>::to_vec),
            book_redact_snaps: list.u64s("book_redact_snaps").map(<[u64]>::to_vec),
        })
    }
}

/// The sum of a token. Bytes beyond the last whole word are not counted.
fn sum(packed: &[u8]) -> u64 {
    fletcher4(&packed[..packed.len() & !3]).0[0]
}

/// The bytes that `hex` writes, two digits each.
fn unhex(hex: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[a, b]| Some(digit(*a)? << 4 | digit(*b)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token {
            from_guid: Some(Guid(0x2435_8e24_6f5e_4731)),
            object: ObjectId(419),
            offset: 131_072,
            bytes: 1 << 33,
            to_guid: Guid(0xaf07_661d_427f_fd48),
            to_name: "tank/home@monday".to_string(),
            large_block_ok: true,
            compress_ok: true,
            redact_snaps: Some(vec![]),
            book_redact_snaps: Some(vec![1, u64::MAX]),
            ..Token::default()
        }
    }

    #[test]
    fn tokens_survive_being_text() {
        for token in [token(), Token { to_name: "a@b".to_string(), ..Token::default() }] {
            assert_eq!(Token::parse(&token.encode()).unwrap(), token);
        }
    }

    /// Tokens that a kernel made: those of `str/full` and `str/half` in the reference pool
    /// `streams`.
    #[test]
    fn tokens_of_a_kernel_are_read_and_have_our_order() {
        let full = "1-c3df17b9c-e0-789c636064000310a501c49c50360710a715e5e7a69766a6304081c7df7a27d934f6f50a40363b92ba\
                    fca4acd4e412081f0430e4d3d28a534b18e00024cf86249f5459925acc802a8facbf241fe28a5b62a6924d162c1c1a48f2\
                    9c60f9bcc4dc540686e29222fde2a264076324b30038d2194e";
        let half = "1-995b30c67-b8-789c636064000310a500c4ec50360710e72765a526973030b8429460caa7a515a79630c001489e0d49\
                    3ea9b224b5184837b03363d55f929f5e9a99c2c060e81e97afd267aaa28124cf0996cf4bcc4d6560282e29d22f2e4a7630\
                    4458c50000a3251390";
        let want = Token {
            from_guid: Some(Guid(12_612_161_557_330_132_296)),
            object: ObjectId(1),
            to_guid: Guid(577_648_783_630_079_706),
            to_name: "str/src@3".to_string(),
            ..Token::default()
        };
        assert_eq!(Token::parse(full).unwrap(), want);
        assert_eq!(Token::list_of(full).unwrap(), want.to_list());
        let want = Token {
            object: ObjectId(69),
            bytes: 198_528,
            to_guid: Guid(2_609_147_846_269_486_897),
            to_name: "str/src@1".to_string(),
            ..Token::default()
        };
        assert_eq!(Token::parse(half).unwrap(), want);
        assert_eq!(Token::list_of(half).unwrap(), want.to_list());
    }

    #[test]
    fn each_fault_has_its_reason() {
        let good = token().encode();
        let parts: Vec<&str> = good.splitn(4, '-').collect();
        let [version, sum, length, hex] = parts[..] else { panic!("{good}") };
        let flipped = if hex.ends_with('0') { "1" } else { "0" };
        for (text, reason) in [
            (String::new(), "invalid format"),
            (format!("{version}-{sum}-{length}"), "invalid format"),
            (format!("{version}-x-{length}-{hex}"), "invalid format"),
            (format!("2-{sum}-{length}-{hex}"), "invalid version 2"),
            (format!("{version}-{sum}-{length}-{hex}0"), "payload is not hex-encoded"),
            (format!("{version}-{sum}-{length}-g{}", &hex[1..]), "payload is not hex-encoded"),
            (format!("{version}-1{sum}-{length}-{hex}"), "incorrect checksum"),
            (format!("{version}-{sum}-{length}1-{hex}"), "decompression failed"),
            (format!("{version}-{sum}-ffffffffff-{hex}"), "decompression failed"),
        ] {
            let error = Token::list_of(&text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        // The last bytes may lie beyond the sum; then zlib's own checksum finds the change.
        assert!(Token::list_of(&format!("{}{flipped}", &good[..good.len() - 1])).is_err());
    }

    #[test]
    fn what_is_needed_to_go_on_must_be_there() {
        let mut list = token().to_list();
        for name in ["object", "offset", "bytes", "toguid", "toname"] {
            assert!(list.remove(name).is_some(), "{name}");
        }
        let packed = list.encode_native();
        let mut out = vec![0; 4096];
        let level = Compression { algo: CompressAlgo::Gzip6, level: 0 };
        let len = compress(level, &packed, &mut out, 4096).unwrap();
        let hex: String = out[..len].iter().map(|b| format!("{b:02x}")).collect();
        let text = format!("1-{:x}-{:x}-{hex}", sum(&out[..len]), packed.len());
        assert_eq!(Token::list_of(&text).unwrap(), list);
        assert!(Token::parse(&text).unwrap_err().to_string().contains("'object'"));
    }
}
