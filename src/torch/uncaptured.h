// Calls that nothing is to be learnt from.
//
// Most calls of a stream of many sizes, and all of a graph that was given up, are served by the
// compiled callable and will be for a while. Python has decided that (adapter/graphed.py), and need
// not be asked again: such a signature *rests*, for a number of calls or a time.
#pragma once

#include <Python.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "graph_call.h"

namespace pygraph::torch_bridge {

/// Guarded by the GIL.
class Uncaptured {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kAlways = ~std::uint64_t{0};
  /// Signatures that rest at the same time; with one more all are forgotten.
  static constexpr std::size_t kMost = 4096;

  /// `function` takes one list of arguments, which it clears. A signature is the values of the
  /// arguments `integers`. Tensors of a device among `aligned` must have addresses without the bits
  /// of `alignment_mask`; a call where one has is not served here, whatever rests.
  Uncaptured(PyObject* function, std::vector<std::uint32_t> integers,
             std::vector<std::uint32_t> aligned, std::uint64_t alignment_mask);
  ~Uncaptured() { release(); }
  Uncaptured(const Uncaptured&) = delete;
  Uncaptured& operator=(const Uncaptured&) = delete;

  /// The signature of `arguments` rests: for so many calls, and until then. Nothing for arguments
  /// that have no signature.
  void rest(const Arguments& arguments, std::uint64_t calls, Clock::time_point until);
  /// Whether a call may be served here; it is counted as one.
  bool takes(const Arguments& arguments);
  /// A new reference, or null with a Python error set. `arguments` is the list.
  PyObject* call(PyObject* arguments);

  /// Whether a thread other than this one is inside of call().
  [[nodiscard]] bool occupied_by_others() const noexcept;

  int traverse(visitproc visit, void* arg) const;
  void release() noexcept { Py_CLEAR(function_); }

 private:
  using Key = std::vector<std::int64_t>;
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Rest {
    std::uint64_t calls;
    Clock::time_point until;
  };

  bool read_key(const Arguments& arguments) noexcept;
  [[nodiscard]] bool all_aligned(const Arguments& arguments) const noexcept;

  PyObject* function_;
  std::vector<std::uint32_t> integers_;
  std::vector<std::uint32_t> aligned_;
  std::uint64_t alignment_mask_;
  std::unordered_map<Key, Rest, Hash> resting_;
  Key key_;                            ///< of the call that is looked at
  std::vector<unsigned long> inside_;  ///< threads, by Python's number
};

}  // namespace pygraph::torch_bridge
