# Docker on a file system of weir (image, containers, commits), and its own driver `zfs` as far as
# it goes: it starts, tells of the pool, makes and destroys datasets, and ends at mount(2), since
# the kernel has no file system `zfs` and Docker does not call mount(8).
# It changes /dev, so it has mounts of its own however it is started.
[ -n "${OWN_MOUNTS:-}" ] || OWN_MOUNTS=1 exec unshare -m --propagation private bash "$0"
. "$(dirname "$0")/common.sh"
need docker dockerd containerd rsync
pool t 2G
zfs create t/docker
zfs create t/data
# The driver opens /dev/zfs and does nothing with it. A folder of devices for this case only.
mkdir "$top/dev"
mount -t tmpfs none "$top/dev"
for n in null zero full random urandom fuse tty ptmx; do cp -a /dev/$n "$top/dev/"; done
# New ones, nothing of the machine's below the scratch folder.
mkdir "$top/dev/pts" "$top/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 none "$top/dev/pts"
mount -t tmpfs none "$top/dev/shm"
ln -s /proc/self/fd "$top/dev/fd"
ln -s null "$top/dev/zfs"
mount --move "$top/dev" /dev

started=()
at_end() {
    for pid in "${started[@]}"; do kill "$pid" 2> /dev/null && wait "$pid"; done
}
# `begin ROOT DRIVER OPTION...`: Docker without networks, until it answers.
begin() {
    [ ${#started[@]} = 0 ] || { at_end; started=(); }
    containerd --root "$top/containerd" --state "$top/cstate" --address "$top/c.sock" > "$top/c.log" 2>&1 &
    started=($!)
    dockerd --containerd "$top/c.sock" -H "unix://$top/d.sock" --data-root "$1" --exec-root "$top/exec" -p "$top/pid" \
        --iptables=false --bridge=none --storage-driver "$2" "${@:3}" > "$top/docker.log" 2>&1 &
    started=($! "${started[@]}")
    until docker info > "$top/info" 2> /dev/null; do
        kill -0 "${started[0]}" || { tail -n 5 "$top/docker.log"; return 1; }
    done
}
export DOCKER_HOST=unix://$top/d.sock

# A small image: only what `ldd` names of one program, and some files.
mkdir -p "$top/image/bin"
for f in /bin/sh /bin/cat /bin/ls; do
    cp $f "$top/image/bin/"
    ldd $f | grep -o '/[^ ]*' | while read -r lib; do cp -L --parents "$lib" "$top/image/"; done
done
fill "$top/image" 1
mkdir "$top/image/srv"
echo one > "$top/image/srv/one"

begin "$top/mnt/t/data/docker" vfs
grep -q "Storage Driver: vfs" "$top/info"
tar -C "$top/image" --xattrs -c . | docker import - one
for n in 1 2 3; do docker create --name c$n --network none one /bin/sh -c 'cat /srv/one' > /dev/null; done
fill "$top/image" 2
docker cp "$top/image/." c1:/
echo two > "$top/two"
docker cp "$top/two" c1:/srv/two
docker diff c1 | tee "$top/diff"
grep -q "A /srv/two" "$top/diff"
docker commit c1 two > /dev/null
docker create --name c4 --network none two /bin/sh > /dev/null
mkdir "$top/back"
docker export c4 | tar -C "$top/back" --xattrs -x
[ "$(cat "$top/back/srv/one" "$top/back/srv/two" | tr '\n' ' ')" = "one two " ]
rm "$top/back/srv/two"
# Extended attributes and hard links do not go through `docker cp`.
for d in "$top"/image/d*; do diff -r --no-dereference "$d" "$top/back/$(basename "$d")"; done
zfs snapshot t/data@images
# The file system goes and comes: Docker finds all of it.
at_end; started=()
weir daemon stop
start_daemon t
begin "$top/mnt/t/data/docker" vfs
[ "$(docker images -q | wc -l) $(docker ps -aq | wc -l)" = "2 4" ]
docker rm c1 c2 c3 c4 > /dev/null
docker rmi one two > /dev/null
[ -z "$(ls "$top/mnt/t/data/docker/vfs/dir")" ]
at_end; started=()
zfs rollback t/data@images
begin "$top/mnt/t/data/docker" vfs
docker export c4 | tar -x -O srv/two | grep -q two
at_end; started=()

begin "$top/zfs" zfs --storage-opt zfs.fsname=t/docker
for line in "Storage Driver: zfs" "Zpool: t" "Zpool Health: ONLINE" "Parent Dataset: t/docker"; do
    grep -q "$line" "$top/info"
done
[ "$(sed -n 's/.*Space Available: //p' "$top/info")" = "$(zfs get -Hp -o value available t/docker)" ]
tar -C "$top/image" -c . | docker import - one > "$top/out" 2>&1 && exit 1
grep -q "error creating zfs mount: mount t/docker/[0-9a-f]*:.*: no such device" "$top/out"
# It tidies up behind itself.
[ "$(zfs list -H -o name -r t/docker)" = t/docker ]
zpool history t | grep -q "zfs create -o mountpoint=legacy t/docker/"
zpool history t | grep -q "zfs destroy -r t/docker/"
at_end; started=()
good t
