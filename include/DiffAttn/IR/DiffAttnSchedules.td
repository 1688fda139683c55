//===- DiffAttnSchedules.td - schedules of attention -------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One attribute for each family of kernels. The passes that select schedules make them,
// the conversions obey them, and anyone may write them by hand: the verifiers are in
// lib/IR/CpuSchedules.cpp and GpuSchedules.cpp, their labels in docs/spec.md.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTNSCHEDULES_TD
#define DIFFATTN_IR_DIFFATTNSCHEDULES_TD

include "DiffAttn/IR/DiffAttnAttrs.td"
include "DiffAttn/IR/ScheduleInterface.td"

def DiffAttn_ScheduleTarget : DiffAttn_Enum<"ScheduleTarget", "kind of target of a schedule", [
  I32EnumAttrCase<"Any", 0, "any">, I32EnumAttrCase<"CPU", 1, "cpu">,
  I32EnumAttrCase<"GPU", 2, "gpu">]>;

def DiffAttn_CpuProduct : DiffAttn_Enum<"CpuProduct", "operands of the products of a CPU kernel", [
  I32EnumAttrCase<"F32", 0, "f32">, I32EnumAttrCase<"Bf16Pairs", 1, "bf16_pairs">,
  I32EnumAttrCase<"Bf16Tiles", 2, "bf16_tiles">]>;

def DiffAttn_GpuPlacement : DiffAttn_Enum<"GpuPlacement", "placement of the maps in warps", [
  I32EnumAttrCase<"Both", 0, "both">, I32EnumAttrCase<"Pair", 1, "pair">,
  I32EnumAttrCase<"Apart", 2, "apart">]>;

def DiffAttn_CpuProductParameter : EnumParameter<DiffAttn_CpuProduct> {
  let defaultValue = "::mlir::diffattn::CpuProduct::F32";
}

class DiffAttn_Schedule<string name, string attrMnemonic, list<string> methods = ["getTarget"]>
    : AttrDef<DiffAttn_Dialect, name, [
        DeclareAttrInterfaceMethods<DiffAttn_ScheduleAttrInterface, methods>]> {
  let mnemonic = attrMnemonic;
}

def DiffAttn_LinalgAttr : DiffAttn_Schedule<"Linalg", "linalg"> {
  let summary = "attention by linalg ops, without a kernel of its own";
  let description = [{
    Leaves the op to `diffattn-decompose`.

    Example: `#diffattn.linalg`
  }];
}

def DiffAttn_CpuPrefillAttr : DiffAttn_Schedule<"CpuPrefill", "cpu_prefill"> {
  let summary = "a CPU kernel for blocks of queries";
  let description = [{
    A work item takes a block of queries of one head, as lanes of vectors, against all keys.

    - `isa`: the instruction set that the code is made for, and `lanes`, its f32 elements a vector;
    - `q_block_size`: queries of a block, a multiple of `lanes`;
    - `qk_tile = [keys, vectors of queries, unroll]` and `pv_tile = [queries, vectors of value
      columns, unroll]`: the register tiles of the two products; narrower tiles, for what is left
      over, have more keys or queries, and are unrolled half as often;
    - `kv_block_size`: keys between two updates of the running maximum;
    - `two_pass_keys`: up to this many keys the scores of both maps are kept, and multiplied with V
      once; with more, and where there is one map, KV blocks are merged as online states;
    - `product`: `f32`, to which all types are widened, or bf16 as it lies in memory: `bf16_pairs`, or
      `bf16_tiles` of 16 rows by a matrix unit (AMX). Ops that do not suit it (operands of other types or
      with columns apart, a scale that is not positive, an `isa` without the unit) are widened. With
      tiles the keys of `qk_tile` and the queries of `pv_tile` fill whole tiles, the vectors of
      `qk_tile` are tiles of sums, and one column of tiles of values is multiplied at a time.

    Example:

    ```mlir
    #diffattn.cpu_prefill<isa = "avx512", lanes = 16, q_block_size = 48, qk_tile = [8, 3, 4],
        pv_tile = [6, 4, 2], kv_block_size = 256, two_pass_keys = 16384>
    ```
  }];
  let parameters = (ins
    StringRefParameter<>:$isa,
    "int64_t":$lanes,
    "int64_t":$q_block_size,
    "::mlir::DenseI64ArrayAttr":$qk_tile,
    "::mlir::DenseI64ArrayAttr":$pv_tile,
    "int64_t":$kv_block_size,
    "int64_t":$two_pass_keys,
    DiffAttn_CpuProductParameter:$product);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The tiles by name.
    ::mlir::diffattn::RegisterTile getQk() const;
    ::mlir::diffattn::RegisterTile getPv() const;
  }];
}

def DiffAttn_CpuBackwardAttr : DiffAttn_Schedule<"CpuBackward", "cpu_backward",
    ["getTarget", "computesGradients"]> {
  let summary = "a CPU kernel for the gradients of attention";
  let description = [{
    A work item takes the queries of a slice, block by block, of the heads that share heads of
    keys, values and noise. Maps and their gradients stay in scratch, as lanes of queries.

    - `isa`, `lanes`, `q_block_size`, `qk_tile`, `pv_tile`, `kv_block_size`: as in
      `#diffattn.cpu_prefill`, with `pv_tile` for all products but those of scores; where a product
      contracts queries, its tile's queries are keys;
    - `two_pass_keys`: up to this many keys the maps of a block of queries are kept; with more, they
      are made again, by KV blocks, when all maxima and sums are known;
    - `q_slice_size`: the least number of queries of a slice, a multiple of `q_block_size`. There are
      at most eight slices, whose gradients of keys and values are added in their order. Slices
      are work items of their own where there are few others, with the same results;
    - `product`: `f32`, to which all types are widened, `bf16_pairs` or `bf16_tiles`: operands of bf16
      are multiplied as they lie in memory, and the gradients of rows, the difference of both maps and
      the gradients of scores are rounded to bf16 before they are. Ops that do not suit it, as in
      `#diffattn.cpu_prefill`, or have a `d_out` of f32, are widened. With tiles those of `pv_tile` are
      tiles of 16 queries or keys, and the queries of a block fill tiles that are contracted.

    Example:

    ```mlir
    #diffattn.cpu_backward<isa = "avx512", lanes = 16, q_block_size = 48, qk_tile = [8, 3, 4],
        pv_tile = [6, 4, 2], kv_block_size = 192, two_pass_keys = 16384, q_slice_size = 1056>
    ```
  }];
  let parameters = (ins
    StringRefParameter<>:$isa,
    "int64_t":$lanes,
    "int64_t":$q_block_size,
    "::mlir::DenseI64ArrayAttr":$qk_tile,
    "::mlir::DenseI64ArrayAttr":$pv_tile,
    "int64_t":$kv_block_size,
    "int64_t":$two_pass_keys,
    "int64_t":$q_slice_size,
    DiffAttn_CpuProductParameter:$product);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The schedule of the phases that the kernel shares with the forward one.
    ::mlir::diffattn::CpuPrefillAttr getPhases() const;
  }];
}

def DiffAttn_CpuSplitKVAttr : DiffAttn_Schedule<"CpuSplitKV", "cpu_split_kv"> {
  let summary = "a CPU kernel for few queries, keys split over threads";
  let description = [{
    A work item takes a block of keys of all heads that share them, so that K and V are read once.

    - `isa`, `lanes` and `product`: as in `#diffattn.cpu_prefill`, but with `bf16_tiles` columns may
      lie apart. Scores are then made by tiles of 16 keys and up to 16 rows of queries that share a
      head of keys, and values are widened. Keys that tiles cannot read where they lie (columns
      apart, their number odd or not known) are copied, 16 at a time;
    - `kv_split_size`: keys of a work item;
    - `qk_rows`: rows of queries that meet a key as it is read, a power of two up to `lanes`, and
      `q_vectors`: the most vectors of them that stay in registers. With tiles, only the rows whose
      scores become exponentials together;
    - `pv_rows`: rows that meet a value as it is read, a power of two, and `pv_keys`: keys whose
      values are used by all rows before the next are read;
    - `o_vectors`: vectors of sums of outputs of all rows, and `o_row_vectors`: the most of one row.
      Wider rows are made in several passes over the keys. Both are powers of two;
    - `prefetch_bytes`: distance in bytes at which lines ahead of the row that is read are prefetched,
      0: not at all;
    - `prefetch_rows`: distance in rows, for rows of keys or values that lie apart, as those of one head
      do where a token's heads are side by side. CPUs prefetch lines in the order of their addresses by
      themselves, but not these.

    Example:

    ```mlir
    #diffattn.cpu_split_kv<isa = "avx512", lanes = 16, kv_split_size = 512, qk_rows = 4,
        q_vectors = 16, pv_rows = 2, pv_keys = 8, o_vectors = 16, o_row_vectors = 8>
    ```
  }];
  let parameters = (ins
    StringRefParameter<>:$isa,
    "int64_t":$lanes,
    "int64_t":$kv_split_size,
    "int64_t":$qk_rows,
    "int64_t":$q_vectors,
    "int64_t":$pv_rows,
    "int64_t":$pv_keys,
    "int64_t":$o_vectors,
    "int64_t":$o_row_vectors,
    DiffAttn_CpuProductParameter:$product,
    DefaultValuedParameter<"int64_t", "0">:$prefetch_bytes,
    DefaultValuedParameter<"int64_t", "64">:$prefetch_rows);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

def DiffAttn_GpuForwardAttr : DiffAttn_Schedule<"GpuForward", "gpu_forward"> {
  let summary = "a GPU kernel for blocks of queries of 16-bit types";
  let description = [{
    - `placement`: `both` maps in one warp, as is the only one; a `pair` of warps that shares rows,
      each with the softmax of one map and half of the value columns of both; the maps `apart`, half
      of the warps each, combined at the end;
    - `warps` of a block, `row_tiles` of 16 queries a warp, `kv_block_size`: keys of a tile, and
      `stages` of the pipeline that brings them;
    - `q_in_registers`: Q is kept in registers, else read from shared memory for each tile.

    Operands that do not allow copies of 16 bytes are copied by element, under the same schedule
    unless one `when<unaligned = true>` stands before it.

    Example:

    ```mlir
    #diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32, q_in_registers = true>
    ```
  }];
  let parameters = (ins
    EnumParameter<DiffAttn_GpuPlacement>:$placement,
    "int64_t":$warps,
    DefaultValuedParameter<"int64_t", "1">:$row_tiles,
    "int64_t":$kv_block_size,
    DefaultValuedParameter<"int64_t", "2">:$stages,
    DefaultValuedParameter<"bool", "false">:$q_in_registers);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

def DiffAttn_GpuWgmmaAttr : DiffAttn_Schedule<"GpuWgmma", "gpu_wgmma"> {
  let summary = "a GPU kernel for blocks of queries of 16-bit types, by warpgroups (Hopper)";
  let description = [{
    Three warpgroups of 128 threads: one brings tiles of K and V by tensor maps, the other two
    multiply 64 rows each by `wgmma`.

    - `placement`: `both` maps, or the only one, in each warpgroup, 128 queries a block; or the maps
      `apart`, one a warpgroup, for the same 64 queries, combined at the end;
    - `kv_block_size`: keys of a tile; `stages` of the pipeline that brings them;
    - `cluster`: with 2, two blocks of neighbouring queries have the same tiles, and each brings half
      of every one of them for both;
    - `overlap`: exponentials of a warpgroup run beside a product of its own, of another map or of
      the tile before; without it, beside those of the other warpgroup alone. Results are the same.
    - `persistent_blocks`: where it is not 0, the grid has at most so many blocks, one for each
      multiprocessor. Each takes tiles of queries by a counter until there are none left.

    Operands that no tensor map describes need another schedule behind this one, so it stands under
    `when<tensor_maps = true>`.

    Example:

    ```mlir
    #diffattn.when<tensor_maps = true
        : #diffattn.gpu_wgmma<placement = both, kv_block_size = 64, stages = 6>>
    ```
  }];
  let parameters = (ins
    EnumParameter<DiffAttn_GpuPlacement>:$placement,
    "int64_t":$kv_block_size,
    "int64_t":$stages,
    DefaultValuedParameter<"int64_t", "1">:$cluster,
    DefaultValuedParameter<"bool", "false">:$overlap,
    DefaultValuedParameter<"int64_t", "0">:$persistent_blocks);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// Rows that a warpgroup multiplies at a time, its threads, and those of a
    /// block.
    static constexpr int64_t kRows = 64, kGroupThreads = 128, kThreads = 384;
    /// Rows of the result that a tensor map stores at once: those of a warp.
    static constexpr int64_t kResultRows = 16;
    /// Query rows of a block.
    int64_t getRows() const {
      return getPlacement() == ::mlir::diffattn::GpuPlacement::Both ? 2 * kRows : kRows;
    }
  }];
}

def DiffAttn_GpuSplitKVAttr : DiffAttn_Schedule<"GpuSplitKV", "gpu_split_kv", ["getTarget", "getMaxQueries"]> {
  let summary = "a GPU kernel for at most 8 queries of 16-bit types, keys split over blocks";
  let description = [{
    Both maps of the queries fill one tile of 16 rows; one map has half of it. A warp takes 16 keys
    of each tile.

    - `warps` of a block, `stages` of its pipeline, `q_in_registers`: as in `#diffattn.gpu_forward`;
    - `bulk_copies`: one warp more brings K and V by tensor maps (Hopper), so the schedule stands
      under `when<tensor_maps = true>`;
    - `kv_split_size`: keys of a block. A second kernel merges the blocks' states in fixed order.

    Example:

    ```mlir
    #diffattn.gpu_split_kv<warps = 4, q_in_registers = true, kv_split_size = 512>
    ```
  }];
  let parameters = (ins
    "int64_t":$warps,
    DefaultValuedParameter<"int64_t", "2">:$stages,
    DefaultValuedParameter<"bool", "false">:$q_in_registers,
    DefaultValuedParameter<"bool", "false">:$bulk_copies,
    "int64_t":$kv_split_size);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The most queries: both maps of so many fill a tile of rows.
    static constexpr int64_t kMaxQueries = 8;
    /// Keys of a tile that a warp takes.
    static constexpr int64_t kKeysOfWarp = 16;
  }];
}

def DiffAttn_GpuPlainAttr : DiffAttn_Schedule<"GpuPlain", "gpu_plain"> {
  let summary = "a GPU kernel for f32, by ordinary instructions";
  let description = [{
    A warp computes a query; operands are read where they lie. `warps`: of a block.

    Example: `#diffattn.gpu_plain<warps = 4>`
  }];
  let parameters = (ins "int64_t":$warps);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

def DiffAttn_GpuBackwardAttr : DiffAttn_Schedule<"GpuBackward", "gpu_backward",
    ["getTarget", "computesGradients"]> {
  let summary = "GPU kernels for the gradients of attention of 16-bit types";
  let description = [{
    Two kernels, which make the scores again and share no sum, so that results do not depend on the
    order of blocks. One keeps the gradients of a block of keys and values, and goes through the
    queries of all heads that share them; the other one keeps those of a block of queries, and goes
    through the keys. A warp has 16 rows of its block, of both maps.

    - `key_warps` of a block of keys, `q_block_size`: queries of a tile that comes by;
    - `query_warps` of a block of queries, `kv_block_size`: keys of a tile that comes by;
    - `stages` of the pipelines that bring them;
    - `wgmma_q_block_size`, `wgmma_q_stages`, `wgmma_kv_block_size`, `wgmma_kv_stages`: the same of
      kernels by warpgroups (Hopper), of keys and of queries, whose blocks have 128 rows. Calls whose
      operands tensor maps describe take them; 0: there is none, and they take the other kernel.

    Example: `#diffattn.gpu_backward<key_warps = 4, q_block_size = 32, query_warps = 4, kv_block_size = 32>`
  }];
  let parameters = (ins
    "int64_t":$key_warps,
    "int64_t":$q_block_size,
    "int64_t":$query_warps,
    "int64_t":$kv_block_size,
    DefaultValuedParameter<"int64_t", "2">:$stages,
    DefaultValuedParameter<"int64_t", "0">:$wgmma_q_block_size,
    DefaultValuedParameter<"int64_t", "0">:$wgmma_q_stages,
    DefaultValuedParameter<"int64_t", "0">:$wgmma_kv_block_size,
    DefaultValuedParameter<"int64_t", "0">:$wgmma_kv_stages);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// Rows of a block by warpgroups, 64 for each of the two that multiply.
    static constexpr int64_t kWgmmaRows = 128;
    /// Columns of a tile, queries or with `ofKeys` false keys, of the kernel by
    /// warpgroups, and its stages; 0 where there is none.
    int64_t getWgmmaBlockSize(bool ofKeys) const {
      return ofKeys ? getWgmmaQBlockSize() : getWgmmaKvBlockSize();
    }
    int64_t getWgmmaStages(bool ofKeys) const {
      return ofKeys ? getWgmmaQStages() : getWgmmaKvStages();
    }
  }];
}

def DiffAttn_WhenAttr : AttrDef<DiffAttn_Dialect, "When"> {
  let mnemonic = "when";
  let summary = "a schedule for some calls";
  let description = [{
    Taken by the calls for which all conditions hold: at most `max_queries` queries, at least
    `min_keys` keys, `unaligned` operands (those of GPU kernels that do not allow copies of 16
    bytes), operands that `tensor_maps` describe: copies of 16 bytes, and no axis of more than one
    element with a stride that is 0, negative or 2^40 bytes and more. Conditions that the types do not
    decide are checked at run time.

    Example: `#diffattn.when<max_queries = 8, min_keys = 9 : #diffattn.cpu_split_kv<...>>`
  }];
  let parameters = (ins
    DefaultValuedParameter<"int64_t", "0">:$max_queries,
    DefaultValuedParameter<"int64_t", "0">:$min_keys,
    DefaultValuedParameter<"bool", "false">:$unaligned,
    DefaultValuedParameter<"bool", "false">:$tensor_maps,
    "::mlir::Attribute":$schedule);
  let assemblyFormat = "`<` struct($max_queries, $min_keys, $unaligned, $tensor_maps) `:` $schedule `>`";
  let genVerifyDecl = 1;
}

def DiffAttn_SizeBoundsAttr : AttrDef<DiffAttn_Dialect, "SizeBounds"> {
  let mnemonic = "size_bounds";
  let summary = "bounds of dynamic sizes that the caller promises";
  let description = [{
    Numbers of queries and of keys of every call lie within these bounds; 0: no bound. Schedules
    that no such call takes are left out, and so is their code.

    Example: `#diffattn.size_bounds<max_queries = 8, min_keys = 9>`
  }];
  let parameters = (ins
    DefaultValuedParameter<"int64_t", "0">:$min_queries,
    DefaultValuedParameter<"int64_t", "0">:$max_queries,
    DefaultValuedParameter<"int64_t", "0">:$min_keys,
    DefaultValuedParameter<"int64_t", "0">:$max_keys);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

#endif // DIFFATTN_IR_DIFFATTNSCHEDULES_TD
