# Monitoring plugins from PyPI: check_zfs_snapshot by the age of snapshots, check_zpools by the JSON
# of `zpool status` (a version 2.3 of OpenZFS, or later, has it).
. "$(dirname "$0")/common.sh"
need python3
python3 -m venv "$top/venv" && "$top/venv/bin/pip" install -q check-zfs-snapshot check-zpools || { echo "the plugins are not installed"; exit 77; }
start=$(date -d "2026-01-01 00:00:00" +%s)
moment() { date -d "@$1" "+%F %T"; }
daemon_at "$(moment "$start")"
truncate -s 256M "$top/m1" "$top/m2"
zpool create -m "$top/mnt/m" m mirror "$top/m1" "$top/m2"
zfs create m/data
zfs snapshot m/data@one

age() { # SECONDS CODE WORD
    local code=0
    at "$(moment $((start + $1)))" "$top/venv/bin/check_zfs_snapshot" -d m/data -w 1000 -c 2000 > "$top/out" || code=$?
    cat "$top/out"
    [ $code = "$2" ] && grep -q "^ZFS_SNAPSHOT $3" "$top/out"
}
age 500 0 OK
age 1500 1 WARNING
age 2500 2 CRITICAL

zpool scrub -w m
# Its log goes to a journal that may not be there, with many words.
pools() { at "$(moment $((start + 60)))" "$top/venv/bin/check_zpools" check --format json > "$top/out" 2> "$top/err"; }
pools || { grep -A 2 '^Error' "$top/err"; exit 1; }
python3 -c 'import json, sys; json.load(sys.stdin)' < "$top/out"
grep -q '"m"' "$top/out"
zpool offline m "$top/m2"
no pools
grep -q DEGRADED "$top/out"
