"""scripts/coverage_table.py on what llvm-cov writes of two files."""
import json
import subprocess
import sys


def of(lines, covered, branches, taken):
    return {"lines": {"count": lines, "covered": covered}, "branches": {"count": branches, "covered": taken}}


def test_folders_and_lines_that_did_not_run(root, tmp_path):
    # Line, column, count, whether it has one, whether a region begins, whether it is a gap.
    segments = [[3, 12, 5, True, True, False], [4, 7, 0, True, True, False], [6, 1, 5, True, False, False],
                [8, 3, 0, True, True, False], [8, 20, 5, True, False, False], [9, 2, 0, False, False, False]]
    files = [{"filename": f"{root}/lib/Codegen/CPU/A.cpp", "segments": segments, "summary": of(7, 4, 4, 1)},
             {"filename": f"{root}/lib/Codegen/CPU/B.cpp", "segments": [], "summary": of(1, 1, 0, 0)},
             {"filename": f"{root}/include/DiffAttn/IR/C.h", "segments": [], "summary": of(1000, 1000, 0, 0)}]
    (tmp_path / "coverage.json").write_text(json.dumps({"data": [{"files": files}]}))
    done = subprocess.run([sys.executable, "scripts/coverage_table.py", tmp_path / "coverage.json", "--lines", tmp_path / "lines.txt"], cwd=root,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2:] == ["| `include` | 1,000 | 100.0 % | 0 | – |", "| `lib/Codegen/CPU` | 8 | 62.5 % | 4 | 25.0 % |",
                                            "| all | 1,008 | 99.7 % | 4 | 25.0 % |"]
    # Line 8 ran in part.
    assert (tmp_path / "lines.txt").read_text() == "lib/Codegen/CPU/A.cpp (57.1 %): 5\n"


def test_no_files_are_an_error(root, tmp_path):
    (tmp_path / "coverage.json").write_text('{"data": [{"files": []}]}')
    done = subprocess.run([sys.executable, "scripts/coverage_table.py", tmp_path / "coverage.json"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 1 and "expected files of lib/ and include/, but got none" in done.stderr
