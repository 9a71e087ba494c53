// Child graphs, memory nodes, edge data: what flattening makes of them.
#include "pygraph/flatten.h"

#include "graph_builder.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::GraphBuilder;
using testing::holds;
using testing::message_of;
using testing::programmatic;
using testing::Regions;
using testing::Runnable;

constexpr std::uint32_t kFloats = 64;
constexpr std::size_t kBytes = kFloats * sizeof(float);

class Flatten : public testing::OnBothDrivers {
 protected:
  const DriverApi& api() { return driver().api; }

  std::string refusal(CUgraph graph) {
    return message_of<UnsupportedGraph>([&] { (void)flatten(driver(), graph); });
  }
  CUstream stream() { return bed().stream(); }
  CUdeviceptr allocate() {
    CUdeviceptr address = 0;
    driver().check(api().cuMemAllocAsync(&address, kBytes, stream()), "cuMemAllocAsync");
    return address;
  }
  void free(CUdeviceptr address) {
    driver().check(api().cuMemFreeAsync(address, stream()), "cuMemFreeAsync");
  }
  void write(const DeviceMemory& memory, float value) {
    memory.write(std::vector<float>(kFloats, value));
  }
};

TEST_P(Flatten, ChildGraphsAreInlinedInOrder) {
  // 0: x1 = 2 x0;  child: {x2 = x1 + 1, x3 = x1 + 2} then nested {x4 = x2 + 3};  x5 = x4 + x3's
  // shift
  const auto make = [&](const std::vector<CUdeviceptr>& at) {
    GraphBuilder nested(bed());
    nested.affine({at[4], at[2], 1, 3, kFloats});
    GraphBuilder child(bed());
    const CUgraphNode left = child.affine({at[2], at[1], 1, 1, kFloats});
    child.affine({at[3], at[1], 1, 2, kFloats});
    child.child(nested, {left});
    GraphBuilder graph(bed());
    const CUgraphNode first = graph.affine({at[1], at[0], 2, 0, kFloats});
    const CUgraphNode inner = graph.child(child, {first});
    graph.affine({at[5], at[4], 10, 0, kFloats}, {inner});
    return graph.take();
  };
  Regions regions(driver(), 6, kBytes);
  regions.scratch(1).scratch(2);
  LinkedGraph linked = regions.link(make);
  ASSERT_TRUE(linked.table.sound()) << linked.table.problems[0];
  EXPECT_EQ(linked.image.count(NodeKind::kKernel), 5U);
  EXPECT_EQ(linked.image.nodes.size(), 5U);
  // first -> left, first -> right, left -> nested, {right, nested} -> last
  EXPECT_EQ(linked.image.edges.size(), 5U);
  const NodeOrder order(linked.image);
  for (std::uint32_t i = 1; i < 4; ++i) {
    EXPECT_TRUE(order.precedes(0, i)) << i;
    EXPECT_TRUE(order.precedes(i, 4)) << i;
  }
  Runnable runnable(bed(), std::move(linked));
  for (const float start : {1.0F, 5.0F}) {
    std::vector<DeviceMemory> memory;
    std::vector<CUdeviceptr> at;
    for (int i = 0; i < 6; ++i) {
      memory.emplace_back(driver(), kBytes);
      at.push_back(memory.back().address());
    }
    write(memory[0], start);
    runnable.run(bed(), at);
    EXPECT_TRUE(holds(memory[3], 2 * start + 2));
    EXPECT_TRUE(holds(memory[5], 10 * (2 * start + 4)));
  }
}

TEST_P(Flatten, EmptyChildStillOrders) {
  const DeviceMemory memory(driver(), 64);
  const GraphBuilder nothing(bed());
  GraphBuilder graph(bed());
  const CUgraphNode first = graph.fill(memory.address());
  const CUgraphNode child = graph.child(nothing, {first});
  graph.fill(memory.address() + 8, {child});
  const FlatGraph flat = flatten(driver(), graph.get());
  const Image image = read_image(driver(), flat.graph.get());
  ASSERT_EQ(image.nodes.size(), 3U);
  EXPECT_EQ(image.count(NodeKind::kMemset), 2U);
  EXPECT_TRUE(NodeOrder(image).precedes(0, 2));
}

TEST_P(Flatten, OriginalStaysAsItWas) {
  const DeviceMemory memory(driver(), 64);
  GraphBuilder child(bed());
  child.fill(memory.address());
  GraphBuilder graph(bed());
  graph.child(child);
  { const FlatGraph flat = flatten(driver(), graph.get()); }
  EXPECT_FALSE(read_if_flat(driver(), graph.get()).has_value());
  EXPECT_TRUE(read_if_flat(driver(), child.get()).has_value());
}

TEST_P(Flatten, KernelAttributesAreKept) {
  const DeviceMemory memory(driver(), kBytes);
  GraphBuilder graph(bed());
  const CUgraphNode kernel = graph.affine({memory.address(), memory.address(), 1, 1, kFloats});
  CUkernelNodeAttrValue value{};
  value.priority = -1;
  driver().check(
      api().cuGraphKernelNodeSetAttribute(kernel, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value),
      "cuGraphKernelNodeSetAttribute");
  const FlatGraph flat = flatten(driver(), graph.get());
  CUkernelNodeAttrValue found{};
  driver().check(
      api().cuGraphKernelNodeGetAttribute(read_image(driver(), flat.graph.get()).nodes.at(0).handle,
                                          CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &found),
      "cuGraphKernelNodeGetAttribute");
  EXPECT_EQ(found.priority, -1);
}

TEST_P(Flatten, EdgeDataIsKept) {
  const DeviceMemory memory(driver(), kBytes);
  const testing::AffineBlock block{memory.address(), memory.address(), 1, 1, kFloats};
  GraphBuilder child(bed());
  const CUgraphNode first = child.affine(block);
  child.edge(first, child.affine(block), programmatic());
  GraphBuilder graph(bed());
  graph.child(child, {graph.affine(block)});
  const FlatGraph flat = flatten(driver(), graph.get());
  const Image image = read_image(driver(), flat.graph.get());
  ASSERT_EQ(image.edges.size(), 2U);
  EXPECT_EQ(image.programmatic, (std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1, 2}}));
}

TEST_P(Flatten, AllocationsOfTheGraphBecomeScratch) {
  // Two allocations, one after the other: the driver may give both the same address.
  const auto make = [&](const std::vector<CUdeviceptr>& at) {
    return bed().capture([&] {
      const CUdeviceptr first = allocate();
      bed().affine({first, at[0], 2, 0, kFloats});
      bed().affine({at[1], first, 1, 1, kFloats});
      free(first);
      const CUdeviceptr second = allocate();
      const CUdeviceptr third = allocate();
      driver().check(api().cuMemcpyDtoDAsync(second, at[1], kBytes, stream()), "copy");
      driver().check(api().cuMemsetD8Async(third, 0, kBytes, stream()), "fill");
      bed().affine({third, second, 1, 10, kFloats});
      bed().affine({at[2], third, 1, 0, kFloats});
      free(second);
      free(third);
    });
  };
  const Regions regions(driver(), 3, kBytes);
  LinkedGraph linked = regions.link(make);
  ASSERT_TRUE(linked.table.sound()) << linked.table.problems[0];
  EXPECT_EQ(linked.image.count(NodeKind::kEmpty), 6U);
  EXPECT_GE(linked.layout.bytes, 2 * std::size_t{512});
  EXPECT_LE(linked.layout.bytes, 3 * std::size_t{512});
  EXPECT_EQ(linked.region_count(), 4U);
  Runnable runnable(bed(), std::move(linked));
  for (const float start : {1.0F, -4.0F}) {
    const DeviceMemory in(driver(), kBytes);
    const DeviceMemory middle(driver(), kBytes);
    const DeviceMemory out(driver(), kBytes);
    write(in, start);
    runnable.run(bed(), {in.address(), middle.address(), out.address()});
    EXPECT_TRUE(holds(middle, 2 * start + 1));
    EXPECT_TRUE(holds(out, 2 * start + 11));
  }
}

TEST_P(Flatten, MemoryThatTheGraphDoesNotFreeIsRefused) {
  CUdeviceptr kept = 0;
  const GraphHandle graph = bed().capture([&] {
    (void)allocate();
    kept = allocate();
  });
  const std::string text = refusal(graph.get());
  EXPECT_NE(text.find("node 0"), std::string::npos) << text;
  EXPECT_NE(text.find("does not free"), std::string::npos) << text;

  const GraphHandle other = bed().capture([&] { free(kept); });
  const std::string freed = refusal(other.get());
  EXPECT_NE(freed.find("node 0"), std::string::npos) << freed;
  EXPECT_NE(freed.find("did not allocate"), std::string::npos) << freed;
}

TEST_P(Flatten, ConditionalsAreRefusedByNameAndPlace) {
  if (api().cuGraphAddNode == nullptr || api().cuGraphConditionalHandleCreate == nullptr) {
    GTEST_SKIP() << "the driver has no conditional nodes";
  }
  GraphBuilder graph(bed());
  CUcontext context = nullptr;
  driver().check(api().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  CUgraphConditionalHandle handle = 0;
  driver().check(api().cuGraphConditionalHandleCreate(&handle, graph.get(), context, 1, 0),
                 "cuGraphConditionalHandleCreate");
  const CUgraphNode first = graph.empty();
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = handle;
  params.conditional.type = CU_GRAPH_COND_TYPE_IF;
  params.conditional.size = 1;
  params.conditional.ctx = context;
  CUgraphNode node = nullptr;
  driver().check(api().cuGraphAddNode(&node, graph.get(), &first, nullptr, 1, &params),
                 "cuGraphAddNode");
  for (const std::string& text : {refusal(graph.get()), message_of<UnsupportedGraph>([&] {
                                    (void)read_image(driver(), graph.get());
                                  })}) {
    EXPECT_NE(text.find("node 1 of the captured graph is a conditional"), std::string::npos)
        << text;
  }
}

PYGRAPH_ON_BOTH_DRIVERS(Flatten);

class FlattenOnTwin : public testing::OnTwin {
 protected:
  CUgraphNode add(GraphBuilder& graph, int type, const testing::Nodes& after = {}) {
    CUgraphNodeParams params{};
    params.type = static_cast<CUgraphNodeType>(type);
    CUgraphNode node = nullptr;
    driver().check(driver().api.cuGraphAddNode(&node, graph.get(), after.data(), nullptr,
                                               after.size(), &params),
                   "cuGraphAddNode");
    return node;
  }
};

TEST_F(FlattenOnTwin, EveryOtherTypeIsRefusedByName) {
  const std::pair<int, const char*> refused[] = {
      {CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, "an external semaphore signal"},
      {CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, "an external semaphore wait"},
      {CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, "a batch memory operation"},
      {CU_GRAPH_NODE_TYPE_CONDITIONAL, "a conditional"},
      {15, "a node of type 15"},
  };
  for (const auto& [type, name] : refused) {
    GraphBuilder child(bed());
    add(child, type, {child.empty()});
    GraphBuilder graph(bed());
    graph.child(child, {graph.empty()});
    const std::string plain =
        message_of<UnsupportedGraph>([&] { (void)read_image(driver(), child.get()); });
    EXPECT_NE(plain.find(std::string("node 1 of the captured graph is ") + name), std::string::npos)
        << plain;
    const std::string nested =
        message_of<UnsupportedGraph>([&] { (void)flatten(driver(), graph.get()); });
    EXPECT_NE(nested.find("node 1 of the child graph at node 1"), std::string::npos) << nested;
    EXPECT_NE(nested.find(name), std::string::npos) << nested;
  }
}

TEST_F(FlattenOnTwin, EdgeDataOfANodeThatIsReplacedIsRefused) {
  GraphBuilder child(bed());
  child.empty();
  GraphBuilder graph(bed());
  const CUgraphNode kernel = graph.affine({512, 512, 1, 1, 1});
  const CUgraphNode inner = graph.child(child);
  const CUgraphEdgeData data = programmatic();
  EXPECT_EQ(driver().api.cuGraphAddDependencies(graph.get(), &kernel, &inner, &data, 1),
            CUDA_ERROR_INVALID_VALUE)
      << "between kernels only";
  CUgraphEdgeData launched{};
  launched.from_port = CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER;
  graph.edge(kernel, inner, launched);
  const std::string text =
      message_of<UnsupportedGraph>([&] { (void)flatten(driver(), graph.get()); });
  EXPECT_NE(text.find("from node 0 to node 1"), std::string::npos) << text;
}

TEST_F(FlattenOnTwin, EdgesMayBeAddedAgainstTheOrderOfCreation) {
  const DeviceMemory memory(driver(), 64);
  GraphBuilder graph(bed());
  const CUgraphNode last = graph.fill_2d(memory.address(), 2, 64, 1, 0);
  const CUgraphNode first = graph.fill_2d(memory.address(), 1, 64, 1, 0);
  graph.edge(first, last, {});
  const CUgraphEdgeData data{};
  EXPECT_EQ(driver().api.cuGraphAddDependencies(graph.get(), &last, &first, &data, 1),
            CUDA_ERROR_INVALID_VALUE)
      << "a cycle";
  CUgraphExec exec = nullptr;
  driver().check(driver().api.cuGraphInstantiate(&exec, graph.get(), 0), "cuGraphInstantiate");
  const ExecHandle owner(driver(), exec);
  driver().check(driver().api.cuGraphLaunch(exec, bed().stream()), "cuGraphLaunch");
  bed().synchronize();
  EXPECT_EQ(memory.read<std::uint8_t>(), std::vector<std::uint8_t>(64, 2));
}

TEST_F(FlattenOnTwin, FailuresNameTheNodeAndLeaveNothing) {
  GraphBuilder child(bed());
  child.affine({512, 512, 1, 1, 1});
  GraphBuilder graph(bed());
  graph.child(child, {graph.empty()});
  const twin::Census before = twin::census();
  for (const char* symbol :
       {"cuGraphCreate", "cuGraphNodeGetType", "cuGraphChildGraphNodeGetGraph",
        "cuGraphAddKernelNode", "cuGraphKernelNodeCopyAttributes", "cuGraphAddDependencies"}) {
    twin::Faults::fail(symbol, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW((void)flatten(driver(), graph.get()), DriverError) << symbol;
    EXPECT_EQ(twin::census(), before) << symbol;
  }
}

TEST_F(FlattenOnTwin, AddressesAreUsedAgainAfterAFree) {
  CUdeviceptr addresses[3] = {};
  const GraphHandle graph = bed().capture([&] {
    for (CUdeviceptr& address : addresses) {
      driver().check(driver().api.cuMemAllocAsync(&address, 64, bed().stream()), "allocate");
      driver().check(driver().api.cuMemFreeAsync(address, bed().stream()), "free");
    }
  });
  EXPECT_EQ(addresses[0], addresses[1]);
  EXPECT_EQ(addresses[0], addresses[2]);
  EXPECT_EQ(flatten(driver(), graph.get()).allocations.size(), 3U);
  CUgraph clone = nullptr;
  EXPECT_EQ(driver().api.cuGraphClone(&clone, graph.get()), CUDA_ERROR_NOT_SUPPORTED);
}

}  // namespace
}  // namespace pygraph
