"""A pool in an image file, for the benchmarks beside this file that measure weir on a real disk.

`Pool` has folders of its own for weir's state, so it meets no other daemon, and an image whose blocks
exist before it is measured, as those of a disk do. Needs root and, for loads, fio.
"""
import json, os, shlex, shutil, subprocess, sys, tempfile


class Pool:
    """A folder below `parent` with an image of `mib` MiB for a pool named tank, mounted at `mnt`."""

    def __init__(self, weir, parent, name, mib):
        self.program = os.path.abspath(weir)
        self.folder = tempfile.mkdtemp(prefix=f"{name}-", dir=parent)
        self.image, self.model, self.mnt = (f"{self.folder}/{n}" for n in ("image", "model.toml", "mnt"))
        self.env = dict(os.environ, WEIR_RUNTIME_DIR=f"{self.folder}/run", WEIR_STATE_DIR=f"{self.folder}/state")
        with open(self.image, "wb") as file:
            for _ in range(mib):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.weir("daemon stop -f", (0, 1, 2))
        shutil.rmtree(self.folder, ignore_errors=True)

    def weir(self, line, codes=(0,)):
        """Output of a weir command; ends the benchmark with its error if it ends with another code."""
        done = subprocess.run([self.program, *shlex.split(line)], env=self.env, text=True, capture_output=True)
        if done.returncode not in codes:
            sys.exit(f"weir {line}: {done.stderr}")
        return done.stdout

    def calibrate(self, model=None):
        """Uses this model of the disk, or measures the image for one."""
        if model:
            self.model = os.path.abspath(model)
        else:
            self.weir(f"lab calibrate --overwrite --seconds 2 -o {self.model} {self.image}")

    def create(self, letters=""):
        """A new pool, in place of what was in the image."""
        self.weir(f"zpool create -f -O compression=off -O atime=off {letters} -m {self.mnt} tank {self.image}")

    def empty_caches(self):
        """Nothing of the pool is in any cache afterwards."""
        self.weir("zpool export tank")
        self.weir(f"zpool import -d {self.folder} tank")

    def fio(self, args, seconds):
        """Starts fio in the mount for `seconds`; with 0 it makes its files only."""
        how = ["--output-format=json", "--group_reporting", f"--directory={self.mnt}", "--ioengine=psync",
               "--fallocate=none", "--overwrite=1", "--randrepeat=1", "--allow_mounted_write=1"]
        how += ["--create_only=1"] if seconds == 0 else ["--time_based", f"--runtime={seconds}"]
        return subprocess.Popen(["fio", *how, *shlex.split(args)], stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True)


def fio_figures(running):
    """What a started fio measured, as its JSON has it; ends the benchmark if it failed."""
    out = running.communicate()[0]
    if running.returncode != 0:
        sys.exit(f"fio ended with {running.returncode}: {' '.join(running.args)}")
    return json.loads(out[out.index("{"):])
