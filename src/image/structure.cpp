#include "structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <string>
#include <unordered_map>

#include "pygraph/image.h"

namespace pygraph {
namespace {

std::vector<CUgraphNode> get_nodes(const Driver& driver, CUgraph graph) {
  std::size_t count = 0;
  driver.check(driver.api.cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes");
  std::vector<CUgraphNode> handles(count);
  if (count != 0) {
    driver.check(driver.api.cuGraphGetNodes(graph, handles.data(), &count), "cuGraphGetNodes");
  }
  return handles;
}

std::vector<GraphEdge> get_edges(const Driver& driver, CUgraph graph,
                                 const std::vector<CUgraphNode>& handles) {
  std::size_t count = 0;
  driver.check(driver.api.cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count),
               "cuGraphGetEdges");
  std::vector<CUgraphNode> from(count);
  std::vector<CUgraphNode> to(count);
  std::vector<CUgraphEdgeData> data(count);
  if (count != 0) {
    // Edge data must be asked for: programmatic edges make the call fail without it.
    driver.check(driver.api.cuGraphGetEdges(graph, from.data(), to.data(), data.data(), &count),
                 "cuGraphGetEdges");
  }
  std::unordered_map<CUgraphNode, std::uint32_t> index;
  index.reserve(handles.size());
  for (std::uint32_t i = 0; i < handles.size(); ++i) {
    index.emplace(handles[i], i);
  }
  std::vector<GraphEdge> edges(count);
  for (std::size_t i = 0; i < count; ++i) {
    edges[i] = {index.at(from[i]), index.at(to[i]), data[i]};
  }
  return edges;
}

/// Kahn's algorithm; among nodes that are ready the one created first goes first, so a plain
/// capture keeps its launch order.
std::vector<std::uint32_t> topological_order(std::size_t count,
                                             const std::vector<GraphEdge>& edges) {
  std::vector<std::vector<std::uint32_t>> successors(count);
  std::vector<std::uint32_t> waiting(count, 0);
  for (const GraphEdge& edge : edges) {
    successors[edge.from].push_back(edge.to);
    ++waiting[edge.to];
  }
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (waiting[i] == 0) {
      ready.push(i);
    }
  }
  std::vector<std::uint32_t> order;
  order.reserve(count);
  while (!ready.empty()) {
    const std::uint32_t node = ready.top();
    ready.pop();
    order.push_back(node);
    for (const std::uint32_t next : successors[node]) {
      if (--waiting[next] == 0) {
        ready.push(next);
      }
    }
  }
  return order;
}

std::string reason(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_HOST:
      return "a host function, which may hold pointers that PyGraph cannot see; "
             "LinkOptions::keep_host_functions keeps it where the caller knows that it does not";
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
      return "an external semaphore signal, whose semaphores and values change from run to run: "
             "they would have to be bound like regions";
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
      return "an external semaphore wait, whose semaphores and values change from run to run: they "
             "would have to be bound like regions";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return "a batch memory operation: the addresses in its list of operations would have to be "
             "read and relocated";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return "a conditional: its handle belongs to the graph it was made for, and its bodies would "
             "have to be read and rebuilt with a new one";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "a child graph, which must be inlined first (flatten)";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return "a memory allocation, which must become scratch first (flatten)";
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return "a memory free, which must be removed with its allocation first (flatten)";
    default:
      return fmt::format("a node of type {}, which PyGraph does not know", static_cast<int>(type));
  }
}

}  // namespace

GraphStructure read_structure(const Driver& driver, CUgraph graph) {
  const std::vector<CUgraphNode> created = get_nodes(driver, graph);
  GraphStructure structure{{}, get_edges(driver, graph, created), {}};
  const std::vector<std::uint32_t> order = topological_order(created.size(), structure.edges);
  std::vector<std::uint32_t> place(created.size());
  structure.nodes.reserve(created.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    structure.nodes.push_back(created[order[i]]);
  }
  for (GraphEdge& edge : structure.edges) {
    edge.from = place[edge.from];
    edge.to = place[edge.to];
  }
  std::sort(structure.edges.begin(), structure.edges.end(),
            [](const GraphEdge& left, const GraphEdge& right) {
              return left.from != right.from ? left.from < right.from : left.to < right.to;
            });
  structure.created = order;
  return structure;
}

void refuse_node(std::string_view where, CUgraphNodeType type) {
  throw UnsupportedGraph(fmt::format("{} of the captured graph is {}", where, reason(type)));
}

}  // namespace pygraph
