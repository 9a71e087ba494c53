// Instantiated graphs and their updates, on the twin as on the driver.
#include "support.h"
#include "twin/samples.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::holds;

constexpr std::uint32_t kFloats = 16;
constexpr std::size_t kBytes = kFloats * sizeof(float);

class Exec : public testing::OnBothDrivers {
 protected:
  const DriverApi& api() { return driver().api; }

  ExecHandle instantiate(const GraphHandle& graph) {
    CUgraphExec exec = nullptr;
    driver().check(api().cuGraphInstantiate(&exec, graph.get(), 0), "cuGraphInstantiate");
    return {driver(), exec};
  }
  std::vector<CUgraphNode> nodes(const GraphHandle& graph) {
    std::size_t count = 8;
    std::vector<CUgraphNode> found(count);
    driver().check(api().cuGraphGetNodes(graph.get(), found.data(), &count), "cuGraphGetNodes");
    found.resize(count);
    return found;
  }
  void run(const ExecHandle& exec) {
    driver().check(api().cuGraphLaunch(exec.get(), bed().stream()), "cuGraphLaunch");
    bed().synchronize();
  }
};

TEST_P(Exec, TakesTheNodesOfItsOwnGraphOnly) {
  const DeviceMemory memory(driver(), kBytes);
  const auto capture = [&] {
    return bed().capture(
        [&] { bed().affine({memory.address(), memory.address(), 0, 1, kFloats}); });
  };
  const GraphHandle graph = capture();
  const GraphHandle other = capture();
  const ExecHandle exec = instantiate(graph);
  CUDA_KERNEL_NODE_PARAMS params{};
  driver().check(api().cuGraphKernelNodeGetParams(nodes(graph)[0], &params),
                 "cuGraphKernelNodeGetParams");
  EXPECT_EQ(api().cuGraphExecKernelNodeSetParams(exec.get(), nodes(graph)[0], &params),
            CUDA_SUCCESS);
  EXPECT_EQ(api().cuGraphExecKernelNodeSetParams(exec.get(), nodes(other)[0], &params),
            CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = memory.address();
  fill.elementSize = 1;
  fill.width = 4;
  fill.height = 1;
  CUcontext context = nullptr;
  driver().check(api().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  EXPECT_NE(api().cuGraphExecMemsetNodeSetParams(exec.get(), nodes(graph)[0], &fill, context),
            CUDA_SUCCESS)
      << "a kernel node is no fill";
}

TEST_P(Exec, CloneIsAGraphOfItsOwn) {
  const DeviceMemory memory(driver(), kBytes);
  memory.fill(0);
  GraphHandle graph = bed().capture([&] {
    bed().affine({memory.address(), memory.address(), 0, 1, kFloats});
    bed().affine({memory.address(), memory.address(), 2, 1, kFloats});
  });
  CUgraph clone = nullptr;
  driver().check(api().cuGraphClone(&clone, graph.get()), "cuGraphClone");
  const GraphHandle owner(driver(), clone);
  const std::vector<CUgraphNode> originals = nodes(graph);
  const std::vector<CUgraphNode> copies = nodes(owner);
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_NE(copies[0], originals[0]);
  std::size_t edges = 0;
  driver().check(api().cuGraphGetEdges(clone, nullptr, nullptr, nullptr, &edges),
                 "cuGraphGetEdges");
  EXPECT_EQ(edges, 1U);
  graph.reset();
  run(instantiate(owner));
  EXPECT_TRUE(holds(memory, 3));
}

TEST_P(Exec, WholeGraphUpdate) {
  const DeviceMemory memory(driver(), kBytes);
  memory.fill(0);
  const auto capture = [&](float shift, int kernels) {
    return bed().capture([&] {
      for (int i = 0; i < kernels; ++i) {
        bed().affine({memory.address(), memory.address(), 0, shift, kFloats});
      }
    });
  };
  const ExecHandle exec = instantiate(capture(1, 2));
  CUgraphExecUpdateResultInfo info{};
  EXPECT_EQ(api().cuGraphExecUpdate(exec.get(), capture(5, 2).get(), &info), CUDA_SUCCESS);
  run(exec);
  EXPECT_TRUE(holds(memory, 5));
  EXPECT_EQ(api().cuGraphExecUpdate(exec.get(), capture(9, 3).get(), &info),
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  run(exec);
  EXPECT_TRUE(holds(memory, 5)) << "a refused update changes nothing";
}

TEST_P(Exec, ParameterInfoEndsAfterTheLastParameter) {
  std::size_t offset = 0;
  std::size_t size = 0;
  EXPECT_EQ(api().cuFuncGetParamInfo(bed().affine_function(), 4, &offset, &size), CUDA_SUCCESS);
  EXPECT_EQ(offset, 24U);
  EXPECT_EQ(size, 4U);
  EXPECT_EQ(api().cuFuncGetParamInfo(bed().affine_function(), 5, &offset, &size),
            CUDA_ERROR_INVALID_VALUE);
}

PYGRAPH_ON_BOTH_DRIVERS(Exec);

class ExecOnTwin : public testing::OnTwin {};

TEST_F(ExecOnTwin, LaunchesAreQueuedInOrderAndSnapshot) {
  const DeviceMemory memory(driver(), kBytes);
  memory.fill(0);
  std::uint32_t count = kFloats;
  bed().affine({memory.address(), memory.address(), 0, 4, count});
  bed().affine({memory.address(), memory.address(), 3, 1, count});
  count = 0;
  EXPECT_EQ(*reinterpret_cast<const float*>(memory.address()), 0) << "nothing ran yet";
  twin::synchronize();
  EXPECT_TRUE(holds(memory, 13));
}

TEST_F(ExecOnTwin, InvalidLaunchesAreRefused) {
  const DriverApi& api = driver().api;
  const CUfunction relu = twin::samples::functions().relu;
  CUdeviceptr pointer = 0;
  std::uint32_t count = 0;
  void* parameters[] = {&pointer, &pointer, &count};
  const auto launch = [&](CUfunction function, unsigned int grid, unsigned int threads,
                          CUstream stream, void** array, void** extra) {
    return api.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, 0, stream, array, extra);
  };
  EXPECT_EQ(launch(relu, 1, 1, bed().stream(), parameters, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(launch(nullptr, 1, 1, bed().stream(), parameters, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(launch(relu, 0, 1, bed().stream(), parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(relu, 1, 1025, bed().stream(), parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(relu, 1, 1, bed().stream(), nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  std::size_t bytes = 8;  // the kernel needs 20
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &pointer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_EQ(launch(relu, 1, 1, bed().stream(), nullptr, extra), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(relu, 1, 1, bed().stream(), parameters, extra), CUDA_ERROR_INVALID_VALUE);
  const auto foreign = reinterpret_cast<CUstream>(std::uintptr_t{0x1000});
  EXPECT_EQ(launch(relu, 1, 1, foreign, parameters, nullptr), CUDA_ERROR_INVALID_HANDLE);
  twin::synchronize();
}

TEST_F(ExecOnTwin, DestroyedObjectsAreRecognised) {
  const DriverApi& api = driver().api;
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_EQ(api.cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(api.cuGraphAddEmptyNode(&node, graph, nullptr, 0), CUDA_SUCCESS);
  ASSERT_EQ(api.cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(api.cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(api.cuGraphDestroy(graph), CUDA_SUCCESS);
  CUgraphNodeType type{};
  EXPECT_EQ(api.cuGraphNodeGetType(node, &type), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.cuGraphLaunch(exec, bed().stream()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.cuGraphExecDestroy(exec), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ExecOnTwin, DependenciesMustBeNodesOfTheGraphAndStandOnce) {
  const DriverApi& api = driver().api;
  CUgraph graphs[2] = {};
  CUgraphNode nodes[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(api.cuGraphCreate(&graphs[i], 0), CUDA_SUCCESS);
    ASSERT_EQ(api.cuGraphAddEmptyNode(&nodes[i], graphs[i], nullptr, 0), CUDA_SUCCESS);
  }
  const GraphHandle first(driver(), graphs[0]);
  const GraphHandle second(driver(), graphs[1]);
  CUgraphNode added = nullptr;
  EXPECT_EQ(api.cuGraphAddEmptyNode(&added, graphs[0], &nodes[1], 1), CUDA_ERROR_INVALID_VALUE);
  const CUgraphNode twice[] = {nodes[0], nodes[0]};
  EXPECT_EQ(api.cuGraphAddEmptyNode(&added, graphs[0], twice, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.cuGraphAddEmptyNode(&added, graphs[0], nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.cuGraphAddEmptyNode(&added, graphs[0], &nodes[0], 1), CUDA_SUCCESS);
}

TEST_F(ExecOnTwin, RegistrationRefusesImpossibleLayouts) {
  const auto run = [](const twin::Launch&) {};
  EXPECT_THROW(twin::register_kernel("overlap", {{0, 8}, {4, 8}}, run), std::invalid_argument);
  EXPECT_THROW(twin::register_kernel("descending", {{8, 8}, {0, 8}}, run), std::invalid_argument);
  EXPECT_THROW(twin::register_kernel("empty", {{0, 0}}, run), std::invalid_argument);
}

TEST_F(ExecOnTwin, HostNodesRun) {
  CUgraph graph = nullptr;
  ASSERT_EQ(driver().api.cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  const GraphHandle owner(driver(), graph);
  int runs = 0;
  const CUDA_HOST_NODE_PARAMS params{[](void* data) { ++*static_cast<int*>(data); }, &runs};
  CUgraphNode node = nullptr;
  ASSERT_EQ(driver().api.cuGraphAddHostNode(&node, graph, nullptr, 0, &params), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(driver().api.cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  const ExecHandle exec_owner(driver(), exec);
  ASSERT_EQ(driver().api.cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(driver().api.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace pygraph
