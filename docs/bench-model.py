#!/usr/bin/env python3
"""Whether a model of this machine's disk predicts what the engine does on it: twelve loads on the
device and on its model, side by side.

    docs/bench-model.py target/release/weir FOLDER|DEVICE [SECONDS [SEEDS [MODEL]]]

A file of 4 GiB in FOLDER, or DEVICE, whose contents are lost, is measured (`weir lab calibrate`) and
used (`weir lab run --real`). MODEL is a model that was made before. A line for each figure that is
judged: operations a second, within 15 %, medians, within 25 %, and 99th percentiles, within a factor
of two. The last line counts them.
"""
import json, os, subprocess, sys, tempfile

LOADS = [
    ("sequential write", "pattern = 'sequential'\nblock = '128k'", "128k"),
    ("random write", "pattern = 'random'\nblock = '8k'", "8k"),
    # One file for all: of files for each, some would be in the cache, and their readers do most.
    ("random read", "pattern = 'random'\nblock = '8k'\nread = 100\nshared = true", "8k"),
    ("sync write", "pattern = 'random'\nblock = '8k'\nsync = 'each'", "8k"),
]
THREADS = [1, 8, 64]
# Bytes of all files of a load: four times the cache of the workload's memory.
FILES_MIB = 2048


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    weir, where = os.path.abspath(sys.argv[1]), sys.argv[2]
    seconds, seeds = [int(a) for a in sys.argv[3:5]] + [10, 3][len(sys.argv[3:5]):]
    is_folder = os.path.isdir(where)
    target = os.path.join(where, "bench-model.image") if is_folder else where
    if is_folder:
        # Its blocks exist before it is measured, as those of a disk do.
        with open(target, "wb") as image:
            for _ in range(4096):
                image.write(os.urandom(1 << 20))
            os.fsync(image.fileno())
    try:
        compare(weir, target, seconds, seeds, sys.argv[5:])
    finally:
        if is_folder:
            os.remove(target)


def compare(weir, target, seconds, seeds, models):
    with tempfile.TemporaryDirectory() as folder:
        model = models[0] if models else f"{folder}/model.toml"
        if not models:
            run([weir, "lab", "calibrate", "--overwrite", "--seconds", "3", "-o", model, target])
            print("".join(line for line in open(model) if line.startswith("#")), flush=True)
        fit = total = 0
        for name, job, record in LOADS:
            for threads in THREADS:
                size = FILES_MIB if "shared" in job else FILES_MIB // threads
                file = f"{folder}/load.toml"
                with open(file, "w") as out:
                    out.write(
                        f"[pool]\nmemory = '1G'\nrecordsize = '{record}'\n"
                        f"[run]\nseconds = {seconds}\nwarmup = 5\n"
                        f"[[job]]\nname = 'job'\nthreads = {threads}\nsize = '{size}M'\n{job}\n"
                    )
                out = run([weir, "lab", "run", "--json", "--model", model, "--real", target, "--overwrite",
                           "--seeds", str(seeds), file])
                for row in json.loads(out)["rows"]:
                    if row["verdict"] not in ("agrees", "differs"):
                        continue
                    total += 1
                    fit += row["verdict"] == "agrees"
                    device, model_mean = row["published"], row["measured"]["mean"]
                    print(f"{name:17} {threads:2}  {row['name'].removeprefix('job: '):20} {device:10.0f}"
                          f" {model_mean:10.0f} {model_mean / device:6.2f}  {row['verdict']}", flush=True)
        print(f"{fit} of {total} figures fit")


def run(args):
    done = subprocess.run(args, text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(args)}: {done.stderr}")
    return done.stdout


main()
