# pyznap from PyPI: takes, cleans and sends by its configuration, with the clock of some days; what
# it makes of held snapshots, streams that broke off and a target that was changed.
. "$(dirname "$0")/common.sh"
need rsync python3 mbuffer pv
python3 -m venv "$top/venv" && "$top/venv/bin/pip" install -q pyznap setuptools\<80 || { echo "pyznap is not installed"; exit 77; }
start=$(date -d "2026-03-01 10:00:00" +%s)
moment() { date -d "@$1" "+%F %T"; }
daemon_at "$(moment "$start")"
pool a 1G
pool b 1G -O atime=off
zfs create a/data
zfs create a/data/one
zfs create -o recordsize=16K a/data/two
zfs create a/data/temp
zfs create -V 32M a/data/vol
echo "a password" > "$top/key"
zfs create -o encryption=on -o keyformat=passphrase -o "keylocation=file://$top/key" a/secret
cat > "$top/conf" <<END
[a/data]
frequent = 0
hourly = 4
daily = 2
weekly = 1
monthly = 0
yearly = 0
snap = yes
clean = yes
dest = b/data
dest_auto_create = yes
exclude = a/data/temp
[a/secret]
frequent = 0
hourly = 2
daily = 0
weekly = 0
monthly = 0
yearly = 0
snap = yes
clean = yes
dest = b/secret
dest_auto_create = no
raw_send = yes
[b/data]
frequent = 0
hourly = 6
daily = 0
weekly = 0
monthly = 0
yearly = 0
snap = no
clean = yes
END
now=$start
# Mistakes are lines with ERROR, its exit code is always 0.
run() { at "$(moment "$now")" "$top/venv/bin/pyznap" --config "$top/conf" "$@" | tee "$top/out"; }
clean() { run "$@"; no grep -E 'ERROR|Error|Traceback' "$top/out"; }
snapshots() { zfs list -H -t snapshot -o name -s creation -d 1 "$1" | sed 's/^[^@]*@//'; }
kept() { snapshots "$1" | grep -c "_$2$" || :; }

# A target that is not there and is not to be made is an error, which is found in the text.
run snap --full
grep -q "ERROR: Dataset b/data does not exist" "$top/out"
run send
grep -q "ERROR: Destination b/secret does not exist" "$top/out"
# Raw streams of an encrypted file system make one that is none's child.
zfs send -w "a/secret@$(snapshots a/secret | head -n 1)" | zfs receive -u b/secret
sent() {
    for fs in data/one data/two; do
        # `-u` does not mount; some are since the daemon began again.
        zfs mount "b/$fs" 2> /dev/null || :
        same "$top/mnt/a/$fs" "$top/mnt/b/$fs"
    done
    for fs in data/one data/two data/vol secret; do
        newest=$(snapshots a/$fs | tail -n 1)
        [ "$(zfs get -H -o value guid "a/$fs@$newest")" = "$(zfs get -H -o value guid "b/$fs@$newest")" ]
    done
}
for n in {1..7}; do
    now=$((start + n * 3600 + (n > 5) * 86400))
    daemon_at "$(moment $now)"
    # An encrypted file system has no key after a start.
    zfs load-key a/secret
    zfs mount a/secret
    for d in a/data a/data/one a/data/two a/secret; do fill "$top/mnt/$d" $((n * 7)); done
    clean snap --full
    # Standing still is done as well, and takes nothing.
    clean snap --full
    no grep -E 'Taking snapshot |Deleting' "$top/out"
    clean send
    sent
    clean snap --clean
done
for fs in data data/one data/two data/temp data/vol; do
    [ "$(kept a/$fs hourly) $(kept a/$fs daily) $(kept a/$fs weekly)" = "4 2 1" ]
done
[ "$(kept a/secret hourly)" = 2 ]
[ "$(kept b/data/one hourly) $(kept b/data/one daily)" = "6 0" ]
no zfs list b/data/temp
[ "$(zfs get -H -o value keystatus b/secret)" = unavailable ]
zfs load-key -L "file://$top/key" b/secret
zfs mount b/secret
same "$top/mnt/a/secret" "$top/mnt/b/secret"
zfs unmount b/secret

# A held snapshot is in its way.
oldest=$(snapshots a/data/one | grep -m 1 hourly)
zfs hold keep "a/data/one@$oldest"
sed -i '0,/hourly = 4/s//hourly = 3/' "$top/conf"
run snap --clean
grep -q "ERROR: .*a/data/one@$oldest: dataset is busy" "$top/out"
[ "$(grep -c ERROR "$top/out") $(kept a/data/two hourly) $(kept a/data/one hourly)" = "1 3 4" ]
zfs release keep "a/data/one@$oldest"
clean snap --clean
[ "$(kept a/data/one hourly)" = 3 ]
run send -s a/nothing -d b/nothing
grep -q "ERROR: Source a/nothing does not exist" "$top/out"

# A target that was changed is rolled back, a stream that broke off is gone on with.
now=$((now + 3600)); daemon_at "$(moment $now)"
zfs mount b/data/two 2> /dev/null || :
echo changed > "$top/mnt/b/data/two/changed"
head -c 40M /dev/urandom > "$top/mnt/a/data/two/large"
clean snap --take
clean send -s a/data/two -d b/data/two
zfs mount b/data/two 2> /dev/null || :
same "$top/mnt/a/data/two" "$top/mnt/b/data/two"
head -c 40M /dev/urandom > "$top/mnt/a/data/one/large"
zfs snapshot a/data/one@pyznap_cut
base=$(snapshots b/data/one | tail -n 1)
zfs send -i "@$base" a/data/one@pyznap_cut 2> /dev/null | head -c 20M | zfs receive -s -F b/data/one 2> /dev/null && exit 1
[ "$(zfs get -H -o value receive_resume_token b/data/one)" != - ]
clean send -s a/data/one -d b/data/one -r
grep -q "Found resume token" "$top/out"
zfs mount b/data/one 2> /dev/null || :
same "$top/mnt/a/data/one" "$top/mnt/b/data/one"
good a
good b
