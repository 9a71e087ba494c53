// Flattening: a captured graph as one plain list of nodes that can be cloned, read and relocated.
//
// Two kinds of nodes stand in the way. A child graph hides its nodes: an instantiated copy of it
// can only be updated as a whole, so its nodes are copied into the parent, its roots behind the
// child node's predecessors and the child node's successors behind its leaves. Memory nodes
// (cuMemAllocAsync under capture) own memory at an address that the driver fixed when the node was
// made, and a graph that holds them cannot be cloned (CUDA driver API, "Graph memory nodes"): they
// become empty nodes, and the caller gives the allocation a place of its own (link.h makes it
// scratch).
//
// Everything else is copied node by node: kernels with their attributes, copies, fills, host
// functions, external events, and edges with their data.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "pygraph/handles.h"
#include "pygraph/image.h"

namespace pygraph {

/// Memory that a graph allocates when it runs and frees again before it ends.
struct GraphAllocation {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  std::string node;  ///< which node allocates, for messages
};

/// A copy or fill of memory that the graph allocates. The driver takes such an operand only in the
/// graph that allocates it, so the node was made with other memory of the same size, gone by now:
/// its parameters must be set before the graph is instantiated (Program does).
struct StandIn {
  CUgraphNode node = nullptr;
  std::vector<std::byte> parameters;  ///< as captured: CUDA_MEMCPY3D or CUDA_MEMSET_NODE_PARAMS
};

struct FlatGraph {
  GraphHandle graph;
  std::vector<GraphAllocation> allocations;  ///< by node; addresses may be used again and again
  std::vector<StandIn> stand_ins;
};

/// A new graph with the nodes of `graph` and of its child graphs, which stays the caller's. Throws
/// UnsupportedGraph, with node and reason, for nodes that cannot be copied (conditionals, external
/// semaphores, batch memory operations, unknown types), for an allocation that the graph does not
/// free or that is not this device's alone, for a free of other memory, and for edge data between
/// a kernel and a node that is replaced. Throws DriverError. Not thread-safe with respect to
/// `graph`.
FlatGraph flatten(const Driver& driver, CUgraph graph);

/// The image of a graph that needs no flattening; nothing when it has child graphs or memory nodes.
/// Throws as read_image does.
std::optional<Image> read_if_flat(const Driver& driver, CUgraph graph,
                                  const ReadOptions& options = {});

}  // namespace pygraph
