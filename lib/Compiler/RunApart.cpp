//===- RunApart.cpp - work in a process of its own ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "RunApart.h"

#include "CrashGuard.h"
#include "DiffAttn/Compiler/Error.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <mutex>
#include <optional>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace mlir::diffattn;
using namespace diffattn_rt;

static std::shared_mutex &getForkMutex() {
  static std::shared_mutex mutex;
  return mutex;
}

NoForks::NoForks() : lock(getForkMutex()) {}

/// Bytes that this process has for data and stacks; nothing without /proc.
static std::optional<int64_t> getDataBytes() {
  FILE *file = std::fopen("/proc/self/statm", "re");
  if (!file)
    return std::nullopt;
  long long pages = 0;
  const int read =
      std::fscanf(file, "%*s %*s %*s %*s %*s %lld", &pages); // the sixth
  std::fclose(file);
  if (read != 1)
    return std::nullopt;
  return pages * ::sysconf(_SC_PAGESIZE);
}

static void lower(int resource, int64_t soft, int64_t hard) {
  rlimit limit;
  if (::getrlimit(resource, &limit))
    return;
  limit.rlim_max = std::min(limit.rlim_max, static_cast<rlim_t>(hard));
  limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(soft));
  ::setrlimit(resource, &limit);
}

/// Limits this process. A crash in it reaches no handler, prints nothing and
/// leaves no core file.
static void confine(const ApartLimits &limits) {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGXCPU,
                     SIGPIPE, SIGTERM, SIGINT, SIGHUP}) {
    std::signal(signal, SIG_DFL);
    ::sigaddset(&signals, signal);
  }
  ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  if (const int sink = ::open("/dev/null", O_WRONLY | O_CLOEXEC); sink >= 0)
    ::dup2(sink, STDERR_FILENO);
  lower(RLIMIT_CORE, 0, 0);
  lower(RLIMIT_CPU, limits.seconds, limits.seconds + 1);
  if (std::optional<int64_t> bytes = getDataBytes())
    lower(RLIMIT_DATA, *bytes + limits.bytes, *bytes + limits.bytes);
}

[[noreturn]] static void runAndEnd(int pipe, const ApartLimits &limits,
                                   llvm::function_ref<std::string()> action) {
  confine(limits);
  // The first byte marks that `action` came to its end.
  const std::string text = "." + action();
  for (llvm::StringRef left = text; !left.empty();) {
    const ssize_t count = ::write(pipe, left.data(), left.size());
    if (count < 0 && errno != EINTR)
      break;
    left = left.drop_front(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }
  ::_exit(0);
}

/// Reads until the other end is closed; nothing if that takes longer.
static std::optional<std::string> readAll(int pipe,
                                          std::chrono::seconds longest) {
  const auto end = std::chrono::steady_clock::now() + longest;
  std::string text;
  char buffer[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd waited{pipe, POLLIN, 0};
    if (left.count() <= 0)
      return std::nullopt;
    if (::poll(&waited, 1, static_cast<int>(left.count())) <= 0)
      continue;
    const ssize_t count = ::read(pipe, buffer, sizeof(buffer));
    if (count > 0)
      text.append(buffer, static_cast<size_t>(count));
    else if (count == 0 || errno != EINTR)
      return text;
  }
}

/// Exit status of the process; 0 where another part of this one has waited for
/// it before.
static int waitFor(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0)
    if (errno != EINTR)
      return 0;
  return status;
}

llvm::Expected<std::string>
mlir::diffattn::runApart(const ApartLimits &limits,
                         llvm::function_ref<std::string()> action) {
  auto noProcess = [] {
    return makeError(ErrorClass::Run,
                     "expected a process to work in, but got: " +
                         std::generic_category().message(errno));
  };
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC))
    return noProcess();
  pid_t process;
  {
    std::unique_lock<std::shared_mutex> lock(getForkMutex());
    process = ::fork();
  }
  if (process == 0)
    runAndEnd(ends[1], limits, action);
  ::close(ends[1]);
  if (process < 0) {
    llvm::Error error = noProcess();
    ::close(ends[0]);
    return std::move(error);
  }
  // Where it waits for what another thread held, it takes no time of a CPU.
  std::optional<std::string> text =
      readAll(ends[0], std::chrono::seconds(limits.elapsed));
  ::close(ends[0]);
  if (!text)
    ::kill(process, SIGKILL);
  const int status = waitFor(process);
  if (text && !text->empty())
    return text->substr(1);
  auto tookMore = [](int64_t seconds, const char *of) {
    return makeError(ErrorClass::IR, "expected MLIR to take at most " +
                                         std::to_string(seconds) +
                                         " seconds of " + of +
                                         ", but it took more");
  };
  if (!text)
    return tookMore(limits.elapsed, "the clock");
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    return tookMore(limits.seconds, "a CPU");
  return makeError(ErrorClass::IR, kCrashed);
}
