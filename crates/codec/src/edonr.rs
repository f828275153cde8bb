//! Edon-R 512 as block pointers have it: the tweaked function (each block is added to the chaining
//! value), keyed with a prefix block made of the pool's salt, the first 32 bytes of the digest
//! (format page 02, section 3).
//!
//! The state is sixteen words, two halves p and q. A block of 128 bytes goes through four rows of
//! two *quasigroup operations* each. One operation takes two vectors of eight words: each is
//! expanded by sums of five of its words, chosen by two Latin squares and rotated, then by xors of
//! three, and the results are added.

type Half = [u64; 8];

/// Rotations of the expanded words of the left and of the right operand.
const LEFT_ROTATIONS: [u32; 8] = [0, 5, 15, 22, 31, 40, 50, 59];
const RIGHT_ROTATIONS: [u32; 8] = [0, 10, 19, 29, 36, 44, 48, 55];
/// Added to the first expanded word of the left operand; its complement to that of the right.
const LEFT_CONSTANT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

const BLOCK: usize = 128;

/// A key block: H(salt) and H(H(salt)), 64 bytes each.
pub(crate) fn key_block(salt: &[u8; 32]) -> [u8; BLOCK] {
    let first = edonr_512(&[], salt);
    let mut block = [0; BLOCK];
    block[..64].copy_from_slice(&first);
    block[64..].copy_from_slice(&edonr_512(&[], &first));
    block
}

/// Edon-R 512 of `prefix` (whole blocks) and `data`.
pub(crate) fn edonr_512(prefix: &[u8], data: &[u8]) -> [u8; 64] {
    // The initial value is the bytes 0x80 to 0xff.
    let word = |i: usize| u64::from_be_bytes(std::array::from_fn(|b| 0x80 + (8 * i + b) as u8));
    let mut state: [Half; 2] = [std::array::from_fn(word), std::array::from_fn(|i| word(8 + i))];
    let (blocks, tail) = prefix.as_chunks::<BLOCK>();
    assert!(tail.is_empty(), "a prefix is whole blocks");
    blocks.iter().for_each(|b| compress(&mut state, b));
    let (blocks, tail) = data.as_chunks::<BLOCK>();
    blocks.iter().for_each(|b| compress(&mut state, b));

    let bits = 8 * (prefix.len() + data.len()) as u64;
    let mut last = [0; BLOCK];
    last[..tail.len()].copy_from_slice(tail);
    last[tail.len()] = 0x80;
    if tail.len() >= BLOCK - 8 {
        compress(&mut state, &last);
        last = [0; BLOCK];
    }
    last[BLOCK - 8..].copy_from_slice(&bits.to_le_bytes());
    compress(&mut state, &last);

    let mut out = [0; 64];
    for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(state[1]) {
        *bytes = word.to_le_bytes();
    }
    out
}

fn compress(state: &mut [Half; 2], block: &[u8; BLOCK]) {
    let (bytes, _) = block.as_chunks::<8>();
    let low: Half = std::array::from_fn(|i| u64::from_le_bytes(bytes[i]));
    let high: Half = std::array::from_fn(|i| u64::from_le_bytes(bytes[8 + i]));
    let reversed = |h: &Half| -> Half { std::array::from_fn(|i| h[7 - i]) };

    let p = operate(&reversed(&high), &low);
    let q = operate(&p, &high);

    let p = operate(&state[1], &p);
    let q = operate(&p, &q);

    let p = operate(&p, &state[0]);
    let q = operate(&q, &p);

    let p = operate(&reversed(&low), &p);
    let q = operate(&p, &q);

    for i in 0..8 {
        state[0][i] ^= high[i] ^ p[i];
        state[1][i] ^= low[i] ^ q[i];
    }
}

/// The quasigroup operation.
#[inline(always)]
fn operate(x: &Half, y: &Half) -> Half {
    let add = u64::wrapping_add;
    // Five words each, by the first Latin square; shared sums are named by their words.
    let x04 = add(x[0], x[4]);
    let x17 = add(x[1], x[7]);
    let x0417 = add(x04, x17);
    let x23 = add(x[2], x[3]);
    let x56 = add(x[5], x[6]);
    let x2356 = add(x23, x56);
    let mut s: Half = [
        add(add(LEFT_CONSTANT, x0417), x[2]),
        add(x0417, x[3]),
        add(x0417, x[6]),
        add(x2356, x[7]),
        add(x2356, x[1]),
        add(add(x04, x23), x[5]),
        add(add(x17, x56), x[0]),
        add(x2356, x[4]),
    ];
    // And by the second.
    let y01 = add(y[0], y[1]);
    let y25 = add(y[2], y[5]);
    let y34 = add(y[3], y[4]);
    let y67 = add(y[6], y[7]);
    let y0125 = add(y01, y25);
    let y0134 = add(y01, y34);
    let y3467 = add(y34, y67);
    let y2567 = add(y25, y67);
    let mut t: Half = [
        add(add(!LEFT_CONSTANT, y0125), y[7]),
        add(y0134, y[6]),
        add(y0125, y[3]),
        add(y3467, y[2]),
        add(y0134, y[5]),
        add(y2567, y[4]),
        add(y2567, y[1]),
        add(y3467, y[0]),
    ];
    for i in 0..8 {
        s[i] = s[i].rotate_left(LEFT_ROTATIONS[i]);
        t[i] = t[i].rotate_left(RIGHT_ROTATIONS[i]);
    }
    let (s04, s17, s23, s56) = (s[0] ^ s[4], s[1] ^ s[7], s[2] ^ s[3], s[5] ^ s[6]);
    let (t01, t25, t34, t67) = (t[0] ^ t[1], t[2] ^ t[5], t[3] ^ t[4], t[6] ^ t[7]);
    [
        add(s04 ^ s[1], t01 ^ t[5]),
        add(s04 ^ s[7], t[2] ^ t67),
        add(s17 ^ s[6], t01 ^ t[3]),
        add(s[4] ^ s23, t[0] ^ t34),
        add(s[0] ^ s17, t[1] ^ t25),
        add(s[3] ^ s56, t34 ^ t[6]),
        add(s[2] ^ s56, t25 ^ t[7]),
        add(s23 ^ s[5], t[4] ^ t67),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // Computed by the engine of OpenZFS 2.1 (EdonRHash).
        let hex = |d: &[u8]| -> String { edonr_512(&[], d).iter().map(|b| format!("{b:02x}")).collect() };
        assert_eq!(
            hex(b""),
            "c57f7e17fdc1ce5074cc748c9bd38f9f51ebe88fbe6eda3190c4314cafb1abb2\
             980fac582d6e4ba8c641947d944bc56b74fb15de5546ad4f77934fca00052719"
        );
        assert_eq!(
            hex(b"abc"),
            "1b14db155f1d406594b8cef70a4362ec6b5de6a5daf50ec999e987c19d3049e2\
             de5977bb05b1bb220050a1ea5b46a9f1740acafbf6b45032adc90c628372c22b"
        );
        let counting: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        assert_eq!(
            hex(&counting),
            "afc7f6bdb27d16a3fe6acc2bf56da22032f27819691a4815cb8ee41148d431f1\
             fb71cca78b531614e09621db6e7eb460a2150fc802f4cf2903731d8a9011234a"
        );
    }

    #[test]
    fn every_word_and_length_matters() {
        let data: Vec<u8> = (0..600).map(|i| (i * 31 + i / 7) as u8).collect();
        let mut seen = std::collections::BTreeSet::new();
        for len in 0..600 {
            assert!(seen.insert(edonr_512(&[], &data[..len])), "{len}");
        }
        let whole = edonr_512(&[], &data[..512]);
        for at in 0..512 {
            let mut other = data[..512].to_vec();
            other[at] ^= 0x40;
            assert_ne!(edonr_512(&[], &other), whole);
        }
        assert_eq!(edonr_512(&data[..256], &data[256..]), edonr_512(&[], &data));
        assert_ne!(edonr_512(&key_block(&[1; 32]), &data), edonr_512(&key_block(&[2; 32]), &data));
    }
}
