"""The op `Attention` of the domain `diffattn`, which a model may hold beside ONNX's own ops: as a call of the builtin `attention`.

Its inputs are the operands of `diffattn.attention` in the order of docs/spec.md, the first six required, its attributes are the builtin's
options (docs/onnx.md).
"""

from __future__ import annotations

import functools

import onnx
from onnx import helper

from ..attention_operands import OPTIONAL, REQUIRED
from ..importing.contract import call_builtin, declare_builtin

DOMAIN = "diffattn"
_NAMES = [operand.name for operand in (*REQUIRED, *OPTIONAL)]
_KIND = onnx.defs.OpSchema.AttrType
_OPTIONS = {"scale": _KIND.FLOAT, "is_causal": _KIND.INT, "integral": _KIND.INT, "window": _KIND.INTS, "softcap": _KIND.FLOAT,
            "lambda_act": _KIND.STRING, "norm": _KIND.STRING, "norm_eps": _KIND.FLOAT, "norm_eps_mode": _KIND.STRING, "out_scale": _KIND.FLOAT}
#: How the importer's attributes begin.
_PREFIX = "torch.onnx."
_OPSET = "torch.onnx_meta.opset_version"
#: An attribute that tells our nodes from ONNX's own of that name.
_MARK = "diffattn_builtin"


@functools.lru_cache(maxsize=None)
def register() -> None:
    """Lets onnx check nodes of the op and infer the types and sizes of what they make."""
    schema, option = onnx.defs.OpSchema, onnx.defs.OpSchema.FormalParameterOption
    tensors = [f"tensor({name})" for name in ("float", "float16", "bfloat16", "int64", "int32", "bool")]
    inputs = [schema.FormalParameter(name, name, param_option=option.Single if number < len(REQUIRED) else option.Optional)
              for number, name in enumerate(_NAMES)]
    made = schema("Attention", DOMAIN, 1, inputs=inputs, outputs=[schema.FormalParameter("y", "y")],
                  type_constraints=[(name, tensors, "") for name in (*_NAMES, "y")],
                  attributes=[schema.Attribute(name, kind, "", required=name == "scale") for name, kind in _OPTIONS.items()])
    made.set_type_and_shape_inference_function(_infer)
    onnx.defs.register_schema(made)


def _infer(context) -> None:
    """Sets the result's type: as many batches, heads and queries as q1 has, as wide as v."""
    q1, v = (context.get_input_type(number) for number in (0, 4))
    made = onnx.TypeProto()
    made.tensor_type.elem_type = q1.tensor_type.elem_type
    dims = [one.tensor_type.shape.dim if one.tensor_type.HasField("shape") else [] for one in (q1, v)]
    if len(dims[0]) == len(dims[1]) == 4:
        made.tensor_type.shape.dim.extend([*dims[0][:3], dims[1][3]])
    context.set_output_type(0, made)


def mark(node: onnx.NodeProto) -> None:
    """Marks a node, of which torch-mlir's importer keeps no domain."""
    if node.domain == DOMAIN:
        node.attribute.append(helper.make_attribute(_MARK, node.op_type.lower()))


def make_calls(ir, module) -> None:
    """Replaces marked nodes in a module that torch-mlir's importer made, in place."""
    main, marked = module.body.operations[0], []

    def find(op):
        if f"{_PREFIX}{_MARK}" in op.attributes:
            marked.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(find)
    for op in marked:
        given = [(name, value) for name, value in zip(_NAMES, op.operands) if str(value.type) != "!torch.none"]
        with op.location, ir.InsertionPoint(op):
            options = {name: op.attributes[_PREFIX + name] for name in _OPTIONS if _PREFIX + name in op.attributes}
            options["operands"] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name, _ in given])
            operands, results = [value for _, value in given], [result.type for result in op.results]
            declared = declare_builtin(ir, module, ir.StringAttr(op.attributes[_PREFIX + _MARK]).value, ir.DictAttr.get(options),
                                       [one.type for one in operands], results)
            op.results[0].replace_all_uses_with(call_builtin(ir, declared, operands, results).result)
        # torch-mlir asks each function for the model's opset.
        declared.attributes[_OPSET] = main.attributes[_OPSET]
        op.erase()
