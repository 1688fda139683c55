"""Nodes of triangular systems (solve_node.py) as loops, in text."""

from __future__ import annotations

import re
import string

from .attention_text import sizes_of

#: Row by row, each with those that are known.
_LOOPS = """\
%zero = arith.constant 0 : index
%one = arith.constant 1 : index
%two = arith.constant 2 : index
%systems = tensor.dim $b, %zero : $b_type
%size = tensor.dim $b, %one : $b_type
%columns = tensor.dim $b, %two : $b_type
%last = arith.subi %size, %one : index
%nothing = arith.constant 0.0 : $element
%row_empty = tensor.empty(%columns) : $row
%zeros = linalg.fill ins(%nothing : $element) outs(%row_empty : $row) -> $row
%empty = tensor.empty(%systems, %size, %columns) : $made
%all = scf.for %m = %zero to %systems step %one iter_args(%y = %empty) -> ($made) {
  %solved = scf.for %i = %zero to %size step %one iter_args(%x = %y) -> ($made) {
    $place
    %factors = tensor.extract_slice $a[%m, %r, %first] [1, 1, %i] [1, 1, 1] : $a_type to $row
    %known = tensor.extract_slice %x[%m, %first, 0] [1, %i, %columns] [1, 1, 1] : $made to $rows
    %sum = linalg.matmul ins(%factors, %known : $row, $rows) outs(%zeros : $row) -> $row
    %right = tensor.extract_slice $b[%m, %r, 0] [1, 1, %columns] [1, 1, 1] : $b_type to $row
    %rest = linalg.sub ins(%right, %sum : $row, $row) outs(%row_empty : $row) -> $row
    $divide
    %next = tensor.insert_slice $new into %x[%m, %r, 0] [1, 1, %columns] [1, 1, 1] : $row into $made
    scf.yield %next : $made
  }
  scf.yield %solved : $made
}
$result = tensor.cast %all : $made to $result_type
"""
_LOWER = """%r = arith.addi %i, %zero : index
    %first = arith.constant 0 : index"""
_UPPER = """%r = arith.subi %last, %i : index
    %first = arith.addi %r, %one : index"""
_DIVIDE = """%pivot = tensor.extract $a[%m, %r, %r] : $a_type
    %pivots = linalg.fill ins(%pivot : $element) outs(%row_empty : $row) -> $row
    %quotient = linalg.div ins(%rest, %pivots : $row, $row) outs(%row_empty : $row) -> $row"""


def solve_op(spec: tuple[int, int], number: str, values: list[tuple[str, str]], result: str, result_type: str) -> list[str]:
    """The lines that make `result` of the systems' matrices and right sides, each with its type. `spec`: whether the matrices are upper ones,
    and whether their diagonal is ones."""
    upper, unit = spec
    (a, a_type), (b, b_type) = values
    element = sizes_of(b_type)[-1]
    text = _LOOPS.replace("$place", _UPPER if upper else _LOWER).replace("    $divide\n", "" if unit else f"    {_DIVIDE}\n")
    text = text.replace("$new", "%rest" if unit else "%quotient")
    # The values get names of this node's own.
    text = re.sub(r"%(?=[a-z])", f"%solve_{number}_", text)
    return string.Template(text).substitute(a=a, a_type=a_type, b=b, b_type=b_type, element=element, row=f"tensor<1x?x{element}>",
                                            rows=f"tensor<?x?x{element}>", made=f"tensor<?x?x?x{element}>", result=result,
                                            result_type=result_type).splitlines()
