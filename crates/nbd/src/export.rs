//! What a client is told about an export, and the flags that follow from it.
//!
//! The caller fills in an [`Export`] when a handshake asks for one. Its features say which requests
//! the caller serves; a feature is announced only where it makes sense: nothing that writes on a
//! read-only export, fast zeros only together with zeros.
//!
//! **Smallest block**: the unit of offsets and lengths. **Preferred block**: the unit at which no
//! read-modify-write is needed. **Largest payload**: of one read or write.

use base::{Error, Result};

use crate::proto::{BLOCK_MIN_MAX, BLOCK_PREFERRED_MIN, PAYLOAD_DEFAULT, PAYLOAD_MAX, WHOLE_MIN, flag};

/// A device that clients may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// The proper name, which may differ from the one that was asked for (the empty name stands
    /// for a default).
    pub name: String,
    /// A text for humans, or nothing.
    pub description: String,
    /// Size in bytes, a multiple of the smallest block.
    pub size_bytes: u64,
    /// Smallest block in bytes: a power of two, from 1 to 65,536.
    pub block_min: u32,
    /// Preferred block in bytes: a power of two, at least 512 and the smallest block.
    pub block_preferred: u32,
    /// Largest payload in bytes: at least 65,536 and the preferred block, at most 64 MiB.
    pub block_max: u32,
    /// Nothing may be written.
    pub read_only: bool,
    /// Seeks cost time.
    pub rotational: bool,
    /// Flushes are served.
    pub flush: bool,
    /// The flag for durable writes (`FUA`) is honoured.
    pub fua: bool,
    /// Trims are served.
    pub trim: bool,
    /// Zeros are written without a payload.
    pub write_zeroes: bool,
    /// The caller can tell whether zeros are faster than data.
    pub fast_zero: bool,
    /// Hints to cache are taken.
    pub cache: bool,
    /// A flush of one connection covers what other connections wrote.
    pub multi_conn: bool,
    /// Block status is served.
    pub block_status: bool,
}

impl Export {
    /// An export without features, with the sizes that hold where nothing else is said (NBD
    /// protocol document, section "Size constraints").
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Export {
        Export {
            name: name.into(),
            description: String::new(),
            size_bytes,
            block_min: 1,
            block_preferred: 4096,
            block_max: PAYLOAD_DEFAULT,
            read_only: false,
            rotational: false,
            flush: false,
            fua: false,
            trim: false,
            write_zeroes: false,
            fast_zero: false,
            cache: false,
            multi_conn: false,
            block_status: false,
        }
    }

    /// Whether clients can be told this. The error says which field is beyond its range.
    pub fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::invalid(format!("export {}: {what}", crate::wire::cut(&self.name, 256))));
        if !crate::options::is_string(self.name.as_bytes()) {
            return bad("its name cannot be sent: use one of at most 4096 bytes without a NUL");
        }
        if !crate::options::is_string(self.description.as_bytes()) {
            return bad("its description cannot be sent: use one of at most 4096 bytes without a NUL");
        }
        if !self.block_min.is_power_of_two() || self.block_min > BLOCK_MIN_MAX {
            return bad("its smallest block must be a power of two up to 65536");
        }
        if !self.block_preferred.is_power_of_two() || self.block_preferred < self.block_min.max(BLOCK_PREFERRED_MIN) {
            return bad("its preferred block must be a power of two, at least 512 and its smallest block");
        }
        if self.block_max < self.block_preferred.max(WHOLE_MIN) || self.block_max > PAYLOAD_MAX {
            return bad("its largest payload must be from 65536 bytes or its preferred block to 64 MiB");
        }
        // Clients keep sizes and offsets as signed numbers.
        if self.size_bytes > i64::MAX as u64 || !self.size_bytes.is_multiple_of(u64::from(self.block_min)) {
            return bad("its size must be a multiple of its smallest block, below 2^63");
        }
        Ok(())
    }

    /// The transmission flags (NBD protocol document, section "Transmission flags");
    /// `structured`: the client agreed to structured replies.
    pub fn flags(&self, structured: bool) -> u16 {
        let table = [
            (true, flag::HAS_FLAGS),
            (self.read_only, flag::READ_ONLY),
            (self.flush, flag::SEND_FLUSH),
            (self.fua, flag::SEND_FUA),
            (self.rotational, flag::ROTATIONAL),
            (self.trims(), flag::SEND_TRIM),
            (self.zeroes(), flag::SEND_WRITE_ZEROES),
            (structured, flag::SEND_DF),
            (self.multi_conn, flag::CAN_MULTI_CONN),
            (self.cache, flag::SEND_CACHE),
            (self.fast_zeroes(), flag::SEND_FAST_ZERO),
        ];
        table.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, bit)| all | bit)
    }
    /// Whether trims are served.
    pub(crate) fn trims(&self) -> bool {
        self.trim && !self.read_only
    }
    /// Whether zeros without a payload are served.
    pub(crate) fn zeroes(&self) -> bool {
        self.write_zeroes && !self.read_only
    }
    /// Whether such zeros may be asked for on the condition that they are fast.
    pub(crate) fn fast_zeroes(&self) -> bool {
        self.fast_zero && self.zeroes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Export {
        Export {
            flush: true,
            fua: true,
            trim: true,
            write_zeroes: true,
            fast_zero: true,
            cache: true,
            multi_conn: true,
            block_status: true,
            ..Export::new("tank/vol", 1 << 20)
        }
    }

    #[test]
    fn flags_follow_from_the_features() {
        let all = 0b1101_0110_1101;
        let table = [
            (Export::new("a", 0), false, 1),
            (Export::new("a", 0), true, 0b1000_0001),
            (full(), false, all),
            (full(), true, all | 1 << 7),
            (Export { rotational: true, ..full() }, false, all | 1 << 4),
            (Export { read_only: true, ..full() }, false, 0b101_0000_1111),
            (Export { write_zeroes: false, ..full() }, false, all & !(1 << 6 | 1 << 11)),
        ];
        for (export, structured, want) in table {
            assert_eq!(export.flags(structured), want, "{export:?} {structured}");
        }
    }

    #[test]
    fn exports_out_of_range_are_told() {
        assert!(full().check().is_ok());
        assert!(Export { block_min: 512, size_bytes: 0, ..full() }.check().is_ok());
        let bad = [
            Export { name: "a\0".into(), ..full() },
            Export { name: "a".repeat(4097), ..full() },
            Export { description: "a".repeat(4097), ..full() },
            Export { block_min: 0, ..full() },
            Export { block_min: 3, ..full() },
            Export { block_min: 128 << 10, block_preferred: 128 << 10, ..full() },
            Export { block_preferred: 256, ..full() },
            Export { block_min: 8192, ..full() },
            Export { block_max: 4096, ..full() },
            Export { block_max: 65 << 20, ..full() },
            Export { block_preferred: 64 << 20, ..full() },
            Export { size_bytes: 1 << 63, ..full() },
            Export { size_bytes: 1000, block_min: 512, ..full() },
        ];
        for export in bad {
            assert!(export.check().is_err(), "{export:?}");
        }
    }
}
