//===- Dialect.cpp - the dialect for MLIR's C API -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "diffattn-c/Dialect.h"

#include "DiffAttn/InitAll.h"

#include "mlir/CAPI/IR.h"
#include "mlir/CAPI/Registration.h"

using namespace mlir;
using namespace mlir::diffattn;

MLIR_DEFINE_CAPI_DIALECT_REGISTRATION(DiffAttn, diffattn, DiffAttnDialect)

void diffattn_register_dialects(MlirDialectRegistry registry) {
  registerAllDialects(*unwrap(registry));
}

void diffattn_register_passes(void) {
  // A name that is registered twice is an error of MLIR's.
  static const bool done = [] {
    registerAllPasses();
    return true;
  }();
  (void)done;
}

template <typename AttrTy, typename Enum>
static MlirAttribute getEnumAttr(MlirContext context, Enum value,
                                 std::optional<Enum> known) {
  if (!known)
    return MlirAttribute{nullptr};
  unwrap(context)->getOrLoadDialect<DiffAttnDialect>();
  return wrap(AttrTy::get(unwrap(context), value));
}

template <typename AttrTy>
static int32_t getEnumValue(MlirAttribute attribute) {
  auto ours = dyn_cast_if_present<AttrTy>(unwrap(attribute));
  return ours ? static_cast<int32_t>(ours.getValue()) : -1;
}

MlirAttribute diffattn_layout_attr_get(MlirContext context, int32_t value) {
  return getEnumAttr<LayoutAttr>(context, static_cast<Layout>(value),
                                 symbolizeLayout(value));
}
MlirAttribute diffattn_activation_attr_get(MlirContext context, int32_t value) {
  return getEnumAttr<ActivationAttr>(context, static_cast<Activation>(value),
                                     symbolizeActivation(value));
}
MlirAttribute diffattn_norm_attr_get(MlirContext context, int32_t value) {
  return getEnumAttr<NormAttr>(context, static_cast<Norm>(value),
                               symbolizeNorm(value));
}
MlirAttribute diffattn_eps_mode_attr_get(MlirContext context, int32_t value) {
  return getEnumAttr<EpsModeAttr>(context, static_cast<EpsMode>(value),
                                  symbolizeEpsMode(value));
}

int32_t diffattn_layout_attr_value(MlirAttribute attribute) {
  return getEnumValue<LayoutAttr>(attribute);
}
int32_t diffattn_activation_attr_value(MlirAttribute attribute) {
  return getEnumValue<ActivationAttr>(attribute);
}
int32_t diffattn_norm_attr_value(MlirAttribute attribute) {
  return getEnumValue<NormAttr>(attribute);
}
int32_t diffattn_eps_mode_attr_value(MlirAttribute attribute) {
  return getEnumValue<EpsModeAttr>(attribute);
}
