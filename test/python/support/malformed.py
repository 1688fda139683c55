"""Malformed files and calls, each with the class of its error and a part of its message.

`cases()` yields (name, exit code, fragment, make), where make(folder) writes the files of the case into `folder` and returns
the arguments of diffattn-run. What is wrong with a case is wrong with nothing else in it.
"""

from __future__ import annotations

import json
import struct

import numpy as np

USAGE, IR, COMPILE, WEIGHTS, INPUT, RUN, OUTPUT = 2, 3, 4, 5, 6, 7, 8

MODEL = """
ml_program.global private @w(#ml_program.extern<tensor<3x4xf32>>) : tensor<3x4xf32>
ml_program.global private @"layers.{}.b"(#ml_program.extern<tensor<3xf32>>) : tensor<3xf32> {diffattn.layers = 2 : i64}
func.func @forward(%x: tensor<?x4xf32>) -> tensor<?x3xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %z = arith.constant 0.0 : f32
  %w = ml_program.global_load_const @w : tensor<3x4xf32>
  %b = diffattn.layer_weight @"layers.{}.b"[%c1] : tensor<3xf32>
  %n = tensor.dim %x, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%n) : tensor<?x3xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x3xf32>) -> tensor<?x3xf32>
  %m = linalg.matmul indexing_maps=[affine_map<(m,n,k)->(m,k)>, affine_map<(m,n,k)->(n,k)>, affine_map<(m,n,k)->(m,n)>]
         ins(%x, %w : tensor<?x4xf32>, tensor<3x4xf32>) outs(%f : tensor<?x3xf32>) -> tensor<?x3xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(j)>, affine_map<(i,j)->(i,j)>],
                       iterator_types = ["parallel", "parallel"]}
         ins(%m, %b : tensor<?x3xf32>, tensor<3xf32>) outs(%e : tensor<?x3xf32>) {
    ^bb0(%p: f32, %q: f32, %o: f32):
      %s = arith.addf %p, %q : f32
      linalg.yield %s : f32
  } -> tensor<?x3xf32>
  return %r : tensor<?x3xf32>
}
"""

PLAIN = """
func.func @twice(%x: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %n = tensor.dim %x, %c0 : tensor<?xf32>
  %ok = arith.cmpi ule, %n, %c8 : index
  cf.assert %ok, "expected at most 8 tokens"
  %e = tensor.empty(%n) : tensor<?xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types = ["parallel"]}
         ins(%x : tensor<?xf32>) outs(%e : tensor<?xf32>) {
    ^bb0(%a: f32, %o: f32):
      %s = arith.addf %a, %a : f32
      linalg.yield %s : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @other(%x: f32, %i: i64) -> f32 {
  return %x : f32
}
"""


def entry(dtype, shape, begin, end, **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


#: The header of a good file for MODEL: 48 bytes of w, 12 of each b.
GOOD = {"w": entry("F32", [3, 4], 0, 48), "layers.0.b": entry("F32", [3], 48, 60), "layers.1.b": entry("F32", [3], 60, 72)}
DATA = np.arange(18, dtype=np.float32).tobytes()


def safetensors(header, data=DATA, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def changed(**tensors):
    return {**GOOD, **tensors}


def without(name):
    return {k: v for k, v in GOOD.items() if k != name}


def raw(text):
    """The good header with the value of w replaced by text."""
    rest = json.dumps(without("w"))[1:]
    return b'{"w":' + text.encode() + b"," + rest.encode()


W = '{"dtype":"F32","shape":%s,"data_offsets":%s}'

WEIGHT_FILES = {
    "empty": (b"", "at least 8 bytes"),
    "seven-bytes": (b"\1\0\0\0\0\0\0", "at least 8 bytes"),
    "length-zero": (struct.pack("<Q", 0) + DATA, "starts with '{'"),
    "length-of-file": (safetensors(GOOD, length=10**4), "expected a header of 10000 bytes"),
    "length-near-2^64": (safetensors(GOOD, length=2**64 - 4), "at most 100 MB"),
    "length-wraps": (safetensors(GOOD, length=2**64 - 8), "at most 100 MB"),
    "length-over-100-MB": (safetensors(GOOD, length=100_000_001), "at most 100 MB"),
    "truncated-header": (safetensors(GOOD)[:60], "expected a header of"),
    "truncated-data": (safetensors(GOOD)[:-1], "expected data within"),
    "no-data": (safetensors(GOOD, b""), "expected data within"),
    "trailing-byte": (safetensors(GOOD, DATA + b"\0"), "1 bytes follow"),
    "not-json": (safetensors(b"hello, world"), "starts with '{'"),
    "json-array": (safetensors(b"[]", b""), "starts with '{'"),
    "json-number": (safetensors(b"17", b""), "starts with '{'"),
    "leading-space": (safetensors(b" " + json.dumps(GOOD).encode()), "starts with '{'"),
    "second-value": (safetensors(json.dumps(GOOD).encode() + b"{}"), "expected nothing more"),
    "unclosed": (safetensors(json.dumps(GOOD).encode()[:-1]), "malformed header"),
    "unclosed-string": (safetensors(b'{"w'), "expected the string to end"),
    "missing-colon": (safetensors(b'{"w" 3}'), "expected ':'"),
    "control-character": (safetensors(b'{"w\n":{}}'), "no control character"),
    "bad-escape": (safetensors(b'{"\\q":{}}'), "known escape"),
    "half-surrogate": (safetensors(b'{"\\ud800x":{}}'), "surrogate"),
    "not-utf8": (safetensors(b'{"\xff\xfe":{}}'), "UTF-8"),
    "overlong-utf8": (safetensors(b'{"\xc0\xaf":{}}'), "UTF-8"),
    "deep-nesting": (safetensors(b'{"w":' + b"[" * 50000), "expected '{'"),
    "deep-nesting-in-shape": (safetensors(b'{"w":{"shape":' + b"[" * 50000), "plain non-negative integer"),
    "duplicate-tensor": (safetensors(raw(W % ("[3,4]", "[0,48]"))[:-1] + b',"w":' + (W % ("[3,4]", "[0,48]")).encode() + b"}"),
                         "expected each name once"),
    "duplicate-by-escape": (safetensors(raw(W % ("[3,4]", "[0,48]"))[:-1] + b',"\\u0077":{}}'), "expected each name once"),
    "duplicate-key": (safetensors(raw('{"dtype":"F32","dtype":"F32","shape":[3,4],"data_offsets":[0,48]}')),
                      "expected each name once"),
    "unknown-key": (safetensors(changed(w=entry("F32", [3, 4], 0, 48, extra=1))), "but got 'extra'"),
    "no-dtype": (safetensors(changed(w={"shape": [3, 4], "data_offsets": [0, 48]})), "expected dtype, shape and data_offsets"),
    "no-shape": (safetensors(changed(w={"dtype": "F32", "data_offsets": [0, 48]})), "expected dtype, shape and data_offsets"),
    "no-offsets": (safetensors(changed(w={"dtype": "F32", "shape": [3, 4]})), "expected dtype, shape and data_offsets"),
    "tensor-is-null": (safetensors(changed(w=None)), "expected '{'"),
    "tensor-is-list": (safetensors(changed(w=[])), "expected '{'"),
    "unknown-dtype": (safetensors(changed(w=entry("F31", [3, 4], 0, 48))), "known element type, but got 'F31'"),
    "half-a-byte": (safetensors(changed(w=entry("F4", [3, 3], 0, 4))), "expected whole bytes, but got 9 elements of 4 bits"),
    "size-of-four-bits": (safetensors(changed(w=entry("F4", [3, 4], 0, 12))), "expected 6 bytes for its shape and type"),
    "lower-case-dtype": (safetensors(changed(w=entry("f32", [3, 4], 0, 48))), "known element type"),
    "dtype-number": (safetensors(raw('{"dtype":32,"shape":[3,4],"data_offsets":[0,48]}')), "expected a string"),
    "negative-size": (safetensors(raw(W % ("[-3,4]", "[0,48]"))), "plain non-negative integer"),
    "fractional-size": (safetensors(raw(W % ("[3.0,4]", "[0,48]"))), "plain non-negative integer"),
    "exponent-size": (safetensors(raw(W % ("[3e0,4]", "[0,48]"))), "plain non-negative integer"),
    "leading-zero-size": (safetensors(raw(W % ("[03,4]", "[0,48]"))), "plain non-negative integer"),
    "string-size": (safetensors(raw(W % ('["3",4]', "[0,48]"))), "plain non-negative integer"),
    "huge-size": (safetensors(raw(W % ("[99999999999999999999,4]", "[0,48]"))), "below 2^63"),
    "product-wraps-to-zero": (safetensors(raw(W % ("[4294967296,4294967296]", "[0,0]"))), "memory can hold"),
    "product-wraps-to-right": (safetensors(raw(W % ("[4611686018427387916]", "[0,48]"))), "memory can hold"),
    "zero-hides-overflow": (safetensors(raw(W % ("[0,9223372036854775807,9223372036854775807]", "[0,0]"))), "memory can hold"),
    "rank-33": (safetensors(raw(W % (str([1] * 33), "[0,4]"))), "at most 32 sizes"),
    "negative-offset": (safetensors(raw(W % ("[3,4]", "[-48,0]"))), "plain non-negative integer"),
    "offset-over-2^63": (safetensors(raw(W % ("[3,4]", "[0,18446744073709551615]"))), "below 2^63"),
    "end-before-begin": (safetensors(raw(W % ("[3,4]", "[48,0]"))), "data_offsets in order"),
    "end-after-data": (safetensors(raw(W % ("[3,4]", "[0,4800]"))), "expected data within"),
    "one-offset": (safetensors(raw(W % ("[3,4]", "[0]"))), "expected two offsets, but got 1"),
    "three-offsets": (safetensors(raw(W % ("[3,4]", "[0,24,48]"))), "expected two offsets, but got more"),
    "bytes-for-another-shape": (safetensors(changed(w=entry("F32", [3, 5], 0, 48))), "expected 60 bytes"),
    "bytes-for-another-dtype": (safetensors(changed(w=entry("F16", [3, 4], 0, 48))), "expected 24 bytes"),
    "overlap": (safetensors(changed(**{"layers.0.b": entry("F32", [3], 44, 56)})), "(an overlap)"),
    "same-data-twice": (safetensors(changed(**{"layers.1.b": entry("F32", [3], 48, 60)})), "(an overlap)"),
    "hole": (safetensors({**GOOD, "layers.1.b": entry("F32", [3], 64, 76)}, DATA + b"\0" * 4), "(a hole)"),
    "metadata-number": (safetensors({"__metadata__": {"a": 1}, **GOOD}), "expected a string"),
    "metadata-list": (safetensors({"__metadata__": [], **GOOD}), "expected '{'"),
    # Sound files that are not the model's.
    "missing": (safetensors({k: v for k, v in GOOD.items() if k != "layers.1.b"}, DATA[:60]), "'layers.1.b'"),
    "near-name": (safetensors({("layer.1.b" if k == "layers.1.b" else k): v for k, v in GOOD.items()}), "nearest name is"),
    "wrong-shape": (safetensors(changed(w=entry("F32", [4, 3], 0, 48))), "expected shape [3, 4], but got [4, 3]"),
    "wrong-rank": (safetensors(changed(w=entry("F32", [12], 0, 48))), "expected shape [3, 4], but got [12]"),
    "wrong-type": (safetensors(changed(w=entry("I32", [3, 4], 0, 48))), "expected element type f32 or another float"),
    "unbindable-type": (safetensors(changed(w=entry("U32", [3, 4], 0, 48))), "but got U32"),
}

SHARD = safetensors(GOOD)


def index(weight_map, **more):
    return json.dumps({"metadata": {"total_size": 72}, "weight_map": weight_map, **more}).encode()


EVERY = {name: "a.safetensors" for name in GOOD}
INDICES = {
    "not-json": (b"hello", "malformed index"),
    "no-map": (b'{"metadata": {}}', "expected a weight_map"),
    "map-is-list": (b'{"weight_map": []}', "malformed index"),
    "file-is-number": (b'{"weight_map": {"w": 3}}', "expected a string"),
    "parent-folder": (index({**EVERY, "w": "../a.safetensors"}), "beside the index"),
    "dot-dot": (index({**EVERY, "w": ".."}), "beside the index"),
    "absolute": (index({**EVERY, "w": "/etc/passwd"}), "beside the index"),
    "sub-folder": (index({**EVERY, "w": "x/a.safetensors"}), "beside the index"),
    "empty-name": (index({**EVERY, "w": ""}), "beside the index"),
    "missing-shard": (index({**EVERY, "more": "b.safetensors"}), "No such file"),
    "missing-tensor": (index({**EVERY, "more": "a.safetensors"}), "that file lacks it"),
    "unlisted-tensor": (index({k: v for k, v in EVERY.items() if k != "w"}), "it lacks 'w'"),
    "twice": (b'{"weight_map": {"w": "a.safetensors", "w": "a.safetensors"}}', "expected each name once"),
    "deep": (b'{"metadata": ' + b"[" * 100000 + b"]" * 100000 + b', "weight_map": {}}', "less nesting"),
    "not-utf8": (b'{"weight_map": {"\xff": "a.safetensors"}}', "UTF-8"),
    "shard-is-index": (index({**EVERY, "more": "model.safetensors.index.json"}), "expected a safetensors file, but got a JSON file"),
}


def npy(descr="'<f4'", order="False", shape="(3,)", data=b"\0" * 12, version=(1, 0), header=None, length=None, magic=b"\x93NUMPY"):
    text = header if header is not None else f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    size = len(text) if length is None else length
    return magic + bytes(version) + (struct.pack("<H", size) if version[0] == 1 else struct.pack("<I", size)) + text + data


ARRAYS = {
    "empty": (b"", "expected a .npy file"),
    "bad-magic": (npy(magic=b"\x93NUMPX"), "expected a .npy file"),
    "zip": (b"PK\3\4" + b"\0" * 60, "expected a .npy file"),
    "only-magic": (b"\x93NUMPY", "the file ends"),
    "no-length": (b"\x93NUMPY\1\0", "the file ends"),
    "short-length": (b"\x93NUMPY\2\0\1\0", "the file ends"),
    "version-0": (npy(version=(0, 0)), "expected version 1.0, 2.0 or 3.0"),
    "version-4": (npy(version=(4, 0)), "expected version 1.0, 2.0 or 3.0"),
    "version-1.1": (npy(version=(1, 1)), "expected version 1.0, 2.0 or 3.0"),
    "header-too-long": (npy(length=60000), "expected a header of 60000 bytes"),
    "header-4-GB": (npy(version=(2, 0), length=2**32 - 1), "expected a header of 4294967295 bytes"),
    "expression": (npy(header=b"{'descr': '<f4', 'fortran_order': False, 'shape': (1+2,)}\n"), "expected a header with"),
    "call": (npy(header=b"__import__('os').system('touch pwned')\n"), "expected a header with"),
    "call-in-shape": (npy(shape="(int('3'),)"), "expected a header with"),
    "list-shape": (npy(shape="[3]"), "expected a header with"),
    "number-shape": (npy(shape="3"), "expected a header with"),
    "no-tuple": (npy(shape="(3)"), "expected a header with"),
    "negative-size": (npy(shape="(-3,)"), "expected a header with"),
    "float-size": (npy(shape="(3.0,)"), "expected a header with"),
    "huge-size": (npy(shape="(99999999999999999999,)"), "expected a header with"),
    "overflow": (npy(shape="(4294967296, 4294967296)"), "countless"),
    "rank-33": (npy(shape=str((1,) * 33)), "expected a header with"),
    "duplicate-key": (npy(header=b"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}\n"),
                      "expected a header with"),
    "extra-key": (npy(header=b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'x': 1}\n"), "expected a header with"),
    "missing-key": (npy(header=b"{'descr': '<f4', 'shape': (3,)}\n"), "expected a header with"),
    "trailing-text": (npy(header=b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} + 1\n"), "expected a header with"),
    "fortran-order": (npy(order="True"), "Fortran order"),
    "order-number": (npy(order="0"), "expected a header with"),
    "big-endian": (npy(descr="'>f4'"), "little-endian"),
    "object": (npy(descr="'|O'"), "little-endian"),
    "structured": (npy(descr="[('a', '<f4')]"), "plain element type"),
    "string-type": (npy(descr="'<U3'"), "little-endian"),
    "complex": (npy(descr="'<c8'"), "little-endian"),
    "short-data": (npy(data=b"\0" * 11), "expected 12 bytes of data"),
    "long-data": (npy(data=b"\0" * 13), "expected 12 bytes of data"),
    "no-data": (npy(data=b""), "expected 12 bytes of data"),
}

MODULES = {
    "syntax": ("func.func @f( {", IR, "model.mlir:1:"),
    "type": ("func.func @f(%x: tensor<2xf33>) { return }", IR, "model.mlir:1:"),
    "unknown-op": ("func.func @f() { foo.bar() : () -> () return }", IR, "foo"),
    "unknown-attribute": ("func.func @f() attributes {x = #diffattn.nope} { return }", IR, "model.mlir:1:"),
    "return-type": ("func.func @f() -> i32 { return }", IR, "return"),
    "undefined-value": ("func.func @f() -> i32 { return %x : i32 }", IR, "undeclared"),
    "duplicate-symbol": ("func.func @f() { return } func.func @f() { return }", IR, "redefinition of symbol"),
    "brackets": ("[" * 100000, IR, "levels of brackets"),
    "regions": ("module {" * 5000, IR, "levels of brackets"),
    "brackets-after-comparisons": ("#s = affine_set<(d0) : (" + ", ".join(["d0 >= 0"] * 100000) + ")>\n" + "[" * 100000, IR,
                                   "levels of brackets"),
    "minus-signs": ("#m = affine_map<(d0) -> (" + "-" * 100000 + "d0)>", IR, "levels of minus signs"),
    "alias-chain": ("#a0 = 1 : i32\n" + "".join(f"#a{i + 1} = [#a{i}]\n" for i in range(50000)), IR, "levels of aliases"),
    "alias-doubling": ("!a0 = f32\n" + "".join(f"!a{i + 1} = tuple<!a{i}, !a{i}>\n" for i in range(60))
                       + "func.func private @f(%x: !a60)", IR, "at most 1000000 parts"),
    "long-line": ("func.func @f( " + "x" * 100000, IR, "model.mlir:1:"),
    "huge-constant": ("func.func @f() -> tensor<100000000000xf32> { %c = arith.constant dense<1.0> : tensor<100000000000xf32> "
                      "return %c : tensor<100000000000xf32> }", IR, "constants of at most"),
    "uncountable-size": ("func.func @f(%x: tensor<9223372036854775807x4xf32>) { return }", IR, "below 2^63"),
    "wide-integer": ("func.func @f(%a: i16777215) -> i16777215 { %b = arith.muli %a, %a : i16777215 return %b : i16777215 }", IR,
                     "integers of at most 128 bits"),
    "negative-layers": ("ml_program.global private @w(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32> {diffattn.layers = -5 : i64}", IR,
                        "expected diffattn.layers to be an i64 from 1 to 65536, but got -5"),
    "many-layers": ('ml_program.global private @"w.{}"(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32> '
                    "{diffattn.layers = 9223372036854775807 : i64}", IR, "expected diffattn.layers to be"),
    "layers-no-number": ('ml_program.global private @"w.{}"(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32> {diffattn.layers = "2"}', IR,
                         "expected diffattn.layers to be"),
    "source-no-string": ("ml_program.global private @w(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32> {diffattn.source = 2 : i64}", IR,
                         "expected diffattn.source to be a string, but got 2 : i64"),
    "row-block-overflow": ("ml_program.global private @w(#ml_program.extern<tensor<0xf32>>) : tensor<0xf32> {diffattn.row_block_size = "
                           "4611686018427387904 : i64, diffattn.row_blocks = array<i64: 0, 1, 2, 3>}", IR, "number of rows"),
    "bytes": ("\0\1\2\3" * 100, IR, "model.mlir"),
    "broken-bytecode": ("MLïR".encode("latin-1") + b"\x0dMLIR22\0" + b"\xff" * 64, IR, "model.mlir"),
    "heads": ("""func.func @f(%q: tensor<1x4x8x16xf32>, %k: tensor<1x3x8x16xf32>, %l: tensor<f32>) -> tensor<1x4x8x16xf32> {
                 %e = tensor.empty() : tensor<1x4x8x16xf32>
                 %o = diffattn.attention ins(%q, %k, %q, %k, %k : tensor<1x4x8x16xf32>, tensor<1x3x8x16xf32>,
                   tensor<1x4x8x16xf32>, tensor<1x3x8x16xf32>, tensor<1x3x8x16xf32>) lambda(%l : tensor<f32>)
                   outs(%e : tensor<1x4x8x16xf32>) {scale = 1.0 : f32} -> tensor<1x4x8x16xf32>
                 return %o : tensor<1x4x8x16xf32> }""", IR, "diffattn.attention"),
    "dynamic-weight": ("ml_program.global private @w(#ml_program.extern<tensor<?xf32>>) : tensor<?xf32>", IR, "static shape"),
    "pattern-without-layers": ('ml_program.global private @"a.{}"(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32>', IR,
                               "expected layers on a name with {}"),
    "row-blocks": ("ml_program.global private @w(#ml_program.extern<tensor<4xf32>>) : tensor<4xf32> {diffattn.row_block_size = 2 : i64, "
                   "diffattn.row_blocks = array<i64: 0, 0>}", IR, "each block once"),
    "row-block-size": ("ml_program.global private @w(#ml_program.extern<tensor<4xf32>>) : tensor<4xf32> {diffattn.row_block_size = 3 : i64, "
                       "diffattn.row_blocks = array<i64: 0, 1>}", IR, "number of rows"),
    "layer-weight": ("func.func @f(%i: index) -> tensor<2xf32> { %w = diffattn.layer_weight @\"a.{}\"[%i] : tensor<2xf32> "
                     "return %w : tensor<2xf32> }", IR, "to name an ml_program.global"),
    "name-of-an-entry-point": ("func.func @f(%x: f32) -> f32 { %y = func.call @diffattn_entry_f(%x) : (f32) -> f32 return %y : f32 } "
                               "func.func private @diffattn_entry_f(%x: f32) -> f32 { return %x : f32 }", COMPILE, "expected no function or global named 'diffattn_entry_f'"),
    "no-functions": ("", USAGE, "no public functions"),
    "complex-argument": ("func.func @f(%x: tensor<2xcomplex<f32>>) { return }", USAGE, "tensor<2xcomplex<f32>>"),
    "unranked": ("func.func @f(%x: memref<*xf32>) { return }", USAGE, "memref<*xf32>"),
}

#: Arguments after the model file, for PLAIN.
ARGUMENTS = {
    "no-entry": (["--entry=nope"], USAGE, "expected an entry of twice, other, but got 'nope'"),
    "ambiguous-entry": ([], USAGE, "--entry"),
    "too-few": (["--entry=other", "--input=f32=1"], USAGE, "expected 2 arguments, but got 1"),
    "too-many": (["--entry=twice", "--input=f32=1", "--input=f32=1"], USAGE, "expected 1 arguments, but got 2"),
    "no-input-for-dynamic": (["--entry=twice"], USAGE, "expected --input for each"),
    "wrong-type": (["--entry=twice", "--input=3xf64=1"], INPUT, "expected tensor<?xf32>, but got 3xf64"),
    "wrong-rank": (["--entry=twice", "--input=3x1xf32=1"], INPUT, "but got 3x1xf32"),
    "scalar-for-tensor": (["--entry=twice", "--input=f32=1"], INPUT, "but got f32"),
    "tensor-for-scalar": (["--entry=other", "--input=1xf32=1", "--input=i64=1"], INPUT, "expected f32, but got 1xf32"),
    "endless-file": (["--entry=twice", "--input=3xf32=1", "--expected=/dev/zero"], INPUT, "but got a device"),
    "no-such-file": (["--entry=twice", "--input=nope.npy"], INPUT, "No such file"),
    "grammar": (["--entry=twice", "--input=hello"], USAGE, "--input=hello"),
    "bad-size": (["--entry=twice", "--input=-3xf32=1"], USAGE, "expected a size from 0"),
    "bad-element-type": (["--entry=twice", "--input=3xf31=1"], USAGE, "an element type as in 2x3xf32"),
    "bad-element": (["--entry=twice", "--input=3xf32=1,x,2"], USAGE, "expected a value of f32, but got 'x'"),
    "element-count": (["--entry=twice", "--input=3xf32=1,2"], USAGE, "expected 3 elements, or one for all, but got 2"),
    "no-elements": (["--entry=twice", "--input=3xf32="], USAGE, "expected 3 elements"),
    "integer-overflow": (["--entry=other", "--input=f32=1", "--input=i64=99999999999999999999"], USAGE, "expected a value of i64"),
    "integer-fraction": (["--entry=other", "--input=f32=1", "--input=i64=1.5"], USAGE, "expected a value of i64"),
    "huge-array": (["--entry=twice", "--input=9223372036854775807x2xf32=1"], RUN, "expected memory"),
    "size-overflow": (["--entry=twice", "--input=99999999999999999999xf32=1"], USAGE, "expected a size from 0"),
    "random-bounds": (["--entry=twice", "--input=random:3xf32:2:1"], USAGE, "random:<type>:<least>:<most>"),
    "random-one-bound": (["--entry=twice", "--input=random:3xf32:2"], USAGE, "random:<type>:<least>:<most>"),
    "random-type": (["--entry=twice", "--input=random:"], USAGE, "an element type"),
    "random-out-of-type": (["--entry=twice", "--input=random:3xi8:0:300"], USAGE, "bounds that i8 holds"),
    "too-many-outputs": (["--entry=twice", "--input=3xf32=1", "--output=a.npy", "--output=b.npy"], USAGE, "at most 1 --output"),
    "too-many-expected": (["--entry=twice", "--input=3xf32=1", "--expected=a.npy", "--expected=b.npy"], USAGE,
                          "at most 1 --expected"),
    "expected-missing": (["--entry=twice", "--input=3xf32=1", "--expected=a.npy"], INPUT, "No such file"),
    "capacity": (["--entry=twice", "--input=9xf32=1", "--output=out.npy"], RUN, "expected at most 8 tokens"),
    "check": (["--entry=twice", "--input=3xf32=1", "--check=nothing"], USAGE, "--check: expected unfused"),
    "target": (["--entry=twice", "--input=3xf32=1", "--target=gpu"], USAGE, "expected target cpu"),
    "isa": (["--entry=twice", "--input=3xf32=1", "--target=cpu:avx9"], USAGE, "expected target cpu"),
    "threads": (["--entry=twice", "--input=3xf32=1", "--threads=-1"], USAGE, "--threads: expected a number from 0 to 4096"),
    "bench": (["--entry=twice", "--input=3xf32=1", "--bench=-1"], USAGE, "--bench: expected"),
    "emit": (["--emit=nothing"], USAGE, "expected a stage of"),
    "weights-missing": (["--entry=twice", "--input=3xf32=1", "--weights=nope.safetensors"], WEIGHTS, "No such file"),
    "weights-is-folder": (["--entry=twice", "--input=3xf32=1", "--weights=."], WEIGHTS, "model.safetensors"),
    "unknown-option": (["--nope"], USAGE, "nope"),
    "option-value": (["--seed=x"], USAGE, "x"),
    "second-model": (["b.mlir"], USAGE, "expected one model file, but got 2"),
    "no-space": (["--entry=twice", "--input=3xf32=1", "--output=/dev/full"], OUTPUT, "No space left"),
    "emit-no-space": (["--emit=llvm", "-o", "/dev/full"], OUTPUT, "No space left"),
    "output-folder-missing": (["--entry=twice", "--input=3xf32=1", "--output=nope/out.npy"], OUTPUT, "No such file"),
    "output-is-folder": (["--entry=twice", "--input=3xf32=1", "--output=."], OUTPUT, "expected to write"),
}


def cases():
    def write(folder, **files):
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_bytes(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)

    run = ["--input=2x4xf32=1", "--output=out.npy"]
    for name, (content, message) in WEIGHT_FILES.items():
        def make(folder, content=content):
            write(folder, model__mlir=MODEL, w__safetensors=content)
            return ["model.mlir", "--weights=w.safetensors", *run]
        yield f"safetensors-{name}", WEIGHTS, message, make
    for name, (content, message) in INDICES.items():
        def make(folder, content=content):
            write(folder, model__mlir=MODEL, a__safetensors=SHARD)
            (folder / "model.safetensors.index.json").write_bytes(content)
            return ["model.mlir", "--weights=.", *run]
        yield f"index-{name}", WEIGHTS, message, make

    def make_twice(folder):
        write(folder, model__mlir=MODEL, a__safetensors=SHARD, b__safetensors=SHARD)
        return ["model.mlir", "--weights=a.safetensors", "--weights=b.safetensors", *run]
    yield "safetensors-in-two-files", WEIGHTS, "it is in a.safetensors too", make_twice

    def make_none(folder):
        write(folder, model__mlir=MODEL)
        return ["model.mlir", *run]
    yield "safetensors-none", WEIGHTS, "expected weight files", make_none
    for name, (content, message) in ARRAYS.items():
        def make(folder, content=content):
            write(folder, model__mlir=PLAIN, x__npy=content)
            return ["model.mlir", "--entry=twice", "--input=x.npy", "--output=out.npy"]
        yield f"npy-{name}", INPUT, message, make
    for name, (content, code, message) in MODULES.items():
        def make(folder, content=content):
            write(folder, model__mlir=content)
            return ["model.mlir"]
        yield f"mlir-{name}", code, message, make
    for name, (arguments, code, message) in ARGUMENTS.items():
        def make(folder, arguments=arguments):
            write(folder, model__mlir=PLAIN)
            return ["model.mlir", *arguments]
        yield f"arguments-{name}", code, message, make
