//! The functions of Lua and of `lua/glue.c` that this crate calls, each behind a safe one.
//!
//! They are safe under the invariants of the crate: a [`State`] lives as long as its
//! [`Machine`](crate::machine) runs, is used by one thread, and allocates without a limit whenever
//! Rust calls it, so that no function below raises an error.

use std::ffi::{CString, c_char, c_int, c_void};

/// A state of Lua.
pub(crate) type State = *mut c_void;

pub(crate) const NIL: c_int = 0;
pub(crate) const BOOLEAN: c_int = 1;
pub(crate) const NUMBER: c_int = 3;
pub(crate) const STRING: c_int = 4;
pub(crate) const TABLE: c_int = 5;

/// What the glue and the allocator know of a run (`struct weir_run`).
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) memory_left: i64,
    pub(crate) instructions: u64,
    pub(crate) instructions_max: u64,
    pub(crate) unlimited: i32,
    pub(crate) timed_out: i32,
    pub(crate) call: unsafe extern "C" fn(*mut c_void, State, c_int, c_int) -> c_int,
    pub(crate) host: *mut c_void,
}

unsafe extern "C" {
    fn lua_close(l: State);
    fn lua_gettop(l: State) -> c_int;
    fn lua_settop(l: State, index: c_int);
    fn lua_absindex(l: State, index: c_int) -> c_int;
    fn lua_checkstack(l: State, more: c_int) -> c_int;
    fn lua_remove(l: State, index: c_int);
    fn lua_type(l: State, index: c_int) -> c_int;
    fn lua_toboolean(l: State, index: c_int) -> c_int;
    fn lua_tointegerx(l: State, index: c_int, is: *mut c_int) -> i64;
    fn lua_tolstring(l: State, index: c_int, len: *mut usize) -> *const c_char;
    fn lua_pushnil(l: State);
    fn lua_pushboolean(l: State, b: c_int);
    fn lua_pushinteger(l: State, n: i64);
    fn lua_pushlstring(l: State, s: *const c_char, len: usize) -> *const c_char;
    fn lua_createtable(l: State, list: c_int, others: c_int);
    fn lua_rawset(l: State, index: c_int);
    fn lua_rawget(l: State, index: c_int);
    fn lua_next(l: State, index: c_int) -> c_int;
    fn lua_setglobal(l: State, name: *const c_char);
    fn weir_push_function(l: State, function: c_int, changes: c_int);
    fn weir_open(run: *mut Run) -> State;
    fn weir_load(l: State, text: *const c_char, len: usize) -> c_int;
    fn weir_run(l: State, run: *mut Run) -> c_int;
}

/// A new state; `run` stays where it is until [`close`].
pub(crate) fn open(run: *mut Run) -> Option<State> {
    // SAFETY: `run` is whole, and outlives the state.
    let state = unsafe { weir_open(run) };
    (!state.is_null()).then_some(state)
}

macro_rules! safe {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $call:expr;)*) => {
        $($(#[$doc])* pub(crate) fn $name(state: State, $($arg: $ty),*) $(-> $ret)? {
            // SAFETY: see the comment at the head of the file.
            unsafe { $call(state, $($arg),*) }
        })*
    };
}

safe! {
    /// Ends a state.
    close() = lua_close;
    /// The number of values on the stack.
    top() -> c_int = lua_gettop;
    /// Cuts the stack or fills it with nil.
    set_top(index: c_int) = lua_settop;
    /// The index from the bottom.
    absolute(index: c_int) -> c_int = lua_absindex;
    /// Removes a value.
    remove(index: c_int) = lua_remove;
    /// The type of a value; -1 for none.
    kind(index: c_int) -> c_int = lua_type;
    /// Pushes nil.
    push_nil() = lua_pushnil;
    /// Pushes a number.
    push_int(n: i64) = lua_pushinteger;
    /// Replaces a key on the stack with its value, without metatables.
    raw_get(index: c_int) = lua_rawget;
    /// Sets the key and value on the stack, without metatables.
    raw_set(index: c_int) = lua_rawset;
    /// Pushes a function of the library.
    push_function(function: c_int, changes: c_int) = weir_push_function;
}

pub(crate) fn reserve(state: State, more: c_int) -> bool {
    // SAFETY: see the comment at the head of the file.
    unsafe { lua_checkstack(state, more) != 0 }
}

pub(crate) fn pop(state: State, n: c_int) {
    set_top(state, -n - 1);
}

pub(crate) fn push_bool(state: State, b: bool) {
    // SAFETY: see the comment at the head of the file.
    unsafe { lua_pushboolean(state, c_int::from(b)) }
}

pub(crate) fn push_text(state: State, text: &[u8]) {
    // SAFETY: Lua copies the bytes.
    unsafe { lua_pushlstring(state, text.as_ptr().cast(), text.len()) };
}

pub(crate) fn push_table(state: State) {
    // SAFETY: see the comment at the head of the file.
    unsafe { lua_createtable(state, 0, 0) }
}

pub(crate) fn to_bool(state: State, index: c_int) -> bool {
    // SAFETY: see the comment at the head of the file.
    unsafe { lua_toboolean(state, index) != 0 }
}

pub(crate) fn to_int(state: State, index: c_int) -> i64 {
    // SAFETY: Lua takes a null pointer for a result that is not wanted.
    unsafe { lua_tointegerx(state, index, std::ptr::null_mut()) }
}

/// The bytes of a string; empty for other types, which Lua would convert in place.
pub(crate) fn to_text(state: State, index: c_int) -> Vec<u8> {
    if kind(state, index) != STRING {
        return Vec::new();
    }
    let mut len = 0;
    // SAFETY: a string stays where it is while it is on the stack, and is copied at once.
    unsafe {
        let text = lua_tolstring(state, index, &raw mut len);
        std::slice::from_raw_parts(text.cast::<u8>(), len).to_vec()
    }
}

/// Replaces a key on the stack with the next key and value of a table; false at its end. The key
/// must be one of the table, or nil.
pub(crate) fn next(state: State, index: c_int) -> bool {
    // SAFETY: see the comment at the head of the file; such a key raises no error.
    unsafe { lua_next(state, index) != 0 }
}

/// Takes the value on the stack as a global variable.
pub(crate) fn set_global(state: State, name: &str) {
    let name = CString::new(name).expect("names have no NUL");
    // SAFETY: Lua copies the name.
    unsafe { lua_setglobal(state, name.as_ptr()) }
}

/// Compiles a program; its function or the text of an error is pushed. 0 for success.
pub(crate) fn load(state: State, text: &[u8]) -> c_int {
    // SAFETY: Lua copies what it needs.
    unsafe { weir_load(state, text.as_ptr().cast(), text.len()) }
}

/// Runs a function with one argument. 0 for success.
pub(crate) fn call(state: State, run: *mut Run) -> c_int {
    // SAFETY: `run` is that of the state.
    unsafe { weir_run(state, run) }
}

/// The name of a type.
pub(crate) fn kind_name(kind: c_int) -> &'static str {
    match kind {
        -1 => "no value",
        0 => "nil",
        1 => "boolean",
        3 => "number",
        4 => "string",
        5 => "table",
        6 => "function",
        8 => "thread",
        _ => "userdata",
    }
}
