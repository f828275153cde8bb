"""Load for volumes.sh: files of records, each made durable with fsync before it is acknowledged.

    fsync-load.py write FOLDER ACKED SEED     until an error; ACKED gets a line for each record
    fsync-load.py check FOLDER ACKED SEED     every acknowledged record is there

A record is one block of 4 KiB that says its file, number and seed.
"""
import os, sys

mode, folder, acked, seed = sys.argv[1:5]
SIZE, FILES = 4096, 8


def record(name, n):
    head = f"{seed} {name} {n} ".encode()
    return (head * (SIZE // len(head) + 1))[:SIZE]


def write():
    log = open(acked, "a", buffering=1)
    n = 0
    while n < 20000:
        name = f"r{seed}-{n % FILES}"
        fd = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(fd, record(name, n), n // FILES * SIZE)
        os.fsync(fd)
        os.close(fd)
        if n < FILES:
            top = os.open(folder, os.O_RDONLY)
            os.fsync(top)
            os.close(top)
        log.write(f"{name} {n}\n")
        n += 1
        # A file system that is full starts again.
        if n % 4000 == 0:
            for other in os.listdir(folder):
                if other.startswith("r") and not other.startswith(f"r{seed}-"):
                    os.unlink(os.path.join(folder, other))


def check():
    lines = open(acked).read().split("\n")
    # The last line may be cut: it is not acknowledged then.
    count = 0
    for line in lines[:-1]:
        name, n = line.split()
        with open(os.path.join(folder, name), "rb") as f:
            f.seek(int(n) // FILES * SIZE)
            got = f.read(SIZE)
        if got != record(name, n):
            sys.exit(f"{name}: record {n} was acknowledged and is lost")
        count += 1
    print(f"{count} records are there")


try:
    write() if mode == "write" else check()
except OSError as e:
    if mode == "check":
        sys.exit(str(e))
