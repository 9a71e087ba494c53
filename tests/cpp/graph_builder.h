// Graphs made node by node, on either driver, and their linking.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "pygraph/link.h"
#include "support.h"

namespace pygraph::testing {

using Nodes = std::vector<CUgraphNode>;

/// Every call adds one node behind `after` and returns it; throws DriverError.
class GraphBuilder {
 public:
  explicit GraphBuilder(const Testbed& bed) : bed_(bed), driver_(bed.driver()) {
    CUgraph graph = nullptr;
    driver_.check(api().cuGraphCreate(&graph, 0), "cuGraphCreate");
    graph_ = GraphHandle(driver_, graph);
    driver_.check(api().cuCtxGetCurrent(&context_), "cuCtxGetCurrent");
  }

  CUgraphNode empty(const Nodes& after = {}) {
    return add("cuGraphAddEmptyNode", after, api().cuGraphAddEmptyNode);
  }
  CUgraphNode fill(CUdeviceptr at, const Nodes& after = {}) {
    return fill_2d(at, 0, 4, 1, 0, after);
  }
  CUgraphNode fill_2d(CUdeviceptr at, unsigned char value, std::size_t width, std::size_t height,
                      std::size_t pitch, const Nodes& after = {}) {
    CUDA_MEMSET_NODE_PARAMS params{};
    params.dst = at;
    params.value = value;
    params.elementSize = 1;
    params.width = width;
    params.height = height;
    params.pitch = pitch;
    return add("cuGraphAddMemsetNode", after, api().cuGraphAddMemsetNode, &params, context_);
  }
  CUgraphNode copy(const CUDA_MEMCPY3D& params, const Nodes& after = {}) {
    return add("cuGraphAddMemcpyNode", after, api().cuGraphAddMemcpyNode, &params, context_);
  }
  /// out = scale * in + shift
  CUgraphNode affine(AffineBlock block, const Nodes& after = {}) {
    void* parameters[] = {&block.out, &block.in, &block.scale, &block.shift, &block.count};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = bed_.affine_function();
    params.gridDimX = (block.count + 127) / 128;
    params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = 128;
    params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = parameters;
    return add("cuGraphAddKernelNode", after, api().cuGraphAddKernelNode, &params);
  }
  CUgraphNode host(CUhostFn function, void* data, const Nodes& after = {}) {
    const CUDA_HOST_NODE_PARAMS params{function, data};
    return add("cuGraphAddHostNode", after, api().cuGraphAddHostNode, &params);
  }
  CUgraphNode child(const GraphBuilder& graph, const Nodes& after = {}) {
    return add("cuGraphAddChildGraphNode", after, api().cuGraphAddChildGraphNode, graph.get());
  }
  CUgraphNode record(CUevent event, const Nodes& after = {}) {
    return add("cuGraphAddEventRecordNode", after, api().cuGraphAddEventRecordNode, event);
  }
  CUgraphNode wait(CUevent event, const Nodes& after = {}) {
    return add("cuGraphAddEventWaitNode", after, api().cuGraphAddEventWaitNode, event);
  }
  void edge(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData& data = {}) {
    driver_.check(api().cuGraphAddDependencies(graph_.get(), &from, &to, &data, 1),
                  "cuGraphAddDependencies");
  }

  [[nodiscard]] CUgraph get() const { return graph_.get(); }
  [[nodiscard]] GraphHandle take() { return std::move(graph_); }

 private:
  [[nodiscard]] const DriverApi& api() const { return driver_.api; }

  template <typename Call, typename... Arguments>
  CUgraphNode add(const char* name, const Nodes& after, Call call, Arguments... arguments) {
    CUgraphNode node = nullptr;
    driver_.check(call(&node, graph_.get(), after.data(), after.size(), arguments...), name);
    return node;
  }

  const Testbed& bed_;
  const Driver& driver_;
  CUcontext context_ = nullptr;
  GraphHandle graph_;
};

/// A programmatic edge: the second kernel may start when the first has begun to end.
inline CUgraphEdgeData programmatic() {
  CUgraphEdgeData data{};
  data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  return data;
}

/// Regions of one size in phantom memory, at their places in both captures.
class Regions {
 public:
  Regions(const Driver& driver, std::size_t count, std::size_t bytes)
      : driver_(driver), bytes_(bytes), space_(driver, 0, small_phantom()) {
    for (const Placement placement : {Placement::kA, Placement::kB}) {
      space_.begin(placement);
      for (std::size_t i = 0; i < count; ++i) {
        at_[static_cast<std::size_t>(placement)].push_back(space_.allocate(bytes));
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      list_.push_back({{at_[0][i], at_[1][i], bytes}, RegionRole::kOwn, bytes});
    }
  }

  using Make = std::function<GraphHandle(const std::vector<CUdeviceptr>&)>;

  Regions& scratch(std::size_t region) {
    list_[region].role = RegionRole::kScratch;
    return *this;
  }
  Regions& fresh(std::size_t region) {
    list_[region].role = RegionRole::kFresh;
    return *this;
  }
  Regions& spent(std::size_t region) {
    list_[region].role = RegionRole::kSpent;
    return *this;
  }
  Regions& times(std::size_t region, Times times) {
    list_[region].times = times;
    return *this;
  }
  /// One more region: host memory, at its places in both captures.
  Regions& host(const void* a, const void* b, std::size_t bytes) {
    at_[0].push_back(reinterpret_cast<CUdeviceptr>(a));
    at_[1].push_back(reinterpret_cast<CUdeviceptr>(b));
    list_.push_back({{at_[0].back(), at_[1].back(), bytes}, RegionRole::kOwn, bytes});
    return *this;
  }

  /// The next node, or so many, is an operator's, which reads some regions and writes one.
  Regions& next_node(std::vector<std::size_t> reads, std::size_t writes, std::uint32_t nodes = 1) {
    const std::uint32_t begin = known_.empty() ? 0 : known_.back().end;
    KnownNodes& known = known_.emplace_back();
    known.begin = begin;
    known.end = begin + nodes;
    for (const std::size_t region : reads) {
      known.touches.push_back({at_[0][region], {}, false});
    }
    known.touches.push_back({at_[0][writes], {}, true});
    return *this;
  }

  /// Links the graphs that `make` makes from the places of the regions in A and in B.
  [[nodiscard]] LinkedGraph link(const Make& make, const std::vector<CopyOut>& copies = {},
                                 const LinkOptions& options = {},
                                 const std::vector<OperatorSpan>& operators = {},
                                 const std::vector<HostNumber>& numbers = {}) const {
    const GraphHandle a = make(at_[0]);
    const GraphHandle b = make(at_[1]);
    return pygraph::link(driver_, {.a = a.get(),
                                   .b = b.get(),
                                   .regions = list_,
                                   .copies = copies,
                                   .operators = operators,
                                   .numbers = numbers,
                                   .known = known_,
                                   .phantom_begin = space_.base(),
                                   .phantom_end = space_.base() + space_.reserved_bytes(),
                                   .options = options});
  }

  [[nodiscard]] const std::vector<LinkRegion>& list() const { return list_; }
  [[nodiscard]] PhantomSpace& space() { return space_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  const Driver& driver_;
  std::size_t bytes_;
  PhantomSpace space_;
  std::array<std::vector<CUdeviceptr>, 2> at_;
  std::vector<LinkRegion> list_;
  std::vector<KnownNodes> known_;
};

/// A linked graph as a program, its arena's pieces bound to memory of their own.
struct Runnable {
  Runnable(const Testbed& bed, LinkedGraph linked)
      : first_copy(linked.first_copy),
        program(bed.driver(), std::move(linked.graph), linked.image, linked.relocations,
                linked.region_count(), linked.numbers, linked.number_count) {
    for (const std::size_t bytes : linked.pieces()) {
      const auto region = linked.arena + static_cast<std::uint32_t>(arena.size());
      arena.push_back(
          std::make_unique<DeviceMemory>(bed.driver(), std::max<std::size_t>(bytes, 1)));
      program.bind(region, arena.back()->address());
    }
  }
  void run(const Testbed& bed, const std::vector<CUdeviceptr>& at) {
    for (std::uint32_t i = 0; i < at.size(); ++i) {
      program.bind(i, at[i]);
    }
    program.launch(bed.stream());
    bed.synchronize();
  }

  std::vector<std::unique_ptr<DeviceMemory>> arena;
  std::uint32_t first_copy;
  Program program;
};

/// The pairs whose copies differ, of all that an observer's memory holds.
inline std::vector<Observer::Pair> differing(const Observer& observer,
                                             const std::vector<std::byte>& memory) {
  std::vector<Observer::Pair> found;
  for (const Observer::Pair& pair : observer.pairs()) {
    const auto before = memory.begin() + static_cast<std::ptrdiff_t>(pair.before);
    const auto after = memory.begin() + static_cast<std::ptrdiff_t>(pair.after);
    if (!std::equal(before, before + static_cast<std::ptrdiff_t>(pair.bytes), after)) {
      found.push_back(pair);
    }
  }
  return found;
}

inline CUdeviceptr address_of(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }

}  // namespace pygraph::testing
