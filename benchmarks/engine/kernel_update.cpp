// The two driver calls that can tell an instantiated graph a kernel's new parameters. CUDA 13.5's
// headers call the older one "to be deprecated". Program uses it as long as the newer one is
// slower. To see that, let them take turns, since clocks drift:
//   pygraph_bench --benchmark_filter=kernel_update --benchmark_repetitions=25
//                 --benchmark_enable_random_interleaving=true
#include <dlfcn.h>

#include "workload.h"

namespace pygraph::benchmarks {
namespace {

using benchmark::Counter;
using benchmark::State;

constexpr std::size_t kNodes = 256;

/// An instantiated graph of equal kernels, and their parameters.
struct Kernels {
  explicit Kernels(std::size_t count) : memory(bed().driver(), kBytes) {
    const Driver& driver = bed().driver();
    graph = bed().capture([&] {
      for (std::size_t i = 0; i < count; ++i) {
        bed().affine({memory.address(), memory.address(), 1, 1, kFloats});
      }
    });
    CUgraphExec made = nullptr;
    driver.check(driver.api.cuGraphInstantiate(&made, graph.get(), 0), "cuGraphInstantiate");
    exec = ExecHandle(driver, made);
    nodes.resize(count);
    driver.check(driver.api.cuGraphGetNodes(graph.get(), nodes.data(), &count), "cuGraphGetNodes");
    driver.check(driver.api.cuGraphKernelNodeGetParams(nodes[0], &launch),
                 "cuGraphKernelNodeGetParams");
  }

  twin::DeviceMemory memory;
  GraphHandle graph;
  ExecHandle exec;
  std::vector<CUgraphNode> nodes;
  CUDA_KERNEL_NODE_PARAMS launch{};
};

/// Times `set(i)` for each node.
template <typename Set>
void each_node(State& state, const Set& set) {
  for ([[maybe_unused]] auto iteration : state) {
    for (std::size_t i = 0; i < kNodes; ++i) {
      bed().driver().check(set(i), "setting node parameters");
    }
  }
  state.counters["per_node"] =
      Counter(static_cast<double>(kNodes), Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.SetLabel(driver_label());
}

CUgraphNodeParams node_params(const CUDA_KERNEL_NODE_PARAMS& launch) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel.func = launch.func;
  params.kernel.kern = launch.kern;
  params.kernel.ctx = launch.ctx;
  params.kernel.gridDimX = launch.gridDimX;
  params.kernel.gridDimY = launch.gridDimY;
  params.kernel.gridDimZ = launch.gridDimZ;
  params.kernel.blockDimX = launch.blockDimX;
  params.kernel.blockDimY = launch.blockDimY;
  params.kernel.blockDimZ = launch.blockDimZ;
  params.kernel.sharedMemBytes = launch.sharedMemBytes;
  params.kernel.kernelParams = launch.kernelParams;
  params.kernel.extra = launch.extra;
  return params;
}

/// As Program does it: 72 bytes that are made anew for each update.
void kernel_update_by_kernel_params(State& state) {
  const Kernels kernels(kNodes);
  each_node(state, [&](std::size_t i) {
    CUDA_KERNEL_NODE_PARAMS params = kernels.launch;
    benchmark::DoNotOptimize(params);
    return bed().driver().api.cuGraphExecKernelNodeSetParams(kernels.exec.get(), kernels.nodes[i],
                                                             &params);
  });
}
BENCHMARK(kernel_update_by_kernel_params);

/// The newer call, with 256 bytes that are made once per node, or anew for each update.
void by_node_params(State& state, bool anew) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto set = library == nullptr ? nullptr
                                      : reinterpret_cast<decltype(&::cuGraphExecNodeSetParams)>(
                                            dlsym(library, "cuGraphExecNodeSetParams"));
  if (set == nullptr || driver_label() == "CPU twin") {
    state.SkipWithError("needs the real driver");
    return;
  }
  const Kernels kernels(kNodes);
  std::vector<CUgraphNodeParams> params(kNodes, node_params(kernels.launch));
  each_node(state, [&](std::size_t i) {
    if (anew) {
      params[i] = node_params(kernels.launch);
    }
    return set(kernels.exec.get(), kernels.nodes[i], &params[i]);
  });
}

void kernel_update_by_node_params(State& state) { by_node_params(state, false); }
BENCHMARK(kernel_update_by_node_params);

void kernel_update_by_new_node_params(State& state) { by_node_params(state, true); }
BENCHMARK(kernel_update_by_new_node_params);

}  // namespace
}  // namespace pygraph::benchmarks
