# ext4 and xfs on volumes through losetup, with kills of the daemon under fsync load: the file system
# is whole after each, and so is each record that fsync acknowledged.
. "$(dirname "$0")/common.sh"
need losetup mkfs.ext4 mkfs.xfs e2fsck xfs_repair python3
kills=${KILLS:-10}
pool a 4G -O mountpoint=none
zfs create -V 512M a/ext4
zfs create -s -V 512M -b 4k a/xfs
loop=
at_end() {
    [ -z "${writer:-}" ] || kill -9 "$writer" 2> /dev/null
    umount -l "$top/mnt/fs" 2> /dev/null
    [ -z "$loop" ] || losetup -d "$loop" 2> /dev/null
}
folder() { weir daemon status | grep -o "/[^ ]*zvol[^ ]*" | head -n 1; }
attach() { loop=$(losetup --find --show --direct-io=on "$zvol/$1"); }
detach() { losetup -d "$loop"; loop=; }
zvol=$(folder)
mkdir "$top/mnt/fs"
for fs in ext4 xfs; do attach $fs; "mkfs.$fs" -q "$loop"; detach; done

for round in $(seq "$kills"); do
    fs=$([ $((round % 2)) = 0 ] && echo ext4 || echo xfs)
    attach $fs
    mount -o "$([ $fs = xfs ] && echo nouuid,)noatime" "$loop" "$top/mnt/fs"
    python3 "$(dirname "$0")/fsync-load.py" write "$top/mnt/fs" "$top/acked" "$round" & writer=$!
    # Until so many records were acknowledged, another number each round.
    until [ "$(wc -l < "$top/acked" 2> /dev/null || echo 0)" -ge $((20 + round * 7 % 100)) ]; do read -rt 0.05 < <(:) || :; done
    kill_daemon
    wait $writer || :
    writer=
    umount -l "$top/mnt/fs"
    losetup -d "$loop"; loop=
    start_daemon a
    zvol=$(folder)
    attach $fs
    # The journal is replayed by mounting, then everything is checked.
    mount -o "$([ $fs = xfs ] && echo nouuid,)noatime" "$loop" "$top/mnt/fs"
    python3 "$(dirname "$0")/fsync-load.py" check "$top/mnt/fs" "$top/acked" "$round"
    umount "$top/mnt/fs"
    if [ $fs = ext4 ]; then e2fsck -fn "$loop"; else xfs_repair -n "$loop" > /dev/null; fi
    detach
    rm -f "$top/acked"
    echo "round $round: $fs is whole"
done
good a
