//! ZAP.
