//===- Table.cpp - The runtime as a table of functions --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DiffAttn/Runtime/ABI/Table.h"

static diffattn_rt_table makeTable() {
  diffattn_rt_table table = {};
  table.version = DIFFATTN_RT_TABLE_VERSION;
  table.bytes = sizeof table;
#define SLOT(name) table.name = &diffattn_rt_##name;
  DIFFATTN_RT_TABLE(SLOT)
  DIFFATTN_RT_LATER_TABLE(SLOT)
#undef SLOT
#define SLOT(name) table.device_##name = &diffattn_rt_device_##name;
  DIFFATTN_RT_DEVICE_TABLE(SLOT)
#undef SLOT
  diffattn_named_function conversions[DIFFATTN_RT_CONVERSIONS];
  diffattn_rt_float_conversions(conversions);
  for (int i = 0; i < DIFFATTN_RT_CONVERSIONS; ++i)
    table.conversions[i] = conversions[i].address;
  return table;
}

const diffattn_rt_table *diffattn_rt_get_table(void) {
  static const diffattn_rt_table table = makeTable();
  return &table;
}
