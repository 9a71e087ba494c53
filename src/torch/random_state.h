// The state of a generator, where the kernels of a graph read it.
//
// A kernel of torch that draws random numbers is captured with two pointers, to the generator's
// seed and to its offset at the start of the graph (torch, aten/src/ATen/cuda/CUDAGeneratorImpl.h,
// "Note [CUDA Graph-safe RNG states]"). torch's own replay fills both with a kernel each and moves
// the generator on; the same is done here, with 4-byte fills of the words that have changed: as a
// rule one, the lower half of the offset.
#pragma once

#include <array>
#include <vector>

#include "graph_call.h"

namespace pygraph::torch_bridge {

/// Guarded by the GIL, like the call that it belongs to. Every stream has memory of its own, so
/// that calls on streams that are not ordered against each other do not change each other's
/// numbers.
class GraphCall::RandomState {
 public:
  RandomState(const Driver& driver, const RandomSpec& spec);
  ~RandomState();
  RandomState(const RandomState&) = delete;
  RandomState& operator=(const RandomState&) = delete;

  /// Brings the state in the device's memory up to the generator's, on `stream`, and binds the
  /// regions to it. Throws DriverError, MemoryShort, std::runtime_error (the generator refused).
  void set(Chain& program, CUstream stream);

  /// Moves the generator on, as the graph's kernels would have. Throws std::runtime_error.
  void advance();

  int traverse(visitproc visit, void* arg) const;

 private:
  static constexpr std::size_t kWords = 4;  ///< of 4 bytes: seed, offset; lower half first

  struct Place {
    CUstream stream;
    void* memory;
    std::array<std::uint32_t, kWords> words;
    bool filled;
  };

  Place& place_on(CUstream stream);
  [[nodiscard]] std::uint64_t ask(const char* method) const;

  const Driver* driver_;
  RandomSpec spec_;
  std::uint64_t offset_ = 0;  ///< of the generator, at the last set()
  std::vector<Place> places_;
};

}  // namespace pygraph::torch_bridge
