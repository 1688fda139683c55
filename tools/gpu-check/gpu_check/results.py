"""The parts of a check, their time, and their files."""
import json

#: Contestants that are ours; the second by the kernels of all chips, where the first has those of its chip alone.
OURS, PLAIN = "diffattn", "diffattn, mma.sync"
#: Ours on the same keys without pages, by clusters of two blocks, with exponentials beside products of the same warpgroup, by blocks
#: that take several tiles of queries, and with a block for each.
DENSE, CLUSTERS, OVERLAPPED = "diffattn, dense", "diffattn, clusters of two", "diffattn, overlapped"
PERSISTENT, BLOCKS = "diffattn, persistent blocks", "diffattn, a block a tile"
# Kernels of (64,128): a warpgroup has both maps of its rows, with persistent blocks or a block for each tile, or one map.
BOTH_PERSISTENT, BOTH_BLOCKS, ONE_MAP = "diffattn, both maps, persistent", "diffattn, both maps, a block a tile", "diffattn, one map"
# Seconds of each part. With what a process may take beyond them (check.py), those that run by default take less than 10 minutes, and so
# does each of the others.
BUDGETS = {"probe": 15, "kernels": 150, "sanitizer": 60, "forward": 180, "decode": 25, "module": 25, "models": 60, "backward": 150}
BY_NAME = ("backward",)
DEFAULT = tuple(name for name in BUDGETS if name not in BY_NAME)


def write(path, result):
    """Whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1))
    part.rename(path)


def read(folder):
    """Part -> what its file holds, of the parts that have one."""
    paths = {name: folder / f"{name}.json" for name in BUDGETS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}
