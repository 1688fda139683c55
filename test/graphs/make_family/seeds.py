"""The command line of a family that is drawn from seeds."""

import argparse
from pathlib import Path


def seed_range(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def export_seeds(description, export):
    """Runs export(seed, folder) for the seeds asked for. What an importer refuses is printed and passed over."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seeds", nargs="+", type=seed_range, metavar="SEED or FIRST-LAST")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    written = refused = 0
    for seed in (seed for seeds in args.seeds for seed in seeds):
        try:
            export(seed, args.folder)
            written += 1
        except Exception as error:  # importers raise whatever they like
            refused += 1
            print(f"seed {seed} was not exported: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
    print(f"{written} graphs in {args.folder}, {refused} refused by an importer")
