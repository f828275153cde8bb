#!/usr/bin/env python3
"""Speed of OpenZFS's own fletcher4 (libzpool of Debian's zfsutils-linux), to be set beside `codec_speed`.

Prints GB/s of the best of many short runs over a block, and of 256 MiB that are in memory and no cache.
"""
import ctypes
import ctypes.util
import glob
import os
import time

path = (glob.glob("/lib/*/libzpool.so.5*") + glob.glob("/usr/lib/*/libzpool.so.5*"))[0]
lib = ctypes.CDLL(path)
lib.fletcher_4_init()
sums = (ctypes.c_uint64 * 4)()
native = lib.fletcher_4_native
native.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
native.restype = None


def best(buffer, size, step):
    """GB/s of the best run over `size` bytes in calls of `step`."""
    base = ctypes.addressof(buffer)
    top = 0.0
    for _ in range(30):
        begin = time.perf_counter()
        for at in range(0, size, step):
            native(base + at, step, None, sums)
        top = max(top, size / (time.perf_counter() - begin) / 1e9)
    return top


small = ctypes.create_string_buffer(os.urandom(1 << 20), 1 << 20)
large = ctypes.create_string_buffer(256 << 20)
ctypes.memmove(large, os.urandom(256 << 20), 256 << 20)
print(f"{os.path.basename(path)} fletcher4, 128 KiB in the cache   {best(small, 128 << 10, 128 << 10):8.2f} GB/s")
print(f"{os.path.basename(path)} fletcher4, 1 MiB in the cache     {best(small, 1 << 20, 1 << 20):8.2f} GB/s")
print(f"{os.path.basename(path)} fletcher4, 256 MiB in memory      {best(large, 256 << 20, 1 << 20):8.2f} GB/s")
