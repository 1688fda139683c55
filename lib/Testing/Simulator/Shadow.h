//===- Shadow.h - state of each byte of shared memory -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_SHADOW_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_SHADOW_H

#include "Clocks.h"

#include <optional>

namespace mlir::diffattn::sim {

/// Pending: a copy is under way; Barrier: part of an mbarrier.
enum class ByteState : uint8_t { Outside, Never, Written, Pending, Barrier };

/// An access that something is wrong with: the first such byte, and the access
/// that it collides with.
struct ShadowHit {
  enum Kind : uint8_t {
    Outside,
    Never,
    Pending,
    Race,
    Order,
    Barrier,
    Proxy
  } kind;
  uint32_t offset;
  /// The last access, for all kinds but Outside and Never.
  uint16_t thread = 0, site = 0;
  bool otherWrites = true;
};

/// The shadow of the shared memory of one block: state, last writer and up to
/// three readers since then of each byte.
class Shadow {
public:
  struct Access {
    uint32_t offset, bytes;
    uint16_t thread, site;
    bool atomic = false;
    /// Whether the atomic adds floating-point numbers.
    bool adds = false;
  };

  /// Forgets everything; all of it is outside.
  void reset(uint32_t bytes);
  /// Makes a range part of the memory that the kernel may use.
  void declare(uint32_t offset, uint32_t bytes);

  bool inside(uint32_t offset, uint32_t bytes) const;

  std::optional<ShadowHit> read(const Access &access, const Clocks &clocks,
                                bool races);
  std::optional<ShadowHit> write(const Access &access, const Clocks &clocks,
                                 bool races);

  /// An asynchronous copy was issued: its destination is neither to be read nor
  /// to be written.
  std::optional<ShadowHit> issueCopy(const Access &access, const Clocks &clocks,
                                     bool races);
  /// The thread that issued it has waited for it: the bytes count as written by
  /// it now.
  void landCopy(const Access &access, const Clocks &clocks);

  /// An agent at its time `when`, acting on behalf of threads, one of which
  /// `access` names.
  struct Agent {
    uint16_t number;
    uint32_t when;
  };
  /// The agent reads what all of `observers` must be ordered after, through the
  /// async proxy.
  std::optional<ShadowHit> readBy(Agent agent, const Access &access,
                                  llvm::ArrayRef<uint16_t> observers,
                                  const Clocks &clocks, bool races);
  /// The agent will write it: Pending until landBy().
  std::optional<ShadowHit> writeBy(Agent agent, const Access &access,
                                   const Clocks &clocks, bool races);
  void landBy(uint32_t offset, uint32_t bytes);

  /// Makes 8 bytes an mbarrier.
  std::optional<ShadowHit> beginBarrier(const Access &access,
                                        const Clocks &clocks, bool races);

private:
  struct Reader {
    uint32_t when;
    uint16_t thread, site;
  };
  struct Entry {
    uint32_t when;
    uint16_t thread, site;
    Reader readers[3];
  };
  static_assert(sizeof(Entry) == 32);

  /// The error of reading a byte that is not Written.
  ShadowHit missing(uint32_t offset) const;
  std::optional<ShadowHit> collide(const Access &access, const Clocks &clocks,
                                   bool races);

  std::vector<ByteState> states;
  std::vector<Entry> entries;
  /// The kind of the last write.
  enum WriteKind : uint8_t { Plain, Atomic, Adds };
  std::vector<uint8_t> atomics;
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_SHADOW_H
