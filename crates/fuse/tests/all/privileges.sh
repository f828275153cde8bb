# Does everything that may take set-id bits and capabilities from a file, as several users, in the current folder.
# A line for each: what was done to what by whom, how it ended, the ids that the program then runs with, its mode, its capability.
# $1: the program, a copy of id(1) that any user can read.
set -u
program=$1

as() {
    who=$1; shift
    case $who in
        root) "$@" ;;
        # Without CAP_FSETID.
        weak) setpriv --bounding-set -fsetid "$@" ;;
        # A member of group 777.
        user) setpriv --reuid 12345 --regid 12345 --groups 777 "$@" ;;
        # With CAP_FSETID.
        strong) setpriv --reuid 12345 --regid 12345 --clear-groups --inh-caps +fsetid --ambient-caps +fsetid "$@" ;;
    esac
}

# what file change who
try() {
    before=$(stat -c '%a %u:%g' "$2")
    as "$4" sh -c "$3" sh "$2" 2>/dev/null >/dev/null
    end=$?
    runs=no
    if [ -f "$2" ]; then
        runs="$(as user "./$2" -u 2>/dev/null):$(as user "./$2" -g 2>/dev/null)"
    fi
    cap=$(getfattr -n security.capability "$2" 2>/dev/null | grep -c 'security.capability=')
    echo "$1 of $before by $4: ended $end, runs as $runs, mode $(stat -c '%a %u:%g' "$2"), capability $cap"
    rm -rf "$2"
}

# cap_net_raw in the permitted set, version 2.
capability=0x0000000200200000000000000000000000000000

changes='append|printf x >> $1
overwrite|exec 3<>$1; printf x >&3
append twice|printf x >> $1; printf y >> $1
truncate to nothing|: > $1
cut|truncate -s 10000 $1
grow|truncate -s 1000000 $1
same size|truncate -s $(stat -c %s $1) $1
copy over|cat /dev/null - < /dev/null > $1
allocate|fallocate -l 2000000 $1
allocate, same size|fallocate -n -l 2000000 $1
punch a hole|fallocate -p -o 0 -l 4096 $1
zero a range|fallocate -z -o 0 -l 4096 $1
write directly|dd if=/dev/zero of=$1 bs=4096 count=1 oflag=direct conv=notrunc
write synchronously|dd if=/dev/zero of=$1 bs=100 seek=1000 count=1 oflag=dsync conv=notrunc
touch|touch $1
read|cat $1
give to the group|chgrp 777 $1
give to another group|chgrp 778 $1
give to the user|chown 12345 $1
give to root|chown 0:0 $1
set all bits|chmod 6777 $1
set the group bit|chmod 2767 $1
set another attribute|setfattr -n user.x -v y $1
link|ln $1 other; rm other
rename|mv $1 other; mv other $1'
if [ -x /usr/bin/python3 ]; then
    changes="$changes
write to mapped memory|/usr/bin/python3 -c 'import mmap,sys; f=open(sys.argv[1],\"r+b\"); m=mmap.mmap(f.fileno(),4096); m[200:201]=b\"x\"; m.flush()' \$1
give to nobody else|/usr/bin/python3 -c 'import os,sys; os.chown(sys.argv[1],-1,-1)' \$1
write at two places|/usr/bin/python3 -c 'import os,sys; f=os.open(sys.argv[1],os.O_RDWR); os.pwritev(f,[b\"a\",b\"b\"],9000); os.pwrite(f,b\"c\",1)' \$1
splice|/usr/bin/python3 -c 'import os,sys; r,w=os.pipe(); os.write(w,b\"abc\"); f=os.open(sys.argv[1],os.O_WRONLY); os.splice(r,f,3)' \$1
copy a range|/usr/bin/python3 -c 'import os,sys; f=os.open(sys.argv[1],os.O_RDWR); os.copy_file_range(f,f,100,0,8000)' \$1"
fi

umask 022
chmod 777 .
echo "$changes" | while IFS='|' read -r what change; do
    for what_file in 0:0/6777 0:0/2767 0:0/both 12345:888/6777 12345:888/2767 12345:777/2767; do
        owner=${what_file%/*} kind=${what_file#*/}
        users='root user'
        case $what_file in 0:0/6777 | 0:0/2767) users='root weak user strong' ;; esac
        for who in $users; do
            mode=$kind
            [ $kind = both ] && mode=6777
            cp "$program" f
            chown $owner f
            chmod $mode f
            [ $kind = both ] && setfattr -n security.capability -v $capability f
            # The kernel has seen it as it was.
            cat f > /dev/null
            try "$what, $kind" f "$change" $who
        done
    done
done

echo "give to the group|chgrp 777 \$1
give to nobody else|chown :12345 \$1
give to root|chown 0:0 \$1
set the group bit|chmod 2767 \$1" | while IFS='|' read -r what change; do
    for make in 'mkfifo f' 'mkdir f' 'mknod f c 1 3' 'mknod f b 7 200'; do
        for what_file in 0:0/6777 12345:888/6777 12345:888/2767 12345:777/2767; do
            for who in root user; do
                $make; chown ${what_file%/*} f; chmod ${what_file#*/} f
                try "$what, $make" f "$change" $who
            done
        done
    done
done

# What is made in a folder that hands down its group.
for group in 777 888; do
    mkdir d; chown 0:$group d; chmod 2777 d
    for who in root weak user strong; do
        for mode in 2755 2745; do
            as $who sh -c "umask 0; install -m $mode /dev/null d/f; perl -e 'use Fcntl; sysopen(F, \"d/g\", O_CREAT|O_WRONLY, 0$mode); mkdir \"d/h\", 0$mode'" 2>/dev/null
            echo "made $mode in $group by $who: $(stat -c '%a %u:%g' d/f d/g d/h | tr '\n' ' ')"
            rm -rf d/f d/g d/h
        done
    done
    rm -rf d
done
