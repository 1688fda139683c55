//===- Deadlock.cpp - threads that wait for what does not come ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Block.h"

using namespace mlir::diffattn::sim;

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
    os << " wait at barrier " << barrier % 16 << " with "
       << barriers[barrier].arrived << " of " << barriers[barrier].expected
       << " threads, at ";
  } else if (state == State::AtMbarrier) {
    const Mbarrier &mbarrier = async.barriers.at(barrier);
    os << " wait for phase " << mbarrier.phase << " of "
       << nameMbarrier(barrier) << ", which has "
       << mbarrier.count - mbarrier.pending << " of " << mbarrier.count
       << " arrivals and lacks " << mbarrier.bytes << " bytes, at ";
  } else if (state == State::AtCluster) {
    os << " wait for the cluster, of which " << async.cluster.arrived
       << " threads have arrived, at ";
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
