#!/bin/busybox sh
# The first program of the emulated machine's initial file system: hands over to the disk, or prints what it found.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t devtmpfs devices /dev
for module in $($b cat /modules/order); do $b insmod "/modules/$module"; done
tries=0
while [ ! -b /dev/sdb ] && [ $tries -lt 50 ]; do
  $b sleep 0.2
  tries=$((tries + 1))
done
$b mount -t ext4 -o noatime /dev/sda /disk && $b mount --move /dev /disk/dev && $b mount --move /proc /disk/proc &&
  exec $b switch_root /disk /sbin/amx-check-job
$b ls /dev
$b poweroff -f
