/* A program of MLIR's C API that reads an attention op, asks for its
   attributes, makes attributes, and runs a pass of this project. */
#include "diffattn-c/Dialect.h"

#include "mlir-c/BuiltinAttributes.h"
#include "mlir-c/Dialect/Func.h"
#include "mlir-c/Dialect/Tensor.h"
#include "mlir-c/Pass.h"

#include <stdio.h>

static MlirStringRef text(const char *x) {
  return mlirStringRefCreateFromCString(x);
}

static void print(MlirStringRef part, void *data) {
  (void)data;
  fwrite(part.data, 1, part.length, stdout);
}

static const char *source =
    "func.func @f(%q: tensor<1x4x2x8xf32>, %l: tensor<f32>) -> "
    "tensor<1x2x4x8xf32> {\n"
    "  %i = tensor.empty() : tensor<1x2x4x8xf32>\n"
    "  %o = diffattn.attention ins(%q, %q, %q, %q, %q : tensor<1x4x2x8xf32>, "
    "tensor<1x4x2x8xf32>, tensor<1x4x2x8xf32>, tensor<1x4x2x8xf32>, "
    "tensor<1x4x2x8xf32>) lambda(%l : tensor<f32>) "
    "outs(%i : tensor<1x2x4x8xf32>) {scale = 1.0 : f32, o_layout = "
    "#diffattn.layout<bthd>} -> tensor<1x2x4x8xf32>\n"
    "  return %o : tensor<1x2x4x8xf32>\n}\n";

int main(void) {
  MlirDialectRegistry registry = mlirDialectRegistryCreate();
  diffattn_register_dialects(registry);
  mlirDialectHandleInsertDialect(mlirGetDialectHandle__func__(), registry);
  mlirDialectHandleInsertDialect(mlirGetDialectHandle__tensor__(), registry);
  diffattn_register_passes();
  diffattn_register_passes();
  MlirContext context = mlirContextCreateWithRegistry(registry, false);
  mlirDialectRegistryDestroy(registry);
  mlirDialectHandleLoadDialect(mlirGetDialectHandle__diffattn__(), context);

  mlirAttributePrint(
      diffattn_activation_attr_get(context, DIFFATTN_ACTIVATION_SIGMOID), print,
      NULL);
  printf("\n");
  MlirAttribute layout =
      diffattn_layout_attr_get(context, DIFFATTN_LAYOUT_BTHD);
  printf("layout %d, norm %d, null %d\n", diffattn_layout_attr_value(layout),
         diffattn_norm_attr_value(layout),
         diffattn_eps_mode_attr_value(mlirAttributeGetNull()));
  printf("unknown is null: %d\n",
         mlirAttributeIsNull(diffattn_eps_mode_attr_get(context, 7)) &&
             mlirAttributeIsNull(diffattn_layout_attr_get(context, -1)));

  MlirModule module = mlirModuleCreateParse(context, text(source));
  if (mlirModuleIsNull(module))
    return 1;
  MlirOperation function =
      mlirBlockGetFirstOperation(mlirModuleGetBody(module));
  MlirBlock block =
      mlirRegionGetFirstBlock(mlirOperationGetRegion(function, 0));
  MlirOperation op = mlirBlockGetFirstOperation(block);
  while (!mlirOperationIsNull(op)) {
    MlirStringRef name = mlirIdentifierStr(mlirOperationGetName(op));
    if (mlirStringRefEqual(name, text("diffattn.attention")))
      printf("o_layout is %d\n",
             diffattn_layout_attr_value(mlirOperationGetInherentAttributeByName(
                 op, text("o_layout"))));
    op = mlirOperationGetNextInBlock(op);
  }

  MlirPassManager passes = mlirPassManagerCreate(context);
  if (mlirLogicalResultIsFailure(mlirOpPassManagerAddPipeline(
          mlirPassManagerGetAsOpPassManager(passes),
          text("diffattn-select-schedule{isa=avx2}"), print, NULL)))
    return 2;
  if (mlirLogicalResultIsFailure(
          mlirPassManagerRunOnOp(passes, mlirModuleGetOperation(module))))
    return 3;
  mlirOperationPrint(mlirModuleGetOperation(module), print, NULL);
  mlirPassManagerDestroy(passes);
  mlirModuleDestroy(module);
  mlirContextDestroy(context);
  return 0;
}
