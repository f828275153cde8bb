//! The intent log: what synchronous writes are acknowledged by (format page 07, behaviour 3.4).
pub mod block;
pub mod chain;
pub mod claim;
pub mod replay;
