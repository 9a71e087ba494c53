// Nodes of cloned graphs, and fills of words.
#include <algorithm>
#include <utility>
#include <vector>

#include "graph_builder.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::GraphBuilder;
using testing::holds;
using testing::Nodes;

constexpr std::uint32_t kFloats = 64;
constexpr std::size_t kBytes = kFloats * sizeof(float);

using Edges = std::vector<std::pair<CUgraphNode, CUgraphNode>>;

class Clones : public testing::OnBothDrivers {
 protected:
  const DriverApi& api() { return driver().api; }

  GraphHandle clone(CUgraph graph) {
    CUgraph made = nullptr;
    driver().check(api().cuGraphClone(&made, graph), "cuGraphClone");
    return {driver(), made};
  }
  CUgraphNode find_in(const GraphHandle& clone, CUgraphNode original) {
    CUgraphNode found = nullptr;
    EXPECT_EQ(api().cuGraphNodeFindInClone(&found, original, clone.get()), CUDA_SUCCESS);
    return found;
  }
  Nodes nodes(CUgraph graph) {
    std::size_t count = 16;
    Nodes found(count);
    driver().check(api().cuGraphGetNodes(graph, found.data(), &count), "cuGraphGetNodes");
    found.resize(count);
    std::sort(found.begin(), found.end());
    return found;
  }
  Edges edges(CUgraph graph) {
    std::size_t count = 16;
    Nodes from(count);
    Nodes to(count);
    std::vector<CUgraphEdgeData> data(count);
    driver().check(api().cuGraphGetEdges(graph, from.data(), to.data(), data.data(), &count),
                   "cuGraphGetEdges");
    Edges found;
    for (std::size_t i = 0; i < count; ++i) {
      found.emplace_back(from[i], to[i]);
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  void run(CUgraph graph) {
    CUgraphExec exec = nullptr;
    driver().check(api().cuGraphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
    const ExecHandle owner(driver(), exec);
    driver().check(api().cuGraphLaunch(exec, bed().stream()), "cuGraphLaunch");
    bed().synchronize();
  }
  template <typename List>
  static List sorted(List list) {
    std::sort(list.begin(), list.end());
    return list;
  }
};

TEST_P(Clones, NodesAreFoundByTheirOriginals) {
  const DeviceMemory memory(driver(), kBytes);
  GraphBuilder graph(bed());
  const CUgraphNode first = graph.affine({memory.address(), memory.address(), 0, 1, kFloats});
  const CUgraphNode left =
      graph.affine({memory.address(), memory.address(), 2, 0, kFloats}, {first});
  const CUgraphNode right = graph.fill(memory.address(), {first});
  const GraphHandle copy = clone(graph.get());
  const CUgraphNode first_there = find_in(copy, first);
  const CUgraphNode left_there = find_in(copy, left);
  const CUgraphNode right_there = find_in(copy, right);
  EXPECT_EQ(nodes(copy.get()), sorted(Nodes{first_there, left_there, right_there}));
  EXPECT_EQ(edges(copy.get()),
            sorted(Edges{{first_there, left_there}, {first_there, right_there}}));
  CUgraphNodeType type{};
  EXPECT_EQ(api().cuGraphNodeGetType(right_there, &type), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEMSET);
}

TEST_P(Clones, ADestroyedNodeTakesItsEdgesAlongAndNothingElse) {
  // a -> b -> d, a -> c -> d: without b, only the way through c is left.
  const DeviceMemory memory(driver(), kBytes);
  memory.fill(0);
  GraphBuilder graph(bed());
  const auto affine = [&](float scale, float shift, const Nodes& after) {
    return graph.affine({memory.address(), memory.address(), scale, shift, kFloats}, after);
  };
  const CUgraphNode a = affine(0, 1, {});
  const CUgraphNode b = affine(1, 100, {a});
  const CUgraphNode c = affine(3, 0, {a});
  const CUgraphNode d = affine(1, 5, {b, c});
  const GraphHandle copy = clone(graph.get());
  ASSERT_EQ(api().cuGraphDestroyNode(find_in(copy, b)), CUDA_SUCCESS);
  const CUgraphNode a2 = find_in(copy, a);
  const CUgraphNode c2 = find_in(copy, c);
  const CUgraphNode d2 = find_in(copy, d);
  EXPECT_EQ(nodes(copy.get()), sorted(Nodes{a2, c2, d2}));
  EXPECT_EQ(edges(copy.get()), sorted(Edges{{a2, c2}, {c2, d2}}));
  run(copy.get());
  EXPECT_TRUE(holds(memory, 3 * 1 + 5));
  EXPECT_EQ(nodes(graph.get()).size(), 4U) << "the original is as it was";
  EXPECT_EQ(edges(graph.get()).size(), 4U);
  ASSERT_EQ(api().cuGraphDestroyNode(a2), CUDA_SUCCESS);
  EXPECT_EQ(edges(copy.get()), (Edges{{c2, d2}}));
  run(copy.get());
  EXPECT_TRUE(holds(memory, 3 * 8 + 5));
}

TEST_P(Clones, EdgesThatStayKeepTheirData) {
  const DeviceMemory memory(driver(), kBytes);
  GraphBuilder graph(bed());
  const CUgraphNode a = graph.affine({memory.address(), memory.address(), 0, 1, kFloats});
  const CUgraphNode b = graph.affine({memory.address(), memory.address(), 1, 1, kFloats});
  const CUgraphNode c = graph.affine({memory.address(), memory.address(), 1, 1, kFloats});
  graph.edge(a, c);
  graph.edge(b, c, testing::programmatic());
  ASSERT_EQ(api().cuGraphDestroyNode(a), CUDA_SUCCESS);
  CUgraphNode from = nullptr;
  CUgraphNode to = nullptr;
  CUgraphEdgeData data{};
  std::size_t count = 1;
  ASSERT_EQ(api().cuGraphGetEdges(graph.get(), &from, &to, &data, &count), CUDA_SUCCESS);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(std::pair(from, to), std::pair(b, c));
  EXPECT_EQ(data.type, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
}

TEST_P(Clones, WordsAreFilled) {
  const DeviceMemory memory(driver(), 32);
  memory.fill(0x11);
  const auto fill = [&](std::size_t offset, unsigned int value, std::size_t words) {
    return api().cuMemsetD32Async(memory.address() + offset, value, words, bed().stream());
  };
  EXPECT_EQ(fill(4, 0xA1B2C3D4U, 1), CUDA_SUCCESS);
  EXPECT_EQ(fill(16, 7, 3), CUDA_SUCCESS);
  EXPECT_EQ(fill(0, 9, 0), CUDA_SUCCESS);
  bed().synchronize();
  EXPECT_EQ(memory.read<std::uint32_t>(),
            (std::vector<std::uint32_t>{0x11111111U, 0xA1B2C3D4U, 0x11111111U, 0x11111111U, 7, 7, 7,
                                        0x11111111U}));
  for (const std::size_t offset : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    EXPECT_EQ(fill(offset, 1, 1), CUDA_ERROR_INVALID_VALUE) << offset;
  }
  const GraphHandle graph = bed().capture([&] { (void)fill(8, 0x01020304U, 2); });
  run(graph.get());
  EXPECT_EQ(memory.read<std::uint32_t>()[2], 0x01020304U);
  EXPECT_EQ(memory.read<std::uint32_t>()[3], 0x01020304U);
  EXPECT_EQ(memory.read<std::uint32_t>()[4], 7U);
}

PYGRAPH_ON_BOTH_DRIVERS(Clones);

/// What the driver calls undefined or does not say.
class ClonesOnTwin : public testing::OnTwin {
 protected:
  const DriverApi& api() { return driver().api; }
};

TEST_F(ClonesOnTwin, HandlesThatAreNoneAreRefused) {
  GraphBuilder graph(bed());
  const CUgraphNode node = graph.empty();
  CUgraph made = nullptr;
  ASSERT_EQ(api().cuGraphClone(&made, graph.get()), CUDA_SUCCESS);
  const GraphHandle copy(driver(), made);
  CUgraphNode found = nullptr;
  const auto find = [&](CUgraphNode original, CUgraph where) {
    return api().cuGraphNodeFindInClone(&found, original, where);
  };
  ASSERT_EQ(find(node, made), CUDA_SUCCESS);
  const CUgraphNode there = found;
  found = nullptr;
  EXPECT_EQ(api().cuGraphNodeFindInClone(nullptr, node, made), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(find(nullptr, made), CUDA_ERROR_INVALID_VALUE) << "nodes without an original";
  EXPECT_EQ(find(node, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(find(node, graph.get()), CUDA_ERROR_INVALID_VALUE) << "no clone";
  EXPECT_EQ(find(there, made), CUDA_ERROR_INVALID_VALUE) << "no original";
  EXPECT_EQ(find(graph.empty(), made), CUDA_ERROR_INVALID_VALUE) << "added since";
  EXPECT_EQ(found, nullptr);

  EXPECT_EQ(api().cuGraphDestroyNode(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuGraphDestroyNode(there), CUDA_SUCCESS);
  EXPECT_EQ(api().cuGraphDestroyNode(there), CUDA_ERROR_INVALID_VALUE) << "gone";
  EXPECT_EQ(find(node, made), CUDA_ERROR_INVALID_VALUE) << "gone";
}

TEST_F(ClonesOnTwin, NodesThatOwnSomethingStay) {
  GraphBuilder inner(bed());
  inner.empty();
  GraphBuilder graph(bed());
  const CUgraphNode child = graph.child(inner);
  EXPECT_EQ(api().cuGraphDestroyNode(child), CUDA_ERROR_NOT_SUPPORTED);
  CUgraphNodeType type{};
  EXPECT_EQ(api().cuGraphNodeGetType(child, &type), CUDA_SUCCESS);
}

TEST_F(ClonesOnTwin, WordsStayInsideTheirAllocation) {
  const DeviceMemory memory(driver(), 16);
  const auto fill = [&](std::size_t offset, std::size_t words) {
    return api().cuMemsetD32Async(memory.address() + offset, 1, words, bed().stream());
  };
  EXPECT_EQ(fill(0, 5), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(fill(4, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(fill(4, 3), CUDA_SUCCESS);
  bed().synchronize();
}

}  // namespace
}  // namespace pygraph
