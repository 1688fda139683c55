"""Prints how much of our own code has run, from what `llvm-cov export -skip-functions` wrote (scripts/coverage.sh).

scripts/coverage_table.py FILE [--lines OUT]    a row for each folder of lib/ and include/; OUT gets the lines that did not run
"""
import argparse
import collections
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = "lines", "branches"


def folder_of(path):
    """The layer of a file, and of layers in parts its part: lib/Codegen/CPU, lib/IR."""
    parts = path.parent.parts
    return "/".join(parts[:3 if parts[1] in ("Codegen", "Runtime", "Testing", "Transforms") else 2] if parts[0] == "lib" else parts[:1])


def uncovered(segments):
    """Lines that begin in, or lie in, regions that never ran, as ranges. A segment is its line and column, a count, whether it has one,
    whether a region begins there, and whether it is a gap between regions."""
    ran, not_run = set(), set()
    for (line, _, count, has_count, _, is_gap), following in zip(segments, segments[1:]):
        if not has_count or is_gap:
            continue
        last = following[0] - (following[1] == 1)
        (ran if count else not_run).update(range(line, max(last, line) + 1))
    ranges = []
    for line in sorted(not_run - ran):
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    return ranges


def percent(covered, count):
    return f"{100 * covered / count:.1f} %" if count else "–"


def table(files):
    """Rows of Markdown: each folder, and all of them. `files`: paths below the root and what llvm-cov says of each."""
    folders = collections.defaultdict(lambda: dict.fromkeys([(kind, part) for kind in KINDS for part in ("covered", "count")], 0))
    for path, file in files:
        for name in (folder_of(path), "all"):
            for kind, part in folders[name]:
                folders[name][kind, part] += file["summary"][kind][part]
    yield "| folder | lines | run | branches | taken |"
    yield "|---|---|---|---|---|"
    for name in sorted(folders, key=lambda name: (name == "all", name)):
        cells = [cell for kind in KINDS for cell in (f"{folders[name][kind, 'count']:,}",
                                                    percent(folders[name][kind, "covered"], folders[name][kind, "count"]))]
        yield f"| {'all' if name == 'all' else f'`{name}`'} | {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--lines", type=pathlib.Path, metavar="OUT")
    arguments = parser.parse_args()
    listed = json.loads(arguments.file.read_text())["data"][0]["files"]
    files = sorted(((pathlib.Path(file["filename"]).resolve().relative_to(ROOT), file) for file in listed), key=lambda pair: pair[0])
    if not files:
        raise SystemExit(f"{arguments.file}: expected files of lib/ and include/, but got none")
    print("\n".join(table(files)))
    if arguments.lines:
        lines = []
        for path, file in files:
            ranges = uncovered(file["segments"])
            if ranges:
                spans = " ".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)
                summary = file["summary"]["lines"]
                lines.append(f"{path} ({percent(summary['covered'], summary['count'])}): {spans}\n")
        arguments.lines.write_text("".join(lines))


if __name__ == "__main__":
    main()
