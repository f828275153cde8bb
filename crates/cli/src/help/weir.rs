//! The pages of weir's own commands, and of `zdb`.

use super::Page;

pub(super) const PAGES: &[Page] = &[
    Page {
        name: "daemon",
        usage: &[
            "start [-o tunable=value] ... [-m unix:PATH|127.0.0.1:PORT] [--kstat folder] [--cachefile file]",
            "stop [-f]",
            "status [-v]",
        ],
        text: "\
The daemon owns imported pools and their mounts. The first command that needs
it starts it; pools that were imported when it ended are imported again.

  start   start it by hand, with tunables; -m gives out metrics for Prometheus
          on a Unix socket or a loopback port, --kstat (-k) shows counters in a
          folder as files ('weir help kstat'; nothing is given out otherwise);
          --cachefile (-c) keeps the list of imported pools in a file where
          their property 'cachefile' names none, for OpenZFS's zdb and others
          (usually /etc/zfs/zpool.cache; a kernel module imports them at boot)
  stop    unmount, write everything, end; -f also if a file system is in use
  status  its pools, what was not imported, what it is doing and for what it
          waits, its mounts; -v its tunables as well

Volumes are files in /dev/zvol/POOL (root), else in zvol/POOL in the folder of
the socket.

Its socket is in $WEIR_RUNTIME_DIR, else /run/weir (root), $XDG_RUNTIME_DIR/weir
or /tmp/weir-<uid>. What it remembers is in $WEIR_STATE_DIR, else in state below
$WEIR_RUNTIME_DIR, else in /var/lib/weir (root), $XDG_STATE_HOME/weir or
~/.local/state/weir. Its log is daemon.log beside the socket, at most 4 MiB and
as much in daemon.log.1, and the journal where there is one.
Tunables also come from $WEIR_TUNABLES (name=value, separated by commas) and
from tunables.conf in the state folder, the folder of --kstat from $WEIR_KSTAT,
the file of --cachefile from $WEIR_CACHEFILE.
",
    },
    Page {
        name: "nbd",
        usage: &[
            "start [-r] [-l unix:PATH|127.0.0.1:PORT] -a|<volume>|<snapshot> ...",
            "stop [-f] [<address> ...]",
            "list [-H] [-j]",
        ],
        text: "\
Serves volumes over NBD, the protocol of network block devices, to qemu, the
kernel's nbd-client, libnbd and others, until it is stopped or the daemon ends.
An export has the name of its volume; snapshots of volumes are read-only.

  start   serve these volumes, or with -a all that there are and will be; prints
          the address of each as clients take it
  stop    end the servers at these addresses, or all; -f also if clients are
          connected
  list    the servers, their clients, and the connections that ended because
          the client broke the rules of the protocol

  -l      where: a Unix socket, which its owner and root can use (nbd.sock in
          the folder of the daemon's socket), or a loopback port, which every
          user of the machine can
  -r      clients may not write
  -H      without headers, separated by tabs
  -j      JSON

A volume with clients is in use: its pool is not exported without -f.
",
    },
    Page {
        name: "tune",
        usage: &[
            "[-v] [-j] [-p pool]",
            "list [-v] [-j] [-p pool] [<part of a name> ...]",
            "get [-j] [-p pool] <name> ...",
            "set [--save] [-p pool] <name>=<value> ...",
        ],
        text: "\
Tunables, with OpenZFS's names and units. What is set holds at once, for all
pools or for one; what is set for one wins. 'throttle' and 'scheduler' choose
the write throttle and the I/O scheduler. The value 'default' takes back what
was set.

  -p      of one pool
  -v      with meaning, range, default and origin
  --save  also for later daemons: into tunables.conf in the state folder
  -j      JSON
",
    },
    Page {
        name: "kstat",
        usage: &["[<name> ...]"],
        text: "\
Counters as OpenZFS has them in /proc/spl/kstat/zfs and /sys/module/zfs: without
a name the names of all, with names their texts.

  arcstats         the cache in memory, and cache devices
  zil              intent logs
  zfetchstats      reading ahead for sequential readers
  dmu_tx           transactions, and those that the write throttle held up
  dbgmsg           the newest messages, and commands that changed pools
  POOL/state       the state of a pool; guid has its guid
  POOL/txgs        its last transaction groups ('zfs_txg_history')
  POOL/multihost   its last heartbeats ('zfs_multihost_history')
  POOL/objset-0xN  a mounted file system or an open volume
  parameters/NAME  a tunable ('weir help tune')

After 'weir daemon start --kstat /run/weir/kstat' they are files, for programs
that were made for OpenZFS: spl/kstat/zfs is there what it is in /proc, and
module/zfs what it is in /sys. A tunable is set by what is written to its file,
a list is emptied by anything.
",
    },
    Page {
        name: "zinject",
        usage: &[
            "",
            "-c <id>|all",
            "-a [<pool> ...]",
            "-d <device> [-e error] [-T type] [-f percent] [-L part] [-aq] <pool>",
            "-d <device> -D milliseconds:lanes [-T type] [-f percent] [-aq] <pool>",
            "-d <device> -A degrade|fault <pool>",
            "-t data|dnode [-e error] [-C copies] [-l level] [-r range] [-f percent] [-aq] <path>",
            "-b objset:object:level:start[:end] [-e error] [-f percent] [-aq] <pool>",
        ],
        text: "\
Errors and delays on purpose, to try what a pool makes of them. Each gets a
number, and lasts until it is cancelled or the pool is exported. Without
arguments those that there are, with how many operations they were about and how
many they befell. An error in data is of the blocks that a file has now: what is
written to it later is spared. The page cache of the kernel may hold a file that
was read before: 'zfs unmount' and 'zfs mount' empty it.

  -c      cancel one, or all
  -a      drop the blocks in the cache of the pool, after that
  -d      a device, by path, name or guid
  -e      of a device (default: nxio):
            io          it does what is asked, and reports an error
            nxio        the same, and it does not answer when it is looked for
            corrupt     one bit of what is read is another (needs -T read, -f)
            noop        it does nothing, and reports no error
            io-prefail  it does nothing, and reports an error
          of data (default: io):
            io, checksum         the copies are unreadable, or damaged
            decompress, decrypt  the block cannot be unpacked, or its
                                 authentication code is wrong; -f is then the
                                 share of the blocks
  -T      of a device: read, write, flush, probe (whether it is there), or all
          of these but probe (the default)
  -f      how often, in percent: 0.0001 to 100 (the default)
  -L      a part of the labels: nvlist, pad1, pad2 or uber; otherwise labels are
          spared
  -D      operations take so long at least, and so many lanes carry one each at
          a time; the lanes of several delays add up
  -A      declare the device degraded, or faulted, until 'zpool clear' or the
          next import
  -t      the content of a file, or the block with its dnode
  -b      blocks by number, all hexadecimal; the last one is within
  -C      these copies only, from 0: 0,1
  -l      blocks of this level (0)
  -r      bytes of the file: start[,end]
  -q      print the number only
",
    },
    Page {
        name: "top",
        usage: &["[-i seconds] [-c count] [<pool> ...]"],
        text: "\
How data flow through pools: dirty data on a gauge with the shares where a txg
is closed (s) and where writes begin to be delayed (d); devices by class; the
last txgs, open (-), waiting (.) and written (#); the cache; file systems.

  -i      how often (1)
  -c      end after so many pictures; otherwise q or Ctrl-C ends it
",
    },
    Page {
        name: "trace",
        usage: &["trace dirty|txg|io|queue|delay|zil|turns [-i seconds] [-c count] [--json] <pool>"],
        text: "\
What a pool does, live; Ctrl-C ends it with a summary.

  dirty   dirty data and its limit whenever a txg begins to sync
  txg     how long each txg was open, quiescing, waiting, syncing
  io      latency distributions of reads, writes, flushes and trims
  queue   how many writes of a txg are at a device whenever one is issued
  delay   which writes the throttle delayed, and how long
  zil     blocks of intent logs: latency, how many a second, how full, how many
          commits waited for each, time in queue, write, flush and waiting for
          the blocks before
  turns   how long tasks keep the pool's thread at a time, and which the longest

  -i      show distributions every so many seconds, not only at the end
  -c      end after so many
  --json  one object a line
",
    },
    Page {
        name: "advise",
        usage: &[
            "[-s seconds] [-o file] [--goal goal] [--model name|file] [--layout vdevs] ... [--log-model name|file] [--tunable name=value] ... [--only parts] [--mem size] [--cores n] [--warm] [--seeds n] [--seed n] [--jobs n] [--state file] [--json] <pool>",
        ],
        text: "\
Records what users do in the mounts of a pool for a minute, searches settings
that serve a goal better in virtual time, as 'weir lab advise' does, and says in
at most three sentences what to change, what that brings and how sure it is, and
why; then come the commands that do it and what each costs. Or it says 'Leave
it', and why. Nothing is changed, and the pool never waits for the recording.

  -s, --seconds         how long to record (60)
  -o, --keep-recording  keeps the recording in this file, for 'weir lab replay'
                        and 'weir lab advise'
  --goal       as for 'weir lab advise' (throughput if clients wait for the pool
               in more than half of their time, else p99)
  --model      the devices (by what sysfs says of them: hdd, sata-ssd or nvme;
               nvme for files and virtual disks, which do not say what they are)
  --mem        memory of the machine (what it has)
  --warm       the cache is warm (what comes closer to the recorded reads)
  --json       one object: sentences, notes, commands, and the whole advice

A recording keeps the pace of its clients. Those that act at a rate of their own
have hardly more throughput from any setting, which a note says; a percentile is
the goal for them. 'weir help lab advise' explains the other options.
",
    },
    Page {
        name: "lab advise",
        usage: &[
            "advise [--goal goal] [--layout vdevs] ... [--model name|file] [--log-model name|file] [--tunable name=value] ... [--only parts] [--mem size] [--cores n] [--warm] [--seeds n] [--seed n] [--jobs n] [--state file] [--json] <recording>|<workload>",
        ],
        text: "\
Settings and layouts with which a recording ('weir help trace record') or a
workload ('weir help lab run') serves a goal better, found in virtual time by
successive halving over seeds: what to change, how sure that is, what it costs,
and the lines that do it for weir, Linux and FreeBSD; or 'leave it', where
nothing is surely better by 3 %. Equal seeds give equal advice.

  --goal       limits and one thing to be as good as possible, with commas:
               'p99<5ms,throughput'; p50, p90, p99, p99.9, mean or max, with
               'read' or 'write' before; throughput (operations), bytes, or a
               percentile alone (throughput)
  --layout     vdevs to try in place of the present ones, as for 'weir lab
               replay'; more than once
  --model      the devices (of the workload; nvme for a recording)
  --log-model  also tries a log device of this kind
  --tunable    another value than there is now; more than once
  --only       changes only settings whose names have one of these parts
  --mem        memory of the machine (of the workload; 8G for a recording)
  --cores      its cores (2; a workload has its own)
  --warm       the cache of a recorded pool is warm, as for 'weir lab replay'
  --seeds      runs of the last candidates (8)
  --seed       the first of them (0)
  --jobs       runs at once (as many as processors)
  --state      keeps finished runs in this file, as 'weir help lab arc' says
  --json       one object
",
    },
    Page {
        name: "lab arc",
        usage: &[
            "arc [--limit size] [--files n] [--writes n] [--seeds n] [--seed n] [--jobs n] [--state file] [--html file] [--json]",
        ],
        text: "\
Hit rates of the cache in virtual time: working sets around its limit, loops,
scans beside a hot set, random writes to many files; and how far it ever was
above its limit. A table says what is claimed and whether that holds.

  --limit   bytes of the cache (64M)
  --files   files of 1 MiB that get random writes of 4 KiB, 0 for none (10000)
  --writes  random writes to them (20000)

Every study with a table:

  --seeds   runs of everything, each with another seed (10)
  --seed    the first seed (0); equal seeds give equal reports
  --jobs    runs at once (the number of processors)
  --state   where finished runs are kept, so that a study that was stopped goes
            on; the file stays (default: a file in $XDG_CACHE_HOME/weir/lab or
            $HOME/.cache/weir/lab, removed at the end)
  --html    also write a page with the table and plots, which needs nothing else
  --json    one object: the table, and every run in cells
",
    },
    Page {
        name: "lab calibrate",
        usage: &["calibrate --size size|--overwrite [--output file] [--seconds n] [--json] device"],
        text: "\
Measures a device or file with direct I/O: random reads, small and large, random
and sequential writes and synchronous writes by 1, 4 and 10 clients (the engine
has at most 10 of a kind at a device), and looks for a model with the same
figures. A table has both; a figure that does not fit has a star:
operations a second within 15 %, medians within 25 %, 99th percentiles within a
factor of two. The model file is for --model of the studies.

  --size       bytes of a new file, which is removed at the end; with
               --overwrite, how much is used (4G at most)
  --overwrite  measure a device or file that is there: WHAT IS ON IT IS LOST
  --output     the model file, TOML
  --seconds    real time of each of fifteen measurements (3)
  --json       one object: every measurement, and the model's
",
    },
    Page {
        name: "lab coldstart",
        usage: &[
            "coldstart [--readers list] [--cores n] [--input size] [--model name|file] [--seeds n] [--seed n] [--jobs n] [--state file] [--html file] [--json]",
        ],
        text: "\
Programs that start at once and read the same input of 267 MB, cold, in virtual
time: one disk without compression and with lzjb, lz4, gzip, zstd; RAID-Z of
ten; six mirrors of two and eight of three. All read one file ('one'), or each
a copy of its own ('each').

  --readers  numbers of programs (63,255)
  --cores    virtual cores (8)
  --input    bytes of the input, 1M to 267M (267M)
  --seeds    runs of everything, each with another seed (3)
  --model    disks in place of nearline ones: a name such as 'nvme', or a model
             file of 'weir lab calibrate'

'weir help lab arc' explains the other options.
",
    },
    Page {
        name: "lab fragmentation",
        usage: &[
            "fragmentation [--size size] [--fill list] [--seconds n] [--all] [--model name|file] [--seeds n] [--seed n] [--jobs n] [--state file] [--html file] [--json]",
        ],
        text: "\
A file fills a pool to some percent, then 8 writers overwrite records of 8 KiB
at random until the throughput is steady, in virtual time: with each allocator
(dynamic, cursor, new-dynamic), on one disk and on four, and with synchronous
writes with the log in the pool and on a device of its own. Throughput, sizes
of writes at the disk, free segments, and maps of the metaslabs.

  --size     bytes of the pool's disks together, 512M to 64G (1G)
  --fill     percentages (10,25,50,75,90)
  --seconds  most seconds of random writes (120)
  --all      everything with everything, not only at the middle and last fill
  --seeds    runs of everything, each with another seed (1)
  --model    disks in place of nearline ones: a name such as 'nvme', or a model
             file of 'weir lab calibrate'

'weir help lab arc' explains the other options.
",
    },
    Page {
        name: "lab randwrite",
        usage: &[
            "randwrite --size size | --overwrite [--threads n] [--block size] [--seconds n] [--sync] [--seed n] [--json] FILE",
        ],
        text: "\
Random writes to a file of a real file system, of weir or any other: threads
write blocks of random bytes at random blocks of it. Throughput by the second,
and the distribution of latencies.

  --size       make FILE with so many random bytes first
  --overwrite  FILE is there, and its contents may be lost
  --threads    threads (8)
  --block      bytes of a write (8k)
  --seconds    how long (30)
  --sync       each write is durable before the next
  --seed       what is left to chance (0)
  --json       one object
",
    },
    Page {
        name: "lab run",
        usage: &[
            "run [--model name|file] [--real device,... --size size|--overwrite] [--seeds n] [--seed n] [--jobs n] [--state file] [--html file] [--json] FILE",
        ],
        text: "\
A workload from a file, in virtual time; with --real on real devices first, and
a table of both. FILE is TOML (.toml):

  [pool]
  layout = \"mirrors 2 of 3\"  # disk, stripe N, mirror N, raidz N, raidz2 N, ...
  device = \"hdd\"             # nvme, ssd, fixed LATENCY BANDWIDTH
  size = \"4G\"                # of each device (ample)
  log = \"nvme\"               # a log device (none)
  memory = \"8G\"
  cores = 4
  recordsize = \"128k\"
  compression = \"off\"

  [run]
  seconds = 30
  warmup = 5

  [[job]]
  name = \"db\"
  threads = 8                 # each with a file of its own
  block = \"8k\"
  pattern = \"random\"         # or sequential
  read = 70                   # percentage of operations that read
  size = \"256M\"              # of each file
  shared = false              # true: all threads use one file
  sync = \"each\"              # none, each, after N
  rate = \"poisson 64\"        # max, fixed N, poisson N, bursts N every TIME
  compressible = 2.5          # times smaller, if the pool compresses

or a job file of fio (.fio, .job) with rw, bs, numjobs, size, filename,
rwmixread, sync, fsync, rate_iops, rate_process, buffer_compress_percentage,
runtime.

  --model      devices in place of those of the file: a name such as 'nvme', or
               a model file of 'weir lab calibrate'
  --real       real devices or files, as many as the pool has, the log last:
               the same engine does the same there. Operations a second of the
               model have to be within 15 % of theirs, medians within 25 %, 99th
               percentiles within a factor of two
  --size       bytes of each new file of --real, which is removed at the end
  --overwrite  devices or files that are there: WHAT IS ON THEM IS LOST
  --seeds      runs, each with another seed (3)

'weir help lab arc' explains the other options.
",
    },
    Page {
        name: "lab starvation",
        usage: &[
            "starvation [--seconds n] [--model name|file] [--seeds n] [--seed n] [--jobs n] [--state file] [--html file] [--json]",
        ],
        text: "\
A thread that writes with gzip-9 beside one that reads at random places of one
disk, in virtual time: with 10 and 3 writes of a txg at the disk
(zfs_vdev_async_write_max_active), without compression, and with fewer cores
for it (zio_taskq_batch_pct). CPU and the disk's queue are told apart.

  --seconds  virtual time that counts, 5 to 600 (30)
  --seeds    runs of everything, each with another seed (3)
  --model    disks in place of nearline ones: a name such as 'nvme', or a model
             file of 'weir lab calibrate'

'weir help lab arc' explains the other options.
",
    },
    Page {
        name: "trace record",
        usage: &["record -o file [-s seconds] <pool>"],
        text: "\
Records the operations of a pool's users in its mounts, with their times: reads,
writes, names that are looked up, made and removed. Ctrl-C ends it. The file has
no names and no contents; files are numbers. Operations that come faster than
the file is written are counted as lost.

  -o, --output   the file
  -s, --seconds  end after so many
",
    },
    Page {
        name: "lab throttle",
        usage: &[
            "throttle [--policy name] [--bandwidth size] [--threads n] [--block size] [--copies n] [--seconds n] [--offered size] [--mem size] [--seed n] [--json]",
            "throttle [--sweep name] [--seeds n] [--jobs n] [--state file] [--html file] ...",
        ],
        text: "\
Endless writers against a device of fixed bandwidth, in virtual time: the same
engine, so what it shows is what a pool does. Equal seeds give equal reports.

  --policy     openzfs, openzfs-2013, legacy-2008, smoothing or none
  --bandwidth  bytes a second of the device (100M)
  --threads    clients (10)
  --block      bytes of a write (8k)
  --copies     copies of each block on the device, 1 to 3 (1)
  --seconds    virtual time; the first quarter does not count (60)
  --offered    what the clients could write a second without a throttle (1G)
  --mem        memory of the machine (8G): a tenth of it may be dirty
  --seed       what is left to chance (0)
  --json       one object with everything, the timeline included

With one of these it is a table over seeds, with plots of writes and total time
by latency and of what clients and device write over time:

  --sweep      policies (legacy-2008 and openzfs; the default), dirty_data_max,
               delay_scale, delay_min_dirty_percent, async_write_min_active
               or async_write_max_active
  --seeds, --jobs, --state, --html: see 'weir help lab arc'
",
    },
    Page {
        name: "lab zil",
        usage: &[
            "zil [--disks list] [--media list] [--rate max|64] [--threads list] [--sweep name] [--model name|file] [--seconds n] [--seeds n] [--seed n] [--jobs n] [--state file] [--html file] [--json]",
        ],
        text: "\
Synchronous writers of 8 KiB on stripes of disks, in virtual time: the intent
log with the commit policy of before illumos 8585 (batched) and of after it
(batchless-2017), beside what was published of both. Equal seeds give equal
reports.

  --disks      numbers of disks (1,8)
  --media      hdd, ssd (both)
  --rate       max, or writes a second by each thread, Poisson (max; a table has
               max and 64)
  --threads    numbers of writers (1,2,4 ... 1024)
  --model      a device in place of those of the publication: a name such as
               'nvme', or a model file of 'weir lab calibrate'
  --seconds    virtual time of a run at most; up to half of it does not count
               (40)
  --seed       what is left to chance (0)
  --jobs       runs at once (1)
  --json       one object: every run in cells, gain_percent and
               latency_change_percent by medium

With --seeds, --html, --state or --sweep it is a study with a table (published,
measured over the seeds, verdict; 'weir help lab arc' explains those options):

  --sweep      policies: the two above; timeout: zfs_commit_timeout_pct from 1
               to 50 under the policies of 2017 and of today; log: with and
               without a log device (policies)
  --seeds      runs of everything (1)
",
    },
    Page {
        name: "lab replay",
        usage: &[
            "replay [--layout vdevs] [--model name|file] [--log-model name|file] [--tunable name=value] ... [--mem size] [--cores n] [--warm] [--seed n] [--json] <recording>",
        ],
        text: "\
The operations of a recording ('weir help trace record') in virtual time, and
their latencies beside the recorded ones. Clients keep their order and the time
that they took themselves. Equal seeds give equal reports.

  --layout     single, mirror:N, raidz1:N to raidz3:N, draid1:4d:9c:1s, with
               log-, special- or dedup- before it, several with commas (as
               recorded)
  --model      nvme, sata-ssd, sas-ssd (nvme:worn and so on: after long random
               writes), hdd, hdd-10k, fixed:MICROSECONDS:MIB_A_SECOND, or a
               model file of 'weir lab calibrate' (nvme)
  --log-model  the same for log devices (as the others)
  --tunable    another value than the recorded pool had; more than once
  --mem        memory of the machine (8G)
  --cores      its cores for compression and the like (2)
  --warm       what is there before is in the cache, as far as it has room; else
               the cache is empty
  --seed       what is left to chance (0)
  --json       one object
",
    },
    Page {
        name: "cp",
        usage: &["cp [--reflink always|auto] file ... target", "cp --dedupe file ... target"],
        text: "\
Copies files by sharing their blocks, also between file systems of a pool: a
copy takes no time and no space until one of the two is changed. The pool needs
the feature block_cloning. The target is a new file, or a folder for new files.

  --reflink  always: what cannot be shared is an error (default);
             auto: it is copied
  --dedupe   the targets are there and have the same contents: they share the
             blocks from then on; a target that differs stays as it is

'cp' of the system shares blocks too, within one file system.
",
    },
    Page {
        name: "quickstart",
        usage: &["quickstart [--dir DIR] [--tree DIR]"],
        text: "\
A tour: makes a pool on sparse files in a scratch folder, mounts it where FUSE
works (and otherwise uses it without mounting), copies a tree into it, reads it
back, shows status, latencies and the compression ratio, exports and imports
the pool, compares every byte, and removes everything again.

  --dir   where to make the scratch folder (default: the folder for temporary
          files)
  --tree  the tree to copy (default: a made-up one and this program)
",
    },
    Page {
        name: "man",
        usage: &["<folder>"],
        text: "\
Writes the manual pages of all commands into a folder, which is made if it does
not exist: weir.8, zpool.8, zpool-create.8 and so on. They say what 'weir help'
says. 'man -l FILE' shows one; below /usr/local/share/man/man8 'man' finds them
by their names.
",
    },
    Page {
        name: "completions",
        usage: &["bash|zsh|fish"],
        text: "\
Prints a script that completes commands, letters, and the names of properties,
pools and datasets behind weir, zpool, zfs and zstream. Names come from the
daemon that runs; a shell starts none.

  bash  eval \"$(weir completions bash)\", or the file weir in
        /etc/bash_completion.d
  zsh   the file _weir in a folder of $fpath
  fish  the file weir.fish in /etc/fish/completions
",
    },
    Page {
        name: "mount.zfs",
        usage: &["[-sfnv] [-o option,...] <filesystem> <folder>"],
        text: "\
Mounts a file system whose property mountpoint is 'legacy': mount(8) calls it
for 'mount -t zfs tank/x /srv/x' and for lines of fstab(5), where it is a link
to weir in /sbin. Others are refused: 'zfs mount' mounts them. A device of an
imported pool stands for the file system at its root.

  -o  ro, rw, atime, noatime, relatime, norelatime, strictatime, exec, noexec,
      suid, nosuid, dev, nodev, xattr, noxattr, for this mount only; remount
      changes the mount that is there; zfsutil: also a file system with a mount
      point of its own. Words of fstab(5) that do not concern how it is mounted
      are left out (noauto, nofail, user, x-systemd.requires=... and so on)
  -s  leave out options that are not known
  -f  a trial: only look whether there is such a file system
  -v  say what is mounted where
  -n  nothing: no list of mounts is written anyway

A mount ends with the daemon, and 'zfs unmount -a' leaves it. The exit status is
0 success, 1 wrong command line, no such file system or no permission, 2 an
error of the system, 4 a mistake in weir, 32 the mount failed.
",
    },
    Page {
        name: "zed",
        usage: &["[-vfFMZI] [-d folder] [-p file] [-s file] [-j jobs] [-b events] [-P path]", "-h|-L|-V"],
        text: "\
Runs programs for what 'zpool events' shows, as OpenZFS's event daemon does, and
with its programs (zedlets). It begins in the background. It needs the daemon of
pools, but waits until that is there, and again when it has ended.

  -d  the folder of zedlets (default: /etc/zfs/zed.d)
  -s  the file that has the event which was handled last: those that came while
      zed did not run are handled when it begins, none twice (default:
      /run/zed.state; without root in the folder of the daemon, as the next)
  -p  the file with the number of the process; a second zed with the same file
      refuses (default: /run/zed.pid)
  -j  how many zedlets may run at once (default: 16)
  -F  stay in the foreground, with messages on standard error instead of syslog
  -v  say which files are zedlets, and when they begin and end
  -f  take zedlets that others can write to, and do without the file of -p
  -Z  forget the event that was handled last
  -M  keep all memory from being swapped out
  -P  PATH for zedlets, where they also find the commands
  -I  nothing: it waits for the daemon anyway
  -b  nothing: the tunable zfs_zevent_len_max says how many events are kept
  -h  this page
  -L  the licence
  -V  the version

A zedlet is an executable file that belongs to root, or to the user of zed, and
that others cannot write to. It is run for events whose class, or the class
without its first three words, or 'all', its name begins with, if no letter
follows: 'all-mail', 'statechange.sh', 'ereport.fs.zfs.data-x'. With -sync-
behind that it runs while no other one does.

The event is in the environment, field by field: ZEVENT_CLASS, ZEVENT_SUBCLASS,
ZEVENT_EID, ZEVENT_POOL, ZEVENT_TIME_SECS, ZEVENT_TIME_STRING, ZEVENT_VDEV_PATH,
ZEVENT_VDEV_STATE_STR and so on. ZPOOL, ZFS, ZDB, ZINJECT and ZED are paths of
the commands. PATH is that of the system, and of the environment of zed itself
zedlets get only TZ and what begins with WEIR_.

SIGHUP has the folder read again, SIGTERM and SIGINT end zed. The exit status is
0 success, 1 a mistake.
",
    },
    Page {
        name: "zdb",
        usage: &["zdb [options] [pool | device]"],
        text: "\
Looks into pools that are not imported: labels, uberblocks, configuration,
datasets, objects, and a check of every block.
",
    },
    Page {
        name: "rescue",
        usage: &[
            "rescue [-nqs] [-d dataset] ... [-k file] ... [-t txg] [--scan when] -o dir [pool] [device | folder] ...",
            "rescue [-nqs] [-k file] ... [--ashift n] [--scan when] -o dir layout device ...",
        ],
        text: "\
Copies every file that can be read from a pool that does not import any more: as
files and folders into dir, with a report of what is missing. Devices are only
read. Nothing needs to be whole: any copy of a block, any state of the pool that
an uberblock leads to and any side of the redundancy will do. An interrupted
rescue goes on when it is started again with the same folder.

  pool             its name or guid, where the devices are of several; without
                   devices those of the machine are looked at
  device           devices, images, or folders of images
  layout           where no label is left: the vdevs as for 'zpool create', in
                   their order ('mirror a b raidz2 c d e f'; 'stripe a b' for
                   single devices), '-' for a device that is gone
  -o, --output     the folder that files go to: POOL/FILESYSTEM/..., volumes as
                   POOL/VOLUME.img, files without names to lost+found
  -s, --snapshots  snapshots too, as folders @SNAPSHOT
  -d, --dataset    only this dataset and those below it
  -k, --key-file   a file with the key of encrypted datasets; what no key opens
                   is reported as skipped
  -t, --txg        no state newer than this txg
  --scan           auto: search the devices for lost roots if something is lost
                   (the default); always; never
  --ashift         log2 of the sector size, where a layout is given (tried: 12,
                   9, 13, 14)
  -n, --dry-run    read everything, copy nothing, write the report
  -q, --quiet      no progress

The report is in dir/.weir-rescue: report.txt and report.json. A damaged file is
copied with holes where ranges are missing, and to the end of its last block if
its length is lost; if an older state has it whole, that is beside it as
NAME~txg-N. The exit status is 0 if everything was copied as it was last, 1 if
something is missing, 2 if there is no way to the pool.
",
    },
    Page {
        name: "defrag",
        usage: &[
            "defrag plan [-q] [--json] [--goal read | space] [--bytes n] [--min-gain n%] [--model name] [-p path] ... pool",
            "defrag run [-n] [-q] [--json] [--plan file] [--share n%] [--new] [-p path] ... pool",
        ],
        text: "\
Plans which files of a pool to rewrite with 'zfs rewrite', in which order, and
predicts what that gains: how fast they are read from begin to end, and how long
the free segments are, before and after; how many bytes it writes, and by how
many the pool grows because snapshots hold the old blocks. A plan only reads the
pool, which may be imported.

A run makes or takes a plan, rewrites its files one after the other through
their mounts, and then shows what was predicted beside what the pool's new maps
give. One part of 4 MiB is under way at a time, and after each the run rests for
as long as it took, so that other programs have the disks half of the time at
least. A run that was interrupted goes on where it was when it is started again.

  pool          its name or guid
  -p, --path    a device of the pool, an image, or a folder of them (default:
                the devices of this machine); can be given several times
  --goal        read: files that are in many pieces (the default); space: files
                in metaslabs whose free space is in many pieces
  --bytes       write no more than so many bytes, such as 500M or 1.5T
  --min-gain    leave out files that gain less than this share of their time of
                reading, or of their bytes for the goal space (default: 10%)
  --model       the disks: nvme, ssd, sata-ssd, sas-ssd, hdd, hdd-10k, a model
                file such as 'weir lab calibrate' writes (default: hdd)
  --sample      blocks of the files that are read in the simulator (default:
                32768)
  --no-predict  no times of reading
  --json        the plan, or what a run gained, for programs
  -q, --quiet   no progress

Of a run, which takes the options of a plan, too:
  -n, --dry-run only say what would be rewritten
  --plan        a plan that 'weir defrag plan --json' wrote
  --share       the share of the time in which it works (default: 50%)
  --new         forget a run that was interrupted

The exit status of a plan is 0 if there is something to rewrite, 1 if not, 2 if
there is no way to the pool or to a plan; of a run 0 if all files of the plan
were rewritten, 1 if some were left out or there was nothing to do, 2 if it
ended before its end.
",
    },
];
