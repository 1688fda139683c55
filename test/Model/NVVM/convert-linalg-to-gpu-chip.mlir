// RUN: not diffattn-opt %s --pass-pipeline="builtin.module(convert-linalg-to-gpu{chip=sm_70})" 2>&1 | FileCheck %s
// CHECK: sm_70
module {}
