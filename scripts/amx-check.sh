#!/usr/bin/env bash
# Runs tests of AMX on an emulated CPU that has it: Bochs, with Debian's Linux in it. Wants what scripts/test.sh builds; see docs/amx-check.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  echo "usage: scripts/amx-check.sh BOCHS [PART ...]"
  echo "  BOCHS  a checkout of the emulator's repository, bochs-emu/Bochs"
  echo "  PART   products, attention, kernels, gradients, decode, bundle; all by default"
  exit "$1"
}
case ${1:-} in --help | -h) usage 0 ;; "" | -*) usage 2 >&2 ;; esac
bochs=$(cd "$1" && pwd)
shift
parts=("$@")
[ $# -gt 0 ] || parts=(products attention kernels gradients decode bundle)
[ -f "$bochs/bochs/cpu/avx/amx.cc" ] || die "expected a checkout of Bochs with AMX in BOCHS, but there is no $bochs/bochs/cpu/avx/amx.cc"
[ -x "$build/unittests/RuntimeTests" ] || die "expected a build with tests in $build; run scripts/test.sh first"

work=$build/amx-check job=$build/amx-check/job
mkdir -p "$work"

# The command of a part, there (on the emulated machine) or here, where it compiles what runs there. What is not compiled here compiles
# there, many times as slowly.
there() {
  local pytest="$venv/bin/python -m pytest -p no:cacheprovider -p prebuilt -v --color=no" native="-k 'amx and not emulated'"
  case $1 in
    products) echo "$build/unittests/TargetTests --gtest_brief=1 && $build/unittests/BundleTests --gtest_brief=1 && $build/unittests/RuntimeTests --gtest_filter='*Native*'" ;;
    attention) echo "$pytest test/python/cpu/test_amx_native.py" ;;
    kernels) echo "$pytest $native" test/python/attention/test_{attention_exact,f32_result,mask_blocks,attention_random}.py ;;
    gradients) echo "$pytest $native test/python/cpu/test_backward_kernel.py" ;;
    decode) echo "$pytest $native test/python/cpu/test_decode_tiles.py" ;;
    bundle) echo "$pytest test/amx/test_bundle.py" ;;
    *) die "expected one of the parts products, attention, kernels, gradients, decode, bundle, but got '$1'" ;;
  esac
}
here() {
  case $1 in
    products | gradients | decode) ;;
    attention) echo "$(there attention)::test_attention_is_what_is_emulated" ;;
    *) there "$1" ;;
  esac
}
for part in "${parts[@]}"; do there "$part" >/dev/null; done

need_packages g++:g++ make:make patch:patch grub-mkrescue:grub-common /usr/lib/grub/i386-pc/moddep.lst:grub-pc-bin xorriso:xorriso cpio:cpio \
  depmod:kmod mke2fs:e2fsprogs
kernel_package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
[ -n "$kernel_package" ] || die "expected Debian's package linux-image-amd64, but apt-cache knows none"

if [ ! -x "$work/bochs/bochs" ]; then
  say "building Bochs"
  rm -rf "$work/bochs"
  cp -r "$bochs/bochs" "$work/bochs"
  (
    cd "$work/bochs"
    patch -p1 -s <"$root/test/amx/bochs.patch"
    # Without its optimizations: with them the first program that Linux starts fails.
    ./configure --enable-x86-64 --enable-cpu-level=6 --enable-avx --enable-evex --enable-amx --enable-pci --with-nogui --disable-docbook \
      CFLAGS="-O2 -march=native" CXXFLAGS="-O2 -march=native"
    make -j "$jobs"
  ) >"$work/bochs.log" 2>&1 || { tail -20 "$work/bochs.log" >&2 && die "could not build Bochs"; }
fi

if [ ! -f "$work/boot.iso" ]; then
  say "a Linux to boot: $kernel_package"
  mkdir -p "$work/packages"
  (cd "$work/packages" && apt-get download -qq "$kernel_package" busybox-static >/dev/null 2>&1) || die "could not download $kernel_package and busybox-static"
  for package in "$work"/packages/*.deb; do dpkg -x "$package" "$work/linux"; done
  version=$(basename "$work"/linux/lib/modules/*)
  modules=$work/linux/lib/modules/$version
  depmod -b "$work/linux" "$version"
  mkdir -p "$work"/initrd/{bin,modules,proc,dev,disk} "$work/iso/boot/grub"
  cp "$work/linux/bin/busybox" "$work/initrd/bin/"
  for module in sd_mod ata_piix ata_generic ext4 crc32c_generic; do
    sed -n "s|\(.*/$module\.ko\):|\1|p" "$modules/modules.dep" | tr ' ' '\n' | tac
  done | awk 'NF && !seen[$0]++' | while read -r file; do
    cp "$modules/$file" "$work/initrd/modules/"
    basename "$file"
  done >"$work/order"
  mv "$work/order" "$work/initrd/modules/"
  install -m755 "$root/test/amx/init.sh" "$work/initrd/init"
  (cd "$work/initrd" && find . | cpio --quiet -o -H newc | gzip -1 >"$work/iso/boot/initrd")
  cp "$work/linux/boot/vmlinuz-$version" "$work/iso/boot/vmlinuz"
  # Feature 580 is FSRM, fast short `rep movsb`. Bochs offers it without fast long ones, and Linux's memmove is wrong for just this pair.
  cat >"$work/iso/boot/grub/grub.cfg" <<GRUB
set timeout=0
menuentry linux {
  linux /boot/vmlinuz console=ttyS0,115200 clearcpuid=580 mitigations=off nosmp tsc=reliable random.trust_cpu=on no_timer_check nowatchdog loglevel=4
  initrd /boot/initrd
}
GRUB
  grub-mkrescue -o "$work/boot.iso" "$work/iso" >/dev/null 2>&1 || die "grub-mkrescue could not write $work/boot.iso"
fi

# Bochs wants whole cylinders.
whole_cylinders() { truncate -s $((($1 + 516095) / 516096 * 516096)) "$2"; }

say "a disk with what this machine runs and what was built"
prefix=$("$venv/bin/python" -c 'import sys; print(sys.base_prefix)') python=()
[ "$prefix" = /usr ] || python=("${prefix#/}/bin" "${prefix#/}/lib")
rm -rf "$work/disk"
mkdir -p "$work"/disk/{proc,sys,dev,tmp,run}
tar -C / --exclude='*.a' --exclude=__pycache__ --exclude='site-packages/torch*' --exclude='site-packages/jax*' --exclude='site-packages/nvidia' \
  --exclude='site-packages/transformers' --exclude='site-packages/triton*' --exclude='site-packages/tensorstore*' --exclude='python3*/test' \
  --exclude="${build#/}/amx-check" --exclude="${build#/}/CMakeFiles" --exclude='*.o' -cf - bin sbin lib lib64 usr/bin usr/sbin usr/lib64 usr/lib/x86_64-linux-gnu etc/ld.so.cache \
  etc/ld.so.conf etc/ld.so.conf.d $(cd / && ls -d usr/lib/llvm-22/lib/*.so* usr/lib/python3*) "${python[@]}" "${venv#/}" \
  "${build#/}/bin" "${build#/}/lib" "${build#/}/unittests" "${root#/}"/{python,test,examples,benchmarks,CMakeLists.txt} | tar -C "$work/disk" -xf -
install -m755 "$work/linux/bin/busybox" "$work/disk/bin/busybox"
install -m755 "$root/test/amx/job.sh" "$work/disk/sbin/amx-check-job"
rm -f "$work/disk.img"
whole_cylinders $(($(du -s --block-size=1 "$work/disk" | cut -f1) * 11 / 10 + 300000000)) "$work/disk.img"
mke2fs -q -t ext4 -O ^metadata_csum,^64bit -d "$work/disk" "$work/disk.img"
rm -rf "$work/disk"

say "compiling here what runs there"
rm -rf "$job" "$work/job.img"
mkdir -p "$job"
environment() { echo "AMX_CHECK_JOB=$1 DIFFATTN_CACHE_DIR=$2 PYTHONPATH=$root/test/amx:$root/test/python/support:$root/test/python/attention:$root/test/python/cpu OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1"; }
{
  echo 'job=$PWD failed=0'
  echo "cd $root && export $(environment '$job' /tmp/cache)"
  for part in "${parts[@]}"; do
    command=$(here "$part")
    if [ -n "$command" ]; then
      (cd "$root" && eval "env $(environment "$job" "$work/cache") AMX_CHECK_COMPILES=1 $command") >"$work/compile-$part.log" 2>&1 ||
        { tail -20 "$work/compile-$part.log" >&2 && die "could not compile what part $part runs"; }
    fi
    echo "echo '== $part'; $(there "$part") || failed=1"
  done
  echo 'exit $failed'
} >"$work/job.sh"
mv "$work/job.sh" "$job/"
tar -C "$job" -cf "$work/job.img" .
whole_cylinders "$(stat -c %s "$work/job.img")" "$work/job.img"

say "booting"
cat >"$work/bochsrc" <<RC
cpu: model=sapphire_rapids, count=1, ips=100000000, reset_on_triple_fault=0
memory: guest=3072, host=3072
romimage: file=$work/bochs/bios/BIOS-bochs-latest
vgaromimage: file=$work/bochs/bios/VGABIOS-lgpl/VGABIOS-lgpl-latest.bin
ata0: enabled=1
ata0-master: type=disk, path=$work/disk.img, mode=volatile, journal=$work/disk.redolog
ata0-slave: type=disk, path=$work/job.img, mode=volatile, journal=$work/job.redolog
ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15
ata1-master: type=cdrom, path=$work/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/console
log: $work/bochs-run.log
display_library: nogui
clock: sync=none, time0=local
panic: action=fatal
error: action=report
info: action=report
RC
rm -f "$work"/*.lock "$work"/*.redolog*
: >"$work/console"
BXSHARE=$work/bochs/bios "$work/bochs/bochs" -q -f "$work/bochsrc" </dev/null >"$work/bochs.out" 2>&1 &
emulator=$!
trap 'kill $emulator 2>/dev/null || true' EXIT
tail -f "$work/console" --pid=$emulator | sed -un '/^== /,$p'
wait $emulator || true
grep -q "amx-check: the job ended with 0" "$work/console" || die "a part failed, or the emulated machine did not end; its console is $work/console"
