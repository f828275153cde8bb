//! The request of `zfs program`.

use base::{Error, Result};
use program::{End, Limits, Value};
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Direction, Kind, Request};

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[Kind::of::<Program>()];

/// Longest text of a program, in bytes.
const TEXT_MAX: usize = 16 << 20;

/// `zfs program`: run a program on a pool. A program that fails may have changed something before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Program {
    /// The pool.
    pub pool: String,
    /// Its text.
    pub text: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// What it may use.
    pub limits: Limits,
    /// It may change nothing.
    pub read_only: bool,
}

impl Request for Program {
    const NAME: &'static str = "Program";
    const TITLE: &'static str = "zfs program";
    // Nothing comes over it: its end tells that the client has gone away.
    const STREAM: Option<Direction> = Some(Direction::ToClient);
    type Reply = End;
    fn changes(&self) -> Changes {
        if self.read_only { Changes::Nothing } else { Changes::Pool(self.pool.clone()) }
    }
    fn run(self, cx: &Cx<'_>) -> Result<End> {
        let Program { pool, text, args, limits, read_only } = self;
        cx.pools.need_running(&pool)?;
        if !limits.within(&cx.pools.program_limits(&pool)) {
            return Ok(End::BadLimits);
        }
        if text.len() > TEXT_MAX {
            return Err(Error::invalid(format!("the program is longer than {TEXT_MAX} bytes")));
        }
        let args = Value::List(args.into_iter().map(Value::Text).collect());
        let args = Value::Table(vec![("argv".to_string(), args)]);
        cx.beside_pool(
            &pool,
            move |e, counter| e.program(counter, !read_only),
            |mut guest| program::run(&text, &args, limits, &mut guest),
        )
    }
}
