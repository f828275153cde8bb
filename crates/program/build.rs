//! Builds Lua 5.2 of the crate `lua-src` with whole numbers (`lua/numbers.h`), and the few C
//! functions that raise errors (`lua/glue.c`).
#![allow(unsafe_code)]

use std::env;
use std::path::Path;

fn main() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let numbers = dir.join("numbers.h");
    println!("cargo:rerun-if-changed=lua");
    let given = env::var("CFLAGS").unwrap_or_default();
    let flags = format!("{given} -fwrapv -include '{}'", numbers.display());
    // SAFETY: this process has one thread. `cc` reads the flags from here, and `lua-src` has no
    // other way to give some.
    unsafe {
        env::set_var("CC_SHELL_ESCAPED_FLAGS", "1");
        env::set_var("CFLAGS", flags);
    }
    let lua = lua_src::Build::new().debug(false).build(lua_src::Lua52);
    cc::Build::new().file(dir.join("glue.c")).include(lua.include_dir()).compile("weir_glue");
    lua.print_cargo_metadata();
    println!("cargo:rustc-link-lib=m");
}
