//! `zstream`: send streams as text, and streams that are changed on their way.
//!
//! The work is in the crate `zstream`; here are the letters of OpenZFS's command, files and pipes.
//! Streams neither come from a terminal nor go to one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};

use base::{Error, ErrorKind};
use codec::compress::{CompressAlgo, Compression};
use ondisk::stream::Token;
use zstream::{Block, DumpOpts};

use crate::opts::Parsed;
use crate::zpool::parse_for;
use crate::{Done, Fail, print};

/// Bytes that are read or written at once.
const BUFFER: usize = 1 << 20;

/// Runs `zstream ARGS`.
pub fn run(args: &[String]) -> Done {
    let Some((command, rest)) = args.split_first() else {
        return Err(Fail::Usage("missing command".into(), ""));
    };
    match command.as_str() {
        "dump" => dump(rest),
        "decompress" => decompress(rest),
        "drop_record" => drop_record(rest),
        "recompress" => recompress(rest),
        "token" => token(rest),
        "redup" => redup(rest),
        "help" | "-h" | "--help" | "-?" => crate::help::print_topic("zstream", rest),
        other => Err(Fail::Usage(format!("unrecognized command '{other}'"), "")),
    }
}

fn dump(args: &[String]) -> Done {
    let p = parse_for("zstream", args, "vCd", &[], "dump")?;
    let verbose = p.options().iter().filter(|(letter, _)| *letter == 'v').count();
    let data = p.has('d');
    let opts = DumpOpts { records: verbose > 0 || data, sums: verbose > 1 || data, data, ignore_sums: p.has('C') };
    let mut input: Box<dyn Read> = match &p.operands[..] {
        [] => Box::new(stdin()?),
        [path] => Box::new(BufReader::with_capacity(BUFFER, open(path)?)),
        _ => return Err(Fail::Usage("too many arguments".into(), "dump")),
    };
    let mut out = BufWriter::with_capacity(BUFFER, std::io::stdout().lock());
    let missing = zstream::dump(&mut input, &mut out, opts);
    // What was printed before an error comes before its message.
    let _ = out.flush();
    warn(missing?);
    Ok(())
}

fn decompress(args: &[String]) -> Done {
    let p = parse_for("zstream", args, "v", &[], "decompress")?;
    let mut blocks = BTreeMap::new();
    for operand in &p.operands {
        let mut parts = operand.splitn(3, ',');
        let block = block(operand, &mut parts, "decompress")?;
        blocks.insert(block, parts.next().map(algorithm).transpose()?);
    }
    let missing = zstream::decompress(&mut stdin()?, &mut stdout()?, &blocks, &mut note(&p))?;
    warn(missing);
    Ok(())
}

fn drop_record(args: &[String]) -> Done {
    let p = parse_for("zstream", args, "v", &[], "drop_record")?;
    let mut blocks = Vec::new();
    for operand in &p.operands {
        let mut parts = operand.splitn(2, ',');
        blocks.push(block(operand, &mut parts, "drop_record")?);
    }
    let missing = zstream::drop_record(&mut stdin()?, &mut stdout()?, &blocks, &mut note(&p))?;
    warn(missing);
    Ok(())
}

fn recompress(args: &[String]) -> Done {
    let p = parse_for("zstream", args, "l:", &[], "recompress")?;
    let [name] = &p.operands[..] else {
        return Err(Fail::Usage("the type of compression is missing, or there are several".into(), "recompress"));
    };
    let to = wanted(name, p.value('l')).map_err(|e| Fail::Usage(e, "recompress"))?;
    warn(zstream::recompress(&mut stdin()?, &mut stdout()?, to)?);
    Ok(())
}

fn token(args: &[String]) -> Done {
    let p = parse_for("zstream", args, "", &[], "token")?;
    let [token] = &p.operands[..] else {
        return Err(Fail::Usage("the resume token is missing".into(), "token"));
    };
    // The indentation is that of OpenZFS's command.
    print(&Token::list_of(token)?.indented(5).to_string());
    Ok(())
}

fn redup(args: &[String]) -> Done {
    let p = parse_for("zstream", args, "v", &[], "redup")?;
    let [path] = &p.operands[..] else {
        return Err(Fail::Usage("the file with the stream is missing".into(), "redup"));
    };
    let mut file = BufReader::with_capacity(BUFFER, open(path)?);
    let (expanded, missing) = zstream::redup(&mut file, &mut open(path)?, &mut stdout()?)?;
    if p.has('v') {
        let (records, references) = (expanded.records, expanded.references);
        eprintln!("Converted stream with {records} total records, including {references} dedup records.");
    }
    warn(missing);
    Ok(())
}

/// `object,offset` from the first two of `parts`.
fn block<'a>(operand: &str, parts: &mut impl Iterator<Item = &'a str>, topic: &'static str) -> Result<Block, Fail> {
    let mut number = |what: &str| {
        let text = parts.next().unwrap_or_default();
        let number = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        number.map_err(|_| Fail::Usage(format!("'{operand}' has no valid {what}"), topic))
    };
    Ok(Block { object: number("object")?, offset: number("offset")? })
}

/// The algorithm of a block that is decompressed.
fn algorithm(name: &str) -> Result<CompressAlgo, Fail> {
    match name {
        "off" | "lz4" | "lzjb" | "zle" | "zstd" | "gzip" => Compression::parse(name).map(|c| c.algo),
        _ => None,
    }
    .ok_or_else(|| {
        let text = format!("'{name}' is not a type of compression: there are off, lz4, lzjb, gzip, zle and zstd");
        Fail::Usage(text, "decompress")
    })
}

/// The compression that `recompress` is to use.
fn wanted(name: &str, level: Option<&str>) -> Result<Compression, String> {
    let full = match level {
        None => name.to_string(),
        Some(level) if name == "zstd" => format!("zstd-{level}"),
        Some(_) => return Err(format!("'{name}' has no levels: -l is for zstd")),
    };
    let found = Compression::parse(&full).filter(|c| !matches!(c.algo, CompressAlgo::On | CompressAlgo::Empty));
    found.ok_or_else(|| format!("'{full}' is not a type of compression"))
}

/// Tells of blocks if `-v` was given.
fn note(p: &Parsed) -> impl FnMut(Block, &str) {
    let verbose = p.has('v');
    move |block, what| {
        if verbose {
            eprintln!("object {} at {} {what}", block.object, block.offset);
        }
    }
}

/// A stream that is incomplete is worth a warning, not a failure: one that was saved after an
/// interruption (`zfs send -S`) is.
fn warn(missing: Option<Error>) {
    if let Some(missing) = missing {
        eprintln!("warning: {missing}");
    }
}

fn open(path: &str) -> Result<File, Fail> {
    File::open(path).map_err(|e| Error::new(ErrorKind::Io, format!("cannot open '{path}': {e}")).into())
}

fn stdin() -> Result<BufReader<impl Read>, Fail> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        let text = "a stream cannot be read from a terminal: name a file, or use a pipe";
        return Err(Error::invalid(text).into());
    }
    Ok(BufReader::with_capacity(BUFFER, stdin.lock()))
}

fn stdout() -> Result<BufWriter<impl Write>, Fail> {
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        let text = "a stream cannot be written to a terminal: redirect it to a file, or use a pipe";
        return Err(Error::invalid(text).into());
    }
    Ok(BufWriter::with_capacity(BUFFER, stdout.lock()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_compression_and_their_levels() {
        for (name, level, to) in [
            ("lz4", None, Some((CompressAlgo::Lz4, 0))),
            ("off", None, Some((CompressAlgo::Off, 0))),
            ("gzip-9", None, Some((CompressAlgo::Gzip9, 0))),
            ("zstd", Some("19"), Some((CompressAlgo::Zstd, 19))),
            ("zstd-7", None, Some((CompressAlgo::Zstd, 7))),
            ("zstd", Some("20"), None),
            ("lz4", Some("3"), None),
            ("on", None, None),
            ("nonsense", None, None),
        ] {
            let got = wanted(name, level).ok().map(|c| (c.algo, c.level));
            assert_eq!(got, to, "{name} {level:?}");
        }
    }

    #[test]
    fn blocks_are_an_object_and_an_offset() {
        let parse = |text: &str| block(text, &mut text.splitn(3, ','), "decompress").ok();
        assert_eq!(parse("5,4096,lz4"), Some(Block { object: 5, offset: 4096 }));
        assert_eq!(parse("0x10,0x200"), Some(Block { object: 16, offset: 512 }));
        for bad in ["", "5", "5,", ",5", "x,1", "-1,0", "5 ,1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
