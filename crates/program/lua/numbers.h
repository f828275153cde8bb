/*
 * Numbers of channel programs: whole, of 64 bits, and they wrap around. The compiler includes this
 * file before every file of Lua, so that it follows luaconf.h and replaces what that defines.
 */
#ifndef weir_numbers_h
#define weir_numbers_h

#include <inttypes.h>
#include <stdint.h>

/* C calls and nested blocks, as in OpenZFS (module/lua/llimits.h). */
#define LUAI_MAXCCALLS 20

#include "luaconf.h"

#undef LUA_NUMBER_DOUBLE
#undef LUA_NUMBER
#undef LUAI_UACNUMBER
#undef LUA_NUMBER_SCAN
#undef LUA_NUMBER_FMT
#undef lua_str2number
#undef lua_strx2number
#undef LUA_INTEGER
#undef LUA_UNSIGNED
#undef LUA_IEEE754TRICK
#undef LUA_IEEELL
#undef LUA_IEEEENDIAN
#undef LUA_NANTRICK
#undef LUAL_BUFFERSIZE

#define LUA_NUMBER int64_t
#define LUAI_UACNUMBER int64_t
#define LUA_NUMBER_SCAN "%" SCNd64
#define LUA_NUMBER_FMT "%" PRId64
#define LUA_INTEGER int64_t
#define LUA_UNSIGNED uint64_t
#define LUAL_BUFFERSIZE 512

/* `print` is not there. */
#undef luai_writestring
#undef luai_writeline
#define luai_writestring(s, l) ((void)(s), (void)(l))
#define luai_writeline() ((void)0)

struct lua_State;
int64_t weir_decimal(const char *text, char **end);
int64_t weir_hexadecimal(const char *text, char **end);
int64_t weir_power(int64_t base, int64_t exponent);
int64_t weir_quotient(struct lua_State *L, int64_t a, int64_t b);
int64_t weir_modulo(struct lua_State *L, int64_t a, int64_t b);
int weir_hash(int64_t n);

#define lua_str2number(s, p) weir_decimal((s), (p))
#define lua_strx2number(s, p) weir_hexadecimal((s), (p))

#define luai_numadd(L, a, b) ((a) + (b))
#define luai_numsub(L, a, b) ((a) - (b))
#define luai_nummul(L, a, b) ((a) * (b))
#define luai_numdiv(L, a, b) weir_quotient((L), (a), (b))
#define luai_nummod(L, a, b) weir_modulo((L), (a), (b))
#define luai_numpow(L, a, b) weir_power((a), (b))
#define luai_numunm(L, a) (-(a))
#define luai_numeq(a, b) ((a) == (b))
#define luai_numlt(L, a, b) ((a) < (b))
#define luai_numle(L, a, b) ((a) <= (b))
#define luai_numisnan(L, a) 0
#define luai_hashnum(i, n) ((i) = weir_hash(n))

#endif
