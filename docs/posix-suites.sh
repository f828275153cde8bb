#!/bin/bash
# Outsiders' suites on a mount of weir and on ext4, in the same way. As root, in an empty folder:
#     WEIR=.../weir posix-suites.sh [SUITE...]         all that can be had without a SUITE
#
#     SUITE                            what                                                       from
#     pjdfstest                        pjdfstest                                                  crates.io
#     acl attr                         the tests of the packages acl and attr                     Debian's sources
#     libfuse                          test_syscalls of libfuse                                   Debian's sources (fuse3)
#     syscalls fs perms fsx ltpacl     the parts of the Linux Test Project that are about files   LTP=DIR
#     fstest                           the older pjdfstest, in shell, of secfs.test               SECFS=DIR
#     xfstests                         the quick generic tests of xfstests                        XFSTESTS=DIR
#
# DIR is a source tree that this script cannot fetch: neither Debian nor a registry has it. They are linux-test-project/ltp, billziss-gh/secfs.test and kdave/xfstests on GitHub.
# On a fresh Debian:
#     apt-get install make gcc autoconf automake libtool-bin pkg-config cargo e2fsprogs fuse3 acl attr quota bc perl xfsprogs fio lsof psmisc dpkg-dev gettext \
#         libacl1-dev libattr1-dev libaio-dev libcap-dev libcap2-bin liburing-dev uuid-dev xfslibs-dev
#     for u in fsgqa fsgqa2 123456-fsgqa; do useradd --badname -m $u; done        (xfstests leaves out what needs them)
# What comes out: a table, every test that says another thing on weir than on ext4 (docs/posix.md says why), results.tsv, and what each test said in out/. IMAGES=DIR is where the
# devices go (sparse; 4 GiB are used, best of a tmpfs).
set -u
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${POSIX_SUITES_UNSHARED:-}" ]; then
    # Mounts that tests leave behind go with the namespace.
    WEIR=$(realpath "$(command -v "${WEIR:-weir}")") POSIX_SUITES_UNSHARED=1 exec unshare -m --propagation private "$here/$(basename "$0")" "$@"
fi
suites=${*:-pjdfstest acl attr libfuse${LTP:+ syscalls fs perms fsx ltpacl}${SECFS:+ fstest}${XFSTESTS:+ xfstests}}
top=$PWD images=${IMAGES:-$PWD} ltp=${LTP:-}
export WEIR_RUNTIME_DIR=$top/run WEIR_STATE_DIR=$top/state
mkdir -p -m 700 run state; mkdir -p out/ext4 out/weir mnt/ext4 mnt/weir tools

# --- the suites ---

# Folders of testcases/kernel/syscalls that are about files.
calls="access chdir chmod chown chroot close copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl
 fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatat fstatfs fsync ftruncate futimesat getcwd getdents getxattr inotify lchown lgetxattr link linkat listxattr
 llistxattr llseek lremovexattr lseek lstat mkdir mkdirat mknod mknodat mmap msync munmap nftw open openat openat2 open_by_handle_at name_to_handle_at fpathconf pathconf pread
 preadv preadv2 pwrite pwritev pwritev2 read readahead readdir readlink readlinkat readv removexattr rename renameat renameat2 rmdir sendfile setfsgid setfsuid setxattr splice
 stat statfs statvfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink unlinkat ustat utime utimensat utimes write writev"
# Folders of testcases/kernel/fs.
kinds="doio fs_inod fs_perms fsx-linux ftest inode lftest linktest openfile stream"

build_ltp() {
    [ -e "$ltp/testcases" ] || { echo "LTP=DIR names no tree of the Linux Test Project" >&2; exit 1; }
    [ -e "$ltp/include/mk/config.mk" ] || (cd "$ltp" && make autotools && ./configure) > out/configure.log 2>&1
    (cd "$ltp"; make -j"$(nproc)" -C lib; make -j"$(nproc)" -C libs
     for d in $calls; do make -k -j"$(nproc)" -C "testcases/kernel/syscalls/$d"; done
     for d in $kinds; do make -k -j"$(nproc)" -C "testcases/kernel/fs/$d"; done) > out/build.log 2>&1
    # Tests that make file systems of their own on loop devices say nothing about the one below.
    grep -lrE 'needs_device|mount_device|all_filesystems|format_device|tst_acquire_device' "$ltp/testcases/kernel" --include='*.c' \
        | sed 's,.*/,,; s,\.c$,,' | sort > tools/own-devices
    PATH=$PATH:$(find "$ltp"/testcases/kernel/{syscalls,fs} "$ltp/testcases/lib" -type f -perm -1 ! -name '*.o' -printf '%h\n' | sort -u | tr '\n' ':')
    export LTPROOT=$ltp PATH
}
# The tests of ACLs make file systems of their own: here they take the folder that they are in.
build_ltpacl() {
    d=$ltp/testcases/kernel/fs/acl
    sed -i 's/\.mount_device = 1,/.needs_tmpdir = 1,/; /\.mntpoint = MNTPOINT,/d; /\.filesystems = /,/^\t},\?$/d' "$d"/*.c
    sed -i 's/#define MNTPOINT.*/#define MNTPOINT "."/' "$d/acl_lib.h"
    make -C "$d" >> out/build.log 2>&1
    PATH=$PATH:$d
}
# The source of a Debian package, in src/; the machine's lists of sources stay as they are.
debian() { # package
    [ -e "src/$1.done" ] && return
    mkdir -p src/lists/partial
    (. /etc/os-release; echo "deb-src http://deb.debian.org/debian $VERSION_CODENAME main") > src/sources.list
    set -- "$1" -o Dir::Etc::sourcelist="$top/src/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$top/src/lists" -o APT::Sandbox::User=root
    (cd src && apt-get "${@:2}" update && apt-get "${@:2}" source "$1") > "out/source-$1.log" 2>&1 || { tail -3 "out/source-$1.log" >&2; exit 1; }
    touch "src/$1.done"
}
build_acl() {
    debian acl; touch src/config.h
    gcc -shared -fPIC -w '-DEXPORT=__attribute__((visibility("default")))' "-DBASEDIR=\"$(echo "$top"/src/acl-*[0-9])\"" -Isrc -o tools/lookup.so src/acl-*/test/test_{passwd,group}.c
}
build_libfuse() { debian fuse3; touch src/fuse_config.h; gcc -w -Isrc -o tools/test_syscalls src/fuse3-*/test/test_syscalls.c; }
build_fstest() {
    rm -rf tools/fstest; cp -r "$SECFS"/fstest/ntfs-3g-pjd-fstest-*/ tools/fstest
    gcc -D_GNU_SOURCE -DHAS_ACL -w -o tools/fstest/fstest tools/fstest/fstest.c -lacl; sed -i 's/^fs=.*/fs="ext4"/' tools/fstest/tests/conf
}
# Each file system has a copy, since they write beside their tests. xfstests mounts weir by type; `mount` in front of the path asks weir.
build_xfstests() {
    if [ ! -e tools/xfstests-weir ]; then
        rm -rf tools/xfstests-ext4; cp -r "$XFSTESTS" tools/xfstests-ext4
        (cd tools/xfstests-ext4; sed -i "s,-e 's/fuse.glusterfs/,-e 's/fuse.zfs/fuse/' &," common/rc
         make configure; ./configure; make -C lib; make -k -C ltp; make -k -C src; cd tests/generic && ../../tools/mkgroupfile group.list) > out/build-xfstests.log 2>&1
        cp -r tools/xfstests-ext4 tools/xfstests-weir
    fi
    mkdir -p tools/path; cat > tools/path/mount <<'EOF'
#!/bin/bash
case "$* " in *"-t fuse.zfs "*) ;; *) exec /bin/mount "$@" ;; esac
opts=, words=()
while [ $# -gt 0 ]; do case $1 in -t) shift 2 ;; -o) opts+=$2,; shift 2 ;; -*) shift ;; *) words+=("$1"); shift ;; esac; done
a=on r=on; case $opts in *,noatime,*) a=off ;; *,strictatime,*) r=off ;; esac
"$WEIR" zfs set atime=$a relatime=$r "${words[0]}"
case $opts in *,remount,*) exec /bin/mount -i -o "${opts:1:-1}" "${words[1]}" ;; esac
ro=; case $opts in *,ro,*) ro="-o ro" ;; esac
"$WEIR" zfs mount $ro "${words[0]}" || exit 32
more=$(echo "$opts" | grep -oE ',(nosuid|noexec|nodev|sync|dirsync)' | tr -d '\n')
[ -z "$more" ] || /bin/mount -i -o "remount$more" "${words[1]}"
EOF
    chmod 755 tools/path/mount
}
# Lines of a list of LTP whose programs were built and use no devices of their own, each once a program and arguments.
listed() {
    while read -r tag cmd; do
        case $tag in '#'*|'') continue ;; esac
        program=$(command -v "${cmd%% *}") || continue
        case $program in "$ltp"/*) ;; *) continue ;; esac
        grep -qx "${cmd%% *}" tools/own-devices || echo "$tag $cmd"
    done < "$1"
}
# The long ones shorter.
shorter() { sed -E 's/-L (20|30|60|120)/-L 5/; s/-i (60|120)s/-i 10s/; s/-l 500000/-l 100000/; s/-N 10000/-N 1000/'; }

run_ltp() { # suite, file system, folder on it: the list comes in
    export TMPDIR=$top/mnt/$2/${3:-$1} LTP_COLORIZE_OUTPUT=n
    mkdir -p -m 1777 "$TMPDIR"
    while read -r tag cmd; do
        (cd "$TMPDIR" && timeout -k 5 300 bash -c "$cmd") > "out/$2/$tag" 2>&1 < /dev/null
        said_by $? 32 "$1" "$tag" "$2"
    done
}
said_by() { # exit code, that of a skipped test, suite, test, file system
    case $1 in 0) said=pass ;; "$2") said=skipped ;; 124 | 137) said="no end" ;; *) said=fail ;; esac
    printf '%s\t%s\t%s\t%s\n' "$3" "$4" "$5" "$said"
}
run() {
    case $1 in
    pjdfstest)
        mkdir -p -m 777 "mnt/$2/pjd"
        printf '[features]\nposix_fallocate = {}\nrename_ctime = {}\nutimensat = {}\nutime_now = {}\nstat_st_birthtime = {}\n[settings]\nnaptime = 0.01\nallow_remount = false\n%s\n' \
            '[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]' > tools/pjdfstest.toml
        tools/bin/pjdfstest -c tools/pjdfstest.toml -p "$top/mnt/$2/pjd" > "out/$2/pjdfstest" 2>&1
        sed -nE 's/^([a-z_0-9]+::\S+)\s+(ok|skipped|FAILED|failed).*/\1\t\2/p' "out/$2/pjdfstest" | sed 's/ok$/pass/; s/FAILED$/fail/; s/failed$/fail/' \
            | while IFS=$'\t' read -r tag said; do printf 'pjdfstest\t%s\t%s\t%s\n' "$tag" "$2" "$said"; done ;;
    syscalls) listed "$ltp/runtest/syscalls" | run_ltp syscalls "$2" ;;
    fs) listed "$ltp/runtest/fs" | shorter | run_ltp fs "$2" ;;
    perms) listed "$ltp/runtest/fs_perms_simple" | run_ltp perms "$2" ;;
    fsx) listed "$ltp/runtest/ltp-aiodio.part3" | grep fsx-linux | shorter | run_ltp fsx "$2" ;;
    ltpacl) grep '^acl_' "$ltp/runtest/fs" | run_ltp ltpacl "$2" acl/ltp ;;
    acl | attr)
        tree=$(echo "$top/src/$1"-*[0-9]) preload=; [ "$1" = attr ] || preload=$top/tools/lookup.so
        for t in $(cd "$tree/test" && ls ./*.test root/*.test | sed 's,^\./,,'); do
            rm -rf "mnt/$2/acl/t"; cp -r "$tree/test" "mnt/$2/acl/t"
            (cd "mnt/$2/acl/t" && LD_PRELOAD=$preload timeout -k 5 120 perl -w -U ./run "$PWD/$t") > "out/$2/$1-${t//\//-}" 2>&1 < /dev/null
            said_by $? 77 "$1" "$t" "$2"
        done ;;
    libfuse)
        for user in root nobody; do
            mkdir -p -m 777 "mnt/$2/acl/$user"
            setpriv --reuid $user --regid $(id -g $user) --clear-groups timeout -k 5 120 tools/test_syscalls "$top/mnt/$2/acl/$user" > "out/$2/libfuse-$user" 2>&1 < /dev/null
            said_by $? 77 libfuse $user "$2"
        done ;;
    fstest)
        mkdir -p -m 777 "mnt/$2/acl/fstest"
        for t in $(cd tools/fstest/tests && ls ./*/*.t | sed 's,^\./,,'); do
            (cd "mnt/$2/acl/fstest" && timeout -k 5 300 prove "$top/tools/fstest/tests/$t") > "out/$2/fstest-${t//\//-}" 2>&1 < /dev/null
            said_by $? 77 fstest "$t" "$2"
        done ;;
    xfstests)
        d=$top/mnt/x-$2; mkdir -p "$d/test" "$d/scratch" "$top/out/x-$2"
        if [ "$2" = ext4 ]; then
            truncate -s 4G "$images/posix-x1.img" "$images/posix-x2.img"; mkfs.ext4 -q -F "$images/posix-x1.img"
            TEST_DEV=$(losetup -f --show "$images/posix-x1.img") SCRATCH_DEV=$(losetup -f --show "$images/posix-x2.img") type=ext4
        else
            truncate -s 10G "$images/posix-x1.img"
            "$WEIR" zpool create -O acltype=posix -O relatime=on -O mountpoint=none posix-x "$images/posix-x1.img"
            for part in test scratch; do "$WEIR" zfs create -o quota=4G -o mountpoint="$d/$part" posix-x/$part; done
            "$WEIR" zfs unmount posix-x/scratch
            TEST_DEV=posix-x/test SCRATCH_DEV=posix-x/scratch type="fuse FUSE_SUBTYP=.zfs"
        fi
        echo "export TEST_DEV=$TEST_DEV SCRATCH_DEV=$SCRATCH_DEV TEST_DIR=$d/test SCRATCH_MNT=$d/scratch RESULT_BASE=$top/out/x-$2 FSTYP=$type" > "tools/xfstests-$2/local.config"
        without=dangerous,soak,clone,dedupe,encrypt,verity,casefold,fiexchange,fsr,shutdown,log,recoveryloop,thin,swap,freeze,dax
        (cd "tools/xfstests-$2" && PATH=$top/tools/path:$PATH ./check -g generic/quick -x $without) > "out/$2/xfstests" 2>&1 < /dev/null
        awk -v on="$2" '/^generic\// {
            said = /\[not run\]/ ? "skipped" : /mismatch|\[failed/ ? "fail" : "pass"
            print "xfstests\t" $1 "\t" on "\t" said
        }' "out/$2/xfstests"
        if [ "$2" = ext4 ]; then umount -q "$d/test" "$d/scratch"; losetup -d "$TEST_DEV" "$SCRATCH_DEV"; else "$WEIR" zpool destroy -f posix-x; fi
        rm -f "$images"/posix-x?.img ;;
    *) echo "there is no suite $1" >&2; exit 2 ;;
    esac
}

case " $suites " in *" pjdfstest "*) [ -x tools/bin/pjdfstest ] || cargo install -q pjdfstest --root tools || exit 1 ;; esac
case " $suites " in *" syscalls "* | *" fs "* | *" perms "* | *" fsx "* | *" ltpacl "*) build_ltp ;; esac
for suite in $suites; do
    case $suite in attr) debian attr ;; acl | libfuse | ltpacl | fstest | xfstests) build_"$suite" ;; esac
done
chmod -R a+rX src tools 2> /dev/null # the tests run as other users, too

# --- the two file systems ---

rm -f "$images"/posix-{ext4,weir}.img
truncate -s 2G "$images/posix-ext4.img" "$images/posix-weir.img"
mkfs.ext4 -q -F "$images/posix-ext4.img" && mount -o loop "$images/posix-ext4.img" mnt/ext4 || exit 1
"$WEIR" zpool create -m "$top/mnt/weir" posix "$images/posix-weir.img" && "$WEIR" zfs create -o acltype=posix posix/acl || exit 1
mkdir -m 777 mnt/ext4/acl; chmod 777 mnt/weir/acl
: > results.tsv
for suite in $suites; do
    for fs in ext4 weir; do run "$suite" $fs >> results.tsv; done
done
"$WEIR" zpool destroy -f posix; "$WEIR" daemon stop -f
umount -l mnt/ext4; rm -f "$images"/posix-{ext4,weir}.img

# --- what came out ---

awk -F'\t' '
    { key = $1 "\t" $2; said[key, $3] = $4; count[$1, $3, $4]++; suites[$1]; if (!(key in seen)) { seen[key]; order[++n] = key } }
    END {
        printf "%-12s %-6s %6s %6s %8s %7s\n", "suite", "on", "pass", "fail", "skipped", "no end"
        for (s in suites) for (i = 1; i <= 2; i++) {
            f = i == 1 ? "ext4" : "weir"
            printf "%-12s %-6s %6d %6d %8d %7d\n", s, f, count[s, f, "pass"], count[s, f, "fail"], count[s, f, "skipped"], count[s, f, "no end"]
        }
        for (i = 1; i <= n; i++) if (said[order[i], "ext4"] != said[order[i], "weir"]) {
            if (!heard++) print "\nOther on weir (suite, test, ext4, weir):"
            print order[i] "\t" said[order[i], "ext4"] "\t" said[order[i], "weir"]
        }
    }' results.tsv
