//===- Interfaces.cpp - bytes as calls of the C interfaces ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Targets.h"
#include "TemporaryFiles.h"

#include "diffattn-c/Bundle.h"
#include "diffattn-c/DiffAttn.h"

#include <climits>
#include <cstring>
#include <sys/mman.h>
#include <vector>

using namespace mlir::diffattn::fuzz;
using llvm::StringRef;
using llvm::Twine;

static bool isKnown(int32_t status) {
  return status == DIFFATTN_OK ||
         (status >= DIFFATTN_ERROR_USAGE && status <= DIFFATTN_ERROR_BUNDLE);
}

//===----------------------------------------------------------------------===//
// A folder as a bundle
//===----------------------------------------------------------------------===//

/// The bytes are the manifest of a folder with a file for code. The folder is
/// opened to be read, since what is run is trusted.
bool mlir::diffattn::fuzz::openBundle(StringRef bytes) {
  static TemporaryFolder folder;
  static const std::string code = folder.write("model.so", "no code");
  folder.write("manifest.json", bytes);
  diffattn_bundle_options options = {};
  options.struct_bytes = sizeof options;
  options.read_only = 1;
  diffattn_bundle *bundle = nullptr;
  int32_t status = diffattn_bundle_open_with(folder.getPath().str().c_str(),
                                             &options, &bundle);
  require((status == DIFFATTN_OK) == (bundle != nullptr),
          "status " + Twine(status) + (bundle ? " with" : " without") +
              " a bundle");
  if (!bundle) {
    require(isKnown(status) && *diffattn_bundle_last_error(),
            "status " + Twine(status) + " without a message");
    return false;
  }
  for (int32_t i = 0; i < diffattn_bundle_num_weights(bundle); ++i)
    require(diffattn_bundle_weight_name(bundle, i), "a weight without a name");
  for (int32_t e = 0; e < diffattn_bundle_num_entries(bundle); ++e) {
    const char *entry = diffattn_bundle_entry_name(bundle, e);
    int32_t count = -1;
    require(entry && !diffattn_bundle_num_arguments(bundle, entry, &count),
            "an entry without a name or arguments");
    diffattn_type type;
    for (int32_t i = 0; i < count; ++i)
      require(!diffattn_bundle_argument_type(bundle, entry, i, &type),
              "an argument without a type");
    require(diffattn_bundle_call(bundle, entry, nullptr, 0, 1, nullptr, 0) !=
                DIFFATTN_OK,
            "a call of a bundle that is only read");
  }
  diffattn_bundle_close(bundle);
  return true;
}

//===----------------------------------------------------------------------===//
// Calls of programs
//===----------------------------------------------------------------------===//

namespace {

/// Choices that the bytes make; zeros behind their end.
class Choices {
public:
  explicit Choices(StringRef bytes) : rest(bytes) {}
  bool empty() const { return rest.empty(); }
  uint8_t byte() {
    if (rest.empty())
      return 0;
    auto value = static_cast<uint8_t>(rest.front());
    rest = rest.drop_front();
    return value;
  }
  template <typename T, size_t N>
  T of(const T (&options)[N]) {
    return options[byte() % N];
  }

private:
  StringRef rest;
};

/// Memory that arrays lie in, between pages that no one may touch.
class Arena {
public:
  static constexpr size_t kBytes = 16 << 10;
  static constexpr size_t kPage = 4096;

  Arena() {
    void *all = ::mmap(nullptr, kBytes + 2 * kPage, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(all != MAP_FAILED, "expected memory");
    data = static_cast<char *>(all) + kPage;
    require(!::mprotect(data, kBytes, PROT_READ | PROT_WRITE),
            "expected memory that can be written");
  }
  void fill() {
    for (size_t i = 0; i < kBytes / sizeof(float); ++i) {
      float value = 0.25f * static_cast<float>(i % 7);
      memcpy(data + i * sizeof value, &value, sizeof value);
    }
  }

  char *data;
};

struct Program {
  diffattn_program *handle = nullptr;
  const char *entry = nullptr;
  bool onDevice = false;
};

constexpr const char *kAttend = R"(
!q = tensor<1x2x?x8xf32>
!v = tensor<1x2x?x16xf32>
func.func @attend(%q: !q, %k: !q, %v: !v, %lambda: tensor<f32>, %o: !v) -> !v {
  %0 = diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !v) lambda(%lambda : tensor<f32>)
      outs(%o : !v) {scale = 0.25 : f32} -> !v
  return %0 : !v
}
)";
constexpr const char *kScale = R"(
func.func @scale(%x: memref<2x?xf32, strided<[?, ?], offset: ?>>, %s: f32, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m = memref.dim %x, %c1 : memref<2x?xf32, strided<[?, ?], offset: ?>>
  scf.for %i = %c0 to %m step %c1 {
    %a = memref.load %x[%c0, %i] : memref<2x?xf32, strided<[?, ?], offset: ?>>
    %b = arith.mulf %a, %s : f32
    memref.store %b, %x[%c1, %i] : memref<2x?xf32, strided<[?, ?], offset: ?>>
  }
  return
}
)";
constexpr const char *kBoth = R"(
ml_program.global private @w(#ml_program.extern<tensor<6xf32>>) : tensor<6xf32>
func.func @both(%a: tensor<6xf32> {bufferization.writable = true}, %i: tensor<?xi64>) -> (tensor<6xf32>, tensor<?xf32>) {
  %c0 = arith.constant 0 : index
  %w = ml_program.global_load_const @w : tensor<6xf32>
  %r = arith.addf %a, %w : tensor<6xf32>
  %n = tensor.dim %i, %c0 : tensor<?xi64>
  %e = tensor.empty(%n) : tensor<?xf32>
  %g = linalg.generic {indexing_maps = [affine_map<(d) -> (d)>, affine_map<(d) -> (d)>], iterator_types = ["parallel"]}
      ins(%i : tensor<?xi64>) outs(%e : tensor<?xf32>) {
  ^bb0(%j: i64, %old: f32):
    %k = arith.index_cast %j : i64 to index
    %y = tensor.extract %w[%k] : tensor<6xf32>
    linalg.yield %y : f32
  } -> tensor<?xf32>
  return %r, %g : tensor<6xf32>, tensor<?xf32>
}
)";

Program compile(const char *text, const char *entry, const char *target) {
  Program program;
  program.entry = entry;
  program.onDevice = StringRef(target).starts_with("cuda");
  diffattn_options *options = diffattn_options_create();
  require(!diffattn_options_set(options, "target", target), "no target");
  int32_t status =
      diffattn_compile(text, strlen(text), options, &program.handle);
  diffattn_options_destroy(options);
  require(status == DIFFATTN_OK,
          StringRef("expected a program, but got: ") + diffattn_last_error());
  return program;
}

llvm::ArrayRef<Program> getPrograms() {
  static const Program programs[] = {
      compile(kAttend, "attend", "cpu:avx2"),
      compile(kScale, "scale", "cpu:avx2"), compile(kBoth, "both", "cpu:avx2"),
      compile(kAttend, "attend", "cuda-sim:sm_80/avx2")};
  return programs;
}

/// Arrays as the bytes say, in one arena. Sizes that lie are meant; an array
/// whose elements would leave the arena has none, since the interface takes a
/// caller's word for where memory ends.
struct Arrays {
  static constexpr int kMost = 6;
  diffattn_array arrays[kMost];
  int64_t shapes[kMost][DIFFATTN_MOST_RANK];
  int64_t strides[kMost][DIFFATTN_MOST_RANK];

  void choose(Choices &choices, Arena &arena, const Program &program) {
    memset(this, 0, sizeof *this);
    for (int i = 0; i < kMost; ++i) {
      diffattn_type type = {};
      int32_t known =
          diffattn_argument_type(program.handle, program.entry, i, &type);
      diffattn_array &array = arrays[i];
      array.rank = known == DIFFATTN_OK ? type.rank : 1;
      array.dtype = known == DIFFATTN_OK ? type.dtype : DIFFATTN_F32;
      const int64_t free = choices.of<int64_t>({3, 1, 0, 2, 5, 9});
      int64_t dense = 1;
      for (int axis = array.rank - 1; axis >= 0; --axis) {
        int64_t size = type.shape[axis];
        shapes[i][axis] = size < 0 || known != DIFFATTN_OK ? free : size;
        strides[i][axis] = dense;
        dense *= std::max<int64_t>(shapes[i][axis], 1);
      }
      array.shape = shapes[i];
      int64_t offset = choices.of<int64_t>({0, 1024, 4096, 4, 1, 8192, 12288});
      for (int lies = choices.byte() % 3; lies > 0; --lies)
        lie(choices, i);
      array.data = arena.data + offset;
      if (!fits(i, offset))
        array.data = nullptr;
    }
  }

private:
  void lie(Choices &choices, int i) {
    static constexpr int64_t numbers[] = {
        0,  1,  2,       3,         4,         6,         8,         16,
        -1, -8, INT_MAX, INT64_MAX, INT64_MIN, 1ll << 32, 1ll << 61, 32};
    diffattn_array &array = arrays[i];
    const int axis = choices.byte() % DIFFATTN_MOST_RANK;
    switch (choices.byte() % 8) {
    case 0:
      array.rank =
          choices.of<int32_t>({0, 1, 2, 3, 4, 5, 16, 17, -1, INT_MAX, INT_MIN});
      break;
    case 1:
      array.dtype = choices.of<int32_t>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
                                         12, -1, 255, 256, 257, 260, INT_MAX});
      break;
    case 2:
      shapes[i][axis % 4] = choices.of(numbers);
      break;
    case 3:
      array.strides = strides[i];
      strides[i][axis % 4] = choices.of(numbers);
      break;
    case 4:
      array.strides = strides[i];
      break;
    case 5:
      array.shape = nullptr;
      break;
    default:
      break;
    }
  }

  /// Whether the elements lie in the arena, as far as the array is one at all.
  bool fits(int i, int64_t offset) const {
    const diffattn_array &array = arrays[i];
    if (array.rank < 0 || array.rank > DIFFATTN_MOST_RANK || !array.shape)
      return true;
    __int128 low = 0, high = 0, dense = 1;
    for (int axis = array.rank - 1; axis >= 0; --axis) {
      const int64_t size = shapes[i][axis];
      if (size <= 0)
        return true;
      const __int128 stride = array.strides ? strides[i][axis] : dense;
      const __int128 reach = (size - 1) * stride;
      (reach < 0 ? low : high) += reach;
      dense *= size;
      if (high - low > (1 << 30) || dense > (1 << 30))
        return false;
    }
    // No element has more than eight bytes.
    return offset + low * 8 >= 0 &&
           offset + (high + 1) * 8 <= static_cast<__int128>(Arena::kBytes);
  }
};

/// One call as the bytes say; whether it was taken.
bool callOnce(Choices &choices, Arena &arena) {
  const Program &program = choices.of<Program>(
      {getPrograms()[0], getPrograms()[1], getPrograms()[2], getPrograms()[3]});
  Arrays arrays;
  arrays.choose(choices, arena, program);
  int32_t count = -1, numResults = -1;
  require(!diffattn_num_arguments(program.handle, program.entry, &count) &&
              !diffattn_num_results(program.handle, program.entry, &numResults),
          "a program without a signature");
  switch (choices.byte() % 16) {
  case 1:
    count = choices.of<int32_t>({0, 1, 5, 6, -1, INT_MIN});
    break;
  case 2:
    numResults = choices.of<int32_t>({0, 1, 2, -1, INT_MIN});
    break;
  default:
    break;
  }
  const char *entry =
      choices.byte() % 16 == 1 ? "no such entry" : program.entry;
  diffattn_result results[2] = {};
  int32_t status = diffattn_call(program.handle, entry, arrays.arrays, count,
                                 choices.of<int32_t>({1, 0, 2, -1, INT_MIN}),
                                 results, numResults);
  if (status == DIFFATTN_OK)
    for (int32_t i = 0; i < numResults; ++i)
      diffattn_free(results[i].data);
  return status == DIFFATTN_OK;
}

/// Weights of the program that has one, from memory.
bool bindOnce(Choices &choices, Arena &arena) {
  const Program &program = getPrograms()[2];
  static constexpr int64_t shape[] = {6};
  static constexpr int64_t other[] = {5};
  const char *names[] = {choices.byte() % 4 == 1 ? "v" : "w"};
  diffattn_array array = {arena.data + choices.byte() % 64,
                          choices.byte() % 4 == 1 ? 4 : DIFFATTN_F32, 1,
                          choices.byte() % 4 == 1 ? other : shape, nullptr};
  return diffattn_bind_weight_arrays(program.handle, names, &array,
                                     choices.of<int32_t>({1, 0, -1})) ==
         DIFFATTN_OK;
}

/// Memory of the device, with addresses and sizes that need not be its own.
bool useMemory(Choices &choices, Arena &arena) {
  const Program &program = getPrograms()[choices.byte() % 4];
  uint64_t address = 0;
  int32_t status = diffattn_memory_allocate(
      program.handle,
      choices.of<int64_t>({256, 0, 1, 4096, -1, 1ll << 62, INT64_MAX}),
      &address);
  require(program.onDevice || status != DIFFATTN_OK,
          "memory of a device that is none");
  if (status != DIFFATTN_OK)
    return false;
  const uint64_t place =
      address + choices.of<uint64_t>({0, 1, 255, 256, 1ull << 40, ~0ull});
  const int64_t bytes =
      choices.of<int64_t>({16, 0, 256, 257, 4096, -1, 1ll << 62});
  bool taken = false;
  switch (choices.byte() % 4) {
  case 0:
    taken = bytes <= 4096 &&
            !diffattn_memory_write(program.handle, place, arena.data, bytes);
    break;
  case 1:
    taken = bytes <= 4096 &&
            !diffattn_memory_read(program.handle, arena.data, place, bytes);
    break;
  case 2:
    taken = !diffattn_memory_fill(
        program.handle, place, choices.of<int32_t>({0, 255, 256, -1}), bytes);
    break;
  default:
    taken = !diffattn_memory_copy(
        program.handle, address, choices.of<int64_t>({16, 0, -1, 1ll << 62}),
        place, choices.of<int64_t>({16, 0, -1, 1ll << 62}), bytes,
        choices.of<int64_t>({1, 0, 2, -1, 1ll << 62}));
    break;
  }
  require(!diffattn_memory_free(program.handle, address),
          "memory that cannot be freed");
  require(diffattn_memory_free(program.handle, address) != DIFFATTN_OK,
          "memory that is freed twice");
  return taken;
}

/// Names, types and what the compiler said, by any number.
bool askOnce(Choices &choices) {
  const Program &program = getPrograms()[choices.byte() % 4];
  const int32_t number = choices.of<int32_t>({0, 1, 5, -1, INT_MAX, INT_MIN});
  const char *name = diffattn_entry_name(program.handle, number);
  require(!name == (number != 0), "a name of an entry that is none");
  diffattn_weight_name(program.handle, number);
  diffattn_type type;
  diffattn_diagnostic diagnostic;
  require(diffattn_result_type(program.handle, program.entry, number, &type) ==
                  DIFFATTN_OK ||
              *diffattn_last_error(),
          "no message");
  diffattn_get_diagnostic(program.handle, number, &diagnostic);
  return number == 0;
}

} // namespace

bool mlir::diffattn::fuzz::callProgram(StringRef bytes) {
  static Arena arena;
  arena.fill();
  Choices choices(bytes);
  bool taken = false;
  for (int i = 0; i < 8 && !choices.empty(); ++i)
    switch (choices.byte() % 8) {
    case 4:
      taken |= bindOnce(choices, arena);
      break;
    case 5:
      taken |= useMemory(choices, arena);
      break;
    case 6:
      taken |= askOnce(choices);
      break;
    default:
      taken |= callOnce(choices, arena);
      break;
    }
  return taken;
}
