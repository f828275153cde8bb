/*
 * What stands between Lua and Rust: only C may raise an error of Lua, since that jumps over the
 * frames in between.
 */
#include <stdlib.h>
#include <string.h>

#include "lua.h"
#include "lauxlib.h"
#include "lualib.h"

/* Instructions between two looks at the limit (zfs_lua_check_instrlimit_interval). */
#define HOOK_EVERY 100
/* Bytes before each allocation that hold its size; the first eight count, as in OpenZFS. */
#define HEAD 16
#define COUNTED 8

struct weir_run {
	int64_t memory_left;
	uint64_t instructions;
	uint64_t instructions_max;
	int32_t unlimited;
	int32_t timed_out;
	int (*call)(void *host, lua_State *L, int function, int changes);
	void *host;
};

extern __attribute__((visibility("hidden"), noreturn)) void luaG_runerror(lua_State *L, const char *fmt, ...);

int64_t weir_decimal(const char *s, char **end)
{
	uint64_t value = 0;
	int negative, base = 10;
	const char *first;

	while (*s == ' ' || *s == '\t' || *s == '\n')
		s++;
	negative = *s == '-';
	s += negative;
	/* A leading zero is for octal numbers, as in OpenZFS. */
	if (*s == '0')
		base = 8;
	first = s;
	while (*s >= '0' && *s < '0' + base)
		value = value * base + (uint64_t)(*s++ - '0');
	*end = (char *)s;
	if (s == first && negative)
		*end = (char *)(s - 1);
	return negative ? (int64_t)(0 - value) : (int64_t)value;
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

int64_t weir_hexadecimal(const char *s, char **end)
{
	uint64_t value = 0;
	int negative;

	*end = (char *)s;
	while (*s == ' ' || *s == '\t' || *s == '\n')
		s++;
	negative = *s == '-';
	if (*s == '-' || *s == '+')
		s++;
	if (s[0] != '0' || (s[1] != 'x' && s[1] != 'X') || digit(s[2]) < 0)
		return 0;
	for (s += 2; digit(*s) >= 0; s++)
		value = value * 16 + (uint64_t)digit(*s);
	*end = (char *)s;
	return negative ? (int64_t)(0 - value) : (int64_t)value;
}

int64_t weir_power(int64_t base, int64_t exponent)
{
	uint64_t x = (uint64_t)base, result = 1;

	if (exponent < 0)
		return 0;
	for (; exponent != 0; exponent >>= 1, x *= x)
		if (exponent & 1)
			result *= x;
	return (int64_t)result;
}

/* Rounds down. Without a state (constants that are folded) the divisor is not 0. */
int64_t weir_quotient(lua_State *L, int64_t a, int64_t b)
{
	if (b == 0 && L != NULL)
		luaG_runerror(L, "attempt to divide by zero");
	if (b == 0)
		return 0;
	if (b == -1)
		return (int64_t)(0 - (uint64_t)a);
	return a / b - (a % b != 0 && (a ^ b) < 0);
}

int64_t weir_modulo(lua_State *L, int64_t a, int64_t b)
{
	int64_t rest;

	if (b == 0 && L != NULL)
		luaG_runerror(L, "attempt to perform 'n%%0'");
	if (b == 0 || b == -1)
		return 0;
	rest = a % b;
	return rest != 0 && (rest ^ b) < 0 ? rest + b : rest;
}

int weir_hash(int64_t n)
{
	uint64_t x = (uint64_t)n;

	x ^= x >> 32;
	x *= 0x9e3779b97f4a7c15u;
	return (int)((x >> 33) & 0x7fffffff);
}

static void *weir_alloc(void *ud, void *old, size_t old_size, size_t size)
{
	struct weir_run *run = ud;
	char *new;

	if (size == 0) {
		if (old != NULL) {
			char *start = (char *)old - HEAD;
			run->memory_left += *(int64_t *)start;
			free(start);
		}
		return NULL;
	}
	/* Lua relies on shrinking never failing. */
	if (old != NULL && size <= old_size)
		return old;
	if (size > INT64_MAX / 2)
		return NULL;
	if (!run->unlimited && (int64_t)(size + COUNTED) > run->memory_left)
		return NULL;
	new = malloc(size + HEAD);
	if (new == NULL)
		return NULL;
	run->memory_left -= (int64_t)(size + COUNTED);
	*(int64_t *)new = (int64_t)(size + COUNTED);
	if (old != NULL) {
		memcpy(new + HEAD, old, old_size);
		weir_alloc(ud, old, old_size, 0);
	}
	return new + HEAD;
}

static struct weir_run *run_of(lua_State *L)
{
	void *ud;

	lua_getallocf(L, &ud);
	return ud;
}

static void weir_hook(lua_State *L, lua_Debug *ar)
{
	struct weir_run *run = run_of(L);

	(void) ar;
	run->instructions += HOOK_EVERY;
	if (run->instructions_max != 0 && run->instructions > run->instructions_max) {
		run->timed_out = 1;
		lua_pushstring(L, "Channel program timed out.");
		lua_error(L);
	}
}

static int weir_trace(lua_State *L)
{
	luaL_traceback(L, L, lua_tostring(L, 1), 1);
	return 1;
}

/* A function of the library `zfs`. Rust leaves results, or the text of an error. */
static int weir_dispatch(lua_State *L)
{
	struct weir_run *run = run_of(L);
	int32_t unlimited = run->unlimited;
	int n;

	run->unlimited = 1;
	n = run->call(run->host, L, (int)lua_tointeger(L, lua_upvalueindex(1)),
	    (int)lua_tointeger(L, lua_upvalueindex(2)));
	run->unlimited = unlimited;
	if (n == -2)
		return luaL_argerror(L, 1, lua_tostring(L, -1));
	if (n < 0) {
		luaL_where(L, 1);
		lua_insert(L, -2);
		lua_concat(L, 2);
		return lua_error(L);
	}
	return n;
}

/* No finalizers: they would run without the limit on instructions. */
static int weir_setmetatable(lua_State *L)
{
	int t = lua_type(L, 2);

	luaL_checktype(L, 1, LUA_TTABLE);
	luaL_argcheck(L, t == LUA_TNIL || t == LUA_TTABLE, 2, "nil or table expected");
	if (t == LUA_TTABLE) {
		lua_pushliteral(L, "__gc");
		lua_rawget(L, 2);
		luaL_argcheck(L, lua_isnil(L, -1), 2, "finalizers are not supported");
		lua_pop(L, 1);
	}
	if (luaL_getmetafield(L, 1, "__metatable"))
		return luaL_error(L, "cannot change a protected metatable");
	lua_settop(L, 2);
	lua_setmetatable(L, 1);
	return 1;
}

void weir_push_function(lua_State *L, int function, int changes)
{
	lua_pushinteger(L, function);
	lua_pushinteger(L, changes);
	lua_pushcclosure(L, weir_dispatch, 2);
}

/* A new state with the libraries of channel programs, and the handler of errors on its stack. */
lua_State *weir_open(struct weir_run *run)
{
	static const char *const absent[] =
	    { "dofile", "loadfile", "load", "loadstring", "pcall", "print", "xpcall", NULL };
	lua_State *L = lua_newstate(weir_alloc, run);
	int i;

	if (L == NULL)
		return NULL;
	luaopen_base(L);
	lua_settop(L, 0);
	for (i = 0; absent[i] != NULL; i++) {
		lua_pushnil(L);
		lua_setglobal(L, absent[i]);
	}
	lua_pushcfunction(L, weir_setmetatable);
	lua_setglobal(L, "setmetatable");
	luaopen_coroutine(L);
	lua_setglobal(L, LUA_COLIBNAME);
	luaopen_string(L);
	lua_pushnil(L);
	lua_setfield(L, -2, "dump");
	lua_setglobal(L, LUA_STRLIBNAME);
	luaopen_table(L);
	lua_setglobal(L, LUA_TABLIBNAME);
	lua_settop(L, 0);
	lua_pushcfunction(L, weir_trace);
	return L;
}

/* Compiles a program, whose function or error goes to the stack. */
int weir_load(lua_State *L, const char *text, size_t len)
{
	return luaL_loadbufferx(L, text, len, "channel program", "t");
}

/* Runs the function below its argument. */
int weir_run(lua_State *L, struct weir_run *run)
{
	int status;

	lua_sethook(L, weir_hook, LUA_MASKCOUNT, HOOK_EVERY);
	run->unlimited = 0;
	status = lua_pcall(L, 1, LUA_MULTRET, 1);
	run->unlimited = 1;
	lua_sethook(L, NULL, 0, 0);
	return status;
}
