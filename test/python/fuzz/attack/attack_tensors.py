"""Small tensor programs whose indices, offsets, sizes, steps and divisors come from the caller, at and beyond the ends."""
import numpy as np

from diffattn.runtime import Executable
from guarded import Fence
from judge import Tally

CALLS = 12
#: Nothing between what is small and what no machine holds: whether such an array can be had is the machine's affair.
FAR = [-(2**31), 2**45, 2**61, 2**62, -(2**62), 2**63 - 1, -(2**63)]


class Refused(Exception):
    """The program leaves an array or divides by zero: it must end with an error."""


class Unclear(Exception):
    """MLIR leaves open what this means: an error and a value are both right, as long as nothing is touched outside."""


class Skipped(Exception):
    """An array that a large machine holds and a small one does not, or a loop that takes too long: the call is not made."""


def inside(index, size):
    if not 0 <= index < size:
        raise Refused


def allocate(*sizes):
    if any(n < 0 for n in sizes) or np.prod([float(n) for n in sizes]) > 2**40:
        raise Refused
    if max(sizes) > 2**40:
        raise Unclear  # none of rows that are too long
    if np.prod(sizes) > 2**22:
        raise Skipped
    return np.zeros(sizes, np.float32)


class Program:
    """Ops in a row. Each is a line of MLIR and a function of what was computed before."""

    def __init__(self, rng):
        self._pick = lambda options: options[rng.integers(len(options))]
        self.lines, self.steps = [], []
        self.vectors, self.numbers, self.indices = ["t0", "t1"], ["x"], ["i0", "i1", "i2"]
        self.made = []  # names that are returned
        #: Arrays of one number throughout. MLIR reads the number, not the array, so no place is outside.
        self.uniform = set()

    def add(self, kind, line, step, uniform=False):
        name = f"r{len(self.steps)}"
        if uniform:
            self.uniform.add(name)
        self.lines.append(f"  %{name} = {line}")
        self.steps.append((name, step))
        getattr(self, kind).append(name)
        self.made.append((name, {"vectors": "tensor<?xf32>", "numbers": "f32", "indices": "index"}[kind]))

    def draw(self):
        getattr(self, "op_" + self._pick([n[3:] for n in dir(self) if n.startswith("op_")]))()

    def _inside(self, name):
        """The check of an index into an array."""
        uniform = name in self.uniform

        def check(index, size):
            if uniform and not 0 <= index < size:
                raise Unclear
            inside(index, size)
        return check

    def _some(self):
        pick = self._pick
        return pick(self.vectors), pick(self.numbers), pick(self.indices), pick(self.indices)

    def op_extract(self):
        t, _, i, _ = self._some()
        check = self._inside(t)

        def step(e):
            check(e[i], e[t].size)
            return e[t][e[i]]
        self.add("numbers", f"tensor.extract %{t}[%{i}] : tensor<?xf32>", step)

    def op_insert(self):
        t, x, i, _ = self._some()

        def step(e):
            inside(e[i], e[t].size)
            result = e[t].copy()
            result[e[i]] = e[x]
            return result
        self.add("vectors", f"tensor.insert %{x} into %{t}[%{i}] : tensor<?xf32>", step)

    def op_extract_slice(self):
        t, _, i, n = self._some()
        stride = self._pick([1, 1, 2, 3])
        check = self._inside(t)

        def step(e):
            if e[n] < 0:
                raise Refused
            if e[n] == 0:
                if not 0 <= e[i] <= e[t].size:
                    raise Unclear
                return e[t][:0]
            check(e[i], e[t].size)
            check(e[i] + (e[n] - 1) * stride, e[t].size)
            return e[t][e[i]: e[i] + (e[n] - 1) * stride + 1: stride]
        self.add("vectors", f"tensor.extract_slice %{t}[%{i}] [%{n}] [{stride}] : tensor<?xf32> to tensor<?xf32>", step, uniform=t in self.uniform)

    def op_extract_slice_by_a_step(self):
        t, _, i, s = self._some()
        check = self._inside(t)

        def step(e):
            places = [e[i] + k * e[s] for k in range(3)]
            for place in places:
                check(place, e[t].size)
            if e[s] <= 0:
                raise Unclear
            return e[t][places]
        self.lines.append("  %c3 = arith.constant 3 : index") if "c3" not in str(self.lines) else None
        self.add("vectors", f"tensor.extract_slice %{t}[%{i}] [%c3] [%{s}] : tensor<?xf32> to tensor<?xf32>", step, uniform=t in self.uniform)

    def op_insert_slice(self):
        t, _, i, _ = self._some()
        u = self._pick(self.vectors)
        size = f"s{len(self.steps)}"

        def step(e):
            n = e[u].size
            if n == 0:
                if not 0 <= e[i] <= e[t].size:
                    raise Unclear
                return e[t]
            inside(e[i], e[t].size)
            inside(e[i] + n - 1, e[t].size)
            result = e[t].copy()
            result[e[i]: e[i] + n] = e[u]
            return result
        self.lines.append(f"  %{size} = tensor.dim %{u}, %zero : tensor<?xf32>")
        self.add("vectors", f"tensor.insert_slice %{u} into %{t}[%{i}] [%{size}] [1] : tensor<?xf32> into tensor<?xf32>", step)

    def op_gather(self):
        t = self._pick(self.vectors)
        signed = self._pick(["index_cast", "index_castui"])
        check = self._inside(t)

        def step(e):
            for i in e["ids"]:
                check(i, e[t].size)
            return e[t][e["ids"]] if e["ids"].size else e[t][:0]
        n = f"n{len(self.steps)}"
        self.lines += [f"  %{n}d = tensor.dim %ids, %zero : tensor<?xi64>", f"  %{n}e = tensor.empty(%{n}d) : tensor<?xf32>"]
        self.add("vectors", "linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = [\"parallel\"]} "
                 f"ins(%ids : tensor<?xi64>) outs(%{n}e : tensor<?xf32>) {{\n  ^bb0(%a: i64, %b: f32):\n    %at = arith.{signed} %a : i64 to index\n"
                 f"    %y = tensor.extract %{t}[%at] : tensor<?xf32>\n    linalg.yield %y : f32\n  }} -> tensor<?xf32>", step, uniform=t in self.uniform)

    def op_shifted_read(self):
        t, _, i, _ = self._some()
        check = self._inside(t)

        def step(e):
            n = e[t].size
            for k in range(n):
                check(k + e[i], n)
            return e[t][np.arange(n) + e[i]] if n else e[t]
        n = f"n{len(self.steps)}"
        self.lines += [f"  %{n}d = tensor.dim %{t}, %zero : tensor<?xf32>", f"  %{n}e = tensor.empty(%{n}d) : tensor<?xf32>"]
        self.add("vectors", f"linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>], iterator_types = [\"parallel\"]}} outs(%{n}e : tensor<?xf32>) "
                 f"{{\n  ^bb0(%b: f32):\n    %k = linalg.index 0 : index\n    %at = arith.addi %k, %{i} : index\n    %y = tensor.extract %{t}[%at] : tensor<?xf32>\n"
                 "    linalg.yield %y : f32\n  } -> tensor<?xf32>", step, uniform=t in self.uniform)

    def op_scatter(self):
        t, x, _, _ = self._some()

        def step(e):
            result = e[t].copy()
            for i in e["ids"]:
                inside(i, result.size)
                result[i] = e[x]
            return result
        n = f"n{len(self.steps)}"
        self.lines.append(f"  %{n}d = tensor.dim %ids, %zero : tensor<?xi64>")
        self.add("vectors", f"scf.for %k = %zero to %{n}d step %one iter_args(%acc = %{t}) -> tensor<?xf32> {{\n    %id = tensor.extract %ids[%k] : tensor<?xi64>\n"
                 f"    %at = arith.index_cast %id : i64 to index\n    %new = tensor.insert %{x} into %acc[%at] : tensor<?xf32>\n    scf.yield %new : tensor<?xf32>\n  }}", step)

    def op_pad(self):
        t, x, low, high = self._some()

        def step(e):
            if e[low] < 0 or e[high] < 0:
                raise Refused
            allocate(e[low] + e[high] + e[t].size)
            return np.concatenate([np.full(e[low], e[x], np.float32), e[t], np.full(e[high], e[x], np.float32)])
        self.add("vectors", f"tensor.pad %{t} low[%{low}] high[%{high}] {{\n  ^bb0(%k: index):\n    tensor.yield %{x} : f32\n  }} : tensor<?xf32> to tensor<?xf32>", step)

    def op_fill(self):
        _, x, n, _ = self._some()
        name = f"n{len(self.steps)}"
        self.lines.append(f"  %{name} = tensor.empty(%{n}) : tensor<?xf32>")
        self.add("vectors", f"linalg.fill ins(%{x} : f32) outs(%{name} : tensor<?xf32>) -> tensor<?xf32>", lambda e: allocate(e[n]) + np.float32(e[x]), uniform=True)

    def op_fill_plane(self):
        _, x, n, m = self._some()
        name = f"n{len(self.steps)}"

        def step(e):
            allocate(e[n], e[m])
            return np.full(e[n] * e[m], e[x], np.float32)
        self.lines += [f"  %{name} = tensor.empty(%{n}, %{m}) : tensor<?x?xf32>",
                       f"  %{name}f = linalg.fill ins(%{x} : f32) outs(%{name} : tensor<?x?xf32>) -> tensor<?x?xf32>"]
        self.add("vectors", f"tensor.collapse_shape %{name}f [[0, 1]] : tensor<?x?xf32> into tensor<?xf32>", step, uniform=True)

    def op_add(self):
        t, u = self._pick(self.vectors), self._pick(self.vectors)

        def step(e):
            if e[t].size != e[u].size:
                raise Refused
            return e[t] + e[u]
        self.add("vectors", f"arith.addf %{t}, %{u} : tensor<?xf32>", step, uniform=t in self.uniform and u in self.uniform)

    def op_expand(self):
        t, _, n, m = self._some()

        def step(e):
            if e[n] < 0 or e[m] < 0 or e[n] * e[m] != e[t].size:
                raise Refused
            return e[t]
        name = f"n{len(self.steps)}"
        self.lines.append(f"  %{name} = tensor.expand_shape %{t} [[0, 1]] output_shape [%{n}, %{m}] : tensor<?xf32> into tensor<?x?xf32>")
        self.add("vectors", f"tensor.collapse_shape %{name} [[0, 1]] : tensor<?x?xf32> into tensor<?xf32>", step, uniform=t in self.uniform)

    def op_reshape(self):
        t, _, n, _ = self._some()

        def step(e):
            if e[n] != e[t].size:
                raise Refused
            return e[t]
        name = f"n{len(self.steps)}"
        self.lines.append(f"  %{name} = tensor.from_elements %{n} : tensor<1xindex>")
        self.add("vectors", f"tensor.reshape %{t}(%{name}) : (tensor<?xf32>, tensor<1xindex>) -> tensor<?xf32>", step, uniform=t in self.uniform)

    def op_cast(self):
        t = self._pick(self.vectors)

        def step(e):
            if e[t].size != 5:
                raise Refused
            return e[t]
        name = f"n{len(self.steps)}"
        self.lines.append(f"  %{name} = tensor.cast %{t} : tensor<?xf32> to tensor<5xf32>")
        self.add("vectors", f"tensor.cast %{name} : tensor<5xf32> to tensor<?xf32>", step, uniform=t in self.uniform)

    def op_divide(self):
        a, b = self._pick(self.indices), self._pick(self.indices)
        op = self._pick(["divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi", "ceildivui"])

        def step(e):
            x, y = e[a], e[b]
            if y == 0 or "u" not in op and y == -1 and x == -(2**63):
                raise Refused
            unsigned = "u" in op.replace("floor", "")
            if unsigned:
                x, y = x % 2**64, y % 2**64
            floor, sign = x // y, 1 if (x < 0) == (y < 0) else -1
            down = sign * (abs(x) // abs(y))
            value = {"divsi": down, "divui": floor, "remsi": x - down * y, "remui": x % y, "floordivsi": floor, "ceildivsi": -((-x) // y),
                     "ceildivui": -((-x) // y)}[op]
            return (value + 2**63) % 2**64 - 2**63
        self.add("indices", f"arith.{op} %{a}, %{b} : index", step)

    def op_dim(self):
        t, _, i, _ = self._some()

        def step(e):
            if t not in e:
                raise Unclear  # a size needs no elements, so what made them may be left out
            inside(e[i], 1)
            return e[t].size
        self.add("indices", f"tensor.dim %{t}, %{i} : tensor<?xf32>", step)

    def op_loop(self):
        t, x, n, s = self._some()

        def step(e):
            if e[s] <= 0:
                raise Refused
            count = max(0, -(-(e[n] - 0) // e[s]))
            if count > 10**6:
                raise Skipped
            total = np.float32(0)
            for _ in range(count):
                total = np.float32(total + 1)
            return total
        self.add("numbers", f"scf.for %k = %zero to %{n} step %{s} iter_args(%acc = %fzero) -> f32 {{\n    %new = arith.addf %acc, %fone : f32\n    scf.yield %new : f32\n  }}", step)


def run(seed: int) -> Tally:
    rng = np.random.default_rng([seed, 4])
    pick = lambda options: options[rng.integers(len(options))]
    program = Program(rng)
    for _ in range(pick([1, 2, 3, 5])):
        program.draw()
    keep = [made for made in program.made if pick([0, 1])] or program.made[-1:]
    # A tensor that is updated in place is the caller's memory itself.
    writable = " {bufferization.writable = true}" if pick([0, 1]) else ""
    types = ", ".join(t for _, t in keep)
    module = (f"func.func @f(%t0: tensor<?xf32>{writable}, %t1: tensor<?xf32>, %ids: tensor<?xi64>, %x: f32, %i0: index, %i1: index, %i2: index) -> ({types}) {{\n"
              "  %zero = arith.constant 0 : index\n  %one = arith.constant 1 : index\n  %fzero = arith.constant 0.0 : f32\n  %fone = arith.constant 1.0 : f32\n"
              + "\n".join(program.lines) + f"\n  return {', '.join('%' + n for n, _ in keep)} : {types}\n}}")
    code = Executable(module, cache=False)
    tally = Tally()
    for _ in range(CALLS):
        fence = Fence(rng)
        # Half of the calls stay near the beginning of arrays of one size, or nearly all would be refused and no value judged.
        calm = pick([True, False])
        n0, n1 = (5, 5) if calm else (pick([0, 1, 2, 5, 5, 9]), pick([0, 1, 2, 5, 5]))
        ends = [] if calm else [n0 - 1, n0, n0 + 1, n1, -1, -2, pick(FAR)]
        near = lambda n: int(pick([0, 1, 1, 2, 3, max(n - 1, 0), *ends]))
        e = dict(t0=rng.standard_normal(n0).astype(np.float32), t1=rng.standard_normal(n1).astype(np.float32), x=np.float32(rng.standard_normal()),
                 i0=near(n0), i1=near(n1), i2=near(n0))
        ids = rng.integers(0, max(n0, 1), pick([0, 1, 4, 40]))
        if ids.size and pick([0, 1]):
            ids[rng.integers(ids.size)] = near(n0)
        e["ids"] = ids
        arrays = [fence.copy(e["t0"]), fence.copy(e["t1"]), fence.copy(ids), e["x"], e["i0"], e["i1"], e["i2"]]
        what = f"{ {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in e.items()} }\n{module}"
        # An op whose result nobody needs may be left out with its checks, so only what is needed decides.
        try:
            must, before = _evaluate(program, e, {n for n, _ in keep})
        except Skipped:
            continue

        def judge(got):
            fence.check()
            if must is None:
                return False
            for (name, _), one in zip(keep, got):
                want = np.asarray(before[name])
                assert np.shape(one) == want.shape, f"{name}: shape {np.shape(one)}, expected {want.shape}"
                assert np.array_equal(one, want), f"{name}: got {one}, expected {want}"

        tally.attempt(lambda: code.call("f", *arrays), judge, must=must, what=what)
        fence.check()
    return tally


def _evaluate(program, e, kept):
    """The required outcome of the call, and the values if it must be taken."""
    e, must, everything, unclear = dict(e), "take", True, set()
    with np.errstate(all="ignore"):
        for name, step in program.steps:
            try:
                e[name] = step(e)
                continue
            except Refused:
                # Nobody makes an array of one number that is only read.
                is_clear = name not in program.uniform or name in kept
            except Unclear:
                is_clear = False
            except KeyError as error:  # it needs what failed before
                is_clear = error.args[0] not in unclear
            everything = False
            if not is_clear:
                unclear.add(name)
                must = None
            elif name in kept and must == "take":
                must = "refuse"
    if not everything and must == "take":
        must = None  # something that perhaps nobody needs
    return must, e
