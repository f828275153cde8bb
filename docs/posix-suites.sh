#!/bin/bash
# Outsiders' suites on a mount of weir and on ext4, in the same way: pjdfstest (crates.io) and the parts of LTP that are about files. As root, in an empty folder:
#     WEIR=.../weir posix-suites.sh [SUITE...]         SUITE: pjdfstest syscalls fs perms fsx; all without
# It needs git, make, gcc, autoconf, automake, pkg-config and cargo; LTP=DIR is a tree of LTP that is used instead of fetching one. What comes out: a table, every test that
# says another thing on weir than on ext4 (docs/posix.md says why), results.tsv, and what each test said in out/. IMAGES=DIR is where the devices go (4 GiB, best a tmpfs).
set -u
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${POSIX_SUITES_UNSHARED:-}" ]; then
    # Mounts that tests leave behind go with the namespace.
    WEIR=$(realpath "$(command -v "${WEIR:-weir}")") POSIX_SUITES_UNSHARED=1 exec unshare -m --propagation private "$here/$(basename "$0")" "$@"
fi
suites=${*:-pjdfstest syscalls fs perms fsx}
top=$PWD images=${IMAGES:-$PWD} ltp=${LTP:-$PWD/ltp}
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
    [ -e "$ltp/testcases" ] || git clone -q --depth 1 https://github.com/linux-test-project/ltp "$ltp" || exit 1
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

run_ltp() { # suite, file system: the list comes in
    export TMPDIR=$top/mnt/$2/$1 LTP_COLORIZE_OUTPUT=n
    mkdir -p -m 1777 "$TMPDIR"
    while read -r tag cmd; do
        (cd "$TMPDIR" && timeout -k 5 120 bash -c "$cmd") > "out/$2/$tag" 2>&1 < /dev/null
        case $? in 0) said=pass ;; 32) said=skipped ;; 124 | 137) said="no end" ;; *) said=fail ;; esac
        printf '%s\t%s\t%s\t%s\n' "$1" "$tag" "$2" "$said"
    done
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
    *) echo "there is no suite $1" >&2; exit 2 ;;
    esac
}

case " $suites " in *" pjdfstest "*) [ -x tools/bin/pjdfstest ] || cargo install -q pjdfstest --root tools || exit 1 ;; esac
case " $suites " in *" syscalls "* | *" fs "* | *" perms "* | *" fsx "*) build_ltp ;; esac

# --- the two file systems ---

rm -f "$images"/posix-{ext4,weir}.img
truncate -s 2G "$images/posix-ext4.img" "$images/posix-weir.img"
mkfs.ext4 -q -F "$images/posix-ext4.img" && mount -o loop "$images/posix-ext4.img" mnt/ext4 || exit 1
"$WEIR" zpool create -m "$top/mnt/weir" posix "$images/posix-weir.img" || exit 1
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
