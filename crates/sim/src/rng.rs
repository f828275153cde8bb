//! The generator behind every choice of a simulation: splitmix64, one stream for each purpose.

/// A seeded stream of numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut rng = Rng(seed ^ 0x6a09_e667_f3bc_c908);
        rng.next_u64();
        rng
    }
    /// Another stream that depends on this one's seed and on `purpose`.
    pub fn stream(seed: u64, purpose: u64) -> Rng {
        let mut rng = Rng::new(seed);
        let salt = rng.next_u64();
        Rng::new(salt ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "a random number below 0 was asked for");
        // The bias of multiply-and-shift is below n / 2^64: no simulation sees it.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }
    /// True `percent` times of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    /// True once in `n` times on average; never if `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for part in out.chunks_mut(8) {
            part.copy_from_slice(&self.next_u64().to_le_bytes()[..part.len()]);
        }
    }
}
