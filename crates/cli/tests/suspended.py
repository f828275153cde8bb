"""A file system is changed below its users.

Arguments: the program, where tank/fs is mounted, and how it is changed: "rollback", "receive"
or "failing".
"""

import errno
import mmap
import os
import subprocess
import sys
import threading

WEIR, AT, HOW = sys.argv[1:]
GONE = (errno.EIO, errno.ESTALE)
ROLLBACKS = 20
TIME = 120


def weir(line, **where):
    subprocess.run([WEIR, *line.split()], check=True, timeout=TIME, **where)


def path(name):
    return os.path.join(AT, name)


def write(name, data):
    with open(name, "wb") as f:
        f.write(data)


def read(name):
    with open(name, "rb") as f:
        return f.read()


def fails(numbers, call):
    try:
        call()
    except OSError as e:
        assert e.errno in numbers, e
        return
    raise AssertionError("it worked")


def fill(root):
    for name, data in (("kept", b"old\n"), ("removed", b"removed\n"), ("one", b"1\n"), ("end", b"12345")):
        write(f"{root}/{name}", data)
    write(f"{root}/map", b"a" * (1 << 20))
    os.mkdir(f"{root}/child")
    os.mkdir(f"{root}/dir")
    write(f"{root}/dir/inner", b"inner\n")


def contents():
    found = {}
    for folder, dirs, files in os.walk(AT):
        if folder == AT:
            dirs.remove("child")
        for name in dirs:
            found[os.path.relpath(os.path.join(folder, name), AT)] = None
        for name in files:
            found[os.path.relpath(os.path.join(folder, name), AT)] = read(os.path.join(folder, name))
    return found


def prepare():
    if HOW == "rollback":
        weir(f"zfs create -o mountpoint={AT} tank/fs")
        fill(AT)
        weir("zfs snapshot tank/fs@s")
        return
    weir("zfs create tank/source")
    source = subprocess.run([WEIR, *"zfs get -H -o value mountpoint tank/source".split()], capture_output=True, text=True)
    source = source.stdout.strip()
    fill(source)
    weir("zfs snapshot tank/source@s")
    with open("full", "wb") as out:
        weir("zfs send tank/source@s", stdout=out)
    weir("zfs snapshot tank/source@t")
    with open("increment", "wb") as out:
        weir("zfs send -i @s tank/source@t", stdout=out)
    with open("full", "rb") as stream:
        weir(f"zfs receive -o mountpoint={AT} tank/fs", stdin=stream)


def change(work):
    """To the state of the beginning."""
    if HOW == "rollback":
        weir("zfs rollback -r tank/fs@s")
        return
    with open(f"{work}/increment", "rb") as stream:
        weir("zfs receive -F tank/fs", stdin=stream)


def in_use(work, expected):
    unlinked = os.open(path("removed"), os.O_RDONLY)
    os.unlink(path("removed"))
    assert not os.path.exists(path("removed"))
    write(path("kept"), b"newer and longer\n")
    write(path("new"), b"new")
    os.mkdir(path("newdir"))
    os.rename(path("one"), path("two"))
    for n in range(50):
        write(path(f"newdir/{n}"), b"x")
    kept, new = (os.open(path(name), os.O_RDWR) for name in ("kept", "new"))
    folder, new_folder = (os.open(path(name), os.O_RDONLY | os.O_DIRECTORY) for name in ("dir", "newdir"))
    end = os.open(path("end"), os.O_WRONLY | os.O_APPEND)
    os.write(end, b" and more of it")
    write(path("child/c"), b"child")
    child = os.open(path("child/c"), os.O_RDONLY)
    mapped = os.open(path("map"), os.O_RDWR)
    pages = mmap.mmap(mapped, 1 << 20)
    pages[5000:5005] = b"dirty"
    os.chdir(path("dir"))
    there = subprocess.Popen(["sh", "-c", "read x; ls ."], cwd=path("newdir"), stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    change(work)

    assert os.listdir(".") == ["inner"] and read("inner") == b"inner\n"
    assert contents() == expected, contents()
    assert os.pread(kept, 100, 0) == b"old\n" and os.fstat(kept).st_size == 4
    assert os.pread(unlinked, 100, 0) == b"removed\n"
    assert pages[4990:5010] == b"a" * 20, pages[4990:5010]
    os.write(end, b"67")
    assert read(path("end")) == b"1234567"
    for call in (lambda: os.pread(new, 3, 0), lambda: os.pwrite(new, b"x", 0), lambda: os.fstat(new),
                 lambda: os.fsync(new), lambda: os.ftruncate(new, 0), lambda: os.listdir(new_folder)):
        fails(GONE, call)
    fails((errno.ENOENT,), lambda: os.stat(path("new")))
    out, err = there.communicate(b"\n", TIME)
    assert there.returncode != 0 and not out, (out, err)
    assert os.listdir(folder) == ["inner"]
    # Objects get the numbers of those that have gone.
    for n in range(100):
        write(path(f"again{n}"), b"again")
    fails(GONE, lambda: os.pread(new, 3, 0))
    fails(GONE, lambda: os.pwrite(new, b"x", 0))
    assert all(read(path(f"again{n}")) == b"again" for n in range(100))
    # What is written now stays.
    os.pwrite(kept, b"OLD", 0)
    pages[5000:5005] = b"after"
    pages.flush()
    assert read(path("kept")) == b"OLD\n" and read(path("map"))[4999:5006] == b"aaftera"
    # A plain user's is no mount of its own.
    assert os.path.ismount(path("child")) or os.geteuid() != 0
    assert read(path("child/c")) == b"child" and os.pread(child, 9, 0) == b"child"
    for fd in (unlinked, kept, folder, end, child, mapped):
        os.close(fd)
    for fd in (new, new_folder):
        # The kernel says it here, too, once it knows the new object of that number.
        try:
            os.close(fd)
        except OSError as e:
            assert e.errno in GONE, e
    assert all(read(path(f"again{n}")) == b"again" for n in range(100))
    pages.close()
    os.chdir(work)


def beside_writers(work, expected):
    stop = threading.Event()
    counts = [0, 0]
    failed = []

    def files():
        n = 0
        while not stop.is_set():
            n += 1
            try:
                write(path(f"w{n % 7}"), os.urandom(70000))
                fd = os.open(path(f"w{n % 7}"), os.O_RDWR)
                os.pwrite(fd, b"kept", 0)
                os.fsync(fd)
                os.close(fd)
                os.rename(path(f"w{n % 7}"), path(f"v{n % 5}"))
                counts[0] += 1
            except OSError as e:
                if e.errno not in (*GONE, errno.ENOENT):
                    failed.append(e)

    def one_file():
        fd = os.open(path("kept"), os.O_RDWR)
        mapped = os.open(path("map"), os.O_RDWR)
        pages = mmap.mmap(mapped, 1 << 20)
        while not stop.is_set():
            os.pwrite(fd, b"OLD", 0)
            pages[700000:700003] = b"xyz"
            counts[1] += 1
        pages.close()
        os.close(mapped)
        os.close(fd)

    threads = [threading.Thread(target=files), threading.Thread(target=one_file)]
    for thread in threads:
        thread.start()
    for _ in range(ROLLBACKS):
        before = counts[0]
        while counts[0] < before + 2:
            pass
        change(work)
    stop.set()
    for thread in threads:
        thread.join(TIME)
        assert not thread.is_alive()
    assert not failed, failed
    change(work)
    assert contents() == expected, contents().keys()


def failing(work):
    """A rollback that is refused when the file system is suspended already: nothing is lost."""
    weir(f"zfs create -o compression=off -o mountpoint={AT} tank/fs")
    write(path("big"), os.urandom(8 << 20))
    weir("zfs snapshot tank/fs@s")
    os.unlink(path("big"))
    weir("zpool sync")
    weir("zfs set refquota=2M tank/fs")
    unlinked = os.open(path("unlinked"), os.O_RDWR | os.O_CREAT)
    os.write(unlinked, b"kept")
    os.unlink(path("unlinked"))
    os.mkdir(path("dir"))
    os.chdir(path("dir"))
    os.rmdir(path("dir"))
    refused = subprocess.run([WEIR, *"zfs rollback tank/fs@s".split()], capture_output=True, text=True, timeout=TIME)
    assert refused.returncode == 1 and "refquota" in refused.stderr, refused
    assert os.pread(unlinked, 9, 0) == b"kept" and os.fstat(unlinked).st_nlink == 0
    assert os.listdir(".") == [] and os.listdir(AT) == []
    os.write(unlinked, b" and more")
    os.close(unlinked)
    os.chdir(work)


def main():
    work = os.getcwd()
    if HOW == "failing":
        failing(work)
        return
    prepare()
    expected = contents()
    weir("zfs create tank/fs/child")
    in_use(work, expected)
    if HOW == "rollback":
        beside_writers(work, expected)


main()
