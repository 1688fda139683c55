//===- Views.h - chains of views drawn from a seed --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_ANALYSIS_VIEWS_H
#define DIFFATTN_UNITTESTS_ANALYSIS_VIEWS_H

#include "Programs.h"

namespace plain {

/// Writes ops that move elements, of static and dynamic sizes. The elements of
/// all tensors that it starts from are different numbers.
class Views {
public:
  Views(Program &program, Draw &draw) : program(program), draw(draw) {}

  /// An argument, or a constant; about half of its sizes are dynamic.
  mlir::Value base(llvm::ArrayRef<int64_t> shape, bool mayBeConstant = true);
  /// One more op on `tensor`.
  mlir::Value step(mlir::Value tensor);

  /// The sizes in the run that `run` is prepared for.
  llvm::SmallVector<int64_t> shapeOf(mlir::Value tensor) const {
    return shapes.lookup(tensor);
  }
  void prepare(Execution &run) const;
  llvm::ArrayRef<mlir::Value> tensors() const { return made; }

private:
  mlir::Value note(mlir::Value tensor, llvm::ArrayRef<int64_t> shape) {
    shapes[tensor] = llvm::SmallVector<int64_t>(shape);
    made.push_back(tensor);
    return tensor;
  }
  mlir::RankedTensorType typeOf(llvm::ArrayRef<int64_t> shape) const;
  mlir::OpFoldResult sizeOf(mlir::Value tensor, int64_t axis);
  mlir::Value asValue(mlir::OpFoldResult size);
  /// `number`, or an argument that is it.
  mlir::OpFoldResult number(int64_t number);
  mlir::Value empty(llvm::ArrayRef<mlir::OpFoldResult> sizes,
                    llvm::ArrayRef<int64_t> shape);
  int64_t staticSize(mlir::OpFoldResult size) const;

  mlir::Value transpose(mlir::Value tensor);
  mlir::Value expand(mlir::Value tensor);
  mlir::Value collapse(mlir::Value tensor);
  mlir::Value reshape(mlir::Value tensor);
  mlir::Value slice(mlir::Value tensor);
  mlir::Value insert(mlir::Value tensor);
  mlir::Value concat(mlir::Value tensor);
  mlir::Value broadcast(mlir::Value tensor);
  mlir::Value pad(mlir::Value tensor);
  mlir::Value gather(mlir::Value tensor);
  mlir::Value recast(mlir::Value tensor);

  Program &program;
  Draw &draw;
  llvm::DenseMap<mlir::Value, llvm::SmallVector<int64_t>> shapes;
  llvm::SmallVector<mlir::Value> made;
  llvm::SmallVector<std::pair<mlir::Value, int64_t>> numbers;
  int64_t nextElement = 0;
  llvm::SmallVector<std::pair<mlir::Value, int64_t>> bases;
};

} // namespace plain

#endif // DIFFATTN_UNITTESTS_ANALYSIS_VIEWS_H
