#!/usr/bin/env python3
"""What commands cost as a pool grows: file systems, snapshots, users with quotas.

    docs/bench-growth.py WEIR FOLDER [-n 1000,10000,100000] [-o fs,snapshots,users]

As root. `WEIR` is a release build, `FOLDER` takes the image (on a tmpfs the disk costs nothing). For
each number a new pool is made, and each command runs once, with a daemon of its own:

* fs: so many file systems, 1000 below each parent: create (1000 more, by four processes at once),
  list, list of two properties, snapshot -r, list of the snapshots, destroy -r of them, mount -a,
  unmount -a, export, import (without mounting).
* snapshots: so many, 100 of each of many file systems: snapshot -r, lists, those of one, destroy -r.
* users: a tenth of so many users, each with a file and a quota: set, userspace, and get of one.

A line is a command; its figures are seconds, and how far the step to the next number is from linear:
1.0 is linear, less is better. Memory is the daemon's at its most. More than 1.5 is marked.
"""
import argparse, os, subprocess, sys, time
from bench_pool import Pool

# What one command may name at once.
BATCH = 1000


class Growth:
    def __init__(self, pool):
        self.pool, self.rows = pool, {}

    def timed(self, name, work):
        start = time.monotonic()
        work()
        self.rows[name] = time.monotonic() - start

    def say(self, name, line):
        self.timed(name, lambda: self.pool.weir(line))

    def many(self, lines, jobs=4):
        """Runs command lines, some at once."""
        text = "\n".join(lines)
        if not lines:
            return
        done = subprocess.run(["xargs", "-P", str(jobs), "-L", "1", self.pool.program], env=self.pool.env, input=text,
                              text=True, capture_output=True)
        if done.returncode:
            sys.exit(f"{lines[0]} ...: {done.stderr[:500]}")

    def memory(self):
        for line in self.pool.weir("daemon status -v").splitlines():
            if line.strip().startswith("daemon ") and "memory" in line:
                self.rows["memory"] = line.strip()


def batches(count):
    return [range(at, min(at + BATCH, count)) for at in range(0, count, BATCH)]


def file_systems(g, count):
    parents = -(-count // BATCH)
    g.many([f"zfs create -u tank/p{n}" for n in range(parents)], 1)
    lines = [f"zfs create -u tank/p{n // BATCH}/fs{n}" for n in range(count)]
    g.many(lines[:-BATCH])
    g.timed("create of 1000", lambda: g.many(lines[-BATCH:]))
    g.say("list", "zfs list -H -r tank")
    g.say("get of two", "zfs get -H -r used,compression tank")
    g.say("snapshot -r", "zfs snapshot -r tank@a")
    g.say("list -t snapshot", "zfs list -H -t snapshot")
    g.say("destroy -r", "zfs destroy -r tank@a")
    g.say("mount -a", "zfs mount -a")
    g.say("unmount -a", "zfs unmount -a")
    g.say("export", "zpool export tank")
    g.say("import -N", f"zpool import -N -d {g.pool.folder} tank")


def snapshots(g, count):
    # A hundred of each file system: a snapshot's list of what is freed has a key for each one before
    # it, so those of one file system take the square of their number, in OpenZFS as well.
    each = 100
    g.pool.weir("zfs create -u tank/s")
    g.many([f"zfs create -u tank/s/fs{n}" for n in range(count // each)])
    g.timed("snapshot -r", lambda: g.many([f"zfs snapshot -r tank/s@{n}" for n in range(each)], 1))
    g.say("list -t snapshot", "zfs list -H -t snapshot -r tank/s")
    g.say("list by name", "zfs list -H -t snapshot -o name -s name -r tank/s")
    g.say("list of one", "zfs list -H -t snapshot tank/s/fs0")
    g.timed("snapshot of one", lambda: g.many([f"zfs snapshot tank/s/fs0@more{n}" for n in range(100)], 1))
    g.timed("destroy -r", lambda: g.many([f"zfs destroy -r tank/s@{n}" for n in range(each)], 1))


def users(g, count):
    count //= 10
    first = 100000
    g.pool.weir("zfs create tank/home")
    def files():
        for n in range(count):
            path = f"{g.pool.mnt}/home/f{n}"
            with open(path, "w") as file:
                file.write("x" * 100)
            os.chown(path, first + n, first + n)
    g.timed("files", files)
    def quotas():
        for some in batches(count):
            g.pool.weir("zfs set " + " ".join(f"userquota@{first + n}=1G" for n in some) + " tank/home")
    g.timed("set userquota", quotas)
    g.pool.weir("zpool sync")
    g.say("userspace -n", "zfs userspace -n tank/home")
    g.say("groupspace -n", "zfs groupspace -n tank/home")
    g.say("get of one", f"zfs get -H userused@{first},userquota@{first} tank/home")


KINDS = {"fs": file_systems, "snapshots": snapshots, "users": users}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("weir")
    p.add_argument("folder")
    p.add_argument("-n", dest="numbers", default="1000,10000,100000")
    p.add_argument("-o", dest="kinds", default=",".join(KINDS))
    p.add_argument("--mib", type=int, default=4096, help="size of the image in MiB")
    a = p.parse_args()
    numbers = [int(n) for n in a.numbers.split(",")]
    for kind in a.kinds.split(","):
        tables = []
        for count in numbers:
            with Pool(a.weir, a.folder, "growth", 0) as pool:
                with open(pool.image, "r+b") as file:
                    file.truncate(a.mib << 20)
                pool.create()
                g = Growth(pool)
                KINDS[kind](g, count)
                g.memory()
                tables.append(g.rows)
                print(kind, count, g.rows, file=sys.stderr, flush=True)
        print(f"\n| {kind} |" + "".join(f" {n} | |" for n in numbers))
        print("|---|" + "---|---|" * len(numbers))
        for name in tables[0]:
            cells, before = [], None
            for count, rows in zip(numbers, tables):
                value = rows.get(name)
                if not isinstance(value, float):
                    cells += [str(value), ""]
                    continue
                step = "" if before is None else value / before[1] / (count / before[0])
                cells += [f"{value:.2f} s", step and f"{step:.2f}{' *' if step > 1.5 else ''}"]
                before = (count, max(value, 1e-3))
            print(f"| {name} | " + " | ".join(cells) + " |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
