"""Checks the subjects of new commits: `[area] Verb …`, at most 72 characters.

scripts/check_subjects.py [RANGE]    the commits of a range, as `main..`; without one, the newest 50 of the history
scripts/check_subjects.py --file F   the message in a file, as git's hook commit-msg has it

Merges are not read. A clone with a part of the history checks the commits that it has; without a repository there is nothing to check.
"""
import pathlib
import re
import subprocess
import sys

LIMIT = 72
NEWEST = 50
SUBJECT = re.compile(r"\[[A-Za-z0-9][A-Za-z0-9_.+/, -]*\] [A-Z]\S*.*[^.\s]")


def find_fault(subject):
    """The expectation that the subject does not meet, or None."""
    if not SUBJECT.fullmatch(subject):
        return "expected '[area] Verb …' without a full stop"
    if len(subject) > LIMIT:
        return f"expected at most {LIMIT} characters, but got {len(subject)}"
    return None


def main(arguments):
    if arguments[:1] == ["--file"] and len(arguments) == 2:
        lines = pathlib.Path(arguments[1]).read_text().splitlines()
        subject = next((line for line in lines if line.strip() and not line.startswith("#")), "")
        # Merges have git's own subject, and the others become part of another commit before they are shared.
        subjects = [] if subject.startswith(("Merge ", "fixup! ", "squash! ", "amend! ")) else [("this commit", subject)]
    elif len(arguments) > 1 or arguments and arguments[0].startswith("-"):
        sys.exit(__doc__)
    else:
        inside = subprocess.run(["git", "rev-parse", "--verify", "-q", "HEAD"], capture_output=True).returncode == 0
        if not inside and not arguments:
            print("no history here: no subjects to check")
            return 0
        log = ["git", "log", "--no-merges", "--format=%h%x09%s", *(arguments or [f"-n{NEWEST}"])]
        done = subprocess.run(log, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr.strip())
        subjects = [tuple(line.split("\t", 1)) for line in done.stdout.splitlines()]
    faults = [(name, subject, fault) for name, subject in subjects if (fault := find_fault(subject))]
    for name, subject, fault in faults:
        print(f"{name}: {fault}: {subject}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
