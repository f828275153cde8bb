#!/usr/bin/env python3
"""What sharing of blocks costs: fresh data with dedup=on beside plain data, and `cp` of a large file.

    docs/bench-sharing.py WEIR FOLDER [ROUNDS [MIB [CP_GIB]]]

In a pool on an image in FOLDER, with file systems `plain` and `dedup`, each round writes a file of MIB
MiB (1024) of random bytes to both, the one that is first in turn, and waits for it (`fsync`); the ratio
of each round is printed, and the median of them. Then a file of CP_GIB GiB (10) is copied with `cp`,
which clones it: seconds, and bytes that the pool allocated for it.
"""
import os, statistics, subprocess, sys, time
from bench_pool import Pool


def written(path, mib, data):
    """Seconds in which `mib` MiB are written to a new file, made of differing pieces of `data`."""
    start = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for n in range(mib):
            # A shift and a number make each block one of its own, and cost next to nothing.
            file.write(data[n % 4096 : n % 4096 + (1 << 20) - 8] + n.to_bytes(8, "little"))
        os.fsync(file.fileno())
    return time.monotonic() - start


def settled(pool, allocated):
    """What is allocated once txgs do not change it: blocks without references wait in the log of the table."""
    before = None
    for _ in range(100):
        pool.weir("zpool sync -f tank")
        now = allocated()
        if before is not None and abs(now - before) < 1 << 20:
            break
        before = now
    return now


def main():
    weir, folder = sys.argv[1:3]
    rounds, mib, gib = (int(n) for n in (sys.argv[3:] + ["3", "1024", "10"][len(sys.argv) - 3 :]))
    with Pool(weir, folder, "sharing", max(2 * mib, 1024 * gib) + 3072) as pool:
        pool.create()
        pool.weir("zfs create tank/plain")
        pool.weir("zfs create -o dedup=on -o checksum=sha256 tank/dedup")
        ratios = []
        for n in range(rounds):
            took = {}
            for name in ("plain", "dedup")[:: 1 if n % 2 == 0 else -1]:
                data = os.urandom((1 << 20) + 4096)
                took[name] = written(f"{pool.mnt}/{name}/file", mib, data)
                pool.weir("zpool sync tank")
                os.unlink(f"{pool.mnt}/{name}/file")
                pool.weir("zpool sync tank")
                pool.weir("zpool wait -t free tank")
            ratios.append(took["plain"] / took["dedup"])
            rates = {name: f"{mib / secs:.0f} MiB/s" for name, secs in took.items()}
            print(f"round {n}: {rates}, dedup is {ratios[-1]:.2f} of plain", flush=True)
        print(f"median {statistics.median(ratios):.2f}")
        big, copy = f"{pool.mnt}/plain/big", f"{pool.mnt}/plain/copy"
        written(big, 1024 * gib, os.urandom((1 << 20) + 4096))
        allocated = lambda: int(pool.weir("zpool get -Hp -o value allocated tank"))
        before = settled(pool, allocated)
        start = time.monotonic()
        subprocess.run(["cp", big, copy], check=True)
        secs = time.monotonic() - start
        print(f"cp of {gib} GiB: {secs:.2f} s, {(settled(pool, allocated) - before) >> 10} KiB more allocated")
        subprocess.run(["cmp", big, copy], check=True)


main()
