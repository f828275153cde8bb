# zfs-autobackup from PyPI: selected trees, several runs with thinning, an encrypted file system.
. "$(dirname "$0")/common.sh"
need rsync python3
python3 -m venv "$top/venv" && "$top/venv/bin/pip" install -q zfs-autobackup || { echo "zfs-autobackup is not installed"; exit 77; }
pool a 2G
pool b 2G -O atime=off
zfs create a/data
zfs create a/data/one
zfs create -V 32M a/data/vol 
echo "a password" > "$top/key"
zfs create -o encryption=on -o keyformat=passphrase -o "keylocation=file://$top/key" a/data/secret
zfs set autobackup:eco=true a/data
zfs create b/backup
for round in 1 2 3; do
    for fs in data data/one data/secret; do fill "$top/mnt/a/$fs" $round; done
    # `written` counts what is on disk.
    zpool sync a
    "$top/venv/bin/zfs-autobackup" --verbose --keep-source=2 --keep-target=2 --clear-mountpoint --decrypt eco b/backup
    # Names of its snapshots have seconds.
    start=$(date +%s); while [ "$(date +%s)" = "$start" ]; do read -rt 0.2 < <(:) || :; done
done
for fs in data data/one data/secret; do
    zfs set mountpoint="$top/mnt/back" b/backup/a/$fs
    zfs mount b/backup/a/$fs 2> /dev/null || :
    same "$top/mnt/a/$fs" "$top/mnt/back" --exclude=/one --exclude=/secret
    zfs unmount b/backup/a/$fs
    zfs inherit mountpoint b/backup/a/$fs
    [ "$(zfs list -H -t snapshot -d 1 b/backup/a/$fs | wc -l)" = 2 ]
done
"$top/venv/bin/zfs-autobackup" --verbose --no-snapshot --raw eco b/backup 2>&1 | tail -n 3 || :
good a
good b
