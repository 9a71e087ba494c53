#include "pygraph/flatten.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "structure.h"

namespace pygraph {
namespace {

/// What stands for one node of the source: the nodes that its predecessors lead to, and those that
/// lead to its successors. One and the same unless it was a child graph.
struct Ends {
  std::vector<CUgraphNode> first;
  std::vector<CUgraphNode> last;
  bool replaced = false;
};

/// Device memory for as long as a node is made; none by default.
class StandInMemory {
 public:
  StandInMemory() = default;
  StandInMemory(const Driver& driver, std::size_t bytes) : driver_(&driver) {
    driver.check(driver.api.cuMemAlloc(&address_, bytes), "cuMemAlloc",
                 "memory in place of a graph's own");
  }
  ~StandInMemory() {
    if (address_ != 0) {
      driver_->api.cuMemFree(address_);
    }
  }
  StandInMemory(StandInMemory&& other) noexcept
      : driver_(other.driver_), address_(std::exchange(other.address_, 0)) {}
  StandInMemory(const StandInMemory&) = delete;
  StandInMemory& operator=(const StandInMemory&) = delete;
  StandInMemory& operator=(StandInMemory&&) = delete;

  [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }
  explicit operator bool() const noexcept { return address_ != 0; }

 private:
  const Driver* driver_ = nullptr;
  CUdeviceptr address_ = 0;
};

class Flattener {
 public:
  explicit Flattener(const Driver& driver) : driver_(driver), api_(driver.api) {
    CUgraph graph = nullptr;
    driver.check(api_.cuGraphCreate(&graph, 0), "cuGraphCreate", "the flattened graph");
    flat_.graph = GraphHandle(driver, graph);
    driver.check(api_.cuCtxGetCurrent(&context_), "cuCtxGetCurrent");
  }

  FlatGraph run(CUgraph source) {
    add_graph(source, "");
    for (std::size_t i = 0; i < flat_.allocations.size(); ++i) {
      if (!freed_[i]) {
        throw UnsupportedGraph(fmt::format(
            "{} of the captured graph allocates {} bytes that the graph does not free: they would "
            "have to live on after the launch, where their user cannot be known",
            flat_.allocations[i].node, flat_.allocations[i].bytes));
      }
    }
    return std::move(flat_);
  }

 private:
  /// Copies all nodes and edges of `source`; what stands at its roots and leaves. `inside` says
  /// where it is, for messages: empty, or " of the child graph at node 3".
  Ends add_graph(CUgraph source, const std::string& inside) {
    const GraphStructure structure = read_structure(driver_, source);
    std::vector<Ends> ends;
    ends.reserve(structure.nodes.size());
    for (std::size_t i = 0; i < structure.nodes.size(); ++i) {
      ends.push_back(add(structure.nodes[i], fmt::format("node {}{}", i, inside)));
    }
    std::vector<bool> has_before(ends.size());
    std::vector<bool> has_after(ends.size());
    for (const GraphEdge& edge : structure.edges) {
      connect(ends[edge.from], ends[edge.to], edge, inside);
      has_after[edge.from] = true;
      has_before[edge.to] = true;
    }
    Ends whole;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (!has_before[i]) {
        whole.first.insert(whole.first.end(), ends[i].first.begin(), ends[i].first.end());
      }
      if (!has_after[i]) {
        whole.last.insert(whole.last.end(), ends[i].last.begin(), ends[i].last.end());
      }
    }
    return whole;
  }

  void connect(const Ends& from, const Ends& to, const GraphEdge& edge, const std::string& inside) {
    if (!edge.full() && (from.replaced || to.replaced)) {
      throw UnsupportedGraph(fmt::format(
          "the edge from node {} to node {}{} of the captured graph carries data (a programmatic "
          "launch) and one of them must be replaced: the data would lose its kernel",
          edge.from, edge.to, inside));
    }
    for (CUgraphNode before : from.last) {
      for (CUgraphNode after : to.first) {
        driver_.check(
            api_.cuGraphAddDependencies(flat_.graph.get(), &before, &after, &edge.data, 1),
            "cuGraphAddDependencies", fmt::format("nodes {} and {}{}", edge.from, edge.to, inside));
      }
    }
  }

  Ends add(CUgraphNode source, const std::string& where) {
    CUgraphNodeType type{};
    driver_.check(api_.cuGraphNodeGetType(source, &type), "cuGraphNodeGetType", where);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
      CUgraph child = nullptr;
      driver_.check(api_.cuGraphChildGraphNodeGetGraph(source, &child),
                    "cuGraphChildGraphNodeGetGraph", where);
      Ends ends = add_graph(child, " of the child graph at " + where);
      if (ends.first.empty()) {  // an empty child still orders its neighbours
        ends = one(add_empty(where));
      }
      ends.replaced = true;
      return ends;
    }
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? note_allocation(source, where)
                                           : note_free(source, where);
      Ends ends = one(add_empty(where));
      ends.replaced = true;
      return ends;
    }
    return one(copy(source, type, where));
  }

  static Ends one(CUgraphNode node) { return {{node}, {node}, false}; }

  CUgraphNode add_empty(const std::string& where) {
    CUgraphNode node = nullptr;
    driver_.check(api_.cuGraphAddEmptyNode(&node, flat_.graph.get(), nullptr, 0),
                  "cuGraphAddEmptyNode", where);
    return node;
  }

  CUgraphNode copy(CUgraphNode source, CUgraphNodeType type, const std::string& where) {
    CUgraph graph = flat_.graph.get();
    CUgraphNode node = nullptr;
    const auto check = [&](CUresult code, const char* operation) {
      driver_.check(code, operation, where);
    };
    switch (type) {
      case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS launch{};
        check(api_.cuGraphKernelNodeGetParams(source, &launch), "cuGraphKernelNodeGetParams");
        check(api_.cuGraphAddKernelNode(&node, graph, nullptr, 0, &launch), "cuGraphAddKernelNode");
        check(api_.cuGraphKernelNodeCopyAttributes(node, source),
              "cuGraphKernelNodeCopyAttributes");
        break;
      }
      case CU_GRAPH_NODE_TYPE_MEMCPY: {
        CUDA_MEMCPY3D params{};
        check(api_.cuGraphMemcpyNodeGetParams(source, &params), "cuGraphMemcpyNodeGetParams");
        const CUDA_MEMCPY3D captured = params;
        const StandInMemory from = stand_in(params.srcDevice, params.srcMemoryType);
        const StandInMemory to = stand_in(params.dstDevice, params.dstMemoryType);
        check(api_.cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &params, context_),
              "cuGraphAddMemcpyNode");
        note_stand_in(node, &captured, sizeof captured, from || to);
        break;
      }
      case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS params{};
        check(api_.cuGraphMemsetNodeGetParams(source, &params), "cuGraphMemsetNodeGetParams");
        const CUDA_MEMSET_NODE_PARAMS captured = params;
        const StandInMemory to = stand_in(params.dst, CU_MEMORYTYPE_DEVICE);
        check(api_.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &params, context_),
              "cuGraphAddMemsetNode");
        note_stand_in(node, &captured, sizeof captured, static_cast<bool>(to));
        break;
      }
      case CU_GRAPH_NODE_TYPE_EMPTY:
        return add_empty(where);
      case CU_GRAPH_NODE_TYPE_HOST: {
        CUDA_HOST_NODE_PARAMS call{};
        check(api_.cuGraphHostNodeGetParams(source, &call), "cuGraphHostNodeGetParams");
        check(api_.cuGraphAddHostNode(&node, graph, nullptr, 0, &call), "cuGraphAddHostNode");
        break;
      }
      case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
        CUevent event = nullptr;
        check(api_.cuGraphEventRecordNodeGetEvent(source, &event),
              "cuGraphEventRecordNodeGetEvent");
        check(api_.cuGraphAddEventRecordNode(&node, graph, nullptr, 0, event),
              "cuGraphAddEventRecordNode");
        break;
      }
      case CU_GRAPH_NODE_TYPE_WAIT_EVENT: {
        CUevent event = nullptr;
        check(api_.cuGraphEventWaitNodeGetEvent(source, &event), "cuGraphEventWaitNodeGetEvent");
        check(api_.cuGraphAddEventWaitNode(&node, graph, nullptr, 0, event),
              "cuGraphAddEventWaitNode");
        break;
      }
      default:
        refuse_node(where, type);
    }
    return node;
  }

  /// Memory in place of an allocation of the graph that `address` lies in, which it is replaced by.
  StandInMemory stand_in(CUdeviceptr& address, CUmemorytype type) {
    if (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) {
      return {};
    }
    for (const GraphAllocation& allocation : flat_.allocations) {
      if (address >= allocation.address && address - allocation.address < allocation.bytes) {
        StandInMemory memory(driver_, allocation.bytes);
        address = memory.address() + (address - allocation.address);
        return memory;
      }
    }
    return {};
  }

  void note_stand_in(CUgraphNode node, const void* captured, std::size_t bytes, bool used) {
    if (used) {
      const auto* first = static_cast<const std::byte*>(captured);
      flat_.stand_ins.push_back({node, {first, first + bytes}});
    }
  }

  void note_allocation(CUgraphNode source, const std::string& where) {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    driver_.check(api_.cuGraphMemAllocNodeGetParams(source, &params),
                  "cuGraphMemAllocNodeGetParams", where);
    if (params.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        params.accessDescCount != 0) {
      throw UnsupportedGraph(
          fmt::format("{} of the captured graph allocates memory that is not its device's alone: "
                      "an arena of that kind of memory would be needed",
                      where));
    }
    flat_.allocations.push_back({params.dptr, params.bytesize, where});
    freed_.push_back(false);
  }

  // Addresses are used again within a graph, so a free ends the last allocation at its address.
  void note_free(CUgraphNode source, const std::string& where) {
    CUdeviceptr address = 0;
    driver_.check(api_.cuGraphMemFreeNodeGetParams(source, &address), "cuGraphMemFreeNodeGetParams",
                  where);
    for (std::size_t i = flat_.allocations.size(); i-- > 0;) {
      if (flat_.allocations[i].address == address && !freed_[i]) {
        freed_[i] = true;
        return;
      }
    }
    throw UnsupportedGraph(
        fmt::format("{} of the captured graph frees {:#x}, which the graph did not allocate: its "
                    "owner would have to be told after every launch",
                    where, address));
  }

  const Driver& driver_;
  const DriverApi& api_;
  CUcontext context_ = nullptr;
  FlatGraph flat_;
  std::vector<bool> freed_;  ///< per allocation
};

}  // namespace

FlatGraph flatten(const Driver& driver, CUgraph graph) { return Flattener(driver).run(graph); }

}  // namespace pygraph
