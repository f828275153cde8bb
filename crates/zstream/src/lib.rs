//! Looks into send streams and changes them on their way: what the command `zstream` does.
//!
//! Like `zdb` this crate stands apart from the engine: it shares `ondisk` and `codec` with it, the
//! format of streams, and neither sends nor receives. It is synchronous and reads streams once,
//! from front to back; only [`redup`](mod@redup) looks back into a file.
//!
//! * [`input`]: from bytes to records with their payloads;
//! * [`dump`](mod@dump): a stream as text, in the form of OpenZFS's `zstream dump`;
//! * [`edit`]: streams are changed record by record; [`recompress`](mod@recompress) and
//!   [`redup`](mod@redup) are two such changes, [`edit`] has the small ones.
//!
//! A stream is hostile: one payload is in memory at a time, its length is bounded before it is
//! read, and errors name the offset in the stream.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod dump;
pub mod edit;
pub mod input;
pub mod recompress;
pub mod redup;

pub use dump::{DumpOpts, dump};
pub use edit::{Block, decompress, drop_record};
pub use recompress::recompress;
pub use redup::redup;
