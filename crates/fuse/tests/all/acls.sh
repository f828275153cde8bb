# Sets, inherits, evaluates and removes POSIX ACLs in the current folder; says what came of each step.
set -u
user() { setpriv --reuid "$1" --regid "$2" --groups "$3" sh -c "$4" 2>/dev/null; echo "$4 by $1: $?"; }
show() { stat -c '%n %a %u:%g' "$@"; getfacl -cpn "$@" 2>/dev/null; }
said() { "$@" 2>&1 | sed 's/^[a-z]*: //'; }
umask 027
chmod 755 .

echo "== access ACLs"
echo text > f
setfacl -m u:12345:rw,g:777:r f; show f
getfattr -d -m - -e hex f | grep -v '^#'
user 12345 12345 12345 'cat f'; user 12345 12345 12345 'echo x >> f'; user 12345 12345 12345 'chmod 777 f'
user 12346 777 777 'cat f'; user 12346 777 777 'echo x >> f'; user 12347 12347 777 'cat f'; user 12348 12348 12348 'cat f'
setfacl -m u:12348:--- f; chmod o+r f; show f; user 12348 12348 12348 'cat f'; user 12349 12349 12349 'cat f'
echo "== the mode and the mask"
chmod 600 f; show f; user 12345 12345 12345 'cat f'
chmod 664 f; show f; user 12345 12345 12345 'echo y >> f'
setfacl -m m::r f; show f; user 12345 12345 12345 'echo y >> f'
chown 12345:777 f; show f
setfacl -b f; show f; getfattr -d -m - f
setfacl -m u::7,g::5,o::1 f; show f; getfattr -d -m - f
echo "== removing"
setfacl -m u:1:7 f; setfattr -x system.posix_acl_access f; show f
said setfattr -x system.posix_acl_access f; said setfattr -x system.posix_acl_default .
said setfacl -d -m u:1:7 f
ln -s f link; said setfacl -m u:1:7 link; show f; said getfattr -h -n system.posix_acl_access link
said setfattr -n system.posix_acl_access -v 0x0200000001000700ffffffff f
said setfattr -n system.posix_acl_access -v 0x01000000 f
said setfattr -n system.nothing -v x f
echo "== by others than root"
echo z > mine; chown 12345:777 mine; chmod 2755 mine
user 12345 12345 12345 'setfacl -m u:5:7 mine'; show mine
chmod 2755 mine; user 12345 12345 777 'setfacl -m u:6:7 mine'; show mine
user 12346 12346 12346 'setfacl -m u:7:7 mine'; show mine
echo "== inherited"
mkdir d; setfacl -d -m u:12345:rwx,g:777:rx,o::r d; show d
touch d/f; mkdir d/sub; mkfifo d/p; mknod d/c c 1 3; ln -s f d/link
show d/f d/sub d/p d/c; stat -c '%n %a' d/link
(umask 077; touch d/g; mkdir -m 700 d/private; mkdir d/sub/deep; touch d/sub/deep/f); show d/g d/private d/sub/deep d/sub/deep/f
cp f d/copied; show d/copied; cp -p mine d/kept; show d/kept
ln d/f d/hard; show d/hard; mv mine d/moved; show d/moved
user 12345 12345 12345 'echo x >> d/f'; chmod 777 d; user 12345 12345 12345 'touch d/own'; show d/own
mkdir d2; setfacl -d -m u::rwx,g::r,o::- d2; touch d2/f; mkdir d2/sub; show d2 d2/f d2/sub; getfattr -d -m - d2/f
(umask 0; touch d2/g); show d2/g
setfacl -k d2; touch d2/h; show d2 d2/h; getfattr -d -m - d2
mkdir d3; chown 0:777 d3; chmod 2777 d3; setfacl -d -m u:12345:rwx d3; mkdir d3/sub; touch d3/f; show d3/sub d3/f
user 12346 12346 12346 'mkdir d3/theirs; touch d3/t'; show d3/theirs d3/t
setfacl -d -m u:12345:rw,o::- d
perl -e 'sysopen(F, "d", 0x410002, 0666) or die; require "syscall.ph" if 0; syscall(265, -100, "/proc/$$/fd/".fileno(F), -100, "d/late", 0x400)' 2>/dev/null; show d/late
echo "== folders"
mkdir in; echo x > in/f; chmod 700 in; setfacl -m u:12345:x in
user 12345 12345 12345 'cat in/f'; user 12345 12345 12345 'ls in'
chmod 755 in/f; user 12345 12345 12345 'cat in/f'; user 12345 12345 12345 'ls in'; setfacl -m u:12345:r in; user 12345 12345 12345 'ls -d in/.'; user 12345 12345 12345 'ls in'
setfacl -m u:12345:rwx in; user 12345 12345 12345 'touch in/new'; user 12345 12345 12345 'rm in/f'; ls in
setfacl -x u:12345 in; user 12345 12345 12345 'ls in'
setfacl -R -m u:12345:rX d; show d/sub d/f
echo "== many entries"
touch many; setfacl -m "$(seq -f 'u:%.0f:r' -s , 20000 20200)" many; getfacl -cpn many | wc -l; stat -c %a many
setfattr -n user.x -v y many; getfattr -d -m - many | grep -c =; setfacl -b many; getfattr -d -m - many
