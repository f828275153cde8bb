#!/usr/bin/env python3
"""Whether a replay tells what a pool does: loads are recorded on a real pool, replayed on a model of
its disk, and both are put side by side; then with another value of a tunable in both worlds.

    docs/bench-replay.py target/release/weir FOLDER [SECONDS [MIB [MODEL]]]

As root; needs fio. FOLDER takes the image of the pool, of 8 times MIB MiB (512), which is measured
first (`weir lab calibrate`) unless MODEL is given. Each load, after the rows of `cargo xtask
bench-fs`, runs for SECONDS (15) on a pool with an empty cache, while it is recorded. A line for each
figure that is judged: the time of all operations, within 15 %, the median of a kind of operations,
within 25 %, and its 99th percentile, within a factor of two; only kinds with 100 operations count.

Then each of five tunables is changed for a load that it matters for: the ratio of a figure with the
changed value to that without, real (recorded on a pool with either) and predicted (the replay of the
recording without, with either). They agree if both ratios are on the same side of 1, or both within
5 % of it.
"""
import json, subprocess, sys, time

from bench_pool import Pool, fio_figures

LOADS = {
    "seq-write": "--rw=write --bs=1m --size={large}m",
    "seq-read": "--rw=read --bs=1m --size={large}m",
    "rand-read": "--rw=randread --bs=8k --numjobs=8 --filename=one --size={large}m",
    "overwrite": "--rw=randwrite --bs=8k --numjobs=8 --filename=one --size={large}m",
    "sync-1": "--rw=write --bs=8k --sync=dsync --size=8m",
    "sync-8": "--rw=write --bs=8k --sync=dsync --numjobs=8 --size=8m",
    "sync-64": "--rw=write --bs=8k --sync=dsync --numjobs=64 --size=8m",
}
RECORD = {"rand-read": "8k", "overwrite": "8k"}
# Tunable, changed value, load, kind of operations, figure.
CHANGES = [
    ("zfs_dirty_data_max", "16777216", "seq-write", "write", "mean_us"),
    ("zfs_txg_timeout", "1", "overwrite", "write", "mean_us"),
    ("zfs_vdev_max_active", "1", "rand-read", "read", "mean_us"),
    ("zfs_arc_max", "67108864", "rand-read", "read", "mean_us"),
    ("zil_maxblocksize", "16384", "sync-64", "write", "p50_us"),
]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    seconds, mib = [int(a) for a in sys.argv[3:5]] + [15, 512][len(sys.argv[3:5]):]
    with Pool(sys.argv[1], sys.argv[2], "bench-replay", 8 * mib) as pool:
        pool.calibrate(*sys.argv[5:6])
        fit = [load(pool, name, seconds, mib) for name in LOADS]
        print(f"{sum(a for a, _ in fit)} of {sum(b for _, b in fit)} figures fit", flush=True)
        same = [change(pool, seconds, mib, *each) for each in CHANGES]
        print(f"{sum(same)} of {len(same)} changes go the same way")


def record(pool, name, seconds, mib, tunable=None):
    """Runs a load on a new pool while it is recorded; the recording."""
    out = f"{pool.folder}/{name}{'-changed' if tunable else ''}.rec"
    job = "--name=job " + LOADS[name].format(large=mib)
    pool.weir("tune set zfs_dirty_data_max=67108864")
    pool.weir("tune set zfs_arc_max=134217728")
    if tunable:
        pool.weir(f"tune set {tunable[0]}={tunable[1]}")
    pool.create(f"-O recordsize={RECORD.get(name, '128k')}")
    fio_figures(pool.fio(job, 0))
    pool.empty_caches()
    recorder = subprocess.Popen([pool.program, "trace", "record", "-o", out, "tank"], env=pool.env,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    fio_figures(pool.fio(job, seconds))
    recorder.send_signal(2)
    recorder.wait()
    pool.weir("zpool destroy -f tank")
    if tunable:
        pool.weir(f"tune set {tunable[0]}=default")
    return out


def replay(pool, recording, tunable=None):
    more = f"--tunable {tunable[0]}={tunable[1]}" if tunable else ""
    return json.loads(pool.weir(f"lab replay --json --model {pool.model} {more} {recording}"))


def load(pool, name, seconds, mib):
    """Prints the figures of a load; how many fit, of how many."""
    said = replay(pool, record(pool, name, seconds, mib))
    rows = [("time, s", said["recorded_seconds"], said["predicted_seconds"], said["time_fits"])]
    for kind in (k for k in said["kinds"] if k["count"] >= 100):
        for figure, fits in zip(("p50_us", "p99_us"), kind["fits"]):
            rows.append((f"{kind['kind']} {figure}", kind["recorded"][figure], kind["predicted"][figure], fits))
    for what, real, predicted, fits in rows:
        print(f"{name:10} {what:16} {real:10.1f} {predicted:10.1f} {predicted / max(real, 0.001):6.2f}"
              f"  {'agrees' if fits else 'differs'}", flush=True)
    if said["lost"]:
        print(f"{name:10} {said['lost']} operations were lost")
    return sum(row[3] for row in rows), len(rows)


def change(pool, seconds, mib, tunable, value, name, kind, figure):
    """Whether a tunable moves a figure of a load the same way on the pool and in replays."""
    of = lambda said, side: next(k for k in said["kinds"] if k["kind"] == kind)[side][figure]
    recordings = [record(pool, name, seconds, mib, t) for t in (None, (tunable, value))]
    real = [of(replay(pool, r), "recorded") for r in recordings]
    predicted = [of(replay(pool, recordings[0], t), "predicted") for t in (None, (tunable, value))]
    a, b = real[1] / real[0], predicted[1] / predicted[0]
    same = (a - 1) * (b - 1) > 0 or max(abs(a - 1), abs(b - 1)) <= 0.05
    print(f"{tunable}={value}, {name}, {kind} {figure}: real {real[0]:.1f} to {real[1]:.1f}, {a:.2f}; "
          f"predicted {predicted[0]:.1f} to {predicted[1]:.1f}, {b:.2f}: {'the same way' if same else 'not the same'}",
          flush=True)
    return same


if __name__ == "__main__":
    main()
