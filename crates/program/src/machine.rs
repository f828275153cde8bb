//! A run of a program, from its text to what it returns.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};

use crate::args::FUNCTIONS;
use crate::call::{Answer, Call, Host};
use crate::errno::NAMES;
use crate::ffi::{self, Run, State};
use crate::value::{Value, text_at};

/// Instructions without an option (`ZCP_DEFAULT_INSTRLIMIT`).
const INSTRUCTIONS_DEFAULT: u64 = 10_000_000;
/// The most that an option may allow (`ZCP_MAX_INSTRLIMIT`).
const INSTRUCTIONS_MAX: u64 = 10 * INSTRUCTIONS_DEFAULT;
/// Bytes of memory without an option (`ZCP_DEFAULT_MEMLIMIT`).
const MEMORY_DEFAULT: u64 = 10 << 20;
/// The most that an option may allow (`ZCP_MAX_MEMLIMIT`).
const MEMORY_MAX: u64 = 10 * MEMORY_DEFAULT;
/// Bytes of the lists that a program walks over and has not come to the end of.
const LISTS_MAX: usize = 64 << 20;
/// The function that gives the next item of a list, behind those of [`FUNCTIONS`].
const NEXT: c_int = -1;
const OUT_OF_MEMORY: c_int = 4;

/// What a program may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Instructions of Lua.
    pub instructions: u64,
    /// Bytes of memory, and of what it returns.
    pub memory: u64,
}

impl Limits {
    /// Those of a program that asks for none.
    pub const USUAL: Limits = Limits { instructions: INSTRUCTIONS_DEFAULT, memory: MEMORY_DEFAULT };
    /// The most, unless tunables say something else.
    pub const MOST: Limits = Limits { instructions: INSTRUCTIONS_MAX, memory: MEMORY_MAX };

    /// Whether a program may have them where `most` is the most.
    pub fn within(&self, most: &Limits) -> bool {
        (1..=most.instructions).contains(&self.instructions) && (1..=most.memory).contains(&self.memory)
    }
}

/// How a program ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum End {
    /// It ran to its end; with what it returned, if anything.
    Returned(Option<Value>),
    /// It does not compile, or stopped with an error, whose text has the calls that led there.
    Failed(String),
    /// As [`End::Failed`], at the limit of instructions; with their number.
    TimedOut(String, u64),
    /// It needs more memory than it may have.
    OutOfMemory,
    /// What it returned is larger than the limit of memory.
    TooLarge,
    /// It did not run: it asked for limits of 0, or above the most.
    BadLimits,
}

/// What the functions of a running program use.
struct Machine<'a> {
    host: &'a mut dyn Host,
    lists: BTreeMap<i64, VecDeque<Vec<Value>>>,
    lists_bytes: usize,
    next_list: i64,
}

/// Runs a program to its end on this thread. `args` is what it gets as `...`.
pub fn run(text: &str, args: &Value, limits: Limits, host: &mut dyn Host) -> End {
    let mut machine = Machine { host, lists: BTreeMap::new(), lists_bytes: 0, next_list: 0 };
    let mut run = Box::new(Run {
        memory_left: i64::try_from(limits.memory).unwrap_or(i64::MAX),
        instructions: 0,
        instructions_max: limits.instructions,
        unlimited: 1,
        timed_out: 0,
        call: entry,
        host: (&raw mut machine).cast(),
    });
    let run: *mut Run = &raw mut *run;
    let Some(state) = ffi::open(run) else { return End::OutOfMemory };
    for (name, number) in NAMES {
        ffi::push_int(state, *number);
        ffi::set_global(state, name);
    }
    push_library(state);
    ffi::set_global(state, "zfs");
    // A text of C ends at its first NUL.
    let text = text.split('\0').next().unwrap_or_default();
    let end = if ffi::load(state, text.as_bytes()) == 0 {
        args.push(state);
        let status = ffi::call(state, run);
        // The handler of errors.
        ffi::remove(state, 1);
        // SAFETY: `run` is the box above, which nothing else uses now.
        let (timed_out, instructions) = unsafe { ((*run).timed_out != 0, (*run).instructions) };
        match status {
            0 => returned(state, limits),
            OUT_OF_MEMORY => End::OutOfMemory,
            _ if timed_out => End::TimedOut(text_at(state, -1), instructions),
            _ => End::Failed(text_at(state, -1)),
        }
    } else {
        End::Failed(text_at(state, -1))
    };
    ffi::close(state);
    end
}

fn returned(state: State, limits: Limits) -> End {
    match ffi::top(state) {
        0 => End::Returned(None),
        1 => match Value::read(state, 1, "return", 0) {
            Ok(value) if value.packed_size("return") > limits.memory => End::TooLarge,
            Ok(value) => End::Returned(Some(value)),
            Err(why) => End::Failed(why),
        },
        _ => End::Failed("Multiple return values not supported".to_string()),
    }
}

/// Pushes the table `zfs`.
fn push_library(state: State) {
    ffi::push_table(state);
    for (group, source, changes) in [("", "", 0), ("list", "list", 0), ("check", "change", 0), ("sync", "change", 1)] {
        if !group.is_empty() {
            ffi::push_text(state, group.as_bytes());
            ffi::push_table(state);
        }
        for (n, function) in (0..).zip(FUNCTIONS).filter(|(_, f)| f.group == source) {
            ffi::push_text(state, function.name.as_bytes());
            ffi::push_function(state, n, changes);
            ffi::raw_set(state, -3);
        }
        if !group.is_empty() {
            ffi::raw_set(state, -3);
        }
    }
}

/// Called by the glue: the number of results, -1 for an error whose text is pushed, -2 for one
/// about the first argument.
unsafe extern "C" fn entry(host: *mut c_void, state: State, function: c_int, extra: c_int) -> c_int {
    // SAFETY: `host` is the machine in `run`, which is on the stack below this call.
    let machine = unsafe { &mut *host.cast::<Machine<'_>>() };
    let done = catch_unwind(AssertUnwindSafe(|| match function {
        NEXT => machine.next(state, extra.into()),
        _ => machine.call(state, function, extra != 0),
    }));
    done.unwrap_or_else(|_| {
        ffi::push_text(state, b"the call failed in the middle: see the log of the daemon");
        -1
    })
}

impl Machine<'_> {
    fn call(&mut self, state: State, function: c_int, changes: bool) -> c_int {
        let Some(known) = usize::try_from(function).ok().and_then(|n| FUNCTIONS.get(n)) else { return 0 };
        let call = match known.call(state, changes) {
            Ok(call) => call,
            Err(why) => return fail(state, &why, -1),
        };
        let is_list = matches!(call, Call::List(..));
        match self.host.call(call) {
            Answer::Values(values) => push_all(state, &values),
            Answer::Items(items) if is_list => self.begin(state, items),
            Answer::Items(_) => 0,
            Answer::Done(number, details) => {
                let mut values = vec![Value::Int(number)];
                values.extend(details);
                push_all(state, &values)
            }
            Answer::Error(why) => fail(state, &why, -1),
            Answer::BadArgument(why) => fail(state, &why, -2),
        }
    }

    /// Pushes the function that walks over these items.
    fn begin(&mut self, state: State, items: Vec<Vec<Value>>) -> c_int {
        self.lists_bytes += size(&items);
        if self.lists_bytes > LISTS_MAX {
            return fail(state, "too many lists are walked over at once", -1);
        }
        let Ok(id) = c_int::try_from(self.next_list) else {
            return fail(state, "too many lists were walked over", -1);
        };
        self.next_list += 1;
        self.lists.insert(id.into(), items.into());
        ffi::push_function(state, NEXT, id);
        1
    }

    /// The next item whose first value is the name of what is there still.
    fn next(&mut self, state: State, id: i64) -> c_int {
        while let Some(list) = self.lists.get_mut(&id) {
            let Some(item) = list.pop_front() else {
                self.lists.remove(&id);
                break;
            };
            self.lists_bytes = self.lists_bytes.saturating_sub(size(std::slice::from_ref(&item)));
            let name = match item.first() {
                Some(Value::Text(name)) if item.len() == 1 => Some(name.clone()),
                _ => None,
            };
            if name.is_none_or(|name| self.host.exists(&name)) {
                return push_all(state, &item);
            }
        }
        0
    }
}

fn size(items: &[Vec<Value>]) -> usize {
    items.iter().flatten().map(|v| v.packed_size("") as usize + 32).sum()
}

fn push_all(state: State, values: &[Value]) -> c_int {
    for value in values {
        value.push(state);
    }
    c_int::try_from(values.len()).unwrap_or(0)
}

fn fail(state: State, why: &str, code: c_int) -> c_int {
    ffi::reserve(state, 2);
    ffi::push_text(state, why.as_bytes());
    code
}
