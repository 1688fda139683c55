//===- LoopThreads.cpp - OpenMP's loops on threads of C++ -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The functions of libgomp that the runtime calls, for ThreadSanitizer: a
// program's own come before those of its libraries. Each region starts its
// threads and waits for their ends, so that nothing but the region itself
// orders what they do.
//
//===----------------------------------------------------------------------===//
#include <thread>
#include <vector>

static thread_local int threadNumber = 0;
static thread_local bool isInside = false;

extern "C" {

void GOMP_parallel(void (*run)(void *), void *data, unsigned numThreads,
                   unsigned) {
  std::vector<std::thread> threads;
  for (unsigned number = 1; number < numThreads; ++number)
    threads.emplace_back([=] {
      threadNumber = static_cast<int>(number);
      isInside = true;
      run(data);
    });
  const bool wasInside = isInside;
  isInside = true;
  run(data);
  isInside = wasInside;
  for (std::thread &thread : threads)
    thread.join();
}

int omp_get_max_threads() { return 2; }
int omp_get_num_procs() { return 2; }
int omp_get_thread_num() { return threadNumber; }
int omp_in_parallel() { return isInside; }
int omp_pause_resource_all(int) { return 0; }
}
