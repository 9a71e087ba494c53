// A program: an instantiated graph with its relocation table and its current binding.
//
// bind() says where a region is from now on, and set_number() what a host number is; nodes that
// mention it become dirty. launch() tells the driver about the dirty nodes
// (cuGraphExec*NodeSetParams) and launches. An update changes future launches only: "launches
// already in flight are not affected" (CUDA driver API, Graph Management,
// cuGraphExecKernelNodeSetParams). A program does not own the memory it is bound to and does not
// order itself after other streams.
//
// The graph is instantiated at the first update, when every region is bound, and not before: an
// instantiated copy node may only move between memory that is mapped alike ("the memory operands'
// mappings changed" is an error of cuGraphExecMemcpyNodeSetParams), and phantom memory is mapped
// unlike cudaMalloc's. When a copy or fill moves to memory mapped in yet another way, is not
// 1-dimensional, or moves between device and host, the graph is instantiated anew: such a move
// costs microseconds per node of the graph, not a fraction of one.
//
// In a process forked after the driver was used nothing of this works (CUDA does not survive a
// fork): update() and launch() refuse, destruction leaves the driver alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pygraph/handles.h"
#include "pygraph/host_number.h"
#include "pygraph/image.h"
#include "pygraph/relocate.h"

namespace pygraph {

/// Not thread-safe: guard it. Regions that were never bound keep the captured addresses, and
/// launch() refuses to run while a region with relocations is unbound, or a host number with words
/// was never set.
class Program {
 public:
  /// Takes over `graph`, from which `image` was read. `relocations` refer to regions
  /// 0 .. region_count-1, `numbers` to host numbers 0 .. number_count-1. Throws
  /// std::invalid_argument (a word outside its block).
  Program(const Driver& driver, GraphHandle graph, Image image,
          std::span<const Relocation> relocations, std::size_t region_count,
          std::span<const NumberWord> numbers = {}, std::size_t number_count = 0);

  static constexpr CUdeviceptr kUnbound = ~CUdeviceptr{0};

  Program(Program&&) noexcept = default;
  Program& operator=(Program&&) noexcept = delete;

  /// Moves `region` to `address`. Equal to the current address: one comparison. Otherwise its
  /// words are rewritten in the packed blocks; the driver hears of it at the next launch. Host
  /// cost: a few ns per word. `region` must be < region_count().
  void bind(std::uint32_t region, CUdeviceptr address) noexcept {
    if (address != bound_[region]) {
      rebind(region, address);
    }
  }

  /// Forgets where every region is, and drops the instantiated graph: launch() refuses until all
  /// are bound again. For when memory that was bound is about to go.
  void unbind() noexcept;

  /// Writes the value of a host number, for launches to come. Nodes whose bits stay the same stay
  /// clean. Host cost: a few ns per word. `number` must be < number_count(). Throws
  /// std::out_of_range, and writes nothing, where one of its words cannot hold the value.
  void set_number(std::uint32_t number, NumberValue value);

  /// Pushes the dirty nodes and launches on `stream`. Asynchronous. Throws DriverError naming the
  /// node when the driver refuses one: the program must not be used again (broken()), since the
  /// driver may hold half of an update. Throws std::logic_error while a region is unbound or a
  /// number not set, and in a forked child.
  void launch(CUstream stream);

  /// Pushes the dirty nodes without launching; the first time, instantiates.
  void update();

  /// Where `region` is; kUnbound before the first bind.
  [[nodiscard]] CUdeviceptr bound(std::uint32_t region) const noexcept { return bound_[region]; }
  /// Whether any node's parameters refer to `region`.
  [[nodiscard]] bool mentions(std::uint32_t region) const noexcept {
    return first_patch_[region] != first_patch_[region + 1];
  }
  /// Nodes whose parameters refer to `region`.
  [[nodiscard]] std::size_t nodes_of(std::uint32_t region) const;
  [[nodiscard]] std::size_t region_count() const noexcept { return bound_.size(); }
  [[nodiscard]] std::size_t number_count() const noexcept { return numbers_.size(); }
  [[nodiscard]] std::size_t dirty_nodes() const noexcept { return dirty_.size(); }
  [[nodiscard]] std::size_t node_count() const noexcept { return nodes_.size(); }
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  /// Node updates pushed to the driver since construction.
  [[nodiscard]] std::uint64_t updates() const noexcept { return updates_; }
  /// How often the graph was instantiated: 1 after the first update, more when copies moved
  /// between kinds of memory.
  [[nodiscard]] std::uint64_t instantiations() const noexcept { return instantiations_; }
  /// Null before the first update.
  [[nodiscard]] CUgraphExec exec() const noexcept { return exec_.get(); }

 private:
  struct Patch {
    std::uint64_t* word;  ///< inside the node's block
    std::uint32_t node;
    std::int64_t addend;
  };
  struct NumberPatch {
    std::byte* at;  ///< inside the node's block
    std::uint32_t node;
    NumberEncoding encoding;
  };
  struct Number {
    std::vector<NumberPatch> words;
    bool set = false;
  };
  struct Slot {
    Node node;
    std::vector<void*> arguments;  ///< array form: a pointer per parameter into the block
    void* extra[5] = {};           ///< packed form: pointer, size, end
    std::size_t block_bytes = 0;
    bool dirty = false;
  };

  /// Whether a node's parameters go into the graph or into its instantiated copy.
  enum class Into : std::uint8_t { kGraph, kExec };

  void note_relocations(std::span<const Relocation> relocations);
  void note_numbers(std::span<const NumberWord> words);
  void rebind(std::uint32_t region, CUdeviceptr address) noexcept;
  void mark(std::uint32_t node) noexcept {
    Slot& slot = nodes_[node];
    if (!slot.dirty) {
      slot.dirty = true;
      dirty_.push_back(node);  // never grows past its reserved size
    }
  }
  CUresult push(Slot& slot, Into into);
  CUresult push_kernel(Slot& slot, Into into);
  bool grant_shared_memory(const LaunchShape& shape) const;
  CUresult push_copy(const Node& node, Into into);
  [[nodiscard]] CUcontext context_of(const Node& node) const noexcept {
    return node.shape.context == nullptr ? context_ : node.shape.context;
  }
  [[nodiscard]] CUmemorytype kind_at(CUdeviceptr address) const;
  void refuse_in_forked_child() const;
  void refuse_incomplete() const;
  void instantiate();
  void refuse(CUresult code, std::uint32_t node);

  const Driver* driver_;
  GraphHandle graph_;
  ExecHandle exec_;
  std::vector<Slot> nodes_;
  std::vector<Patch> patches_;              ///< grouped by region
  std::vector<std::uint32_t> first_patch_;  ///< region -> index into patches_, one past the end
  std::vector<CUdeviceptr> bound_;
  std::vector<Number> numbers_;
  std::vector<std::uint32_t> dirty_;
  std::size_t unbound_ = 0;  ///< regions with relocations that nobody bound yet
  std::size_t unset_ = 0;    ///< host numbers with words that nobody set yet
  CUcontext context_ = nullptr;
  std::uint64_t updates_ = 0;
  std::uint64_t instantiations_ = 0;
  bool broken_ = false;
};

}  // namespace pygraph
