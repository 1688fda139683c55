"""diffattn.jax on small functions: what goes in and out, files of StableHLO, and what is refused, each by one error of the package."""
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export

import diffattn
from diffattn import errors

pytestmark = pytest.mark.oracle
WEIGHT = jnp.asarray(np.random.default_rng(0).standard_normal((6, 5)), jnp.float32)


def deleted():
    array = jnp.ones((2, 6))
    array.delete()
    return array


def linear(x):
    return x @ WEIGHT


def ones(*sizes, dtype=jnp.float32):
    return jnp.ones(sizes, dtype)


def test_structures_in_and_out():
    def tree(x, pair, *, scale=None, more=None):
        y = x if scale is None else x * scale
        return {"sum": y + pair[0], "rest": [pair[1]["z"] * 2, None, 3], "same": x, "more": more}

    x, a, z = jnp.arange(6.0).reshape(2, 3), ones(2, 3), jnp.arange(4, dtype=jnp.int32)
    compiled = diffattn.jax.compile(tree, x, (a, {"z": z}), kwargs={"scale": 2.0})
    got, want = (f(x, (a, {"z": z}), scale=0.5) for f in (compiled, tree))
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(want)
    for one, other in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want)):
        assert isinstance(one, jax.Array) and one.dtype == jnp.asarray(other).dtype and np.array_equal(one, other)
    for call in (lambda: compiled(x, (a, z), scale=0.5), lambda: compiled(x, (a, {"z": z})), lambda: compiled(x)):
        with pytest.raises(errors.InputError, match="expected arguments of the structure PyTreeDef.*, but got PyTreeDef"):
            call()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int16", "int8", "uint8", "bool"])
def test_types_of_elements(dtype):
    x = jnp.asarray([[0, 1, 0], [1, 1, 0]], dtype)
    got = diffattn.jax.compile(lambda x: (x.T, jnp.where(x == 1, x, x)), x)(x)
    assert got[0].dtype == dtype and np.array_equal(got[0], x.T) and np.array_equal(got[1], x)


def test_arrays_of_others():
    """NumPy's wider types as JAX takes them, tensors as they are."""
    import torch

    compiled = diffattn.jax.compile(lambda unused, x, i: x[i], 1.0, np.arange(5.0), np.array([1, 2]))
    assert [value.dtype for value in compiled.inputs] == [np.float32, np.float32, np.int32]
    for x, i in ((np.arange(5.0), np.array([3, 0])), (torch.arange(5.0), torch.tensor([3, 0], dtype=torch.int32)), (jnp.arange(5.0), jnp.array([3, 0]))):
        got = compiled(2.0, x, i)
        assert isinstance(got, jax.Array) and got.tolist() == [3, 0]


@pytest.mark.parametrize("source", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_floats_that_an_integer_does_not_hold(dtype, source):
    x = jnp.asarray([0.5, -0.5, 127.6, 128, -129, 255.5, 256, -1, 32768, -4e4, 3e9, -3e9, jnp.inf, -jnp.inf, jnp.nan], source)
    compiled = diffattn.jax.compile(lambda x: x.astype(dtype), x)
    assert np.array_equal(compiled(x), jax.jit(lambda x: x.astype(dtype))(x))


@pytest.mark.parametrize("function, sizes", [
    (lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5), [(0, 4, 8)]), (lambda x: x.sum(0), [(0, 3)]),
    (lambda x: jnp.max(x, 1, initial=-1.0), [(3, 0)]), (lambda x: (jnp.argmax(x, 1), (x > 0).any(0), x.prod(0)), [(0, 4)]),
    (lambda q, k, v: jax.nn.softmax(q @ k.mT) @ v, [(2, 0, 8), (2, 4, 8), (2, 4, 8)]), (lambda q, k, v: jax.nn.softmax(q @ k.mT) @ v, [(2, 4, 8), (2, 0, 8), (2, 0, 8)]),
])
def test_what_is_reduced_of_no_elements(function, sizes):
    arrays = [ones(*size) for size in sizes]
    for got, want in zip(*map(jax.tree_util.tree_leaves, (diffattn.jax.compile(function, *arrays)(*arrays), function(*arrays)))):
        assert got.dtype == want.dtype and got.shape == want.shape and np.array_equal(got, want)


def test_arguments_that_are_missing_are_named():
    compiled = diffattn.jax.compile(lambda x, p, *, s: x * p["a"] * p["b"] * s, ones(2), {"a": ones(2), "b": 2.0}, kwargs={"s": 1.0})
    with pytest.raises(errors.InputError, match=r"but got PyTreeDef.*, .without args\[1\]\['b'\], kwargs\['s'\] and with kwargs\['t'\]"):
        compiled(ones(2), {"a": ones(2)}, t=1.0)


def test_hints_of_shardings_and_order():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding, x = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")), jnp.arange(12.0).reshape(4, 3)
    for function in (lambda x: jax.lax.with_sharding_constraint(x * 2, sharding), jax.jit(lambda x: x * 2, in_shardings=sharding),
                     lambda x: jax.lax.optimization_barrier(x) * 2):
        assert np.array_equal(diffattn.jax.compile(function, x)(x), x * 2)


def test_products_that_say_how_they_are_computed():
    q, k, v = (jax.random.normal(jax.random.key(i), (2, 12, 4, 8), jnp.bfloat16) for i in range(3))

    def attention(q, k, v):
        return jax.nn.dot_product_attention(q, k, v) - 0.3 * jax.nn.dot_product_attention(k, q, v)

    compiled = diffattn.jax.compile(attention, q, k, v)
    assert compiled.applied and np.allclose(*(np.asarray(f(q, k, v), np.float32) for f in (compiled, attention)), atol=0.03)
    x = jnp.asarray([[1 + 2.0 ** -12, 3], [5, 1 / 3]])
    for precision in ("BF16_BF16_F32", "BF16_BF16_F32_X3", "F32_F32_F32"):
        product = lambda x: jnp.dot(x, x, precision=precision)
        rounded = x.astype(jnp.bfloat16) if precision == "BF16_BF16_F32" else x
        assert np.allclose(diffattn.jax.compile(product, x)(x), np.matmul(*[np.asarray(rounded, np.float64)] * 2), rtol=1e-6)


@pytest.mark.parametrize("wide", [jnp.int32, jnp.float32, jnp.uint32])
def test_products_of_bytes_without_sign(wide):
    u, i = (jnp.asarray(np.random.default_rng(n).integers(128 if n else -128, 255 if n else 127, (4, 4)), jnp.uint8 if n else jnp.int8) for n in (1, 0))
    image, window = u.reshape(1, 4, 4, 1), u[:2, :2].reshape(2, 2, 1, 1)

    def products(u, i, image, window):
        numbers = ("NHWC", "HWIO", "NHWC")
        return [jax.lax.dot(a, b, preferred_element_type=wide) for a, b in ((u, u), (u, i), (i, u))] + [
            jax.lax.conv_general_dilated(image, window, (1, 1), "SAME", dimension_numbers=numbers, preferred_element_type=wide)]

    for got, want in zip(*(f(u, i, image, window) for f in (diffattn.jax.compile(products, u, i, image, window), jax.jit(products)))):
        assert got.dtype == wide and np.array_equal(got, want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float16, 1e-3), (jnp.bfloat16, 8e-3)])
def test_convolutions_add_up_in_f32(dtype, tolerance):
    x, w = (jax.random.normal(jax.random.key(n), shape, dtype) for n, shape in enumerate(((1, 8, 8, 32), (3, 3, 32, 4))))
    convolve = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    want = convolve(*(one.astype(jnp.float32) for one in (x, w)))
    np.testing.assert_allclose(np.asarray(diffattn.jax.compile(convolve, x, w)(x, w), np.float32), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("array, example, numbers", [
    (jnp.ones(3, jnp.int8), 3, [3, np.int32(300), jnp.int32(300), 5]), (jnp.ones(3, jnp.bfloat16), 2.0, [2.0, np.float32(2), jnp.float32(2)]),
    (jnp.ones(3, jnp.bfloat16), jnp.float32(2), [2.0, np.float32(3), jnp.asarray(2.0)]), (ones(3), np.float64(2), [np.float64(2), 2.0]),
])
def test_numbers_that_give_way_to_the_type_of_an_array(array, example, numbers):
    """Types are those that JAX would give each call, whatever the example was."""
    compiled, function = (make(lambda x, y: (x * y, y + 1)) for make in (lambda f: diffattn.jax.compile(f, array, example), jax.jit))
    for number in numbers:
        for got, want in zip(compiled(array, number), function(array, number)):
            assert got.dtype == want.dtype and np.array_equal(got, want)


def test_sizes_that_are_expressions():
    def struct(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    a, b = export.symbolic_shape("a, b", constraints=["a >= b", "mod(b, 4) == 0"])
    compiled = diffattn.jax.compile(lambda x, y: (x.sum() + y.sum(), x[: y.shape[0]] + y), struct(a), struct(b))
    assert compiled(ones(9), ones(8))[0] == 17
    for sizes, message in (((3, 4), "constraint a >= b"), ((9, 6), "constraint 4.floordiv.*equal to 0, but found -2")):
        with pytest.raises(errors.InputError, match=f"expected sizes that fit those that it was compiled for, but got .*{message}"):
            compiled(*map(ones, sizes))
    n, = export.symbolic_shape("n")
    compiled = diffattn.jax.compile(lambda x: x.sum(), struct(2 * n, n))
    assert compiled(ones(8, 4)) == 32
    for sizes in ((8, 3), (7, 3)):
        with pytest.raises(errors.InputError, match="expected sizes that fit those that it was compiled for, but got .*polymorphic shapes"):
            compiled(ones(*sizes))


def test_what_is_closed_over_is_a_weight():
    for function in (linear, jax.jit(linear), jax.jit(lambda x: jax.jit(linear)(x))):
        compiled = diffattn.jax.compile(function, ones(2, 6))
        assert 'tensor<6x5xf32> {diffattn.weight = "constant.0"}' in compiled.mlir and "dense<" not in compiled.mlir
        np.testing.assert_allclose(compiled(ones(2, 6)), linear(ones(2, 6)), rtol=1e-6)


def test_loops_and_branches():
    def loop(x, n):
        return jax.lax.fori_loop(0, n, lambda i, y: jnp.where(i % 2 == 0, linear(y)[:, :1] + y, y * 0.5), x)

    compiled = diffattn.jax.compile(loop, ones(2, 6), 3)
    for n in (0, 1, 5):
        np.testing.assert_allclose(compiled(ones(2, 6), n), loop(ones(2, 6), n), rtol=1e-5)


@pytest.mark.parametrize("call, message", [
    (lambda f: f(ones(2, 5)), r"args\[0\]: expected shape \[2, 6\], but got \[2, 5\]"),
    (lambda f: f(ones(2, 6, dtype=jnp.bfloat16)), r"args\[0\]: expected elements of float32, but got bfloat16"),
    (lambda f: f("x"), r"args\[0\]: expected elements of float32, but got <U1"),
    (lambda f: f(1.0), r"args\[0\]: expected elements of float32, but got float64"),
    (lambda f: f(np.ones((2, 6), ">f4")), r"args\[0\]: expected elements of float32, but got >f4, whose bytes are in another order"),
    (lambda f: f(deleted()), r"args\[0\]: expected an array that has its memory, but got one that was deleted"),
    (lambda f: jax.jit(f)(ones(2, 6)), r"args\[0\]: expected an array that has values, but got one that JAX traces a function with"),
])
def test_calls(call, message):
    compiled = diffattn.jax.compile(linear, ones(2, 6))
    with pytest.raises(errors.InputError, match=message):
        call(compiled)


def test_symbols():
    a, b = export.symbolic_shape("a, b")
    compiled = diffattn.jax.compile(lambda x, y: x + y.T, *(jax.ShapeDtypeStruct(sizes, jnp.float32) for sizes in ((a, b), (b, a))))
    assert compiled.symbols == ["a", "b"] and compiled.mlir == ""
    assert compiled(ones(2, 3), ones(3, 2)).tolist() == [[2] * 3] * 2
    with pytest.raises(errors.InputError, match=r"args\[1\], size of axis 1: expected a = 2, as for args\[0\], size of axis 0, but got 4"):
        compiled(ones(2, 3), ones(3, 4))


@pytest.fixture
def files(tmp_path):
    """One function in each form in which it can be stored."""
    exported = export.export(jax.jit(linear))(ones(2, 6))
    for name, data in (("m.mlir", exported.mlir_module().encode()), ("m.mlirbc", bytes(exported.mlir_module_serialized)),
                       ("m.bin", bytes(exported.serialize()))):
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_sets_of_sizes_that_are_kept(monkeypatch):
    """The sets that came last are kept; a warning says once that one is given up."""
    from diffattn.jax import function

    made, make = [], function.import_with
    monkeypatch.setattr(function, "MOST_SETS", 2)
    monkeypatch.setattr(function, "import_with", lambda source, shapes, *weak: (made.append(shapes[0][0]), make(source, shapes, *weak))[1])
    compiled = diffattn.jax.compile(linear, jax.ShapeDtypeStruct((export.symbolic_shape("a")[0], 6), jnp.float32))
    with pytest.warns(RuntimeWarning, match="called with more than 2 sets of sizes") as caught:
        for rows in (1, 2, 1, 3, 1, 3, 2, 3):
            x = jnp.arange(6.0 * rows).reshape(rows, 6)
            assert jnp.allclose(compiled(x), linear(x), rtol=1e-5, atol=1e-5)
    assert made == [1, 2, 3, 2] and len(caught) == 1


@pytest.mark.parametrize("name", ["m.mlir", "m.mlirbc", "m.bin"])
def test_files(files, name):
    import torch

    compiled, want = diffattn.jax.load(files / name), np.asarray(linear(ones(2, 6)))
    for array, kind in ((ones(2, 6), jax.Array), (np.ones((2, 6), np.float32), np.ndarray), (torch.ones(2, 6), torch.Tensor)):
        got = compiled(array)
        assert isinstance(got, kind)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)


def test_structures_of_an_export(tmp_path):
    b = export.symbolic_shape("b", constraints=["b >= 2"])[0]
    shape = jax.ShapeDtypeStruct((b, 6), jnp.float32)
    exported = export.export(jax.jit(lambda x, *, unused, y: {"z": linear(x["a"]) + y, "n": None}))({"a": shape}, unused=1.0, y=2.0)
    (tmp_path / "m.bin").write_bytes(exported.serialize())
    compiled = diffattn.jax.load(tmp_path / "m.bin")
    assert compiled.symbols == ["b"]
    for rows in (2, 5):
        got = compiled({"a": ones(rows, 6)}, unused=1.0, y=2.0)
        np.testing.assert_allclose(got["z"], linear(ones(rows, 6)) + 2, rtol=1e-6)
        assert got["n"] is None
    with pytest.raises(errors.InputError, match="m.bin: .*do not match the symbolic shape constraint b >= 2"):
        compiled({"a": ones(1, 6)}, unused=1.0, y=2.0)


def test_arguments_that_an_export_does_not_use(tmp_path):
    """JAX leaves them out of the module."""
    exported = export.export(jax.jit(lambda x, unused, y: x + y))(ones(3), 1.0, 2.0)
    assert tuple(exported.module_kept_var_idx) == (0, 2)
    (tmp_path / "m.bin").write_bytes(exported.serialize())
    assert diffattn.jax.load(tmp_path / "m.bin")(ones(3), 1.0, 2.0).tolist() == [3] * 3


ADD = "func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n %0 = stablehlo.add %x, %x : tensor<3xf32>\n return %0 : tensor<3xf32>\n}"
CALL = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n %0 = stablehlo.custom_call @"evil"(%x) : (tensor<3xf32>) -> tensor<3xf32>\n return %0 : tensor<3xf32>\n}"""
SELF = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n %0 = call @f(%x) : (tensor<3xf32>) -> tensor<3xf32>\n return %0 : tensor<3xf32>\n}
func.func private @f(%x: tensor<3xf32>) -> tensor<3xf32> {\n %0 = call @f(%x) : (tensor<3xf32>) -> tensor<3xf32>\n return %0 : tensor<3xf32>\n}"""


WIDE = ADD.replace("-> tensor<3xf32>", "-> tensor<3xi64>").replace("f32", "i32").replace(
    "stablehlo.add %x, %x : tensor<3xi32>", "stablehlo.convert %x : (tensor<3xi32>) -> tensor<3xi64>")


def test_windows_of_an_export_along_symbols(tmp_path):
    """JAX exports them as a call by name; a function that is compiled has its sizes when it is traced."""
    struct = jax.ShapeDtypeStruct(export.symbolic_shape("a, b"), jnp.float32)
    function = lambda x: jnp.cumsum(x, 0)
    (tmp_path / "m").write_bytes(export.export(jax.jit(function))(struct).serialize())
    with pytest.raises(errors.CompileError, match=r"^m: expected ops that StableHLO's passes give their sizes, but got stablehlo.dynamic_reduce_window, as an export"):
        diffattn.jax.load(tmp_path / "m")(ones(3, 2))
    assert np.array_equal(diffattn.jax.compile(function, struct)(ones(3, 2)), function(ones(3, 2)))


def test_exported_functions_that_are_called_with_several_sizes(tmp_path):
    """As `where` and `//`, which JAX exports as functions; `top_k` is a composite of its own."""
    a, b = export.symbolic_shape("a, b")

    def function(x, y):
        part = x[: x.shape[0] // 2]
        return jnp.where(x > 0, x, 0)[: part.shape[0]] + jnp.where(part > 0, 1.0, 0.0), jnp.roll(y, 1, 0), jax.lax.top_k(x, 2)

    exported = export.export(jax.jit(function))(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2 * a, 3), (b, a))))
    (tmp_path / "m").write_bytes(exported.serialize())
    loaded = diffattn.jax.load(tmp_path / "m")
    for sizes in (((4, 3), (5, 2)), ((6, 3), (1, 3))):
        x, y = (jax.random.normal(jax.random.key(n), size) for n, size in enumerate(sizes))
        for got, want in zip(*map(jax.tree_util.tree_leaves, (loaded(x, y), function(x, y))), strict=True):
            assert np.array_equal(got, want)


def test_wide_results_are_not_cut(tmp_path):
    """Where JAX has no 64-bit types."""
    (tmp_path / "m.mlir").write_text(WIDE.replace("return %0 : tensor<3xi32>", "%1 = stablehlo.constant dense<1099511627776> : tensor<3xi64>\n"
                                                  " %2 = stablehlo.multiply %0, %1 : tensor<3xi64>\n return %2 : tensor<3xi64>"))
    got = diffattn.jax.load(tmp_path / "m.mlir")(jnp.arange(3))
    assert isinstance(got, np.ndarray) and got.tolist() == [0, 1 << 40, 1 << 41]


BLOCKS = SELF.replace("@f(%x: tensor<3xf32>) -> tensor<3xf32> {\n %0 = call @f(%x) : (tensor<3xf32>) -> tensor<3xf32>\n", """@f(%x: tensor<3xf32>) -> tensor<3xf32> {
 %true = arith.constant true
 cf.cond_br %true, ^a(%x : tensor<3xf32>), ^a(%x : tensor<3xf32>)
^a(%0: tensor<3xf32>):
 cf.br ^b
^b:
""")


def doubling(depth):
    """Functions that call the next one twice."""
    text = "func.func @main(%x: tensor<f32>) -> tensor<f32> {\n %0 = call @f0(%x) : (tensor<f32>) -> tensor<f32>\n return %0 : tensor<f32>\n}\n"
    for i in range(depth):
        text += (f"func.func private @f{i}(%x: tensor<f32>) -> tensor<f32> {{\n %0 = call @f{i + 1}(%x) : (tensor<f32>) -> tensor<f32>\n"
                 f" %1 = call @f{i + 1}(%0) : (tensor<f32>) -> tensor<f32>\n return %1 : tensor<f32>\n}}\n")
    return text + f"func.func private @f{depth}(%x: tensor<f32>) -> tensor<f32> {{\n %0 = stablehlo.abs %x : tensor<f32>\n return %0 : tensor<f32>\n}}\n"


@pytest.mark.parametrize("text, error, message", [
    ("hello", "IRError", "expected a module of StableHLO that jaxlib reads"),
    (b"\x00\x01\x02" * 30, "IRError", "but got a file that reads as none"),
    (b"\xff" * 90, "IRError", "but got a file that reads as none"),
    (b"ML\xefR" + b"\x01" * 40, "IRError", "expected a module of StableHLO that jaxlib reads"),
    ("", "IRError", "expected a function 'main', but got none"),
    (ADD.replace("main", "other"), "IRError", "expected a function 'main', but got none"),
    (ADD.replace("stablehlo.add", "stablehlo.of_tomorrow"), "IRError", "of_tomorrow"),
    (ADD.replace("stablehlo.add", "tomorrow.add"), "IRError", "tomorrow"),
    (ADD.replace("f32", "f8E4M3FN"), "CompileError", "arg0: expected elements of f32, .*, but got f8E4M3FN"),
    (ADD.replace("tensor<3xf32>", "tensor<*xf32>"), "IRError", "StableHLO that jaxlib reads"),
    (CALL, "CompileError", "expected ops alone, but got a custom call of 'evil', which is code outside of the module"),
    (SELF, "IRError", "expected functions that do not call themselves, but 'f' does"),
    (SELF.replace(SELF[SELF.index("func.func private"):], "func.func private @f(tensor<3xf32>) -> tensor<3xf32>"), "CompileError",
     "expected functions of one block that ends with func.return, but 'f' has 0"),
    (BLOCKS, "CompileError", "expected functions of one block that ends with func.return, but 'f' has 3"),
    (doubling(30), "CompileError", "expected at most 1048576 ops once every function is inlined"),
])
def test_files_that_are_refused(text, error, message, tmp_path, monkeypatch):
    from diffattn.jax import inline

    if "1048576" in message:
        monkeypatch.setattr(inline, "MOST_OPS", 2000)
        message = message.replace("1048576", "2000")
    path = tmp_path / "model"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(getattr(errors, error), match=rf"^model: .*{message}"):
        diffattn.jax.load(path)


def test_calls_of_calls(tmp_path):
    (tmp_path / "m.mlir").write_text(doubling(3))
    assert diffattn.jax.load(tmp_path / "m.mlir")(np.float32(-2)) == 2


def test_cut_files(files):
    for name in ("m.mlir", "m.mlirbc", "m.bin"):
        whole = (files / name).read_bytes()
        for cut in range(0, len(whole) - 3, len(whole) // 4):
            (files / "cut").write_bytes(whole[:cut])
            with pytest.raises((errors.IRError, errors.CompileError)):
                diffattn.jax.load(files / "cut")


def test_a_crash_of_the_reader(files, monkeypatch):
    """Which happens in another process."""
    from diffattn.jax import bytecode

    monkeypatch.setattr(bytecode.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, -11, b"", b"Stack dump"))
    with pytest.raises(errors.IRError, match="^m.bin: expected a module of StableHLO that jaxlib reads, but got: 'its reader crashed'"):
        diffattn.jax.load(files / "m.bin")
    diffattn.jax.load(files / "m.mlir")


def test_files_that_cannot_be_read(tmp_path):
    for path, message in ((tmp_path / "none", "No such file"), (tmp_path, "expected a regular file, but got a folder")):
        with pytest.raises(errors.InputError, match=message):
            diffattn.jax.load(path)


def test_exports_for_others(tmp_path):
    for platforms, message in ((["cuda"], "expected an export for cpu alone, but got one for cuda"), (["cpu", "tpu"], "cpu, tpu")):
        (tmp_path / "m").write_bytes(export.export(jax.jit(linear), platforms=platforms)(ones(2, 6)).serialize())
        with pytest.raises(errors.CompileError, match=message):
            diffattn.jax.load(tmp_path / "m")


@pytest.mark.parametrize("function, args, error, message", [
    (lambda x: x if x.sum() > 0 else -x, (ones(3),), "CompileError", "expected a function that JAX traces, but it gave TracerBoolConversionError"),
    (lambda x: jnp.linalg.eigh(x)[0], (ones(3, 3),), "CompileError", "expected ops alone, but got a custom call of 'lapack"),
    (lambda x: jax.pure_callback(np.sin, x, x), (ones(3),), "CompileError", "expected ops alone, but got a custom call of 'xla_"),
    (lambda x: jnp.fft.fft(x).real, (ones(4),), "CompileError", "fft"),
    (lambda x: x, (ones(2).astype(jnp.complex64),), "CompileError", "expected elements of f32, .*, but got complex<f32>"),
    (lambda x: x, ("text",), "InputError", "expected an array of numbers, a number or a jax.ShapeDtypeStruct, but got 'text'"),
    (lambda x: x, (jax.random.key(0),), "InputError", r"args\[0\]: expected an array of numbers, a number or .*, but got .*key"),
    (lambda x, mode: x, (ones(2), "same"), "InputError", r"args\[1\]: expected an array .*, but got 'same'; what is no array, as a static argument, is bound to the function before"),
    (jax.jit(lambda x, n: x * n, static_argnums=1), (ones(2), 3), "CompileError", r"but it gave ValueError: .*static arguments.*; what is no array, .* functools.partial\(fn, ...\)"),
    (lambda x: x, (np.ones(2, ">f4"),), "InputError", r"args\[0\]: expected elements in this machine's order of bytes, but got >f4"),
    (lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32), (ones(2),), "CompileError", r"test_jax.py:\d+: expected elements of f32, .*, but got f8E4M3FN, which stablehlo.convert makes"),
    (lambda x: (x * 1j).imag, (ones(2),), "CompileError", r"expected elements of f32, .*, but got complex<f32>, which stablehlo"),
    (lambda x: x, (2 ** 40,), "InputError", "expected an array of numbers, a number or a jax.ShapeDtypeStruct, but got 1099511627776"),
    (3, (ones(2),), "UsageError", "fn: expected a function, but got 3"),
])
def test_functions_that_are_refused(function, args, error, message):
    with pytest.raises(getattr(errors, error), match=message):
        diffattn.jax.compile(function, *args)


def test_bfloat16_of_numpy():
    x = np.ones((2, 6), ml_dtypes.bfloat16)
    got = diffattn.jax.compile(lambda x: x * 2, x)(x)
    assert got.dtype == jnp.bfloat16 and got.tolist() == [[2] * 6] * 2


def test_packages_that_are_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    diffattn.jax.require.cache_clear()
    with pytest.raises(errors.LibraryError, match="expected the package jaxlib, but importing it gave: .*; pip install 'diffattn\\[jax\\]'"):
        diffattn.jax.load("none")
    diffattn.jax.require.cache_clear()


def test_diffattn_does_not_import_jax():
    code = "import sys, diffattn; diffattn.jax.load; assert not {'jax', 'jaxlib', 'torch'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
