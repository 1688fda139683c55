"""Changes a graph at random places, which makes near misses that no one thinks of. What the verifier refuses afterwards is passed over."""
from expressions import FLOATS
from graph import Generic, Node, literal
from masks import FLOAT_PREDICATES, PREDICATES

BINARY_FLOAT = ("addf", "subf", "mulf", "divf", "maximumf", "minimumf", "maxnumf", "minnumf")
BINARY_INTEGER = ("addi", "subi", "muli", "andi", "ori", "xori", "minsi", "maxsi", "minui", "maxui", "divsi", "divui", "remsi", "remui",
                  "floordivsi", "ceildivsi", "shli", "shrsi", "shrui")
UNARY = ("math.exp", "math.exp2", "arith.negf", "math.absf", "math.tanh", "math.sqrt", "math.rsqrt", "math.log")
CASTS = (("extsi", "extui"), ("sitofp", "uitofp"), ("index_cast", "index_castui"))


class Mutation:
    def __init__(self, graph, rng):
        self.graph, self.rng = graph, rng
        # Results of tensor.empty, and of ops that write to them, have no value before: nothing else may read it.
        self.unwritten = {node.result for node in graph.nodes if isinstance(node, Node) and self.kind(node).startswith("tensor.empty")}
        for node in graph.nodes:
            if isinstance(node, Generic) and "reduction" not in node.iterators:
                self.unwritten |= {name for name, _ in node.arguments[len(node.ins):]}

        self.shifts = self.find_shifts()

    def find_shifts(self):
        """The maxima of rows, and what only these read: they are not part of what is raised (docs/raising.md), so wrong ones make false faults."""
        def is_maximum(node):
            return isinstance(node, Generic) and "reduction" in node.iterators and any(
                part.result in node.yields and self.kind(part) in ("arith.maximumf", "arith.maxnumf") for part in node.body)

        def reads(node):
            return [*node.operands, *(name for part in node.body for name in part.operands)] if isinstance(node, Generic) else node.operands

        shifts, needed = set(), set(self.graph.returns)
        for node in reversed(self.graph.nodes):
            unneeded = node.results() and not any(name in needed for name, _ in node.results())
            if is_maximum(node) or unneeded:
                shifts.add(node)
            else:
                needed.update(reads(node))
        return shifts

    def is_shift(self, node):
        return node in self.shifts

    def nodes(self):
        return [node for node in self.graph.nodes if not self.is_shift(node)]

    def apply(self):
        """One change. Returns what it was, or None where the drawn one has no place in this graph."""
        kinds = [(self.constant, 4), (self.predicate, 4), (self.operation, 3), (self.swapped, 3), (self.operand, 4), (self.map, 2),
                 (self.loop, 2), (self.offset, 1), (self.cast, 2), (self.bypass, 2), (self.used_again, 1)]
        return self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()

    # ---- places ----
    def scalars(self):
        """All nodes: those of the function, and those of bodies."""
        for node in self.nodes():
            if isinstance(node, Generic):
                yield from node.body
            else:
                yield node

    def pick(self, fits):
        nodes = [node for node in self.scalars() if fits(node)]
        return self.rng.choice(nodes) if nodes else None

    @staticmethod
    def kind(node):
        """The name of an op."""
        return node.form.replace("{r} = ", "").split(" ")[0]

    # ---- changes ----
    def constant(self):
        rng = self.rng
        node = self.pick(lambda n: self.kind(n) == "arith.constant" and n.type and (n.type in ("i1", "index") or n.type[0] in "ifb"))
        if not node:
            return None
        old = node.attr
        if node.type == "i1":
            node.attr = "false" if old == "true" else "true"
        elif node.type in FLOATS:
            choices = [0.0, 1.0, -1.0, 0.5, 2.0, float("-inf"), 1e-9, 1e-4]
            if node.type == "f32":
                choices += [-1e9, -1e4, -3.4028234e38, -2.0**24]
            if not old.startswith("0x"):
                value = float(old)
                choices += [-value, 2 * value, value + 1, value * 1.001]
            value = rng.choice(choices)
            if value == value and (node.type != "f16" or abs(value) < 6e4 or value == float("-inf")) and (abs(value) < 3.5e38 or value == float("-inf")):
                node.attr = literal(value, node.type)
        else:
            bits = {"i8": 8, "i16": 16, "i32": 32}.get(node.type, 64)
            value = int(old)
            value = rng.choice([value + 1, value - 1, -value, 2 * value, 0, 1, -1, 2, 3, 2**(bits - 1) - 1, -2**(bits - 1)])
            node.attr = str(max(-2**(bits - 1), min(2**(bits - 1) - 1, value)))
        return f"constant {old} -> {node.attr}"

    def predicate(self):
        node = self.pick(lambda n: self.kind(n) in ("arith.cmpi", "arith.cmpf"))
        if not node:
            return None
        old = node.attr
        node.attr = self.rng.choice(PREDICATES if self.kind(node) == "arith.cmpi" else FLOAT_PREDICATES)
        return f"predicate {old} -> {node.attr}"

    def operation(self):
        families = [[f"arith.{x}" for x in BINARY_FLOAT], [f"arith.{x}" for x in BINARY_INTEGER], list(UNARY)]
        node = self.pick(lambda n: any(self.kind(n) in family for family in families))
        if not node:
            return None
        old = self.kind(node)
        new = self.rng.choice(next(family for family in families if old in family))
        node.form = node.form.replace(old + " ", new + " ", 1)
        return f"{old} -> {new}"

    def swapped(self):
        node = self.pick(lambda n: len(n.operands) > 1 and self.kind(n).startswith(("arith.", "tensor.concat")))
        if not node:
            return None
        i, j = (0, 1) if len(node.operands) == 2 else (1, 2)
        node.operands[i], node.operands[j] = node.operands[j], node.operands[i]
        return f"operands of {self.kind(node)} swapped"

    def _earlier(self):
        """(node, names that it may read, their types), for every op of the function and of bodies."""
        types = dict(self.graph.arguments)
        for node in self.graph.nodes:
            if self.is_shift(node):
                types = {**types, **dict(node.results())}
                continue
            yield node, types
            if isinstance(node, Generic):
                inner = dict(types)
                inner.update(node.arguments)
                for part in node.body:
                    yield part, inner
                    inner.update(part.results())
            types = {**types, **dict(node.results())}

    def operand(self):
        """An operand becomes another value of its type."""
        rng = self.rng
        places = [(node, dict(types)) for node, types in self._earlier() if node.operands]
        if not places:
            return None
        for _ in range(8):
            node, types = rng.choice(places)
            lists = [node.ins, node.outs] if isinstance(node, Generic) else [node.operands]
            names = rng.choice([names for names in lists if names])
            at = rng.randrange(len(names))
            old = names[at]
            others = [name for name, type in types.items() if type == types[old] and name != old and name not in self.unwritten]
            if others:
                names[at] = rng.choice(others)
                return f"{old} -> {names[at]}"
        return None

    def map(self):
        """Two results of an indexing map change places, or one loop becomes another."""
        rng = self.rng
        generics = [node for node in self.nodes() if isinstance(node, Generic) and any(len(m) > 1 for m in node.maps)]
        if not generics:
            return None
        node = rng.choice(generics)
        which = rng.choice([place for place, results in enumerate(node.maps) if len(results) > 1])
        results = list(node.maps[which])
        i, j = rng.sample(range(len(results)), 2)
        results[i], results[j] = results[j], results[i]
        node.maps[which] = results
        return f"map of {node.result}"

    def loop(self):
        node = self.pick(lambda n: self.kind(n) == "linalg.index")
        if not node:
            return None
        old = node.attr
        node.attr = str(self.rng.randrange(max(2, int(old) + 2)))
        return f"index {old} -> {node.attr}"

    def offset(self):
        node = self.pick(lambda n: self.kind(n) == "tensor.extract_slice")
        if not node:
            return None
        old = node.attr
        node.attr = str(max(0, int(old) + self.rng.choice([-1, 1, 2, -2])))
        return f"offset {old} -> {node.attr}"

    def cast(self):
        pairs = {f"arith.{a}": f"arith.{b}" for pair in CASTS for a, b in (pair, pair[::-1])}
        node = self.pick(lambda n: self.kind(n) in pairs)
        if not node:
            return None
        old = self.kind(node)
        node.form = node.form.replace(old, pairs[old], 1)
        return f"{old} -> {pairs[old]}"

    def bypass(self):
        """An op's uses read one of its operands instead."""
        rng = self.rng
        places = [(node, dict(types)) for node, types in self._earlier()]
        rng.shuffle(places)
        for node, types in places:
            results = node.results()
            if len(results) != 1:
                continue
            name, type = results[0]
            same = [operand for operand in node.operands if types.get(operand) == type and operand not in self.unwritten]
            if same:
                self._replace(name, rng.choice(same))
                return f"{name} left out"
        return None

    def _replace(self, old, new):
        swap = lambda names: [new if name == old else name for name in names]
        for node in self.graph.nodes:
            if isinstance(node, Generic):
                node.ins, node.outs, node.yields = swap(node.ins), swap(node.outs), swap(node.yields)
                for part in node.body:
                    part.operands = swap(part.operands)
            else:
                node.operands = swap(node.operands)
        self.graph.returns = swap(self.graph.returns)

    def used_again(self):
        """Something computed on the way is returned too."""
        values = [name for node in self.graph.nodes for name, type in node.results() if type and type.startswith("tensor")]
        values = [name for name in values if name not in self.graph.returns and name not in self.unwritten]
        if not values:
            return None
        self.graph.returns.append(self.rng.choice(values))
        return f"{self.graph.returns[-1]} returned"


def mutate(graph, rng):
    """One change, or now and then more."""
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        change = Mutation(graph, rng).apply()
        if change:
            done.append(change)
    return done
