# PostgreSQL: pgbench, a kill of the daemon, recovery, and the checks of its own.
. "$(dirname "$0")/common.sh"
bin=$(ls -d /usr/lib/postgresql/*/bin 2> /dev/null | tail -n 1)
[ -n "$bin" ] || { echo "postgresql is not installed"; exit 77; }
chmod 755 "$top" "$top/mnt"
pool a 4G -O recordsize=16k -O compression=lz4
data=$top/mnt/a/db
as() { setpriv --reuid=postgres --regid=postgres --init-groups env -C / "$@"; }
install -d -o postgres -m 700 "$data"
install -d -o postgres "$top/sock"
as "$bin/initdb" -D "$data" -k > /dev/null
start() { as "$bin/pg_ctl" -w -D "$data" -l "$top/sock/log" -o "-k $top/sock -c listen_addresses=" start > /dev/null; }
at_end() { as "$bin/pg_ctl" -m immediate -D "$data" stop > /dev/null 2>&1; }
start
as "$bin/pgbench" -h "$top/sock" -i -s 10 -q postgres
as "$bin/pgbench" -h "$top/sock" -c 4 -T 20 postgres
sum() { as "$bin/psql" -h "$top/sock" -Atc "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history), (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)" postgres; }
[ "$(sum)" = "t|t" ]
as "$bin/pgbench" -h "$top/sock" -n -c 4 -T 3600 postgres > "$top/sock/bench" 2>&1 & load=$!
until [ "$(as "$bin/psql" -h "$top/sock" -Atc "select count(*) from pgbench_history" postgres)" -gt 25000 ]; do :; done
postmaster=$(head -n 1 "$data/postmaster.pid")
kill_daemon
wait $load || :
# Its folder is gone: it is told to end at once, and is waited for.
kill -QUIT "$postmaster"
while kill -0 "$postmaster" 2> /dev/null; do :; done
umount -l "$top/mnt/a"
start_daemon a
start
[ "$(sum)" = "t|t" ]
as "$bin/psql" -h "$top/sock" -qc "create extension amcheck" postgres
as "$bin/pg_amcheck" -h "$top/sock" --heapallindexed postgres
as "$bin/pg_ctl" -D "$data" -m fast stop > /dev/null
as "$bin/pg_checksums" -D "$data" --check | tail -n 3
at_end() { :; }
good a
