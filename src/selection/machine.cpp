#include "selection/machine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "pygraph/handles.h"

namespace pygraph::selection {
namespace {

using Clock = std::chrono::steady_clock;

/// The oldest architecture that CUDA 13 compiles for.
constexpr const char* kNothing = R"(
.version 6.4
.target sm_75
.address_size 64
.visible .entry pygraph_nothing(.param .u64 pygraph_nothing_param) { ret; }
)";
constexpr std::size_t kNodes = 64;
constexpr std::size_t kManyBytes = std::size_t{64} << 20U;
constexpr std::size_t kFewBytes = 1024;
constexpr int kRounds = 9;

/// Device memory that is given back.
class Memory {
 public:
  Memory(const Driver& driver, std::size_t bytes) : driver_(driver) {
    driver_.check(driver_.api.cuMemAlloc(&address_, bytes), "cuMemAlloc");
  }
  ~Memory() { driver_.api.cuMemFree(address_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }

 private:
  const Driver& driver_;
  CUdeviceptr address_ = 0;
};

class Bench {
 public:
  explicit Bench(const Driver& driver) : driver_(driver) {
    CUmodule module = nullptr;
    check(driver.api.cuModuleLoadData(&module, kNothing), "cuModuleLoadData");
    module_ = ModuleHandle(driver, module);
    check(driver.api.cuModuleGetFunction(&function_, module, "pygraph_nothing"),
          "cuModuleGetFunction");
    CUstream stream = nullptr;
    check(driver.api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    stream_ = StreamHandle(driver, stream);
    check(driver.api.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
          "cuStreamBeginCapture");
    for (std::size_t i = 0; i < kNodes; ++i) {
      launch();
    }
    CUgraph graph = nullptr;
    check(driver.api.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    graph_ = GraphHandle(driver, graph);
    CUgraphExec exec = nullptr;
    check(driver.api.cuGraphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
    exec_ = ExecHandle(driver, exec);
    std::size_t count = kNodes;
    check(driver.api.cuGraphGetNodes(graph, nodes_.data(), &count), "cuGraphGetNodes");
    check(driver.api.cuGraphKernelNodeGetParams(nodes_[0], &params_), "cuGraphKernelNodeGetParams");
  }

  void check(CUresult code, const char* what) const { driver_.check(code, what); }
  void wait() const {
    check(driver_.api.cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
  }

  void launch() {
    void* arguments[] = {&argument_};
    check(driver_.api.cuLaunchKernel(function_, 1, 1, 1, 32, 1, 1, 0, stream_.get(), arguments,
                                     nullptr),
          "cuLaunchKernel");
  }
  void launch_graph() {
    check(driver_.api.cuGraphLaunch(exec_.get(), stream_.get()), "cuGraphLaunch");
  }
  void patch_all() {
    ++argument_;
    void* arguments[] = {&argument_};
    CUDA_KERNEL_NODE_PARAMS params = params_;
    params.kernelParams = arguments;
    params.extra = nullptr;
    for (CUgraphNode node : nodes_) {
      check(driver_.api.cuGraphExecKernelNodeSetParams(exec_.get(), node, &params),
            "cuGraphExecKernelNodeSetParams");
    }
  }
  void copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    check(driver_.api.cuMemcpyDtoDAsync(to, from, bytes, stream_.get()), "cuMemcpyDtoDAsync");
  }

  /// The median of what `step` takes, in us, with nothing under way before it. `waiting`: until the
  /// device is done.
  template <typename Step>
  double us(const Step& step, bool waiting = false) {
    std::array<double, kRounds> took{};
    for (double& each : took) {
      wait();
      const Clock::time_point began = Clock::now();
      step();
      if (waiting) {
        wait();
      }
      each = std::chrono::duration<double, std::micro>(Clock::now() - began).count();
    }
    std::sort(took.begin(), took.end());
    return took[kRounds / 2];
  }

 private:
  const Driver& driver_;
  ModuleHandle module_;
  StreamHandle stream_;
  GraphHandle graph_;
  ExecHandle exec_;
  CUfunction function_ = nullptr;
  std::array<CUgraphNode, kNodes> nodes_{};
  CUDA_KERNEL_NODE_PARAMS params_{};
  std::uint64_t argument_ = 0;
};

}  // namespace

MachineCosts measure_machine(const Driver& driver) {
  Bench bench(driver);
  const Memory from(driver, kManyBytes);
  const Memory to(driver, kManyBytes);
  constexpr auto kCount = static_cast<double>(kNodes);
  const auto repeat = [](auto step) {
    for (std::size_t i = 0; i < kNodes; ++i) {
      step();
    }
  };
  const auto few = [&] { bench.copy(to.address(), from.address(), kFewBytes); };
  MachineCosts costs{};
  costs.launch = bench.us([&] { repeat([&] { bench.launch(); }); }) / kCount;
  costs.graph = bench.us([&] { bench.launch_graph(); });
  const double patched = bench.us([&] {
    bench.patch_all();
    bench.launch_graph();
  });
  costs.patch = std::max(patched - costs.graph, 0.0) / kCount;
  costs.copy = bench.us([&] { repeat(few); }) / kCount;
  const double many = bench.us([&] { bench.copy(to.address(), from.address(), kManyBytes); }, true);
  const double least = bench.us(few, true);
  costs.bytes_per_us = static_cast<double>(kManyBytes) / std::max(many - least, 1.0);
  bench.wait();
  return costs;
}

}  // namespace pygraph::selection
