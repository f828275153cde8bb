//! The inner loops of RAID-Z parity, one for each instruction set, chosen at run time.
//!
//! A kernel walks a row in *strips*: it takes the same few dozen bytes of all columns, sums them up
//! by Horner's rule in registers, and writes each result once. So every byte is read once and
//! written once, whatever the number of parities. Everything is generic over a [`Vector`], the
//! bytes that one instruction works on; the loops are inlined into one function for each
//! instruction set, which enables the instructions.
//!
//! **Segments.** Columns differ in length, so a row is cut at the end of each column. Within a
//! segment a column is there or it is not, and a column that is not there only multiplies. The rest
//! of a segment, shorter than a vector, is done byte by byte; rows of pools (multiples of a sector)
//! have no rest.
//!
//! **Products.** Doubling is a shift and a conditional xor. Any other constant factor is two table
//! lookups, one for each nibble, since multiplication is linear in the bits; GFNI does it in one
//! instruction, as an 8 x 8 matrix of bits.

// Loops over rows and vectors have constant bounds and are unrolled; an index names the row.
#![allow(clippy::needless_range_loop)]

use super::{PARITY_MAX, mul};

/// One way to compute parity. All give the same bytes; they are public to be measured and tested
/// against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// Eight bytes at a time in ordinary registers.
    Scalar,
    /// 16 bytes at a time.
    Ssse3,
    /// 32 bytes at a time.
    Avx2,
    /// 32 bytes at a time, products by GFNI.
    Avx2Gfni,
    /// 64 bytes at a time.
    Avx512bw,
    /// 64 bytes at a time, products by GFNI.
    Avx512Gfni,
}

impl Kernel {
    /// The kernels that this machine can run, best first; the last is [`Kernel::Scalar`].
    pub fn available() -> Vec<Kernel> {
        let mut kernels = Vec::with_capacity(6);
        #[cfg(target_arch = "x86_64")]
        {
            let gfni = is_x86_feature_detected!("gfni");
            if is_x86_feature_detected!("avx2") {
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                    if gfni {
                        kernels.push(Kernel::Avx512Gfni);
                    }
                    kernels.push(Kernel::Avx512bw);
                }
                if gfni {
                    kernels.push(Kernel::Avx2Gfni);
                }
                kernels.push(Kernel::Avx2);
            }
            if is_x86_feature_detected!("ssse3") {
                kernels.push(Kernel::Ssse3);
            }
        }
        kernels.push(Kernel::Scalar);
        kernels
    }
}

/// The use of the sums of a row.
pub(super) enum Output<'a, 'b> {
    /// They are the parity columns P, Q, R, as many as there are.
    Parity(&'a mut [&'b mut [u8]]),
    /// With the parity they are syndromes, which give lost columns.
    Lost(Lost<'a, 'b>),
}

/// How syndromes become lost columns.
pub(super) struct Lost<'a, 'b> {
    /// Parity columns to use, by row (P, Q, R).
    pub parity: [Option<&'a [u8]>; PARITY_MAX],
    /// The lost columns, as many as there are parity columns.
    pub columns: Vec<&'a mut &'b mut [u8]>,
    /// `[j][t]`: the factor of the t-th syndrome in lost column j.
    pub factors: [[u8; PARITY_MAX]; PARITY_MAX],
}

/// Sums up `columns`, all inside 0..`len`, and writes `output`. `kernel` must be one of
/// [`Kernel::available`]. A column that is empty counts as zeros. Lengths were checked: parity
/// columns have `len` bytes, lost columns at most as many.
pub(super) fn run(kernel: Kernel, columns: &[&[u8]], len: usize, mut output: Output<'_, '_>) {
    let mut from = 0;
    while from < len {
        let ends = columns.iter().map(|c| c.len());
        let to = match &output {
            Output::Parity(_) => ends.filter(|&end| end > from).min(),
            Output::Lost(lost) => ends.chain(lost.columns.iter().map(|c| c.len())).filter(|&end| end > from).min(),
        };
        let to = to.expect("len is the length of a column");
        let segment = Segment { columns, from, to };
        match &mut output {
            Output::Parity(rows) => {
                let mut into = [std::ptr::null_mut(); PARITY_MAX];
                for (into, row) in into.iter_mut().zip(rows.iter_mut()) {
                    assert!(row.len() >= to);
                    *into = row.as_mut_ptr();
                }
                let rows = (1u8 << rows.len()) - 1;
                // SAFETY: the pointers are to columns of at least `to` bytes, borrowed here for
                // writing, and null where `rows` has no bit. `kernel` is available by the contract.
                unsafe { segment.run(kernel, rows, &Store { into }) }
            }
            Output::Lost(lost) => {
                let mut solve =
                    Solve { parity: [std::ptr::null(); 3], into: [std::ptr::null_mut(); 3], factors: [[0; 3]; 3] };
                let mut rows = 0u8;
                for (y, parity) in lost.parity.iter().enumerate() {
                    if let Some(parity) = parity {
                        assert!(parity.len() >= to);
                        solve.parity[y] = parity.as_ptr();
                        rows |= 1 << y;
                    }
                }
                assert!(lost.columns.len() == (rows.count_ones() as usize));
                for (j, column) in lost.columns.iter_mut().enumerate() {
                    assert!(column.len() <= from || column.len() >= to);
                    // A column that ends before the segment keeps the null pointer: its bytes are
                    // not stored.
                    if column.len() >= to {
                        solve.into[j] = column.as_mut_ptr();
                    }
                }
                solve.factors = lost.factors;
                // SAFETY: parity pointers are to at least `to` bytes wherever `rows` has a bit, the
                // other pointers are null or to at least `to` bytes borrowed here for writing.
                // `kernel` is available by the contract.
                unsafe { segment.run(kernel, rows, &solve) }
            }
        }
        from = to;
    }
}

/// A piece of a row in which each column either is there to its end or not at all.
#[derive(Clone, Copy)]
struct Segment<'a> {
    columns: &'a [&'a [u8]],
    from: usize,
    to: usize,
}

impl Segment<'_> {
    /// Runs one kernel over the segment with the rows whose bits are set in `rows`.
    ///
    /// # Safety
    /// The machine must have the kernel, and `finish` must be good for `from..to`.
    unsafe fn run<F: Finish>(&self, kernel: Kernel, rows: u8, finish: &F) {
        // SAFETY: passed on to the caller.
        unsafe {
            match kernel {
                #[cfg(target_arch = "x86_64")]
                Kernel::Ssse3 => x86::ssse3(self, rows, finish),
                #[cfg(target_arch = "x86_64")]
                Kernel::Avx2 => x86::avx2(self, rows, finish),
                #[cfg(target_arch = "x86_64")]
                Kernel::Avx2Gfni => x86::avx2_gfni(self, rows, finish),
                #[cfg(target_arch = "x86_64")]
                Kernel::Avx512bw => x86::avx512bw(self, rows, finish),
                #[cfg(target_arch = "x86_64")]
                Kernel::Avx512Gfni => x86::avx512_gfni(self, rows, finish),
                _ => self.by_rows::<Word, 4, F>(rows, finish),
            }
        }
    }

    /// As [`Segment::run`] for the vector `V`, `U` of them to a strip.
    #[inline(always)]
    unsafe fn by_rows<V: Vector, const U: usize, F: Finish>(&self, rows: u8, finish: &F) {
        // SAFETY: passed on to the caller.
        unsafe {
            match rows {
                1 => self.whole::<V, 1, U, F>(finish),
                2 => self.whole::<V, 2, U, F>(finish),
                3 => self.whole::<V, 3, U, F>(finish),
                4 => self.whole::<V, 4, U, F>(finish),
                5 => self.whole::<V, 5, U, F>(finish),
                6 => self.whole::<V, 6, U, F>(finish),
                7 => self.whole::<V, 7, U, F>(finish),
                _ => assert!(rows == 0, "rows {rows:#x}"),
            }
        }
    }

    /// The segment in strips of `U` vectors, then in single vectors, then in bytes.
    #[inline(always)]
    unsafe fn whole<V: Vector, const ROWS: u8, const U: usize, F: Finish>(&self, finish: &F) {
        // SAFETY: passed on to the caller.
        unsafe {
            let at = self.strips::<V, ROWS, U, F>(self.from, finish);
            let at = self.strips::<V, ROWS, 1, F>(at, finish);
            self.strips::<Byte, ROWS, 1, F>(at, finish);
        }
    }

    /// As many whole strips as fit, from byte `at` of the columns; returns where they end.
    #[inline(always)]
    unsafe fn strips<V: Vector, const ROWS: u8, const U: usize, F: Finish>(&self, mut at: usize, finish: &F) -> usize {
        let factors = finish.prepare::<V>();
        while self.to - at >= U * V::BYTES {
            // SAFETY: columns that do not end before the segment have `to` bytes, and the strip
            // ends there or before. `finish` is valid for the strip by the contract.
            unsafe {
                let mut sums = [[V::zero(); U]; PARITY_MAX];
                for column in self.columns {
                    for u in 0..U {
                        if ROWS & 2 != 0 {
                            sums[1][u] = sums[1][u].twice();
                        }
                        if ROWS & 4 != 0 {
                            sums[2][u] = sums[2][u].four_times();
                        }
                    }
                    if column.len() > self.from {
                        for u in 0..U {
                            let bytes = V::load(column.as_ptr().add(at + u * V::BYTES));
                            for y in 0..PARITY_MAX {
                                if ROWS & (1 << y) != 0 {
                                    sums[y][u] = sums[y][u].plus(bytes);
                                }
                            }
                        }
                    }
                }
                finish.finish::<V, ROWS, U>(&factors, at, &sums);
            }
            at += U * V::BYTES;
        }
        at
    }
}

/// Several bytes, each of them an element of the field. The caller must have checked for the
/// instructions: all functions are to be inlined into one that enables them.
trait Vector: Copy {
    const BYTES: usize;
    /// A constant to multiply with, prepared.
    type Factor: Copy;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn plus(self, other: Self) -> Self;
    unsafe fn twice(self) -> Self;
    unsafe fn factor(factor: u8) -> Self::Factor;
    unsafe fn times(self, factor: &Self::Factor) -> Self;

    #[inline(always)]
    unsafe fn four_times(self) -> Self {
        // SAFETY: passed on to the caller.
        unsafe { self.twice().twice() }
    }
}

/// The last step with the sums of a strip.
trait Finish {
    /// Constants of the whole segment.
    type Prepared<V: Vector>;
    fn prepare<V: Vector>(&self) -> Self::Prepared<V>;

    /// Takes the sums of the strip at byte `at` of the columns.
    ///
    /// # Safety
    /// The columns behind the pointers must have the whole strip, and the machine the instructions
    /// of `V`.
    unsafe fn finish<V: Vector, const ROWS: u8, const U: usize>(
        &self,
        prepared: &Self::Prepared<V>,
        at: usize,
        sums: &[[V; U]; PARITY_MAX],
    );
}

/// Sums are parity.
struct Store {
    into: [*mut u8; PARITY_MAX],
}

impl Finish for Store {
    type Prepared<V: Vector> = ();
    #[inline(always)]
    fn prepare<V: Vector>(&self) {}

    #[inline(always)]
    unsafe fn finish<V: Vector, const ROWS: u8, const U: usize>(
        &self,
        (): &(),
        at: usize,
        sums: &[[V; U]; PARITY_MAX],
    ) {
        for y in 0..PARITY_MAX {
            if ROWS & (1 << y) != 0 {
                for u in 0..U {
                    // SAFETY: the column has the strip by the contract.
                    unsafe { sums[y][u].store(self.into[y].add(at + u * V::BYTES)) };
                }
            }
        }
    }
}

/// Sums and parity give lost columns.
struct Solve {
    parity: [*const u8; PARITY_MAX],
    /// Null: not to be stored.
    into: [*mut u8; PARITY_MAX],
    factors: [[u8; PARITY_MAX]; PARITY_MAX],
}

impl Finish for Solve {
    type Prepared<V: Vector> = [[V::Factor; PARITY_MAX]; PARITY_MAX];
    #[inline(always)]
    fn prepare<V: Vector>(&self) -> Self::Prepared<V> {
        // SAFETY: only `strips` calls this, in a function that enables the instructions of `V`.
        let row = |factors: [u8; PARITY_MAX]| unsafe {
            [V::factor(factors[0]), V::factor(factors[1]), V::factor(factors[2])]
        };
        [row(self.factors[0]), row(self.factors[1]), row(self.factors[2])]
    }

    #[inline(always)]
    unsafe fn finish<V: Vector, const ROWS: u8, const U: usize>(
        &self,
        factors: &Self::Prepared<V>,
        at: usize,
        sums: &[[V; U]; PARITY_MAX],
    ) {
        let lost = ROWS.count_ones() as usize;
        for u in 0..U {
            let at = at + u * V::BYTES;
            // SAFETY: by the contract the columns have the strip, and each row has a parity
            // pointer.
            unsafe {
                let mut syndromes = [V::zero(); PARITY_MAX];
                let mut t = 0;
                for y in 0..PARITY_MAX {
                    if ROWS & (1 << y) != 0 {
                        syndromes[t] = V::load(self.parity[y].add(at)).plus(sums[y][u]);
                        t += 1;
                    }
                }
                // The syndrome of P is the plain sum of the lost columns: with it, the last of them
                // is a difference.
                let by_sum = ROWS & 1 != 0;
                let mut rest = syndromes[0];
                for j in 0..lost {
                    let column = if by_sum && j + 1 == lost {
                        rest
                    } else {
                        let mut column = syndromes[0].times(&factors[j][0]);
                        for t in 1..lost {
                            column = column.plus(syndromes[t].times(&factors[j][t]));
                        }
                        rest = rest.plus(column);
                        column
                    };
                    if !self.into[j].is_null() {
                        column.store(self.into[j].add(at));
                    }
                }
            }
        }
    }
}

/// A single byte, for ends.
#[derive(Clone, Copy)]
struct Byte(u8);

impl Vector for Byte {
    const BYTES: usize = 1;
    type Factor = u8;

    #[inline(always)]
    unsafe fn zero() -> Byte {
        Byte(0)
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Byte {
        // SAFETY: the caller guarantees that it is readable.
        Byte(unsafe { *from })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller guarantees that it is writable.
        unsafe { *to = self.0 }
    }
    #[inline(always)]
    unsafe fn plus(self, other: Byte) -> Byte {
        Byte(self.0 ^ other.0)
    }
    #[inline(always)]
    unsafe fn twice(self) -> Byte {
        Byte(mul(self.0, 2))
    }
    #[inline(always)]
    unsafe fn factor(factor: u8) -> u8 {
        factor
    }
    #[inline(always)]
    unsafe fn times(self, factor: &u8) -> Byte {
        Byte(mul(self.0, *factor))
    }
}

/// Eight bytes in an ordinary register.
#[derive(Clone, Copy)]
struct Word(u64);

/// The same byte eight times.
const fn bytes(b: u8) -> u64 {
    u64::from_ne_bytes([b; 8])
}

impl Vector for Word {
    const BYTES: usize = 8;
    type Factor = u8;

    #[inline(always)]
    unsafe fn zero() -> Word {
        Word(0)
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Word {
        // SAFETY: the caller guarantees that it is readable; no alignment is needed.
        Word(unsafe { from.cast::<u64>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller guarantees that it is writable; no alignment is needed.
        unsafe { to.cast::<u64>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn plus(self, other: Word) -> Word {
        Word(self.0 ^ other.0)
    }
    #[inline(always)]
    unsafe fn twice(self) -> Word {
        let carry = (self.0 >> 7) & bytes(1);
        // 29 times a byte that is 0 or 1 stays in the byte.
        Word(((self.0 & bytes(0x7f)) << 1) ^ (carry * 0x1d))
    }
    #[inline(always)]
    unsafe fn factor(factor: u8) -> u8 {
        factor
    }
    #[inline(always)]
    unsafe fn times(self, factor: &u8) -> Word {
        let mut product = Word(0);
        for bit in (0..8).rev() {
            // SAFETY: nothing is needed for these.
            unsafe {
                product = product.twice();
                if factor & (1 << bit) != 0 {
                    product = product.plus(self);
                }
            }
        }
        product
    }
}

/// Products of `factor` with the low and the high nibbles: entry i is `factor * i` and
/// `factor * (i << 4)`.
fn nibble_tables(factor: u8) -> [[u8; 16]; 2] {
    std::array::from_fn(|half| std::array::from_fn(|i| mul(factor, (i as u8) << (4 * half))))
}

/// The product with `factor` as a matrix of bits, as GF2P8AFFINEQB takes it: byte 7 - i holds the
/// row of bit i of the result, whose bit j selects bit j of the operand.
#[cfg(any(target_arch = "x86_64", test))]
fn bit_matrix(factor: u8) -> u64 {
    let mut rows = [0u8; 8];
    for j in 0..8 {
        let product = mul(factor, 1 << j);
        for (i, row) in rows.iter_mut().enumerate() {
            *row |= ((product >> i) & 1) << j;
        }
    }
    rows.reverse();
    u64::from_le_bytes(rows)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Finish, Segment, Vector, bit_matrix, nibble_tables};

    macro_rules! entry {
        ($name:ident, $features:literal, $vector:ty, $unroll:literal) => {
            /// [`Segment::by_rows`] with these instructions.
            ///
            /// # Safety
            /// The machine must have them, and `finish` must be good for the segment.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name<F: Finish>(segment: &Segment<'_>, rows: u8, finish: &F) {
                // SAFETY: passed on to the caller.
                unsafe { segment.by_rows::<$vector, $unroll, F>(rows, finish) }
            }
        };
    }
    entry!(ssse3, "ssse3", V128, 2);
    entry!(avx2, "avx2", V256, 2);
    entry!(avx2_gfni, "avx2,gfni", V256Gfni, 4);
    entry!(avx512bw, "avx2,avx512f,avx512bw", V512, 4);
    entry!(avx512_gfni, "avx2,avx512f,avx512bw,gfni", V512Gfni, 4);

    /// A vector over the named intrinsics, with the given ways to double and multiply.
    macro_rules! vector {
        ($name:ident, $raw:ty, $bytes:literal, $load:ident, $store:ident, $xor:ident, $zero:ident, $factor:ty,
         twice: $twice:expr, factor: $prepare:expr, times: $times:expr) => {
            #[derive(Clone, Copy)]
            struct $name($raw);

            impl Vector for $name {
                const BYTES: usize = $bytes;
                type Factor = $factor;

                #[inline(always)]
                unsafe fn zero() -> Self {
                    // SAFETY: the caller guarantees that the machine has the instructions.
                    unsafe { $name($zero()) }
                }
                #[inline(always)]
                unsafe fn load(from: *const u8) -> Self {
                    // SAFETY: as above, and the bytes are readable; no alignment is asked for.
                    unsafe { $name($load(from.cast())) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut u8) {
                    // SAFETY: as above, and the bytes are writable; no alignment is asked for.
                    unsafe { $store(to.cast(), self.0) }
                }
                #[inline(always)]
                unsafe fn plus(self, other: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $name($xor(self.0, other.0)) }
                }
                #[inline(always)]
                unsafe fn twice(self) -> Self {
                    // SAFETY: as above.
                    unsafe { $name($twice(self.0)) }
                }
                #[inline(always)]
                unsafe fn factor(factor: u8) -> Self::Factor {
                    // SAFETY: as above.
                    unsafe { $prepare(factor) }
                }
                #[inline(always)]
                unsafe fn times(self, factor: &Self::Factor) -> Self {
                    // SAFETY: as above.
                    unsafe { $name($times(self.0, factor)) }
                }
            }
        };
    }

    vector!(V128, __m128i, 16, _mm_loadu_si128, _mm_storeu_si128, _mm_xor_si128, _mm_setzero_si128, [__m128i; 2],
        twice: twice128, factor: factor128, times: times128);
    vector!(V256, __m256i, 32, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_xor_si256, _mm256_setzero_si256, [__m256i; 2],
        twice: twice256, factor: factor256, times: times256);
    vector!(V256Gfni, __m256i, 32, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_xor_si256, _mm256_setzero_si256, __m256i,
        twice: twice256, factor: matrix256, times: affine256);
    vector!(V512, __m512i, 64, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_xor_si512, _mm512_setzero_si512, [__m512i; 2],
        twice: twice512, factor: factor512, times: times512);
    vector!(V512Gfni, __m512i, 64, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_xor_si512, _mm512_setzero_si512, __m512i,
        twice: twice512, factor: matrix512, times: affine512);

    /// The low byte of the polynomial 0x11d.
    const POLY: i8 = 0x1d;

    #[inline]
    #[target_feature(enable = "ssse3")]
    fn twice128(a: __m128i) -> __m128i {
        let carry = _mm_and_si128(_mm_cmpgt_epi8(_mm_setzero_si128(), a), _mm_set1_epi8(POLY));
        _mm_xor_si128(_mm_add_epi8(a, a), carry)
    }
    #[inline]
    #[target_feature(enable = "ssse3")]
    fn factor128(factor: u8) -> [__m128i; 2] {
        // SAFETY: the tables are 16 bytes each, and the load has no alignment.
        nibble_tables(factor).map(|t| unsafe { _mm_loadu_si128(t.as_ptr().cast()) })
    }
    #[inline]
    #[target_feature(enable = "ssse3")]
    fn times128(a: __m128i, tables: &[__m128i; 2]) -> __m128i {
        let nibble = _mm_set1_epi8(15);
        let low = _mm_shuffle_epi8(tables[0], _mm_and_si128(a, nibble));
        let high = _mm_shuffle_epi8(tables[1], _mm_and_si128(_mm_srli_epi64::<4>(a), nibble));
        _mm_xor_si128(low, high)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn twice256(a: __m256i) -> __m256i {
        let carry = _mm256_and_si256(_mm256_cmpgt_epi8(_mm256_setzero_si256(), a), _mm256_set1_epi8(POLY));
        _mm256_xor_si256(_mm256_add_epi8(a, a), carry)
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    fn factor256(factor: u8) -> [__m256i; 2] {
        factor128(factor).map(|t| _mm256_broadcastsi128_si256(t))
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    fn times256(a: __m256i, tables: &[__m256i; 2]) -> __m256i {
        let nibble = _mm256_set1_epi8(15);
        let low = _mm256_shuffle_epi8(tables[0], _mm256_and_si256(a, nibble));
        let high = _mm256_shuffle_epi8(tables[1], _mm256_and_si256(_mm256_srli_epi64::<4>(a), nibble));
        _mm256_xor_si256(low, high)
    }

    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw")]
    fn twice512(a: __m512i) -> __m512i {
        let carry = _mm512_maskz_mov_epi8(_mm512_movepi8_mask(a), _mm512_set1_epi8(POLY));
        _mm512_xor_si512(_mm512_add_epi8(a, a), carry)
    }
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw")]
    fn factor512(factor: u8) -> [__m512i; 2] {
        factor128(factor).map(|t| _mm512_broadcast_i32x4(t))
    }
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw")]
    fn times512(a: __m512i, tables: &[__m512i; 2]) -> __m512i {
        let nibble = _mm512_set1_epi8(15);
        let low = _mm512_shuffle_epi8(tables[0], _mm512_and_si512(a, nibble));
        let high = _mm512_shuffle_epi8(tables[1], _mm512_and_si512(_mm512_srli_epi64::<4>(a), nibble));
        _mm512_xor_si512(low, high)
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    fn matrix256(factor: u8) -> __m256i {
        _mm256_set1_epi64x(bit_matrix(factor) as i64)
    }
    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    fn affine256(a: __m256i, matrix: &__m256i) -> __m256i {
        _mm256_gf2p8affine_epi64_epi8::<0>(a, *matrix)
    }
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw,gfni")]
    fn matrix512(factor: u8) -> __m512i {
        _mm512_set1_epi64(bit_matrix(factor) as i64)
    }
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw,gfni")]
    fn affine512(a: __m512i, matrix: &__m512i) -> __m512i {
        _mm512_gf2p8affine_epi64_epi8::<0>(a, *matrix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GF2P8AFFINEQB on one byte, as its manual words it: bit i of the result is the parity of the
    /// operand and byte 7 - i of the matrix.
    fn affine(a: u8, matrix: u64) -> u8 {
        let rows = matrix.to_le_bytes();
        (0..8).fold(0, |out, i| out | ((a & rows[7 - i]).count_ones() as u8 & 1) << i)
    }

    #[test]
    fn tables_and_matrices_are_products() {
        for f in 0..=255 {
            let [low, high] = nibble_tables(f);
            let matrix = bit_matrix(f);
            for a in 0..=255u8 {
                assert_eq!(low[usize::from(a & 15)] ^ high[usize::from(a >> 4)], mul(f, a));
                assert_eq!(affine(a, matrix), mul(f, a));
            }
        }
    }

    #[test]
    fn eight_bytes_at_once_are_eight_products() {
        for f in 0..=255u8 {
            for a in 0..=255u8 {
                let v = [a, 0, 255, 128, 1, f, a ^ f, 0x7f];
                // SAFETY: these need nothing.
                let (twice, four, times) = unsafe {
                    let w = Word(u64::from_ne_bytes(v));
                    (w.twice(), w.four_times(), w.times(&f))
                };
                assert_eq!(twice.0.to_ne_bytes(), v.map(|x| mul(x, 2)));
                assert_eq!(four.0.to_ne_bytes(), v.map(|x| mul(x, 4)));
                assert_eq!(times.0.to_ne_bytes(), v.map(|x| mul(x, f)));
            }
        }
    }
}
