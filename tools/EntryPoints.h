//===- EntryPoints.h - main functions of the programs -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each is the main() of a program. In a wheel those of its programs lie in
// libDiffAttnC, so that one copy of MLIR and LLVM serves Python and all of
// them.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TOOLS_ENTRYPOINTS_H
#define DIFFATTN_TOOLS_ENTRYPOINTS_H

#ifdef __cplusplus
extern "C" {
#endif

int diffattn_lsp_server_main(int argc, char **argv);
int diffattn_opt_main(int argc, char **argv);
int diffattn_reduce_main(int argc, char **argv);
int diffattn_run_main(int argc, char **argv);
// LLVM's linker for ELF files; in a wheel alone.
int diffattn_ld_main(int argc, char **argv);

#ifdef __cplusplus
}
#endif

#endif // DIFFATTN_TOOLS_ENTRYPOINTS_H
