#!/usr/bin/env bash
# Writes the package with its compiled libraries as a wheel for every Python from 3.9 on, on x86-64 Linux with glibc 2.34 or later:
# dist/diffattn-VERSION-py3-none-manylinux_2_34_x86_64.whl. It is linked from the objects of build/ with the static libraries of MLIR
# and LLVM. Needs Debian: the other libraries in it are Debian's, with their licences.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

output=$root/dist check=0
while [ $# -gt 0 ]; do
  case $1 in
    -o) [ $# -gt 1 ] || die "expected a folder after -o"; output=$2; shift ;;
    --check) check=1 ;;
    *)
      echo "usage: scripts/build-wheel.sh [-o DIR] [--check]"
      echo "  -o DIR   where to; by default dist"
      echo "  --check  run the wheel's tests on it afterwards"
      [ "$1" = --help ] && exit 0 || exit 2
      ;;
  esac
  shift
done

setup_wheel_packages
setup_python "$root/python/requirements.txt"
grep -qs '^DIFFATTN_SANITIZE:BOOL=ON$' "$build/CMakeCache.txt" && die "expected a build without sanitizers, but got $build"
if [ -f "$build/build.ninja" ]; then configure DIFFATTN_WHEEL=ON; else configure DIFFATTN_WHEEL=ON DIFFATTN_TESTS=OFF; fi
build_targets DiffAttnWheel

package=$build/wheel/package
rm -rf "$package"
mkdir -p "$package/licenses"
cp -r "$root/python/diffattn" "$root/python/pyproject.toml" "$root/python/README.md" "$root/LICENSE" "$package"
cp "$root/scripts/wheel_setup.py" "$package/setup.py"
find "$package" -name __pycache__ -prune -exec rm -r {} +
cmake --install "$build" --component wheel --prefix "$package/diffattn" >"$build/wheel/install.log" || die "see $build/wheel/install.log"
# Libraries of others find one another here too.
for library in "$package"/diffattn/lib/*.so.*; do
  strip --strip-unneeded "$library"
  patchelf --set-rpath '$ORIGIN' "$library"
done
# The licences of what is in it.
for name in llvm-22-dev libmlir-22-dev liblld-22 libdnnl2 libgomp1 libstdc++-12-dev ocl-icd-libopencl1 zlib1g libzstd1; do
  cp "/usr/share/doc/$name/copyright" "$package/licenses/$name.txt" || die "expected the licence of the Debian package $name"
done

say "packing the wheel"
mkdir -p "$build/wheel/dist" "$output"
rm -f "$build"/wheel/dist/*.whl
# Equal sources give an equal file.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-315532800}
pip_run wheel --no-deps --no-build-isolation -w "$build/wheel/dist" "$package" || die "pip could not build the wheel"
wheel=$(cd "$build/wheel/dist" && echo *.whl)
mv "$build/wheel/dist/$wheel" "$output/$wheel"
say "wrote $output/$wheel: $(stat -c %s "$output/$wheel" | awk '{ printf "%.1f MB", $1 / 1e6 }')"

if [ $check = 1 ]; then
  setup_test_packages
  setup_python "$root/python/requirements.txt" "$root/python/requirements-test.txt"
  (cd "$root" && DIFFATTN_WHEEL_FILE="$output/$wheel" "$venv/bin/python" -m pytest -q test/python/tools/test_wheel_binary.py)
fi
