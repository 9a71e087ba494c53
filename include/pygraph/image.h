// An image: a captured CUgraph read into memory.
//
// Per node: its type, launch shape and parameters as one packed block of bytes; plus the edges.
// Kernel parameters reach the driver in two forms. Array form: a pointer per parameter, laid out
// in the block by cuFuncGetParamInfo / cuKernelGetParamInfo (CUDA driver API, "Execution
// Control"). Packed form: one block passed in `extra` behind CU_LAUNCH_PARAM_BUFFER_POINTER and
// CU_LAUNCH_PARAM_BUFFER_SIZE, in either order (cuBLAS does this). Memcpy and memset nodes use
// their parameter struct as the block, so that one kind of relocation serves all three. Events and
// host functions stand in the block too, but hold no word that could move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pygraph/driver.h"

namespace pygraph {

enum class NodeKind : std::uint8_t {
  kKernel,
  kMemcpy,
  kMemset,
  kEmpty,
  kEventRecord,
  kEventWait,
  kHost,
};
enum class ParameterForm : std::uint8_t { kArray, kPacked, kStruct, kNone };

/// Where one kernel parameter stands in the packed block, in bytes.
struct ParameterSlot {
  std::uint32_t offset;
  std::uint32_t size;
};

/// How a kernel node launches; grid in blocks, block in threads, shared memory in bytes. A copy or
/// fill has nothing of it but the context, which may be null: that is not read from a graph.
struct LaunchShape {
  CUfunction function = nullptr;
  CUkernel kernel = nullptr;  ///< used when `function` is null
  CUcontext context = nullptr;
  std::uint32_t grid[3] = {0, 0, 0};
  std::uint32_t block[3] = {0, 0, 0};
  std::uint32_t shared_bytes = 0;

  bool operator==(const LaunchShape&) const = default;
};

struct Node {
  CUgraphNode handle = nullptr;  ///< valid while the graph that was read lives
  NodeKind kind = NodeKind::kEmpty;
  ParameterForm form = ParameterForm::kNone;
  LaunchShape shape;
  std::vector<ParameterSlot> parameters;  ///< kernels in array form only
  std::vector<std::byte> block;           ///< packed parameters; or the node's own struct
  std::vector<std::uint32_t> words;       ///< byte offsets in `block` that may hold an address

  /// The 8-byte word at byte `offset` of the block.
  [[nodiscard]] std::uint64_t word(std::uint32_t offset) const noexcept;

  /// The block of a copy or fill, as the driver's struct that it holds.
  template <typename Struct>
  [[nodiscard]] Struct as() const noexcept {
    Struct params;
    std::memcpy(&params, block.data(), sizeof params);
    return params;
  }
};

/// A graph that cannot be read: names the node and what is not supported.
class UnsupportedGraph : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Immutable. Nodes stand in topological order (creation order where the edges leave a choice);
/// an edge (from, to) holds indices into `nodes`, from < to.
struct Image {
  std::vector<Node> nodes;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  /// Per node: how many nodes of the captured graph were created before it; empty when the graph
  /// had to be flattened.
  std::vector<std::uint32_t> created;
  /// Those of `edges` that let `to` start before `from` has finished (programmatic launches).
  std::vector<std::pair<std::uint32_t, std::uint32_t>> programmatic;

  [[nodiscard]] std::size_t count(NodeKind kind) const noexcept;
  /// The nodes in the order in which they were created; empty where that is not known.
  [[nodiscard]] std::vector<std::uint32_t> by_creation() const;
};

struct ReadOptions {
  /// Reads host function nodes instead of refusing them. They stay what they were captured as, so
  /// whatever they point to must outlive the program and must not have to move.
  bool keep_host_functions = false;
};

/// Reads `graph`. The image keeps node handles but not the graph: keep that alive yourself.
/// Kernels, copies (1D to 3D, between device and host), fills, external events and empty nodes are
/// read; host functions where `options` say so. Throws UnsupportedGraph, with the node and the
/// reason, for everything else: child graphs and memory nodes (flatten.h removes them first),
/// conditionals, external semaphores, batch memory operations, copies of CUDA arrays, and kernels
/// whose access policy window holds an address. Throws DriverError when the driver refuses. Not
/// thread-safe with respect to `graph` (driver API, "Graph object thread safety").
Image read_image(const Driver& driver, CUgraph graph, const ReadOptions& options = {});

/// The kernel's name, or "kernel" where the driver cannot tell.
std::string kernel_name(const Driver& driver, const LaunchShape& shape);

}  // namespace pygraph
