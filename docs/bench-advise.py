#!/usr/bin/env python3
"""Whether the settings of `weir advise` help a real pool: four loads, with the defaults and with what
is advised for them, in pairs.

    docs/bench-advise.py target/release/weir FOLDER [PAIRS [SECONDS [MIB]]]

As root; needs fio. FOLDER takes the image of the pool, of 8 times MIB MiB. First a model of its
device is made (`weir lab calibrate`). Each load then runs on a new pool with the defaults, where
`weir advise` records it for SECONDS and searches for its goal. Then come PAIRS pairs of runs, in the
order A B B A A B ...: a new pool each, with the defaults (A) or with the advised settings (B), which
are made before the files are; the pool is exported and imported before the load, so the caches are
empty. A line for each load has the median of the pairs' ratios of the goal's measure, advised to
default, the least and the largest; below 1 is better for a latency, above 1 for a rate. If the
answer was "Leave it", B is the best that was found and not advised: the ratios tell whether leaving
it is right. The first line of a load says what the answer was.
"""
import json, os, shlex, shutil, statistics, subprocess, sys, tempfile

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
    weir, parent = os.path.abspath(sys.argv[1]), sys.argv[2]
    pairs, seconds, mib = [int(a) for a in sys.argv[3:]] + [6, 30, 512][len(sys.argv) - 3:]
    folder = tempfile.mkdtemp(prefix="bench-advise-", dir=parent)
    bench = Bench(weir, folder, seconds, mib)
    try:
        bench.weir(f"lab calibrate --size 1G --seconds 2 -o {folder}/model.toml {folder}/calibrated")
        for load in LOADS:
            bench.load(load, pairs)
    finally:
        bench.weir("daemon stop -f", check=False)
        shutil.rmtree(folder, ignore_errors=True)


class Bench:
    def __init__(self, weir, folder, seconds, mib):
        self.program, self.folder, self.seconds = weir, folder, seconds
        self.sizes = {"large": mib, "small": max(mib // 8, 8)}
        self.env = dict(os.environ, WEIR_RUNTIME_DIR=f"{folder}/run", WEIR_STATE_DIR=f"{folder}/state")
        # Blocks of the image exist before it is measured, as those of a disk do.
        self.image = f"{folder}/image"
        with open(self.image, "wb") as file:
            for _ in range(8 * mib):
                file.write(os.urandom(4096) * 256)
            os.fsync(file.fileno())

    def weir(self, line, check=True):
        done = subprocess.run([self.program, *shlex.split(line)], env=self.env, text=True, capture_output=True)
        if check and done.returncode != 0:
            sys.exit(f"weir {line}: {done.stderr}")
        return done.stdout

    def fio(self, jobs, seconds):
        args = [a for job in jobs for a in shlex.split(job.format(**self.sizes))]
        how = ["--output-format=json", "--group_reporting", f"--directory={self.folder}/mnt", "--ioengine=psync",
               "--fallocate=none", "--overwrite=1", "--randrepeat=1", "--allow_mounted_write=1"]
        how += ["--create_only=1"] if seconds == 0 else ["--time_based", f"--runtime={seconds}"]
        return subprocess.Popen(["fio", *how, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def pool(self, jobs, settings):
        """A new pool with these settings and the files of the jobs, and nothing in its caches."""
        tunables = [s for s in settings if " tune " in s]
        self.weir(f"zpool create -f -O compression=off -O atime=off -m {self.folder}/mnt tank {self.image}")
        for line in settings:
            self.weir(line.removeprefix("weir "))
        self.fio(jobs, 0).communicate()
        self.weir("zpool export tank")
        self.weir(f"zpool import -d {self.folder} tank")
        for line in tunables:
            self.weir(line.removeprefix("weir "))

    def measure(self, jobs, settings, counts):
        self.pool(jobs, settings)
        out = json.loads(self.fio(jobs, self.seconds).communicate()[0])
        for line in settings:
            # What is set for a name would hold for the next pool of it.
            if " tune " in line:
                self.weir(line.removeprefix("weir ").rpartition("=")[0] + "=default")
        self.weir("zpool destroy -f tank")
        kind, figure = counts
        of = [job[kind] for job in out["jobs"] if job[kind]["total_ios"] > 0]
        return of[0]["clat_ns"]["percentile"]["99.000000"] / 1000 if figure == "p99" else sum(j[figure] for j in of)

    def advice(self, jobs, goal):
        """What is advised; else what was found and not advised; and the answer in words."""
        self.pool(jobs, [])
        running = self.fio(jobs, self.seconds + 6)
        said = json.loads(self.weir(f"advise -s {self.seconds} --goal {shlex.quote(goal)} "
                                    f"--model {self.folder}/model.toml --json tank"))
        running.communicate()
        self.weir("zpool destroy -f tank")
        words = " ".join(said["sentences"] + said["notes"])
        if said["answer"] == "change":
            return True, [line.replace("set --save", "set") for line in said["commands"]], words
        found = said["advice"]["best_found"]
        names = [] if found == "as it is" else found.split()
        line = lambda n: f"weir zfs set {n} tank" if n.split("=")[0] in ("recordsize", "logbias") else f"weir tune set -p tank {n}"
        return False, [line(n) for n in names if not n.startswith("layout=")], words

    def load(self, load, pairs):
        name, goal, jobs, counts = load
        advised, settings, words = self.advice(jobs, goal)
        print(f"\n{name}, goal {goal}: {words}", flush=True)
        if not settings:
            print(f"{name}: nothing to measure")
            return
        print(f"{name}: B is {'' if advised else 'the best that was found and not advised: '}{'; '.join(settings)}", flush=True)
        ratios = []
        for n in range(pairs):
            order = [[], settings] if n % 2 == 0 else [settings, []]
            values = [self.measure(jobs, these, counts) for these in order]
            a, b = values if n % 2 == 0 else values[::-1]
            ratios.append(b / a)
            print(f"  {name} {n + 1}: A {a:.0f}, B {b:.0f}, ratio {b / a:.3f}", flush=True)
        better = "below" if counts[1] == "p99" else "above"
        print(f"{name}: {'advised' if advised else 'not advised'}, ratio {statistics.median(ratios):.3f} "
              f"({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs; {better} 1 is better)", flush=True)


if __name__ == "__main__":
    main()
