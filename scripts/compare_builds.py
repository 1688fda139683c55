#!/usr/bin/env python3
"""Shows that a change of the code's form changed nothing else: the same bits, the same kernels, the same speed.

    python scripts/compare_builds.py record before.json            # in the tree before the change, built
    python scripts/compare_builds.py record after.json             # in the tree after it
    python scripts/compare_builds.py diff before.json after.json
    python scripts/compare_builds.py time ../before .              # two built trees, in turns in one run

What is recorded: results, bit by bit, of random calls of attention on every instruction set of this CPU and on simulated GPUs, and of
small models of every kind; graphs of importers after raising; their IR and the models' after the pipelines; and what ptxas says of every
GPU kernel that ships. `diff` names each entry that differs and ends with status 1. `time` takes the median of the ratios of neighbouring
samples, one thread, for calls of attention, a model's prefill and decode, and compiling; it ends with status 1 where one is above --limit.
"""
import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: Before any library with OpenMP is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
CALLS, SIMULATED_CALLS = 200, 40
GPUS = ("cuda-sim:sm_80", "cuda-sim:sm_90")
SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "embed_dim": 24, "num_heads": 4, "rope_theta": 10000.0,
         "sliding_window": 5, "mamba_d_state": 4}
LARGER = {"model_type": "diffllama", "vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4,
          "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 2048}


def digest(*arrays):
    import numpy as np

    sha = hashlib.sha256()
    for array in arrays:
        sha.update(f"{array.dtype} {array.shape}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def targets_of_this_cpu():
    from diffattn.errors import DiffAttnError
    from diffattn.runtime import Executable

    targets = []
    for isa in ("avx512bf16", "avx512", "avx2", "generic"):
        try:
            Executable("module {}", target=f"cpu:{isa}")
            targets.append(f"cpu:{isa}")
        except DiffAttnError:
            print(f"note: this CPU has no {isa}", file=sys.stderr)
    return targets


def record_calls():
    import numpy as np
    from attention_cases import Call, draw_signature

    cpus = targets_of_this_cpu()
    for targets, count in ((cpus, CALLS), (GPUS, SIMULATED_CALLS)):
        for seed in range(count):
            rng = np.random.default_rng([seed, len(targets)])
            call = Call(rng, draw_signature(rng))
            target = targets[seed % len(targets)]
            yield f"call {seed} {target}", digest(call.run(target))


def checkpoint(folder, config, dtype):
    """A folder with random weights, without PyTorch."""
    import numpy as np
    from safetensors.numpy import save_file

    from diffattn import models

    rng = np.random.default_rng(8)
    weights = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, (shape, _) in models.build(config, dtype).file_types().items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def record_models(folder):
    import numpy as np

    import diffattn
    from diffattn import models

    for kind in models.DECODERS:
        for dtype in ("f32", "bf16", "f16"):
            for target in ("cpu", GPUS[0]):
                path = checkpoint(folder / f"{kind}-{dtype}", SMALL | {"model_type": kind}, dtype)
                model = diffattn.load(path, dtype=dtype, target=target, threads=1)
                caches = model.new_caches(2, 14)
                ids, lengths = np.arange(20).reshape(2, 10), np.array([10, 7])
                first, *caches = model.executable.call("prefill", ids, lengths, *caches)
                first = first.copy()
                second, *_ = model.executable.call("decode", np.array([3, 4]), lengths, *caches)
                yield f"model {kind} {dtype} {target}", digest(first, second)


def importers_graphs():
    return sorted((ROOT / "test/graphs").glob("*.mlir"))


def lower(module, passes):
    """The status of diffattn-opt, and a digest of what it prints."""
    opt = pathlib.Path(os.environ.get("DIFFATTN_BUILD_DIR", ROOT / "build")) / "bin/diffattn-opt"
    done = subprocess.run([opt, module, passes], capture_output=True)
    return done.returncode, hashlib.sha256(done.stdout).hexdigest()[:16]


def record_graphs():
    for graph in importers_graphs():
        yield f"raised {graph.name}", lower(graph, "--pass-pipeline=builtin.module(func.func(diffattn-fuse-differential))")[1]


#: Pipelines, with their options, by which models are lowered.
LOWERINGS = ("cpu-pipeline=isa=avx2 until=bufferized", "cpu-pipeline=isa=avx512bf16", "cpu-pipeline=isa=amx until=loops unchecked=true",
             "cpu-pipeline=isa=avx512 batch-invariant=true raise=false until=loops threads=3",
             "cuda-pipeline=chip=sm_80 isa=avx2 until=ptx", "cuda-pipeline=chip=sm_90a isa=avx2")


def record_lowered(folder):
    from diffattn import models

    modules = {graph.name: graph for graph in importers_graphs()}
    for kind in models.DECODERS:
        modules[kind] = folder / f"{kind}.mlir"
        modules[kind].write_text(str(models.build(SMALL | {"model_type": kind}, "bf16")))
    for name, module in modules.items():
        for lowering in LOWERINGS:
            status, digest = lower(module, f"--diffattn-{lowering}")
            yield f"lowered {name} {lowering}", f"{status} {digest}"


def record_kernels():
    done = subprocess.run([sys.executable, ROOT / "tools/gpu-check", "ptxas", "--chips=sm_80,sm_90"], capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    if not rows:
        sys.exit(f"expected a report of ptxas, but got {done.stderr[-2000:]}")
    for chip, registers, spills, shared, threads, blocks, kernel, *_ in rows:
        yield f"kernel {chip} {kernel}", f"{registers} registers, {spills} spilled, {shared} shared, {threads} threads, {blocks} blocks"


def record(args):
    """Some six minutes of a core."""
    sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test/python/support")]
    entries = {}
    with tempfile.TemporaryDirectory() as folder:
        parts = dict(calls=record_calls, models=lambda: record_models(pathlib.Path(folder)), graphs=record_graphs,
                     lowered=lambda: record_lowered(pathlib.Path(folder)), kernels=record_kernels)
        for name in args.only or parts:
            entries.update(parts[name]())
    pathlib.Path(args.file).write_text(json.dumps(entries, indent=1))
    print(f"{len(entries)} entries")
    return 0


def diff(args):
    before, after = (json.loads(pathlib.Path(name).read_text()) for name in (args.before, args.after))
    differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in differing:
        print(f"{name}: {before.get(name, 'not there')} -> {after.get(name, 'not there')}")
    print(f"{len({**before, **after})} entries, {len(differing)} differ")
    return 1 if differing else 0


def serve(args):
    """A process of one tree: takes the name of a sample on its input, answers with seconds."""
    root = pathlib.Path(args.tree).resolve()
    os.environ["DIFFATTN_BUILD_DIR"] = str(root / "build")
    sys.path[:0] = [str(root / "python")]
    import ml_dtypes
    import numpy as np

    import diffattn
    from diffattn.runtime import Executable

    rng = np.random.default_rng(0)
    samples = {}
    for dtype in (np.float32, ml_dtypes.bfloat16):
        for queries, keys in ((128, 128), (1024, 1024), (1, 8192)):
            q = [rng.standard_normal((1, 8, queries, 64)).astype(dtype) for _ in range(2)]
            k = [rng.standard_normal((1, 8, keys, 64)).astype(dtype) for _ in range(2)]
            v = rng.standard_normal((1, 8, keys, 128)).astype(dtype)
            name = f"attention {np.dtype(dtype).name} {queries}x{keys}"
            samples[name] = lambda q=q, k=k, v=v: diffattn.attention(q[0], k[0], q[1], k[1], v, 0.4, is_causal=True, norm="rms")
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("f32", "bf16"):
            model = diffattn.load(checkpoint(pathlib.Path(folder) / dtype, LARGER, dtype), dtype=dtype, threads=1)
            caches, ids, lengths = model.new_caches(1, 257), np.arange(256)[None], np.array([256])
            samples[f"prefill {dtype}"] = lambda m=model, c=caches: m.executable.call("prefill", ids, lengths, *c)
            samples[f"decode {dtype}"] = lambda m=model, c=caches: m.executable.call("decode", np.array([3]), lengths, *c)
    graph = (ROOT / "test/graphs/c_v1_onnx.mlir").read_text()
    samples["compile a graph"] = lambda: Executable(graph, cache=False)
    print(json.dumps(list(samples)), flush=True)
    for line in sys.stdin:
        call, begin, rounds = samples[line.strip()], time.perf_counter(), 0
        while rounds == 0 or time.perf_counter() - begin < 0.02:
            call()
            rounds += 1
        print((time.perf_counter() - begin) / rounds, flush=True)
    return 0


def measure(args):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen([sys.executable, __file__, "serve", tree], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                env=environment) for tree in (args.before, args.after)]
    names = [json.loads(worker.stdout.readline()) for worker in workers][0]

    def sample(worker, name):
        worker.stdin.write(name + "\n")
        worker.stdin.flush()
        return float(worker.stdout.readline())

    slower = 0
    for name in names:
        for worker in workers:
            sample(worker, name)
        ratios, least = [], [float("inf")] * 2
        for turn in range(args.turns):
            order = (0, 1) if turn % 2 else (1, 0)
            seconds = {at: sample(workers[at], name) for at in order}
            ratios.append(seconds[1] / seconds[0])
            least = [min(least[at], seconds[at]) for at in (0, 1)]
        ratio = statistics.median(ratios)
        slower += ratio > args.limit
        print(f"{name:34} {1e3 * least[0]:9.3f} ms {1e3 * least[1]:9.3f} ms   after / before: median {ratio:.3f}, least {least[1] / least[0]:.3f}"
              + "  SLOWER" * (ratio > args.limit), flush=True)
    for worker in workers:
        worker.stdin.close()
        worker.wait()
    return 1 if slower else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("record", help="writes what this tree's build computes")
    one.add_argument("file")
    one.add_argument("--only", action="append", choices=("calls", "models", "graphs", "lowered", "kernels"), help="only this part; may be given again")
    one.set_defaults(run=record)
    two = commands.add_parser("diff", help="compares two records")
    two.add_argument("before")
    two.add_argument("after")
    two.set_defaults(run=diff)
    three = commands.add_parser("time", help="times two built trees in turns")
    three.add_argument("before")
    three.add_argument("after")
    three.add_argument("--turns", type=int, default=21)
    three.add_argument("--limit", type=float, default=1.03, help="the largest ratio that is not reported as slower (default %(default)s)")
    three.set_defaults(run=measure)
    four = commands.add_parser("serve")
    four.add_argument("tree")
    four.set_defaults(run=serve)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
