// Linking: from two captures to a graph that refers to nothing until it is bound.
//
// The pipeline in one place: flatten both captures where they need it, read them (image), find the
// memory that they allocate themselves, compare them (relocate), add the copies that the caller
// wants at the end, let run side by side what is independent (rethread), give every scratch region
// its place in the arena or in an output (layout), cut the graph where that takes too much at once,
// and fold the scratch relocations into relocations of those regions. What comes out is ready to
// become a Program.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "pygraph/handles.h"
#include "pygraph/image.h"
#include "pygraph/layout.h"
#include "pygraph/relocate.h"
#include "pygraph/rethread.h"

namespace pygraph {

enum class RegionRole : std::uint8_t {
  kOwn,      ///< stays a region of its own: an input, a constant, an output
  kScratch,  ///< becomes part of the arena
  /// An output in fresh memory: what is bound at each launch has at least `used_bytes` bytes, which
  /// nobody needs what they held and which no other region shares. Scratch may stand in it until
  /// the first node that mentions it.
  kFresh,
  /// An input that the caller gives up with the call. Its `used_bytes` bytes are free again behind
  /// the operator of the last node that mentions it, if the graph is cut there
  /// (LinkOptions::peak_slack).
  kSpent,
};

/// When memory was allocated and freed while capture A was made, by numbers that ascend; 0: it is
/// not known when it was allocated, kNever: it was not freed before the end.
struct Times {
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  std::uint64_t allocated = 0;
  std::uint64_t freed = kNever;
};

/// A region as the linker takes it: its two places (host addresses for the host end of a copy),
/// what becomes of it, how many of its bytes were ever handed out (not for kOwn), and when it was
/// there. A scratch region gets room for those bytes, and no more: no node may read or write
/// others. A word may point there all the same, and stays as far from the region's start (kernels
/// take pointers behind, or in front of, memory that they count back, or on, from).
struct LinkRegion {
  Region place;
  RegionRole role = RegionRole::kOwn;
  std::size_t used_bytes = 0;
  Times times{};
  std::uint32_t device = 0;  ///< whose memory it is: by number in LinkRequest::contexts
};

/// Asks for a copy of what `bytes` bytes at `offset` of a region hold when the graph ends, into
/// memory that is bound at each launch. Both ends are device memory. `fresh`: the destination is as
/// a region with the role kFresh.
struct CopyOut {
  std::uint32_t region = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool fresh = false;
};

struct LinkOptions {
  /// Keeps host function nodes; see ReadOptions. Both captures must name the same function and the
  /// same data.
  bool keep_host_functions = false;
  /// Lets scratch regions that are not in use at the same time share bytes of the arena. Off, the
  /// arena is as large as all of them together, in one piece, and none stands in an output.
  bool share_scratch = true;
  bool arena_in_pieces = false;  ///< see LayoutOptions::in_pieces
  std::size_t smallest_loan = LayoutOptions{}.smallest_loan;
  /// Bytes by which the memory that a launch takes at once may exceed what the nodes need when each
  /// output is taken at its first node, and given up what is spent behind its last. A graph that
  /// would need more is cut into parts, which are launched one after another:
  /// between them memory can be given back and taken.
  std::size_t peak_slack = ~std::size_t{0};
  /// Finds out what depends on what, for spread(). (Not of a graph that is cut, or that has so many
  /// nodes that each pair of them cannot be looked at.)
  bool independence = false;
};

/// Nodes of capture A that one operator launched: those created when `begin` nodes were there, up
/// to when `end` were. Memory that one of them mentions is taken to be in use until all of them are
/// done, for an operator may make itself a table of addresses with one kernel and read memory
/// through it with the next, which does not mention that memory. No node reads what was freed
/// before the node was launched, though: where LinkRegion::times tell that one region was freed
/// before another was allocated, the first is not in use from the first node on that mentions the
/// other, nor the other up to the last that mentions the first.
struct OperatorSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// What link() takes: capture A and its probe B, which stay the caller's, and what is known of the
/// memory they address. Allocations that the graphs make and free themselves (cuMemAllocAsync) need
/// no region: they become scratch. While B is captured A must live, or both get the same addresses.
struct LinkRequest {
  CUgraph a = nullptr;
  CUgraph b = nullptr;
  std::span<const LinkRegion> regions{};
  std::span<const CopyOut> copies{};
  std::span<const OperatorSpan> operators{};  ///< ascending, apart; none: nothing is known
  std::span<const HostNumber> numbers{};      ///< that kernels may take by value; see relocate()
  std::span<const KnownNodes> known{};        ///< ascending, apart; for lanes
  CUdeviceptr phantom_begin = 0;
  CUdeviceptr phantom_end = 0;
  /// Of the devices that the graph works on, its own first; none: that of the current context
  /// alone. Graphs of several are not cut, and must not allocate memory themselves or have child
  /// graphs: a copy's context cannot be read, so copies and fills that are made anew would run
  /// elsewhere.
  std::span<const CUcontext> contexts{};
  LinkOptions options{};
};

/// Parts of a graph, by number: from `first` to `last`.
struct PartSpan {
  std::uint32_t first = 0;
  std::uint32_t last = 0;

  auto operator<=>(const PartSpan&) const = default;
};

/// What of a linked graph does not depend on each other, and what its scratch consists of.
struct Independence;
/// What the nodes of an operator do to a region.
struct Mention;

/// What is known of a linked graph. Regions of the program: the given ones in their order; then one
/// per copy, its destination; then the pieces of the arena: one, unless pieces were asked for.
struct LinkedImage {
  Image image;      ///< of the graph
  LinkTable table;  ///< as compared; regions past the given ones are the graph's own allocations
  std::vector<Relocation> relocations;  ///< regions of the program; scratch folded to where it is
  std::vector<NumberWord> numbers;      ///< where the host numbers that were given stand
  std::size_t number_count = 0;         ///< how many were given
  std::uint32_t first_copy = 0;         ///< region index of the destination of copy 0
  std::uint32_t arena = 0;              ///< region index of the arena's first piece
  /// Of the scratch regions in their given order, then the graph's allocations. The lenders are the
  /// given regions with the role kFresh in their order, then the destinations of fresh copies.
  Layout layout;
  std::vector<std::size_t> mentions;  ///< per given region: words that refer to it, copies included
  std::vector<std::uint32_t> cuts;    ///< the node that each part but the first begins with
  std::vector<PartSpan> spans;  ///< per piece of the arena: the parts during which it is needed
  /// Per given region with the role kSpent: the last node during which it is in use. Others: 0.
  std::vector<std::uint32_t> last_nodes;
  std::size_t lanes = 1;  ///< that the nodes run in
  /// When the last node ends, in us, if nodes take what spread() was told; 0: it was not.
  double predicted_us = 0;
  std::shared_ptr<const Independence> independence;  ///< if it was asked for

  /// Bytes of each piece of the arena, to be bound to regions arena, arena + 1, …: at least one.
  [[nodiscard]] const std::vector<std::size_t>& pieces() const noexcept { return layout.pieces; }
  [[nodiscard]] std::size_t region_count() const noexcept { return arena + layout.pieces.size(); }

  /// The parts that mention each region of the program, or have it in use, where it is spent;
  /// {0, 0} for those that none does.
  [[nodiscard]] std::vector<PartSpan> parts_of_regions() const;
};

struct LinkedGraph : LinkedImage {
  GraphHandle graph;  ///< copy of capture A, flattened, with the copies added
};

/// A part of a linked graph, ready to become a Program with the regions of the whole.
struct LinkedPart {
  GraphHandle graph;
  Image image;  ///< its nodes only, without edges
  std::vector<Relocation> relocations;
  std::vector<NumberWord> numbers;
};

/// Takes a linked graph apart where it is cut: one part if it is not. Run one after another on one
/// stream, they do what the graph does. Throws DriverError.
std::vector<LinkedPart> take_apart(const Driver& driver, LinkedGraph linked);

/// Links. Does not throw for captures that differ or hold an address nobody explains: look at
/// `table.problems`, and use nothing else when there are any. Throws UnsupportedGraph for nodes
/// that cannot be relocated (image.h, flatten.h), std::invalid_argument for regions that overlap,
/// for a copy outside its region and for host numbers that cannot be found, DriverError.
LinkedGraph link(const Driver& driver, const LinkRequest& request);

/// A copy that does the same. Throws DriverError.
LinkedGraph clone_of(const Driver& driver, const LinkedGraph& linked);

struct SpreadOptions {
  std::size_t lanes = 2;  ///< at most
  /// What each node takes, in us (Stopwatch); none: all alike.
  std::span<const double> node_us{};
  /// How many times the memory of the arena of the graph that is spread lanes may take. Nodes
  /// overtake no more of others than this allows. (An arena of 2 MiB costs nothing: torch's
  /// allocator takes no less from the driver.)
  double memory = 1.05;
};

/// A copy of a linked graph, with its `independence`, in which nodes that do not depend on each
/// other run side by side (rethread.h), those of a part behind all of the part in front. None where
/// there is nothing to gain, memory does not allow it, or find_race() finds something. Throws
/// DriverError.
std::optional<LinkedGraph> spread(const Driver& driver, const LinkedGraph& linked,
                                  const SpreadOptions& options);

/// A copy of a linked graph, in one part, in which some nodes, drawn with `seed`, wait for up to 60
/// us before they run. Where two lanes need an order that no edge gives them, the copy shows it.
/// The copy's image does not have the delays. For the real driver, in a current context. Throws
/// DriverError.
LinkedGraph delayed(const Driver& driver, const LinkedGraph& linked, std::uint64_t seed);

/// A copy of a linked graph that tells what its nodes take. For a chain: where nodes run side by
/// side, what one takes depends on the others.
class Stopwatch {
 public:
  /// Throws DriverError.
  Stopwatch(const Driver& driver, const LinkedGraph& linked);

  /// The copy, in one part, which records an event between any two nodes; its image does not have
  /// them. Once. What is made of it must be gone before the stopwatch is.
  LinkedGraph take() { return std::move(timed_); }

  /// Per node, the us from when the one in front of it was done until it was, in the last launch,
  /// which must have ended; none if the graph is no chain. Throws DriverError.
  [[nodiscard]] std::vector<double> read() const;

 private:
  const Driver* driver_;
  LinkedGraph timed_;
  std::vector<EventHandle> events_;  ///< in front of the first node, and behind each
};

/// Looks on while a linked graph, with its `independence`, runs in the order of the capture: what
/// its nodes are not said to write they must leave alone. Each region is copied behind each of its
/// writers and in front of the next, and behind the last node that mentions it. Memory of the
/// caller's that nobody is said to write is not looked at: it may be large, and the caller has it.
/// All copies together are many times what the graph takes, so an observer looks at some regions
/// only, and another one at those from next() on.
class Observer {
 public:
  /// Two copies of a region that differ in nothing but `but`.
  struct Pair {
    std::uint64_t before;  ///< offsets of the copies in the observer's memory
    std::uint64_t after;
    std::uint64_t bytes;
    std::span<const ByteSet> but;  ///< what the nodes between them are said to write
    std::uint32_t first_node;      ///< those nodes
    std::uint32_t last_node;
  };

  /// Looks at regions from `first` on while copies take no more than `most` bytes, but one at
  /// least. Throws std::invalid_argument where it is not known what nodes do.
  explicit Observer(const LinkedGraph& linked, std::uint32_t first = 0, std::uint64_t most = ~0ULL);

  /// The first region behind those; none: all have been looked at.
  [[nodiscard]] std::optional<std::uint32_t> next() const noexcept { return next_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }  ///< that copies take
  /// Valid as long as the observer and the linked graph are.
  [[nodiscard]] const std::vector<Pair>& pairs() const noexcept { return pairs_; }
  /// A clone, in one part, that makes the copies, in `memory`. Throws DriverError.
  [[nodiscard]] LinkedGraph observed(const Driver& driver, const LinkedGraph& linked,
                                     CUdeviceptr memory) const;

 private:
  struct Copy {
    std::uint32_t region;
    std::uint32_t node;  ///< in front of which it is made
    std::uint64_t bytes;
    std::uint64_t offset;
  };
  std::size_t copy(std::uint32_t region, std::uint32_t node, std::uint64_t bytes);
  void look_at(std::uint32_t region, std::uint64_t bytes, std::span<const Mention> mentions);

  std::optional<std::uint32_t> next_;
  std::uint64_t bytes_ = 0;
  std::vector<Copy> copies_;
  std::vector<Pair> pairs_;
};

/// Memory of a device.
struct MemoryRange {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
};

/// How much may_lead_to reads: twice the largest workspace that cuBLAS makes by itself (32 MiB on
/// Hopper; cuBLAS, cublasSetWorkspace), some tens of milliseconds.
inline constexpr std::size_t kMostFollowed = std::size_t{64} << 20;

/// Whether a kernel that has some foreign addresses may find one of `places` by them: an allocation
/// that one of them points into holds an address in a place, or one past its end, or an address of
/// another allocation of which the same is true. Also true where that cannot be told: an allocation
/// is unknown to the driver, cannot be read, or there is more to read than kMostFollowed. Addresses
/// are looked for at multiples of 8 bytes, as a GPU loads them (CUDA C++ programming guide, Device
/// Memory Accesses). What `stream` was given before has run by then; it must not be capturing.
bool may_lead_to(const Driver& driver, CUstream stream, std::span<const CUdeviceptr> foreign,
                 std::span<const MemoryRange> places);

}  // namespace pygraph
