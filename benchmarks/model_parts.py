"""The attentions and the products of a DiffLlama by themselves, each on operands of the shapes that the model has.

What they take is taken from the time of the whole: the rest is norms, rotations, activations, sums, and what a call costs. In a small
model, whose caches one part keeps warmer than the whole does, or where a neighbour disturbs, it may come out below zero.
"""

import json

import numpy as np

HEAD = "lm_head.weight"


class Parts:
    """`seconds(rows, keys)` of attention and of products, of one prefill or step: `clock` is called before and after each call."""

    def __init__(self, folder, model, batch, threads, clock):
        self.config = json.loads((folder / "config.json").read_text())
        self.model, self.batch, self.clock = model, batch, clock
        self.executable, self.matrices = self._products(folder, threads)
        self.one_row = np.zeros((1, self.config["hidden_size"]), model.new_caches(1, 1)[0].dtype)

    def _products(self, folder, threads):
        """A function for each matrix of a layer, and the widths of its rows."""
        from diffattn.models import layers
        from diffattn.models.config import Config
        from diffattn.models.decoder import LAYER
        from diffattn.models.mlir_text import Module
        from diffattn.models.quantization import read_quantization
        from diffattn.runtime import Executable

        config, elem = self.config, self.model.dtype
        hidden, inner, depth = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
        width = hidden // config["num_attention_heads"]
        rows = {"q": hidden, "k": config["num_key_value_heads"] * width, "v": config["num_key_value_heads"] * width, "o": hidden}
        shapes = {f"{LAYER}self_attn.{name}_proj.weight": [count, hidden] for name, count in rows.items()}
        shapes.update({f"{LAYER}mlp.{name}_proj.weight": [inner, hidden] for name in ("gate", "up")})
        shapes[f"{LAYER}mlp.down_proj.weight"] = [hidden, inner]
        m, matrices = Module(read_quantization(Config(config, "config.json"))), []
        for name, shape in shapes.items():
            m.matrix(name, shape, elem, layers=depth)
        m.weight(HEAD, [config["vocab_size"], hidden], elem, source="model.embed_tokens.weight")
        for i, (name, (_, columns)) in enumerate([*shapes.items(), (HEAD, (config["vocab_size"], hidden))]):
            f = m.function(f"times_{i}")
            x = f.argument("x", elem, [None, columns])
            layer = f.argument("layer", "index")
            f.ret(layers.linear(f, x, f.weight(name) if name == HEAD else f.weight(name, layer)))
            matrices.append((f"times_{i}", columns, 1 if name == HEAD else depth, name == HEAD))
        f = m.function("nothing")
        x = f.argument("x", elem, [None, hidden])
        f.argument("layer", "index")
        f.ret(x)
        files = [str(file) for file in self.model.checkpoint.files]
        return Executable(str(m), weights=files, threads=threads), matrices

    def products(self, length):
        """Seconds of the products for `length` tokens a row of the batch; the last token of each alone meets the vocabulary. Without what each
        call costs beside its product, which a model has once."""
        total, rng = 0.0, np.random.default_rng(0)
        dtype = self.model.new_caches(1, 1)[0].dtype
        for entry, columns, depth, is_head in self.matrices:
            x = rng.standard_normal((self.batch * (1 if is_head else length), columns), np.float32).astype(dtype)
            for layer in range(depth):
                number = np.array(layer)
                begin = self.clock()
                self.executable.call(entry, x, number)
                middle = self.clock()
                self.executable.call("nothing", self.one_row, number)
                total += 2 * middle - begin - self.clock()
        return total

    def attention(self, queries, keys):
        """Seconds of attention in all layers, in caches of their own, as a model has them: `[batch, tokens, heads, width]`."""
        import diffattn

        config = self.config
        maps, kv_maps = config["num_attention_heads"], config["num_key_value_heads"]
        width, total, rng = config["hidden_size"] // maps, 0.0, np.random.default_rng(0)
        kcache, vcache = self.model.new_caches(self.batch, keys)
        q = rng.standard_normal((self.batch, queries, maps, width), np.float32).astype(kcache.dtype).transpose(0, 2, 1, 3)
        for layer in range(config["num_hidden_layers"]):
            k, v = (cache[layer].transpose(0, 2, 1, 3) for cache in (kcache, vcache))
            begin = self.clock()
            diffattn.attention(q[:, : maps // 2], k[:, : kv_maps // 2], q[:, maps // 2:], k[:, kv_maps // 2:], v, 0.3, is_causal=True,
                               norm="rms", out_scale=0.8)
            total += self.clock() - begin
        return total

    def split(self, whole, queries, keys, turns):
        """`whole` seconds by attention, products and the rest: medians of `turns`, after one that compiles and packs."""
        taken = [(self.attention(queries, keys), self.products(queries)) for _ in range(turns + 1)][1:]
        attention, products = (float(np.median(part)) for part in zip(*taken))
        return {"attention": attention, "products": products, "rest": whole - attention - products}
