//! ZPL constants and small structures.
