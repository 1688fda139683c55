//===- Main.cpp - a program that is one function --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "EntryPoints.h"

int main(int argc, char **argv) { return DIFFATTN_MAIN(argc, argv); }
