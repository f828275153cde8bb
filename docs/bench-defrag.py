#!/usr/bin/env python3
"""Whether `weir defrag plan` predicts how fast the files of an aged pool are read, and what
`weir defrag run` brings.

    docs/bench-defrag.py target/release/weir FOLDER [MIB [ROUNDS [MODEL]]]

As root. FOLDER takes the image of a pool of MIB MiB (4096), which is measured first (`weir lab
calibrate`) unless MODEL is given. The pool is filled with files of 64 MiB to 80 %, and records of
128 KiB of them are overwritten at random, ROUNDS times (3) as many as there are. Then: the plan; the
files of the plan read from begin to end, one after the other, with an empty cache; the rewrite; the
same read again. A line each for before and after: predicted, measured, and their ratio, wanted from
0.75 to 1.25; and one for a file that was never overwritten, read in the same way.
"""
import json, os, random, sys, time

from bench_pool import Pool

FILE_MIB, RECORD = 64, 128 << 10


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    mib, rounds = [int(a) for a in sys.argv[3:5]] + [4096, 3][len(sys.argv[3:5]):]
    with Pool(sys.argv[1], sys.argv[2], "bench-defrag", mib) as pool:
        pool.calibrate(*sys.argv[5:6])
        pool.create()
        files = age(pool.mnt, mib * 80 // 100, rounds)
        pool.weir("zpool sync")
        of_pool = f"--model {pool.model} -p {pool.folder} tank"
        plan = json.loads(pool.weir(f"defrag plan -q --json --min-gain 0% {of_pool}", (0, 1)))
        paths = [pool.mnt + "/" + file["path"].lstrip("/") for file in plan["files"]]
        if not paths:
            sys.exit("the plan is empty: nothing to measure")
        print(f"{len(paths)} of {len(files)} files are in the plan", flush=True)
        show("before", plan["read"]["now_bytes_per_s"], cold(pool, paths))
        with open(f"{pool.folder}/plan.json", "w") as out:
            json.dump(plan, out)
        pool.weir(f"defrag run -q --share 100% --plan {pool.folder}/plan.json {of_pool}", (0, 1))
        pool.weir("zpool sync")
        show("after", plan["read"]["after_bytes_per_s"], cold(pool, paths))
        show("never overwritten", None, cold(pool, [f"{pool.mnt}/whole"]))


def cold(pool, paths):
    """Bytes a second of reading these files with nothing in any cache."""
    pool.empty_caches()
    begin, bytes_read = time.monotonic(), 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while part := file.read(1 << 20):
                bytes_read += len(part)
    return bytes_read / (time.monotonic() - begin)


def age(mnt, mib, rounds):
    """Files of that many MiB in all, of which all but one are overwritten at random."""
    random.seed(1)
    data = os.urandom(8 << 20)
    piece = lambda: memoryview(data)[(at := random.randrange(len(data) - RECORD)):at + RECORD]
    paths = [f"{mnt}/f{n}" for n in range(mib // FILE_MIB - 1)]
    for path in [f"{mnt}/whole", *paths]:
        with open(path, "wb", buffering=0) as file:
            for _ in range(FILE_MIB << 20 >> 17):
                file.write(piece())
    files = [open(path, "r+b", buffering=0) for path in paths]
    for _ in range(rounds * len(files) * (FILE_MIB << 20 >> 17)):
        file = random.choice(files)
        file.seek(random.randrange(FILE_MIB << 20 >> 17) * RECORD)
        file.write(piece())
    for file in files:
        file.close()
    return paths


def show(what, predicted, measured):
    rate = f"{measured / 1e6:.0f} MB/s measured"
    if predicted is not None:
        ratio = predicted / measured
        rate += f", {predicted / 1e6:.0f} MB/s predicted, ratio {ratio:.2f}, "
        rate += "agrees" if 0.75 <= ratio <= 1.25 else "differs"
    print(f"{what}: {rate}", flush=True)


if __name__ == "__main__":
    main()
