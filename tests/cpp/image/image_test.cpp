#include "pygraph/image.h"

#include <cstring>

#include "graph_builder.h"
#include "support.h"
#include "twin/kernels.h"
#include "twin/samples.h"

namespace pygraph {
namespace {

using testing::AffineBlock;
using testing::DeviceMemory;
using testing::GraphBuilder;
using testing::message_of;
using testing::ParameterOrder;

constexpr std::uint32_t kFloats = 64;
constexpr std::size_t kBytes = kFloats * sizeof(float);

class ImageOnBoth : public testing::OnBothDrivers {};

TEST_P(ImageOnBoth, KernelParametersInEveryForm) {
  const DeviceMemory memory(driver(), 2 * kBytes);
  const AffineBlock block{memory.address() + kBytes, memory.address(), 2, 3, kFloats};
  for (const ParameterOrder order : {ParameterOrder::kArray, ParameterOrder::kPointerThenSize,
                                     ParameterOrder::kSizeThenPointer}) {
    const GraphHandle graph = bed().capture([&] { bed().affine(block, order); });
    const Image image = read_image(driver(), graph.get());
    ASSERT_EQ(image.nodes.size(), 1U);
    const Node& node = image.nodes[0];
    EXPECT_EQ(node.kind, NodeKind::kKernel);
    EXPECT_EQ(node.word(0), block.out);
    EXPECT_EQ(node.word(8), block.in);
    ASSERT_GE(node.block.size(), 28U);
    EXPECT_EQ(std::memcmp(node.block.data(), &block, 28), 0);
    EXPECT_EQ(node.words[0], 0U);
    EXPECT_EQ(node.words[1], 8U);
    EXPECT_EQ(node.shape.function, bed().affine_function());
    EXPECT_EQ(node.shape.block[0], 128U);
    EXPECT_EQ(node.shape.grid[0], 1U);
    if (node.form == ParameterForm::kArray) {
      ASSERT_EQ(node.parameters.size(), 5U);
      EXPECT_EQ(node.parameters[3].offset, 20U);
      EXPECT_EQ(node.parameters[4].size, 4U);
    }
    if (on_twin()) {
      EXPECT_EQ(node.form == ParameterForm::kArray, order == ParameterOrder::kArray);
    }
  }
}

TEST_P(ImageOnBoth, CopyAndFillExposeTheirAddresses) {
  const DeviceMemory memory(driver(), 2 * kBytes);
  const CUdeviceptr to = memory.address() + kBytes;
  const GraphHandle graph = bed().capture([&] {
    driver().check(driver().api.cuMemsetD8Async(memory.address(), 7, kBytes, bed().stream()),
                   "cuMemsetD8Async");
    driver().check(driver().api.cuMemcpyDtoDAsync(to, memory.address(), kBytes, bed().stream()),
                   "cuMemcpyDtoDAsync");
  });
  const Image image = read_image(driver(), graph.get());
  ASSERT_EQ(image.nodes.size(), 2U);
  EXPECT_EQ(image.count(NodeKind::kMemset), 1U);
  EXPECT_EQ(image.count(NodeKind::kMemcpy), 1U);
  const Node& fill = image.nodes[0];
  ASSERT_EQ(fill.words.size(), 1U);
  EXPECT_EQ(fill.word(fill.words[0]), memory.address());
  const Node& copy = image.nodes[1];
  ASSERT_EQ(copy.words.size(), 2U);
  EXPECT_EQ(copy.word(copy.words[0]), memory.address());
  EXPECT_EQ(copy.word(copy.words[1]), to);
  EXPECT_EQ(image.edges, (std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 1}}));
}

TEST_P(ImageOnBoth, BranchesStandInTopologicalOrder) {
  const DeviceMemory memory(driver(), 64);
  GraphBuilder graph(bed());
  const CUgraphNode fork = graph.empty();
  const CUgraphNode left = graph.fill(memory.address(), {fork});
  const CUgraphNode right = graph.fill(memory.address() + 8, {fork});
  graph.fill(memory.address() + 16, {left, right});
  graph.empty();  // on its own
  const Image image = read_image(driver(), graph.get());
  ASSERT_EQ(image.nodes.size(), 5U);
  EXPECT_EQ(image.count(NodeKind::kEmpty), 2U);
  EXPECT_EQ(image.edges.size(), 4U);
  for (const auto& [from, to] : image.edges) {
    EXPECT_LT(from, to);
  }
  const auto place_of = [&](CUdeviceptr address) {
    for (std::uint32_t i = 0; i < image.nodes.size(); ++i) {
      if (image.nodes[i].kind == NodeKind::kMemset && image.nodes[i].word(0) == address) {
        return i;
      }
    }
    return ~0U;
  };
  EXPECT_LT(place_of(memory.address()), place_of(memory.address() + 16));
  EXPECT_LT(place_of(memory.address() + 8), place_of(memory.address() + 16));
}

TEST_P(ImageOnBoth, EmptyGraph) {
  GraphBuilder graph(bed());
  const Image image = read_image(driver(), graph.get());
  EXPECT_TRUE(image.nodes.empty());
  EXPECT_TRUE(image.edges.empty());
}

TEST_P(ImageOnBoth, HostNodeIsRefusedByName) {
  GraphBuilder graph(bed());
  const CUgraphNode first = graph.empty();
  graph.host([](void*) {}, nullptr, {first});
  const std::string text =
      message_of<UnsupportedGraph>([&] { (void)read_image(driver(), graph.get()); });
  EXPECT_NE(text.find("host function"), std::string::npos) << text;
  EXPECT_NE(text.find("node 1"), std::string::npos) << text;
}

TEST_P(ImageOnBoth, HostEndOfACopyIsAWord) {
  const DeviceMemory memory(driver(), 64);
  const std::vector<char> host(64);
  GraphBuilder graph(bed());
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = memory.address();
  copy.WidthInBytes = 64;
  copy.Height = 1;
  copy.Depth = 1;
  graph.copy(copy);
  const Image image = read_image(driver(), graph.get());
  ASSERT_EQ(image.nodes.at(0).words.size(), 2U);
  EXPECT_EQ(image.nodes[0].word(image.nodes[0].words[0]),
            reinterpret_cast<std::uint64_t>(host.data()));
  EXPECT_EQ(image.nodes[0].word(image.nodes[0].words[1]), memory.address());
}

TEST_P(ImageOnBoth, KernelsAreNamed) {
  LaunchShape shape;
  shape.function = bed().affine_function();
  EXPECT_NE(kernel_name(driver(), shape).find("affine"), std::string::npos);
  EXPECT_EQ(kernel_name(driver(), LaunchShape{}), "kernel");
}

PYGRAPH_ON_BOTH_DRIVERS(ImageOnBoth);

class ImageOnTwin : public testing::OnTwin {};

TEST_F(ImageOnTwin, KernelNamedByItsOtherHandle) {
  GraphBuilder graph(bed());
  std::uint64_t pointer = 0x1234;
  std::uint32_t count = 0;
  void* parameters[] = {&pointer, &pointer, &count};
  CUDA_KERNEL_NODE_PARAMS launch{};
  launch.kern = twin::kernel_handle(twin::samples::functions().copy);
  launch.gridDimX = launch.gridDimY = launch.gridDimZ = 1;
  launch.blockDimX = launch.blockDimY = launch.blockDimZ = 1;
  launch.kernelParams = parameters;
  CUgraphNode node = nullptr;
  driver().check(driver().api.cuGraphAddKernelNode(&node, graph.get(), nullptr, 0, &launch),
                 "cuGraphAddKernelNode");
  const Image image = read_image(driver(), graph.get());
  EXPECT_EQ(image.nodes[0].shape.function, nullptr);
  EXPECT_EQ(image.nodes[0].shape.kernel, launch.kern);
  EXPECT_EQ(image.nodes[0].parameters.size(), 3U);
  EXPECT_EQ(image.nodes[0].word(8), pointer);
  EXPECT_EQ(kernel_name(driver(), image.nodes[0].shape), "sample_copy");
}

TEST_F(ImageOnTwin, WhereEdgesLeaveAChoiceCreationDecides) {
  // Two captures of one program must list their nodes alike, or their comparison means nothing.
  const DeviceMemory memory(driver(), 64);
  GraphBuilder graph(bed());
  for (CUdeviceptr i = 0; i < 8; ++i) {
    graph.fill(memory.address() + 4 * i, {});
  }
  const Image image = read_image(driver(), graph.get());
  for (std::uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(image.nodes[i].word(0), memory.address() + 4 * i);
  }
}

TEST_F(ImageOnTwin, DriverFailureNamesTheNode) {
  const GraphHandle graph =
      bed().capture([&] { twin::samples::relu(driver(), bed().stream(), 64, 64, 0); });
  for (const char* symbol : {"cuGraphNodeGetType", "cuGraphKernelNodeGetParams"}) {
    twin::Faults::fail(symbol, CUDA_ERROR_UNKNOWN);
    const std::string text =
        message_of<DriverError>([&] { (void)read_image(driver(), graph.get()); });
    EXPECT_NE(text.find(symbol), std::string::npos) << text;
    EXPECT_NE(text.find("node 0"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace pygraph
