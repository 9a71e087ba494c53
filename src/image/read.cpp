#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <queue>
#include <unordered_map>

#include "pygraph/image.h"

namespace pygraph {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

const char* type_name(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_HOST:
      return "host function";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "child graph";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "event wait";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "event record";
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
      return "external semaphore signal";
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
      return "external semaphore wait";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return "memory allocation";
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return "memory free";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return "batch memory operation";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return "conditional";
    default:
      return "unknown";
  }
}

/// Reads nodes one by one; remembers parameter layouts, since a graph launches few distinct
/// kernels many times.
class Reader {
 public:
  explicit Reader(const Driver& driver) : driver_(driver) {}

  Node read(CUgraphNode handle, std::size_t index) {
    Node node;
    node.handle = handle;
    CUgraphNodeType type{};
    driver_.check(driver_.api.cuGraphNodeGetType(handle, &type), "cuGraphNodeGetType",
                  fmt::format("node {}", index));
    switch (type) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
        read_kernel(node, index);
        break;
      case CU_GRAPH_NODE_TYPE_MEMCPY:
        read_memcpy(node, index);
        break;
      case CU_GRAPH_NODE_TYPE_MEMSET:
        read_memset(node, index);
        break;
      case CU_GRAPH_NODE_TYPE_EMPTY:
        break;
      default:
        throw UnsupportedGraph(fmt::format(
            "node {} of the captured graph is a {} node, which PyGraph cannot relocate yet", index,
            type_name(type)));
    }
    return node;
  }

 private:
  void read_kernel(Node& node, std::size_t index) {
    CUDA_KERNEL_NODE_PARAMS found{};
    driver_.check(driver_.api.cuGraphKernelNodeGetParams(node.handle, &found),
                  "cuGraphKernelNodeGetParams", fmt::format("node {}", index));
    node.kind = NodeKind::kKernel;
    node.shape = {found.func,
                  found.kern,
                  found.ctx,
                  {found.gridDimX, found.gridDimY, found.gridDimZ},
                  {found.blockDimX, found.blockDimY, found.blockDimZ},
                  found.sharedMemBytes};
    refuse_hidden_address(node, index);
    if (found.extra != nullptr) {
      read_packed(node, found.extra, index);
    } else {
      read_array(node, found.kernelParams);
    }
    for (std::size_t offset = 0; offset + kWord <= node.block.size(); offset += kWord) {
      node.words.push_back(static_cast<std::uint32_t>(offset));
    }
  }

  // An access policy window names an address outside the parameter block (CUDA driver API,
  // CUlaunchAttribute): nothing would move it.
  void refuse_hidden_address(const Node& node, std::size_t index) const {
    CUlaunchAttributeValue value{};
    const CUresult code = driver_.api.cuGraphKernelNodeGetAttribute(
        node.handle, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value);
    if (code == CUDA_SUCCESS && value.accessPolicyWindow.base_ptr != nullptr &&
        value.accessPolicyWindow.num_bytes != 0) {
      throw UnsupportedGraph(
          fmt::format("node {} ({}) sets an access policy window, an address that PyGraph cannot "
                      "relocate yet",
                      index, kernel_name(driver_, node.shape)));
    }
  }

  static void read_packed(Node& node, void** extra, std::size_t index) {
    const void* pointer = nullptr;
    std::size_t size = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        pointer = extra[1];
      } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        size = *static_cast<const std::size_t*>(extra[1]);
      } else {
        throw UnsupportedGraph(
            fmt::format("node {} passes an unknown launch parameter in `extra`", index));
      }
    }
    node.form = ParameterForm::kPacked;
    node.block.resize(size);
    if (size != 0) {
      std::memcpy(node.block.data(), pointer, size);
    }
  }

  void read_array(Node& node, void** parameters) {
    node.form = ParameterForm::kArray;
    node.parameters = parameter_layout(node.shape);
    if (node.parameters.empty()) {
      return;
    }
    const ParameterSlot& last = node.parameters.back();
    node.block.resize((last.offset + last.size + kWord - 1) / kWord * kWord);
    for (std::size_t i = 0; i < node.parameters.size(); ++i) {
      std::memcpy(node.block.data() + node.parameters[i].offset, parameters[i],
                  node.parameters[i].size);
    }
  }

  const std::vector<ParameterSlot>& parameter_layout(const LaunchShape& shape) {
    const void* key = shape.function != nullptr ? static_cast<const void*>(shape.function)
                                                : static_cast<const void*>(shape.kernel);
    auto [entry, inserted] = layouts_.try_emplace(key);
    if (inserted) {
      for (std::size_t i = 0;; ++i) {
        std::size_t offset = 0;
        std::size_t size = 0;
        const CUresult code =
            shape.function != nullptr
                ? driver_.api.cuFuncGetParamInfo(shape.function, i, &offset, &size)
                : driver_.api.cuKernelGetParamInfo(shape.kernel, i, &offset, &size);
        if (code == CUDA_ERROR_INVALID_VALUE) {
          break;  // one past the last parameter
        }
        driver_.check(code, "cuFuncGetParamInfo", kernel_name(driver_, shape));
        entry->second.push_back(
            {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)});
      }
    }
    return entry->second;
  }

  void read_memcpy(Node& node, std::size_t index) {
    CUDA_MEMCPY3D copy{};
    driver_.check(driver_.api.cuGraphMemcpyNodeGetParams(node.handle, &copy),
                  "cuGraphMemcpyNodeGetParams", fmt::format("node {}", index));
    const auto on_device = [](CUmemorytype type) {
      return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
    };
    if (!on_device(copy.srcMemoryType) || !on_device(copy.dstMemoryType)) {
      throw UnsupportedGraph(fmt::format(
          "node {} copies between host and device, which PyGraph cannot relocate yet", index));
    }
    node.kind = NodeKind::kMemcpy;
    set_struct(node, &copy, sizeof copy,
               {offsetof(CUDA_MEMCPY3D, srcDevice), offsetof(CUDA_MEMCPY3D, dstDevice)});
  }

  void read_memset(Node& node, std::size_t index) {
    CUDA_MEMSET_NODE_PARAMS fill{};
    driver_.check(driver_.api.cuGraphMemsetNodeGetParams(node.handle, &fill),
                  "cuGraphMemsetNodeGetParams", fmt::format("node {}", index));
    node.kind = NodeKind::kMemset;
    set_struct(node, &fill, sizeof fill, {offsetof(CUDA_MEMSET_NODE_PARAMS, dst)});
  }

  static void set_struct(Node& node, const void* bytes, std::size_t size,
                         std::initializer_list<std::size_t> words) {
    node.form = ParameterForm::kStruct;
    node.block.resize(size);
    std::memcpy(node.block.data(), bytes, size);
    for (const std::size_t word : words) {
      node.words.push_back(static_cast<std::uint32_t>(word));
    }
  }

  const Driver& driver_;
  std::unordered_map<const void*, std::vector<ParameterSlot>> layouts_;
};

using Edges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

std::vector<CUgraphNode> get_nodes(const Driver& driver, CUgraph graph) {
  std::size_t count = 0;
  driver.check(driver.api.cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes");
  std::vector<CUgraphNode> handles(count);
  if (count != 0) {
    driver.check(driver.api.cuGraphGetNodes(graph, handles.data(), &count), "cuGraphGetNodes");
  }
  return handles;
}

Edges get_edges(const Driver& driver, CUgraph graph, const std::vector<CUgraphNode>& handles) {
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
  for (std::uint32_t i = 0; i < handles.size(); ++i) {
    index.emplace(handles[i], i);
  }
  Edges edges(count);
  for (std::size_t i = 0; i < count; ++i) {
    edges[i] = {index.at(from[i]), index.at(to[i])};
  }
  return edges;
}

/// Kahn's algorithm; among nodes that are ready the one created first goes first, so a plain
/// capture keeps its launch order.
std::vector<std::uint32_t> topological_order(std::size_t count, const Edges& edges) {
  std::vector<std::vector<std::uint32_t>> successors(count);
  std::vector<std::uint32_t> waiting(count, 0);
  for (const auto& [from, to] : edges) {
    successors[from].push_back(to);
    ++waiting[to];
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

}  // namespace

std::uint64_t Node::word(std::uint32_t offset) const noexcept {
  std::uint64_t value = 0;
  std::memcpy(&value, block.data() + offset, sizeof value);
  return value;
}

std::size_t Image::count(NodeKind kind) const noexcept {
  return static_cast<std::size_t>(std::count_if(
      nodes.begin(), nodes.end(), [=](const Node& node) { return node.kind == kind; }));
}

Image read_image(const Driver& driver, CUgraph graph) {
  const std::vector<CUgraphNode> handles = get_nodes(driver, graph);
  const Edges created = get_edges(driver, graph, handles);
  const std::vector<std::uint32_t> order = topological_order(handles.size(), created);

  Image image;
  std::vector<std::uint32_t> place(handles.size());
  Reader reader(driver);
  image.nodes.reserve(handles.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    image.nodes.push_back(reader.read(handles[order[i]], i));
  }
  image.edges.reserve(created.size());
  for (const auto& [from, to] : created) {
    image.edges.emplace_back(place[from], place[to]);
  }
  std::sort(image.edges.begin(), image.edges.end());
  return image;
}

std::string kernel_name(const Driver& driver, const LaunchShape& shape) {
  const char* name = nullptr;
  if (shape.function != nullptr && driver.api.cuFuncGetName != nullptr &&
      driver.api.cuFuncGetName(&name, shape.function) == CUDA_SUCCESS && name != nullptr) {
    return name;
  }
  if (shape.kernel != nullptr && driver.api.cuKernelGetName != nullptr &&
      driver.api.cuKernelGetName(&name, shape.kernel) == CUDA_SUCCESS && name != nullptr) {
    return name;
  }
  return "kernel";
}

}  // namespace pygraph
