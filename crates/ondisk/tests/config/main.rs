//! Name-value lists, labels, uberblocks, vdev trees, history, features and headers of caches:
//! against models, hostile bytes, and bytes that real OpenZFS wrote (`../golden-label`, and the
//! reference pools where they are at hand).
#![allow(clippy::unwrap_used, reason = "tests")]

mod feature;
mod history;
mod l2arc;
mod label;
mod nvlist;
mod real_pools;
mod vdev_config;

/// A fixture of `tests/golden-label`: hex in lines, `#` comments.
fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/golden-label/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let digits: Vec<u8> =
        text.lines().filter(|l| !l.starts_with('#')).flat_map(str::bytes).filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// The text of a fixture.
fn golden_text(name: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/golden-label/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// `packed` with one or a few bytes changed, for hostile-input tests: a small multiplicative
/// generator, seeded.
fn mutations(packed: &[u8], seed: u64, count: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    (0..count).map(move |_| {
        let mut b = packed.to_vec();
        for _ in 0..1 + next() % 3 {
            let at = next() as usize % b.len();
            b[at] = match next() % 5 {
                0 => 0xff,
                1 => 0,
                2 => b[at].wrapping_add(1),
                3 => b[at].wrapping_sub(1),
                _ => next() as u8,
            };
        }
        b
    })
}
