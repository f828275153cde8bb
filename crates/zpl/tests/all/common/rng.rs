//! A small random generator: a workload must be the same for the same seed, everywhere and for
//! ever.

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Seeded.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// One of a slice, which is not empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }
    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    /// Bytes: random, or of few values so that they compress, or zeros.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        match self.below(4) {
            0 => vec![0; len],
            1 => {
                let b = self.next() as u8;
                vec![b | 1; len]
            }
            2 => {
                let word = self.next().to_le_bytes();
                (0..len).map(|i| word[i % 8]).collect()
            }
            _ => {
                let mut out = Vec::with_capacity(len + 8);
                while out.len() < len {
                    out.extend_from_slice(&self.next().to_le_bytes());
                }
                out.truncate(len);
                out
            }
        }
    }
}
