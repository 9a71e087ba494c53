#include <fmt/format.h>

#include <map>
#include <mutex>
#include <random>

#include "lanes.h"

namespace pygraph {
namespace {

/// Waits so many nanoseconds on one thread of the device. For the oldest architecture that CUDA 13
/// compiles for.
constexpr const char* kSpin = R"(
.version 6.4
.target sm_75
.address_size 64
.visible .entry pygraph_spin(.param .u64 pygraph_spin_ns) {
  .reg .pred %p;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [pygraph_spin_ns];
  mov.u64 %rd2, %globaltimer;
  add.u64 %rd1, %rd1, %rd2;
AGAIN:
  mov.u64 %rd3, %globaltimer;
  setp.lt.u64 %p, %rd3, %rd1;
  @%p bra AGAIN;
  ret;
}
)";
/// One node in so many is delayed, by up to so long: several kernels' time, so that other lanes
/// come first, and together less than a call of the callable takes.
constexpr std::uint64_t kOneIn = 6;
constexpr std::uint64_t kLongestNs = 60'000;

/// The kernel, in the current context. Its module stays loaded.
CUfunction spin(const Driver& driver) {
  static std::mutex& mutex = *new std::mutex;
  static auto& loaded = *new std::map<CUcontext, CUfunction>;
  CUcontext context = nullptr;
  driver.check(driver.api.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  const std::lock_guard guard(mutex);
  CUfunction& function = loaded[context];
  if (function == nullptr) {
    CUmodule module = nullptr;
    driver.check(driver.api.cuModuleLoadData(&module, kSpin), "cuModuleLoadData", "pygraph_spin");
    driver.check(driver.api.cuModuleGetFunction(&function, module, "pygraph_spin"),
                 "cuModuleGetFunction", "pygraph_spin");
  }
  return function;
}

}  // namespace

LinkedGraph delayed(const Driver& driver, const LinkedGraph& linked, std::uint64_t seed) {
  LinkedGraph made = in_one_part(driver, linked);
  CUgraph graph = made.graph.get();
  std::vector<std::vector<CUgraphNode>> before(made.image.nodes.size());
  for (const auto& [from, to] : made.image.edges) {
    before[to].push_back(made.image.nodes[from].handle);
  }
  std::mt19937_64 random(seed);
  for (std::size_t node = 0; node < before.size(); ++node) {
    if (random() % kOneIn != 0) {
      continue;
    }
    std::uint64_t nanoseconds = random() % kLongestNs;
    void* parameters[] = {&nanoseconds};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = spin(driver);
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = parameters;
    CUgraphNode delay = nullptr;
    driver.check(driver.api.cuGraphAddKernelNode(&delay, graph, before[node].data(),
                                                 before[node].size(), &params),
                 "cuGraphAddKernelNode", "a delay");
    const CUgraphNode delayed_node = made.image.nodes[node].handle;
    driver.check(driver.api.cuGraphAddDependencies(graph, &delay, &delayed_node, nullptr, 1),
                 "cuGraphAddDependencies", fmt::format("node {} and its delay", node));
  }
  return made;
}

}  // namespace pygraph
