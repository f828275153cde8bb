#!/usr/bin/env python3
"""Random histories of whole trees, sent with `zfs send -R` and received on another layout.

    tests/histories.py WEIR FROM..TO [--judge PROGRAM] [--dir FOLDER] [--jobs N]

As root. Each seed is a history of a pool `src`: file systems, one of them encrypted, with files,
holes, links, attributes, ACLs, snapshots, clones, renames, destroys, properties. After each round
a package of it goes to the pool `dst`, with random letters, raw or not; some break off and go on by
their token, or begin again; some are hit by a kill of the daemon. Then `dst` must have the same
snapshots (name and guid) and no others, the same trees in each, and the properties; no half of
a snapshot may be seen before. What OpenZFS's `zstream dump` prints of a package must be what
`weir zstream dump` prints. At the end both pools are exported and go to the judge
(`PROGRAM FOLDER POOL`, status 0: good). One line for each seed that is bad, and a sum.
"""
import argparse, concurrent.futures, hashlib, os, random, shutil, stat, subprocess, sys, tempfile

LAYOUTS = [["1"], ["mirror", "2"], ["raidz", "3"], ["raidz2", "4"], ["1", "1"]]
ROUNDS = 3
KEY = "a good password"


class Bad(Exception):
    """The history failed."""


class World:
    def __init__(self, weir, seed, parent):
        self.weir, self.rng = weir, random.Random(seed)
        self.top = tempfile.mkdtemp(prefix=f"history-{seed}-", dir=parent)
        os.chmod(self.top, 0o755)
        self.env = dict(os.environ, WEIR_RUNTIME_DIR=f"{self.top}/run", WEIR_STATE_DIR=f"{self.top}/state")
        # Guids of all snapshots that the source ever had.
        self.known = set()
        # Copies that got an increment by its token, which brings no properties.
        self.resumed = set()
        self.counts = dict(packages=0, bytes=0, stops=0, kills=0)
        with open(f"{self.top}/key", "w") as f:
            f.write(KEY)

    def run(self, *args, ok=True, **io):
        done = subprocess.run([self.weir, *args], env=self.env, cwd=self.top, capture_output="stdout" not in io,
                              text=True, **io)
        if "HISTORY_TRACE" in os.environ:
            print(*args, "->", done.returncode, (done.stderr or "").strip(), flush=True)
        if ok and done.returncode != 0:
            raise Bad(f"'{' '.join(args)}' fails: {(done.stderr or '').strip()}")
        return done

    def lines(self, *args):
        return self.run(*args).stdout.splitlines()

    def chance(self, percent):
        return self.rng.random() * 100 < percent

    def pool(self, name):
        """A pool of a random layout, 600 MB a device."""
        layout = self.rng.choice(LAYOUTS)
        words = [w for w in layout if not w.isdigit()]
        count = sum(int(w) for w in layout if w.isdigit())
        os.mkdir(f"{self.top}/{name}.dir")
        files = [f"{self.top}/{name}.dir/{n}.img" for n in range(count)]
        for file in files:
            with open(file, "wb") as f:
                f.truncate(600 << 20)
        ashift = self.rng.choice(["9", "12"])
        self.run("zpool", "create", "-o", f"ashift={ashift}", "-m", f"{self.top}/{name}", "-O", "acltype=posix",
                 name, *words, *files)

    def kill(self):
        """Kills the daemon; the next command starts one, which imports the pools."""
        pid = self.lines("daemon", "status")[0].split()[1].rstrip(",:")
        subprocess.run(["kill", "-9", pid], check=True)
        while not self.is_gone(pid):
            pass
        self.counts["kills"] += 1

    @staticmethod
    def is_gone(pid):
        """Whether no thread of a process is left but the first, as a zombie."""
        try:
            with open(f"/proc/{pid}/stat") as f:
                state = f.read().rsplit(")", 1)[1].split()[0]
            return state == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
        except OSError:
            return True

    def end(self):
        self.run("daemon", "stop", "-f", ok=False)
        for line in reversed(open("/proc/mounts").read().splitlines()):
            if self.top in line.split()[1]:
                subprocess.run(["umount", "-l", line.split()[1]], capture_output=True)
        shutil.rmtree(self.top, ignore_errors=True)


# What happens to the source.

def scribble(w, folder):
    """Some files of many kinds, others each time."""
    rng = w.rng
    for n in range(rng.randrange(5, 25)):
        d = f"{folder}/d{rng.randrange(4)}"
        os.makedirs(d, exist_ok=True)
        path = f"{d}/f{rng.randrange(12)} é"
        kind = rng.randrange(12)
        if os.path.lexists(path) and kind < 2:
            os.unlink(path)
            continue
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            continue
        if not os.path.lexists(path) and kind == 2:
            os.symlink("x" * rng.randrange(1, 200), path)
            continue
        if not os.path.lexists(path) and kind == 3:
            os.mkfifo(path)
            continue
        with open(path, "r+b" if os.path.exists(path) else "w+b") as f:
            for _ in range(rng.randrange(3)):
                f.seek(rng.randrange(600_000))
                f.write(rng.randbytes(rng.randrange(1, 150_000)) if rng.random() < 0.7 else b"z" * rng.randrange(1, 9000))
            if kind == 4:
                f.truncate(rng.randrange(1 << 20))
        os.chmod(path, rng.choice([0o600, 0o644, 0o4755]))
        os.chown(path, rng.randrange(3), rng.randrange(3))
        if kind == 5:
            os.setxattr(path, f"user.{rng.randrange(3)}", rng.randbytes(rng.randrange(1, 3000)))
        if kind == 6:
            subprocess.run(["setfacl", "-m", f"u:{rng.randrange(1, 9)}:rw", path], check=True)
        if kind == 7 and not os.path.lexists(f"{d}/l{n}"):
            os.link(path, f"{d}/l{n}")
        if kind == 8:
            os.rename(path, f"{d}/r{rng.randrange(9)}")


def file_systems(w, pool):
    return [n for n in w.lines("zfs", "list", "-H", "-o", "name", "-t", "filesystem", "-r", pool)]


def snapshots(w, fs):
    """Names after the `@` and guids, oldest first."""
    rows = w.run("zfs", "list", "-H", "-p", "-o", "name,guid", "-t", "snapshot", "-d", "1", "-s", "createtxg", fs,
                 ok=False).stdout.splitlines()
    return [(name.split("@")[1], guid) for name, guid in (row.split("\t") for row in rows)]


def mountpoint(w, fs):
    return w.lines("zfs", "get", "-H", "-o", "value", "mountpoint", fs)[0]


def begin(w):
    w.pool("src")
    w.pool("dst")
    rng = w.rng
    for name in ("a", "a/b", "c"):
        props = ["-o", "compression=" + rng.choice(["off", "lz4", "zstd", "gzip"]),
                 "-o", "recordsize=" + rng.choice(["4K", "128K", "1M"]),
                 "-o", "xattr=" + rng.choice(["sa", "on"]), "-o", "dnodesize=" + rng.choice(["legacy", "auto"])]
        w.run("zfs", "create", *props, f"src/{name}")
    w.run("zfs", "create", "-o", "encryption=on", "-o", "keyformat=passphrase", "-o", f"keylocation=file://{w.top}/key",
          "src/e")
    w.run("zfs", "create", "src/e/x")


def change(w, number, top):
    """A round of changes, and a snapshot of everything."""
    rng = w.rng
    for fs in file_systems(w, top):
        if w.chance(70):
            scribble(w, mountpoint(w, fs))
    for n in range(rng.randrange(4)):
        all_fs = [fs for fs in file_systems(w, top) if fs != top]
        if not all_fs:
            break
        fs, kind = rng.choice(all_fs), rng.randrange(8)
        snaps = [s for s, _ in snapshots(w, fs)]
        # Some of these are refused, as in OpenZFS: by clones, children, encryption.
        if kind == 0 and snaps:
            w.run("zfs", "clone", f"{fs}@{rng.choice(snaps)}", f"{top}/k{number}{n}", ok=False)
        elif kind == 1:
            w.run("zfs", "rename", fs, f"{fs}r", ok=False)
        elif kind == 2 and len(snaps) > 1:
            # Not the newest: a package would have the whole file system then, which is not received
            # over one that has snapshots.
            w.run("zfs", "destroy", f"{fs}@{rng.choice(snaps[:-1])}", ok=False)
        elif kind == 3 and number > 1:
            w.run("zfs", "destroy", fs, ok=False)
        elif kind == 4:
            w.run("zfs", "promote", fs, ok=False)
        elif kind == 5:
            w.run("zfs", "set", f"org.weir:n={rng.randrange(100)}", fs)
        elif kind == 6:
            w.run("zfs", "set", "atime=" + rng.choice(["on", "off"]), fs)
        else:
            w.run("zfs", "create", f"{fs}/n{number}{n}", ok=False)
    w.run("zfs", "snapshot", "-r", f"{top}@s{number}")


# Sending and receiving.

def receive_part(w, stream, target, args):
    """Receives a stream up to a random byte."""
    size = os.path.getsize(stream)
    with open(stream, "rb") as f:
        head = subprocess.Popen(["head", "-c", str(w.rng.randrange(size))], stdin=f, stdout=subprocess.PIPE)
        subprocess.run([w.weir, "zfs", "receive", *args, target], env=w.env, stdin=head.stdout, capture_output=True)
        head.wait()
    w.counts["stops"] += 1


def tokens(w):
    rows = w.lines("zfs", "get", "-H", "-o", "name,value", "-t", "filesystem,volume", "receive_resume_token", "-r", "dst")
    return [(n, t) for n, t in (row.split("\t") for row in rows) if t != "-"]


def replicate(w, top, target, last, now, letters, raw):
    source = [f"{top}@{now}"] if last is None else ["-I", f"@{last}", f"{top}@{now}"]
    stream = f"{w.top}/stream"
    w.resumed.clear()
    with open(stream, "w") as out:
        done = w.run("zfs", "send", "-R", *letters, *source, stdout=out, stderr=subprocess.PIPE, ok=False)
    if done.returncode != 0:
        raise Bad(f"zfs send -R {letters} {source}: {done.stderr}")
    w.counts["packages"] += 1
    w.counts["bytes"] += os.path.getsize(stream)
    if w.chance(30):
        same_dump(w, stream)
    args = ["-F", "-u", "-s", "-x", "mountpoint"]
    if w.chance(30):
        receive_part(w, stream, target, args)
        halves_are_hidden(w)
        for fs, token in tokens(w):
            if w.chance(60):
                send = subprocess.Popen([w.weir, "zfs", "send", *(["-w"] if raw else []), "-t", token], env=w.env,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                got = subprocess.run([w.weir, "zfs", "receive", "-s", "-u", fs], env=w.env, stdin=send.stdout,
                                     capture_output=True, text=True)
                send.stdout.close()
                if send.wait() != 0 or got.returncode != 0:
                    raise Bad(f"{fs} does not go on: {send.stderr.read().decode()} {got.stderr}")
                if last is not None:
                    w.resumed.add(fs)
            else:
                w.run("zfs", "receive", "-A", fs)
    elif w.chance(25):
        with open(stream) as f:
            job = subprocess.Popen([w.weir, "zfs", "receive", *args, target], env=w.env, stdin=f,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                job.wait(w.rng.random() * 0.5)
            except subprocess.TimeoutExpired:
                pass
            w.kill()
            job.wait()
        w.run("zfs", "list", "-r", "dst")
        w.run("zfs", "load-key", "-r", "-L", f"file://{w.top}/key", "src", ok=False)
        for fs in file_systems(w, "src"):
            w.run("zfs", "mount", fs, ok=False)
        halves_are_hidden(w)
        for fs, _ in tokens(w):
            w.run("zfs", "receive", "-A", fs)
    else:
        with open(stream) as f:
            w.run("zfs", "receive", *args, target, stdin=f)
        return
    # A full stream is not received over snapshots, whatever the letters: what the part that came
    # made anew goes.
    for fs in file_systems(w, "dst"):
        if fs.startswith(target) and last not in [name for name, _ in snapshots(w, fs)]:
            w.run("zfs", "destroy", "-R", fs, ok=fs == target)
    # Of an increment what is there already is passed over.
    with open(stream) as f:
        w.run("zfs", "receive", *args, target, stdin=f)


def halves_are_hidden(w):
    """Every snapshot that is seen was sent."""
    for fs in file_systems(w, "dst"):
        for name, guid in snapshots(w, fs):
            if guid not in w.known:
                raise Bad(f"{fs}@{name} is seen, which was not sent")


def same_dump(w, stream):
    """zstream of OpenZFS and ours say the same."""
    with open(stream) as f:
        theirs = subprocess.run(["/usr/sbin/zstream", "dump"], stdin=f, capture_output=True, text=True)
    with open(stream) as f:
        ours = subprocess.run([w.weir, "zstream", "dump"], stdin=f, capture_output=True, text=True, env=w.env)
    if theirs.returncode != 0 or theirs.stdout != ours.stdout:
        raise Bad(f"zstream dump differs, status {theirs.returncode}: {theirs.stderr.strip()}")


# Comparing.

def tree(folder):
    out = {}
    for path, dirs, files in os.walk(folder):
        for name in dirs + files + ([""] if path == folder else []):
            full = os.path.join(path, name) if name else path
            st = os.lstat(full)
            what = [stat.S_IFMT(st.st_mode), st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns, st.st_nlink,
                    st.st_ino & ((1 << 48) - 1)]
            if stat.S_ISREG(st.st_mode):
                with open(full, "rb") as f:
                    what += [st.st_size, hashlib.md5(f.read()).hexdigest()]
            if stat.S_ISLNK(st.st_mode):
                what.append(os.readlink(full))
            else:
                what.append(sorted((n, os.getxattr(full, n)) for n in os.listxattr(full)))
            out[os.path.relpath(full, folder)] = what
    return out


def same_tree(a, b, what):
    ours, theirs = tree(a), tree(b)
    if ours != theirs:
        name = next(n for n in sorted(ours.keys() | theirs.keys()) if ours.get(n) != theirs.get(n))
        raise Bad(f"{what}: '{name}' is {str(theirs.get(name))[:300]}, was {str(ours.get(name))[:300]}")


def compare(w, top, target, raw):
    there = file_systems(w, target)
    want = [target + fs[len(top):] for fs in file_systems(w, top)]
    if sorted(there) != sorted(want):
        raise Bad(f"{target} has {sorted(there)}, not {sorted(want)}")
    if raw:
        for fs in there:
            if w.lines("zfs", "get", "-H", "-o", "value", "keystatus", fs)[0] == "unavailable":
                w.run("zfs", "load-key", "-L", f"file://{w.top}/key", fs, ok=False)
    for fs in file_systems(w, top):
        copy = target + fs[len(top):]
        ours, theirs = snapshots(w, fs), snapshots(w, copy)
        if ours != theirs:
            raise Bad(f"{copy} has {theirs}, not {ours}")
        # As in OpenZFS: an increment that breaks off takes its properties back, and the package
        # passes over what the token brought. The next package has them, and those who inherit them.
        props = ("compression", "recordsize", "atime", "xattr", "org.weir:n")
        late = any(f"{copy}/".startswith(f"{fs}/") for fs in w.resumed)
        for prop in () if late else props:
            a, b = (w.lines("zfs", "get", "-H", "-o", "value", prop, name)[0] for name in (fs, copy))
            if a != b:
                raise Bad(f"{copy}: {prop} is {b}, not {a}")
        if not ours:
            continue
        at = f"{w.top}/look"
        os.makedirs(at, exist_ok=True)
        w.run("zfs", "set", f"mountpoint={at}", copy)
        # After a kill it is mounted already.
        w.run("zfs", "mount", copy, ok=False)
        try:
            for snap in {ours[-1][0], w.rng.choice(ours)[0]}:
                same_tree(f"{mountpoint(w, fs)}/.zfs/snapshot/{snap}", f"{at}/.zfs/snapshot/{snap}", f"{copy}@{snap}")
        finally:
            w.run("zfs", "unmount", "-f", copy, ok=False)
            w.run("zfs", "inherit", "mountpoint", copy)


def history(weir, seed, judge, parent):
    w = World(weir, seed, parent)
    try:
        begin(w)
        rng = w.rng
        raw = w.chance(40)
        top = "src/e" if w.chance(25) else rng.choice(["src", "src/a", "src/c"])
        # An encrypted file system within the tree goes raw, or with its content alone.
        letters = ["-w"] if raw or top in ("src", "src/e") else []
        raw = bool(letters)
        letters += [x for x in ("-c", "-L", "-e") if not raw and w.chance(50)]
        last = None
        for number in range(1, ROUNDS + 1):
            change(w, number, top)
            w.known |= {g for fs in file_systems(w, "src") for _, g in snapshots(w, fs)}
            now = f"s{number}"
            replicate(w, top, "dst/copy", last, now, letters, raw)
            compare(w, top, "dst/copy", raw)
            last = now
        for pool in ("src", "dst"):
            w.run("zpool", "export", pool)
            if judge:
                done = subprocess.run([judge, f"{w.top}/{pool}.dir", pool], capture_output=True, text=True)
                if done.returncode != 0:
                    raise Bad(f"judge of {pool}: {done.stdout[-600:]}")
        return seed, None, w.counts
    except (Bad, OSError, subprocess.SubprocessError) as e:
        return seed, f"{e}", w.counts
    finally:
        w.end()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("weir")
    p.add_argument("seeds")
    p.add_argument("--judge")
    p.add_argument("--dir")
    p.add_argument("--jobs", type=int, default=2)
    args = p.parse_args()
    first, last = (int(x) for x in args.seeds.split(".."))
    total, bad = {}, 0
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(history, os.path.abspath(args.weir), s, args.judge, args.dir) for s in range(first, last)]
        for job in concurrent.futures.as_completed(jobs):
            seed, why, counts = job.result()
            for name, n in counts.items():
                total[name] = total.get(name, 0) + n
            if why:
                bad += 1
                print(f"BAD seed {seed}: {why}", flush=True)
    print(" ".join(f"{k}={v}" for k, v in total.items()), f"seeds={last - first} bad={bad}")
    sys.exit(bad > 0)


main()
