// Instantiated graphs. An exec's list of work is shared with the launches that are in flight, and
// copied before it changes while one is: an update changes future launches only, as on the driver.
#include <algorithm>
#include <queue>
#include <random>

#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

/// The place of `node` in the exec's list when the exec was made from that node's graph and the
/// node does a `Kind` of work.
template <typename Kind>
const Kind* work_at(const Exec& exec, CUgraphNode node, std::size_t& place) {
  const auto entry = exec.index.find(node);
  if (entry == exec.index.end()) {
    return nullptr;
  }
  place = entry->second;
  return std::get_if<Kind>((*exec.works)[place].get());
}

void replace(Exec& exec, std::size_t place, Work work) {
  if (exec.works.use_count() > 1) {
    exec.works = std::make_shared<WorkList>(*exec.works);
  }
  (*exec.works)[place] = std::make_shared<const Work>(std::move(work));
}

/// The work of a node as it is at this moment, child graphs as lists.
std::shared_ptr<const Work> snapshot(const Work& work) {
  const auto* child = std::get_if<ChildGraph>(&work);
  if (child == nullptr) {
    return std::make_shared<const Work>(work);
  }
  auto group = std::make_shared<WorkGroup>();
  for (const CUgraphNode node : state().graphs.at(child->graph).nodes) {
    group->list.push_back(snapshot(state().nodes.at(node).work));
  }
  return std::make_shared<const Work>(ChildGraph{child->graph, std::move(group)});
}

bool in_reservation(CUdeviceptr address) {
  auto after = state().reservations.upper_bound(address);
  if (after == state().reservations.begin()) {
    return false;
  }
  const auto& [start, bytes] = *std::prev(after);
  return address - start < bytes;
}

/// "CUDA_ERROR_INVALID_VALUE if the memory operands' mappings changed": seen on the real driver
/// when a node moves between cuMemMap's and cuMemAlloc's memory.
bool mapped_alike(CUdeviceptr before, CUdeviceptr after) {
  return in_reservation(before) == in_reservation(after);
}

/// Whether an exec's copy may become `after`: "both the instantiation-time and the new operands
/// must be 1-dimensional" (cuGraphExecMemcpyNodeSetParams), and of unchanged type of memory.
bool may_become(const CUDA_MEMCPY3D& before, const CUDA_MEMCPY3D& after) {
  const auto flat = [](const CUDA_MEMCPY3D& copy) { return copy.Height <= 1 && copy.Depth <= 1; };
  return flat(before) && flat(after) && before.srcMemoryType == after.srcMemoryType &&
         before.dstMemoryType == after.dstMemoryType &&
         mapped_alike(before.srcDevice, after.srcDevice) &&
         mapped_alike(before.dstDevice, after.dstDevice);
}

bool may_become(const CUDA_MEMSET_NODE_PARAMS& before, const CUDA_MEMSET_NODE_PARAMS& after) {
  return before.height <= 1 && after.height <= 1 && mapped_alike(before.dst, after.dst);
}

CUresult check(const CUDA_MEMCPY3D& copy) { return check_copy(copy); }
CUresult check(const CUDA_MEMSET_NODE_PARAMS& fill) { return check_fill(fill); }

template <typename Kind>
CUresult set_struct(CUgraphExec handle, CUgraphNode node, const Kind* params, CUcontext context) {
  const Lock lock;
  Exec* exec = find(state().execs, handle);
  if (exec == nullptr || params == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (context != nullptr && !is_context(context)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  std::size_t place = 0;
  const Kind* before = work_at<Kind>(*exec, node, place);
  if (before == nullptr || !may_become(*before, *params)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult code = check(*params); code != CUDA_SUCCESS) {
    return code;
  }
  replace(*exec, place, *params);
  return CUDA_SUCCESS;
}

/// Places of a node's dependencies in its graph: what must agree for an update.
std::vector<std::size_t> dependency_places(
    CUgraphNode node, const std::unordered_map<CUgraphNode, std::size_t>& index) {
  std::vector<std::size_t> places;
  for (const CUgraphNode dependency : state().nodes.at(node).dependencies) {
    places.push_back(index.at(dependency));
  }
  std::sort(places.begin(), places.end());
  return places;
}

/// The works in an order that the edges allow, drawn with a seed.
std::shared_ptr<const WorkList> in_another_order(const Exec& exec, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::size_t count = exec.works->size();
  std::vector<std::size_t> waits_for(count);
  std::vector<std::vector<std::size_t>> behind(count);
  // The node with the highest number of those that may run is next. Were each drawn when it may,
  // one that may early would seldom stay behind one that has many in front of it.
  std::vector<std::uint64_t> numbers(count);
  std::priority_queue<std::pair<std::uint64_t, std::size_t>> ready;
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = random();
    waits_for[i] = exec.dependencies[i].size();
    for (const std::size_t before : exec.dependencies[i]) {
      behind[before].push_back(i);
    }
    if (waits_for[i] == 0) {
      ready.emplace(numbers[i], i);
    }
  }
  auto works = std::make_shared<WorkList>();
  while (!ready.empty()) {
    const std::size_t next = ready.top().second;
    ready.pop();
    works->push_back((*exec.works)[next]);
    for (const std::size_t each : behind[next]) {
      if (--waits_for[each] == 0) {
        ready.emplace(numbers[each], each);
      }
    }
  }
  return works;
}

}  // namespace

namespace entry {

CUresult cuGraphInstantiate(CUgraphExec* handle, CUgraph graph, unsigned long long flags) {
  const Lock lock;
  State& now = state();
  const Graph* source = find(now.graphs, graph);
  if (handle == nullptr || source == nullptr || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Exec exec;
  exec.works = std::make_shared<WorkList>();
  for (const CUgraphNode node : source->nodes) {
    const GraphNode& from = now.nodes.at(node);
    exec.index.emplace(node, exec.sources.size());
    exec.sources.push_back(node);
    exec.works->push_back(snapshot(from.work));
    exec.dependencies.push_back(dependency_places(node, exec.index));
  }
  *handle = now.make_handle<CUgraphExec>();
  now.execs.emplace(*handle, std::move(exec));
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  const Lock lock;
  return state().execs.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS* params) {
  const Lock lock;
  Exec* exec = find(state().execs, handle);
  if (exec == nullptr || params == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::size_t place = 0;
  if (work_at<KernelWork>(*exec, node, place) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  KernelWork work;
  if (const CUresult code = make_kernel_work(*params, work); code != CUDA_SUCCESS) {
    return code;
  }
  replace(*exec, place, std::move(work));
  return CUDA_SUCCESS;
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMCPY3D* params, CUcontext context) {
  return set_struct(exec, node, params, context);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  return set_struct(exec, node, params, context);
}

CUresult cuGraphExecUpdate(CUgraphExec handle, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  const Lock lock;
  Exec* exec = find(state().execs, handle);
  const Graph* source = find(state().graphs, graph);
  if (exec == nullptr || source == nullptr || info == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *info = CUgraphExecUpdateResultInfo{};
  const auto refuse = [info](CUgraphExecUpdateResult why, CUgraphNode node) {
    info->result = why;
    info->errorNode = node;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  };
  if (source->nodes.size() != exec->sources.size()) {
    return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr);
  }
  auto works = std::make_shared<WorkList>();
  std::unordered_map<CUgraphNode, std::size_t> index;
  for (std::size_t i = 0; i < source->nodes.size(); ++i) {
    const CUgraphNode node = source->nodes[i];
    const Work& work = state().nodes.at(node).work;
    index.emplace(node, i);
    if (dependency_places(node, index) != exec->dependencies[i]) {
      return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node);
    }
    if (work.index() != (*exec->works)[i]->index()) {
      return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, node);
    }
    works->push_back(snapshot(work));
  }
  exec->works = std::move(works);
  info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream stream) {
  const Lock lock;
  if (find(state().execs, handle) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return refuse_on_capturing_stream(stream);
}

// The driver would add a child graph to a capture; the twin refuses.
CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  const Lock lock;
  const Exec* exec = find(state().execs, handle);
  if (exec == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult code = refuse_on_capturing_stream(stream); code != CUDA_SUCCESS) {
    return code;
  }
  const std::uint64_t seed = next_order();
  enqueue(seed == 0 ? exec->works : in_another_order(*exec, seed));
  return CUDA_SUCCESS;
}

}  // namespace entry
}  // namespace pygraph::twin
