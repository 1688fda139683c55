//===- Block.cpp - one block of threads -----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"

#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"

#include <cstring>
#include <sys/mman.h>

using namespace mlir::diffattn::sim;

static constexpr size_t kScratchBytes = 1 << 16;
/// Accesses that a thread may make before another one gets its turn, so that a
/// loop that waits for memory ends.
static constexpr uint32_t kSlice = 1 << 14;
/// Switches between threads before another block gets its turn.
static constexpr uint32_t kSwitches = 256;

static thread_local Block *currentBlock = nullptr;

Block *Block::current() { return currentBlock; }

static char *mapArena(size_t bytes) {
  // As aligned as the base that kernels see, so that x86 finds every aligned
  // vector aligned.
  size_t alignment = 4096;
  void *memory = mmap(nullptr, bytes + alignment, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char *>(memory);
}

Block::Block(Launch &launch)
    : launch(launch), threads(launch.ranks * launch.shape.block.count()),
      blockThreads(launch.shape.block.count()) {
  lanes.resize(threads);
  warps.resize((threads + 31) / 32);
  ready.resize(threads);
  stats.sites.resize(launch.sites.size());
  stats.totals.buffers.resize(launch.buffers.size());
  arena = mapArena(launch.getArenaBytes() + kScratchBytes);
  scratch = mapArena(kScratchBytes);
}

Block::~Block() {
  if (arena)
    munmap(arena, launch.getArenaBytes() + kScratchBytes + 4096);
  if (scratch)
    munmap(scratch, kScratchBytes + 4096);
}

uint64_t Block::random() {
  randomState ^= randomState << 13;
  randomState ^= randomState >> 7;
  randomState ^= randomState << 17;
  return randomState;
}

void Block::start(uint64_t index) {
  if (!arena || !scratch ||
      !stacks.reserve(threads, launch.options.stackBytesPerThread)) {
    Fault fault{
        FaultKind::NoProgress,
        "expected memory for the block's stacks, but the system gave none"};
    launch.add(std::move(fault));
    launch.stopped = true;
    return;
  }
  blockIndex = index;
  const Dim3 &shape = launch.shape.block, &cluster = launch.cluster;
  const uint32_t columns = launch.shape.grid.x / cluster.x,
                 rows = launch.shape.grid.y / cluster.y;
  blockId = {uint32_t(index % columns) * cluster.x,
             uint32_t(index / columns % rows) * cluster.y,
             uint32_t(index / columns / rows) * cluster.z};
  randomState = (launch.options.seed + 1) * 0x9e3779b97f4a7c15ull +
                index * 0xbf58476d1ce4e5b9ull + 1;
  steps = slice = exited = 0;
  readyHead = readyCount = 0;
  if (launch.asynchronous)
    async.reset(threads, launch.ranks, launch.wgmmas);
  clocks.reset(threads, launch.asynchronous ? async.agents.count : 0);
  shadow.reset(launch.getArenaBytes());
  for (unsigned rank = 0; rank < launch.ranks; ++rank)
    for (const SharedRange &range : launch.shared) {
      const uint32_t offset = rank * launch.window + range.offset;
      shadow.declare(offset, range.bytes);
      memset(arena + offset, 0xff, range.bytes);
    }
  barriers.assign(16 * launch.ranks, Barrier());
  exitedOf.assign(launch.ranks, 0);
  for (Warp &warp : warps) {
    warp.existing = warp.exited = 0;
    warp.meetings.clear();
    warp.traffic.reset(launch.sites.size() * 2);
  }
  for (unsigned i = 0; i < threads; ++i) {
    Thread &thread = lanes[i];
    thread = Thread();
    thread.number = i;
    const unsigned inBlock = i % blockThreads;
    thread.x = inBlock % shape.x;
    thread.y = inBlock / shape.x % shape.y;
    thread.z = inBlock / shape.x / shape.y;
    thread.fiber = stacks.get(i);
    prepareFiber(thread.fiber, &Block::entry);
    warps[i / 32].existing |= 1u << (i % 32);
    wake(i);
  }
  main = Fiber();
}

bool Block::resume() {
  if (launch.stopped)
    return true;
  currentBlock = this;
  paused = false;
  switches = launch.options.seed ? 1 + random() % 64 : kSwitches;
  takeReady(active);
  switchFiber(main, lanes[active].fiber);
  currentBlock = nullptr;
  if (paused)
    return false;
  if (exited < threads && !launch.stopped)
    reportDeadlock();
  for (Warp &warp : warps)
    flushTraffic(warp);
  stats.totals.blocks += launch.ranks;
  return true;
}

void Block::entry() {
  enterFiber(currentBlock->main);
  currentBlock->launch.entry(currentBlock->launch.arguments);
  currentBlock->exitThread();
}

void Block::wake(uint16_t thread) {
  lanes[thread].state = State::Ready;
  ready[(readyHead + readyCount++) % threads] = thread;
}

bool Block::findReady(uint16_t &thread) {
  // Copies arrive as late as can be: when no thread can run without them.
  while (!takeReady(thread))
    if (!landLoad())
      return false;
  return true;
}

bool Block::takeReady(uint16_t &thread) {
  if (readyCount == 0)
    return false;
  if (launch.options.seed)
    std::swap(ready[readyHead],
              ready[(readyHead + random() % readyCount) % threads]);
  thread = ready[readyHead];
  readyHead = (readyHead + 1) % threads;
  --readyCount;
  slice = launch.options.seed ? 8 + random() % 256 : kSlice;
  return true;
}

void Block::leave() {
  // Its stack is given up: nothing on it owns anything.
  Fiber &from = lanes[active].fiber;
  switchFiber(from, main);
  __builtin_unreachable();
}

void Block::suspend(State state) {
  uint16_t self = active, next = 0;
  lanes[self].state = state;
  if (launch.options.residentBlocks > 1 && readyCount && --switches == 0) {
    paused = true;
    switchFiber(lanes[self].fiber, main);
    return;
  }
  if (!findReady(next))
    leave();
  if (next == self)
    return;
  active = next;
  switchFiber(lanes[self].fiber, lanes[next].fiber);
}

void Block::exitThread() {
  uint16_t self = active, next = 0;
  Warp &warp = warps[self / 32];
  uint32_t bit = 1u << (self % 32);
  lanes[self].state = State::Exited;
  warp.exited |= bit;
  ++exited;
  ++exitedOf[rankOf(self)];
  for (const Meeting &meeting : warp.meetings)
    if (meeting.mask & bit) {
      report(FaultKind::Divergence, meeting.site,
             "thread " + std::to_string(self) +
                 " ended, but other threads of its warp wait for it");
      stop();
    }
  if (launch.asynchronous)
    checkNothingRuns(self);
  if (!findReady(next))
    leave();
  active = next;
  switchFiber(lanes[self].fiber, lanes[next].fiber);
  __builtin_unreachable();
}

void Block::yieldSometimes() {
  if (++steps > launch.options.maxSteps) {
    report(FaultKind::NoProgress, lanes[active].site,
           "expected the block to end within " +
               std::to_string(launch.options.maxSteps) + " steps");
    stop();
  }
  if (slice-- > 0)
    return;
  if (launch.options.residentBlocks > 1)
    return pause();
  if (readyCount == 0)
    return;
  if (launch.stopped)
    leave();
  wake(active);
  suspend(State::Ready);
}

/// Lets another block run, and goes on with any thread of this one.
void Block::pause() {
  if (launch.stopped)
    leave();
  paused = true;
  wake(active);
  switchFiber(lanes[active].fiber, main);
}

void Block::step(uint32_t site) {
  lanes[active].site = site;
  yieldSometimes();
}

void Block::trap(uint32_t site) {
  report(FaultKind::Trap, site, "the kernel trapped");
  stop();
}

void Block::stopUndefined(uint32_t site, int64_t offset) {
  switch (siteAt(site).kind) {
  case OpKind::LocalAccess:
    report(FaultKind::OutOfBounds, site,
           std::to_string(siteAt(site).bytes) + " bytes at " +
               std::to_string(offset) + " of a variable of the thread");
    break;
  case OpKind::Division:
    report(FaultKind::Undefined, site,
           "an integer is divided by 0, or the quotient does not fit");
    break;
  default:
    report(FaultKind::Undefined, site,
           "the kernel reached code that it declares unreachable");
    break;
  }
  stop();
}

void Block::reportIndex(int64_t index, uint32_t site) {
  report(FaultKind::Index, site,
         "an entry of " + siteAt(site).where.op + " is " +
             std::to_string(index) + ", which is out of range");
}

void Block::stop() {
  launch.stopped = true;
  leave();
}

void Block::report(FaultKind kind, uint32_t site, std::string message,
                   const Site *other) {
  Fault fault{kind, std::move(message), siteAt(site).where};
  if (other)
    fault.other = other->where;
  const Dim3 block = blockOf(rankOf(active));
  fault.block = {block.x, block.y, block.z};
  fault.thread = active % blockThreads;
  launch.add(std::move(fault));
}
