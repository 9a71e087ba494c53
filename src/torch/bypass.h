// Calls that nothing is to be learnt from.
//
// Most calls of a stream of many sizes, and all of a graph that was given up, are served by the
// compiled callable, and Python, which decides that (runtime/bypass.py), need not hear of them: it
// would take longer than a call may. For a signature, the integers of a call, the bypass is *open*
// for a number of calls: for a signature seen for the first time, as many as no graph is made at.
// And it may be open to all for a while, but for a signature that has come back soon.
#pragma once

#include <Python.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sizes.h"
#include "tensor_program.h"

namespace pygraph::torch_bridge {

/// Guarded by the GIL.
class Bypass {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kAlways = ~std::uint64_t{0};
  /// Signatures that are known at the same time; with one more all are forgotten.
  static constexpr std::size_t kMost = 4096;

  /// `function` takes one list of arguments, which it clears. `integers` are the arguments that
  /// signatures consist of. Tensors of a device among `aligned` must have addresses without the
  /// bits of `alignment_mask`; a call where one has is not served here, whatever is open. To a new
  /// signature the bypass is open for `first_calls`.
  Bypass(PyObject* function, std::vector<std::uint32_t> integers,
         std::vector<std::uint32_t> aligned, std::uint64_t alignment_mask,
         std::uint64_t first_calls);
  ~Bypass() { release(); }
  Bypass(const Bypass&) = delete;
  Bypass& operator=(const Bypass&) = delete;

  /// Opens it to the signature of `arguments` for so many calls. Nothing for arguments without one.
  void open(const Arguments& arguments, std::uint64_t calls);
  /// Closes it to that signature, even while it is open to all.
  void close(const Arguments& arguments);
  /// Opens it to all until then, but for signatures that it was closed to, and those whose last
  /// call was one of the `soon` calls before this one.
  void open_to_all(Clock::time_point until, std::uint64_t soon) noexcept {
    open_until_ = until;
    soon_ = soon;
  }
  /// Calls with one signature.
  struct Taken {
    std::uint64_t calls;   ///< that were served here since this was asked last
    std::uint64_t before;  ///< the number of the call before the last one; 0: there was none
  };
  Taken taken(const Arguments& arguments);

  /// Whether the graph's call `number`, from 1 on, is to be served here; it is counted as one.
  bool takes(const Arguments& arguments, std::uint64_t number);
  /// Whether it could be, whatever is open.
  [[nodiscard]] bool fits(const Arguments& arguments) const noexcept {
    return function_ != nullptr && all_aligned(arguments);
  }
  /// Serves it. A new reference, or null with a Python error set. `arguments` is the list.
  PyObject* call(PyObject* arguments);

  /// Signatures that are known.
  [[nodiscard]] std::size_t size() const noexcept { return known_.size(); }

  /// Whether a thread other than this one is inside of call().
  [[nodiscard]] bool occupied_by_others() const noexcept;

  int traverse(visitproc visit, void* arg) const;
  void release() noexcept { Py_CLEAR(function_); }

 private:
  struct Known {
    std::uint64_t left;  ///< calls that it is open for
    Taken taken;
    std::uint64_t last;  ///< the number of the last call
    bool closed;
  };

  Known* find(const Arguments& arguments);
  [[nodiscard]] bool all_aligned(const Arguments& arguments) const noexcept;

  PyObject* function_;
  Sizes sizes_;
  std::vector<std::uint32_t> aligned_;
  std::uint64_t alignment_mask_;
  std::uint64_t first_calls_;
  std::unordered_map<Sizes::Key, Known, Sizes::Hash> known_;
  Clock::time_point open_until_ = Clock::time_point::min();
  std::uint64_t soon_ = 0;
  std::vector<unsigned long> inside_;  ///< threads, by Python's number
};

}  // namespace pygraph::torch_bridge
