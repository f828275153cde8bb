//! The pages of `zstream`.

use super::Page;

pub(super) const PAGES: &[Page] = &[
    Page {
        name: "zstream dump",
        usage: &["dump [-vCd] [file]"],
        text: "\
Prints what is in a send stream, from a file or from standard input: where each
snapshot begins and ends, and how many records of which type there are.

  -v  every record; -vv the checksum after each as well
  -C  checksums are not checked: for streams that are damaged
  -d  what -vv prints, and the payloads
",
    },
    Page {
        name: "zstream decompress",
        usage: &["decompress [-v] [object,offset[,type]] ..."],
        text: "\
Copies a stream from standard input to standard output and decompresses the
named blocks: numbers of objects, offsets in bytes.

  type  off, lz4, lzjb, gzip, zle or zstd: the algorithm, where the record
        names a wrong one; 'off' marks a block as not compressed
  -v    says what became of each block
",
    },
    Page {
        name: "zstream drop_record",
        usage: &["drop_record [-v] [object,offset] ..."],
        text: "\
Copies a stream from standard input to standard output without the records that
write the named blocks: numbers of objects, offsets in bytes.

  -v  says which records are dropped
",
    },
    Page {
        name: "zstream recompress",
        usage: &["recompress [-l level] type"],
        text: "\
Copies a stream from standard input to standard output with its blocks
compressed anew. Metadata and encrypted blocks stay as they are.

  type  off, lz4, lzjb, gzip-1 to gzip-9, zle or zstd; also zstd-9,
        zstd-fast-10 and the like
  -l    the level of zstd, 1 to 19
",
    },
    Page {
        name: "zstream token",
        usage: &["token <resume token>"],
        text: "\
Prints what is in a resume token, the property receive_resume_token.
",
    },
    Page {
        name: "zstream redup",
        usage: &["redup [-v] <file>"],
        text: "\
Writes a deduplicated stream, which no receiver takes any more, to standard
output with every block in its place.

  -v  says how many records there are
",
    },
];
