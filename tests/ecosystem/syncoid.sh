# syncoid: trees, changes, clones, bookmarks, raw sends, a stream that breaks off.
. "$(dirname "$0")/common.sh"
need syncoid pv mbuffer rsync
pool a 2G
pool b 2G
zfs create a/data
zfs create -o compression=zstd -o x:owner=me a/data/one
zfs create -o recordsize=1M a/data/two
echo "a password" > "$top/key"
zfs create -o encryption=on -o keyformat=passphrase -o "keylocation=file://$top/key" a/secret
for fs in data data/one data/two secret; do fill "$top/mnt/a/$fs" 1; done

# Names of its snapshots have the second: no two runs in one.
next_second() { local now=$EPOCHSECONDS; until [ "$EPOCHSECONDS" != "$now" ]; do :; done; }
sync_all() { next_second; syncoid --no-privilege-elevation --recursive "$@" a/data b/data; }
sync_raw() { next_second; syncoid --no-privilege-elevation --sendoptions=w a/secret b/secret; }
check() {
    for fs in data data/one data/two; do
        same "$top/mnt/a/$fs" "$top/mnt/b/$fs"
        same_snapshots "a/$fs" "b/$fs"
    done
}
sync_all
check
# Twice with changes: incremental streams, also of what is new.
fill "$top/mnt/a/data/one" 2
zfs snapshot -r a/data@mine
zfs create a/data/two/new
fill "$top/mnt/a/data/two/new" 3
sync_all
same "$top/mnt/a/data/two/new" "$top/mnt/b/data/two/new"
fill "$top/mnt/a/data/two" 4
rm -rf "$top/mnt/a/data/one/d1"
sync_all --no-stream
zfs snapshot -r a/data@marked
sync_all --no-sync-snap --create-bookmark
zfs list -H -t bookmark -o name -r a/data | grep -q '#marked'

# A clone is a clone there, too.
zfs clone a/data/one@mine a/data/twin
fill "$top/mnt/a/data/twin" 5
sync_all
[ "$(zfs get -H -o value origin b/data/twin)" = b/data/one@mine ]
same "$top/mnt/a/data/twin" "$top/mnt/b/data/twin"

# Raw: the other side has no key, and the same content once it has.
sync_raw
fill "$top/mnt/a/secret" 6
sync_raw
[ "$(zfs get -H -o value keystatus b/secret)" = unavailable ]
zfs load-key -L "file://$top/key" b/secret
zfs mount b/secret
same "$top/mnt/a/secret" "$top/mnt/b/secret"

# A stream that breaks off is gone on with.
head -c 60M /dev/urandom > "$top/mnt/a/data/two/large"
zfs snapshot a/data/two@cut
last=$(zfs list -H -o name -t snapshot -s creation -d 1 b/data/two | tail -n 1 | sed 's/.*@//')
zfs send -I "@$last" a/data/two@cut | head -c 30M | zfs receive -s -F b/data/two && exit 1
[ "$(zfs get -H -o value receive_resume_token b/data/two)" != - ]
sync_all | tee "$top/resumed"
grep -q Resuming "$top/resumed"
check
good a
good b
