//===- Block.h - one block of threads ---------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_BLOCK_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_BLOCK_H

#include "Async.h"
#include "Buffers.h"
#include "Fiber.h"
#include "Numerics.h"
#include "Shadow.h"
#include "Traffic.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <atomic>
#include <mutex>

namespace mlir::diffattn::sim {

struct SharedRange {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

/// State that all blocks of a launch share.
struct Launch {
  const std::vector<Site> &sites;
  Buffers &buffers;
  LaunchShape shape;
  SimOptions options;
  /// The number of this launch, from 1.
  uint32_t number = 1;
  void (*entry)(const uint64_t *) = nullptr;
  const uint64_t *arguments = nullptr;
  /// Shared memory that the kernel may use, and the end of the last range.
  std::vector<SharedRange> shared = {};
  uint32_t sharedEnd = 0;
  /// The blocks of a cluster, and how far apart their shared memories lie where
  /// the simulator keeps them.
  Dim3 cluster = {};
  unsigned ranks = 1;
  uint32_t window = kSharedWindow;

  uint32_t getArenaBytes() const {
    return ranks == 1 ? sharedEnd : ranks * window;
  }
  /// Whether the module uses mbarriers, the copy engine or wgmma, and how many
  /// wgmmas it has.
  bool asynchronous = false;
  unsigned wgmmas = 0;
  /// Whether the kernel may start before those ahead of it have ended.
  bool startsEarly = false;
  /// The parameters that kernels take by value, as they see them.
  llvm::ArrayRef<TensorMapHandle> objects = {};

  std::atomic<uint64_t> nextBlock{0};
  std::atomic<bool> stopped{false};
  std::mutex mutex{};
  std::vector<Fault> faults = {};

  /// Adds a fault, or counts it where the same was seen at the same places.
  /// Stops the launch at the limit.
  void add(Fault fault);
};

/// Counts of one worker.
struct WorkerStats {
  struct SiteCounts {
    uint64_t accesses = 0, wavefronts = 0, conflicts = 0, sectors = 0;
  };
  LaunchStats totals;
  std::vector<SiteCounts> sites;

  void add(const WorkerStats &other);
};

/// Runs the threads of a block, or of the blocks of a cluster, which are
/// numbered on from one to the next, on fibers, one at a time: a thread runs
/// until it must wait. The object is reused for one block after the other.
/// Where blocks take turns, a block stops now and then in the middle.
class Block {
public:
  explicit Block(Launch &launch);
  ~Block();

  void start(uint64_t index);
  /// Returns whether the block has ended; else it must be resumed.
  bool resume();
  const WorkerStats &getStats() const { return stats; }

  /// The block that this thread of the process runs.
  static Block *current();

  // Functions that compiled kernels call, see Runtime.cpp.
  void *access(uint64_t address, uint64_t bytes, uint32_t site);
  void collective(uint32_t site, const uint32_t *in, uint32_t *out);
  void copyAsync(uint64_t destination, uint64_t source, uint32_t sourceBytes,
                 uint32_t site);
  void commitCopies() { ++lanes[active].group; }
  /// Waits until at most `newest` groups are under way; all copies if it is
  /// negative.
  void waitForCopies(int64_t newest);
  uint32_t specialRegister(uint32_t which) const;
  float approximation(Approx function, float x, bool flush);
  float division(float a, float b, bool flush);
  /// mbarriers, bulk copies and fences of one thread; words as a collective's.
  void asynchronous(uint32_t site, const uint32_t *in, uint32_t *out);
  void useRegisters(RegisterUse use, uint32_t site, uint32_t wgmma);
  void step(uint32_t site);
  void trap(uint32_t site);
  /// Ends the launch where the site does what LLVM IR leaves undefined;
  /// `offset` is that of an access to a variable of the thread.
  void stopUndefined(uint32_t site, int64_t offset);
  void waitForKernels() { lanes[active].hasWaited = true; }
  /// Reports an index outside of the table that the site names.
  void reportIndex(int64_t index, uint32_t site);
  [[noreturn]] void exitThread();

private:
  enum class State : uint8_t {
    Ready,
    AtCollective,
    AtBarrier,
    AtMbarrier,
    AtWarpgroup,
    AtCluster,
    Exited
  };

  struct Copy {
    uint32_t offset, bytes, sourceBytes, site, group;
    const char *source;
  };

  struct Thread {
    Fiber fiber;
    State state = State::Ready;
    uint16_t number = 0;
    uint32_t x = 0, y = 0, z = 0;
    /// The last instruction with which it called the runtime.
    uint32_t site = 0;
    /// The number of a barrier, or the offset of an mbarrier.
    uint32_t barrier = 0;
    uint32_t *result = nullptr;
    /// Whether it has waited for the kernels before this one.
    bool hasWaited = false;
    std::vector<Copy> copies;
    uint32_t group = 0;
  };

  struct Meeting {
    uint32_t site, mask, arrived;
    const uint32_t *in[32];
    uint32_t *out[32];
  };

  struct Warp {
    uint32_t existing = 0, exited = 0;
    std::vector<Meeting> meetings;
    TrafficRecorder traffic;
  };

  struct Barrier {
    uint32_t expected = 0, arrived = 0, site = 0;
    uint32_t trueCount = 0;
    bool wholeBlock = false;
    std::vector<uint16_t> waiting;
    Clocks::Vector released;
  };

  // Block.cpp: threads and faults.
  static void entry();
  void suspend(State state);
  void wake(uint16_t thread);
  bool takeReady(uint16_t &thread);
  /// Finds a thread that can run; lets copies arrive for that.
  bool findReady(uint16_t &thread);
  [[noreturn]] void leave();
  void yieldSometimes();
  void pause();
  uint64_t random();
  const Site &siteAt(uint32_t site) const { return launch.sites[site]; }
  void report(FaultKind kind, uint32_t site, std::string message,
              const Site *other = nullptr);
  [[noreturn]] void stop();
  void reportDeadlock();
  std::string describeThreads(llvm::ArrayRef<uint16_t> threads) const;
  void describeWait(State state, uint32_t barrier, std::string &text) const;
  /// "thread 3", or what runs beside the threads.
  std::string describeActor(uint16_t number) const;
  /// Block or cluster `block` after a thread of it; nothing for this one.
  std::string describeBlock(uint32_t block) const;

  // Clusters.cpp.
  unsigned rankOf(uint16_t thread) const { return thread / blockThreads; }
  Dim3 blockOf(unsigned rank) const;
  /// Where the shared memory of all blocks has `address`, as the thread that
  /// runs sees it; an offset in none where it lies nowhere.
  uint32_t sharedAt(uint64_t address) const;
  /// `offset`, of the shared memory of all blocks, in its own block; for
  /// messages.
  uint32_t localOf(uint32_t offset) const;
  std::string nameMbarrier(uint32_t offset) const;
  void arriveAtCluster(unsigned warpIndex, const Meeting &meeting);
  void waitForCluster(unsigned warpIndex, const Meeting &meeting);
  void endClusterPhase();
  /// Reports that what `site` reaches has ended. Returns whether it has.
  bool hasEnded(uint32_t offset, uint32_t site);

  // Memory.cpp.
  void *accessShared(uint32_t offset, uint64_t bytes, uint32_t site);
  void *accessGlobal(uint64_t address, uint64_t bytes, uint32_t site);
  /// Global memory is about to be touched by this thread.
  void checkHasWaited(uint32_t site);
  char *checkGlobal(uint64_t address, uint64_t bytes, uint32_t site,
                    bool writes, bool atomic, Buffer *&buffer);
  void reportShadow(const ShadowHit &hit, const Shadow::Access &access,
                    bool writes);
  bool checkAlignment(uint64_t address, uint32_t alignment, uint32_t site,
                      llvm::StringRef what);
  void flushTraffic(Warp &warp);
  void landCopy(const Copy &copy);

  // Collectives.cpp.
  void perform(Warp &warp, unsigned warpIndex, const Meeting &meeting);
  void shuffle(const Site &site, const Meeting &meeting);
  void voteOrMatch(const Site &site, const Meeting &meeting);
  void reduce(const Site &site, const Meeting &meeting);
  void moveMatrices(unsigned warpIndex, const Site &site,
                    const Meeting &meeting);
  void collectThreads(unsigned warpIndex, uint32_t mask,
                      llvm::SmallVectorImpl<uint16_t> &threads) const;

  // Barriers.cpp. Returns whether the barrier opened at once.
  bool arrive(uint32_t site, llvm::ArrayRef<uint16_t> arriving,
              const Meeting *meeting, const uint32_t *in);
  void open(Barrier &barrier, BarrierReduction reduction, bool reduces);
  void syncWarp(unsigned warpIndex, uint32_t mask);

  // Mbarriers.cpp.
  void initMbarrier(uint32_t offset, uint32_t count, uint32_t site);
  void arriveAtMbarrier(uint32_t offset, uint32_t count, uint32_t bytes,
                        uint32_t site);
  bool waitAtMbarrier(uint32_t offset, uint32_t parity, uint32_t site);
  Mbarrier *findMbarrier(uint32_t offset, uint32_t site);
  void completeBytes(uint32_t offset, Mbarrier &barrier, uint32_t bytes,
                     uint32_t site);
  void endPhase(uint32_t offset, Mbarrier &barrier, uint32_t site);
  /// The offset in shared memory of `bytes` bytes at two words of `in`, or
  /// nothing, with a fault.
  std::optional<uint32_t> sharedOffset(const uint32_t *in, uint32_t bytes,
                                       uint32_t alignment, uint32_t site);

  // BulkCopies.cpp.
  void copyTensor(const uint32_t *in, uint32_t site);
  void copyBulk(const uint32_t *in, uint32_t site);
  /// `first`: of those that bring the same to several blocks.
  void issueLoad(BulkCopy copy, bool first = true);
  void issueStore(BulkCopy copy);
  std::optional<TensorMap> mapAt(const uint32_t *in, uint32_t site);
  /// Calls `row` with the offset in the box, the address and the bytes of each
  /// row's part inside of the tensor.
  void forRows(const BulkCopy &copy,
               llvm::function_ref<void(uint32_t, uint64_t, uint32_t)> row);
  uint32_t place(const BulkCopy &copy, uint32_t linear) const;
  void move(const BulkCopy &copy, bool toShared);
  bool landLoad();
  void waitForStores(uint32_t newest, bool readsOnly);
  void checkNothingRuns(uint16_t thread);

  // Warpgroups.cpp.
  void meetWarpgroup(unsigned warpIndex, const Meeting &meeting);
  void matrixOp(unsigned warpIndex, const Meeting &meeting);
  void multiply(unsigned group, const Site &site);
  void readOperand(const Shadow::Agent &agent, unsigned group, uint32_t site,
                   llvm::ArrayRef<uint32_t> chunks);
  void setRegisters(unsigned group);
  void grantRegisters();
  void wakeWarpgroup(unsigned group);

  Launch &launch;
  unsigned threads, blockThreads;
  std::vector<Thread> lanes;
  std::vector<Warp> warps;
  /// 16 for each block.
  std::vector<Barrier> barriers;
  FiberStacks stacks;
  Fiber main;
  uint16_t active = 0;
  unsigned exited = 0;
  /// How many of each block.
  std::vector<unsigned> exitedOf;
  bool paused = false;
  /// Threads that may still wait until another block gets its turn.
  uint32_t switches = 0;
  /// A ring of threads that can run.
  std::vector<uint16_t> ready;
  size_t readyHead = 0, readyCount = 0;
  uint64_t randomState = 0;
  uint32_t slice = 0;
  uint64_t steps = 0;
  uint64_t blockIndex = 0;
  /// Index of the first block of the cluster.
  Dim3 blockId;

  Clocks clocks;
  Shadow shadow;
  AsyncState async;
  char *arena = nullptr;
  /// Where accesses go that must not happen.
  char *scratch = nullptr;
  WorkerStats stats;
};

void addStats(LaunchStats &to, const LaunchStats &from);
/// Runs blocks until none of `blocks` is left, `residentBlocks` of the launch
/// by turns, and returns their counts.
WorkerStats runBlocks(Launch &launch, uint64_t blocks, unsigned worker);

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_BLOCK_H
