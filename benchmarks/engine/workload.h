// The graphs that the benchmarks move and launch: tiny kernels, so that what is measured is the
// host's part. On the real driver where there is one, else on the twin; every benchmark's label
// says which. The twin's figures say nothing about CUDA, only that the benchmark works.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "pygraph/link.h"
#include "pygraph/phantom.h"
#include "pygraph/program.h"
#include "twin/device_memory.h"
#include "twin/testbed.h"

namespace pygraph::benchmarks {

/// The driver to measure, ready; made on first use.
const twin::Testbed& bed();

/// "real driver 13.0" or "CPU twin".
const std::string& driver_label();

constexpr std::uint32_t kFloats = 64;
constexpr std::size_t kBytes = kFloats * sizeof(float);

/// Node i reads region `reads(i)` and writes region inputs + i. Regions below `inputs` are inputs.
struct Workload {
  std::size_t nodes;
  std::size_t inputs;
  std::function<std::size_t(std::size_t)> reads;

  [[nodiscard]] std::size_t regions() const { return inputs + nodes; }
};

/// All nodes read input 0.
Workload fan(std::size_t nodes);
/// Every node reads its predecessor's output, the first `inputs` nodes an input each instead.
Workload chain(std::size_t nodes, std::size_t inputs);

/// A workload captured twice.
struct Captures {
  std::unique_ptr<PhantomSpace> space;
  std::vector<LinkRegion> regions;
  GraphHandle a;
  GraphHandle b;

  [[nodiscard]] LinkedGraph link_all() const;
};
Captures capture(const Workload& workload);

/// A workload linked and bound to real memory.
class Bound {
 public:
  explicit Bound(const Workload& workload);

  [[nodiscard]] Program& program() { return *program_; }
  /// Two places for every input, to move between.
  [[nodiscard]] CUdeviceptr input(std::size_t index, bool second) const {
    return (second ? other_ : memory_).address() + index * kStride;
  }

 private:
  static constexpr std::size_t kStride = 512;

  twin::DeviceMemory memory_;
  twin::DeviceMemory other_;
  std::unique_ptr<Program> program_;
};

/// Times `call` by hand, and waits for the device every few calls outside the timing, so that the
/// launch queue never fills up.
void time_calls(benchmark::State& state, const std::function<void()>& call);

}  // namespace pygraph::benchmarks
