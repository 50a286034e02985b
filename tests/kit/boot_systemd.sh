#!/bin/bash
# Boots the machine's own systemd as process 1 of namespaces of its own, over a throw-away copy of
# the root file system, so that a unit is tried with the real service manager and the machine
# itself does not change.
#
#   boot_systemd.sh FILES [DIRECTORY...]
#
# FILES is a directory whose content is laid over the new root before anything starts. Each
# DIRECTORY is shown read-only at its own place, in case it is not on the root file system itself.
#
# Stays in the foreground: whoever kills it ends systemd and all that was mounted. systemd is its
# only child; to run a command inside:  nsenter --target CHILD --all COMMAND
#
# Needs root, unshare(1), overlayfs and systemd. Exits with 77 when one of them is not to be had.
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
    # --kill-child: systemd never outlives whoever started it.
    exec unshare --mount --uts --ipc --net --cgroup --pid --fork --kill-child \
        --propagation private "$0" "$files" "$@"
fi

# The upper layer of an overlay can't lie on an overlay, which / may be: so it lies in memory.
state=/mnt
mount -t tmpfs -o mode=755 boot-systemd "$state"
root=$state/root
mkdir "$state/upper" "$state/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$state/upper,workdir=$state/work" overlay "$root" ||
    missing "an overlay can't be mounted here"
cp -a "$files/." "$root"

# These namespaces hold a copy of every mount there was. Loop mounts belong to other tests, which
# could not take them away for good. The innermost go first: with a mount goes what is on it.
# FILES may be on one of them: not before they have been copied.
findmnt --noheadings --list --output TARGET,SOURCE | awk '$2 ~ "^/dev/loop" { print $1 }' | tac |
    xargs --no-run-if-empty umount --lazy

for directory in "$@"; do
    mkdir -p "$root$directory"
    mount --rbind "$directory" "$root$directory"
    mount -o remount,bind,ro "$root$directory"
done

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup" || missing "there is no cgroup2 to be had"
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

# What belongs to a whole machine, or waits for hardware, would only fail here.
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
