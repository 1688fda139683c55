"""Host code of launches, as gpu_check reads it from a pack and evaluates it."""
import json

import pytest

from gpu_check import host_program

pytestmark = pytest.mark.oracle

HOST = '''
  "func.func"() <{function_type = (memref<?x4xf32, strided<[?, 1], offset: ?>>, memref<i64>) -> memref<?xf32>, sym_name = "f"}> ({
  ^bb0(%arg0: memref<?x4xf32, strided<[?, 1], offset: ?>>, %arg1: memref<i64>):
    %0 = "arith.constant"() <{value = 0 : index}> : () -> index
    %1 = "arith.constant"() <{value = -1 : i32}> : () -> i32
    %2 = "arith.constant"() <{value = 5.000000e-01 : f32}> : () -> f32
    %3 = "arith.constant"() <{value = 7 : index}> : () -> index
    %4 = "memref.dim"(%arg0, %0) : (memref<?x4xf32, strided<[?, 1], offset: ?>>, index) -> index
    %5:6 = "memref.extract_strided_metadata"(%arg0) : (memref<?x4xf32>) -> (memref<f32>, index, index, index, index, index)
    %6 = "arith.subi"(%0, %3) <{overflowFlags = #arith.overflow<none>}> : (index, index) -> index
    %7 = "arith.cmpi"(%4, %3) <{predicate = 6 : i64}> : (index, index) -> i1
    %8 = "arith.select"(%7, %3, %5#4) : (i1, index, index) -> index
    "scf.if"(%7) ({
      %9 = "gpu.alloc"(%4) <{operandSegmentSizes = array<i32: 0, 1, 0>}> : (index) -> memref<?x3xf32>
      %12 = "arith.constant"() <{value = 0 : i8}> : () -> i8
      %13 = "gpu.alloc"() <{operandSegmentSizes = array<i32: 0, 0, 0>}> : () -> memref<4xi8>
      "gpu.memset"(%13, %12) : (memref<4xi8>, i8) -> ()
      %10 = "memref.extract_aligned_pointer_as_index"(%9) : (memref<?x3xf32>) -> index
      "gpu.launch_func"(%4, %3, %3, %3, %3, %3, %1, %10, %6, %2, %8) <{kernel = @m::@first, operandSegmentSizes = array<i32: 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 4, 0>}> : () -> ()
      "scf.yield"() : () -> ()
    }, {
    }) : (i1) -> ()
    %11 = "memref.collapse_shape"(%arg0) <{reassociation = [[0, 1]]}> : (memref<?x4xf32>) -> memref<?xf32>
    "func.return"(%11) : (memref<?xf32>) -> ()
  }) : () -> ()
'''


def test_host_code_is_read_and_evaluated():
    function = json.loads(json.dumps(host_program.parse(HOST)))["f"]
    buffers = [host_program.Buffer(4096, [6, 4], [4, 1], 2), host_program.Buffer(8192, [], [])]
    sizes = []
    launches, result = host_program.evaluate(function, buffers, lambda size: sizes.append(size) or 512)
    assert launches == [host_program.Fill(512, 0, 4), ("first", [6, 7, 7], [7, 7, 7], 0xFFFFFFFF, [512, 2 ** 64 - 7, 0x3F000000, 7])]
    assert sizes == [6 * 3 * 4, 4]
    assert result.sizes == [24] and result.strides == [1] and result.address == 4096
    buffers[0].sizes[0] = 8
    assert host_program.evaluate(function, buffers, None)[0] == []
    buffers[0].strides[0] = 9
    with pytest.raises(host_program.HostProgramError, match=r"expected axes \[0, 1\] without a gap, but got strides \[9, 1\]"):
        host_program.evaluate(function, buffers, None)
    with pytest.raises(host_program.HostProgramError, match=r"expected strides \[None, 1\] of argument 0, but got \[9, 2\]"):
        host_program.evaluate(function, [host_program.Buffer(0, [6, 4], [9, 2]), buffers[1]], None)
    with pytest.raises(host_program.HostProgramError, match="expected 2 arguments, but got 1"):
        host_program.evaluate(function, buffers[:1], None)


@pytest.mark.parametrize("old, new, error", [
    ('"arith.subi"', '"arith.subf"', "expected host code of a launch, but got arith.subf"),
    ("predicate = 6", "predicate = 10", "expected a predicate of arith.cmpi from 0 to 9, but got 10"),
    ("0, 1, 1, 1, 1, 1, 1, 0,", "1, 1, 1, 1, 1, 1, 1, 0,", "expected a plain launch"),
    ("value = 7 : index", "value = 7 : i16", "expected a constant of type index"),
    ("(memref<4xi8>, i8)", "(memref<4xi32>, i8)", "expected bytes that are filled"),
    ("memref<i64>)", "tensor<i64>)", "expected a memref of numbers"),
    ("memref<?x3xf32>\n", "memref<?x3xf32, 5>\n", "expected a memref of numbers")])
def test_host_code_that_is_not_known(old, new, error):
    assert old in HOST
    with pytest.raises(host_program.HostProgramError, match=error):
        host_program.parse(HOST.replace(old, new, 1))
