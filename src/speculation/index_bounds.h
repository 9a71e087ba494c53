// Indices that a graph reads, looked at on the host before it is launched.
//
// A graph that is launched on a guess (speculation.h) must do no harm where the guess is wrong, and
// an index that is out of bounds ends the process: compiled kernels check theirs on the GPU. Which
// arguments are indices, and what they must be below, follows from the kernels
// (frontends/compile/index_bounds.py). Their values are here: a few kilobytes are copied to the
// host, which takes some ten microseconds while nothing else is on the stream. Where something is,
// the GPU does not wait for whoever launches next, and a launch in front of the guards would gain
// nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "../torch/tensor_program.h"

namespace pygraph::torch_bridge::speculation {

/// Values of one argument: 0 to `below` - 1.
struct IndexBound {
  std::uint32_t argument = 0;  ///< by number, of the graph's
  std::int64_t below = 0;
};

/// Of one compiled graph. Needs the GIL.
class IndexBounds {
 public:
  /// Bytes of all such arguments together that are looked at; with more, none is.
  static constexpr std::uint64_t kMostBytes = 256 * 1024;

  explicit IndexBounds(std::vector<IndexBound> bounds) : bounds_(std::move(bounds)) {}
  ~IndexBounds();
  IndexBounds(const IndexBounds&) = delete;
  IndexBounds& operator=(const IndexBounds&) = delete;

  [[nodiscard]] const std::vector<IndexBound>& bounds() const noexcept { return bounds_; }
  /// Bytes that were brought to the host.
  [[nodiscard]] std::uint64_t bytes_looked_at() const noexcept { return bytes_looked_at_; }
  /// What the last look took that came to an end; nothing where there is nothing to look at.
  [[nodiscard]] std::chrono::nanoseconds last_look() const noexcept { return last_look_; }

  /// Whether all values among `arguments`, which `program` accepts, are within them. False as well
  /// if they could not be looked at. Waits for its copies and all else on the stream of the call,
  /// and leaves nothing on it.
  bool admit(const TensorProgram& program, const Arguments& arguments) noexcept;

 private:
  struct Values;

  bool look(const TensorProgram& program, const Arguments& arguments);
  bool read(const TensorProgram& program, const Arguments& arguments,
            std::vector<Values>& values) const;
  bool fetch(const Driver& driver, const std::vector<Values>& values, std::uint64_t total,
             CUstream stream);
  bool reserve(const Driver& driver, std::uint64_t bytes) noexcept;
  void release() noexcept;

  std::vector<IndexBound> bounds_;
  std::uint64_t bytes_looked_at_ = 0;
  std::chrono::nanoseconds last_look_{0};
  const Driver* driver_ = nullptr;  ///< of `host_`
  void* host_ = nullptr;            ///< page-locked
  std::uint64_t capacity_ = 0;
};

}  // namespace pygraph::torch_bridge::speculation
