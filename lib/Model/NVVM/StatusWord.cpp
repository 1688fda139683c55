//===- StatusWord.cpp - assertions about data in device memory -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "StatusWord.h"

#include "DiffAttn/Model/AssertMessage.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"
#include "HostMemRef.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Dominance.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

static constexpr StringLiteral kClears = "diffattn.clears_status";
static constexpr StringLiteral kCode = "diffattn.status_code";
static constexpr StringLiteral kMessages = "diffattn_gpu_messages";

int64_t linalggpu::getStatusCode(cf::AssertOp check) {
  return check->getAttrOfType<IntegerAttr>(kCode).getInt();
}

bool linalggpu::clearsStatus(Operation *op) { return op->hasAttr(kClears); }

/// Condition of `check`, which is in `block` or in a branch of an `scf.if`
/// there; true where the branch is not taken. Clones the ops that compute it.
static Value cloneCondition(OpBuilder &body, Block &block, cf::AssertOp check,
                            IRMapping &mapping) {
  for (Operation &op : block.without_terminator()) {
    if (&op == check)
      return mapping.lookupOrDefault(check.getArg());
    if (!op.isAncestor(check)) {
      if (isa<cf::AssertOp>(op))
        continue;
      body.clone(op, mapping)->walk([](cf::AssertOp other) { other.erase(); });
      continue;
    }
    auto branch = cast<scf::IfOp>(op);
    auto made =
        scf::IfOp::create(body, op.getLoc(), body.getI1Type(),
                          mapping.lookupOrDefault(branch.getCondition()),
                          /*withElseRegion=*/true);
    for (auto [from, into] : llvm::zip_equal(branch->getRegions().take_front(2),
                                             made->getRegions())) {
      OpBuilder inside = OpBuilder::atBlockEnd(&into.front());
      Value holds =
          from.isAncestor(check->getParentRegion())
              ? cloneCondition(inside, from.front(), check, mapping)
              : arith::ConstantIntOp::create(inside, op.getLoc(), 1, 1);
      scf::YieldOp::create(inside, op.getLoc(), holds);
    }
    return made.getResult(0);
  }
  llvm_unreachable("the assertion is in the block");
}

/// Asserts of all turns of `generic` what `check` in its body asserts of one:
/// the conditions are joined by a reduction before the op.
static void liftAssertion(linalg::GenericOp generic, cf::AssertOp check) {
  ImplicitLocOpBuilder b(check.getLoc(), generic);
  auto type = MemRefType::get({}, b.getI1Type());
  Value all =
      memref::AllocOp::create(b, type, ValueRange(), b.getI64IntegerAttr(64));
  memref::StoreOp::create(b, arith::ConstantIntOp::create(b, 1, 1), all);
  SmallVector<AffineMap> maps = generic.getIndexingMapsArray();
  maps.push_back(
      AffineMap::get(generic.getNumLoops(), 0, generic.getContext()));
  SmallVector<utils::IteratorType> loops(generic.getNumLoops(),
                                         utils::IteratorType::reduction);
  linalg::GenericOp::create(
      b, generic->getOperands(), all, maps, loops,
      [&](OpBuilder &body, Location loc, ValueRange arguments) {
        IRMapping mapping;
        mapping.map(generic.getBody()->getArguments(), arguments.drop_back());
        Value holds = cloneCondition(body, *generic.getBody(), check, mapping);
        Value both = arith::AndIOp::create(body, loc, arguments.back(), holds);
        linalg::YieldOp::create(body, loc, both);
      });
  cf::AssertOp::create(b, memref::LoadOp::create(b, all), check.getMsg());
  check.erase();
}

/// The op in whose body `check` stands, if nothing but branches is between.
static linalg::GenericOp findBody(cf::AssertOp check) {
  Operation *parent = check->getParentOp();
  while (isa<scf::IfOp>(parent))
    parent = parent->getParentOp();
  return dyn_cast<linalg::GenericOp>(parent);
}

void linalggpu::liftAssertions(func::FuncOp function) {
  SmallVector<cf::AssertOp> checks;
  function.walk([&](cf::AssertOp check) {
    if (findBody(check))
      checks.push_back(check);
  });
  for (cf::AssertOp check : checks)
    liftAssertion(findBody(check), check);
}

/// Replaces the condition of `check` by true in the code after it.
static void assumeHolds(cf::AssertOp check) {
  OpBuilder b(check->getContext());
  b.setInsertionPointAfter(check);
  Value holds = arith::ConstantIntOp::create(b, check.getLoc(), 1, 1);
  DominanceInfo dominance(check->getParentOp());
  check.getArg().replaceUsesWithIf(holds, [&](OpOperand &use) {
    return use.getOwner() != check && !isa<cf::AssertOp>(use.getOwner()) &&
           dominance.properlyDominates(check, use.getOwner());
  });
}

/// A global string: the messages in the order of their codes, each with a zero
/// at its end.
static LLVM::GlobalOp createMessages(ModuleOp module,
                                     ArrayRef<StringRef> messages) {
  std::string text;
  for (StringRef message : messages)
    text += withoutSides(message) + '\0';
  auto b = OpBuilder::atBlockBegin(module.getBody());
  auto type = LLVM::LLVMArrayType::get(b.getI8Type(), text.size());
  return LLVM::GlobalOp::create(b, module.getLoc(), type, /*isConstant=*/true,
                                LLVM::Linkage::Private, kMessages,
                                b.getStringAttr(text));
}

/// diffattn_rt_device_check(status, messages) before each return.
static LogicalResult readAtEnd(func::FuncOp function, Value status,
                               LLVM::GlobalOp messages) {
  auto module = function->getParentOfType<ModuleOp>();
  OpBuilder builder(function->getContext());
  auto pointer = LLVM::LLVMPointerType::get(function->getContext());
  auto checker = getOrDeclareRuntimeFunction(builder, module,
                                             RuntimeFunction::device_check);
  if (failed(checker))
    return failure();
  function.walk([&](func::ReturnOp end) {
    ImplicitLocOpBuilder host(end.getLoc(), end);
    Value address = arith::IndexCastOp::create(host, host.getI64Type(),
                                               addressOf(host, status));
    SmallVector<Value> arguments = {
        LLVM::IntToPtrOp::create(host, pointer, address),
        LLVM::AddressOfOp::create(host, messages)};
    LLVM::CallOp::create(host, *checker, arguments);
  });
  return success();
}

FailureOr<DenseMap<func::FuncOp, Value>>
linalggpu::addStatusWords(ModuleOp module) {
  DenseMap<func::FuncOp, Value> words;
  llvm::MapVector<StringRef, int64_t> codes;
  SmallVector<cf::AssertOp> checks;
  for (auto function : module.getOps<func::FuncOp>())
    function.walk([&](cf::AssertOp check) {
      if (DeviceValues::contains(check.getArg()))
        checks.push_back(check);
    });
  if (checks.empty())
    return words;
  OpBuilder b(module.getContext());
  for (cf::AssertOp check : checks) {
    int64_t code =
        codes.try_emplace(check.getMsg(), codes.size() + 1).first->second;
    check->setAttr(kCode, b.getI64IntegerAttr(code));
    assumeHolds(check);
  }
  // Conditions may now be known: values that were chosen by them as well.

  SmallVector<StringRef> texts;
  for (auto &[text, code] : codes)
    texts.push_back(text);
  LLVM::GlobalOp messages = createMessages(module, texts);
  auto type = MemRefType::get({}, b.getI32Type());
  llvm::DenseSet<StringRef> extended;
  for (auto function : module.getOps<func::FuncOp>()) {
    if (function.isExternal())
      continue;
    if (function.isPrivate()) {
      unsigned last = function.getNumArguments();
      if (failed(function.insertArgument(last, type, {}, function.getLoc())))
        return failure();
      words[function] = function.getArgument(last);
      extended.insert(function.getSymName());
      continue;
    }
    ImplicitLocOpBuilder host(function.getLoc(), module.getContext());
    host.setInsertionPointToStart(&function.getBody().front());
    Value word = memref::AllocOp::create(host, type, ValueRange(),
                                         host.getI64IntegerAttr(64));
    auto clear = memref::StoreOp::create(
        host, arith::ConstantIntOp::create(host, 0, 32), word);
    clear->setAttr(kClears, host.getUnitAttr());
    words[function] = word;
    if (failed(readAtEnd(function, word, messages)))
      return failure();
  }
  module.walk([&](func::CallOp call) {
    if (extended.contains(call.getCallee()))
      call.getOperandsMutable().append(
          words.lookup(call->getParentOfType<func::FuncOp>()));
  });
  return words;
}
