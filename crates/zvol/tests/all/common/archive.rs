//! The archives that reference pools come in: tar as GNU tar writes it, sparse files included,
//! compressed with zstd; read into memory.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

const BLOCK: usize = 512;

/// A file of an archive: its size and the parts of it that are not holes.
#[derive(Default, Clone, Debug)]
pub struct File {
    pub size: u64,
    pub parts: Vec<(u64, Vec<u8>)>,
}

impl File {
    pub fn text(&self) -> String {
        let mut bytes = vec![0; self.size as usize];
        for (at, part) in &self.parts {
            bytes[*at as usize..*at as usize + part.len()].copy_from_slice(part);
        }
        String::from_utf8(bytes).unwrap()
    }
}

/// A number in octal, or, with its first bit set, big-endian.
fn number(field: &[u8]) -> u64 {
    if field[0] & 0x80 != 0 {
        return field[field.len() - 8..].iter().fold(0, |n, b| n << 8 | u64::from(*b));
    }
    let digits = field.iter().filter(|b| b.is_ascii_digit());
    digits.fold(0, |n, b| n * 8 + u64::from(b - b'0'))
}

/// The pairs (offset, length) of a sparse map.
fn pairs(map: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    map.chunks_exact(24).filter(|e| e[0] != 0).map(|e| (number(&e[..12]), number(&e[12..])))
}

/// Name (below the one folder that there is) to content of all regular files.
pub fn unpack(path: &Path) -> BTreeMap<String, File> {
    let packed = std::fs::File::open(path).unwrap();
    let mut tar = zstd::stream::read::Decoder::new(packed).unwrap();
    let mut out = BTreeMap::new();
    let mut header = [0u8; BLOCK];
    loop {
        tar.read_exact(&mut header).unwrap();
        if header[0] == 0 {
            return out;
        }
        assert_eq!(&header[257..262], b"ustar", "{}: not a tar archive", path.display());
        let name = header[..100].split(|b| *b == 0).next().unwrap();
        let name = String::from_utf8(name.to_vec()).unwrap();
        let stored = number(&header[124..136]);
        let (size, map) = match header[156] {
            b'0' | 0 => (stored, vec![(0, stored)]),
            b'5' => continue,
            b'S' => {
                let mut map: Vec<_> = pairs(&header[386..482]).collect();
                let mut more = header[482] != 0;
                while more {
                    let mut block = [0u8; BLOCK];
                    tar.read_exact(&mut block).unwrap();
                    map.extend(pairs(&block[..504]));
                    more = block[504] != 0;
                }
                (number(&header[483..495]), map)
            }
            t => panic!("{}: {name} has type {t:?}", path.display()),
        };
        assert_eq!(map.iter().map(|(_, len)| len).sum::<u64>(), stored, "{name}");
        let mut parts = Vec::new();
        for (at, len) in map.into_iter().filter(|(_, len)| *len > 0) {
            let mut part = vec![0; len as usize];
            tar.read_exact(&mut part).unwrap();
            parts.push((at, part));
        }
        let padding = stored.next_multiple_of(BLOCK as u64) - stored;
        tar.read_exact(&mut header[..padding as usize]).unwrap();
        let name = name.split_once('/').map_or(name.as_str(), |(_, file)| file).to_string();
        out.insert(name, File { size, parts });
    }
}
