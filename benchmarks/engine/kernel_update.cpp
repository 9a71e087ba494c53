// The two driver calls that can tell an instantiated graph a kernel's new parameters. CUDA 13.5's
// headers call the older one "to be deprecated"; Program uses the newer one because it is not
// slower. To see that, let the two take turns, since clocks drift:
//   pygraph_bench --benchmark_filter=kernel_update --benchmark_repetitions=30
//                 --benchmark_enable_random_interleaving=true
#include <dlfcn.h>

#include "workload.h"

namespace pygraph::benchmarks {
namespace {

using benchmark::Counter;
using benchmark::State;

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

/// Times `set(kernels, node)` for each of 256 nodes.
template <typename Set>
void each_node(State& state, const Set& set) {
  const Kernels kernels(256);
  for ([[maybe_unused]] auto iteration : state) {
    for (const CUgraphNode node : kernels.nodes) {
      bed().driver().check(set(kernels, node), "setting node parameters");
    }
  }
  state.counters["per_node"] = Counter(static_cast<double>(kernels.nodes.size()),
                                       Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.SetLabel(driver_label());
}

void kernel_update_by_node_params(State& state) {
  each_node(state, [](const Kernels& kernels, CUgraphNode node) {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_KERNEL;
    params.kernel.func = kernels.launch.func;
    params.kernel.kern = kernels.launch.kern;
    params.kernel.ctx = kernels.launch.ctx;
    params.kernel.gridDimX = kernels.launch.gridDimX;
    params.kernel.gridDimY = kernels.launch.gridDimY;
    params.kernel.gridDimZ = kernels.launch.gridDimZ;
    params.kernel.blockDimX = kernels.launch.blockDimX;
    params.kernel.blockDimY = kernels.launch.blockDimY;
    params.kernel.blockDimZ = kernels.launch.blockDimZ;
    params.kernel.sharedMemBytes = kernels.launch.sharedMemBytes;
    params.kernel.kernelParams = kernels.launch.kernelParams;
    params.kernel.extra = kernels.launch.extra;
    return bed().driver().api.cuGraphExecNodeSetParams(kernels.exec.get(), node, &params);
  });
}
BENCHMARK(kernel_update_by_node_params);

void kernel_update_by_kernel_params(State& state) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto set = library == nullptr
                       ? nullptr
                       : reinterpret_cast<decltype(&::cuGraphExecKernelNodeSetParams)>(
                             dlsym(library, "cuGraphExecKernelNodeSetParams_v2"));
  if (set == nullptr || driver_label() == "CPU twin") {
    state.SkipWithError("needs the real driver");
    return;
  }
  each_node(state, [set](const Kernels& kernels, CUgraphNode node) {
    CUDA_KERNEL_NODE_PARAMS params = kernels.launch;
    benchmark::DoNotOptimize(params);
    return set(kernels.exec.get(), node, &params);
  });
}
BENCHMARK(kernel_update_by_kernel_params);

}  // namespace
}  // namespace pygraph::benchmarks
