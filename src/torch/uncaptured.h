// Calls that nothing is to be learnt from.
//
// Most calls of a stream of many sizes, and all of a graph that was given up, are served by the
// compiled callable, and Python, which decides that (runtime/bypass.py), need not hear of them: it
// would take longer than a call may. A signature, the integers of a call, *rests* for a number of
// calls, one that is new for as many as no graph is made at; one that rests no more still does
// while all is quiet, unless it has come back soon.
#pragma once

#include <Python.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tensor_program.h"
#include "sizes.h"

namespace pygraph::torch_bridge {

/// Guarded by the GIL.
class Uncaptured {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kAlways = ~std::uint64_t{0};
  /// Signatures that are known at the same time; with one more all are forgotten.
  static constexpr std::size_t kMost = 4096;

  /// `function` takes one list of arguments, which it clears. `integers` are the arguments that
  /// signatures consist of. Tensors of a device among `aligned` must have addresses without the
  /// bits of `alignment_mask`; a call where one has is not served here, whatever rests. A new
  /// signature rests for `first_calls`.
  Uncaptured(PyObject* function, std::vector<std::uint32_t> integers,
             std::vector<std::uint32_t> aligned, std::uint64_t alignment_mask,
             std::uint64_t first_calls);
  ~Uncaptured() { release(); }
  Uncaptured(const Uncaptured&) = delete;
  Uncaptured& operator=(const Uncaptured&) = delete;

  /// The signature of `arguments` rests for so many calls. Nothing for arguments without one.
  void rest(const Arguments& arguments, std::uint64_t calls);
  /// It does not rest, quiet or not.
  void listen(const Arguments& arguments);
  /// Until then no signature is worth hearing of, but for those that are listened to, and those
  /// whose last call was one of the `soon` calls before this one.
  void quiet(Clock::time_point until, std::uint64_t soon) noexcept {
    quiet_ = until;
    soon_ = soon;
  }
  /// Calls with one signature.
  struct Served {
    std::uint64_t calls;   ///< that were served here since this was asked last
    std::uint64_t before;  ///< the number of the call before the last one; 0: there was none
  };
  Served served(const Arguments& arguments);

  /// Whether the graph's call `number`, from 1 on, is to be served here; it is counted as one.
  bool takes(const Arguments& arguments, std::uint64_t number);
  /// Serves it. A new reference, or null with a Python error set. `arguments` is the list.
  PyObject* call(PyObject* arguments);

  /// Whether a thread other than this one is inside of call().
  [[nodiscard]] bool occupied_by_others() const noexcept;

  int traverse(visitproc visit, void* arg) const;
  void release() noexcept { Py_CLEAR(function_); }

 private:
  struct Rest {
    std::uint64_t left;  ///< calls
    Served served;
    std::uint64_t last;  ///< the number of the last call
    bool listened_to;
  };

  Rest* find(const Arguments& arguments);
  [[nodiscard]] bool all_aligned(const Arguments& arguments) const noexcept;

  PyObject* function_;
  Sizes sizes_;
  std::vector<std::uint32_t> aligned_;
  std::uint64_t alignment_mask_;
  std::uint64_t first_calls_;
  std::unordered_map<Sizes::Key, Rest, Sizes::Hash> known_;
  Clock::time_point quiet_ = Clock::time_point::min();
  std::uint64_t soon_ = 0;
  std::vector<unsigned long> inside_;  ///< threads, by Python's number
};

}  // namespace pygraph::torch_bridge
