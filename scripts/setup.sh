# Sourced by the other scripts: functions that install what is missing, build, and run tests. Nothing runs when it is sourced.
# Works from any directory; a second call finds everything done and needs no network.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${DIFFATTN_BUILD_DIR:-$root/build}
venv=${DIFFATTN_VENV:-$root/.venv}
jobs=$(nproc)

say() {
  if [ -t 1 ]; then printf '\033[1m== %s\033[0m\n' "$*"; else printf '== %s\n' "$*"; fi
}
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# The folder of LLVM's tools that belongs to the MLIR in use.
llvm_bin() {
  if [ -n "${MLIR_DIR:-}" ]; then
    (cd "$MLIR_DIR/../../../bin" && pwd)
  else
    echo /usr/lib/llvm-22/bin
  fi
}

# need_packages COMMAND-OR-FILE:PACKAGE...: installs the Debian packages whose file or command is absent.
need_packages() {
  local missing=() entry probe package
  for entry in "$@"; do
    probe=${entry%%:*} package=${entry##*:}
    case $probe in
      /*) [ -e "$probe" ] || missing+=("$package") ;;
      *) command -v "$probe" >/dev/null 2>&1 || missing+=("$package") ;;
    esac
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing Debian packages: ${missing[*]}"
  command -v apt-get >/dev/null 2>&1 ||
    die "these Debian packages (or their like on this system) are missing: ${missing[*]}; set MLIR_DIR to the folder lib/cmake/mlir of an MLIR 22 to use your own"
  local sudo=
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || die "missing: ${missing[*]}; install them as root: apt-get install ${missing[*]}"
    sudo=sudo
  fi
  $sudo apt-get update -qq || die "apt-get update failed; without a network, install first: ${missing[*]}"
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null ||
    die "could not install: ${missing[*]}"
}

setup_packages() {
  local list=(cmake:cmake ninja:ninja-build ccache:ccache git:git
    /usr/include/oneapi/dnnl/dnnl.hpp:libdnnl-dev)
  if [ -z "${MLIR_DIR:-}" ]; then
    list+=(/usr/lib/llvm-22/include/llvm/IR/Module.h:llvm-22-dev /usr/lib/llvm-22/lib/cmake/mlir/MLIRConfig.cmake:libmlir-22-dev
      /usr/lib/llvm-22/bin/mlir-opt:mlir-22-tools /usr/lib/llvm-22/bin/FileCheck:llvm-22-tools
      /usr/lib/llvm-22/bin/clang++:clang-22 /usr/lib/llvm-22/bin/ld.lld:lld-22)
  else
    [ -f "$MLIR_DIR/MLIRConfig.cmake" ] || die "expected MLIRConfig.cmake in MLIR_DIR=$MLIR_DIR, but it is not there"
  fi
  need_packages "${list[@]}" "$@"
}

# Packages for the tests beside these: GoogleTest, a second way to link programs, what reads them, and the compiler that
# torch.compile calls.
setup_test_packages() {
  setup_packages /usr/include/gtest/gtest.h:libgtest-dev /usr/include/gmock/gmock.h:libgmock-dev pkg-config:pkg-config readelf:binutils g++:g++ "$@"
}

# Packages for a wheel beside these: the linker that is built into it, and what edits its libraries.
wheel_packages=(/usr/lib/llvm-22/lib/liblldELF.a:liblld-22-dev /usr/include/zlib.h:zlib1g-dev /usr/include/zstd.h:libzstd-dev
  patchelf:patchelf readelf:binutils)
setup_wheel_packages() {
  [ -z "${MLIR_DIR:-}" ] || die "expected no MLIR_DIR for a wheel, which is made of Debian's MLIR, but got $MLIR_DIR"
  setup_packages "${wheel_packages[@]}" "$@"
}

# clang_runtime NAME: the path of Clang's runtime library of that name, libclang_rt.NAME; installs it if it is missing. Call it once
# setup_packages has installed Clang.
clang_runtime() {
  local library
  # Without the library clang prints the bare name.
  library=$("$(llvm_bin)/clang" -print-file-name="libclang_rt.$1")
  if [ ! -e "$library" ]; then
    need_packages "$library":libclang-rt-22-dev >&2
    library=$("$(llvm_bin)/clang" -print-file-name="libclang_rt.$1")
  fi
  echo "$library"
}

# pip's own words are shown only when it fails.
pip_run() {
  "$venv/bin/python" -m pip --disable-pip-version-check -q "$@" >"$venv/pip.log" 2>&1 || {
    tail -20 "$venv/pip.log" >&2
    return 1
  }
}
pip_install() { pip_run install "$@"; }

# setup_environment: an empty virtual environment, where there is none.
setup_environment() {
  [ ! -x "$venv/bin/python" ] || return 0
  command -v python3 >/dev/null 2>&1 || need_packages python3:python3
  say "making a Python environment in ${venv#"$root"/}"
  python3 -m venv "$venv" >/dev/null 2>&1 || { need_packages /usr/share/doc/python3-venv:python3-venv && python3 -m venv "$venv"; } ||
    die "python3 -m venv failed"
}

# setup_pinned REQUIREMENTS: a virtual environment with exactly this file's packages, all of which it names with their hashes.
setup_pinned() {
  setup_environment
  local stamp
  stamp=$venv/.installed-$(basename "$1")
  cmp -s "$1" "$stamp" && return 0
  say "installing Python packages of ${1#"$root"/}"
  pip_install --require-hashes --no-deps --only-binary :all: -r "$1" || die "pip could not install $1; a network is needed the first time"
  cp "$1" "$stamp"
}

# setup_python REQUIREMENTS...: a virtual environment with these files' packages and our own package in it.
setup_python() {
  setup_environment
  local file stamp
  for file in "$@"; do
    stamp=$venv/.installed-$(basename "$file")
    cmp -s "$file" "$stamp" && continue
    say "installing Python packages of ${file#"$root"/}"
    warn_large "$file"
    pip_install -r "$file" || die "pip could not install $file; a network is needed the first time"
    cp "$file" "$stamp"
  done
  setup_package
}

# setup_package: our own package in the virtual environment, anew when its description or version changes.
setup_package() {
  local stamp=$venv/.installed-diffattn
  cat "$root/python/pyproject.toml" "$root/python/diffattn/_version.py" | cmp -s - "$stamp" && return 0
  pip_install --no-deps --no-build-isolation -e "$root/python" || die "pip could not install the diffattn package into $venv"
  cat "$root/python/pyproject.toml" "$root/python/diffattn/_version.py" >"$stamp"
}

# version: the project's.
version() {
  sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/python/diffattn/_version.py"
}

# Wheels of the package's dependencies, so that a fresh environment needs no network.
setup_wheelhouse() {
  local stamp=$venv/wheelhouse/requirements.txt
  cmp -s "$root/python/requirements.txt" "$stamp" && return 0
  say "downloading wheels of python/requirements.txt"
  rm -rf "$venv/wheelhouse"
  pip_run download --only-binary :all: -d "$venv/wheelhouse" -r "$root/python/requirements.txt" ||
    die "pip could not download the packages of python/requirements.txt; a network is needed the first time"
  cp "$root/python/requirements.txt" "$stamp"
}

# Says beforehand when a package of several gigabytes is about to come.
warn_large() {
  grep -q '^torch' "$1" || return 0
  local plan
  plan=$("$venv/bin/python" -m pip install --disable-pip-version-check -q --dry-run --report - -r "$1" 2>/dev/null) || return 0
  if printf '%s' "$plan" | grep -q '"name": "nvidia-'; then
    echo "note: the torch that pip finds is a CUDA build: about 3 GB with the packages that it needs. The tests use the CPU only;"
    echo "      a CPU build of the same version, installed into ${venv#"$root"/} first, saves that."
  fi
}

# configure [NAME=VALUE...]: configures the build where it is not there yet or has other values of these options. A new one compiles
# several files at a time, which takes about half of the time: most of it goes into headers and templates.
configure() {
  local options=(-G Ninja -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release) option changed=0
  [ -z "${MLIR_DIR:-}" ] || options+=(-DMLIR_DIR="$MLIR_DIR")
  [ -f "$build/build.ninja" ] || { changed=1; options+=(-DCMAKE_UNITY_BUILD=ON); }
  for option in "$@"; do
    options+=("-D$option")
    grep -qs "^${option%%=*}:[A-Z]*=${option#*=}\$" "$build/CMakeCache.txt" || changed=1
  done
  [ $changed = 1 ] || return 0
  say "configuring in ${build#"$root"/}"
  cmake "${options[@]}" >"$build.log" 2>&1 || {
    tail -20 "$build.log" >&2
    die "cmake failed"
  }
  mv "$build.log" "$build/configure.log"
}

# build_targets [TARGET...]: builds what is configured; all targets without arguments.
build_targets() {
  say "building ${*:-everything} (the first time takes some minutes)"
  # ninja's own counter shows the progress on a terminal; a log gets only what went wrong and the end.
  if [ -t 1 ]; then
    ninja -C "$build" -j"$jobs" "$@" || die "the build failed"
  else
    ninja -C "$build" -j"$jobs" "$@" >"$build/build.log" 2>&1 || {
      grep -E 'error|FAILED' "$build/build.log" | head -40 >&2
      die "the build failed; see $build/build.log"
    }
    tail -1 "$build/build.log"
  fi
}

# As many processes of tests as there are cores, up to four for the sake of memory. Threads that wait must not spin then: the
# processes would take each other's cores.
processes=$((jobs < 4 ? jobs : 4))

# run_unit_tests: every binary of GoogleTest, its tests in as many parts as there are processes, which take a part after the other;
# each part ends with its own summary. The names of those that failed go to `failed`.
run_unit_tests() {
  local logs=$build/unittests/logs names=() name part log
  for name in "$build"/unittests/*; do
    [ -x "$name" ] && [ -f "$name" ] && names+=("${name##*/}")
  done
  rm -rf "$logs"
  mkdir -p "$logs"
  # The longest one begins, in more parts, since some of its tests take seconds: so all processes end together.
  parts_of() { [ "$1" = GpuTests ] && echo $((4 * processes)) || echo "$processes"; }
  for name in GpuTests "${names[@]/#GpuTests/}"; do
    for ((part = 0; part < $(parts_of "$name"); ++part)); do [ -z "$name" ] || echo "$name $part $(parts_of "$name")"; done
  done | OMP_WAIT_POLICY=passive UNITTESTS=$build/unittests LOGS=$logs xargs -P "$processes" -n 3 bash -c '
      GTEST_SHARD_INDEX=$1 GTEST_TOTAL_SHARDS=$2 "$UNITTESTS/$0" --gtest_brief=1 >"$LOGS/$0-$1.log" 2>&1 && : >"$LOGS/$0-$1.passed"' || true
  for name in "${names[@]}"; do
    echo "$name:"
    for ((part = 0; part < $(parts_of "$name"); ++part)); do
      log=$logs/$name-$part
      cat "$log.log" || true
      [ -e "$log.passed" ] || failed+=("$name")
    done
  done
}

# run_pytest ARGUMENT...: tests in Python, by as many processes. Each runs whole files, in the order of conftest.py. Threads that wait do
# not spin, as in run_unit_tests; those of NumPy's OpenBLAS would all the same, so it has one. A process that crashes is not started anew:
# with whole files pytest-xdist then waits for ever. A failure goes to `failed`.
run_pytest() {
  (cd "$root" && OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1 "$venv/bin/python" -m pytest -q -n "$processes" --dist loadfile --no-loadscope-reorder --max-worker-restart=0 \
    --durations=25 --durations-min=5 --disable-warnings "$@") ||
    failed+=(pytest)
}
