//===- Fiber.cpp - one thread of a kernel ---------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Fiber.h"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#define DIFFATTN_SIM_ASAN 1
/// The function that the compiler calls where a variable's scope ends: unlike
/// the public calls it also works where a program may not poison.
extern "C" void __asan_unpoison_stack_memory(uintptr_t low, size_t bytes);
#endif
#endif

using namespace mlir::diffattn::sim;

// The registers that a call preserves, and the floating-point modes. A switch
// by ucontext would make two system calls.
#if !defined(__x86_64__)
#error                                                                         \
    "the simulator makes code for x86-64 and runs it: expected an x86-64 host"
#endif
asm(R"(
  .text
  .p2align 4
  .type diffattn_sim_switch, @function
diffattn_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  subq $8, %rsp
  stmxcsr (%rsp)
  fnstcw 4(%rsp)
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  ldmxcsr (%rsp)
  fldcw 4(%rsp)
  addq $8, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  retq
  .size diffattn_sim_switch, .-diffattn_sim_switch
)");
extern "C" void diffattn_sim_switch(void **save, void *load);

FiberStacks::~FiberStacks() {
  if (base)
    munmap(base, mapped);
}

bool FiberStacks::reserve(unsigned count, size_t bytes) {
  size_t page = sysconf(_SC_PAGESIZE);
  size_t size = (bytes + page - 1) / page * page + page;
  if (base && stride == size && mapped >= count * stride)
    return true;
  if (base)
    munmap(base, mapped);
  stride = size;
  mapped = count * stride;
  void *memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  base = memory == MAP_FAILED ? nullptr : static_cast<char *>(memory);
  for (unsigned i = 0; base && i < count; ++i)
    mprotect(base + i * stride, page, PROT_NONE);
  return base != nullptr;
}

Fiber FiberStacks::get(unsigned index) const {
  size_t page = sysconf(_SC_PAGESIZE);
  Fiber fiber;
  fiber.low = base + index * stride + page;
  fiber.high = base + (index + 1) * stride;
  return fiber;
}

void mlir::diffattn::sim::prepareFiber(Fiber &fiber, void (*entry)()) {
#ifdef DIFFATTN_SIM_ASAN
  // The thread that had this stack never came back to end its frames.
  __asan_unpoison_stack_memory(reinterpret_cast<uintptr_t>(fiber.low),
                               fiber.high - fiber.low);
#endif
  // As if `entry` had been called: the stack pointer is 8 off a multiple of 16.
  uint64_t *top = reinterpret_cast<uint64_t *>(fiber.high) - 2;
  top[1] = 0;
  top[0] = reinterpret_cast<uint64_t>(entry);
  uint64_t *saved = top - 7;
  memset(saved, 0, 7 * sizeof(uint64_t));
  uint32_t modes[2];
  asm volatile("stmxcsr %0\n\tfnstcw %1"
               : "=m"(modes[0]),
                 "=m"(*reinterpret_cast<uint16_t *>(&modes[1])));
  memcpy(saved, modes, sizeof(modes));
  fiber.stackPointer = saved;
}

void mlir::diffattn::sim::switchFiber(Fiber &from, Fiber &to) {
#ifdef DIFFATTN_SIM_ASAN
  void *fakeStack = nullptr;
  __sanitizer_start_switch_fiber(&fakeStack, to.low, to.high - to.low);
#endif
  diffattn_sim_switch(&from.stackPointer, to.stackPointer);
#ifdef DIFFATTN_SIM_ASAN
  __sanitizer_finish_switch_fiber(fakeStack, nullptr, nullptr);
#endif
}

void mlir::diffattn::sim::enterFiber([[maybe_unused]] Fiber &main) {
#ifdef DIFFATTN_SIM_ASAN
  const void *low = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &low, &bytes);
  // The first fiber comes from the thread's own stack. Without its bounds the
  // sanitizer takes the thread to have none after the switch back.
  if (!main.high) {
    main.low = const_cast<char *>(static_cast<const char *>(low));
    main.high = main.low + bytes;
  }
#endif
}
