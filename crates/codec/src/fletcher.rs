//! fletcher2 and fletcher4: the sums that guard most blocks (format page 02, section 3).
//!
//! fletcher4 views a block as u32 words and keeps four u64 sums, each adding up the one before it.
//! After n words, with i counting words from the *end* (the last word has i = 1), the sums are
//! `a = Σ w`, `b = Σ i w`, `c = Σ i(i+1)/2 w`, `d = Σ i(i+1)(i+2)/6 w`, all mod 2^64: the weight of
//! a word is the binomial C(i+k-1, k) for the k-th sum. This closed form makes the sums splittable.
//!
//! **Lanes.** A kernel of K lanes lets lane j sum the words j, j+K, j+2K, ... on its own. A word at
//! position m from the end of lane j is at `i = K m - j` from the end of the block. The wanted
//! weight C(Km-j+k-1, k) is a polynomial in m with integer values, so it is an integer combination
//! of C(m+t-1, t), t <= k, which are the weights of the lane's own sums. The factors are the
//! backward differences of the polynomial at m = 0; `Recombine` computes them at compile time, for
//! any K.
//!
//! **Chaining.** Appending n words with sums (a', b', c', d') to a prefix with sums (a, b, c, d)
//! moves each prefix word n places further from the end, which by the same argument is a
//! combination with C(n, 1), C(n+1, 2), C(n+2, 3).
//!
//! So one update runs the widest kernel over the multiple of its stride, recombines, appends to the
//! running sums, and does the rest word by word. The kernel is chosen once per process. Bytes after
//! the last whole word (fletcher2: the last whole pair of words) are not part of the sum; blocks
//! are multiples of 512 bytes.

use std::sync::LazyLock;

use crate::checksum::Checksum;

type Sums = [u64; 4];

/// fletcher2 over little-endian words.
pub fn fletcher2(data: &[u8]) -> Checksum {
    fletcher2_words::<false>(data)
}

/// fletcher2 over big-endian words, for blocks that a big-endian host wrote (format page 02,
/// section 7).
pub fn fletcher2_be(data: &[u8]) -> Checksum {
    fletcher2_words::<true>(data)
}

/// fletcher4 over little-endian words.
pub fn fletcher4(data: &[u8]) -> Checksum {
    let mut sum = Checksum::default();
    fletcher4_update(&mut sum, data, false);
    sum
}

/// fletcher4 over big-endian words, for blocks that a big-endian host wrote (format page 02,
/// section 7).
pub fn fletcher4_be(data: &[u8]) -> Checksum {
    let mut sum = Checksum::default();
    fletcher4_update(&mut sum, data, true);
    sum
}

/// Appends `data` to a running fletcher4, as send streams keep it (format page 11). Every call but
/// the last must bring a multiple of four bytes, since a word split between calls is not seen.
pub fn fletcher4_update(sum: &mut Checksum, data: &[u8], big_endian: bool) {
    static BEST: LazyLock<Kernel> = LazyLock::new(|| Kernel::available()[0]);
    update(*BEST, &mut sum.0, data, big_endian);
}

/// One way to compute fletcher4. All give the same sums; they are public to be measured and tested
/// against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// Word by word.
    Scalar,
    /// 8 lanes in AVX2 registers.
    Avx2,
    /// 16 lanes in AVX-512 registers.
    Avx512,
}

impl Kernel {
    /// The kernels that this machine can run, best first; the last is [`Kernel::Scalar`].
    pub fn available() -> Vec<Kernel> {
        let mut kernels = Vec::with_capacity(3);
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                if is_x86_feature_detected!("avx512f") {
                    kernels.push(Kernel::Avx512);
                }
                kernels.push(Kernel::Avx2);
            }
        }
        kernels.push(Kernel::Scalar);
        kernels
    }

    /// fletcher4 of `data` by this kernel.
    ///
    /// # Panics
    /// If this machine does not have the kernel, see [`Kernel::available`].
    pub fn fletcher4(self, data: &[u8], big_endian: bool) -> Checksum {
        assert!(Kernel::available().contains(&self), "this machine has no {self:?}");
        let mut sums = [0; 4];
        update(self, &mut sums, data, big_endian);
        Checksum(sums)
    }
}

/// Blocks below this size are summed word by word: recombining lanes would cost more than it saves.
const LANES_MIN: usize = 512;
/// One kernel run, so that the word count stays far from overflow in [`append`].
const RUN_MAX: usize = 1 << 28;

/// Appends `data` to `sums`. `kernel` must be one of [`Kernel::available`].
fn update(kernel: Kernel, sums: &mut Sums, data: &[u8], big_endian: bool) {
    let mut rest = data;
    if kernel != Kernel::Scalar {
        while rest.len() >= LANES_MIN {
            let run = &rest[..rest.len().min(RUN_MAX) & !63];
            rest = &rest[run.len()..];
            append(sums, lanes(kernel, run, big_endian), run.len() as u64 / 4);
        }
    }
    if big_endian { scalar::<true>(sums, rest) } else { scalar::<false>(sums, rest) }
}

/// The sums of `run` alone, a multiple of 64 bytes long.
fn lanes(kernel: Kernel, run: &[u8], big_endian: bool) -> Sums {
    match (kernel, big_endian) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `kernel` comes from `Kernel::available`, which lists it only if the machine has
        // AVX2.
        (Kernel::Avx2, false) => recombine(&unsafe { x86::avx2::<false>(run) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        (Kernel::Avx2, true) => recombine(&unsafe { x86::avx2::<true>(run) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `kernel` comes from `Kernel::available`, which lists it only if the machine has
        // AVX2 and AVX-512F.
        (Kernel::Avx512, false) => recombine(&unsafe { x86::avx512::<false>(run) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        (Kernel::Avx512, true) => recombine(&unsafe { x86::avx512::<true>(run) }),
        _ => {
            let mut sums = [0; 4];
            if big_endian {
                scalar::<true>(&mut sums, run)
            } else {
                scalar::<false>(&mut sums, run)
            }
            sums
        }
    }
}

#[inline]
fn word32<const BE: bool>(bytes: &[u8; 4]) -> u64 {
    u64::from(if BE { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) })
}

fn scalar<const BE: bool>(sums: &mut Sums, data: &[u8]) {
    let [mut a, mut b, mut c, mut d] = *sums;
    for word in data.as_chunks::<4>().0 {
        a = a.wrapping_add(word32::<BE>(word));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    *sums = [a, b, c, d];
}

fn fletcher2_words<const BE: bool>(data: &[u8]) -> Checksum {
    let word = |b: &[u8; 8]| if BE { u64::from_be_bytes(*b) } else { u64::from_le_bytes(*b) };
    let (mut a0, mut a1, mut b0, mut b1) = (0u64, 0u64, 0u64, 0u64);
    for pair in data.as_chunks::<8>().0.as_chunks::<2>().0 {
        a0 = a0.wrapping_add(word(&pair[0]));
        a1 = a1.wrapping_add(word(&pair[1]));
        b0 = b0.wrapping_add(a0);
        b1 = b1.wrapping_add(a1);
    }
    Checksum([a0, a1, b0, b1])
}

/// Appends `words` words that sum up to `tail` on their own; see "Chaining" above.
fn append(sums: &mut Sums, tail: Sums, words: u64) {
    let n = u128::from(words);
    // words <= RUN_MAX / 4 = 2^26, so no product overflows u128 and the divisions are exact.
    let n1 = words;
    let n2 = (n * (n + 1) / 2) as u64;
    let n3 = (n * (n + 1) * (n + 2) / 6) as u64;
    let [a, b, c, d] = *sums;
    let mul_add = |acc: u64, x: u64, y: u64| acc.wrapping_add(x.wrapping_mul(y));
    *sums = [
        tail[0].wrapping_add(a),
        mul_add(tail[1].wrapping_add(b), n1, a),
        mul_add(mul_add(tail[2].wrapping_add(c), n1, b), n2, a),
        mul_add(mul_add(mul_add(tail[3].wrapping_add(d), n1, c), n2, b), n3, a),
    ];
}

/// The factors that turn the sums of K lanes into the sums of the block; see "Lanes" above.
struct Recombine<const K: usize>;

impl<const K: usize> Recombine<K> {
    /// `[lane][sum of the block][sum of the lane]`; factors of lane sums above the block sum are 0.
    const FACTORS: [[[u64; 4]; 4]; K] = {
        let mut factors = [[[0u64; 4]; 4]; K];
        let mut lane = 0;
        while lane < K {
            let mut sum = 0;
            while sum < 4 {
                // Backward differences at m = 0, in place: row t holds the t-th difference
                // afterwards.
                let mut diff = [0i64; 4];
                let mut t = 0;
                while t <= sum {
                    diff[t] = weight(sum, K as i64 * -(t as i64) - lane as i64);
                    t += 1;
                }
                let mut order = 1;
                while order <= sum {
                    let mut t = sum;
                    while t >= order {
                        diff[t] = diff[t - 1] - diff[t];
                        t -= 1;
                    }
                    order += 1;
                }
                let mut t = 0;
                while t <= sum {
                    factors[lane][sum][t] = diff[t] as u64;
                    t += 1;
                }
                sum += 1;
            }
            lane += 1;
        }
        factors
    };
}

/// The weight of a word `i` places from the end in the given sum (0 = a): C(i + sum - 1, sum), for
/// any integer i.
const fn weight(sum: usize, i: i64) -> i64 {
    match sum {
        0 => 1,
        1 => i,
        2 => i * (i + 1) / 2,
        _ => i * (i + 1) * (i + 2) / 6,
    }
}

/// The sums of the block from the sums of its lanes, `[sum][lane]`.
fn recombine<const K: usize>(lanes: &[[u64; K]; 4]) -> Sums {
    let factors = const { &Recombine::<K>::FACTORS };
    let mut sums = [0u64; 4];
    for (lane, factors) in factors.iter().enumerate() {
        for (sum, factors) in factors.iter().enumerate() {
            for t in 0..=sum {
                sums[sum] = sums[sum].wrapping_add(factors[t].wrapping_mul(lanes[t][lane]));
            }
        }
    }
    sums
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Lane sums of a multiple of 64 bytes: lane j has the words j, j + 8, j + 16, ...
    #[target_feature(enable = "avx2")]
    pub fn avx2<const BE: bool>(run: &[u8]) -> [[u64; 8]; 4] {
        assert!(run.len().is_multiple_of(64));
        let swap = _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
        let load = |bytes: &[u8; 16]| {
            // SAFETY: the reference makes 16 bytes readable, and the load has no alignment.
            let v = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
            _mm256_cvtepu32_epi64(if BE { _mm_shuffle_epi8(v, swap) } else { v })
        };
        let mut low = [_mm256_setzero_si256(); 4];
        let mut high = [_mm256_setzero_si256(); 4];
        for [w0, w1] in run.as_chunks::<16>().0.as_chunks::<2>().0 {
            low[0] = _mm256_add_epi64(low[0], load(w0));
            high[0] = _mm256_add_epi64(high[0], load(w1));
            low[1] = _mm256_add_epi64(low[1], low[0]);
            high[1] = _mm256_add_epi64(high[1], high[0]);
            low[2] = _mm256_add_epi64(low[2], low[1]);
            high[2] = _mm256_add_epi64(high[2], high[1]);
            low[3] = _mm256_add_epi64(low[3], low[2]);
            high[3] = _mm256_add_epi64(high[3], high[2]);
        }
        let mut lanes = [[0u64; 8]; 4];
        for (sum, lanes) in lanes.iter_mut().enumerate() {
            let (l, h) = lanes.split_at_mut(4);
            // SAFETY: both halves are 4 u64 = 32 bytes long, and the stores have no alignment.
            unsafe {
                _mm256_storeu_si256(l.as_mut_ptr().cast(), low[sum]);
                _mm256_storeu_si256(h.as_mut_ptr().cast(), high[sum]);
            }
        }
        lanes
    }

    /// Lane sums of a multiple of 64 bytes: lane j has the words j, j + 16, j + 32, ...
    #[target_feature(enable = "avx2,avx512f")]
    pub fn avx512<const BE: bool>(run: &[u8]) -> [[u64; 16]; 4] {
        assert!(run.len().is_multiple_of(64));
        let swap = _mm256_broadcastsi128_si256(_mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12));
        let load = |bytes: &[u8; 32]| {
            // SAFETY: the reference makes 32 bytes readable, and the load has no alignment.
            let v = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
            _mm512_cvtepu32_epi64(if BE { _mm256_shuffle_epi8(v, swap) } else { v })
        };
        let mut low = [_mm512_setzero_si512(); 4];
        let mut high = [_mm512_setzero_si512(); 4];
        for [w0, w1] in run.as_chunks::<32>().0.as_chunks::<2>().0 {
            low[0] = _mm512_add_epi64(low[0], load(w0));
            high[0] = _mm512_add_epi64(high[0], load(w1));
            low[1] = _mm512_add_epi64(low[1], low[0]);
            high[1] = _mm512_add_epi64(high[1], high[0]);
            low[2] = _mm512_add_epi64(low[2], low[1]);
            high[2] = _mm512_add_epi64(high[2], high[1]);
            low[3] = _mm512_add_epi64(low[3], low[2]);
            high[3] = _mm512_add_epi64(high[3], high[2]);
        }
        let mut lanes = [[0u64; 16]; 4];
        for (sum, lanes) in lanes.iter_mut().enumerate() {
            let (l, h) = lanes.split_at_mut(8);
            // SAFETY: both halves are 8 u64 = 64 bytes long, and the stores have no alignment.
            unsafe {
                _mm512_storeu_si512(l.as_mut_ptr().cast(), low[sum]);
                _mm512_storeu_si512(h.as_mut_ptr().cast(), high[sum]);
            }
        }
        lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, mut seed: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = seed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            out.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
        }
        out.truncate(len);
        out
    }

    /// The definition of format page 02, unoptimised.
    fn model(data: &[u8], big_endian: bool) -> Sums {
        let (mut a, mut b, mut c, mut d) = (0u64, 0u64, 0u64, 0u64);
        for w in data.chunks_exact(4) {
            let w: [u8; 4] = w.try_into().unwrap();
            a = a.wrapping_add(if big_endian { u32::from_be_bytes(w) } else { u32::from_le_bytes(w) } as u64);
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        }
        [a, b, c, d]
    }

    /// Lane sums without intrinsics, so that recombination is tested for every lane count on every
    /// machine.
    fn model_lanes<const K: usize>(data: &[u8]) -> [[u64; K]; 4] {
        let mut s = [[0u64; K]; 4];
        for row in data.chunks_exact(4 * K) {
            for lane in 0..K {
                let mut carry = u64::from(u32::from_le_bytes(row[4 * lane..4 * lane + 4].try_into().unwrap()));
                for sum in &mut s {
                    sum[lane] = sum[lane].wrapping_add(carry);
                    carry = sum[lane];
                }
            }
        }
        s
    }

    #[test]
    fn fletcher4_of_known_words() {
        assert_eq!(fletcher4(&[]).0, [0; 4]);
        assert_eq!(fletcher4(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]).0, [6, 10, 15, 21]);
        assert_eq!(fletcher4_be(&[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]).0, [6, 10, 15, 21]);
        // n words of 1: the sums are binomials.
        let n = 32768u64;
        let ones: Vec<u8> = std::iter::repeat_n([1u8, 0, 0, 0], n as usize).flatten().collect();
        let want = [n, n * (n + 1) / 2, n * (n + 1) * (n + 2) / 6, n * (n + 1) / 2 * (n + 2) / 3 * (n + 3) / 4];
        assert_eq!(fletcher4(&ones).0, want);
        // All bits set, so that d wraps: each sum is the one above times 2^32 - 1.
        let full = want.map(|w| w.wrapping_mul(0xffff_ffff));
        assert_eq!(fletcher4(&vec![0xff; 4 * n as usize]).0, full);
    }

    #[test]
    fn fletcher2_of_known_words() {
        let words: Vec<u8> = [1u64, 10, 2, 20, 3, 30].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(fletcher2(&words).0, [6, 60, 10, 100]);
        let words: Vec<u8> = [1u64, 10, 2, 20, 3, 30].iter().flat_map(|w| w.to_be_bytes()).collect();
        assert_eq!(fletcher2_be(&words).0, [6, 60, 10, 100]);
        assert_eq!(fletcher2(&[0xff; 32]).0, [u64::MAX - 1, u64::MAX - 1, u64::MAX - 2, u64::MAX - 2]);
    }

    #[test]
    fn every_kernel_equals_the_definition_at_every_length() {
        let data = noise(4096 + 64, 1);
        for kernel in Kernel::available() {
            for len in (0..=4096).step_by(4) {
                let data = &data[len % 61..][..len]; // all alignments come by
                for be in [false, true] {
                    assert_eq!(kernel.fletcher4(data, be).0, model(data, be), "{kernel:?} {len} be={be}");
                }
            }
        }
    }

    #[test]
    fn every_kernel_equals_the_definition_on_large_blocks() {
        let data = noise(1 << 20, 2);
        for kernel in Kernel::available() {
            for (offset, len) in [(0, 1 << 20), (1, 131072), (3, 16384 + 4), (5, 999_996), (32, 65536 + 60), (63, 512)]
            {
                let data = &data[offset..offset + len.min((1 << 20) - offset) / 4 * 4];
                for be in [false, true] {
                    assert_eq!(kernel.fletcher4(data, be).0, model(data, be), "{kernel:?} {offset} {len}");
                }
            }
        }
    }

    #[test]
    fn recombination_holds_for_any_lane_count() {
        fn check<const K: usize>() {
            for rows in [1, 2, 3, 17, 100] {
                let data = noise(4 * K * rows, K as u64);
                assert_eq!(recombine(&model_lanes::<K>(&data)), model(&data, false), "{K} lanes, {rows} rows");
            }
        }
        check::<1>();
        check::<2>();
        check::<3>();
        check::<4>();
        check::<7>();
        check::<8>();
        check::<16>();
        check::<32>();
    }

    #[test]
    fn pieces_sum_up_to_the_whole() {
        let data = noise(40_000, 3);
        for be in [false, true] {
            for cut in (0..data.len()).step_by(1004) {
                let mut sum = Checksum::default();
                fletcher4_update(&mut sum, &data[..cut], be);
                fletcher4_update(&mut sum, &data[cut..], be);
                assert_eq!(sum.0, model(&data, be), "cut at {cut}");
            }
        }
    }

    #[test]
    fn bytes_after_the_last_word_do_not_count() {
        let data = noise(4096, 4);
        for extra in 1..4 {
            assert_eq!(fletcher4(&data[..2048 + extra]), fletcher4(&data[..2048]));
        }
        for extra in 1..16 {
            assert_eq!(fletcher2(&data[..2048 + extra]), fletcher2(&data[..2048]));
        }
    }
}
