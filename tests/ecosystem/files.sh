# sqlite, git, cargo, rsync and tar on a file system.
. "$(dirname "$0")/common.sh"
need sqlite3 git cargo rsync setfattr setfacl tar
pool a 4G -O compression=lz4 -O acltype=posix -O xattr=sa
cd "$top/mnt/a"

for mode in delete wal; do
    sqlite3 $mode.db "pragma journal_mode=$mode; create table t(a integer primary key, b blob);
        with recursive n(x) as (select 1 union all select x + 1 from n where x < 20000) insert into t select x, randomblob(x % 300) from n;
        create index i on t(b); delete from t where a % 3 = 0; vacuum;" > /dev/null
    [ "$(sqlite3 $mode.db 'pragma integrity_check; select count(*) from t')" = "ok
13334" ]
done

git init -q --bare origin.git
git clone -q origin.git tree 2> /dev/null
cd tree
git config user.name x; git config user.email x@x
for n in 1 2 3 4 5; do fill . $n; git add -A; git commit -qm "$n"; done
git push -q origin HEAD
git gc -q --aggressive --prune=now
git fsck --full --strict
git -C ../origin.git fsck --full --strict
git checkout -q HEAD~3; git checkout -q -
[ -z "$(git status --short)" ]
cd ..

cargo init -q --vcs none --name x crate
printf '#[test]\nfn t() { assert_eq!(1 + 1, 2); }\nfn main() {}\n' > crate/src/main.rs
(cd crate && cargo test -q --offline && cargo build -q --release --offline && ./target/release/x)

mkdir from
fill from 7
setfacl -m u:1234:rw "$(find from -type f | head -n 1)"
mknod from/null c 1 3; mkfifo from/fifo; truncate -s 3G from/sparse; echo x | dd of=from/sparse bs=1 seek=2G conv=notrunc status=none
rsync -aHAXS from/ to/
same from to
rsync -aHAXS "$top/mnt/a/from/" "$top/out/"
same "$top/out" from
tar --xattrs --acls -cSf from.tar from
mkdir untar && tar --xattrs --xattrs-include='*' --acls -xSf from.tar -C untar
same from untar/from
cd "$top"
good a
