#!/bin/bash
# Boots the machine's own systemd as process 1 in new namespaces, over a temporary copy of the root
# file system. A test can try a unit with the real service manager, and the machine does not change.
#
#   boot_systemd.sh FILES [DIRECTORY...]
#
# The content of the directory FILES is copied over the new root before systemd starts. Each DIRECTORY
# is mounted read-only at its own place, in case it is not on the root file system.
#
# Stays in the foreground: killing it ends systemd and unmounts everything. systemd is its only child;
# to run a command inside:  nsenter --target CHILD --all COMMAND
#
# Needs root, unshare(1), overlayfs and systemd. Exits with 77 if one of them is missing.
set -euo pipefail

files=$1
shift

missing() {
    echo "boot_systemd: $*" >&2
    exit 77
}

[ "$(id -u)" = 0 ] || missing "root is needed"
[ -x /lib/systemd/systemd ] || missing "systemd is not installed"
grep -qw overlay /proc/filesystems || missing "the kernel has no overlayfs"

if [ "${BOOT_SYSTEMD_STAGE:-}" != inside ]; then
    export BOOT_SYSTEMD_STAGE=inside
    # --kill-child: systemd never outlives its parent.
    exec unshare --mount --uts --ipc --net --cgroup --pid --fork --kill-child \
        --propagation private "$0" "$files" "$@"
fi

# / may be an overlay, and the upper layer of an overlay cannot be on an overlay: use memory.
state=/mnt
mount -t tmpfs -o mode=755 boot-systemd "$state"
root=$state/root
mkdir "$state/upper" "$state/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$state/upper,workdir=$state/work" overlay "$root" ||
    missing "an overlay cannot be mounted here"
cp -a "$files/." "$root"

# These namespaces have a copy of every mount. Loop mounts belong to other tests, which could not
# remove them while a copy exists. Unmount them, the innermost first, and only after FILES was
# copied, since FILES may be on one of them.
findmnt --noheadings --list --output TARGET,SOURCE | awk '$2 ~ "^/dev/loop" { print $1 }' | tac |
    xargs --no-run-if-empty umount --lazy

# systemd empties /tmp when it boots, which takes long if this machine has many files there.
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
for directory in "$@"; do
    mkdir -p "$root$directory"
    mount --rbind "$directory" "$root$directory"
    mount -o remount,bind,ro "$root$directory"
done

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup" || missing "cgroup2 cannot be mounted"
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=755 dev "$root/dev"
make_device() { mknod -m "$4" "$root/dev/$1" c "$2" "$3"; }
make_device null 1 3 666
make_device zero 1 5 666
make_device full 1 7 666
make_device random 1 8 666
make_device urandom 1 9 666
make_device tty 5 0 666
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs shm "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 pts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"

# Units for a real machine, or ones that wait for hardware, would only fail here.
for unit in systemd-logind systemd-timesyncd systemd-udevd systemd-networkd systemd-resolved \
    getty@ console-getty serial-getty@; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
done
printf '%032d\n' 1 >"$root/etc/machine-id"

mkdir -p "$root/.old"
cd "$root"
pivot_root . .old
umount --lazy /.old
exec env -i container=ciuic-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=basic.target --show-status=0 --log-target=journal
