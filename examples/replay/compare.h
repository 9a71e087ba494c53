// What the comparison needs around the work: buffers to move between, the clock, and the two ways
// in which CUDA itself gives a graph new addresses.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <span>
#include <stdexcept>

#include "device.h"

namespace replay {

using Addresses = std::vector<CUdeviceptr>;
using Work = void(const Device&, const Addresses&);

/// Captures what `work` puts on the device's stream.
inline pygraph::GraphHandle capture(const Device& device, Work& work, const Addresses& at) {
  const pygraph::Driver& driver = device.driver();
  driver.check(
      driver.api.cuStreamBeginCapture(device.stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
      "cuStreamBeginCapture");
  work(device, at);
  CUgraph graph = nullptr;
  driver.check(driver.api.cuStreamEndCapture(device.stream(), &graph), "cuStreamEndCapture");
  return {driver, graph};
}

inline pygraph::ExecHandle instantiate(const Device& device, const pygraph::GraphHandle& graph) {
  const pygraph::Driver& driver = device.driver();
  CUgraphExec exec = nullptr;
  driver.check(driver.api.cuGraphInstantiate(&exec, graph.get(), 0), "cuGraphInstantiate");
  return {driver, exec};
}

/// Instantiates a fresh capture and launches that once.
inline void launch_anew(const Device& device, const pygraph::GraphHandle& graph) {
  const pygraph::ExecHandle exec = instantiate(device, graph);
  device.driver().check(device.driver().api.cuGraphLaunch(exec.get(), device.stream()),
                        "cuGraphLaunch");
}

/// One instantiated graph, which takes its addresses from a fresh capture.
class Updated {
 public:
  Updated(const Device& device, const pygraph::GraphHandle& graph)
      : device_(device), exec_(instantiate(device, graph)) {}

  void launch(const pygraph::GraphHandle& graph) const {
    const pygraph::Driver& driver = device_.driver();
    CUgraphExecUpdateResultInfo info{};
    driver.check(driver.api.cuGraphExecUpdate(exec_.get(), graph.get(), &info),
                 "cuGraphExecUpdate");
    driver.check(driver.api.cuGraphLaunch(exec_.get(), device_.stream()), "cuGraphLaunch");
  }

 private:
  const Device& device_;
  pygraph::ExecHandle exec_;
};

/// Two sets of buffers of the given sizes, every one with contents of its own.
class Buffers {
 public:
  using Call = std::function<void(const Addresses&)>;

  /// `result` is the buffer that a call writes and that results() reads.
  Buffers(const Device& device, std::span<const std::size_t> sizes, std::size_t result)
      : device_(device), result_(result) {
    for (std::size_t i = 0; i < 2 * sizes.size(); ++i) {
      const std::size_t bytes = sizes[i % sizes.size()];
      memory_.push_back(std::make_unique<Memory>(device.driver(), bytes));
      std::vector<float> values(bytes / sizeof(float));
      for (std::size_t j = 0; j < values.size(); ++j) {
        values[j] = static_cast<float>((j * 37 + i * 11) % 101) / 50 - 1;
      }
      memory_.back()->write(values);
      sets_[i / sizes.size()].push_back(memory_.back()->address());
    }
  }

  [[nodiscard]] const Addresses& set(std::size_t index) const { return sets_[index]; }

  /// What `call` computes from either set.
  [[nodiscard]] std::vector<std::vector<float>> results(const Call& call) const {
    std::vector<std::vector<float>> found;
    for (std::size_t i = 0; i < 2; ++i) {
      const Memory& out = *memory_[i * sets_[0].size() + result_];
      out.write(std::vector<float>(out.bytes() / sizeof(float), -1));
      call(sets_[i]);
      device_.synchronize();
      found.push_back(out.read());
    }
    return found;
  }

  /// Prints the host time of `call` if it computes `expected`; else throws std::runtime_error.
  void compare(const char* name, const std::vector<std::vector<float>>& expected,
               const Call& call) const {
    if (results(call) != expected) {
      throw std::runtime_error(std::string(name) + ": not the result of the plain run");
    }
    std::printf("%-42s %8.2f us\n", name, microseconds(call));
  }

 private:
  /// Host time of `call`, which alternates between the sets; the median. The device is waited for
  /// outside the timing, so that the launch queue never fills up.
  [[nodiscard]] double microseconds(const Call& call) const {
    constexpr std::size_t kCalls = 500;
    constexpr std::size_t kInFlight = 20;
    using Clock = std::chrono::steady_clock;
    std::vector<double> times;
    for (std::size_t i = 0; i < kCalls; ++i) {
      const Clock::time_point start = Clock::now();
      call(sets_[i % 2]);
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      if (i % kInFlight == 0) {
        device_.synchronize();
      }
    }
    device_.synchronize();
    std::nth_element(times.begin(), times.begin() + kCalls / 2, times.end());
    return times[kCalls / 2];
  }

  const Device& device_;
  std::size_t result_;
  std::vector<std::unique_ptr<Memory>> memory_;
  Addresses sets_[2];
};

}  // namespace replay
