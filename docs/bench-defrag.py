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
import json, os, random, shlex, shutil, subprocess, sys, tempfile, time

FILE_MIB, RECORD = 64, 128 << 10


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    weir, parent = os.path.abspath(sys.argv[1]), sys.argv[2]
    mib, rounds = [int(a) for a in sys.argv[3:5]] + [4096, 3][len(sys.argv[3:5]):]
    folder = tempfile.mkdtemp(prefix="bench-defrag-", dir=parent)
    env = dict(os.environ, WEIR_RUNTIME_DIR=f"{folder}/run", WEIR_STATE_DIR=f"{folder}/state")

    def run(line, codes=(0,)):
        done = subprocess.run([weir, *shlex.split(line)], env=env, text=True, capture_output=True)
        if done.returncode not in codes:
            sys.exit(f"weir {line}: {done.stderr}")
        return done.stdout

    image, model, mnt = f"{folder}/image", f"{folder}/model.toml", f"{folder}/mnt"
    try:
        with open(image, "wb") as file:
            for _ in range(mib):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        if len(sys.argv) > 5:
            model = os.path.abspath(sys.argv[5])
        else:
            run(f"lab calibrate --overwrite --seconds 2 -o {model} {image}")
        run(f"zpool create -f -O compression=off -O atime=off -m {mnt} tank {image}")
        files = age(mnt, mib * 80 // 100, rounds)

        def cold(paths):
            """Bytes a second of reading these files with nothing in any cache."""
            run("zpool export tank")
            run(f"zpool import -d {folder} tank")
            begin, bytes_read = time.monotonic(), 0
            for path in paths:
                with open(path, "rb", buffering=0) as file:
                    while part := file.read(1 << 20):
                        bytes_read += len(part)
            return bytes_read / (time.monotonic() - begin)

        run("zpool sync")
        plan = json.loads(run(f"defrag plan -q --json --min-gain 0% --model {model} -p {folder} tank", (0, 1)))
        paths = [mnt + "/" + file["path"].lstrip("/") for file in plan["files"]]
        if not paths:
            sys.exit("the plan is empty: nothing to measure")
        print(f"{len(paths)} of {len(files)} files are in the plan", flush=True)
        show("before", plan["read"]["now_bytes_per_s"], cold(paths))
        with open(f"{folder}/plan.json", "w") as out:
            json.dump(plan, out)
        run(f"defrag run -q --share 100% --plan {folder}/plan.json --model {model} -p {folder} tank", (0, 1))
        run("zpool sync")
        show("after", plan["read"]["after_bytes_per_s"], cold(paths))
        show("never overwritten", None, cold([f"{mnt}/whole"]))
    finally:
        run("daemon stop -f", (0, 1, 2))
        shutil.rmtree(folder, ignore_errors=True)


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
