# sanoid: three months of its runs, ten hours of them one by one: what it takes and prunes by policy, its monitors
# of snapshots, health and capacity, and findoid.
. "$(dirname "$0")/common.sh"
need sanoid findoid
start=$(date -d "2026-01-01 00:00:20" +%s)
moment() { date -d "@$1" "+%F %T"; }
daemon_at "$(moment "$start")"
pool a 1G
truncate -s 512M "$top/m1" "$top/m2"
zpool create -m "$top/mnt/m" m mirror "$top/m1" "$top/m2"
zfs create a/data
zfs create a/data/one
zfs create a/data/two
zfs create a/data/skipped
zfs create -V 32M a/data/vol
zfs create m/whole
zfs create m/whole/below
mkdir "$top/conf" "$top/cache" "$top/sanoid"
cp /usr/share/sanoid/sanoid.defaults.conf "$top/conf"
cat > "$top/conf/sanoid.conf" <<END
[a]
use_template = none
capacity_warn = 60
capacity_crit = 75
[a/data]
use_template = some
recursive = yes
process_children_only = yes
[a/data/skipped]
use_template = none
[m/whole]
use_template = some
recursive = zfs
[template_some]
frequently = 0
hourly = 6
daily = 3
monthly = 2
yearly = 1
autosnap = yes
autoprune = yes
[template_none]
autosnap = no
autoprune = no
monitor = no
END
run() { # TIME OPTION...
    # Its list of snapshots would count as new: files have the real time.
    rm -f "$top/cache/"*
    at "$(moment "$1")" sanoid --configdir="$top/conf" --cache-dir="$top/cache" --run-dir="$top/sanoid" "${@:2}"
}
# Its own complaints are warnings on standard error; the codes of its prunings are not looked at.
clean() {
    run "$@" > "$top/out" 2> "$top/err" || { cat "$top/out" "$top/err"; return 1; }
    # Standard error of `zfs` goes through it, and gets an empty line.
    no grep . "$top/err"
}
snapshots() { zfs list -H -t snapshot -o name -s creation -d 1 "$1" | sed 's/^[^@]*@//'; }
kept() { snapshots "$1" | grep -c "_$2$" || :; }

hours=(); for h in {0..9}; do hours+=($((start + h * 3600))); done
for d in {1..5}; do hours+=($((start + d * 86400))); done
for m in 02 03 04; do hours+=($(date -d "2026-$m-01 00:10:00" +%s)); done
for now in "${hours[@]}"; do
    daemon_at "$(moment "$now")"
    for d in a/data/one a/data/two a/data/skipped m/whole m/whole/below; do
        echo "$d $now" > "$top/mnt/$d/stamp"
        head -c 100000 /dev/urandom > "$top/mnt/$d/noise"
    done
    clean "$now" --cron --verbose
    # One more run in the same hour takes nothing.
    clean $((now + 60)) --cron --verbose
    no grep '^taking' "$top/out"
done

# As many as the policy says are left of each kind; a month is 31 days.
for d in a/data/one a/data/two a/data/vol m/whole m/whole/below; do
    [ "$(kept $d hourly) $(kept $d daily) $(kept $d monthly) $(kept $d yearly)" = "6 3 3 1" ]
done
for d in a a/data a/data/skipped m; do [ -z "$(snapshots $d)" ]; done
[ "$(snapshots m/whole)" = "$(snapshots m/whole/below)" ]
# Names say when they were taken: so does `creation`, and the content is that of the time.
for d in a/data/one a/data/two m/whole m/whole/below; do
    for s in $(snapshots $d); do
        taken=$(zfs get -Hp -o value creation "$d@$s")
        said=$(date -d "$(echo "$s" | cut -d _ -f 2,3 | tr _ ' ')" +%s)
        read -r name stamp < "$top/mnt/$d/.zfs/snapshot/$s/stamp"
        [ "$name" = "$d" ]
        # The clock goes on while a run takes its snapshots.
        ((taken >= said && said >= stamp && taken < stamp + 60))
    done
done
# What was pruned is not there.
[ "$(ls "$top/mnt/a/data/one/.zfs/snapshot" | wc -l)" = 13 ]

# A held snapshot, and one with a clone, are complained of and stay; the others go.
now=$((now + 40 * 86400))
daemon_at "$(moment "$now")"
clean "$now" --take-snapshots --verbose
held=a/data/one@$(snapshots a/data/one | grep -m 1 hourly)
cloned=a/data/two@$(snapshots a/data/two | grep -m 1 hourly)
zfs hold keep "$held"
zfs clone "$cloned" a/twin
run $((now + 60)) --prune-snapshots --verbose > "$top/out" 2> "$top/err"
grep -q "could not remove $held" "$top/err"
grep -q "could not remove $cloned" "$top/err"
grep -q "dependent clones" "$top/err"
[ "$(grep -c 'could not remove' "$top/err")" = 2 ]
zfs list -H "$held" a/twin > /dev/null
[ "$(kept a/data/one hourly) $(kept a/data/two hourly) $(kept a/data/vol hourly)" = "7 7 6" ]
zfs release keep "$held"
zfs destroy a/twin
clean $((now + 2000)) --prune-snapshots --verbose
no zfs list -H "$held"
[ "$(kept a/data/one hourly) $(kept a/data/two hourly)" = "6 6" ]

# Monitors: good, then late, then a device off, then full.
[[ $(run $((now + 2100)) --monitor-snapshots) = OK* ]]
code=0; late=$(run $((now + 50 * 86400)) --monitor-snapshots) || code=$?
[[ $code = 2 && $late = CRIT* && $late = *"a/data/one newest hourly snapshot is"* ]]
health() { code=0; run $((now + 2100)) --monitor-health > "$top/out" || code=$?; cat "$top/out"; }
health
[ "$code" = 0 ]
grep -q 'OK ZPOOL a : ONLINE {Size:.*Cap:[0-9]*%}' "$top/out"
grep -q 'OK ZPOOL m : ONLINE' "$top/out"
zpool offline m "$top/m2"
health
[ "$code" = 1 ]
grep -q "WARNING ZPOOL m : DEGRADED .*m2:OFFLINE" "$top/out"
zpool online m "$top/m2"
zpool wait -t resilver m
health
[ "$code" = 0 ]
capacity() { code=0; run $((now + 2100)) --monitor-capacity > "$top/out" || code=$?; cat "$top/out"; }
capacity
[ "$code" = 0 ]
head -c 600M /dev/urandom > "$top/mnt/a/large"
zpool sync a
capacity
[ "$code" = 1 ]
head -c 150M /dev/urandom >> "$top/mnt/a/large"
zpool sync a
capacity
[ "$code" = 2 ]
grep -q 'CRITICAL ZPOOL a : [78][0-9]%' "$top/out"

# findoid: each version that a file has in snapshots, and the file.
findoid "$top/mnt/a/data/one/stamp" | tee "$top/found"
[ "$(wc -l < "$top/found")" -gt 6 ]
cut -f 3 "$top/found" | xargs -d '\n' cat > "$top/stamps"
# The file is as in the last one.
[ "$(sort -u "$top/stamps" | wc -l)" = $(($(wc -l < "$top/found") - 1)) ]
good a
good m
