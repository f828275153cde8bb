#!/bin/bash
# Device files are overwritten with random bytes while their pool is in use, as many as the layout can do without: everything reads right, a scrub mends it, a second one
# finds nothing, zdb neither, and then the pool does without the files that were whole. In an empty folder: WEIR=.../weir rotten-files.sh
set -e
W=${WEIR:-weir}
export WEIR_RUNTIME_DIR=$PWD/run WEIR_STATE_DIR=$PWD/state
go() { layout="$1"; shift; bad="$*"
 rm -f *.img *.away; $W zpool create -o compatibility=openzfs-2.1-linux -m $PWD/tank --size 80M tank $layout
 for i in 0 1 2 3 4 5 6 7 8 9; do head -c 400000 /dev/urandom > f$i; cp f$i tank/f$i; done
 $W zpool sync
 for b in $bad; do dd if=/dev/urandom of=$b bs=1M seek=4 count=75 conv=notrunc status=none; done
 for i in 10 11 12 13; do head -c 400000 /dev/urandom > f$i; cp f$i tank/f$i; done
 $W zpool export tank; $W zpool import -d . tank
 for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13; do cmp f$i tank/f$i; done; echo "$layout: 14 files read right with $bad overwritten"
 $W zpool scrub -w tank; $W zpool status tank | grep scan: ; $W zpool scrub -w tank;  $W zpool status tank | grep scan:
 $W zpool clear tank; $W zpool list -H -o health tank
 $W zpool export tank; zdb -e -p . -bcc tank > zdb.out 2>&1; echo zdb status $?; grep "No leaks" zdb.out
 for d in $layout; do case $d in *.img) case " $bad " in *" $d "*) ;; *) mv $d $d.away;; esac;; esac; done
 $W zpool import -d . tank; for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13; do cmp f$i tank/f$i; done; echo "read right without the others"
 $W zpool export tank; }
go "mirror a.img b.img c.img" a.img c.img
go "raidz2 a.img b.img c.img d.img" b.img d.img
go "raidz1 a.img b.img c.img" b.img
go "raidz3 a.img b.img c.img d.img e.img f.img" a.img d.img f.img
$W daemon stop -f
