# zfs-auto-snapshot: the runs of its cron files, what properties leave out, keeping, deferred
# destroys of held snapshots, pools in a scrub.
. "$(dirname "$0")/common.sh"
need zfs-auto-snapshot getopt
start=$(date -d "2026-01-01 00:17:00" +%s)
moment() { date -d "@$1" "+%F %T"; }
daemon_at "$(moment "$start")"
pool a 512M
truncate -s 512M "$top/m1" "$top/m2"
zpool create -m "$top/mnt/m" m mirror "$top/m1" "$top/m2"
zfs create -p a/data/one
zfs create a/data/two
zfs create -V 16M a/data/vol
zfs create -o com.sun:auto-snapshot=false a/none
zfs create a/none/below
zfs create -o com.sun:auto-snapshot=true a/none/but
zfs create -o com.sun:auto-snapshot:hourly=false a/daily
zfs create m/data

now=$start
snap() { # SECONDS OPTION...: that much later
    now=$((now + $1))
    daemon_at "$(moment $now)"
    local code=0
    at "$(moment $now)" zfs-auto-snapshot -v "${@:2}" > "$top/out" 2> "$top/err" || code=$?
    cat "$top/out" "$top/err"
    return $code
}
says() { grep -q " $1 created, $2 destroyed, $3 warnings" "$top/out"; }
snapshots() { zfs list -H -t snapshot -o name -s creation -d 1 "$1" | sed 's/^[^@]*@//'; }
count() { snapshots "$1" | grep -c "$2" || :; }

for n in {1..6}; do
    for d in a/data/one m/data; do echo "$d $n" > "$top/mnt/$d/stamp"; done
    # As cron.hourly has it, but for the system's log and the number.
    snap 3600 --label=hourly --keep=3 //
    [ ! -s "$top/err" ]
done
# a and a/none are not done with what is below: something there is left out.
[ "$(snapshots a/data | tr '\n' ' ')" = "zfs-auto-snap_hourly-2026-01-01-0417 zfs-auto-snap_hourly-2026-01-01-0517 zfs-auto-snap_hourly-2026-01-01-0617 " ]
for d in a a/data/one a/data/two a/data/vol a/none/but m m/data; do [ "$(count $d hourly)" = 3 ]; done
for d in a/none a/none/below a/daily; do [ "$(count $d .)" = 0 ]; done
for d in a/data/one m/data; do
    for n in 4 5 6; do
        [ "$(cat "$top/mnt/$d/.zfs/snapshot/zfs-auto-snap_hourly-2026-01-01-0${n}17/stamp")" = "$d $n" ]
    done
done

snap 86400 --label=daily --keep=31 --event="by hand" //
for d in a a/data/one a/none/but a/daily m/data; do [ "$(count $d daily)" = 1 ]; done
daily=$(snapshots m/data | grep daily)
[ "$(zfs get -H -o value com.sun:auto-snapshot-desc "m/data@$daily")" = "by hand" ]

# A held snapshot is marked, and gone once it is released.
oldest=$(snapshots a/data/two | grep -m 1 hourly)
zfs hold mine "a/data/two@$oldest"
snap 3600 --label=hourly --keep=3 -r a/data
says 1 1 0
[ "$(count a/data/one hourly)" = 3 ]
[ "$(count a/data/two hourly)" = 4 ]
[ "$(zfs get -H -o value defer_destroy "a/data/two@$oldest")" = on ]
zfs release mine "a/data/two@$oldest"
[ "$(count a/data/two hourly)" = 3 ]
# One with a clone, likewise.
oldest=$(snapshots a/data/one | grep -m 1 hourly)
zfs clone "a/data/one@$oldest" a/clone
snap 3600 --label=hourly --keep=3 --fast -r a/data
says 1 1 0
zfs list -H "a/data/one@$oldest" > /dev/null
zfs destroy a/clone
no zfs list -H "a/data/one@$oldest"

# Nothing is done in a dry run, only named datasets otherwise, and none with the same name again.
before=$(zfs list -H -t snapshot -o name)
snap 3600 --label=hourly --keep=1 --dry-run //
grep -q "^zfs snapshot .*m@zfs-auto-snap_hourly" "$top/out"
grep -q "^zfs destroy -d -r 'm@" "$top/out"
[ "$(zfs list -H -t snapshot -o name)" = "$before" ]
snap 0 --label=weekly a/data/one
snap 0 --label=weekly a/data/one
says 0 0 1
grep -q "dataset already exists" "$top/err"
[ "$(count a/data weekly) $(count a/data/one weekly)" = "0 1" ]
snap 0 --label=x --default-exclude //
[ "$(zfs list -H -t snapshot -o name | grep _x-)" = "a/none/but@zfs-auto-snap_x-$(date -d "@$now" +%F-%H%M)" ]
# The one that a run makes counts as kept, also where it makes none.
snap 60 --label=hourly --keep=2 --destroy-only //
for d in a a/data/one a/data/vol m m/data; do [ "$(count $d hourly)" = 1 ]; done
no snap 0 nowhere
grep -q "nowhere is not a ZFS filesystem or volume" "$top/err"

# A pool in a scrub is left out if asked for; the fault makes it last.
head -c 30M /dev/urandom > "$top/mnt/m/data/large"
zpool sync m
now=$((now + 60)); daemon_at "$(moment $now)"
weir zinject -d "$top/m1" -D 200:1 m
zpool scrub m
at "$(moment $now)" zfs-auto-snapshot -v --skip-scrub --label=late // > "$top/out"
zpool status m | grep -q "scrub in progress"
[ "$(count m late) $(count a/data late)" = "0 1" ]
weir zinject -c all
zpool wait -t scrub m
good m
good a
