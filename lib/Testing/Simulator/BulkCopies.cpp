//===- BulkCopies.cpp - the copy engine -----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"

#include <cstring>

using namespace mlir::diffattn::sim;

std::optional<TensorMap> Block::mapAt(const uint32_t *in, uint32_t site) {
  const uint64_t address = in[0] | uint64_t(in[1]) << 32;
  for (const TensorMapHandle &object : launch.objects)
    if (reinterpret_cast<uint64_t>(&object) == address)
      if (auto map = decodeTensorMap(&object))
        return map;
  report(FaultKind::Descriptor, site,
         "expected the address of a tensor map that is a parameter of the "
         "kernel, but got another");
  return std::nullopt;
}

void Block::forRows(
    const BulkCopy &copy,
    llvm::function_ref<void(uint32_t, uint64_t, uint32_t)> row) {
  const TensorMap &map = copy.map;
  const int64_t first = std::max<int64_t>(0, -int64_t(copy.at[0])),
                last = std::min<int64_t>(map.box[0],
                                         int64_t(map.sizes[0]) - copy.at[0]);
  if (first >= last)
    return;
  const uint32_t rowBytes = map.box[0] * map.elementBytes,
                 rows = map.getBoxBytes() / rowBytes;
  for (uint32_t number = 0; number < rows; ++number) {
    uint64_t address =
        map.base + (copy.at[0] + first) * int64_t(map.elementBytes);
    bool inside = true;
    for (uint32_t axis = 1, rest = number; axis < map.rank; ++axis) {
      const int64_t index = int64_t(copy.at[axis]) + rest % map.box[axis];
      rest /= map.box[axis];
      inside &= index >= 0 && uint64_t(index) < map.sizes[axis];
      address += index * map.strides[axis - 1];
    }
    if (inside)
      row(number * rowBytes + first * map.elementBytes, address,
          (last - first) * map.elementBytes);
  }
}

uint32_t Block::place(const BulkCopy &copy, uint32_t linear) const {
  const uint32_t offset = copy.offset + linear;
  return copy.map.swizzle128 ? offset ^ (offset >> 7 & 7) << 4 : offset;
}

/// Calls `piece` with each part of [linear, linear + bytes) that stays together
/// in shared memory: 16 bytes, aligned, are never torn apart.
static void
forPieces(uint32_t linear, uint32_t bytes,
          llvm::function_ref<void(uint32_t at, uint32_t done, uint32_t bytes)>
              piece) {
  for (uint32_t done = 0; done < bytes;) {
    const uint32_t at = linear + done,
                   size = std::min(bytes - done, 16 - at % 16);
    piece(at, done, size);
    done += size;
  }
}

void Block::move(const BulkCopy &copy, bool toShared) {
  if (toShared)
    memset(arena + copy.offset, 0, copy.map.getBoxBytes());
  forRows(copy, [&](uint32_t linear, uint64_t address, uint32_t bytes) {
    // A row that was found wrong when the copy was issued stays zero.
    Buffer *buffer = launch.buffers.find(address);
    if (!buffer || address < buffer->device ||
        address - buffer->device + bytes > buffer->bytes ||
        (!toShared && !buffer->use.writable))
      return;
    char *global = buffer->host + (address - buffer->device);
    forPieces(linear, bytes, [&](uint32_t at, uint32_t done, uint32_t size) {
      char *shared = arena + place(copy, at);
      memcpy(toShared ? shared : global + done,
             toShared ? global + done : shared, size);
    });
  });
}

void Block::copyTensor(const uint32_t *in, uint32_t number) {
  const Site &site = siteAt(number);
  const bool loads = site.kind == OpKind::TensorLoad;
  checkHasWaited(number);
  const uint32_t *mapWords = in + (loads ? 4 : 2);
  auto map = mapAt(mapWords, number);
  if (!map)
    return;
  if (map->rank != site.rank) {
    report(FaultKind::Descriptor, number,
           "expected a tensor map of " + std::to_string(site.rank) +
               " axes, but got one of " + std::to_string(map->rank));
    return;
  }
  BulkCopy copy;
  copy.map = *map;
  copy.site = number;
  for (uint32_t axis = 0; axis < map->rank; ++axis)
    copy.at[axis] = static_cast<int32_t>(mapWords[2 + axis]);
  auto offset = sharedOffset(in, map->getBoxBytes(),
                             map->swizzle128 ? 1024 : 128, number);
  auto barrier = loads ? sharedOffset(in + 2, 8, 8, number) : 0;
  if (!offset || !barrier)
    return;
  copy.offset = *offset;
  copy.barrier = *barrier;
  if (!loads)
    return issueStore(copy);
  if (!site.multicast)
    return issueLoad(copy);
  const uint32_t mask = mapWords[2 + map->rank] & 0xffff;
  if (mask == 0 || mask >> launch.ranks) {
    report(FaultKind::Descriptor, number,
           "expected a mask of the " + std::to_string(launch.ranks) +
               " blocks of the cluster, but got " + std::to_string(mask));
    return;
  }
  for (unsigned rank = 0; rank < launch.ranks; ++rank) {
    if (!(mask >> rank & 1))
      continue;
    copy.offset = localOf(*offset) + rank * launch.window;
    copy.barrier = localOf(*barrier) + rank * launch.window;
    issueLoad(copy, rank == unsigned(__builtin_ctz(mask)));
  }
}

void Block::copyBulk(const uint32_t *in, uint32_t number) {
  const uint32_t bytes = in[6];
  checkHasWaited(number);
  BulkCopy copy;
  copy.site = number;
  copy.map.base = in[4] | uint64_t(in[5]) << 32;
  copy.map.elementBytes = 1;
  copy.map.sizes[0] = copy.map.box[0] = bytes;
  auto offset = sharedOffset(in, bytes, 16, number),
       barrier = sharedOffset(in + 2, 8, 8, number);
  if (!offset || !barrier ||
      !checkAlignment(copy.map.base % 4096, 16, number, "global memory"))
    return;
  if (bytes == 0 || bytes % 16) {
    report(FaultKind::Misaligned, number,
           "expected a copy of a multiple of 16 bytes, but got " +
               std::to_string(bytes));
    return;
  }
  copy.offset = *offset;
  copy.barrier = *barrier;
  issueLoad(copy);
}

void Block::issueLoad(BulkCopy copy, bool first) {
  Mbarrier *barrier = hasEnded(copy.offset, copy.site)
                          ? nullptr
                          : findMbarrier(copy.barrier, copy.site);
  if (!barrier)
    return;
  if (!barrier->fenced) {
    report(FaultKind::MissingFence, copy.site,
           "the copy engine counts at " + nameMbarrier(copy.barrier) +
               ", but thread " + std::to_string(barrier->initializer) +
               " executed no fence.mbarrier_init since it initialized it",
           &siteAt(barrier->site));
    barrier->fenced = true;
  }
  stats.totals.bulkCopies += first;
  forRows(copy, [&](uint32_t, uint64_t address, uint32_t bytes) {
    Buffer *buffer = nullptr;
    if (first && checkGlobal(address, bytes, copy.site, /*writes=*/false,
                             /*atomic=*/false, buffer))
      stats.totals.buffers[launch.buffers.indexOf(*buffer)].copiedBytes +=
          bytes;
  });
  const uint32_t bytes = copy.map.getBoxBytes();
  const Shadow::Access access{copy.offset, bytes, active, uint16_t(copy.site)};
  if (auto hit = shadow.writeBy({barrier->agent, barrier->phase + 1}, access,
                                clocks, launch.options.checkRaces))
    reportShadow(*hit, access, true);
  async.loads.push_back(copy);
  if (launch.options.copies == CopyTiming::Early)
    landLoad();
  else // Whoever reads too early finds NaNs.
    memset(arena + copy.offset, 0xff, bytes);
}

bool Block::landLoad() {
  if (async.loads.empty())
    return false;
  const BulkCopy copy = async.loads.front();
  async.loads.pop_front();
  if (exitedOf[launch.ranks == 1 ? 0 : copy.offset / launch.window] ==
      blockThreads)
    report(FaultKind::InFlight, copy.site,
           "the block ended, but nothing waited for this copy");
  const uint32_t bytes = copy.map.getBoxBytes();
  move(copy, /*toShared=*/true);
  shadow.landBy(copy.offset, bytes);
  if (auto it = async.barriers.find(copy.barrier); it != async.barriers.end())
    completeBytes(copy.barrier, it->second, bytes, copy.site);
  return true;
}

void Block::issueStore(BulkCopy copy) {
  auto [it, isNew] = async.storers.try_emplace(active);
  Storer &storer = it->second;
  if (isNew) {
    if (async.storers.size() > launch.ranks * AgentNumbers::kMaxStorers) {
      report(FaultKind::Descriptor, copy.site,
             "expected at most " + std::to_string(AgentNumbers::kMaxStorers) +
                 " threads of a block to store by the copy engine, which is "
                 "what the simulator knows");
      stop();
    }
    storer.agent = async.agents.firstStorer + 2 * (async.storers.size() - 1);
  }
  ++stats.totals.bulkCopies;
  copy.group = storer.group;
  const Shadow::Agent reader{storer.agent, storer.group + 1};
  forRows(copy, [&](uint32_t linear, uint64_t address, uint32_t bytes) {
    forPieces(linear, bytes, [&](uint32_t at, uint32_t, uint32_t size) {
      const Shadow::Access access{place(copy, at), size, active,
                                  uint16_t(copy.site)};
      if (auto hit = shadow.readBy(reader, access, {active}, clocks,
                                   launch.options.checkRaces))
        reportShadow(*hit, access, false);
    });
    Buffer *buffer = nullptr;
    if (!checkGlobal(address, bytes, copy.site, /*writes=*/true,
                     /*atomic=*/false, buffer))
      return;
    stats.totals.buffers[launch.buffers.indexOf(*buffer)].storedBytes += bytes;
    // A read by this thread before it has waited is a race.
    if (buffer->writes)
      for (uint32_t i = 0; i < bytes; ++i) {
        GlobalWrite &write = buffer->writes[address - buffer->device + i];
        write.thread = storer.agent + 1;
        write.when = storer.group + 1;
      }
  });
  if (launch.options.copies == CopyTiming::Early)
    move(copy, /*toShared=*/false);
  storer.copies.push_back(copy);
}

void Block::waitForStores(uint32_t newest, bool readsOnly) {
  auto it = async.storers.find(active);
  if (it == async.storers.end() || it->second.group <= newest)
    return;
  Storer &storer = it->second;
  const uint32_t done = storer.group - newest;
  while (!storer.copies.empty() && storer.copies.front().group < done) {
    if (launch.options.copies == CopyTiming::Late)
      move(storer.copies.front(), /*toShared=*/false);
    storer.copies.pop_front();
  }
  Clocks::Vector seen;
  clocks.releaseAgent(seen, storer.agent, done);
  if (!readsOnly)
    clocks.releaseAgent(seen, storer.agent + 1, done);
  clocks.acquire(seen, {active});
}
