// Graphs and their nodes. A node can only depend on nodes that exist already, so the order of
// creation is a topological order.
#include <algorithm>
#include <unordered_map>

#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

CUgraphNodeType type_of(const Work& work) {
  struct Visitor {
    CUgraphNodeType operator()(std::monostate) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const KernelWork&) const { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const CUDA_MEMCPY3D&) const { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const CUDA_MEMSET_NODE_PARAMS&) const {
      return CU_GRAPH_NODE_TYPE_MEMSET;
    }
    CUgraphNodeType operator()(const CUDA_HOST_NODE_PARAMS&) const {
      return CU_GRAPH_NODE_TYPE_HOST;
    }
    CUgraphNodeType operator()(const MemoryAllocation&) const {
      return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    }
    CUgraphNodeType operator()(const MemoryFree&) const { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
    CUgraphNodeType operator()(const ChildGraph&) const { return CU_GRAPH_NODE_TYPE_GRAPH; }
    CUgraphNodeType operator()(const EventWork& work) const { return work.type; }
    CUgraphNodeType operator()(const UnknownWork& work) const { return work.type; }
  };
  return std::visit(Visitor{}, work);
}

/// Points the arrays that cuGraphKernelNodeGetParams hands out into the node's own block.
void point_into_block(GraphNode& node) {
  auto* launch = std::get_if<KernelWork>(&node.work);
  if (launch == nullptr) {
    return;
  }
  if (launch->form == ParameterForm::kPacked) {
    node.extra_bytes = launch->block.size();
    void* const form[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &node.extra_bytes,
                          CU_LAUNCH_PARAM_BUFFER_POINTER, launch->block.data(),
                          CU_LAUNCH_PARAM_END};
    std::copy(std::begin(form), std::end(form), node.extra);
    return;
  }
  for (const ParameterSlot& parameter : launch->kernel->parameters) {
    node.arguments.push_back(launch->block.data() + parameter.offset);
  }
}

/// The work of `node` when it is of type `Kind`.
template <typename Kind>
const Kind* work_of(CUgraphNode node) {
  const GraphNode* found = find(state().nodes, node);
  return found == nullptr ? nullptr : std::get_if<Kind>(&found->work);
}

template <typename Kind, typename Check>
CUresult take_params(CUgraphNode node, const Kind* params, Check check) {
  const Lock lock;
  if (params == nullptr || work_of<Kind>(node) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult code = check(*params); code != CUDA_SUCCESS) {
    return code;
  }
  state().nodes.at(node).work = *params;
  return CUDA_SUCCESS;
}

template <typename Kind>
CUresult give_params(CUgraphNode node, Kind* params) {
  if (params == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  const Kind* work = work_of<Kind>(node);
  if (work == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *params = *work;
  return CUDA_SUCCESS;
}

CUresult check_context(CUcontext context) {
  return context == nullptr || is_context(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

CUresult add_node(CUgraph graph, const CUgraphNode* dependencies, std::size_t count, Work work,
                  CUgraphNode* node) {
  State& now = state();
  Graph* owner = find(now.graphs, graph);
  if (owner == nullptr || node == nullptr || (count != 0 && dependencies == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<CUgraphNode> before(dependencies, dependencies + count);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const GraphNode* dependency = find(now.nodes, before[i]);
    const auto here = before.begin() + static_cast<std::ptrdiff_t>(i);
    if (dependency == nullptr || dependency->graph != graph ||
        std::find(before.begin(), here, before[i]) != here) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const auto handle = now.make_handle<CUgraphNode>();
  GraphNode& added = now.nodes[handle];  // never moves while it lives
  added.work = std::move(work);
  added.graph = graph;
  added.edge_data.resize(before.size());
  added.dependencies = std::move(before);
  point_into_block(added);
  owner->nodes.push_back(handle);
  *node = handle;
  return CUDA_SUCCESS;
}

void destroy_graph(CUgraph graph) {
  State& now = state();
  for (const CUgraphNode node : now.graphs.at(graph).nodes) {
    if (const auto* child = std::get_if<ChildGraph>(&now.nodes.at(node).work)) {
      destroy_graph(child->graph);
    }
    now.nodes.erase(node);
  }
  now.graphs.erase(graph);
}

CUresult clone_graph(CUgraph original, CUgraph* clone) {
  State& now = state();
  const std::vector<CUgraphNode> sources = now.graphs.at(original).nodes;
  for (const CUgraphNode node : sources) {
    const Work& work = now.nodes.at(node).work;
    if (std::holds_alternative<MemoryAllocation>(work) ||
        std::holds_alternative<MemoryFree>(work)) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  *clone = now.make_handle<CUgraph>();
  now.graphs[*clone];
  std::unordered_map<CUgraphNode, CUgraphNode> twins;
  for (const CUgraphNode node : sources) {
    const GraphNode& from = now.nodes.at(node);
    Work work = from.work;
    CUresult code = CUDA_SUCCESS;
    if (auto* child = std::get_if<ChildGraph>(&work)) {
      code = clone_graph(child->graph, &child->graph);
      if (code == CUDA_SUCCESS) {
        now.graphs.at(child->graph).embedded = true;
      }
    }
    std::vector<CUgraphNode> dependencies;
    dependencies.reserve(from.dependencies.size());
    for (const CUgraphNode dependency : from.dependencies) {
      dependencies.push_back(twins.at(dependency));
    }
    if (code == CUDA_SUCCESS) {
      code =
          add_node(*clone, dependencies.data(), dependencies.size(), std::move(work), &twins[node]);
    }
    if (code != CUDA_SUCCESS) {
      destroy_graph(*clone);
      return code;
    }
    now.nodes.at(twins[node]).original = node;
    now.nodes.at(twins[node]).edge_data = from.edge_data;
    now.nodes.at(twins[node]).attributes = from.attributes;
  }
  return CUDA_SUCCESS;
}

namespace entry {

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  if (graph == nullptr || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  *graph = state().make_handle<CUgraph>();
  state().graphs[*graph];
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  const Lock lock;
  const Graph* found = find(state().graphs, graph);
  if (found == nullptr || found->embedded) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const auto& [handle, stream] : state().streams) {
    if (stream.capture == graph) {
      return CUDA_ERROR_ILLEGAL_STATE;  // still being captured
    }
  }
  destroy_graph(graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* clone, CUgraph original) {
  const Lock lock;
  if (clone == nullptr || find(state().graphs, original) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return clone_graph(original, clone);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
  const Lock lock;
  const Graph* found = find(state().graphs, graph);
  if (found == nullptr || count == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (nodes == nullptr) {
    *count = found->nodes.size();
    return CUDA_SUCCESS;
  }
  const std::size_t given = std::min(*count, found->nodes.size());
  std::copy_n(found->nodes.begin(), given, nodes);
  std::fill(nodes + given, nodes + *count, nullptr);
  *count = given;
  return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                         std::size_t* count) {
  const Lock lock;
  const Graph* found = find(state().graphs, graph);
  if (found == nullptr || count == nullptr || (from == nullptr) != (to == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::size_t edges = 0;
  for (const CUgraphNode handle : found->nodes) {
    const GraphNode& node = state().nodes.at(handle);
    for (std::size_t i = 0; i < node.dependencies.size(); ++i) {
      const CUgraphEdgeData& edge = node.edge_data[i];
      if (from != nullptr && edges < *count) {
        from[edges] = node.dependencies[i];
        to[edges] = handle;
        if (data != nullptr) {
          data[edges] = edge;
        } else if (edge.from_port != 0 || edge.to_port != 0 || edge.type != 0) {
          return CUDA_ERROR_LOSSY_QUERY;
        }
      }
      ++edges;
    }
  }
  if (from != nullptr) {
    for (std::size_t i = edges; i < *count; ++i) {
      from[i] = nullptr;
      to[i] = nullptr;
    }
    edges = std::min(edges, *count);
  }
  *count = edges;
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  const Lock lock;
  const GraphNode* found = find(state().nodes, node);
  if (found == nullptr || type == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *type = type_of(found->work);
  return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                              std::size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  KernelWork work;
  const CUresult code = make_kernel_work(*params, work);
  return code == CUDA_SUCCESS ? add_node(graph, dependencies, count, std::move(work), node) : code;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                              std::size_t count, const CUDA_MEMCPY3D* params, CUcontext context) {
  if (params == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  CUresult code = check_context(context);
  // A copy of an array can be held, and refused when it runs: the twin has no arrays.
  const bool of_array =
      params->srcMemoryType == CU_MEMORYTYPE_ARRAY || params->dstMemoryType == CU_MEMORYTYPE_ARRAY;
  code = code == CUDA_SUCCESS && !of_array ? check_copy(*params) : code;
  // Seen on the real driver: only a capture makes such a node in the graph that allocates.
  if (in_graph_memory(params->srcDevice) || in_graph_memory(params->dstDevice)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return code == CUDA_SUCCESS ? add_node(graph, dependencies, count, *params, node) : code;
}

CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                              std::size_t count, const CUDA_MEMSET_NODE_PARAMS* params,
                              CUcontext context) {
  if (params == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  CUresult code = check_context(context);
  code = code == CUDA_SUCCESS ? check_fill(*params) : code;
  if (in_graph_memory(params->dst)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return code == CUDA_SUCCESS ? add_node(graph, dependencies, count, *params, node) : code;
}

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                             std::size_t count) {
  const Lock lock;
  return add_node(graph, dependencies, count, std::monostate{}, node);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  const Lock lock;
  GraphNode* found = find(state().nodes, node);
  const auto* launch = found == nullptr ? nullptr : std::get_if<KernelWork>(&found->work);
  if (launch == nullptr || params == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *params = CUDA_KERNEL_NODE_PARAMS{};
  params->func = launch->function;
  params->kern = launch->kernel_handle;
  params->ctx = launch->function == nullptr ? context_of(0) : nullptr;
  params->gridDimX = launch->grid[0];
  params->gridDimY = launch->grid[1];
  params->gridDimZ = launch->grid[2];
  params->blockDimX = launch->threads[0];
  params->blockDimY = launch->threads[1];
  params->blockDimZ = launch->threads[2];
  params->sharedMemBytes = launch->shared_bytes;
  if (launch->form == ParameterForm::kPacked) {
    params->extra = found->extra;
  } else {
    params->kernelParams = found->arguments.empty() ? nullptr : found->arguments.data();
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* params) {
  return give_params(node, params);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
  return give_params(node, params);
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  const Lock lock;
  KernelWork work;
  if (params == nullptr || work_of<KernelWork>(node) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult code = make_kernel_work(*params, work); code != CUDA_SUCCESS) {
    return code;
  }
  GraphNode& changed = state().nodes.at(node);
  changed.arguments.clear();
  changed.work = std::move(work);
  point_into_block(changed);
  return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  return take_params(node, params, check_copy);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
  return take_params(node, params, check_fill);
}

}  // namespace entry
}  // namespace pygraph::twin
