//! What `zstream` of OpenZFS says about the same streams: dumps line for line, and streams that
//! were changed, byte for byte.
//!
//! The streams are those in `../shared/pools/streams.tar.zst`, which a kernel wrote, and made-up
//! ones with every record and every type of value. Without OpenZFS's program (Debian's
//! zfsutils-linux) or the pools a test says NOT RUN. `ZSTREAM` names another program.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use codec::compress::Compression;
use ondisk::nvlist::{NvList, NvValue};
use ondisk::stream::record::{Begin, End};
use ondisk::stream::{Record, features};
use zstream::{Block, DumpOpts, decompress, drop_record, dump, recompress, redup};

use common::{Rng, join, package, substream};

/// OpenZFS's program, if it is there.
fn judge() -> Option<OsString> {
    let program = std::env::var_os("ZSTREAM").unwrap_or_else(|| "zstream".into());
    // Without arguments it prints its usage and fails.
    if Command::new(&program).stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        eprintln!("NOT RUN: {program:?} is not installed");
        return None;
    }
    Some(program)
}

/// What the judge says to `args`.
fn judged(program: &OsString, args: &[&str]) -> std::process::Output {
    Command::new(program).args(args).stdin(Stdio::null()).output().unwrap()
}

/// A folder for the files of a test, empty.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("zstream-{name}"));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// The streams of the reference pools; empty, with a message, if they are not there.
fn of_kernels(test: &str) -> Vec<PathBuf> {
    let tar = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pools/streams.tar.zst");
    if !tar.exists() {
        eprintln!("NOT RUN: {} is not there", tar.display());
        return Vec::new();
    }
    let names = ["full", "incremental", "compressed", "raw", "redacted"].map(|n| format!("streams/{n}.zstream"));
    let dir = scratch(test);
    let untar = Command::new("tar").arg("--zstd").arg("-xf").arg(&tar).arg("-C").arg(&dir).args(&names).status();
    if !untar.is_ok_and(|s| s.success()) {
        eprintln!("NOT RUN: tar --zstd does not work here");
        return Vec::new();
    }
    names.iter().map(|n| dir.join(n)).collect()
}

fn ours(stream: &[u8], opts: DumpOpts) -> String {
    let mut out = Vec::new();
    let incomplete = dump(&mut &stream[..], &mut out, opts).unwrap();
    assert!(incomplete.is_none(), "{incomplete:?}");
    String::from_utf8(out).unwrap()
}

/// Options of dumps; `--` is none.
const ALL: [&str; 4] = ["--", "-v", "-vvC", "-d"];

/// Compares dumps of the stream in `path` with each of `options`.
fn same_dumps(program: &OsString, path: &Path, options: &[&str]) {
    let stream = std::fs::read(path).unwrap();
    for &args in options {
        let data = args == "-d";
        let opts = DumpOpts {
            records: args.contains('v') || data,
            sums: args.contains("vv") || data,
            data,
            ignore_sums: args.contains('C'),
        };
        let theirs = judged(program, &["dump", args, path.to_str().unwrap()]);
        assert!(theirs.stderr.is_empty(), "{}: {}", path.display(), String::from_utf8_lossy(&theirs.stderr));
        let theirs = String::from_utf8_lossy(&theirs.stdout);
        let ours = ours(&stream, opts);
        for (n, (a, b)) in ours.lines().zip(theirs.lines()).enumerate() {
            assert_eq!(a, b, "{}, {args}, line {n}", path.display());
        }
        assert_eq!(ours.lines().count(), theirs.lines().count(), "{}, {args}", path.display());
    }
}

#[test]
fn dumps_of_kernels_streams_are_those_of_zstream() {
    let Some(program) = judge() else { return };
    for path in of_kernels("dumps") {
        same_dumps(&program, &path, &ALL);
    }
}

/// A list with a value of every type that OpenZFS packs.
fn every_type() -> NvList {
    let inner = NvList::new().with_u64("a", u64::MAX).with_str("b", "text");
    let mut list = NvList::new();
    for (name, value) in [
        ("boolean", NvValue::Boolean),
        ("byte", NvValue::Byte(7)),
        ("int8", NvValue::Int8(-1)),
        ("uint8", NvValue::Uint8(0xfe)),
        ("int16", NvValue::Int16(-300)),
        ("uint16", NvValue::Uint16(0xfffe)),
        ("int32", NvValue::Int32(-70_000)),
        ("uint32", NvValue::Uint32(0xffff_fffe)),
        ("int64", NvValue::Int64(i64::MIN)),
        ("uint64", NvValue::Uint64(u64::MAX - 1)),
        ("string", NvValue::String("a text".to_string())),
        ("no string", NvValue::String(String::new())),
        ("yes", NvValue::BooleanValue(true)),
        ("no", NvValue::BooleanValue(false)),
        ("bytes", NvValue::ByteArray(vec![0, 9, 255])),
        ("int8s", NvValue::Int8Array(vec![-1, 2])),
        ("uint8s", NvValue::Uint8Array(vec![0, 9, 255])),
        ("int16s", NvValue::Int16Array(vec![-1, 2])),
        ("uint16s", NvValue::Uint16Array(vec![1, 65_535])),
        ("int32s", NvValue::Int32Array(vec![-1, 2])),
        ("uint32s", NvValue::Uint32Array(vec![1, u32::MAX])),
        ("int64s", NvValue::Int64Array(vec![-1, 2])),
        ("uint64s", NvValue::Uint64Array(vec![1, u64::MAX])),
        ("booleans", NvValue::BooleanArray(vec![true, false])),
        ("strings", NvValue::StringArray(vec!["x".to_string(), "y z".to_string()])),
        ("hrtime", NvValue::Hrtime(1_000_000_007)),
        ("list", NvValue::List(inner.clone())),
        ("nested", NvValue::List(NvList::new().with_list("in", inner.clone()).with_list("empty", NvList::new()))),
        ("lists", NvValue::ListArray(vec![inner.clone(), inner])),
    ] {
        list.put(name, value);
    }
    list
}

#[test]
fn dumps_of_made_up_streams_are_those_of_zstream() {
    let Some(program) = judge() else { return };
    let dir = scratch("made-up");
    let mut rng = Rng(1);
    let mut streams = vec![
        join(&package(&every_type(), &[substream(&mut rng, 60, false), substream(&mut rng, 3, true)])),
        join(&package(&NvList::new(), &[])),
    ];
    streams.extend((0..6).map(|n| join(&substream(&mut rng, 40 + n, n % 2 == 0))));
    for (n, stream) in streams.iter().enumerate() {
        let path = dir.join(format!("{n}.zstream"));
        std::fs::write(&path, stream).unwrap();
        same_dumps(&program, &path, &ALL);
    }
}

#[test]
fn changes_of_nothing_copy_a_stream_bit_by_bit() {
    for path in of_kernels("copies") {
        let stream = std::fs::read(&path).unwrap();
        let mut out = Vec::new();
        drop_record(&mut &stream[..], &mut out, &[], &mut |_, _| {}).unwrap();
        assert!(out == stream, "{}", path.display());
        out.clear();
        decompress(&mut &stream[..], &mut out, &BTreeMap::new(), &mut |_, _| {}).unwrap();
        assert!(out == stream, "{}", path.display());
        out.clear();
        let (mut file, mut again) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        redup(&mut file, &mut again, &mut out).unwrap();
        assert!(out == stream, "{}", path.display());
    }
}

/// The contents of all blocks that are written, decompressed.
fn contents(stream: &[u8]) -> Vec<(Block, Vec<u8>)> {
    let mut input = stream;
    let mut input = zstream::input::Input::new(&mut input);
    let mut out = Vec::new();
    while let Some(frame) = input.record().unwrap() {
        let Record::Write(w) = frame.record else { continue };
        let mut content = vec![0; w.logical_size as usize];
        match w.compression {
            0 | 2 => content.copy_from_slice(input.payload()),
            // What is encrypted is compared as it is.
            _ if w.crypt.salt != [0; 8] => content = input.payload().to_vec(),
            c => {
                let algo = codec::compress::CompressAlgo::from_u8(c).unwrap();
                codec::compress::decompress(algo, input.payload(), &mut content).unwrap();
            }
        }
        out.push((Block { object: w.object.0, offset: w.offset }, content));
    }
    out
}

#[test]
fn recompressed_streams_have_the_same_blocks_and_please_zstream() {
    let program = judge();
    for path in of_kernels("recompress") {
        let stream = std::fs::read(&path).unwrap();
        let before = contents(&stream);
        for name in ["lz4", "zstd", "gzip-1", "off"] {
            let mut out = Vec::new();
            let missing = recompress(&mut &stream[..], &mut out, Compression::parse(name).unwrap()).unwrap();
            assert!(missing.is_none());
            assert!(contents(&out) == before, "{} to {name}", path.display());
            if name.starts_with('l') && path.ends_with("full.zstream") {
                assert!(out.len() < stream.len(), "{name}: {} from {}", out.len(), stream.len());
            }
            let Some(program) = &program else { continue };
            let to = path.with_extension(name);
            std::fs::write(&to, &out).unwrap();
            // Sums are looked at where no option forbids it.
            same_dumps(program, &to, &["--"]);
        }
    }
}

#[test]
fn dropped_records_are_gone_and_no_others() {
    let mut rng = Rng(5);
    let stream = join(&substream(&mut rng, 200, false));
    let all = contents(&stream);
    let gone = [all[0].0, all[7].0, all.last().unwrap().0];
    let (mut out, mut said) = (Vec::new(), 0);
    drop_record(&mut &stream[..], &mut out, &gone, &mut |_, _| said += 1).unwrap();
    let left: Vec<_> = all.into_iter().filter(|(block, _)| !gone.contains(block)).collect();
    assert!(contents(&out) == left);
    assert_eq!(said, gone.len());
}

#[test]
fn named_blocks_are_decompressed() {
    let mut rng = Rng(6);
    let plain = join(&substream(&mut rng, 100, false));
    let mut packed = Vec::new();
    recompress(&mut &plain[..], &mut packed, Compression::parse("lz4").unwrap()).unwrap();
    let compressed: Vec<Block> = {
        let mut input = &packed[..];
        let mut input = zstream::input::Input::new(&mut input);
        let mut out = Vec::new();
        while let Some(frame) = input.record().unwrap() {
            if let Record::Write(w) = frame.record
                && w.compression != 0
            {
                out.push(Block { object: w.object.0, offset: w.offset });
            }
        }
        out
    };
    assert!(compressed.len() > 5, "{} blocks could be compressed", compressed.len());
    // All of them: the stream is again what it was before, but for the features in BEGIN.
    let blocks = compressed.iter().map(|b| (*b, None)).collect();
    let mut out = Vec::new();
    decompress(&mut &packed[..], &mut out, &blocks, &mut |_, _| {}).unwrap();
    let mut features_gone = Vec::new();
    recompress(&mut &out[..], &mut features_gone, Compression::parse("off").unwrap()).unwrap();
    assert!(contents(&out) == contents(&plain) && features_gone == plain);
}

#[test]
fn references_are_expanded_as_zstream_expands_them() {
    let mut rng = Rng(7);
    let mut records = substream(&mut rng, 50, false);
    let Record::Begin(begin) = &records[0].0 else { panic!("a stream begins with BEGIN") };
    let begin = begin.clone();
    records[0].0 = Record::Begin(begin.clone().with_features(begin.features() | features::DEDUP));
    let writes: Vec<_> = records
        .iter()
        .filter_map(|(record, _)| match record {
            Record::Write(w) => Some(*w),
            _ => None,
        })
        .collect();
    // Senders that deduplicated knew no REDACT, and OpenZFS's program takes none in their streams.
    records.retain(|(record, _)| !matches!(record, Record::Redact(_)));
    let end = records.pop().unwrap();
    for (n, w) in writes.iter().enumerate() {
        records.push((common::reference(w, 9000 + n as u64), Vec::new()));
    }
    records.push(end);
    let path = scratch("redup").join("dedup.zstream");
    std::fs::write(&path, join(&records)).unwrap();
    let mut out = Vec::new();
    let open = || File::open(&path).unwrap();
    let (expanded, missing) = redup(&mut open(), &mut open(), &mut out).unwrap();
    assert!(missing.is_none());
    assert_eq!((expanded.records, expanded.references), (records.len() as u64, writes.len() as u64));
    let blocks = contents(&out);
    let (first, second) = blocks.split_at(writes.len());
    for ((a, content), (b, copy)) in first.iter().zip(second) {
        assert!(content == copy && b.object >= 9000 && b.offset == a.offset);
    }
    // A stream with references is refused where they are not expanded.
    let mut nothing = Vec::new();
    let error = drop_record(&mut open(), &mut nothing, &[], &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("zstream redup") && nothing.is_empty(), "{error}");
    if let Some(program) = judge() {
        let theirs = judged(&program, &["redup", path.to_str().unwrap()]);
        assert!(theirs.stdout == out, "{} bytes, {} of zstream's", out.len(), theirs.stdout.len());
    }
}

#[test]
fn a_reference_to_nothing_is_an_error() {
    let begin = Begin { version_info: Begin::SUBSTREAM, ..Begin::default() }.with_features(features::DEDUP);
    let missing = common::reference(&ondisk::stream::record::Write { logical_size: 512, ..Default::default() }, 5);
    let records = [Record::Begin(begin), missing, Record::End(End::default())].map(|r| (r, Vec::new()));
    let path = scratch("dangling").join("dedup.zstream");
    std::fs::write(&path, join(&records)).unwrap();
    let open = || File::open(&path).unwrap();
    let error = redup(&mut open(), &mut open(), &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("record at byte 312") && error.contains("does not have"), "{error}");
}
