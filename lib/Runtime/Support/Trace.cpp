//===- Trace.cpp - Spans of work on each thread ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each thread has spans of its own, so that a lock is only waited for while
// they are written. They outlive the thread.
//
//===----------------------------------------------------------------------===//

#include "DiffAttn/Runtime/ABI/Trace.h"
#include "Internal.h"
#include "Trace.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <sys/syscall.h>
#include <unistd.h>
#include <unordered_set>
#include <vector>

using namespace diffattn_rt;

std::atomic<bool> diffattn_rt::isTracing{false};

namespace {

constexpr int64_t kOpen = -1;
constexpr size_t kLeftOut = SIZE_MAX;

struct Span {
  const std::string *label;
  int64_t begin, end; // ns of the system's clock
  int64_t flops, bytes;
};

/// The spans of a thread, in the order of their beginnings.
struct ThreadSpans {
  std::mutex mutex;
  int64_t thread = syscall(SYS_gettid);
  std::unordered_set<std::string> names;
  std::vector<Span> spans;
  std::vector<size_t> open; // places in `spans`, or kLeftOut
  int64_t leftOut = 0;
};

/// The recording, which all threads share.
struct Recording {
  std::mutex mutex;
  std::atomic<int64_t> number{0};
  int64_t begin = 0, end = kOpen;
  std::vector<std::shared_ptr<ThreadSpans>> threads;
};
Recording recording;

/// The spans of this thread in recording `number`.
struct Own {
  int64_t number = 0;
  std::shared_ptr<ThreadSpans> spans;
};
thread_local Own own;

/// The spans of this thread; null if it has none in this recording.
ThreadSpans *findSpans() {
  return own.number == recording.number.load(std::memory_order_relaxed)
             ? own.spans.get()
             : nullptr;
}

ThreadSpans &getSpans() {
  if (ThreadSpans *spans = findSpans())
    return *spans;
  std::lock_guard<std::mutex> lock(recording.mutex);
  own.number = recording.number.load();
  own.spans = std::make_shared<ThreadSpans>();
  recording.threads.push_back(own.spans);
  return *own.spans;
}

void closeLast(ThreadSpans &thread, int64_t now) {
  const size_t last = thread.open.back();
  thread.open.pop_back();
  if (last != kLeftOut)
    thread.spans[last].end = now;
}

/// The bytes of the UTF-8 character that `text` begins with; 0: it is none.
size_t characterBytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t bytes = first < 0x80                    ? 1
                       : first >= 0xc2 && first < 0xe0 ? 2
                       : first >= 0xe0 && first < 0xf0 ? 3
                       : first >= 0xf0 && first < 0xf5 ? 4
                                                       : 0;
  if (bytes > text.size())
    return 0;
  for (size_t i = 1; i < bytes; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80)
      return 0;
  return bytes;
}

/// `text` as a JSON string. Names of functions may hold any bytes.
std::string quote(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    size_t bytes = characterBytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (first < 0x20) {
      char escape[8];
      snprintf(escape, sizeof escape, "\\u%04x", first);
      quoted += escape;
    } else if (bytes == 0) {
      quoted += "\\ufffd";
      bytes = 1;
    } else {
      if (first == '"' || first == '\\')
        quoted += '\\';
      quoted += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return quoted + '"';
}

/// Takes the first line off `text`.
std::string_view takeLine(std::string_view &text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

std::string microseconds(int64_t ns) {
  char text[32];
  snprintf(text, sizeof text, "%" PRId64 ".%03" PRId64, ns / 1000, ns % 1000);
  return text;
}

std::string eventText(const Span &span, int64_t begin, int64_t end,
                      int64_t thread) {
  std::string_view label = *span.label;
  const std::string_view category = takeLine(label), name = takeLine(label),
                         place = takeLine(label), function = takeLine(label);
  std::string text = "{\"ph\":\"X\",\"cat\":" + quote(category) +
                     ",\"name\":" + quote(name) +
                     ",\"pid\":" + std::to_string(getpid()) +
                     ",\"tid\":" + std::to_string(thread) +
                     ",\"ts\":" + microseconds(span.begin - begin) +
                     ",\"dur\":" + microseconds(end - span.begin);
  std::string arguments;
  auto add = [&](const char *key, const std::string &value) {
    ((arguments += arguments.empty() ? "\"" : ",\"") += key) += "\":";
    arguments += value;
  };
  if (!place.empty())
    add("place", quote(place));
  if (!function.empty())
    add("function", quote(function));
  if (span.flops)
    add("flops", std::to_string(span.flops));
  if (span.bytes)
    add("bytes", std::to_string(span.bytes));
  if (!arguments.empty())
    text += ",\"args\":{" + arguments + "}";
  return text + "}";
}

} // namespace

const char *diffattn_rt::openSpan() {
  ThreadSpans *thread =
      isTracing.load(std::memory_order_relaxed) ? findSpans() : nullptr;
  if (!thread || thread->open.empty() || thread->open.back() == kLeftOut)
    return nullptr;
  return thread->spans[thread->open.back()].label->c_str();
}

void diffattn_rt_trace_start(void) {
  std::lock_guard<std::mutex> lock(recording.mutex);
  recording.threads.clear();
  recording.number.fetch_add(1);
  recording.begin = nanoseconds();
  recording.end = kOpen;
  isTracing.store(true);
}

void diffattn_rt_trace_stop(void) {
  std::lock_guard<std::mutex> lock(recording.mutex);
  if (isTracing.exchange(false))
    recording.end = nanoseconds();
}

/// Records that a span of this thread begins.
static void beginSpan(const char *what, int64_t flops, int64_t bytes) {
  ThreadSpans &thread = getSpans();
  std::lock_guard<std::mutex> lock(thread.mutex);
  if (thread.spans.size() >= DIFFATTN_RT_MAX_SPANS) {
    thread.open.push_back(kLeftOut);
    ++thread.leftOut;
    return;
  }
  const std::string &name = *thread.names.insert(what).first;
  thread.open.push_back(thread.spans.size());
  thread.spans.push_back({&name, nanoseconds(), kOpen, flops, bytes});
}

void diffattn_rt_trace_begin(const char *what, int64_t flops, int64_t bytes) {
  if (!isTracing.load(std::memory_order_relaxed))
    return;
  try {
    beginSpan(what, flops, bytes);
  } catch (const std::bad_alloc &) {
    // Compiled code, through which no exception may pass, goes on without: the
    // recording ends where memory does.
    diffattn_rt_trace_stop();
  }
}

void diffattn_rt_trace_end(void) {
  diffattn_rt_trace_end_to(diffattn_rt_trace_depth() - 1);
}

int32_t diffattn_rt_trace_depth(void) {
  if (!isTracing.load(std::memory_order_relaxed))
    return -1;
  ThreadSpans *thread = findSpans();
  return thread ? static_cast<int32_t>(thread->open.size()) : 0;
}

void diffattn_rt_trace_end_to(int32_t depth) {
  ThreadSpans *thread =
      isTracing.load(std::memory_order_relaxed) ? findSpans() : nullptr;
  if (!thread || depth < 0)
    return;
  const int64_t now = nanoseconds();
  std::lock_guard<std::mutex> lock(thread->mutex);
  while (static_cast<int64_t>(thread->open.size()) > depth)
    closeLast(*thread, now);
}

void diffattn_rt_trace_write(void (*write)(void *, const char *, int64_t),
                             void *to) {
  std::lock_guard<std::mutex> lock(recording.mutex);
  const int64_t end = recording.end == kOpen ? nanoseconds() : recording.end;
  auto put = [&](const std::string &text) {
    write(to, text.data(), static_cast<int64_t>(text.size()));
  };
  put("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  const char *separator = "";
  int64_t leftOut = 0;
  for (const std::shared_ptr<ThreadSpans> &thread : recording.threads) {
    std::lock_guard<std::mutex> own(thread->mutex);
    leftOut += thread->leftOut;
    for (const Span &span : thread->spans) {
      put(separator + eventText(span, recording.begin,
                                span.end == kOpen ? end : span.end,
                                thread->thread));
      separator = ",\n";
    }
  }
  put("\n],\"otherData\":{\"wall_us\":" + microseconds(end - recording.begin) +
      ",\"spans_left_out\":" + std::to_string(leftOut) + "}}\n");
}
