// What the twin knows: its memory, streams, graphs and the queue of launched work, under one lock.
//
// Handles are numbers that are never used twice and never dereferenced, so a destroyed graph or a
// foreign node is recognised for what it is, however the host's allocator reuses memory.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "pygraph/image.h"
#include "pygraph/twin.h"

namespace pygraph::twin {

/// A registered kernel. Never destroyed: function handles live as long as the process.
struct Kernel {
  std::string name;
  std::vector<ParameterSlot> parameters;
  std::vector<ParameterSlot> padding;  ///< bytes of the block that mean nothing
  HostKernel run = nullptr;
  std::size_t block_bytes = 0;
};

/// One kernel launch with its parameters packed.
struct KernelWork {
  const Kernel* kernel = nullptr;
  CUfunction function = nullptr;  ///< as the caller named it: by function or by kernel
  CUkernel kernel_handle = nullptr;
  ParameterForm form = ParameterForm::kArray;
  std::vector<std::byte> block;
  std::uint32_t grid[3] = {0, 0, 0};
  std::uint32_t threads[3] = {0, 0, 0};
  std::uint32_t shared_bytes = 0;
};

/// Memory that a graph allocates when it runs. The twin keeps it from the capture on, for as long
/// as a graph or an instantiated graph names it. Made and destroyed with the lock held.
struct GraphMemory {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;

  GraphMemory() = default;
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  ~GraphMemory();
};

struct MemoryAllocation {
  std::shared_ptr<const GraphMemory> memory;
};
struct MemoryFree {
  CUdeviceptr address = 0;
};
struct EventWork {
  CUevent event = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;  ///< or a wait
};
/// A graph of its own inside a node; when instantiated, the list of its work.
struct WorkGroup;
struct ChildGraph {
  CUgraph graph = nullptr;
  std::shared_ptr<const WorkGroup> works;
};
/// A node that the twin can hold and not run.
struct UnknownWork {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
};

/// What a node does; std::monostate is an empty node.
using Work = std::variant<std::monostate, KernelWork, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
                          CUDA_HOST_NODE_PARAMS, MemoryAllocation, MemoryFree, EventWork,
                          ChildGraph, UnknownWork>;
using WorkList = std::vector<std::shared_ptr<const Work>>;
struct WorkGroup {
  WorkList list;
};

struct GraphNode {
  Work work;
  CUgraph graph = nullptr;
  CUgraphNode original = nullptr;  ///< what it was cloned from
  std::vector<CUgraphNode> dependencies;
  std::vector<CUgraphEdgeData> edge_data;  ///< per dependency
  std::vector<std::pair<CUkernelNodeAttrID, CUkernelNodeAttrValue>> attributes;
  // What cuGraphKernelNodeGetParams hands out; points into the block and lives with the node.
  std::vector<void*> arguments;
  void* extra[5] = {};
  std::size_t extra_bytes = 0;
};

struct Graph {
  std::vector<CUgraphNode> nodes;  ///< in a topological order: by creation, unless edges differ
  bool by_creation = true;
  bool embedded = false;  ///< inside a child graph node, which owns it
};

struct Exec {
  std::vector<CUgraphNode> sources;                    ///< nodes of the graph that was instantiated
  std::vector<std::vector<std::size_t>> dependencies;  ///< per source, ascending places
  std::unordered_map<CUgraphNode, std::size_t> index;
  std::shared_ptr<WorkList> works;  ///< shared with launches in flight: copied before a change
};

struct Stream {
  unsigned int flags = 0;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  CUgraph capture = nullptr;
  bool origin = false;             ///< the capture began here, and did not join through an event
  std::vector<CUgraphNode> tails;  ///< what the next node of the capture depends on
};

struct Event {
  CUgraph capture = nullptr;  ///< where it was last recorded; null: not in a capture
  std::vector<CUgraphNode> tails;
  bool captured = false;  ///< last recorded in a capture, which may have ended
};

struct Physical {
  int file = -1;
  std::size_t bytes = 0;
  std::size_t mappings = 0;
  bool released = false;
};

struct Mapping {
  std::size_t bytes = 0;
  CUmemGenericAllocationHandle physical = 0;
  bool accessible = false;
};

struct State {
  std::mutex mutex;
  std::uintptr_t next_handle = 0x7717'0000'0000'0000;  // no address a processor could use

  std::map<CUdeviceptr, std::size_t> allocations;
  std::unordered_set<CUdeviceptr> graph_memory;  ///< those of `allocations` that graphs made
  std::map<CUdeviceptr, std::size_t> reservations;
  std::map<CUdeviceptr, Mapping> mappings;
  std::unordered_map<CUmemGenericAllocationHandle, Physical> physical;
  std::size_t allocated_bytes = 0;  ///< allocations and physical blocks
  std::unordered_map<void*, std::unique_ptr<std::byte[]>> host_memory;  // NOLINT

  std::unordered_map<CUfunction, std::unique_ptr<const Kernel>> kernels;
  std::unordered_map<CUstream, Stream> streams;
  std::unordered_map<CUevent, Event> events;
  std::unordered_map<CUgraph, Graph> graphs;
  std::unordered_map<CUgraphNode, GraphNode> nodes;
  std::unordered_map<CUgraphExec, Exec> execs;
  bool pageable_access = false;  ///< see pageable_memory_access
  std::size_t context_users = 0;

  std::deque<std::shared_ptr<const WorkList>> queue;
  CUresult failed = CUDA_SUCCESS;  ///< of work that ran, until the next synchronising call

  template <typename Handle>
  Handle make_handle() {
    next_handle += 16;
    return reinterpret_cast<Handle>(next_handle);
  }
};

/// The process's twin. Never destroyed, so that destructors of statics may still use it.
State& state();

/// Holds the state's lock. In a forked child the lock may have been held by a thread that is not
/// there any more: entry points refuse before they come here (table.cpp), the rest goes without.
class Lock {
 public:
  Lock() : guard_(state().mutex, std::defer_lock) {
    if (!Driver::in_forked_child()) {
      guard_.lock();
    }
  }

 private:
  std::unique_lock<std::mutex> guard_;
};

template <typename Map, typename Key>
auto* find(Map& map, const Key& key) {
  const auto entry = map.find(key);
  return entry == map.end() ? nullptr : &entry->second;
}

inline void* host_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

/// The twin has two devices, which address each other's memory. Whatever device work is for, it
/// runs in the order that streams and events give it.
bool is_device(CUdevice device);
CUcontext context_of(CUdevice device);  ///< of one of them
bool is_context(CUcontext context);

// --- memory (lock held) ---
/// Whether all of [address, address + bytes) is device memory that may be accessed.
bool accessible(CUdeviceptr address, std::size_t bytes);
/// Host memory that is device memory from now on, filled with NaNs.
CUresult allocate(CUdeviceptr* address, std::size_t bytes);
void release(CUdeviceptr address);
/// Whether `address` lies in memory that a graph allocates.
bool in_graph_memory(CUdeviceptr address);
/// Whether the operands of a copy or fill are valid.
CUresult check_copy(const CUDA_MEMCPY3D& copy);
CUresult check_fill(const CUDA_MEMSET_NODE_PARAMS& fill);

// --- kernels (lock held) ---
/// Packs the parameters of a launch, from either form.
CUresult make_kernel_work(const CUDA_KERNEL_NODE_PARAMS& launch, KernelWork& work);
/// Fills the padding with changing bytes when the test asked for it.
void add_padding_noise(KernelWork& work);

// --- graphs (lock held) ---
/// The seed of the order in which the next launch runs its nodes; 0: as they stand.
std::uint64_t next_order();
CUresult add_node(CUgraph graph, const CUgraphNode* dependencies, std::size_t count, Work work,
                  CUgraphNode* node);
void destroy_graph(CUgraph graph);
/// A copy of `graph`, whose memory nodes are refused.
CUresult clone_graph(CUgraph graph, CUgraph* clone);
/// Whether `node` is one of `from`, or one of them depends on it.
bool reaches(const std::vector<CUgraphNode>& from, CUgraphNode node);

// --- queue ---
/// Queues work behind everything launched so far (lock held).
void enqueue(std::shared_ptr<const WorkList> works);
/// Runs everything that was queued (lock not held); returns and forgets the first failure.
CUresult drain();

// --- captures (lock held) ---
/// Queues `work` on `stream`, or adds it to the graph that the stream captures.
CUresult put(CUstream stream, Work work);
/// The stream when it is capturing, valid or not; null for all others.
Stream* capturing(CUstream stream);
/// Ends the use of a capture by all its streams.
void invalidate(Stream& stream);
/// Refuses a call that is unsafe or would synchronise while a capture is under way, and
/// invalidates that capture, as the driver does.
CUresult refuse_while_capturing();
/// The same for calls that capture modes govern (cuThreadExchangeStreamCaptureMode's "potentially
/// unsafe API calls", such as allocation).
CUresult refuse_unsafe_call();
/// The same for a call on `stream` that a capture cannot hold; also checks the handle.
CUresult refuse_on_capturing_stream(CUstream stream);

}  // namespace pygraph::twin
