#!/bin/busybox sh
# Runs job.sh of the second disk, a tar archive, and turns the emulated machine off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
b=/bin/busybox
$b mount -t sysfs sys /sys
for folder in /tmp /run; do $b mount -t tmpfs memory $folder; done
$b mkdir /run/job
cd /run/job || $b poweroff -f
$b tar xf /dev/sdb && sh ./job.sh
echo "amx-check: the job ended with $?"
$b sleep 3 # what was written has left the machine by then
$b poweroff -f
