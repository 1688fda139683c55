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

static thread_local Block *currentBlock = nullptr;

Block *Block::current() { return currentBlock; }

void Launch::add(Fault fault) {
  std::lock_guard<std::mutex> lock(mutex);
  for (Fault &known : faults)
    if (known.kind == fault.kind && known.where.op == fault.where.op &&
        known.where.line == fault.where.line &&
        known.where.column == fault.where.column &&
        known.where.function == fault.where.function &&
        known.other.line == fault.other.line &&
        known.other.op == fault.other.op) {
      ++known.count;
      return;
    }
  if (faults.size() < options.maxFaults)
    faults.push_back(std::move(fault));
  if (faults.size() >= options.maxFaults)
    stopped = true;
}

static char *mapArena(size_t bytes) {
  // As aligned as the base that kernels see, so that x86 finds every aligned
  // vector aligned.
  size_t alignment = 4096;
  void *memory = mmap(nullptr, bytes + alignment, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char *>(memory);
}

Block::Block(Launch &launch)
    : launch(launch), threads(launch.shape.block.count()) {
  lanes.resize(threads);
  warps.resize((threads + 31) / 32);
  ready.resize(threads);
  stats.sites.resize(launch.sites.size());
  stats.totals.buffers.resize(launch.buffers.size());
  arena = mapArena(launch.sharedEnd + kScratchBytes);
  scratch = mapArena(kScratchBytes);
}

Block::~Block() {
  if (arena)
    munmap(arena, launch.sharedEnd + kScratchBytes + 4096);
  if (scratch)
    munmap(scratch, kScratchBytes + 4096);
}

uint64_t Block::random() {
  randomState ^= randomState << 13;
  randomState ^= randomState >> 7;
  randomState ^= randomState << 17;
  return randomState;
}

void Block::run(uint64_t index) {
  if (!arena || !scratch ||
      !stacks.reserve(threads, launch.options.stackBytesPerThread)) {
    Fault fault{
        FaultKind::NoProgress,
        "expected memory for the block's stacks, but the system gave none"};
    launch.add(std::move(fault));
    launch.stopped = true;
    return;
  }
  currentBlock = this;
  blockIndex = index;
  const Dim3 &grid = launch.shape.grid, &shape = launch.shape.block;
  blockId = {uint32_t(index % grid.x), uint32_t(index / grid.x % grid.y),
             uint32_t(index / grid.x / grid.y)};
  randomState = (launch.options.seed + 1) * 0x9e3779b97f4a7c15ull +
                index * 0xbf58476d1ce4e5b9ull + 1;
  steps = slice = exited = 0;
  readyHead = readyCount = 0;
  if (launch.asynchronous)
    async.reset(threads, launch.wgmmas);
  clocks.reset(threads, launch.asynchronous ? async.agents.count : 0);
  shadow.reset(launch.sharedEnd);
  for (const SharedRange &range : launch.shared) {
    shadow.declare(range.offset, range.bytes);
    memset(arena + range.offset, 0xff, range.bytes);
  }
  for (Barrier &barrier : barriers)
    barrier = Barrier();
  for (Warp &warp : warps) {
    warp.existing = warp.exited = 0;
    warp.meetings.clear();
    warp.traffic.reset(launch.sites.size() * 2);
  }
  for (unsigned i = 0; i < threads; ++i) {
    Thread &thread = lanes[i];
    thread = Thread();
    thread.number = i;
    thread.x = i % shape.x;
    thread.y = i / shape.x % shape.y;
    thread.z = i / shape.x / shape.y;
    thread.fiber = stacks.get(i);
    prepareFiber(thread.fiber, &Block::entry);
    warps[i / 32].existing |= 1u << (i % 32);
    wake(i);
  }
  takeReady(active);
  main = Fiber();
  switchFiber(main, lanes[active].fiber);
  if (exited < threads && !launch.stopped)
    reportDeadlock();
  for (Warp &warp : warps)
    flushTraffic(warp);
  ++stats.totals.blocks;
  currentBlock = nullptr;
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
  if (slice-- > 0 || readyCount == 0)
    return;
  if (launch.stopped)
    leave();
  wake(active);
  suspend(State::Ready);
}

void Block::step(uint32_t site) {
  lanes[active].site = site;
  yieldSometimes();
}

void Block::trap(uint32_t site) {
  report(FaultKind::Trap, site, "the kernel trapped");
  stop();
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
  fault.block = {blockId.x, blockId.y, blockId.z};
  fault.thread = active;
  launch.add(std::move(fault));
}

std::string Block::describeThreads(llvm::ArrayRef<uint16_t> numbers) const {
  std::string text = numbers.size() == 1 ? "thread " : "threads ";
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1)
      ++end;
    text += (i ? ", " : "") + std::to_string(numbers[i]);
    if (end - i > 1)
      text += "-" + std::to_string(numbers[end - 1]);
    i = end;
  }
  return text;
}

void Block::describeWait(State state, uint32_t barrier,
                         std::string &text) const {
  llvm::raw_string_ostream os(text);
  if (state == State::AtBarrier) {
    os << " wait at barrier " << barrier << " with "
       << barriers[barrier].arrived << " of " << barriers[barrier].expected
       << " threads, at ";
  } else if (state == State::AtMbarrier) {
    const Mbarrier &mbarrier = async.barriers.at(barrier);
    os << " wait for phase " << mbarrier.phase << " of the mbarrier at "
       << barrier << ", which has " << mbarrier.count - mbarrier.pending
       << " of " << mbarrier.count << " arrivals and lacks " << mbarrier.bytes
       << " bytes, at ";
  } else if (state == State::AtWarpgroup) {
    os << " wait for their warpgroup at ";
  } else {
    os << " wait for their warp at ";
  }
}

void Block::reportDeadlock() {
  struct Group {
    State state;
    uint32_t site, barrier;
    std::vector<uint16_t> members;
  };
  std::vector<Group> groups;
  for (const Thread &thread : lanes) {
    uint32_t site = thread.state == State::Exited ? 0 : thread.site;
    Group *group = nullptr;
    for (Group &candidate : groups)
      if (candidate.state == thread.state && candidate.site == site &&
          candidate.barrier == thread.barrier)
        group = &candidate;
    if (!group)
      group =
          &groups.emplace_back(Group{thread.state, site, thread.barrier, {}});
    group->members.push_back(thread.number);
  }
  std::string message = "no thread can go on: ";
  const Group *first = nullptr, *second = nullptr;
  for (const Group &group : groups) {
    message +=
        (&group == groups.data() ? "" : "; ") + describeThreads(group.members);
    if (group.state == State::Exited) {
      message += " ended";
      continue;
    }
    (first ? second : first) = &group;
    llvm::raw_string_ostream os(message);
    describeWait(group.state, group.barrier, message);
    os << siteAt(group.site).where;
  }
  if (!first)
    return;
  active = first->members.front();
  report(FaultKind::Deadlock, first->site, std::move(message),
         second ? &siteAt(second->site) : nullptr);
  launch.stopped = true;
}
