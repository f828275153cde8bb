//! Records with their payloads, from anything that can be read.
//!
//! [`Input::record`] gives one record after the other until the input ends, [`Input::payload`] what
//! came with it. An input that ends in the
//! middle of a stream is no error here, since a stream that was saved after an interruption has no
//! END, and a part of a stream is worth a look: [`Input::incomplete`] says so afterwards. Whatever
//! else is wrong is an error with the offset of the record.

use std::io::{ErrorKind as Io, Read};

use base::{Error, ErrorKind, Result};
use codec::checksum::Endian;
use ondisk::stream::{Frame, RECORD_SIZE, StreamReader};

/// Reads a stream.
pub struct Input<'a> {
    from: &'a mut dyn Read,
    reader: StreamReader,
    payload: Vec<u8>,
    incomplete: Option<Error>,
}

impl<'a> Input<'a> {
    /// A stream that begins at the next byte of `from`.
    pub fn new(from: &'a mut dyn Read) -> Input<'a> {
        Input { from, reader: StreamReader::new(), payload: Vec::new(), incomplete: None }
    }

    /// The same, without looking at sums: for streams known to be damaged.
    pub fn without_sums(from: &'a mut dyn Read) -> Input<'a> {
        Input { reader: StreamReader::without_sums(), ..Input::new(from) }
    }

    /// The next record; `None`: the input has ended. Errors: `Io` if it cannot be read; those of
    /// [`StreamReader::record`].
    pub fn record(&mut self) -> Result<Option<Frame>> {
        let mut bytes = [0; RECORD_SIZE];
        let got = read_up_to(self.from, &mut bytes)?;
        if got < RECORD_SIZE {
            let middle = (got > 0).then(|| Error::corrupt(format!("it stops {got} bytes into a record")));
            self.incomplete = middle.or_else(|| self.reader.end().err());
            // An input that is not a stream at all is an error, however short.
            return if self.reader.order().is_none() { Err(not_a_stream(got)) } else { Ok(None) };
        }
        let frame = self.reader.record(&bytes)?;
        let len = self.reader.payload_left();
        self.payload.clear();
        // Grows as bytes come, so that a length without bytes behind it costs nothing.
        let got = self.from.take(len).read_to_end(&mut self.payload).map_err(unreadable)? as u64;
        if got < len {
            let place = format!("it stops {got} bytes into the payload of {len} after byte {}", frame.offset);
            self.incomplete = Some(Error::corrupt(place));
            return Ok(None);
        }
        self.reader.payload(&self.payload);
        Ok(Some(frame))
    }

    /// The payload of the record that [`Self::record`] gave last.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// What is missing at the end, once [`Self::record`] gave `None`; `None`: the stream is
    /// complete.
    pub fn incomplete(&self) -> Option<&Error> {
        self.incomplete.as_ref()
    }

    /// The byte order of the stream; little-endian before the first record.
    pub fn order(&self) -> Endian {
        self.reader.order().unwrap_or(Endian::Little)
    }
}

fn not_a_stream(len: usize) -> Error {
    Error::invalid(format!("the input is not a send stream: it has {len} bytes, less than one record"))
}

/// The error of an input that cannot be read.
pub(crate) fn unreadable(e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("the stream cannot be read: {e}"))
}

/// Reads until `to` is full or the input ends; the number of bytes.
fn read_up_to(from: &mut dyn Read, to: &mut [u8]) -> Result<usize> {
    let mut got = 0;
    while got < to.len() {
        match from.read(&mut to[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == Io::Interrupted => {}
            Err(e) => return Err(unreadable(e)),
        }
    }
    Ok(got)
}
