#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "pygraph/flatten.h"
#include "pygraph/image.h"
#include "structure.h"

namespace pygraph {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

/// Reads nodes one by one; remembers parameter layouts, since a graph launches few distinct
/// kernels many times.
class Reader {
 public:
  Reader(const Driver& driver, const ReadOptions& options) : driver_(driver), options_(options) {}

  /// Nothing for child graphs and memory nodes when `stop` says so.
  std::optional<Node> read(CUgraphNode handle, std::size_t index, bool stop) {
    std::optional<Node> made(std::in_place);
    Node& node = *made;
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
      case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        read_event(node, NodeKind::kEventRecord, driver_.api.cuGraphEventRecordNodeGetEvent, index);
        break;
      case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        read_event(node, NodeKind::kEventWait, driver_.api.cuGraphEventWaitNodeGetEvent, index);
        break;
      case CU_GRAPH_NODE_TYPE_HOST:
        read_host(node, index);
        break;
      default:
        if (stop && (type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
                     type == CU_GRAPH_NODE_TYPE_MEM_FREE)) {
          return std::nullopt;
        }
        refuse_node(fmt::format("node {}", index), type);
    }
    return made;
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
    if (code != CUDA_ERROR_NOT_SUPPORTED) {  // a device without windows
      driver_.check(code, "cuGraphKernelNodeGetAttribute", fmt::format("node {}", index));
    }
    if (code == CUDA_SUCCESS && value.accessPolicyWindow.base_ptr != nullptr &&
        value.accessPolicyWindow.num_bytes != 0) {
      throw UnsupportedGraph(
          fmt::format("node {} ({}) sets an access policy window: the address in this attribute "
                      "would have to be relocated",
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
    node.kind = NodeKind::kMemcpy;
    set_struct(node, &copy, sizeof copy,
               {address_of_end(copy.srcMemoryType, offsetof(CUDA_MEMCPY3D, srcHost),
                               offsetof(CUDA_MEMCPY3D, srcDevice), index),
                address_of_end(copy.dstMemoryType, offsetof(CUDA_MEMCPY3D, dstHost),
                               offsetof(CUDA_MEMCPY3D, dstDevice), index)});
  }

  /// Where the struct holds the address of one end of a copy.
  static std::size_t address_of_end(CUmemorytype type, std::size_t host, std::size_t device,
                                    std::size_t index) {
    switch (type) {
      case CU_MEMORYTYPE_HOST:
        return host;
      case CU_MEMORYTYPE_DEVICE:
      case CU_MEMORYTYPE_UNIFIED:
        return device;
      default:
        throw UnsupportedGraph(fmt::format(
            "node {} of the captured graph copies from or to a CUDA array, which has no address: "
            "its handle would have to be bound like a region",
            index));
    }
  }

  template <typename Get>
  void read_event(Node& node, NodeKind kind, Get get, std::size_t index) {
    CUevent event = nullptr;
    driver_.check(get(node.handle, &event), "reading the event", fmt::format("node {}", index));
    node.kind = kind;
    const auto handle = reinterpret_cast<std::uintptr_t>(event);
    set_struct(node, &handle, sizeof handle, {});
  }

  void read_host(Node& node, std::size_t index) {
    if (!options_.keep_host_functions) {
      refuse_node(fmt::format("node {}", index), CU_GRAPH_NODE_TYPE_HOST);
    }
    CUDA_HOST_NODE_PARAMS call{};
    driver_.check(driver_.api.cuGraphHostNodeGetParams(node.handle, &call),
                  "cuGraphHostNodeGetParams", fmt::format("node {}", index));
    node.kind = NodeKind::kHost;
    set_struct(node, &call, sizeof call, {});
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
  ReadOptions options_;
  std::unordered_map<const void*, std::vector<ParameterSlot>> layouts_;
};

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

std::vector<std::uint32_t> Image::by_creation() const {
  std::vector<std::uint32_t> found;
  if (created.size() == nodes.size()) {
    found.resize(nodes.size());
    for (std::uint32_t node = 0; node < found.size(); ++node) {
      found[created[node]] = node;
    }
  }
  return found;
}

namespace {

/// Reads until a node is met that flattening would replace, if `stop` says so.
std::optional<Image> read(const Driver& driver, CUgraph graph, const ReadOptions& options,
                          bool stop) {
  const GraphStructure structure = read_structure(driver, graph);
  Image image;
  Reader reader(driver, options);
  image.nodes.reserve(structure.nodes.size());
  for (std::uint32_t i = 0; i < structure.nodes.size(); ++i) {
    std::optional<Node> node = reader.read(structure.nodes[i], i, stop);
    if (!node) {
      return std::nullopt;
    }
    image.nodes.push_back(std::move(*node));
  }
  image.edges.reserve(structure.edges.size());
  for (const GraphEdge& edge : structure.edges) {
    image.edges.emplace_back(edge.from, edge.to);
    if (!edge.full()) {
      image.programmatic.emplace_back(edge.from, edge.to);
    }
  }
  image.created = structure.created;
  return image;
}

}  // namespace

Image read_image(const Driver& driver, CUgraph graph, const ReadOptions& options) {
  return read(driver, graph, options, false).value_or(Image{});  // there always is one
}

std::optional<Image> read_if_flat(const Driver& driver, CUgraph graph, const ReadOptions& options) {
  return read(driver, graph, options, true);
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
