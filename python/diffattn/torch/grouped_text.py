"""Nodes of products of groups of rows (grouped_node.py) as a loop over the groups, in text."""

from __future__ import annotations

import re
import string

from .attention_text import sizes_of

#: Ends that fall, or that lie behind the rows, are taken as the nearest ones that do not.
_LOOP = """\
%zero = arith.constant 0 : index
%one = arith.constant 1 : index
%rows = tensor.dim $x, %zero : $x_type
%groups = tensor.dim $matrices, %zero : $matrices_type
%number = arith.constant 0.0 : $sum
%empty = tensor.empty(%rows$empty_sizes) : $made
%zeros = linalg.fill ins(%number : $sum) outs(%empty : $made) -> $made
%all, %last = scf.for %i = %zero to %groups step %one iter_args(%y = %zeros, %begin = %zero) -> ($made, index) {
  %given = tensor.extract $ends[%i] : $ends_type
  %at = arith.index_cast %given : $place to index
  %inside = arith.minsi %at, %rows : index
  %end = arith.maxsi %inside, %begin : index
  %count = arith.subi %end, %begin : index
  %part = tensor.extract_slice $x[%begin, 0] [%count, $depth] [1, 1] : $x_type to $part
  %matrix = tensor.extract_slice $matrices[%i, 0, 0] [1, $matrix_sizes] [1, 1, 1] : $matrices_type to $matrix
  %sums = tensor.extract_slice %y[%begin, 0] [%count, $columns] [1, 1] : $made to $made
  %product = linalg.matmul $maps ins(%part, %matrix : $part, $matrix) outs(%sums : $made) -> $made
  %next = tensor.insert_slice %product into %y[%begin, 0] [%count, $columns] [1, 1] : $made into $made
  scf.yield %next, %end : $made, index
}
$result = tensor.cast %all : $made to $result_type
"""
_TURNED = "indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]"


def grouped_op(spec: tuple[int], number: str, values: list[tuple[str, str]], result: str, result_type: str) -> list[str]:
    """The lines that make `result` of rows, matrices and the ends of groups, each with its type. `spec`: whether a matrix is [n, k]."""
    [turned] = spec
    (x, x_type), (matrices, matrices_type), (ends, ends_type) = values
    element, sums = sizes_of(x_type)[-1], sizes_of(result_type)[-1]
    depth, columns = sizes_of(x_type)[1], sizes_of(matrices_type)[1 if turned else 2]
    lines = []
    if depth == "?":
        lines.append("%depth = tensor.dim $x, %one : $x_type")
    if columns == "?":
        lines += ["%axis = arith.constant $axis : index", "%columns = tensor.dim $matrices, %axis : $matrices_type"]
    head, loop = _LOOP.split("%groups", 1)
    # The values get names of this node's own.
    text = re.sub(r"%(?=[a-z])", f"%grouped_{number}_", head + "".join(f"{line}\n" for line in lines) + "%groups" + loop)
    sizes = [f"%grouped_{number}_{name}" if size == "?" else size for name, size in (("depth", depth), ("columns", columns))]
    matrix, matrix_sizes = [columns, depth] if turned else [depth, columns], sizes[::-1] if turned else sizes
    return string.Template(text).substitute(
        x=x, x_type=x_type, matrices=matrices, matrices_type=matrices_type, ends=ends, ends_type=ends_type, place=sizes_of(ends_type)[-1], sum=sums,
        axis=1 if turned else 2, depth=sizes[0], columns=sizes[1], matrix_sizes=", ".join(matrix_sizes), maps=_TURNED if turned else "",
        empty_sizes=f", {sizes[1]}" if columns == "?" else "", made=f"tensor<?x{columns}x{sums}>", part=f"tensor<?x{depth}x{element}>",
        matrix=f"tensor<{'x'.join(matrix)}x{element}>", result=result, result_type=result_type).splitlines()
