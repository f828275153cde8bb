#!/bin/bash
# bench-snapshots.sh [WEIR]   How long snapshots and listings take in a pool with 10,000 snapshots: 100 file systems with 100 each.
# WEIR: the program, target/release/weir if not given. Works in a scratch folder with a daemon of its own, and cleans up.
set -eu
weir=$(realpath "${1:-$(dirname "$0")/../target/release/weir}")
dir=$(mktemp -d)
export WEIR_RUNTIME_DIR=$dir/run WEIR_STATE_DIR=$dir/state
trap '"$weir" zpool destroy -f bench 2>/dev/null || true; "$weir" daemon stop 2>/dev/null || true; rm -rf "$dir"' EXIT
timed() { # WHAT COMMAND...
    local what=$1 from; shift
    from=$(date +%s%N)
    "$@" >"$dir/out"
    printf '%-44s %8d ms  %6d lines\n' "$what" $((($(date +%s%N) - from) / 1000000)) "$(wc -l <"$dir/out")"
}
"$weir" zpool create --size 4G -O mountpoint=none bench "$dir/a.img"
for i in $(seq 99); do "$weir" zfs create "bench/n$i"; done
every() { for i in $(seq 100); do "$weir" zfs snapshot -r "bench@s$i"; done; }
timed '100 times snapshot -r of 100 file systems' every
for i in 1 2 3; do
    timed 'one more snapshot' "$weir" zfs snapshot "bench/n1@more$i"
    timed 'zfs list -t snapshot' "$weir" zfs list -t snapshot
    timed 'zfs list -H -o name -t snapshot' "$weir" zfs list -H -o name -t snapshot
    timed 'zfs list' "$weir" zfs list
done
