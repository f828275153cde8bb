# bzfs from PyPI: a tree with many snapshots, several runs, deletions on the other side.
. "$(dirname "$0")/common.sh"
need rsync python3
python3 -m venv "$top/venv" && "$top/venv/bin/pip" install -q bzfs || { echo "bzfs is not installed"; exit 77; }
pool a 2G
pool b 2G -O atime=off
zfs create a/data
zfs create a/data/one
zfs create a/data/one/deep
for round in 1 2 3; do
    for fs in data data/one data/one/deep; do
        for n in 1 2 3; do
            fill "$top/mnt/a/$fs" $((round * 10 + n))
            zfs snapshot "a/$fs@s$round-$n"
        done
    done
    "$top/venv/bin/bzfs" a/data b/data --recursive --delete-dst-snapshots --delete-dst-snapshots-no-crosscheck --no-privilege-elevation --log-dir "$top/bzfs-logs"
    # It leaves new file systems unmounted.
    zfs mount -a
    for fs in data data/one data/one/deep; do
        same "$top/mnt/a/$fs" "$top/mnt/b/$fs"
        same_snapshots "a/$fs" "b/$fs"
    done
    zfs destroy "a/data/one@s$round-2"
done
good b
