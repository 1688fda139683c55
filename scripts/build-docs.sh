#!/usr/bin/env bash
# Builds the site of docs/ into build/site: Sphinx with every warning an error, links between pages included. Needs no compiler.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

output=$build/site
while [ $# -gt 0 ]; do
  case $1 in
    -o) [ $# -gt 1 ] || die "expected a folder after -o"; output=$2; shift ;;
    *)
      echo "usage: scripts/build-docs.sh [-o DIR]"
      echo "  -o DIR  where to; by default build/site"
      [ "$1" = --help ] && exit 0 || exit 2
      ;;
  esac
  shift
done

venv=${DIFFATTN_DOCS_VENV:-$root/.venv-docs}
setup_pinned "$root/python/requirements-docs.txt"

say "building the site"
# All pages are read again: warnings of those that were kept would not be said.
"$venv/bin/sphinx-build" -q -E -W --keep-going -j auto -c "$root/docs" -d "$venv/doctrees" -b html "$root" "$output" || die "the site has warnings"
# Pages keep their places in the tree, so the first one is in docs.
printf '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">diffattn</a>\n' >"$output/index.html"
say "wrote $output/index.html"
