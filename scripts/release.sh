#!/usr/bin/env bash
# Makes a release of the tree as it is committed: the wheel with its tests, the release notes, and the annotated tag. Nothing is pushed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

output=$root/dist dry=0
while [ $# -gt 0 ]; do
  case $1 in
    -o) [ $# -gt 1 ] || die "expected a folder after -o"; output=$2; shift ;;
    --dry-run) dry=1 ;;
    *)
      echo "usage: scripts/release.sh [-o DIR] [--dry-run]"
      echo "  -o DIR     where the wheel and the notes go; by default dist"
      echo "  --dry-run  check the tree and print the notes; build, write and tag nothing"
      [ "$1" = --help ] && exit 0 || exit 2
      ;;
  esac
  shift
done

cd "$root"
version=$(version)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "expected a version MAJOR.MINOR.PATCH in python/diffattn/_version.py, but got '$version'"
tag=v$version

changed=$(git status --porcelain) || die "expected a git repository in $root"
[ -z "$changed" ] || die "expected a tree without changes, but git status shows"$'\n'"$changed"
! git rev-parse -q --verify "refs/tags/$tag" >/dev/null || die "expected a version that is not released yet, but got $version, whose tag $tag exists"

# The newest version of the changelog is the one that is released, with the date that citations have.
heading=$(grep -m1 '^## ' CHANGELOG.md) || die "expected a heading '## $version (YYYY-MM-DD)' in CHANGELOG.md, but got none"
[[ $heading =~ ^"## $version ("([0-9]{4}-[0-9]{2}-[0-9]{2})")"$ ]] ||
  die "expected '## $version (YYYY-MM-DD)' as the first heading of a version in CHANGELOG.md, but got '$heading'"
date=${BASH_REMATCH[1]}
grep -qx "version: $version" CITATION.cff && grep -qx "date-released: $date" CITATION.cff ||
  die "expected version: $version and date-released: $date in CITATION.cff, but got $(grep -E '^(version|date-released): ' CITATION.cff | paste -sd' ')"
# The text between this heading and the next one, without empty lines at either end.
notes=$(awk '/^## / { ++versions; next } versions == 1' CHANGELOG.md | sed '/./,$!d')
[ -n "$notes" ] || die "expected what changed in $version in CHANGELOG.md, but got an empty section"

if [ $dry = 1 ]; then
  printf '%s\n' "$notes"
  say "ready: $version, tag $tag at $(git rev-parse --short HEAD)"
  exit 0
fi
"$root/scripts/build-wheel.sh" -o "$output" --check
notes_file=$output/release-notes-$version.md
printf '%s\n' "$notes" >"$notes_file"
# The lines of a changelog that begin with # are headings, not git's comments.
{ printf 'diffattn %s\n\n' "$version"; cat "$notes_file"; } | git tag -a "$tag" --cleanup=verbatim -F -
say "tagged $(git rev-parse --short HEAD) as $tag; the wheel and $(basename "$notes_file") are in $output. To publish: git push origin $tag"
