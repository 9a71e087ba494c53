// Nodes of cloned graphs: found by their originals, and taken out.
#include <algorithm>
#include <variant>

#include "entry.h"
#include "state.h"

namespace pygraph::twin::entry {

CUresult cuGraphNodeFindInClone(CUgraphNode* found, CUgraphNode original, CUgraph clone) {
  const Lock lock;
  const Graph* graph = find(state().graphs, clone);
  if (found == nullptr || graph == nullptr || original == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto node = std::find_if(
      graph->nodes.begin(), graph->nodes.end(),
      [&](CUgraphNode candidate) { return state().nodes.at(candidate).original == original; });
  if (node == graph->nodes.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *found = *node;
  return CUDA_SUCCESS;
}

/// "Removes hNode from its graph. This operation also severs any dependencies of other nodes on
/// hNode and vice versa" (driver API, Graph Management).
CUresult cuGraphDestroyNode(CUgraphNode handle) {
  const Lock lock;
  State& now = state();
  const GraphNode* node = find(now.nodes, handle);
  if (node == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (std::holds_alternative<ChildGraph>(node->work) ||
      std::holds_alternative<MemoryAllocation>(node->work) ||
      std::holds_alternative<MemoryFree>(node->work)) {
    return CUDA_ERROR_NOT_SUPPORTED;  // nobody takes such a node out
  }
  Graph& graph = now.graphs.at(node->graph);
  graph.nodes.erase(std::find(graph.nodes.begin(), graph.nodes.end(), handle));
  for (const CUgraphNode other : graph.nodes) {
    GraphNode& after = now.nodes.at(other);
    for (std::size_t i = after.dependencies.size(); i-- > 0;) {
      if (after.dependencies[i] == handle) {
        const auto at = static_cast<std::ptrdiff_t>(i);
        after.dependencies.erase(after.dependencies.begin() + at);
        after.edge_data.erase(after.edge_data.begin() + at);
      }
    }
  }
  now.nodes.erase(handle);
  return CUDA_SUCCESS;
}

}  // namespace pygraph::twin::entry
