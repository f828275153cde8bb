//! Findings of a check, bounded: a badly damaged pool must not fill the memory with messages.

use std::collections::BTreeMap;

use ondisk::object_type::ObjectType;

/// Most errors that are kept as text; the rest are counted.
const MAX_KEPT: usize = 10_000;

/// Sums over blocks of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeStat {
    /// Blocks.
    pub count: u64,
    /// Logical bytes.
    pub lsize: u64,
    /// Stored bytes.
    pub psize: u64,
    /// Allocated bytes.
    pub asize: u64,
}

impl TypeStat {
    /// Adds another's sums.
    pub fn add(&mut self, o: &TypeStat) {
        self.count += o.count;
        self.lsize += o.lsize;
        self.psize += o.psize;
        self.asize += o.asize;
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Pool name.
    pub pool: String,
    /// Blocks claimed: pointers that are not holes, each once.
    pub blocks: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Bytes that the space maps count beyond the blocks.
    pub leaked: u64,
    /// Bytes of blocks without references that wait in the log of a dedup table: they are
    /// allocated. The zdb of OpenZFS 2.4 says that they are leaked.
    pub waiting: u64,
    /// Errors, each with its place; bounded, see `error_count`.
    pub errors: Vec<String>,
    /// How many errors there were in all.
    pub error_count: u64,
    /// Notes that are not errors.
    pub notes: Vec<String>,
    /// Copies read and compared with their checksums.
    pub copies: u64,
    /// Wrong copies on devices that by the configuration miss some; not errors.
    pub missed: u64,
    /// Blocks in gangs.
    pub ganged: u64,
    /// Blocks embedded in their pointers.
    pub embedded: u64,
    /// Objects walked.
    pub objects: u64,
    /// Files and folders compared with their folders.
    pub files: u64,
    /// File systems and snapshots in which they are.
    pub filesystems: u64,
    /// Space map histograms that are those of the free segments.
    pub histograms_exact: u64,
    /// Those that have some segments in parts.
    pub histograms_split: u64,
    /// Allocated bytes of each top-level vdev, as the space maps have it.
    pub allocated: BTreeMap<u32, u64>,
    /// Blocks by type and level (0, or 1 for indirect).
    pub types: BTreeMap<(ObjectType, u8), TypeStat>,
}

impl CheckReport {
    /// The result in one line.
    pub fn summary(&self) -> String {
        format!("{}: {} blocks, {} leaked, {} errors", self.pool, self.blocks, self.leaked, self.error_count)
    }
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.error_count == 0 && self.leaked == 0
    }
}

/// A finding as it is made.
#[derive(Clone, Copy, Debug)]
pub enum Finding<'a> {
    /// Something is wrong.
    Error(&'a str),
    /// Something is worth knowing.
    Note(&'a str),
    /// The current step.
    Progress(&'a str),
}

/// Where findings go: the report and the listener.
pub struct Sink<'a> {
    /// The report being made.
    pub rep: CheckReport,
    listen: &'a mut dyn FnMut(Finding<'_>),
}

impl<'a> Sink<'a> {
    /// A sink for a pool.
    pub fn new(pool: &str, listen: &'a mut dyn FnMut(Finding<'_>)) -> Sink<'a> {
        Sink { rep: CheckReport { pool: pool.to_owned(), ..CheckReport::default() }, listen }
    }
    /// Notes an error.
    pub fn error(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.rep.error_count += 1;
        if self.rep.errors.len() < MAX_KEPT {
            (self.listen)(Finding::Error(&what));
            self.rep.errors.push(what);
        }
    }
    /// Notes the error in `r`, else returns its value.
    pub fn take<T>(&mut self, r: base::Result<T>) -> Option<T> {
        match r {
            Ok(v) => Some(v),
            Err(e) => {
                self.error(e.to_string());
                None
            }
        }
    }
    /// Notes something that is not wrong.
    pub fn note(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.rep.notes.len() < MAX_KEPT {
            (self.listen)(Finding::Note(&what));
            self.rep.notes.push(what);
        }
    }
    /// Reports the current step.
    pub fn progress(&mut self, what: &str) {
        (self.listen)(Finding::Progress(what));
    }
}
