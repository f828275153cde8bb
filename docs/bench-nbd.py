#!/usr/bin/env python3
"""Reads and writes over NBD: weir beside qemu-nbd on a raw file in the same folder.

    docs/bench-nbd.py target/release/weir [FOLDER [SECONDS]]

Needs fio with its nbd engine, qemu-nbd. Both servers are on Unix sockets; each cell runs on both in
turn, ROUNDS times, and shows the median of the ratios (weir / qemu-nbd) of neighbours, so that what
the machine does otherwise weighs on both. The volume has the usual properties but compression=off;
its data come from its file through the pool's cache, those of qemu-nbd through the kernel's.
"""
import json, os, shutil, statistics, subprocess, sys, tempfile

ROUNDS = 5
SIZE = 1 << 30


def fio(uri, rw, bs, depth, seconds):
    args = ["fio", "--name=x", "--ioengine=nbd", f"--uri={uri}", f"--rw={rw}", f"--bs={bs}", f"--iodepth={depth}",
            f"--size={SIZE}", f"--runtime={seconds}", "--time_based", "--norandommap", "--randrepeat=0",
            "--refill_buffers", "--output-format=json"]
    text = subprocess.run(args, check=True, capture_output=True, text=True).stdout
    # The engine says a line of its own before.
    out = json.loads(text[text.index("{"):])
    side = out["jobs"][0]["read" if "read" in rw else "write"]
    return side["bw_bytes"] / 1e6


def main():
    weir = os.path.abspath(sys.argv[1])
    folder = tempfile.mkdtemp(prefix="bench-nbd-", dir=sys.argv[2] if len(sys.argv) > 2 else None)
    seconds = sys.argv[3] if len(sys.argv) > 3 else "2"
    env = dict(os.environ, WEIR_RUNTIME_DIR=f"{folder}/run", WEIR_STATE_DIR=f"{folder}/state")

    def say(line):
        return subprocess.run([weir, *line.split()], check=True, env=env, cwd=folder, text=True,
                              capture_output=True).stdout.strip()

    qemu = None
    try:
        say("zpool create -O mountpoint=none -O compression=off --size 8G tank a.img")
        say(f"zfs create -V {SIZE} tank/vol")
        ours = say("nbd start tank/vol")
        with open(f"{folder}/raw.img", "wb") as raw:
            raw.truncate(SIZE)
        sock = f"{folder}/qemu.sock"
        qemu = subprocess.Popen(["qemu-nbd", "-f", "raw", "-k", sock, "-t", "-e", "8", "--cache=writeback",
                                 "--aio=threads", "--discard=unmap", f"{folder}/raw.img"])
        while not os.path.exists(sock):
            pass
        theirs = f"nbd+unix:///?socket={sock}"
        for uri in (ours, theirs):
            subprocess.run(["fio", "--name=fill", "--ioengine=nbd", f"--uri={uri}", "--rw=write", "--bs=1M",
                            "--iodepth=16", f"--size={SIZE}", "--refill_buffers"], check=True, capture_output=True)
        say("zpool sync")
        print(f"{'':10} {'bs':>5} {'depth':>5} {'weir MB/s':>10} {'qemu-nbd':>10} {'ratio':>6}")
        for rw in ("randread", "read", "randwrite", "write"):
            for bs in ("4k", "64k", "1M"):
                for depth in (1, 8, 32):
                    rows = [(fio(ours, rw, bs, depth, seconds), fio(theirs, rw, bs, depth, seconds))
                            for _ in range(ROUNDS)]
                    ratio = statistics.median(a / b for a, b in rows)
                    a, b = (statistics.median(r[i] for r in rows) for i in (0, 1))
                    print(f"{rw:10} {bs:>5} {depth:>5} {a:10.0f} {b:10.0f} {ratio:6.2f}", flush=True)
    finally:
        if qemu:
            qemu.kill()
        subprocess.run([weir, "daemon", "stop", "-f"], env=env, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


main()
