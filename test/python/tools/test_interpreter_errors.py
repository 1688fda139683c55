"""Every way in which the interpreter refuses to go on: the kind, the place, and what the message says."""
import numpy as np
import pytest

from interpreter import Interpreter

A = np.arange(4, dtype=np.float32)


def function(arguments, result, *lines):
    return "\n".join([f"func.func @f({arguments}) -> {result} {{", *(f"  {line}" for line in lines), f"  return %r : {result}", "}"])


#: name: (module, arguments, kind, place and message)
CASES = {
    "division by zero": (function("%a: i64, %b: i64", "i64", "%r = arith.divsi %a, %b : i64"), [1, 0], "fault",
                         ":2:8: 'arith.divsi': expected a divisor other than 0, but got 0"),
    "remainder by zero": (function("%a: i64, %b: i64", "i64", "%r = arith.remui %a, %b : i64"), [1, 0], "fault",
                          ":2:8: 'arith.remui': expected a divisor other than 0, but got 0"),
    "quotient too large": (function("%a: i64, %b: i64", "i64", "%r = arith.divsi %a, %b : i64"), [-2 ** 63, -1], "fault",
                           ":2:8: 'arith.divsi': expected a quotient that the type holds, but got the lowest number divided by -1"),
    "index too large": (function("%a: tensor<?xf32>, %i: index", "f32", "%r = tensor.extract %a[%i] : tensor<?xf32>"), [A, 4], "fault",
                        ":2:8: 'tensor.extract': expected an index from 0 and below 4 on axis 0, but got 4"),
    "index below zero": (function("%a: tensor<?xf32>, %x: f32, %i: index", "tensor<?xf32>", "%r = tensor.insert %x into %a[%i] : tensor<?xf32>"),
                         [A, np.float32(1), -1], "fault", ":2:8: 'tensor.insert': expected an index from 0 and below 4 on axis 0, but got -1"),
    "slice beyond the end": (function("%a: tensor<?xf32>, %i: index", "tensor<?xf32>",
                                      "%r = tensor.extract_slice %a[%i] [2] [2] : tensor<?xf32> to tensor<2xf32>").replace("tensor<?xf32> {", "tensor<2xf32> {")
                             .replace("return %r : tensor<?xf32>", "return %r : tensor<2xf32>"), [A, 2], "fault",
                             ":2:8: 'tensor.extract_slice': expected a slice inside of size 4 on axis 0, but got 2 from 2 in steps of 2"),
    "slice with a far step": (function("%a: tensor<?xf32>, %n: index, %s: index", "tensor<?xf32>",
                                       "%r = tensor.extract_slice %a[0] [%n] [%s] : tensor<?xf32> to tensor<?xf32>"), [A, 3, 2 ** 62], "fault",
                              f"expected a slice inside of size 4 on axis 0, but got 3 from 0 in steps of {2 ** 62}"),
    "source of another size": (function("%a: tensor<?xf32>, %n: index", "tensor<?xf32>",
                                        "%r = tensor.insert_slice %a into %a[0] [%n] [1] : tensor<?xf32> into tensor<?xf32>"), [A, 3], "fault",
                               ":2:8: 'tensor.insert_slice': expected a source of shape 3, but got 4"),
    "no step": (function("%n: index, %s: index", "index", "%z = arith.constant 0 : index", "%r = scf.for %i = %z to %n step %s iter_args(%x = %z) -> index {",
                         "  scf.yield %i : index", "}"), [3, 0], "fault", ":3:8: 'scf.for': expected a step of at least 1, but got 0"),
    "negative size": (function("%n: index", "tensor<?xf32>", "%r = tensor.empty(%n) : tensor<?xf32>"), [-1], "fault",
                      ":2:8: 'tensor.empty': expected sizes of at least 0, but got -1"),
    "negative padding": (function("%a: tensor<?xf32>, %n: index, %x: f32", "tensor<?xf32>", "%r = tensor.pad %a low[%n] high[0] {", "^bb0(%i: index):",
                                  "  tensor.yield %x : f32", "} : tensor<?xf32> to tensor<?xf32>"), [A, -1, np.float32(0)], "fault",
                         ":2:8: 'tensor.pad': expected padding of at least 0 on axis 0, but got -1 and 0"),
    "another size than cast to": (function("%a: tensor<?xf32>", "tensor<5xf32>", "%r = tensor.cast %a : tensor<?xf32> to tensor<5xf32>"), [A], "fault",
                                  ":2:8: 'tensor.cast': expected size 5 on axis 0, but got 4"),
    "no such axis": (function("%a: tensor<?xf32>, %i: index", "index", "%r = tensor.dim %a, %i : tensor<?xf32>"), [A, 1], "fault",
                     ":2:8: 'tensor.dim': expected an axis from 0 and below 1, but got 1"),
    "operands of two sizes": (function("%a: tensor<?xf32>, %b: tensor<?xf32>", "tensor<?xf32>",
                                       "%r = linalg.add ins(%a, %b : tensor<?xf32>, tensor<?xf32>) outs(%a : tensor<?xf32>) -> tensor<?xf32>"), [A, A[:3]],
                              "fault", ":2:8: 'linalg.add': expected size 4 on axis 0 of operand 1, but got 3"),
    "elementwise on two sizes": (function("%a: tensor<?xf32>, %b: tensor<?xf32>", "tensor<?xf32>", "%r = arith.addf %a, %b : tensor<?xf32>"), [A, A[:3]],
                                 "fault", ":2:8: 'arith.addf': expected operands of one shape, but got 4 and 3"),
    "a window beyond the input": (function("%a: tensor<?xf32>, %w: tensor<?xf32>, %o: tensor<?xf32>", "tensor<?xf32>",
                                           "%r = linalg.conv_1d ins(%a, %w : tensor<?xf32>, tensor<?xf32>) outs(%o : tensor<?xf32>) -> tensor<?xf32>"),
                                  [A, A[:3], A[:3]], "fault", ":2:8: 'linalg.conv_1d': expected a size above 4 on axis 0 of operand 0, but got 4"),
    "a sum of sizes": (function("%a: tensor<?x2xf32>, %b: tensor<?x3xf32>", "tensor<?x5xf32>",
                                "%r = tensor.concat dim(1) %a, %b : (tensor<?x2xf32>, tensor<?x3xf32>) -> tensor<?x5xf32>"),
                       [A.reshape(2, 2), np.zeros((1, 3), np.float32)], "fault",
                       ":2:8: 'tensor.concat': expected size 2 on axis 0 of all operands, but got 1"),
    "an expanded size": (function("%a: tensor<?xf32>, %n: index", "tensor<?x3xf32>",
                                  "%r = tensor.expand_shape %a [[0, 1]] output_shape [%n, 3] : tensor<?xf32> into tensor<?x3xf32>"), [A, 1], "fault",
                         ":2:8: 'tensor.expand_shape': expected sizes whose product is 4 for axis 0, but got the shape 1x3"),
    "a reshaped size": (function("%a: tensor<?xf32>, %s: tensor<2xi64>", "tensor<?x?xf32>",
                                 "%r = tensor.reshape %a(%s) : (tensor<?xf32>, tensor<2xi64>) -> tensor<?x?xf32>"), [A, np.array([-2, -2])], "fault",
                        ":2:8: 'tensor.reshape': expected a shape of 4 elements, but got -2x-2"),
    "a failed assertion": (function("%c: i1", "i1", 'cf.assert %c, "sizes differ"', "%r = arith.ori %c, %c : i1"), [np.bool_(False)], "fault",
                           ":2:3: 'cf.assert': expected the assertion to hold: sizes differ"),
    "a power of zero": (function("%a: i64, %b: i64", "i64", "%r = math.ipowi %a, %b : i64"), [0, -1], "fault",
                        ":2:8: 'math.ipowi': expected a base other than 0 for a negative power, but got 0"),
    "operands of attention": ("""func.func @f(%q: tensor<1x2x?x4xf32>, %k: tensor<1x2x?x4xf32>, %v: tensor<1x2x?x3xf32>, %l: tensor<f32>, %i: tensor<1x2x?x3xf32>)
    -> tensor<1x2x?x3xf32> {
  %r = diffattn.attention ins(%q, %k, %q, %k, %v : tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x4xf32>, tensor<1x2x?x3xf32>)
    lambda(%l : tensor<f32>) outs(%i : tensor<1x2x?x3xf32>) {scale = 1.0 : f32} -> tensor<1x2x?x3xf32>
  return %r : tensor<1x2x?x3xf32>
}""", [np.zeros((1, 2, n, w), np.float32) for n, w in ((5, 4), (7, 4), (6, 3))] + [np.float32(0), np.zeros((1, 2, 5, 3), np.float32)], "fault",
                              ":3:8: 'diffattn.attention': expected v of shape [1,2,7,3], but got [1,2,6,3]"),
    "an op that is not known": (function("%a: tensor<?xf32>, %m: memref<?xf32>", "tensor<?xf32>", "%r = bufferization.to_tensor %m : memref<?xf32> to tensor<?xf32>"),
                                [A, A], "unsupported", "but got memref<?xf32>"),
    "an op of another dialect": (function("%a: tensor<?xf32>", "tensor<?xf32>", "%r = bufferization.alloc_tensor() copy(%a) : tensor<?xf32>"), [A],
                                 "unsupported",
                                 ":2:8: 'bufferization.alloc_tensor': expected an op that the interpreter knows, but got 'bufferization.alloc_tensor'"),
    "a wide integer": (function("%a: i64", "i128", "%r = arith.extsi %a : i64 to i128"), [1], "unsupported",
                       ":2:8: 'arith.extsi': expected scalars and ranked tensors of f64, f32, f16, bf16, index or integers of at most 64 bits, but got i128"),
    "a vector": (function("%x: f32", "vector<4xf32>", "%r = vector.broadcast %x : f32 to vector<4xf32>"), [np.float32(1)], "unsupported",
                 ":2:8: 'vector.broadcast': expected an op that the interpreter knows"),
    "a weight": ("ml_program.global private @w(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32>\n"
                 + function("", "tensor<2xf32>", "%r = ml_program.global_load_const @w : tensor<2xf32>"), [], "input",
                 ":3:8: 'ml_program.global_load_const': expected weights for @w, but got none"),
    "branches": ("func.func @f(%c: i1) -> i1 {\n  cf.br ^bb1\n^bb1:\n  return %c : i1\n}", [np.bool_(True)], "unsupported",
                 ":1:1: 'func.func': expected functions of one block, but 'f' has branches"),
    "no body": ("func.func private @g(i1) -> i1\n" + function("%c: i1", "i1", "%r = func.call @g(%c) : (i1) -> i1"), [np.bool_(True)], "unsupported",
                "expected a function with a body, but 'g' is declared alone"),
    "too few arguments": (function("%a: i64, %b: i64", "i64", "%r = arith.addi %a, %b : i64"), [1], "input", "expected 2 arguments of 'f', but got 1"),
    "another size of an argument": (function("%a: tensor<3xf32>", "tensor<3xf32>", "%r = arith.negf %a : tensor<3xf32>"), [A], "input",
                                    ":1:1: 'func.func': argument 0 of 'f': expected tensor<3xf32>, but got 4xf32"),
    "another type of an argument": (function("%a: tensor<4xf64>", "tensor<4xf64>", "%r = arith.negf %a : tensor<4xf64>"), [A], "input",
                                    "argument 0 of 'f': expected tensor<4xf64>, but got 4xf32"),
    "no such function": ("module {}", [], "input", "expected a function 'f', but the module has none"),
    "endless recursion": (function("%a: i64", "i64", "%r = func.call @f(%a) : (i64) -> i64"), [1], "limit",
                          ":2:8: 'func.call': expected at most 64 calls inside of one another, but got more"),
    "too much memory": (function("%n: index", "tensor<?x?xf32>", "%r = tensor.empty(%n, %n) : tensor<?x?xf32>"), [2 ** 20], "limit",
                        ":2:8: 'tensor.empty': expected tensors of at most 8589934592 bytes at once, but 1048576x1048576xf32 exceeds them"),
    "sizes whose product overflows": (function("%n: index", "tensor<?x?x?xf32>", "%r = tensor.empty(%n, %n, %n) : tensor<?x?x?xf32>"), [2 ** 40], "limit",
                                      "expected tensors of at most 8589934592 bytes at once"),
}


@pytest.mark.parametrize("name", CASES)
def test_error(name, build_dir):
    module, arguments, kind, message = CASES[name]
    answer, = Interpreter(build_dir, module).calls([("f", "as-written", arguments)])
    assert answer.kind == kind, answer
    assert message in answer.message


def test_an_endless_loop_ends(build_dir):
    module = function("%c: i1", "i1", "%r = scf.while (%x = %c) : (i1) -> i1 {", "  scf.condition(%x) %x : i1", "} do {", "^bb0(%x: i1):",
                      "  scf.yield %x : i1", "}")
    answer, = Interpreter(build_dir, module).calls([("f", "as-written", [np.bool_(True)], 1000)])
    assert answer.kind == "limit" and "expected at most 1000 steps, but the program takes more" in answer.message


def test_a_large_nest_is_refused_before_it_runs(build_dir):
    module = """func.func @f() -> tensor<1024x1024xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1024x1024xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  %r = linalg.matmul ins(%i, %i : tensor<1024x1024xf32>, tensor<1024x1024xf32>) outs(%i : tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  return %r : tensor<1024x1024xf32>
}"""
    answer, = Interpreter(build_dir, module).calls([("f", "as-written", [], 10 ** 9)])
    assert answer.kind == "limit"
    assert ":5:8: 'linalg.matmul': expected at most 1000000000 steps, but the program takes more" in answer.message
