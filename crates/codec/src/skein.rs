//! Skein-512 with 256 bits of output and a key of 32 bytes (Skein 1.3, "The Skein Hash Function
//! Family"; format page 02: the key is the pool's salt).
//!
//! Skein chains the tweakable block cipher Threefish-512: each block of 64 bytes is encrypted with
//! the chaining value as key and a tweak with the block's kind and the number of bytes so far, and
//! the result plus the block (xor) is the next chaining value. A keyed hash runs the key, then the
//! configuration, then the message through this chain, and at last a counter whose "encryption" is
//! the output.

/// Kinds of input, already at their place in the second word of the tweak.
const TYPE_KEY: u64 = 0;
const TYPE_CONFIG: u64 = 4 << 56;
const TYPE_MESSAGE: u64 = 48 << 56;
const TYPE_OUTPUT: u64 = 63 << 56;
/// The first and the last block of an input.
const FIRST: u64 = 1 << 62;
const FINAL: u64 = 1 << 63;

/// The parity word of the key schedule.
const C240: u64 = 0x1bd1_1bda_a9fc_1a22;

/// Rotations of the eight rounds that repeat.
const ROTATIONS: [[u32; 4]; 8] = [
    [46, 36, 19, 37],
    [33, 27, 14, 42],
    [17, 49, 36, 39],
    [44, 9, 54, 56],
    [39, 30, 34, 24],
    [13, 50, 10, 17],
    [25, 29, 39, 43],
    [8, 35, 56, 22],
];
/// Which words each of four consecutive rounds mixes; the words themselves stay where they are.
const PAIRS: [[(usize, usize); 4]; 4] = [
    [(0, 1), (2, 3), (4, 5), (6, 7)],
    [(2, 1), (4, 7), (6, 5), (0, 3)],
    [(4, 1), (6, 3), (0, 5), (2, 7)],
    [(6, 1), (0, 7), (2, 5), (4, 3)],
];

type Words = [u64; 8];

/// Skein-512-256 of `data`, keyed; the digest as it is stored.
pub(crate) fn skein_512_256(key: Option<&[u8; 32]>, data: &[u8]) -> [u8; 32] {
    let state = hash(key, data, 256);
    let mut out = [0; 32];
    for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(state) {
        *bytes = word.to_le_bytes();
    }
    out
}

/// The first 64 bytes of output for an output length of `bits`.
fn hash(key: Option<&[u8; 32]>, data: &[u8], bits: u64) -> Words {
    let mut chain = [0; 8];
    if let Some(key) = key {
        chain_input(&mut chain, TYPE_KEY, key);
    }
    let mut config = [0; 32];
    // "SHA3", version 1, the output length, no tree.
    config[..8].copy_from_slice(&0x0000_0001_3341_4853u64.to_le_bytes());
    config[8..16].copy_from_slice(&bits.to_le_bytes());
    chain_input(&mut chain, TYPE_CONFIG, &config);
    chain_input(&mut chain, TYPE_MESSAGE, data);
    chain_input(&mut chain, TYPE_OUTPUT, &[0; 8]);
    chain
}

/// Runs one input through the chain, its last block filled up with zeros. An empty input is one
/// block.
fn chain_input(chain: &mut Words, kind: u64, input: &[u8]) {
    let mut rest = input;
    let mut flags = kind | FIRST;
    let mut position = 0u64;
    while rest.len() > 64 {
        let (block, after) = rest.split_at(64);
        position += 64;
        chain_block(chain, [position, flags], &words(block));
        flags = kind;
        rest = after;
    }
    let mut block = [0; 64];
    block[..rest.len()].copy_from_slice(rest);
    chain_block(chain, [position + rest.len() as u64, flags | FINAL], &words(&block));
}

fn words(block: &[u8]) -> Words {
    let (bytes, _) = block.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_le_bytes(bytes[i]))
}

/// Threefish-512, the block added to the result.
#[inline]
fn chain_block(chain: &mut Words, tweak: [u64; 2], block: &Words) {
    let mut key = [0; 9];
    key[..8].copy_from_slice(chain);
    key[8] = chain.iter().fold(C240, |a, b| a ^ b);
    let tweak = [tweak[0], tweak[1], tweak[0] ^ tweak[1]];
    let mut v = *block;
    let add_key = |v: &mut Words, s: usize| {
        for i in 0..8 {
            v[i] = v[i].wrapping_add(key[(s + i) % 9]);
        }
        v[5] = v[5].wrapping_add(tweak[s % 3]);
        v[6] = v[6].wrapping_add(tweak[(s + 1) % 3]);
        v[7] = v[7].wrapping_add(s as u64);
    };
    for s in 0..18 {
        add_key(&mut v, s);
        for round in 0..4 {
            let rotations = &ROTATIONS[(4 * s + round) % 8];
            for (&(a, b), &r) in PAIRS[round].iter().zip(rotations) {
                v[a] = v[a].wrapping_add(v[b]);
                v[b] = v[b].rotate_left(r) ^ v[a];
            }
        }
    }
    add_key(&mut v, 18);
    for i in 0..8 {
        chain[i] = v[i] ^ block[i];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(words: Words) -> String {
        words.iter().flat_map(|w| w.to_le_bytes()).map(|b| format!("{b:02X}")).collect()
    }

    #[test]
    fn published_vectors() {
        // Skein 1.3, appendix B, Skein-512-512.
        assert_eq!(
            hex(hash(None, &[0xff], 512)),
            "71B7BCE6FE6452227B9CED6014249E5BF9A9754C3AD618CCC4E0AAE16B316CC8\
             CA698D864307ED3E80B6EF1570812AC5272DC409B5A012DF2A579102F340617A"
        );
        let counting: Vec<u8> = (0..128u8).map(|i| 0xff - i).collect();
        assert_eq!(
            hex(hash(None, &counting[..64], 512)),
            "45863BA3BE0C4DFC27E75D358496F4AC9A736A505D9313B42B2F5EADA79FC17F\
             63861E947AFB1D056AA199575AD3F8C9A3CC1780B5E5FA4CAE050E989876625B"
        );
        assert_eq!(
            hex(hash(None, &counting, 512)),
            "91CCA510C263C4DDD010530A33073309628631F308747E1BCBAA90E451CAB92E\
             5188087AF4188773A332303E6667A7A210856F742139000071F48E8BA2A5ADB7"
        );
    }

    #[test]
    fn the_key_matters() {
        let data = [7u8; 1000];
        let plain = skein_512_256(None, &data);
        let keyed = skein_512_256(Some(&[0; 32]), &data);
        assert!(plain != keyed && keyed != skein_512_256(Some(&[1; 32]), &data));
        assert!(keyed != skein_512_256(Some(&[0; 32]), &data[..999]));
    }
}
