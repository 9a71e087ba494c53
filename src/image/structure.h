// What reading and flattening a graph have in common: its nodes in order, its edges, and the
// reasons why nodes are refused.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "pygraph/driver.h"

namespace pygraph {

/// From and to are places in GraphStructure::nodes.
struct GraphEdge {
  std::uint32_t from;
  std::uint32_t to;
  CUgraphEdgeData data;

  /// Whether `to` starts once `from` has finished. Ports and types other than 0 let it start
  /// earlier (driver API, CUgraphEdgeData).
  [[nodiscard]] bool full() const noexcept {
    return data.from_port == 0 && data.to_port == 0 && data.type == 0;
  }
};

/// Nodes in topological order, by creation where the edges leave a choice; edges ascend.
struct GraphStructure {
  std::vector<CUgraphNode> nodes;
  std::vector<GraphEdge> edges;
  std::vector<std::uint32_t> created;  ///< per node: how many were created before it
};

/// Throws DriverError.
GraphStructure read_structure(const Driver& driver, CUgraph graph);

/// Throws UnsupportedGraph: what `where` ("node 3") is, and why it cannot be relocated.
[[noreturn]] void refuse_node(std::string_view where, CUgraphNodeType type);

}  // namespace pygraph
