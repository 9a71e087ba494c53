// Stream-ordered memory, and what becomes of it in a capture: nodes that allocate and free.
//
// As on the driver, the address of an allocation is fixed when its node is made, and an allocation
// behind a free may get the freed address again (CUDA programming guide, "Address Reuse within a
// Graph").
#include <algorithm>
#include <cstring>

#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

/// Memory of `bytes` that the capture allocated and freed before where the stream stands, and did
/// not use again since; null when there is none.
std::shared_ptr<const GraphMemory> freed_before(const Stream& stream, std::size_t bytes) {
  State& now = state();
  std::vector<std::shared_ptr<const GraphMemory>> free;
  std::vector<std::shared_ptr<const GraphMemory>> seen;
  for (const CUgraphNode node : now.graphs.at(stream.capture).nodes) {
    const Work& work = now.nodes.at(node).work;
    if (const auto* allocation = std::get_if<MemoryAllocation>(&work)) {
      std::erase(free, allocation->memory);
      seen.push_back(allocation->memory);
    } else if (const auto* freed = std::get_if<MemoryFree>(&work);
               freed != nullptr && reaches(stream.tails, node)) {
      for (const auto& memory : seen) {
        if (memory->address == freed->address && memory->bytes == bytes) {
          free.push_back(memory);
          break;
        }
      }
    }
  }
  return free.empty() ? nullptr : free.front();
}

CUresult capture_allocation(CUdeviceptr* address, std::size_t bytes, CUstream handle,
                            const Stream& stream) {
  std::shared_ptr<const GraphMemory> memory = freed_before(stream, bytes);
  if (memory == nullptr) {
    auto fresh = std::make_shared<GraphMemory>();
    if (const CUresult code = allocate(&fresh->address, bytes); code != CUDA_SUCCESS) {
      return code;
    }
    fresh->bytes = bytes;
    state().graph_memory.insert(fresh->address);
    memory = std::move(fresh);
  }
  *address = memory->address;
  return put(handle, MemoryAllocation{std::move(memory)});
}

template <typename Kind>
const Kind* work_of(CUgraphNode node) {
  const GraphNode* found = find(state().nodes, node);
  return found == nullptr ? nullptr : std::get_if<Kind>(&found->work);
}

}  // namespace

GraphMemory::~GraphMemory() {
  if (address != 0) {
    state().graph_memory.erase(address);
    release(address);
  }
}

namespace entry {

CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream handle) {
  if (address == nullptr || bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  const Stream* stream = capturing(handle);
  return stream == nullptr ? allocate(address, bytes)
                           : capture_allocation(address, bytes, handle, *stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  {
    const Lock lock;
    const bool of_graph = state().graph_memory.contains(address);
    if (find(state().allocations, address) == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (capturing(handle) != nullptr) {
      return of_graph ? put(handle, MemoryFree{address}) : CUDA_ERROR_INVALID_VALUE;
    }
    if (of_graph) {
      return CUDA_SUCCESS;  // goes with the graph
    }
  }
  const CUresult earlier = drain();
  const Lock lock;
  if (find(state().allocations, address) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  release(address);
  return earlier;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  const Lock lock;
  const auto* work = work_of<MemoryAllocation>(node);
  if (params == nullptr || work == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *params = CUDA_MEM_ALLOC_NODE_PARAMS{};
  params->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  params->bytesize = work->memory->bytes;
  params->dptr = work->memory->address;
  return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* address) {
  const Lock lock;
  const auto* work = work_of<MemoryFree>(node);
  if (address == nullptr || work == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = work->address;
  return CUDA_SUCCESS;
}

}  // namespace entry
}  // namespace pygraph::twin
