# znapzend: plans in properties, two targets, rounds at later times (its --timeWarp), thinning on
# both sides, datasets that come and go, a target that was changed, an encrypted tree sent raw.
# ZNAPZEND is a folder with its source, where it is not installed.
. "$(dirname "$0")/common.sh"
if [ -n "${ZNAPZEND:-}" ]; then
    for p in znapzend znapzendzetup znapzendztatz; do
        printf '#!/bin/sh\nexec perl "%s/bin/%s" "$@"\n' "$ZNAPZEND" $p > "$top/bin/$p"
        chmod +x "$top/bin/$p"
    done
fi
need znapzend znapzendzetup znapzendztatz rsync mbuffer
perl -MMojolicious -e 1 || { echo "libmojolicious-perl is not installed"; exit 77; }
# Debian has no package with this role, which is for signals to a log file only.
if ! perl -MMojo::Log::Role::Clearable -e 1 2> /dev/null; then
    mkdir -p "$top/perl/Mojo/Log/Role"
    printf 'package Mojo::Log::Role::Clearable;\nuse Role::Tiny;\n1;\n' > "$top/perl/Mojo/Log/Role/Clearable.pm"
    export PERL5LIB=$top/perl
fi
pool a 1G
pool b 1G
pool c 1G
zfs create a/data
zfs create a/data/one
zfs create -o recordsize=16K a/data/two
zfs create -V 32M a/data/vol
echo "a password" > "$top/key"
zfs create -o encryption=on -o keyformat=passphrase -o "keylocation=file://$top/key" a/secret
zfs create a/secret/below
zfs create b/backup
zfs create -o x:mine=yes c/far

plan='1hours=>15minutes,1days=>1hours,7days=>1days'
znapzendzetup create --recursive --tsformat='%Y-%m-%d-%H%M%S' --donotask \
    --pre-snap-command="/bin/sh -c 'echo pre >> $top/hooks'" --post-snap-command="/bin/sh -c 'echo post >> $top/hooks'" \
    SRC "$plan" a/data DST:near '2hours=>15minutes,3days=>1hours' b/backup/data DST:far "$plan" c/far/data
# Its own properties are where it finds them again.
[ "$(zfs get -H -o value,source org.znapzend:src_plan a/data)" = "$plan	local" ]
[ "$(zfs get -H -o source org.znapzend:src_plan a/data/one)" = "inherited from a/data" ]
znapzendzetup list | tee "$top/list"
grep -q 'dst_far *= *c/far/data' "$top/list"
znapzendzetup export a/data > "$top/exported"
znapzendzetup delete a/data
# It overlooks properties with empty values.
[ -z "$(zfs get -H -s local -o property all a/data | grep org.znapzend | grep -v mbuffer_param)" ]
znapzendzetup list a/data 2>&1 | grep -q "cannot list backup config"
znapzendzetup import --write a/data "$top/exported"
[ "$(zfs get -H -o value org.znapzend:recursive a/data)" = on ]
znapzendzetup create --recursive --tsformat='%Y-%m-%d-%H%M%S' --donotask SRC "$plan" a/secret DST:far "$plan" c/far/secret

snapshots() { zfs list -H -t snapshot -o name -s creation -d 1 "$1" | sed 's/^[^@]*@//'; }
later=0
# Errors are in its log only.
round() { # SECONDS DATASET OPTION...
    later=$((later + $1))
    znapzend --runonce="$2" --logto="$top/log" --loglevel=debug --timeWarp=$later --autoCreation "${@:3}" 2> "$top/err"
    cat "$top/log" >> "$top/logs"
    # It asks for what is not there yet.
    no grep -iE 'error|warn|cannot|fail' <(grep -vE 'does not exist( or is offline|$)' "$top/log" "$top/err")
    rm "$top/log"
}
check() {
    for fs in "$@"; do
        for copy in b/backup c/far; do
            zfs mount $copy/$fs 2> /dev/null || :
            same "$top/mnt/a/$fs" "$top/mnt/$copy/$fs" --exclude=/one --exclude=/two --exclude=/new
            newest=$(snapshots a/$fs | tail -n 1)
            [ "$(zfs get -H -o value guid a/$fs@$newest)" = "$(zfs get -H -o value guid $copy/$fs@$newest)" ]
        done
    done
}
for n in {1..8}; do
    for d in data data/one data/two secret secret/below; do fill "$top/mnt/a/$d" $((n * 11)); done
    round 900 a/data
    round 0 a/secret --features=sendRaw
    check data data/one data/two
done
[ "$(grep -c pre "$top/hooks") $(grep -c post "$top/hooks")" = "8 8" ]
# Four quarters of the last hour, the hours before; the other plan has more quarters.
[ "$(snapshots a/data/one | wc -l)" = "$(snapshots c/far/data/one | wc -l)" ]
((6 >= $(snapshots a/data/one | wc -l)))
((8 <= $(snapshots b/backup/data/one | wc -l)))
[ "$(zfs get -H -o value keystatus c/far/secret)" = unavailable ]
# Sent one by one, each has a key of its own.
for fs in secret secret/below; do
    zfs load-key -L "file://$top/key" c/far/$fs
    zfs mount c/far/$fs
    same "$top/mnt/a/$fs" "$top/mnt/c/far/$fs" --exclude=/below
done

# What is new is sent whole; hours later the old ones go, on all sides, many in one command.
zfs create a/data/new
fill "$top/mnt/a/data/new" 5
round 10000 a/data --features=recvu,compressed
check data/new
round 300000 a/data
[ "$(snapshots a/data/one | wc -l) $(snapshots c/far/data/one | wc -l)" = "2 2" ]
((4 >= $(snapshots b/backup/data/one | wc -l)))

# A target that was changed is rolled back.
zfs mount b/backup/data/one 2> /dev/null || :
echo changed > "$top/mnt/b/backup/data/one/changed"
fill "$top/mnt/a/data/one" 99
round 900 a/data
check data/one data/two data/new
znapzendztatz -H -r a/data | tee "$top/stats"
for d in a/data/one b/backup/data/one c/far/data/one; do grep -q "	$d\$" "$top/stats"; done
good a
good b
good c
