//! Ranks of the locks of file systems, in the order in which a task takes them. Those of the layers
//! below are higher.

use rt::rank::Rank;

/// Renames between directories.
pub const RENAME: Rank = Rank(600, "rename");
/// Entries of a directory, links of a file.
pub const NAMES: Rank = Rank(610, "names");
/// A range of a file's data.
pub const DATA: Rank = Rank(620, "file data");
/// Extended attributes of an object.
pub const XATTRS: Rank = Rank(630, "extended attributes");
/// Changes of an object's attributes.
pub const ATTRS: Rank = Rank(660, "attributes");
