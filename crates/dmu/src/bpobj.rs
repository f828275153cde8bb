//! Lists of block pointers.
