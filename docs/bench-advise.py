#!/usr/bin/env python3
"""Whether the settings of `weir advise` help a real pool: four loads, with the defaults and with what
is advised for them, in pairs.

    docs/bench-advise.py target/release/weir FOLDER [PAIRS [SECONDS [MIB [MODEL]]]]

As root; needs fio. FOLDER takes the image of the pool, of 8 times MIB MiB. First a model of its
device is made (`weir lab calibrate`) unless MODEL is given. Each load then runs on a new pool with the defaults, where
`weir advise` records it for SECONDS and searches for its goal. Then come PAIRS pairs of runs, in the
order A B B A A B ...: a new pool each, with the defaults (A) or with the advised settings (B), which
are made before the files are; the pool is exported and imported before the load, so the caches are
empty. A line for each load has the median of the pairs' ratios of the goal's measure, advised to
default, the least and the largest; below 1 is better for a latency, above 1 for a rate. If the
answer was "Leave it", B is the best that was found and not advised: the ratios tell whether leaving
it is right. The first line of a load says what the answer was.
"""
import json, shlex, statistics, sys

from bench_pool import Pool, fio_figures

SYNC = "--rw=randwrite --bs=8k --sync=dsync --numjobs=8 --size={small}m"
BULK = "--name=bulk --rw=write --bs=1m --size={large}m"
READ = "--name=reads --rw=randread --bs=4k --numjobs=4 --size={small}m --thinktime=2000"
# Name, goal, jobs of fio, and what counts: kind, figure.
LOADS = [
    ("sync", "write p99", [f"--name=sync {SYNC}"], ("write", "p99")),
    ("bulk", "read p99", [BULK, READ], ("read", "p99")),
    ("random", "throughput", ["--name=random --rw=randwrite --bs=8k --numjobs=2 --size={large}m"], ("write", "iops")),
    ("stream", "bytes", ["--name=stream --rw=read --bs=128k --numjobs=8 --size={small}m"], ("read", "bw_bytes")),
]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    pairs, seconds, mib = [int(a) for a in sys.argv[3:6]] + [6, 30, 512][len(sys.argv[3:6]):]
    with Pool(sys.argv[1], sys.argv[2], "bench-advise", 8 * mib) as pool:
        pool.calibrate(*sys.argv[6:7])
        for name, goal, jobs, counts in LOADS:
            jobs = " ".join(jobs).format(large=mib, small=max(mib // 8, 8))
            load(pool, name, goal, jobs, counts, pairs, seconds)


def fresh(pool, jobs, settings):
    """A new pool with these settings and the files of the jobs, and nothing in its caches."""
    pool.create()
    for line in settings:
        pool.weir(line.removeprefix("weir "))
    fio_figures(pool.fio(jobs, 0))
    pool.empty_caches()
    for line in settings:
        if " tune " in line:
            pool.weir(line.removeprefix("weir "))


def measure(pool, jobs, settings, counts, seconds):
    fresh(pool, jobs, settings)
    out = fio_figures(pool.fio(jobs, seconds))
    for line in settings:
        # What is set for a name would hold for the next pool of it.
        if " tune " in line:
            pool.weir(line.removeprefix("weir ").rpartition("=")[0] + "=default")
    pool.weir("zpool destroy -f tank")
    kind, figure = counts
    of = [job[kind] for job in out["jobs"] if job[kind]["total_ios"] > 0]
    return of[0]["clat_ns"]["percentile"]["99.000000"] / 1000 if figure == "p99" else sum(j[figure] for j in of)


def advice(pool, jobs, goal, seconds):
    """What is advised; else what was found and not advised; and the answer in words."""
    fresh(pool, jobs, [])
    running = pool.fio(jobs, seconds + 6)
    said = json.loads(pool.weir(f"advise -s {seconds} --goal {shlex.quote(goal)} --model {pool.model} --json tank"))
    fio_figures(running)
    pool.weir("zpool destroy -f tank")
    words = " ".join(said["sentences"] + said["notes"])
    if said["answer"] == "change":
        return True, [line.replace("set --save", "set") for line in said["commands"]], words
    found = said["advice"]["best_found"]
    names = [] if found == "as it is" else found.split()
    line = lambda n: f"weir zfs set {n} tank" if n.split("=")[0] in ("recordsize", "logbias") else f"weir tune set -p tank {n}"
    return False, [line(n) for n in names if not n.startswith("layout=")], words


def load(pool, name, goal, jobs, counts, pairs, seconds):
    advised, settings, words = advice(pool, jobs, goal, seconds)
    print(f"\n{name}, goal {goal}: {words}", flush=True)
    if not settings:
        print(f"{name}: nothing to measure")
        return
    print(f"{name}: B is {'' if advised else 'the best that was found and not advised: '}{'; '.join(settings)}", flush=True)
    ratios = []
    for n in range(pairs):
        order = [[], settings] if n % 2 == 0 else [settings, []]
        values = [measure(pool, jobs, these, counts, seconds) for these in order]
        a, b = values if n % 2 == 0 else values[::-1]
        ratios.append(b / a)
        print(f"  {name} {n + 1}: A {a:.0f}, B {b:.0f}, ratio {b / a:.3f}", flush=True)
    better = "below" if counts[1] == "p99" else "above"
    print(f"{name}: {'advised' if advised else 'not advised'}, ratio {statistics.median(ratios):.3f} "
          f"({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs; {better} 1 is better)", flush=True)


if __name__ == "__main__":
    main()
