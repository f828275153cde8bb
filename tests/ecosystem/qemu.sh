# qemu's programs on a volume, over NBD and as a file.
. "$(dirname "$0")/common.sh"
need qemu-img qemu-io
pool a 2G -O mountpoint=none
zfs create -V 256M -b 16k a/vm
uri=$(weir nbd start a/vm)
head -c 100M /dev/urandom > "$top/raw"
truncate -s 256M "$top/raw"
qemu-img convert -n -f raw -O raw "$top/raw" "$uri"
qemu-img compare -f raw -F raw "$top/raw" "$uri"
qemu-io -f raw "$uri" \
    -c "write -P 17 1M 64k" -c "write -z 2M 128k" -c "discard 4M 1M" -c "flush" -c "aio_write -P 99 -f 8191k 3k" -c aio_flush \
    -c "read -P 17 1M 64k" -c "read -P 0 2M 128k" -c "read -P 99 8191k 3k" | tee "$top/io"
! grep -iE "fail|error|verification" "$top/io"
zfs snapshot a/vm@one
qemu-io -f raw "$uri" -c "write -P 18 0 64M" -c flush
zvol=$(weir daemon status | grep -o "/[^ ]*zvol[^ ]*" | head -n 1)
qemu-io -f raw "$zvol/vm" -c "read -P 18 0 64M" -c "write -P 19 64M 1M" -c flush
qemu-io -f raw "$uri" -c "read -P 19 64M 1M" | tee "$top/io"
! grep -i "verification" "$top/io"
qemu-img convert -f raw -O qcow2 "$uri" "$top/copy.qcow2"
qemu-img compare -f raw -F qcow2 "$uri" "$top/copy.qcow2"
weir nbd stop
zfs rollback a/vm@one
zpool export a
zpool import -d "$top" a
uri=$(weir nbd start a/vm)
qemu-io -f raw "$uri" -c "read -P 17 1M 64k" | tee "$top/io"
! grep -i "verification" "$top/io"
weir nbd stop
good a
