"""timm's vision transformers with differential attention, under timm's names of weights.

`forward(image [B,channels,height,width]) -> logits [B,classes]`, without classes the pooled features `[B,embed_dim]`. Attention
sees every token: patches and registers. The plain block has attention and MLP one after the other, the parallel one (dpwee) has one
projection into both and one out.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import layers
from .config import LARGEST, Config
from .diff_v1 import LAMBDA, mix_heads
from .mlir_text import Dim, Function, Module, Value
from .quantization import Quantization, read_quantization

EPS = 1e-6
ARCHITECTURES = {
    "vit_dwee_patch16_reg1_gap_256": {"embed_dim": 256, "depth": 14, "num_heads": 4, "mlp_ratio": 5},
    "vit_dpwee_patch16_reg1_gap_256": {"embed_dim": 256, "depth": 16, "num_heads": 4, "mlp_ratio": 5},
    "vit_dlittle_patch16_reg1_gap_256": {"embed_dim": 320, "depth": 14, "num_heads": 5, "mlp_ratio": 5.6},
}
POOLS = ("avg", "max", "avgmax")
#: Arguments of timm's models that these have with one value only; empty: the argument must be absent.
FIXED_ARGS = {"attn_layer": ("diff",), "block_fn": (), "class_token": (False,), "no_embed_class": (True,), "pos_embed": ("learn",),
              "qkv_bias": (True,), "qk_norm": (False,), "proj_bias": (True,), "pre_norm": (False,), "final_norm": (True,),
              "scale_attn_norm": (False,), "scale_mlp_norm": (False,), "dynamic_img_size": (False,), "dynamic_img_pad": (False,),
              "norm_layer": (None,), "act_layer": (None, "gelu"), "mlp_layer": (None,), "embed_norm_layer": (None,),
              "pool_include_prefix": (False,)}
#: Arguments that matter only for training or initialisation.
OF_NO_EFFECT = {"weight_init", "fix_init", "init_values", "strict_img_size", "drop_rate", "pos_drop_rate", "patch_drop_rate",
                "proj_drop_rate", "attn_drop_rate", "drop_path_rate"}
KNOWN_ARGS = {"embed_dim", "depth", "num_heads", "mlp_ratio", "img_size", "patch_size", "in_chans", "num_classes", "reg_tokens",
              "global_pool", "fc_norm", *FIXED_ARGS, *OF_NO_EFFECT}


@dataclass
class Vit:
    width: int
    depth: int
    heads: int
    inner: int
    size: tuple[int, int]
    patch: tuple[int, int]
    channels: int
    classes: int
    registers: int
    pool: str
    norm_first: bool
    parallel: bool
    elem: str

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        return self.patches + self.registers

    @property
    def last_norm(self) -> str:
        """The name of the norm before the classes, which stands before or behind the pooling."""
        return "norm" if self.norm_first else "fc_norm"

    # ---- weights ----------------------------------------------------------------------------------------------

    def _dense(self, m: Module, name: str, rows: int, columns: int, **options) -> None:
        m.matrix(f"{name}.weight", [rows, columns], self.elem, **options)
        m.weight(f"{name}.bias", [rows], "f32", **options)

    def _norm(self, m: Module, name: str, **options) -> None:
        for part in ("weight", "bias"):
            m.weight(f"{name}.{part}", [self.width], "f32", **options)

    def _vectors(self, m: Module, prefix: str, **options) -> None:
        map_width = self.width // self.heads // 2
        for name in LAMBDA:
            m.weight(prefix + name, [map_width], "f32", **options)
        m.weight(f"{prefix}sub_norm.weight", [2 * map_width], "f32", **options)

    def declare(self, m: Module) -> None:
        width, numbered = self.width, {"layers": self.depth}
        patch = [width, self.channels, *self.patch]
        m.weight("patch_embed.proj.weight", patch, self.elem)
        m.weight("patch_embed.proj.bias", [width], "f32")
        m.weight("pos_embed", [1, self.patches, width], "f32")
        if self.registers:
            m.weight("reg_token", [1, self.registers, width], "f32")
        block = "blocks.{}."
        if self.parallel:
            self._norm(m, block + "in_norm", **numbered)
            self._dense(m, block + "in_proj", self.inner + 3 * width, width, **numbered)
            self._vectors(m, block, **numbered)
            self._dense(m, block + "out_proj", width, width + self.inner, **numbered)
            m.weight(block + "ls.gamma", [width], "f32", **numbered)
        else:
            self._norm(m, block + "norm1", **numbered)
            self._dense(m, block + "attn.qkv", 3 * width, width, **numbered)
            self._vectors(m, block + "attn.", **numbered)
            self._dense(m, block + "attn.proj", width, width, **numbered)
            m.weight(block + "ls1.gamma", [width], "f32", **numbered)
            self._norm(m, block + "norm2", **numbered)
            self._dense(m, block + "mlp.fc1", self.inner, width, **numbered)
            self._dense(m, block + "mlp.fc2", width, self.inner, **numbered)
            m.weight(block + "ls2.gamma", [width], "f32", **numbered)
        self._norm(m, self.last_norm)
        if self.classes:
            self._dense(m, "head", self.classes, width)

    # ---- blocks -----------------------------------------------------------------------------------------------

    def _attention(self, f: Function, rows: Value, first: int, prefix: str, batch: Dim, layer: Value,
                   out: Value | None = None) -> Value:
        """Attention over queries, keys and values that lie in `rows` side by side from column `first` on."""
        parts = []
        for n, heads in enumerate((2 * self.heads, 2 * self.heads, self.heads)):
            part = f.slice(rows, [0, first + n * self.width], [rows.dims[0], self.width])
            parts.append(layers.heads_of(f, part, batch, self.tokens, heads))
        init = f.extract(f.table([layers.lambda_init(i) for i in range(self.depth)]), layer)
        vectors = [f.weight(prefix + name, layer) for name in LAMBDA]
        q, k = (layers.split_pairs(f, part, "adjacent") for part in parts[:2])
        return mix_heads(f, q, k, parts[2], vectors, f.weight(f"{prefix}sub_norm.weight", layer), init, out=out)

    def _plain_block(self, f: Function, h: Value, layer: Value, batch: Value) -> Value:
        def weight(name: str) -> Value:
            return f.weight(f"blocks.{{}}.{name}", layer)

        x = layers.layer_norm(f, h, weight("norm1.weight"), weight("norm1.bias"), EPS, self.elem)
        qkv = layers.cast(f, layers.linear(f, x, weight("attn.qkv.weight"), weight("attn.qkv.bias")), self.elem)
        mixed = layers.rows_of(f, self._attention(f, qkv, 0, "blocks.{}.attn.", batch, layer), h.dims[0])
        out = layers.linear(f, mixed, weight("attn.proj.weight"), weight("attn.proj.bias"))
        h = layers.scale_onto(f, h, out, weight("ls1.gamma"))
        names = {"norm": "norm2.weight", "norm_bias": "norm2.bias", "up": "mlp.fc1.weight", "up_bias": "mlp.fc1.bias",
                 "down": "mlp.fc2.weight", "down_bias": "mlp.fc2.bias", "gamma": "ls2.gamma"}
        return layers.plain_block(f, h, {k: f"blocks.{{}}.{v}" for k, v in names.items()}, layer, EPS, self.elem)

    def _parallel_block(self, f: Function, h: Value, layer: Value, batch: Value) -> Value:
        def weight(name: str) -> Value:
            return f.weight(f"blocks.{{}}.{name}", layer)

        rows, dim, inner = h.dims[0], self.width, self.inner
        x = layers.layer_norm(f, h, weight("in_norm.weight"), weight("in_norm.bias"), EPS, self.elem)
        y = layers.linear(f, x, weight("in_proj.weight"), weight("in_proj.bias"))
        # Attention and MLP write side by side what one projection reads. The place stays [B, T, columns]: joining the
        # axes of a part of the columns would look like a copy.
        tokens = [batch, self.tokens]
        joined = f.empty([*tokens, dim + inner], self.elem)
        place = f.expand(f.slice(joined, [0, 0, 0], [*tokens, dim]), 2, [self.heads, dim // self.heads])
        mixed = self._attention(f, layers.cast(f, y, self.elem), inner, "blocks.{}.", batch, layer, out=place)
        mixed = f.collapse(mixed, [[0], [1], [2, 3]], [*tokens, dim])
        joined = f.insert(mixed, joined, [0, 0, 0], [*tokens, dim])
        up = f.slice(f.expand(y, 0, tokens), [0, 0, 0], [*tokens, inner])
        up = layers.activated(f, "gelu", up, f.slice(joined, [0, 0, dim], [*tokens, inner]))
        joined = f.insert(up, joined, [0, 0, dim], [*tokens, inner])
        joined = f.collapse(joined, [[0, 1], [2]], [rows, dim + inner])
        out = layers.linear(f, joined, weight("out_proj.weight"), weight("out_proj.bias"))
        return layers.scale_onto(f, h, out, weight("ls.gamma"))

    def _embedded(self, f: Function, image: Value) -> Value:
        """The tokens `[B, tokens, width]`: registers, then patches with their positions."""
        batch, (down, across), (high, wide) = image.dims[0], self.grid, self.patch
        columns = self.channels * high * wide
        whole = [down * high, across * wide]
        if whole != list(self.size):  # the rows and columns behind the last patch are not looked at
            image = f.slice(image, [0, 0, 0, 0], [batch, self.channels, *whole])
        cut = f.expand(f.expand(image, 3, [across, wide]), 2, [down, high])
        patches = f.generic("b c y i x j -> b y x c i j", [cut],
                            f.empty([batch, down, across, self.channels, high, wide], self.elem),
                            lambda a, o: f.convert(a, o.elem))
        rows = f.collapse(patches, [[0, 1, 2], [3, 4, 5]], [f.multiply(batch, self.patches), columns])
        kernel = f.collapse(f.weight("patch_embed.proj.weight"), [[0], [1, 2, 3]], [self.width, columns])
        embedded = f.expand(layers.linear(f, rows, kernel, f.weight("patch_embed.proj.bias")), 0, [batch, self.patches])
        tokens = f.empty([batch, self.tokens, self.width], "f32")
        if self.registers:
            size = [batch, self.registers, self.width]
            first = f.collapse(f.weight("reg_token"), [[0, 1], [2]], size[1:])
            first = f.generic("t k -> b t k", [first], f.slice(tokens, [0, 0, 0], size), lambda a, _: a)
            tokens = f.insert(first, tokens, [0, 0, 0], size)
        size, at = [batch, self.patches, self.width], [0, self.registers, 0]
        positions = f.collapse(f.weight("pos_embed"), [[0, 1], [2]], size[1:])
        rest = f.generic("b t k, t k -> b t k", [embedded, positions], f.slice(tokens, at, size),
                         lambda a, p, _: f.scalar("arith.addf", a, p))
        return f.insert(rest, tokens, at, size)

    def _pooled(self, f: Function, patches: Value) -> Value:
        if self.pool == "avg":
            return layers.mean_over_length(f, patches)
        most = layers.max_over_length(f, patches)
        if self.pool == "max":
            return most
        half = f.f32(0.5)
        return f.generic("b k, b k -> b k", [layers.mean_over_length(f, patches), most], f.empty(most.dims, "f32"),
                         lambda a, b, _: f.scalar("arith.mulf", f.scalar("arith.addf", a, b), half))

    def _features(self, f: Function, h: Value, batch: Dim) -> Value:
        """Features `[B, width]` of all tokens, from which the classes follow."""
        gamma, beta = (f.weight(f"{self.last_norm}.{part}") for part in ("weight", "bias"))
        elem = self.elem if self.classes else "f32"
        if self.norm_first:
            h = layers.layer_norm(f, h, gamma, beta, EPS, "f32")
        tokens = f.expand(h, 0, [batch, self.tokens])
        pooled = self._pooled(f, f.slice(tokens, [0, self.registers, 0], [batch, self.patches, self.width]))
        return layers.cast(f, pooled, elem) if self.norm_first else layers.layer_norm(f, pooled, gamma, beta, EPS, elem)

    def build(self, quantization: Quantization | None) -> Module:
        m = Module(quantization)
        self.declare(m)
        f = m.function("block", private=True)
        h = f.argument("h", "f32", [None, self.width], writable=True)
        layer, batch = f.argument("layer", "index"), f.argument("batch", "index")
        f.ret((self._parallel_block if self.parallel else self._plain_block)(f, h, layer, batch))

        f = m.function("forward")
        image = f.argument("image", "f32", [None, self.channels, *self.size])
        batch = image.dims[0]
        h = f.collapse(self._embedded(f, image), [[0, 1], [2]], [f.multiply(batch, self.tokens), self.width])
        (h,) = f.loop(self.depth, [h], lambda i, h: f.call("block", [h, i, batch], [h]))
        x = self._features(f, h, batch)
        f.ret(layers.linear(f, x, f.weight("head.weight"), f.weight("head.bias")) if self.classes else x)
        return m


def _pair(config: Config, key: str, default: int) -> tuple[int, int]:
    """A size, or a list of height and width."""
    value = config.values.get(key)
    if not isinstance(value, (list, tuple)):
        size = config.integer(key, default)
        return size, size
    if len(value) != 2:
        raise config.fail(key, "an integer or a list of two", value)
    high, wide = (Config({key: one}, config.source).integer(key) for one in value)
    return high, wide


def _check_fixed(args: Config) -> None:
    for key, values in FIXED_ARGS.items():
        if key in args.values and not any(type(args.values[key]) is type(value) and args.values[key] == value for value in values):
            raise args.fail(key, " or ".join(map(repr, values)) if values else "absent", args.values[key])
    if "init_values" in args.values:
        args.number("init_values")  # null would leave the scales of layers out


def build(config: Config, elem: str = "f32") -> Module:
    """A model of timm: `model_type` (or `architecture`) names it, `model_args` may change its sizes. timm writes what else its
    config.json has for information: num_features, global_pool, pretrained_cfg, label_names."""
    name = config.values.get("model_type", config.values.get("architecture"))
    args = config.section("model_args") or Config({}, config.source)
    unknown = set(args.values) - KNOWN_ARGS
    if unknown:
        raise config.fail("model_args", f"made of {', '.join(sorted(KNOWN_ARGS))}", sorted(unknown)[0])
    args = Config(ARCHITECTURES[name] | dict(args.values), args.source)
    _check_fixed(args)
    width, heads = args.integer("embed_dim"), args.integer("num_heads")
    if width % (2 * heads):
        raise args.fail("num_heads", f"a divisor of half of embed_dim = {width}", heads)
    size, patch = _pair(args, "img_size", 256), _pair(args, "patch_size", 16)
    for whole, part in zip(size, patch):
        if part > whole:
            raise args.fail("patch_size", f"at most img_size = {whole}", part)
    classes = args.integer("num_classes", config.integer("num_classes", 1000, minimum=0), minimum=0)
    pool = args.choice("global_pool", POOLS, "avg")
    inner = int(args.number("mlp_ratio", above=0, at_most=LARGEST) * width)
    if not 1 <= inner <= LARGEST:
        raise args.fail("mlp_ratio", f"1 to {LARGEST} when multiplied by embed_dim = {width}", args.values["mlp_ratio"])
    return Vit(width, args.depth("depth"), heads, inner, size,
               patch, args.integer("in_chans", 3), classes, args.integer("reg_tokens", 1, minimum=0), pool,
               not args.flag("fc_norm", True), name.startswith("vit_dpwee"), elem).build(read_quantization(config))
