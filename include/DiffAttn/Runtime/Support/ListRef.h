//===- ListRef.h - lists that lie in another's memory -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_SUPPORT_LISTREF_H
#define DIFFATTN_RUNTIME_SUPPORT_LISTREF_H

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace diffattn_rt {

/// A view of the elements of any contiguous container, which must outlive it.
template <typename T>
class ListRef {
public:
  ListRef() = default;
  ListRef(const T *first, size_t count) : first(first), count(count) {}
  ListRef(std::initializer_list<T> list)
      : first(list.begin()), count(list.size()) {}
  template <typename Container,
            typename = std::enable_if_t<std::is_convertible_v<
                decltype(std::declval<const Container &>().data()), const T *>>>
  ListRef(const Container &container)
      : first(container.data()), count(container.size()) {}

  const T *data() const { return first; }
  const T *begin() const { return first; }
  const T *end() const { return first + count; }
  size_t size() const { return count; }
  bool empty() const { return count == 0; }
  const T &operator[](size_t i) const { return first[i]; }

  friend bool operator==(ListRef a, ListRef b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend bool operator!=(ListRef a, ListRef b) { return !(a == b); }

private:
  const T *first = nullptr;
  size_t count = 0;
};

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_SUPPORT_LISTREF_H
