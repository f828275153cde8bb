#!/usr/bin/env python3
"""A full send to nowhere beside a sequential read through FUSE, a receive beside a sequential write,
and what others wait meanwhile.

    docs/bench-send.py target/release/weir [FOLDER [MIB]]

As root; needs fio and room for the stream in /dev/shm. Each round does all four in turn, from an
imported pool whose cache is empty, and writes end with `zpool sync`; the ratios are medians of
ROUNDS. The others: random reads of 4 KiB, 400 a second, of a file system of the same pool, alone,
beside the sequential read and write, and beside the send and the receive; each in turn in every
round, with the medians of their p99, of its ratio to that alone, and of their p99.9. The image is
written before, as a disk is: in a sparse file each first write of a place takes the file system's
lock. What the device itself gives is in the last lines: the same reads of a plain file, alone and
beside writes of 128 KiB one after the other with a flush after 512 MiB, all direct.

A virtual machine may stand still: its host lets its processors run for a part of each 100 ms, and
what the host does for its virtual disk counts as well. So each line has the figures of all reads,
and then those of the reads in whose time every processor ran, with the share of the others. For
that a thread of the highest priority wakes on each processor every ms, and notes when it is late.
"""
import os, shutil, statistics, subprocess, sys, tempfile, time

ROUNDS = 5
P99_ROUNDS = 5
STILL_MS_MIN = 3
WATCH = """
import os, sys, time
os.sched_setaffinity(0, [int(sys.argv[1])])
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(90))
last = time.time()
while True:
    time.sleep(0.001)
    now = time.time()
    if now - last > float(sys.argv[2]) / 1000:
        print(last * 1000, now * 1000, flush=True)
    last = now
"""


class Watch:
    """Spans in which a processor stood still, in ms of the epoch."""

    def __init__(self):
        args = [sys.executable, "-c", WATCH]
        self.each = [subprocess.Popen([*args, str(cpu), str(STILL_MS_MIN)], stdout=subprocess.PIPE, text=True)
                     for cpu in os.sched_getaffinity(0)]

    def end(self):
        for p in self.each:
            p.kill()
        lines = [line.split() for p in self.each for line in p.communicate()[0].splitlines()]
        return [(float(a), float(b)) for a, b in lines]


def main():
    weir = os.path.abspath(sys.argv[1])
    folder = tempfile.mkdtemp(prefix="bench-send-", dir=sys.argv[2] if len(sys.argv) > 2 else None)
    mib = int(sys.argv[3]) if len(sys.argv) > 3 else 1024
    ram = tempfile.mkdtemp(prefix="bench-send-", dir="/dev/shm")
    env = dict(os.environ, WEIR_RUNTIME_DIR=f"{folder}/run", WEIR_STATE_DIR=f"{folder}/state")
    stream, source = f"{ram}/stream", f"{ram}/source"

    def say(line, **io):
        return subprocess.run([weir, *line.split()], check=True, env=env, cwd=folder, **io)

    def timed(what, end=lambda: None):
        start = time.monotonic()
        what()
        end()
        return time.monotonic() - start

    def again():
        say("zpool export tank")
        subprocess.run(["sync"], check=True)
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3")
        say(f"zpool import -d {folder} tank")

    def dd(a, b):
        subprocess.run(["dd", f"if={a}", f"of={b}", "bs=1M", "status=none"], check=True)

    def send():
        with open("/dev/null", "w") as out:
            say("zfs send tank/data@one", stdout=out)

    def receive(name="got"):
        with open(stream) as data:
            say(f"zfs receive -u tank/{name}", stdin=data)

    def sync():
        say("zpool sync tank")

    def fio(name, file, rw, bs, *more):
        return ["--name=" + name, f"--filename={folder}/{file}", "--rw=" + rw, "--bs=" + bs, "--runtime=8",
                "--time_based", "--randrepeat=0", *more]

    def waits_ms(args, beside=None):
        """p99 and p99.9 of all reads, of those beside which the machine ran, and their share."""
        again()
        args = ["fio", f"--write_lat_log={ram}/reads", "--log_unix_epoch=1", *args]
        watch = Watch()
        try:
            job = subprocess.Popen(args, stdout=subprocess.DEVNULL)
            while beside and job.poll() is None:
                beside()
            if job.wait() != 0:
                raise SystemExit("fio failed")
        finally:
            still = watch.end()
        reads, ran = [], []
        with open(f"{ram}/reads_clat.1.log") as lines:
            for line in lines:
                at, ns = [int(part) for part in line.split(",")[:2]]
                ms = ns / 1e6
                reads.append(ms)
                # The time of the completion is cut to a ms.
                if not any(a < at + 1 and b > at - ms for a, b in still):
                    ran.append(ms)

        def percentiles(of):
            of.sort()
            return [of[int(len(of) * p)] for p in (0.99, 0.999)]

        return [*percentiles(reads), *percentiles(ran), 1 - len(ran) / len(reads)]

    def written(name, size_mib):
        dd_args = ["if=/dev/zero", f"of={folder}/{name}", "bs=1M", f"count={size_mib}", "conv=fsync", "status=none"]
        subprocess.run(["dd", *dd_args], check=True)

    try:
        written("a.img", mib * 4 + 1024)
        written("raw.img", 1024)
        say(f"zpool create -m {folder}/mnt -O compression=off tank a.img")
        say("zfs create tank/data")
        say("zfs create tank/other")
        with open(source, "wb") as f:
            for _ in range(mib):
                f.write(os.urandom(1 << 20))
        dd(source, f"{folder}/mnt/data/file")
        subprocess.run(["dd", "if=/dev/urandom", f"of={folder}/mnt/other/file", "bs=1M", "count=256", "status=none"],
                       check=True)
        say("zfs snapshot tank/data@one")
        with open(stream, "w") as out:
            say("zfs send tank/data@one", stdout=out)
        rows = []
        for _ in range(ROUNDS):
            again()
            r = timed(lambda: dd(f"{folder}/mnt/data/file", "/dev/null"))
            again()
            s = timed(send)
            again()
            w = timed(lambda: dd(source, f"{folder}/mnt/data/copy"), sync)
            os.unlink(f"{folder}/mnt/data/copy")
            again()
            c = timed(receive, sync)
            say("zfs destroy -r tank/got")
            sync()
            rows.append((r, s, w, c))
        for name, a, b in (("send / sequential read", 0, 1), ("receive / sequential write", 2, 3)):
            mb = [statistics.median(mib * 1.048576 / r[i] for r in rows) for i in (a, b)]
            ratio = statistics.median(r[a] / r[b] for r in rows)
            print(f"{name:28} {mb[1]:6.0f} / {mb[0]:6.0f} MB/s  {ratio:5.2f}", flush=True)

        def receive_and_destroy():
            receive()
            say("zfs destroy -r tank/got")

        def write():
            dd(source, f"{folder}/mnt/data/copy")

        reads = fio("reads", "mnt/other/file", "randread", "4k", "--size=256M", "--rate_iops=400")
        raw = ["--direct=1", "--ioengine=libaio"]
        raw_reads = fio("reads", "raw.img", "randread", "128k", "--size=256M", "--rate_iops=400", *raw)
        raw_writes = fio("writes", "raw.img", "write", "128k", "--offset=512M", "--size=512M", "--fdatasync=4096", *raw)
        jobs = [("alone", reads, None),
                ("beside a read", reads, lambda: dd(f"{folder}/mnt/data/file", "/dev/null")),
                ("beside a send", reads, send), ("beside a write", reads, write),
                ("beside a receive", reads, receive_and_destroy),
                ("raw, alone", raw_reads, None), ("raw, beside writes", [*raw_reads, *raw_writes], None)]
        rounds = [[waits_ms(args, beside) for _, args, beside in jobs] for _ in range(P99_ROUNDS)]
        for n, (name, _, _) in enumerate(jobs):
            alone = 5 if name.startswith("raw") else 0
            p99, p999, ran99, ran999, out = [statistics.median(r[n][i] for r in rounds) for i in range(5)]
            times, ran_times = [statistics.median(r[n][i] / r[alone][i] for r in rounds) for i in (0, 2)]
            print(f"p99 of random reads, {name:18} {p99:7.2f} ms {times:6.2f}, p99.9 {p999:7.2f} ms; "
                  f"without standstills {ran99:6.2f} ms {ran_times:6.2f}, p99.9 {ran999:7.2f} ms "
                  f"({out:.1%} left out)", flush=True)
    finally:
        subprocess.run([weir, "daemon", "stop", "-f"], env=env, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(ram, ignore_errors=True)


main()
