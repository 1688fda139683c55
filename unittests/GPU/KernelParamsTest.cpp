//===- KernelParamsTest.cpp - the table of a kernel's parameters ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/GpuKernel.h"
#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Schedule/GpuSchedule.h"
#include "DiffAttn/Schedule/Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/ADT/STLExtras.h"

#include <gtest/gtest.h>

#include <map>

using namespace mlir;
using namespace mlir::diffattn;

namespace {
struct KernelParamsTest : testing::Test {
  KernelParamsTest() {
    context
        .loadDialect<DiffAttnDialect, arith::ArithDialect, func::FuncDialect,
                     gpu::GPUDialect, LLVM::LLVMDialect, memref::MemRefDialect,
                     NVVM::NVVMDialect, scf::SCFDialect>();
  }

  ScheduleAttrInterface forward(GpuPlacement placement) {
    int64_t warps = placement == GpuPlacement::Both ? 2 : 4;
    return GpuForwardAttr::get(&context, placement, warps, /*row_tiles=*/1,
                               /*kv_block_size=*/32, /*stages=*/2,
                               /*q_in_registers=*/false);
  }

  ScheduleAttrInterface wgmma(GpuPlacement placement,
                              int64_t persistentBlocks = 0) {
    return GpuWgmmaAttr::get(&context, placement, /*kv_block_size=*/64,
                             /*stages=*/2, /*cluster=*/1, /*overlap=*/false,
                             persistentBlocks);
  }
  static constexpr unsigned kOneMap = 512;
  /// Sinks, and logarithms of sums, of every map; X and O2 too, in kernels that
  /// store them.
  static constexpr unsigned kSums = 1024;
  /// Copies by element, a softcap, a bias, segments.
  static constexpr unsigned kNotOfWarpgroups = 1 | 4 | 8 | 64;

  GpuKernelSpec spec(GpuKernelKind kind, ScheduleAttrInterface schedule,
                     unsigned features) {
    GpuKernelSpec spec;
    spec.kind = kind;
    auto bf16 = BFloat16Type::get(&context);
    bool plain = isa_and_nonnull<GpuPlainAttr>(schedule);
    spec.elementType = plain ? Type(Float32Type::get(&context)) : Type(bf16);
    spec.resultType = spec.elementType;
    spec.headDim = spec.valueDim = 64;
    spec.schedule = schedule;
    auto backward = dyn_cast_or_null<GpuBackwardAttr>(schedule);
    spec.byWarpgroups = backward && backward.getWgmmaQBlockSize();
    spec.elementwise = features & 1;
    spec.sharedKeys = features & 2;
    spec.maps = features & kOneMap ? 1 : 2;
    spec.softcap = features & 4;
    SmallVector<MaskAttrInterface> masks;
    if (features & 8) {
      spec.maskTypes[static_cast<size_t>(MaskOperand::Bias)] =
          Float32Type::get(&context);
      masks.push_back(AdditiveBiasAttr::get(&context));
    }
    if (features & 64) {
      for (MaskOperand operand :
           {MaskOperand::QSegments, MaskOperand::KvSegments})
        spec.maskTypes[static_cast<size_t>(operand)] =
            IntegerType::get(&context, 64);
      masks.push_back(SegmentMaskAttr::get(&context));
    }
    spec.masks = getGpuKernelMasks(&context, masks);
    if (features & 128)
      spec.queryBoundType = IntegerType::get(&context, 32);
    if (features & 256)
      spec.pageType = IntegerType::get(&context, 64);
    else
      spec.keyBoundType = spec.queryBoundType;
    if (features & 16)
      spec.normWeightType = bf16;
    if (features & 32)
      spec.gateType = bf16;
    for (int64_t map = 0; map < spec.maps && features & kSums; ++map) {
      spec.sinkTypes[map] = map ? Type(bf16) : Type(Float32Type::get(&context));
      spec.storesLogSums[map] = true;
    }
    if (features & kSums && kind == GpuKernelKind::Forward &&
        !isa<GpuWgmmaAttr>(schedule)) {
      spec.savedType = bf16;
      if (spec.maps == 2)
        spec.secondType = bf16;
    }
    auto store = [&](GpuGradient gradient) {
      spec.gradientTypes[static_cast<size_t>(gradient)] =
          Float32Type::get(&context);
    };
    if (kind == GpuKernelKind::GradientQueries) {
      store(GpuGradient::Q1);
      if (spec.maps == 2)
        store(GpuGradient::Q2);
    } else if (kind == GpuKernelKind::GradientKeys) {
      store(GpuGradient::K1);
      store(GpuGradient::V);
      if (spec.hasSecondKeys())
        store(GpuGradient::K2);
    }
    if (kind == GpuKernelKind::GradientRows)
      addGradients(spec, features);
    spec.sumsLambdaOfQueries =
        kind == GpuKernelKind::LambdaSums && features & kSums;
    return spec;
  }

  /// Adds operands that rows of gradients read, and gradients that are wanted.
  void addGradients(GpuKernelSpec &spec, unsigned features) {
    spec.sinkTypes = {};
    spec.savedType = spec.elementType;
    spec.gradientType = Float32Type::get(&context);
    spec.gateGradientType = spec.gateType;
    spec.weightGradientType = spec.normWeightType;
    for (int64_t map = 0; map < spec.maps; ++map)
      spec.storesLogSums[map] = true;
    if (spec.maps == 2) {
      spec.secondType = spec.elementType;
      spec.sumsLambda = !(features & kSums);
    }
  }

  /// Whether only a second map has `param`: its operands, its states, and the
  /// numbers of heads that share them.
  static bool isOfSecondMap(GpuParam param) {
    using P = GpuParam;
    auto isIn = [&](P first, P last) {
      return param >= first && param <= last;
    };
    return isIn(P::Q2, getGpuStride(P::K2, 3)) || isIn(P::Lambda, P::LambdaH) ||
           isIn(P::Max2, P::Acc2) || isIn(P::Sink2, P::Sink2H) ||
           isIn(P::Lse2, P::Lse2T) || isIn(P::O2, getGpuStride(P::O2, 3)) ||
           isIn(P::DQ2, getGpuStride(P::DK2, 3)) ||
           llvm::is_contained({P::D2, P::Q2Map, P::K2Map, P::SignalPerNoise,
                               P::NoisePerKey2, P::SignalPerLambda,
                               P::SignalPerAcc2, P::NoiseHeads},
                              param);
  }

  MLIRContext context;
};

TEST_F(KernelParamsTest, EveryKernelReadsEveryParameterThatItHas) {
  Location loc = UnknownLoc::get(&context);
  std::map<std::string, SmallVector<GpuParam>> seen;
  std::vector<bool> given(static_cast<size_t>(GpuParam::Count));
  ScheduleAttrInterface split =
      GpuSplitKVAttr::get(&context, /*warps=*/2, /*stages=*/2,
                          /*q_in_registers=*/false, /*bulk_copies=*/false,
                          /*kv_split_size=*/512);
  ScheduleAttrInterface bulk =
      GpuSplitKVAttr::get(&context, /*warps=*/2, /*stages=*/2,
                          /*q_in_registers=*/false, /*bulk_copies=*/true,
                          /*kv_split_size=*/512);
  ScheduleAttrInterface plain = GpuPlainAttr::get(&context, /*warps=*/4);
  ScheduleAttrInterface backward =
      GpuBackwardAttr::get(&context, /*key_warps=*/4, /*q_block_size=*/16,
                           /*query_warps=*/4, /*kv_block_size=*/16,
                           /*stages=*/2, 0, 0, 0, 0);
  ScheduleAttrInterface backwardByGroups = GpuBackwardAttr::get(
      &context, /*key_warps=*/4, /*q_block_size=*/16, /*query_warps=*/4,
      /*kv_block_size=*/16, /*stages=*/2, /*wgmma_q_block_size=*/64,
      /*wgmma_q_stages=*/2, /*wgmma_kv_block_size=*/64, /*wgmma_kv_stages=*/2);
  for (auto [kind, schedule] :
       {std::pair{GpuKernelKind::Forward, forward(GpuPlacement::Both)},
        {GpuKernelKind::Forward, forward(GpuPlacement::Pair)},
        {GpuKernelKind::Forward, forward(GpuPlacement::Apart)},
        {GpuKernelKind::Forward, plain},
        {GpuKernelKind::Forward, wgmma(GpuPlacement::Both)},
        {GpuKernelKind::Forward, wgmma(GpuPlacement::Apart)},
        {GpuKernelKind::Forward, wgmma(GpuPlacement::Both, 132)},
        {GpuKernelKind::Forward, wgmma(GpuPlacement::Apart, 132)},
        {GpuKernelKind::Decode, split},
        {GpuKernelKind::Decode, bulk},
        {GpuKernelKind::Merge, split},
        {GpuKernelKind::GradientRows, {}},
        {GpuKernelKind::WeightSums, {}},
        {GpuKernelKind::LambdaSums, {}},
        {GpuKernelKind::GradientKeys, backward},
        {GpuKernelKind::GradientQueries, backward},
        {GpuKernelKind::GradientKeys, backwardByGroups},
        {GpuKernelKind::GradientQueries, backwardByGroups}})
    for (unsigned features = 0; features < 2 * kSums; ++features) {
      // Sums end in one way, whatever is before and behind them.
      if (features & kSums && features & ~(kSums | kOneMap | 4 | 128))
        continue;
      // Rows of gradients have no scores, and sums of them little else.
      const bool isGradient = !schedule;
      if (isGradient && features & (2 | 4 | 8 | 64 | 128 | 256))
        continue;
      if (kind == GpuKernelKind::LambdaSums && features & kOneMap)
        continue;
      // Sequences and pages, with copies by element and with one K.
      if (features & (128 | 256) && features & (4 | 8 | 16 | 32 | 64))
        continue;
      if ((isa_and_nonnull<GpuWgmmaAttr>(schedule) ||
           schedule == backwardByGroups) &&
          features & kNotOfWarpgroups)
        continue;
      // Norm, gate and sums are not theirs, and sequences come one by one.
      if (isa_and_nonnull<GpuBackwardAttr>(schedule) &&
          features & (16 | 32 | 128 | 256 | kSums))
        continue;
      // With K1 twice, or with a map for each warp or warpgroup.
      auto tiled = dyn_cast_or_null<GpuForwardAttr>(schedule);
      auto byGroups = dyn_cast_or_null<GpuWgmmaAttr>(schedule);
      const bool isBoth = tiled ? tiled.getPlacement() == GpuPlacement::Both
                          : byGroups
                              ? byGroups.getPlacement() == GpuPlacement::Both
                              : true;
      if (features & kOneMap && (features & 2 || !isBoth))
        continue;
      // By element, or with segments.
      if (schedule == bulk && features & (1 | 64))
        continue;
      OpBuilder builder(&context);
      OwningOpRef<gpu::GPUModuleOp> module =
          gpu::GPUModuleOp::create(builder, loc, "kernels");
      GpuKernelSpec spec = this->spec(kind, schedule, features);
      LLVM::LLVMFuncOp kernel = getOrEmitGpuKernel(*module, spec);
      SmallVector<GpuParam> params = getGpuParams(spec);
      ASSERT_EQ(params.size(), kernel.getNumArguments()) << spec.getName();
      for (auto [param, argument] :
           llvm::zip_equal(params, kernel.getArguments())) {
        EXPECT_EQ(argument.getType(), getGpuParamType(&context, param));
        EXPECT_FALSE(argument.use_empty())
            << spec.getName() << " does not read "
            << getGpuParam(param).name.str();
        EXPECT_FALSE(spec.maps == 1 && isOfSecondMap(param))
            << spec.getName() << " reads " << getGpuParam(param).name.str();
        given[static_cast<size_t>(param)] = true;
      }
      auto [same, isNew] = seen.insert({spec.getName(), params});
      EXPECT_EQ(same->second, params) << spec.getName();
    }
  for (auto [i, isGiven] : llvm::enumerate(given))
    EXPECT_TRUE(isGiven) << getGpuParam(static_cast<GpuParam>(i)).name.str();
}

// Host and kernel count the same offsets because no parameter needs padding.
TEST_F(KernelParamsTest, WideParametersComeFirst) {
  for (GpuKernelKind kind :
       {GpuKernelKind::Forward, GpuKernelKind::Decode, GpuKernelKind::Merge}) {
    uint64_t offset = 0;
    for (GpuParam param :
         getGpuParams(spec(kind, forward(GpuPlacement::Both), 127))) {
      GpuParamType type = getGpuParam(param).type;
      bool isWide = type == GpuParamType::Pointer || type == GpuParamType::I64;
      uint64_t bytes = isWide ? 8 : 4;
      EXPECT_EQ(offset % bytes, 0u) << getGpuParam(param).name.str();
      offset += bytes;
    }
  }
}

TEST_F(KernelParamsTest, TensorMapsComeFirst) {
  uint64_t offset = 0;
  bool isFirst = true;
  for (GpuParam param : getGpuParams(
           spec(GpuKernelKind::Forward, wgmma(GpuPlacement::Both), 16 | 32))) {
    const bool isMap = getGpuParam(param).type == GpuParamType::TensorMap;
    EXPECT_TRUE(isFirst || !isMap);
    isFirst = isMap;
    if (isMap)
      EXPECT_EQ(offset % kTensorMapAlignment, 0u);
    offset += isMap ? kTensorMapBytes : 0;
  }
  EXPECT_EQ(offset, uint64_t(6 * kTensorMapBytes));
}

TEST_F(KernelParamsTest, StridesFollowTheirTensor) {
  for (GpuParam tensor :
       {GpuParam::Q1, GpuParam::K1, GpuParam::Q2, GpuParam::K2, GpuParam::V,
        GpuParam::O, GpuParam::Gate, GpuParam::X, GpuParam::O2, GpuParam::DOut,
        GpuParam::DGate, GpuParam::DQ1, GpuParam::DK1, GpuParam::DQ2,
        GpuParam::DK2, GpuParam::DV}) {
    EXPECT_EQ(getGpuParam(tensor).type, GpuParamType::Pointer);
    for (unsigned axis = 0; axis < 4; ++axis) {
      const GpuParamRow &row = getGpuParam(getGpuStride(tensor, axis));
      EXPECT_EQ(row.name.str(),
                getGpuParam(tensor).name.str() + "_" + "bhtw"[axis]);
      EXPECT_EQ(row.type, GpuParamType::I64);
    }
  }
}

TEST_F(KernelParamsTest, StridesOfMasksFollowTheirOperand) {
  for (MaskOperand operand : kMaskOperands) {
    std::optional<GpuMaskParams> params = getGpuMaskParams(operand);
    if (!params)
      continue;
    unsigned axis = 0;
    for (std::optional<GpuParam> stride :
         {params->batch, params->head, params->query, params->key})
      if (stride) {
        EXPECT_EQ(*stride, getGpuStride(params->pointer, axis++));
        EXPECT_EQ(getGpuParam(*stride).type, GpuParamType::I64);
      }
  }
}

TEST_F(KernelParamsTest, LaunchesGiveWhatKernelsTake) {
  const char *operands = R"(
    !q = memref<?x4x?x64xbf16, strided<[?, ?, ?, ?], offset: ?>>
    !b = memref<?x4x?x?xf32, strided<[?, ?, ?, ?], offset: ?>>
    func.func @f(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !q, %o: !q, %g: !q,
                 %l: memref<?x?x?xf32>, %b: !b, %w: memref<64xf32>,
                 %n: memref<?xi64>, %p: memref<?xi64>,
                 %s: memref<?x?xi32>) {
      diffattn.attention ins(%q1, %k1, %q2, K2, %v : !q, !q, !q, !q, !q)
        lambda(%l : memref<?x?x?xf32>) OPTIONAL outs(%o : !q)
        {scale = 0.125 : f32, norm = #diffattn.norm<rms>}
      return
    })";
  const std::string all =
      "bias(%b : !b) norm_weight(%w : memref<64xf32>) gate(%g : !q) "
      "kv_len(%n : memref<?xi64>) q_offset(%p : memref<?xi64>) "
      "q_segments(%s : memref<?x?xi32>) kv_segments(%s : memref<?x?xi32>)";
  for (const std::string &optional : {std::string(), all})
    for (const char *key : {"%k1", "%k2"}) {
      std::string text = operands;
      text.replace(text.find("OPTIONAL"), 8, optional);
      text.replace(text.find("K2"), 2, key);
      auto module = parseSourceString<ModuleOp>(text, &context);
      ASSERT_TRUE(module);
      PassManager passes(&context);
      passes.addPass(createSelectGpuSchedulePass());
      passes.addPass(createConvertDiffAttnToGpuPass());
      ASSERT_TRUE(succeeded(passes.run(*module)));
      int64_t launches = 0;
      module->walk([&](gpu::LaunchFuncOp launch) {
        auto kernel = SymbolTable::lookupNearestSymbolFrom<LLVM::LLVMFuncOp>(
            launch, launch.getKernel());
        ASSERT_TRUE(kernel);
        EXPECT_EQ(SmallVector<Type>(launch.getKernelOperands().getTypes()),
                  SmallVector<Type>(kernel.getArgumentTypes()));
        ++launches;
      });
      // Chunks and elements, decode and forward of each, and a merge; decode
      // and merge once for each number of keys of a block.
      EXPECT_EQ(launches,
                2 + 3 * static_cast<int64_t>(getGpuSplitTable().size()));
    }
}
} // namespace
