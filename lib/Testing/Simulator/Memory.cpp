//===- Memory.cpp - accesses to shared and global memory ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"

#include "llvm/Support/Format.h"

#include <cstring>

using namespace mlir::diffattn::sim;

static bool isShared(uint64_t address) {
  // The block's own window, and those of the cluster after it.
  return address - kSharedBase < (1 + kMaxRanks) * kSharedWindow;
}

static std::string bytesOf(uint64_t bytes) {
  return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

bool Block::checkAlignment(uint64_t address, uint32_t alignment, uint32_t site,
                           llvm::StringRef what) {
  if (address % alignment == 0)
    return true;
  report(FaultKind::Misaligned, site,
         "expected an address in " + what.str() + " that is a multiple of " +
             std::to_string(alignment) + ", but got " +
             std::to_string(address) + ", which is " +
             std::to_string(address % alignment) + " off");
  return false;
}

void Block::reportShadow(const ShadowHit &hit, const Shadow::Access &access,
                         bool writes) {
  if (hit.kind == ShadowHit::Never && !launch.options.checkUninitialized)
    return;
  const std::string place = bytesOf(access.bytes) + " at " +
                            std::to_string(localOf(access.offset)) +
                            " of shared memory";
  const std::string self = "thread " + std::to_string(access.thread),
                    other = describeActor(hit.thread);
  const uint16_t saved = active;
  active = access.thread;
  switch (hit.kind) {
  case ShadowHit::Outside:
    break;
  case ShadowHit::Never:
    report(FaultKind::Uninitialized, access.site,
           self + " reads " + place + ", but nothing wrote byte " +
               std::to_string(localOf(hit.offset)));
    break;
  case ShadowHit::Pending:
    report(FaultKind::NotArrived, access.site,
           self + " reads " + place + ", but a copy that " +
               (hit.thread < threads
                    ? other + " issued and has not waited for"
                    : std::string("no wait for its mbarrier has seen")) +
               " is still under way",
           &siteAt(hit.site));
    break;
  case ShadowHit::Barrier:
    report(FaultKind::BarrierMismatch, access.site,
           self + (writes ? " writes " : " reads ") + place +
               ", which is an mbarrier",
           &siteAt(hit.site));
    break;
  case ShadowHit::Proxy:
    report(FaultKind::MissingFence, access.site,
           self + " has " + place + (writes ? " written" : " read") +
               " through the async proxy, but " + other +
               " wrote them, with no fence.proxy.async of its own in between",
           &siteAt(hit.site));
    break;
  case ShadowHit::Order:
    report(FaultKind::Order, access.site,
           self + " adds to " + place + ", to which " + other +
               " adds, and nothing orders the two: in floating point their "
               "order decides the sum",
           &siteAt(hit.site));
    break;
  case ShadowHit::Race:
    report(FaultKind::Race, access.site,
           self + (writes ? " writes " : " reads ") + place + ", which " +
               other + (hit.otherWrites ? " writes" : " reads") +
               ", and nothing orders the two",
           &siteAt(hit.site));
    break;
  }
  active = saved;
}

void *Block::access(uint64_t address, uint64_t bytes, uint32_t number) {
  const Thread &thread = lanes[active];
  const uint64_t low = reinterpret_cast<uint64_t>(thread.fiber.low),
                 high = reinterpret_cast<uint64_t>(thread.fiber.high);
  if (address >= low && address + bytes <= high)
    return reinterpret_cast<void *>(address);
  lanes[active].site = number;
  ++stats.totals.laneAccesses;
  yieldSometimes();
  if (isShared(address))
    return accessShared(sharedAt(address), bytes, number);
  return accessGlobal(address, bytes, number);
}

void *Block::accessShared(uint32_t offset, uint64_t bytes, uint32_t number) {
  const Site &site = siteAt(number);
  if (site.space == 1 || bytes > kSharedWindow ||
      !shadow.inside(offset, bytes)) {
    report(FaultKind::OutOfBounds, number,
           bytesOf(bytes) + " at " + std::to_string(localOf(offset)) +
               " of shared memory, of which the kernel has " +
               std::to_string(launch.sharedEnd) + " bytes" +
               (site.space == 1 ? ", through a global pointer" : ""));
    return scratch;
  }
  if (!checkAlignment(offset, site.alignment, number, "shared memory"))
    return scratch;
  const Shadow::Access access{offset,
                              uint32_t(bytes),
                              active,
                              uint16_t(number),
                              site.kind == OpKind::Atomic,
                              site.addsFloats};
  const bool races = launch.options.checkRaces,
             writes = site.kind != OpKind::Load;
  if (launch.options.countTraffic)
    warps[active / 32].traffic.add(number, active % 32, offset);
  // Memory that an atomic reads must have been written; its race is that of a
  // write.
  if (site.kind != OpKind::Store)
    if (auto hit =
            shadow.read(access, clocks, races && site.kind == OpKind::Load))
      reportShadow(*hit, access, false);
  if (writes)
    if (auto hit = shadow.write(access, clocks, races))
      reportShadow(*hit, access, true);
  return arena + offset;
}

std::string Block::describeBlock(uint32_t block) const {
  if (block == blockIndex)
    return "";
  return (launch.ranks > 1 ? " of cluster " : " of block ") +
         std::to_string(block);
}

void Block::checkHasWaited(uint32_t number) {
  if (launch.startsEarly && !lanes[active].hasWaited)
    report(FaultKind::Early, number,
           "the kernels ahead may still run, and griddepcontrol.wait comes "
           "later");
}

void *Block::accessGlobal(uint64_t address, uint64_t bytes, uint32_t number) {
  const Site &site = siteAt(number);
  const bool writes = site.kind != OpKind::Load;
  Buffer *buffer = nullptr;
  checkHasWaited(number);
  if (site.space == 3) {
    report(FaultKind::OutOfBounds, number,
           bytesOf(bytes) + " at " +
               std::to_string(int64_t(address - kSharedBase)) +
               " of shared memory, of which the kernel has " +
               std::to_string(launch.sharedEnd) + " bytes");
    return scratch;
  }
  char *host = checkGlobal(address, bytes, number, writes,
                           site.kind == OpKind::Atomic, buffer);
  if (!host)
    return scratch;
  BufferStats &counts = stats.totals.buffers[launch.buffers.indexOf(*buffer)];
  (writes ? counts.storedBytes : counts.loadedBytes) += bytes;
  if (launch.options.countTraffic)
    warps[active / 32].traffic.add(number, active % 32, address);
  return host;
}

char *Block::checkGlobal(uint64_t address, uint64_t bytes, uint32_t number,
                         bool writes, bool atomic, Buffer *&buffer) {
  const Site &site = siteAt(number);
  buffer = launch.buffers.find(address);
  if (!buffer) {
    std::string text;
    llvm::raw_string_ostream(text)
        << bytesOf(bytes) << " at " << llvm::format_hex(address, 18)
        << ", which lies in no buffer";
    report(FaultKind::OutOfBounds, number, std::move(text));
    return nullptr;
  }
  const int64_t offset = address - buffer->device;
  if (offset < 0 || uint64_t(offset) > buffer->bytes ||
      bytes > buffer->bytes - offset) {
    report(FaultKind::OutOfBounds, number,
           bytesOf(bytes) + " at " + std::to_string(offset) + " of buffer " +
               buffer->name + ", which has " + bytesOf(buffer->bytes));
    return nullptr;
  }
  if (writes && !buffer->use.writable) {
    report(FaultKind::OutOfBounds, number,
           "buffer " + buffer->name + " is only to be read");
    return nullptr;
  }
  const uint32_t alignment =
      site.kind == OpKind::CopyAsync ? site.bytes : site.alignment;
  // The name is put together only where it is needed: this runs for each
  // access.
  if (address % alignment != 0) {
    checkAlignment(address % 4096, alignment, number, "buffer " + buffer->name);
    return nullptr;
  }
  if (!buffer->writes)
    return buffer->host + offset;
  const GlobalWrite now{launch.number, uint32_t(blockIndex), clocks.now(active),
                        active, uint16_t(number)};
  bool reported = false;
  for (GlobalWrite *write = buffer->writes + offset, *end = write + bytes;
       write != end; ++write) {
    // Memory that an atomic reads must have been written too.
    if ((!writes || atomic) && write->launch == 0 && !buffer->use.initialized &&
        launch.options.checkUninitialized && !reported) {
      reported = true;
      report(FaultKind::Uninitialized, number,
             "byte " + std::to_string(write - buffer->writes) + " of buffer " +
                 buffer->name + " is read, but nothing wrote it");
    }
    if (write->launch == launch.number && launch.options.checkRaces &&
        !reported && site.addsFloats && siteAt(write->site).addsFloats) {
      const bool elsewhere = write->block != blockIndex;
      if (elsewhere || !clocks.ordered(active, write->thread, write->when)) {
        reported = true;
        report(FaultKind::Order, number,
               "thread " + std::to_string(active) + " adds to byte " +
                   std::to_string(write - buffer->writes) + " of buffer " +
                   buffer->name + ", to which " + describeActor(write->thread) +
                   describeBlock(write->block) +
                   " adds, and nothing orders the two: in floating point their "
                   "order decides the sum",
               &siteAt(write->site));
      }
    }
    if (write->launch == launch.number && launch.options.checkRaces &&
        !atomic && !reported) {
      const bool elsewhere = write->block != blockIndex;
      if (elsewhere || !clocks.ordered(active, write->thread, write->when) ||
          (site.invariant && !writes)) {
        reported = true;
        report(FaultKind::Race, number,
               "thread " + std::to_string(active) +
                   (writes ? " writes" : " reads") + " byte " +
                   std::to_string(write - buffer->writes) + " of buffer " +
                   buffer->name + ", which " + describeActor(write->thread) +
                   describeBlock(write->block) + " writes" +
                   (site.invariant && !writes
                        ? ", although the load says that nothing does"
                        : ", and nothing orders the two"),
               &siteAt(write->site));
      }
    }
    if (writes)
      *write = now;
  }
  return buffer->host + offset;
}

void Block::copyAsync(uint64_t destination, uint64_t source,
                      uint32_t sourceBytes, uint32_t number) {
  const Site &site = siteAt(number);
  Thread &thread = lanes[active];
  thread.site = number;
  ++stats.totals.laneAccesses;
  yieldSometimes();
  const uint32_t offset = sharedAt(destination);
  if (!isShared(destination) || !shadow.inside(offset, site.bytes)) {
    report(FaultKind::OutOfBounds, number,
           bytesOf(site.bytes) + " at " +
               std::to_string(int64_t(destination - kSharedBase)) +
               " of shared memory, of which the kernel has " +
               std::to_string(launch.sharedEnd) + " bytes");
    return;
  }
  if (!checkAlignment(offset, site.bytes, number, "shared memory"))
    return;
  if (sourceBytes > site.bytes) {
    report(FaultKind::OutOfBounds, number,
           "expected a copy of at most " + bytesOf(site.bytes) + ", but got " +
               std::to_string(sourceBytes));
    return;
  }
  Copy copy{uint32_t(offset), site.bytes,   sourceBytes,
            number,           thread.group, nullptr};
  if (sourceBytes) {
    checkHasWaited(number);
    Buffer *buffer = nullptr;
    copy.source = checkGlobal(source, sourceBytes, number, /*writes=*/false,
                              /*atomic=*/false, buffer);
    if (!copy.source)
      copy.sourceBytes = 0;
    else
      stats.totals.buffers[launch.buffers.indexOf(*buffer)].copiedBytes +=
          sourceBytes;
  }
  const Shadow::Access access{copy.offset, copy.bytes, active,
                              uint16_t(number)};
  if (auto hit = shadow.issueCopy(access, clocks, launch.options.checkRaces))
    reportShadow(*hit, access, true);
  if (launch.options.countTraffic) {
    TrafficRecorder &traffic = warps[active / 32].traffic;
    traffic.add(number, active % 32, copy.offset);
    if (copy.source)
      traffic.add(launch.sites.size() + number, active % 32, source);
  }
  if (launch.options.copies == CopyTiming::Late) {
    // Whoever reads too early finds NaNs.
    memset(arena + copy.offset, 0xff, copy.bytes);
  } else {
    memset(arena + copy.offset, 0, copy.bytes);
    if (copy.source)
      memcpy(arena + copy.offset, copy.source, copy.sourceBytes);
  }
  thread.copies.push_back(copy);
}

void Block::landCopy(const Copy &copy) {
  if (launch.options.copies == CopyTiming::Late) {
    memset(arena + copy.offset, 0, copy.bytes);
    if (copy.source)
      memcpy(arena + copy.offset, copy.source, copy.sourceBytes);
  }
  shadow.landCopy({copy.offset, copy.bytes, active, uint16_t(copy.site)},
                  clocks);
}

void Block::waitForCopies(int64_t newest) {
  Thread &thread = lanes[active];
  size_t landed = 0;
  while (landed < thread.copies.size() &&
         (newest < 0 || int64_t(thread.copies[landed].group) <
                            int64_t(thread.group) - newest))
    landCopy(thread.copies[landed++]);
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + landed);
}

uint32_t Block::specialRegister(uint32_t which) const {
  const Thread &thread = lanes[active];
  const Dim3 &block = launch.shape.block, &grid = launch.shape.grid,
             id = blockOf(rankOf(active));
  const uint32_t lane = active % 32;
  const uint32_t values[] = {thread.x,
                             thread.y,
                             thread.z,
                             id.x,
                             id.y,
                             id.z,
                             block.x,
                             block.y,
                             block.z,
                             grid.x,
                             grid.y,
                             grid.z,
                             lane,
                             active % blockThreads / 32,
                             (blockThreads + 31) / 32,
                             32,
                             1u << lane,
                             (1u << lane) - 1,
                             (1u << lane) | ((1u << lane) - 1),
                             ~((1u << lane) - 1) & ~(1u << lane),
                             ~((1u << lane) - 1),
                             launch.shape.dynamicSharedBytes,
                             launch.sharedEnd,
                             rankOf(active),
                             launch.ranks};
  return values[which];
}

float Block::approximation(Approx function, float x, bool flush) {
  ++stats.totals.approximations;
  return approximate(function, x, flush,
                     launch.options.perturb ? launch.options.seed + 1 : 0);
}

float Block::division(float a, float b, bool flush) {
  ++stats.totals.approximations;
  return divideApproximately(
      a, b, flush, launch.options.perturb ? launch.options.seed + 1 : 0);
}

void Block::flushTraffic(Warp &warp) {
  warp.traffic.flush([&](const TrafficRecorder::Record &record) {
    const bool source = record.site >= launch.sites.size();
    const uint32_t number =
        source ? record.site - launch.sites.size() : record.site;
    const Site &site = siteAt(number);
    WorkerStats::SiteCounts &counts = stats.sites[number];
    if (!source)
      ++counts.accesses;
    const uint64_t first = record.addresses[__builtin_ctz(record.mask)];
    if (!(first & kGlobalTag) && first < kSharedWindow) {
      BankCount banks = countBanks(record.addresses, record.mask, site.bytes);
      counts.wavefronts += banks.wavefronts;
      counts.conflicts += banks.conflicts;
      stats.totals.sharedWavefronts += banks.wavefronts;
      stats.totals.bankConflicts += banks.conflicts;
      if (site.kind == OpKind::CopyAsync)
        stats.totals.copyConflicts += banks.conflicts;
      return;
    }
    uint32_t sectors = countSectors(record.addresses, record.mask, site.bytes);
    counts.sectors += sectors;
    stats.totals.globalSectors += sectors;
    if (Buffer *buffer = launch.buffers.find(first))
      stats.totals.buffers[launch.buffers.indexOf(*buffer)].sectors += sectors;
  });
}
