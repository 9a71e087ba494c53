// Nodes beyond kernels, copies and fills, the attributes of kernels, and edges that are added to
// nodes that exist.
#include <algorithm>
#include <unordered_map>

#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

template <typename Kind>
const Kind* work_of(CUgraphNode node) {
  const GraphNode* found = find(state().nodes, node);
  return found == nullptr ? nullptr : std::get_if<Kind>(&found->work);
}

using Attribute = std::pair<CUkernelNodeAttrID, CUkernelNodeAttrValue>;

auto find_attribute(std::vector<Attribute>& attributes, CUkernelNodeAttrID id) {
  return std::find_if(attributes.begin(), attributes.end(),
                      [id](const Attribute& attribute) { return attribute.first == id; });
}

/// Puts the nodes of a graph in a topological order, those that were first before if edges leave a
/// choice. False when there is a cycle; then nothing changes.
bool sort(Graph& graph) {
  std::vector<CUgraphNode> sorted;
  std::unordered_set<CUgraphNode> done;
  while (sorted.size() < graph.nodes.size()) {
    const auto next =
        std::find_if(graph.nodes.begin(), graph.nodes.end(), [&done](CUgraphNode node) {
          const std::vector<CUgraphNode>& before = state().nodes.at(node).dependencies;
          return !done.contains(node) &&
                 std::all_of(before.begin(), before.end(),
                             [&done](CUgraphNode other) { return done.contains(other); });
        });
    if (next == graph.nodes.end()) {
      return false;
    }
    done.insert(*next);
    sorted.push_back(*next);
  }
  graph.nodes = std::move(sorted);
  return true;
}

bool is_default(const CUgraphEdgeData& data) {
  return data.from_port == 0 && data.to_port == 0 && data.type == 0;
}

CUresult add_edge(CUgraph graph, CUgraphNode from, CUgraphNode to, const CUgraphEdgeData& data) {
  const GraphNode* before = find(state().nodes, from);
  GraphNode* after = find(state().nodes, to);
  if (before == nullptr || after == nullptr || before->graph != graph || after->graph != graph ||
      std::find(after->dependencies.begin(), after->dependencies.end(), from) !=
          after->dependencies.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Ports are a kernel's, and programmatic edges "may only be used between kernel nodes"
  // (CUgraphEdgeData, CUgraphDependencyType).
  const bool from_kernel = work_of<KernelWork>(from) != nullptr;
  const bool to_kernel = work_of<KernelWork>(to) != nullptr;
  if ((!is_default(data) && !from_kernel) ||
      (data.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC && !to_kernel)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  after->dependencies.push_back(from);
  after->edge_data.push_back(data);
  Graph& owner = state().graphs.at(graph);
  owner.by_creation = owner.by_creation && from < to;  // handles ascend
  if (!owner.by_creation && !sort(owner)) {
    after->dependencies.pop_back();
    after->edge_data.pop_back();
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

/// Refused for an edge that is not there, or has other data.
CUresult remove_edge(CUgraph graph, CUgraphNode from, CUgraphNode to, const CUgraphEdgeData& data) {
  GraphNode* after = find(state().nodes, to);
  if (after == nullptr || after->graph != graph) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto edge = std::find(after->dependencies.begin(), after->dependencies.end(), from);
  if (edge == after->dependencies.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto at = after->edge_data.begin() + (edge - after->dependencies.begin());
  if (at->from_port != data.from_port || at->to_port != data.to_port || at->type != data.type) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  after->dependencies.erase(edge);
  after->edge_data.erase(at);
  return CUDA_SUCCESS;
}

/// Adds or removes edges, one after another, up to the first that is refused.
template <typename Change>
CUresult for_each_edge(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                       const CUgraphEdgeData* data, std::size_t count, Change change) {
  const Lock lock;
  if (find(state().graphs, graph) == nullptr ||
      (count != 0 && (from == nullptr || to == nullptr))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const CUgraphEdgeData edge = data == nullptr ? CUgraphEdgeData{} : data[i];
    if (const CUresult code = change(graph, from[i], to[i], edge); code != CUDA_SUCCESS) {
      return code;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

bool reaches(const std::vector<CUgraphNode>& from, CUgraphNode node) {
  std::vector<CUgraphNode> to_visit = from;
  std::unordered_set<CUgraphNode> seen(from.begin(), from.end());
  while (!to_visit.empty()) {
    const CUgraphNode next = to_visit.back();
    to_visit.pop_back();
    if (next == node) {
      return true;
    }
    for (const CUgraphNode before : state().nodes.at(next).dependencies) {
      if (seen.insert(before).second) {
        to_visit.push_back(before);
      }
    }
  }
  return false;
}

namespace entry {

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                const CUgraphEdgeData* data, std::size_t count) {
  return for_each_edge(graph, from, to, data, count, add_edge);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* data, std::size_t count) {
  return for_each_edge(graph, from, to, data, count, remove_edge);
}

CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                            std::size_t count, const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr || params->fn == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  return add_node(graph, dependencies, count, *params, node);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* params) {
  const Lock lock;
  const auto* work = work_of<CUDA_HOST_NODE_PARAMS>(node);
  if (params == nullptr || work == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *params = *work;
  return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                  std::size_t count, CUgraph child) {
  const Lock lock;
  if (find(state().graphs, child) == nullptr || graph == child) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ChildGraph work;
  if (const CUresult code = clone_graph(child, &work.graph); code != CUDA_SUCCESS) {
    return code;
  }
  CUgraph clone = work.graph;
  const CUresult code = add_node(graph, dependencies, count, std::move(work), node);
  if (code == CUDA_SUCCESS) {
    state().graphs.at(clone).embedded = true;
  } else {
    destroy_graph(clone);
  }
  return code;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  const Lock lock;
  const auto* work = work_of<ChildGraph>(node);
  if (graph == nullptr || work == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *graph = work->graph;
  return CUDA_SUCCESS;
}

// The nodes that this call alone can make: the twin holds them, so that they can be refused.
CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                        const CUgraphEdgeData*, std::size_t count, CUgraphNodeParams* params) {
  if (params == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return CUDA_ERROR_NOT_SUPPORTED;  // they have calls of their own
    default:
      return add_node(graph, dependencies, count, UnknownWork{params->type}, node);
  }
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* handle, CUgraph graph, CUcontext,
                                        unsigned int, unsigned int) {
  const Lock lock;
  if (handle == nullptr || find(state().graphs, graph) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  state().next_handle += 16;
  *handle = state().next_handle;
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                       CUkernelNodeAttrValue* value) {
  const Lock lock;
  GraphNode* found = find(state().nodes, node);
  if (found == nullptr || !std::holds_alternative<KernelWork>(found->work) || value == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (attribute != CU_KERNEL_NODE_ATTRIBUTE_ACCESS_POLICY_WINDOW &&
      attribute != CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE &&
      attribute != CU_KERNEL_NODE_ATTRIBUTE_PRIORITY) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  *value = CUkernelNodeAttrValue{};
  const auto entry = find_attribute(found->attributes, attribute);
  if (entry != found->attributes.end()) {
    *value = entry->second;
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                       const CUkernelNodeAttrValue* value) {
  const Lock lock;
  GraphNode* found = find(state().nodes, node);
  if (found == nullptr || !std::holds_alternative<KernelWork>(found->work) || value == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto entry = find_attribute(found->attributes, attribute);
  if (entry != found->attributes.end()) {
    entry->second = *value;
  } else {
    found->attributes.emplace_back(attribute, *value);
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  const Lock lock;
  if (work_of<KernelWork>(to) == nullptr || work_of<KernelWork>(from) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  state().nodes.at(to).attributes = state().nodes.at(from).attributes;
  return CUDA_SUCCESS;
}

}  // namespace entry
}  // namespace pygraph::twin
