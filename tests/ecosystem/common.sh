# Shared by the cases: a scratch folder, a daemon, pools, and comparisons.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(mktemp -d "${TMPDIR:-/tmp}/weir-eco.XXXXXX")
mkdir -m 700 "$top/run" "$top/state"
mkdir "$top/bin" "$top/mnt"
for name in weir zfs zpool zdb zstream; do ln -s "$WEIR" "$top/bin/$name"; done
export WEIR_RUNTIME_DIR=$top/run WEIR_STATE_DIR=$top/state PATH=$top/bin:$PATH

# Set by cases that start something of their own.
at_end() { :; }
finish() {
    code=$?
    set +e
    at_end
    # Not a pool of this case may stay open, whatever failed.
    weir daemon stop -f > /dev/null 2>&1
    # What is mounted below it may be another's.
    rm -rf --one-file-system "$top"
    exit $code
}
trap finish EXIT

# `need PROGRAM...`: ends the case with 77 if one is not installed.
need() {
    for p in "$@"; do
        command -v "$p" > /dev/null || { echo "$p is not installed"; exit 77; }
    done
}
# `pool NAME SIZE [OPTION...]`: a pool on one file, mounted at $top/mnt/NAME.
pool() {
    local name=$1 size=$2
    shift 2
    truncate -s "$size" "$top/$name.img"
    zpool create -m "$top/mnt/$name" "$@" "$name" "$top/$name.img"
}
# `same A B [OPTION...]`: the trees are equal: content, modes, owners, links, ACLs, extended
# attributes, times. The options are rsync's.
same() {
    local diff a=$1 b=$2
    shift 2
    diff=$(rsync -naHAX --checksum --delete --itemize-changes "$@" "$a/" "$b/")
    [ -z "$diff" ] || { echo "$a and $b differ:"; echo "$diff" | head -n 20; return 1; }
}
# `same_snapshots A B`: the snapshots' names and guids of a dataset B are those of A.
same_snapshots() {
    diff <(zfs list -H -t snapshot -o name,guid -d 1 "$1" | sed 's/^[^@]*//') \
         <(zfs list -H -t snapshot -o name,guid -d 1 "$2" | sed 's/^[^@]*//')
}
# `fill DIR SEED`: some files of many kinds, others for another seed.
fill() {
    python3 - "$1" "$2" <<'EOF'
import os, random, sys
top, rng = sys.argv[1], random.Random(int(sys.argv[2]))
for n in range(40):
    d = os.path.join(top, f"d{rng.randrange(5)}")
    os.makedirs(d, exist_ok=True)
    path = os.path.join(d, f"f{rng.randrange(30)} é")
    if os.path.lexists(path) and rng.random() < 0.3:
        os.unlink(path)
        continue
    if os.path.islink(path):
        continue
    with open(path, "r+b" if os.path.exists(path) else "w+b") as f:
        for _ in range(rng.randrange(4)):
            f.seek(rng.randrange(1 << 20))
            f.write(rng.randbytes(rng.randrange(1, 200000)))
        if rng.random() < 0.2:
            f.truncate(rng.randrange(1 << 21))
    os.chmod(path, rng.choice([0o600, 0o644, 0o4755]))
    if rng.random() < 0.3:
        os.setxattr(path, "user.color", rng.randbytes(rng.randrange(1, 3000)))
    if rng.random() < 0.2:
        link = os.path.join(d, f"l{n}-{sys.argv[2]}")
        (os.link if rng.random() < 0.5 else os.symlink)(path if rng.random() < 0.5 else path, link)
EOF
}
# `kill_daemon`: as a loss of power, but for what the kernel holds. Waits until the process is gone.
kill_daemon() {
    local pid
    pid=$(weir daemon status | sed -n '1s/^daemon \([0-9]*\).*/\1/p')
    kill -9 "$pid"
    # Threads may outlive the first one, which is a zombie then.
    while [ "$(ls "/proc/$pid/task" 2> /dev/null | wc -l)" -gt 1 ] || grep -qs '^State:[[:space:]][^ZX]' "/proc/$pid/status"; do :; done
}
# `start_daemon POOL`: starts it, and waits for the pool.
start_daemon() {
    weir daemon start
    zpool list -H "$1" > /dev/null
}
# `good POOL`: scrubs, and says whether errors were found.
good() {
    zpool scrub -w "$1"
    zpool status -x "$1" | grep -q "is healthy"
}
# `no COMMAND...`: it must fail. `set -e` does not look at what stands behind a `!`.
no() {
    if "$@"; then echo "should fail: $*"; return 1; fi
}
# `at TIME PROGRAM...`: PROGRAM with a clock that begins at TIME.
at() {
    local shift
    if [ ! -e "$top/clock.so" ]; then
        need cc
        cc -shared -fPIC -o "$top/clock.so" "$here/clock.c"
    fi
    shift=$(($(date -d "$1" +%s) - EPOCHSECONDS))
    LD_PRELOAD=$top/clock.so CLOCK_SHIFT=$shift "${@:2}"
}
# `daemon_at TIME`: ends the daemon and starts it, with its pools, at another time. What it makes
# has that time. `weir daemon start` would give it an environment without the library.
daemon_at() {
    weir daemon stop > /dev/null 2>&1 || :
    at "$1" weir daemon run >> "$top/daemon.log" 2>&1 &
    until weir daemon status > /dev/null 2>&1; do kill -0 $!; done
    # Waits until the pools are there.
    zpool list > /dev/null
}
