"""A decoder called with ids and options of every kind, and folders of models whose files were changed."""
import json
import pathlib
import shutil
import struct
import tempfile

import numpy as np

import diffattn
from judge import Tally

ROOT = pathlib.Path(__file__).resolve().parents[4]
FOLDER = ROOT / "examples" / "tiny-lm"
VALUES = [None, True, False, 0, 1, -1, 1.5, 2**31, 2**63, -(2**63), 1e300, -1e300, 1e-300, float("nan"), float("inf"), "", "0", "x", "\x1b[31m", [], [0], [1.5],
          [-1], {}, {"type": "linear", "factor": 0}, [[]], "\ud800", 10**30]
#: Options of `generate` that are right, and some that are not.
RIGHT = dict(max_new_tokens=[1, 2, 3], temperature=[0.0, 0.7, 1e-30, 1e30], top_k=[0, 1, 5, 10**6], top_p=[1.0, 0.5, 1e-12], seed=[0, 2**62], stop=[(), ("a",), "a"])
WRONG = dict(max_new_tokens=[0, -1, 1.5, float("nan"), "3", 2**63, True], temperature=[-1.0, float("nan"), float("inf"), "1", True],
             top_k=[-1, 1.5, float("nan"), "2"], top_p=[0.0, -0.1, 1.1, float("nan"), "0.5"], seed=[-1, 0.5, "x"], stop=[3, (1, 2), b"a"])
_model = None


def model():
    global _model
    _model = _model or diffattn.load(FOLDER, threads=1)
    return _model


def run(seed: int) -> Tally:
    rng = np.random.default_rng([seed, 6])
    pick = lambda options: options[rng.integers(len(options))]
    tally = Tally()
    for _ in range(4):
        _forward(rng, pick, tally)
        _generate(rng, pick, tally)
    _damaged(rng, pick, tally)
    return tally


def _forward(rng, pick, tally):
    shape = (pick([1, 2, 5]), pick([1, 2, 8, 9, 30]))
    ids = rng.integers(0, 2048, shape)
    how = pick(["right", "type", "range", "range", "float", "rank", "empty", "list"])
    must, given = "refuse", ids
    if how == "right":
        must, given = "take", pick([ids, ids.astype(np.int32), ids.astype(np.uint16), ids[:, ::-1], np.asfortranarray(ids), ids.astype(np.uint64)])
    elif how == "list":
        must, given = "take", ids.tolist()
    elif how == "type":
        given = pick([ids.astype(np.complex64), ids.astype("U4"), ids.astype(object), ids > 5, "ids", None, {"ids": 1}, ids.astype("M8[s]")])
    elif how == "range":
        given = ids.astype(pick([np.int64, np.uint64])) if pick([0, 1]) else ids
        given = given.copy()
        given[-1, -1] = pick([2048, 2**31, 2**62]) if given.dtype != np.uint64 else pick([2048, 2**63, 2**64 - 1])
        if given.dtype == np.int64 and pick([0, 1]):
            given[0, 0] = pick([-1, -(2**63)])
    elif how == "float":
        given = ids.astype(np.float64) + pick([0.7, float("nan"), float("inf"), 1e300])
    elif how == "rank":
        given = pick([ids[0], ids[None], ids[0, 0]])
    else:
        given, must = ids[:, :0] if pick([0, 1]) else ids[:0], None

    def judge(got):
        given_ids = np.asarray(given).astype(np.int64)
        assert got.shape == (*given_ids.shape, 2048) and np.isfinite(got).all()
        if got.size:
            alone = model().forward(given_ids[:1])
            assert np.abs(alone - got[:1]).max() < 0.1, "a row alone differs from the row in its batch"

    tally.attempt(lambda: model().forward(given), judge, must=must, what=f"forward {how} {getattr(given, 'dtype', type(given))} {shape}")


def _generate(rng, pick, tally):
    options = {name: pick(values) for name, values in RIGHT.items() if pick([0, 1])}
    must = "take"
    if pick([0, 1]):
        name = pick(list(WRONG))
        options[name], must = pick(WRONG[name]), "refuse"
    options.setdefault("max_new_tokens", 2)
    ids = rng.integers(0, 2048, pick([1, 5, 12])).tolist()
    good = [ids, "In the beginning", ["In", "the end of"], [ids, ids[:1]], np.array([ids, ids])]
    bad = ["", [], [[]], ["", "x"], [1.7], [-1], [2048], [None], ["a", [1]], None, 3, b"abc", [True], np.array([[1.5]]), np.array([[[1]]]), [float("nan")], [2**70]]
    prompt = pick(good)
    if pick([0, 0, 1]):
        # A tokenizer with a begin token makes something of no text.
        prompt, must = pick(bad), None if must == "take" else must
    tally.attempt(lambda: list(model().generate(prompt, **options)), lambda got: None, must=must, what=f"generate {prompt!r} {options}")


def _change(rng, pick, tree):
    """Replaces or takes away one value somewhere in a tree of JSON."""
    places = []

    def walk(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)) and len(places) < 3000:
                walk(node[key])

    walk(tree)
    if not places:
        return
    node, key = places[rng.integers(len(places))]
    if pick([0, 0, 0, 1]):
        del node[key]
    else:
        node[key] = pick(VALUES)


def _damaged(rng, pick, tally):
    """One file of a model's folder with something else in it, and then what one does with such a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            shutil.copy(FOLDER / file, folder / file)
        which = pick(["config.json", "config.json", "config.json", "tokenizer.json", "generation_config.json", "model.safetensors"])
        path = folder / which
        if which == "generation_config.json":
            path.write_text(json.dumps({"eos_token_id": [1, 2], "temperature": 0.5, "do_sample": True, "top_p": 0.9, "top_k": 3}))
        if which == "model.safetensors":
            _damage_weights(rng, pick, path)
        elif pick([0, 0, 0, 1]):
            data = bytearray(path.read_bytes())
            for _ in range(pick([1, 3, 30])):
                data[rng.integers(min(len(data), 4000))] = rng.integers(256)
            path.write_bytes(data)
        else:
            tree = json.loads(path.read_text())
            for _ in range(pick([1, 1, 2])):
                _change(rng, pick, tree)
            path.write_text(json.dumps(tree))
        changed = path.read_bytes()[:600]

        def use():
            one = diffattn.load(folder, threads=1)
            one.forward([[1, 2, 3]])
            return list(one.generate("In the", max_new_tokens=2))

        tally.attempt(use, lambda got: None, what=f"{which}: {changed!r}")


def _damage_weights(rng, pick, path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8: 8 + size])
    entry = header[pick([n for n in header if n != "__metadata__"])]
    field = pick(["dtype", "shape", "data_offsets"])
    entry[field] = pick(["F32", "BF16", "I64", "F8_E4M3"]) if field == "dtype" else pick(VALUES + [[2**32, 2**32], [-1, 2], [0, 2**62], [4, 2]])
    text = json.dumps(header).encode()
    if pick([0, 1]):
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    else:
        path.write_bytes(struct.pack("<Q", pick([0, 1, len(text), 2**63, 2**64 - 1])) + text + data[8 + size: pick([9 + size, len(data) - 1, len(data)])])
