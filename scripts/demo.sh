#!/usr/bin/env bash
# Sets up, builds, and lets the trained model of examples/tiny-lm write text on this machine's CPU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

case ${1:-} in
  "") ;;
  *)
    echo "usage: scripts/demo.sh"
    echo "Installs what is missing, builds into build/, compiles examples/tiny-lm and writes text with it."
    [ "$1" = --help ] && exit 0 || exit 2
    ;;
esac

start=$SECONDS
setup_packages
# Beside the build, since pip waits and works on one core. It ends with this script, however that ends.
setup_python "$root/python/requirements.txt" &
python_setup=$!
trap wait EXIT
# The tests are the other script's, and half of what there is to build. A build that has them keeps them.
if [ -f "$build/build.ninja" ]; then configure; else configure DIFFATTN_TESTS=OFF; fi
build_targets
wait $python_setup || exit 1
say "ready after $((SECONDS - start)) s"

model=$root/examples/tiny-lm
say "the model: a differential transformer, trained from nothing on public-domain text"
"$venv/bin/diffattn" info "$model"
say "compiling its MLIR graph and writing text"
"$venv/bin/diffattn" generate "$model" --prompt "In the beginning" --max-new-tokens 100 --temperature 0.7 --seed 3
say "bits per character on text that it never saw"
"$venv/bin/diffattn" eval "$model" "$model/heldout.txt"

# Commands that can be pasted, wherever this was called from.
there() { [ "$PWD" = "$root" ] || printf '\n  cd %q' "$root"; }
v=${venv#"$root"/} b=${build#"$root"/}

cat <<END

What happened: python/diffattn/models wrote the model as MLIR (one diffattn.attention a layer), the passes fused each into one
CPU kernel, LLVM compiled it, and the runtime bound the bf16 weights from examples/tiny-lm.

Try next:$(there)
  $v/bin/diffattn generate examples/tiny-lm --prompt "And the king said" --temperature 0.8 --seed 1
  $v/bin/diffattn build examples/tiny-lm -o tiny.mlir                   # the graph
  $b/bin/diffattn-run tiny.mlir --emit=bufferized -o -                  # the graph, part of the way down
  $b/bin/diffattn-opt test/IR/ops.mlir --diffattn-decompose             # one op as linalg
  scripts/test.sh                                                          # every test
END
