//! Ranks of the locks that this crate holds across awaits. Layers above take theirs, all lower,
//! before they call in here; layers below (the cache, block I/O) have higher ones.

use rt::rank::Rank;

/// The layouts of a file system's system attributes, while one is added; held during the change of
/// the layouts ZAP.
pub const SA_LAYOUTS: Rank = Rank(680, "system attribute layouts");
/// A block pointer list. Lists inside it are taken with the same rank, outer before inner.
pub const BPOBJ: Rank = Rank(690, "block pointer list");
/// A ZAP. Two ZAPs are never held at once.
pub const ZAP: Rank = Rank(700, "ZAP");
