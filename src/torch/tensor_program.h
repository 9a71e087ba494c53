// One call of a linked graph with torch tensors: the host path.
//
// Everything that happens on every call stands here, in order: compare the arguments' addresses,
// bind what moved, take the arena and the outputs from torch's allocator, launch, wrap the outputs.
// See docs/design/host-path.md. What this does not do: decide, capture, prove. A call it
// cannot serve (other sizes, a missing argument) is refused with kMiss before anything was done,
// and the caller takes another way.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <variant>
#include <vector>

#include "formula.h"
#include "launch_lock.h"
#include "pygraph/chain.h"
#include "torch_api.h"

namespace pygraph::torch_bridge {

inline constexpr std::uint32_t kNoRegion = ~0U;
/// What compiled kernels assume of every input, in bytes (torch._inductor.utils.ALIGNMENT).
inline constexpr std::uint64_t kKernelAlignment = 16;

/// In place of torch's index of a device: that of the program's own.
inline constexpr std::int32_t kOwnDevice = -1;

/// How one argument of the call reaches the graph.
struct ArgumentSpec {
  enum class Kind : std::uint8_t {
    // Tensors of the graph's device.
    kPatched,  ///< its region is bound to its address
    kCopied,   ///< its bytes are copied to the static buffer at `address`
    kFixed,    ///< it must stand at `address`
    // Others.
    kInteger,     ///< a Python int that must equal `value`
    kNumber,      ///< a CPU tensor without dimensions that must have the bits `value`, and `dtype`
    kGenerator,   ///< a random generator of the device: the same object as argument number `value`,
                  ///< itself or an earlier one, and as no other; negative: the default generator
    kHostNumber,  ///< a Python number of any value: exactly a float, or exactly an int of 64 bits
    kObject,      ///< the very object at address `value`, which its owner keeps alive
    kIgnored,     ///< nothing in the graph depends on it
  };
  Kind kind = Kind::kIgnored;
  std::uint32_t region = kNoRegion;  ///< kPatched
  std::uint64_t alignment_mask = 0;  ///< bits that must be 0 in a new address (kPatched)
  std::uint64_t address = 0;         ///< kCopied: the static buffer; kFixed; guarded
  std::uint64_t bytes = 0;           ///< from the tensor's first element to behind its last
  std::int64_t value = 0;            ///< kInteger; kGenerator; kObject; kNumber: `bytes` of it, at
                                     ///< most 8, zeros behind
  std::int32_t dtype = -1;           ///< kNumber
  std::int32_t device = kOwnDevice;  ///< whose memory a copy of a tensor is to be in
  bool floating = false;             ///< kHostNumber: a float, not an int
  bool mutated = false;              ///< the graph writes it: a copy must be copied back
  bool guarded = false;              ///< kPatched: must stand at `address` all the same
  bool elsewhere = false;            ///< kPatched: may come as a CPU tensor, which is not accepted
  bool staged = false;  ///< kPatched: a CPU tensor, or an integer of Python's as one of 64 bits
                        ///< without dimensions, is brought to the device (staging.h)
  /// Staged: not the argument is brought, but these, one behind the other; what they follow from
  /// are host numbers, and numbers in fp64, in CPU tensors without dimensions.
  std::vector<Formula> computed = {};
  std::int64_t storage_offset = -1;  ///< in elements, which it must have; negative: any will do
  /// In front of the tensor's first element, memory of its storage that the graph may address: a
  /// copy of the argument has it too. Not 0 only with a storage offset.
  std::uint64_t front = 0;
  /// The part behind which the call lets go of the argument, where its list is given away;
  /// negative: at the end.
  std::int32_t spent_after = -1;

  /// kPatched: in calls on the default stream it is copied here instead; 0: never.
  std::uint64_t copied_to = 0;

  [[nodiscard]] bool is_tensor() const noexcept { return kind <= Kind::kFixed; }
  /// Whether an address is less aligned than the captured one, but as compiled kernels ask for:
  /// could have been captured so.
  [[nodiscard]] bool less_aligned(std::uint64_t other) const noexcept {
    return (other & alignment_mask) != 0 && other % kKernelAlignment == 0;
  }
  /// Whether any tensor of the device will do, wherever it stands.
  [[nodiscard]] bool is_plain() const noexcept {
    return kind == Kind::kPatched && !guarded && !elsewhere && !staged && storage_offset < 0;
  }
  /// Whether it must stand at `address`.
  [[nodiscard]] bool stays() const noexcept { return kind == Kind::kFixed || guarded; }
};

/// One fresh allocation of a call that outputs live in.
struct OutputBlock {
  struct Placed {
    std::uint32_t region;
    std::uint64_t offset;  ///< of the region's start in the block, in bytes
  };
  std::vector<Placed> regions;  ///< bound to places in the block; none: filled by a copy
  std::uint64_t bytes = 0;
  std::uint64_t source = 0;  ///< without regions: static address that is copied after the launch
  std::int32_t device = kOwnDevice;
  std::uint32_t first_part = 0;  ///< in front of which it is allocated
};

/// How one element of the result is made.
struct ResultSpec {
  enum class Kind : std::uint8_t {
    kWhole,     ///< a tensor that is one block
    kView,      ///< a tensor inside a block, `byte_offset` from its start
    kArgument,  ///< argument number `index` itself
    kAlias,     ///< a view of argument number `index`, made by `object(argument)` (`strided`)
    kSame,      ///< result number `index`, an earlier one, once more
    kDerived,   ///< a view of result number `index`, an earlier one, made likewise
    kNumber,    ///< a new CPU tensor without dimensions, of the bits `value`
    kConstant,  ///< `object` itself
  };
  Kind kind = Kind::kConstant;
  std::uint32_t index = 0;  ///< of the block, the argument or the earlier result
  std::int32_t dtype = 0;
  std::int64_t byte_offset = 0;
  std::int64_t value = 0;   ///< kNumber: `bytes` of it, at most 8; strided: elements to its first
  std::uint64_t bytes = 0;  ///< kNumber
  bool strided = false;     ///< kAlias, kDerived: `sizes`, `strides` and `value` say the same
  bool saved = false;       ///< strided: it is saved for a backward (TensorProgram::note_saved)
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  PyObject* object = nullptr;  ///< owned by the TensorProgram
};

/// A result that the caller gets as a copy on the host (staging.h): one that fills its memory, so
/// that copying bytes copies it.
struct FetchedResult {
  std::uint32_t index = 0;
  std::int32_t dtype = 0;
  std::uint64_t bytes = 0;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

/// The scratch of a call: one piece for each of the regions from `region` on, taken in front of
/// part `first` and given back behind part `last`. Empty: none.
struct ArenaSpec {
  struct Piece {
    std::size_t bytes;
    std::uint32_t first;
    std::uint32_t last;
    std::int32_t device = kOwnDevice;
  };
  std::uint32_t region = kNoRegion;
  std::vector<Piece> pieces;
};

/// Where a graph that draws random numbers finds the state of one generator: two regions of 8
/// bytes, the seed and the offset, as torch's kernels read them when they were captured (torch,
/// aten/src/ATen/cuda/PhiloxCudaState.h). A call moves the generator's offset on by `increment`.
/// Without a region for the offset, the twin's operators draw from the generator themselves; the
/// other region, if there is one, has the address of its Python object.
struct Draw {
  static constexpr std::uint32_t kDefault = ~0U;

  std::uint32_t seed_region = kNoRegion;
  std::uint32_t offset_region = kNoRegion;
  std::int64_t increment = 0;
  std::uint32_t argument = kDefault;  ///< which one the generator is; kDefault: the device's own
};

/// Another GPU that the graph works on: torch's index, and its context.
struct Peer {
  std::int32_t index;
  CUcontext context;
};

/// Where a host number of the linked graph comes from in a call: a kHostNumber among the arguments,
/// by its place, or a formula of such and of numbers in fp64 (ArgumentSpec::computed). A formula's
/// value is floating. A call whose formula has no finite value is refused, since Python may raise
/// an error where IEEE 754 has an infinity; and so is one whose number the kernels cannot take.
using NumberSource = std::variant<std::uint32_t, Formula>;

/// The random generators of a graph.
struct RandomSpec {
  PyObject* generator = nullptr;  ///< the device's default one; null: the graph has none
  std::vector<Draw> draws;        ///< one for each generator that is drawn from
};

/// The arguments of one call, borrowed: an array of objects, and optionally which of them is which
/// argument of the graph.
struct Arguments {
  PyObject* const* items;
  const std::uint32_t* order;  ///< null: in place
  std::size_t count;
  PyObject* given = nullptr;  ///< the list that they are in, if the call may let go of them early
  /// Who makes the call makes it another way if its program fails; else `failed` serves it.
  bool made_again = false;

  static Arguments of_list(PyObject* list) noexcept {
    return {PySequence_Fast_ITEMS(list), nullptr, static_cast<std::size_t>(PyList_GET_SIZE(list))};
  }
  /// Of a list that is the callee's to clear (torch's boxed calls).
  static Arguments of_given(PyObject* list) noexcept {
    Arguments arguments = of_list(list);
    arguments.given = list;
    return arguments;
  }
  /// Drops the list's reference to an argument.
  void let_go(std::size_t index) const noexcept {
    PyObject* gone = PyList_GET_ITEM(given, static_cast<Py_ssize_t>(index));
    PyList_SET_ITEM(given, static_cast<Py_ssize_t>(index), Py_NewRef(Py_None));
    Py_DECREF(gone);
  }
  [[nodiscard]] PyObject* operator[](std::size_t index) const noexcept {
    return items[order == nullptr ? index : order[index]];
  }
};

struct CallStatistics {
  std::uint64_t replays = 0;
  std::uint64_t bytes_copied = 0;  ///< input bytes copied: static buffers and misaligned inputs
  std::uint64_t copies = 0;
  std::uint64_t bytes_staged = 0;   ///< brought from the host
  std::uint64_t bytes_fetched = 0;  ///< returned to it
};

/// A call that the graph cannot serve as faithfully as the callable: nothing was launched.
class CallRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Memory for the arena or an output could not be had. The graph stays good: the callable may need
/// less at once, and raises what torch raises when it does not get it.
class MemoryShort : public CallRefused {
 public:
  using CallRefused::CallRefused;
};

/// A call that failed behind its launch: the graph runs, and what it writes is or will be written.
class FailedAfterLaunch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The same for want of memory, between two parts of a graph.
class MemoryShortAfterLaunch : public FailedAfterLaunch {
 public:
  using FailedAfterLaunch::FailedAfterLaunch;
};

/// How a proof runs a graph: see TensorProgram::run.
struct Trial {
  int poison = -1;             ///< 0..255: fills arena and outputs beforehand; negative: not
  std::uint64_t displace = 0;  ///< bytes by which the arena's pieces stand further on; a
                               ///< multiple of 512
};

class CallScope;
class RandomTurn;
class Staging;

/// Guarded by the GIL, and launches by the lock.
class TensorProgram {
 public:
  enum class Device : std::uint8_t { kCuda, kTwin };

  /// What a program is made of.
  struct Specification {
    const Driver& driver;
    Chain program;
    Device device;
    int device_index;  ///< torch's
    std::vector<Peer> peers;
    std::vector<ArgumentSpec> arguments;
    std::vector<OutputBlock> blocks;
    std::vector<ResultSpec> results;
    std::vector<FetchedResult> fetched;
    ArenaSpec arena;  ///< its regions are bound to fresh workspaces at every call
    RandomSpec random;
    std::vector<NumberSource> numbers;  ///< one for each host number that was linked
    /// For proofs: results, by number, that nobody writes. They hold what their memory held.
    std::vector<std::uint32_t> unwritten;
  };
  explicit TensorProgram(Specification given);
  ~TensorProgram();
  TensorProgram(const TensorProgram&) = delete;
  TensorProgram& operator=(const TensorProgram&) = delete;

  /// Whether the integers among `arguments` and the numbers on the host are the ones this graph was
  /// captured with, and the tensors stand where it expects tensors.
  [[nodiscard]] bool accepts(const Arguments& arguments) const noexcept;

  /// Whether an argument that must stay at its address has moved.
  [[nodiscard]] bool moved(const Arguments& arguments) const noexcept;

  /// Whether an argument that must have a storage offset has another one.
  [[nodiscard]] bool offsets_differ(const Arguments& arguments) const noexcept;

  /// Whether, in a call that it accepts, an argument is less aligned than the captured one, but as
  /// kernels ask for: for such arguments the callable can be captured anew, and nothing be copied.
  [[nodiscard]] bool less_aligned(const Arguments& arguments) const noexcept;

  /// Calls with such arguments that are served, by copies, before one is refused. Negative, as at
  /// first: all of them. A proof's runs are never refused.
  void set_patience(std::int64_t calls) noexcept { patience_ = calls; }
  [[nodiscard]] std::int64_t patience() const noexcept { return patience_; }

  /// Whether the current stream is being captured by somebody: a launch would then become part of
  /// their graph, with memory that is only ours for the length of this call.
  [[nodiscard]] bool being_captured() const noexcept;
  /// The stream that a launch would go to. Null on the twin.
  [[nodiscard]] void* current_stream() const noexcept;

  /// Where a launch would run (call_scope.h). Throws DriverError, std::runtime_error.
  [[nodiscard]] CallScope scope() const;
  [[nodiscard]] const Driver& driver() const noexcept { return *driver_; }

  /// What a launched call has of its own, until its results are made of it.
  struct Launched {
    std::vector<OwnedTensor> blocks;
    std::shared_ptr<RandomTurn> turn{};  ///< null: it draws no random numbers

    /// Whether the random numbers that it draws are still those of a call made now.
    [[nodiscard]] bool stands() const noexcept;
  };

  /// What its launches take. One lock for all graphs that draw random numbers: a call reads and
  /// moves generators that others have, too.
  [[nodiscard]] const LaunchLock& lock() const noexcept;

  /// Runs the graph on the current stream and returns a new tuple of results, or null with a
  /// Python error set. Throws DriverError, std::runtime_error, CallRefused, FailedAfterLaunch.
  /// `held`: the lock, which ends with the launch, or, where random numbers are drawn, is left to
  /// the caller; null: nobody else can be there.
  PyObject* run(const Arguments& arguments, Trial trial = {}, LaunchLock::Held* held = nullptr) {
    return finish(arguments, launch(arguments, trial, held));
  }

  /// The two halves of run(): all that the GPU needs, and all that the caller needs. What
  /// `arguments` refers to must be the same objects in both, and the launch must stand. Random
  /// generators are moved on in the second, or in the first if it leaves traces.
  Launched launch(const Arguments& arguments, Trial trial = {}, LaunchLock::Held* held = nullptr);
  PyObject* finish(const Arguments& arguments, const Launched& launched) const;

  /// Of each argument that may be copied in place of being patched, how many nodes mention it; of
  /// others 0: what the graph writes, or reads in front of, and what must not move.
  [[nodiscard]] std::vector<std::size_t> copyable() const;
  /// From now on these arguments are copied to memory that the program keeps, in calls on the
  /// default stream: a copy on another one would not wait for a launch that still reads the one
  /// before, and a stream that has taken the place of a destroyed one is not told from that. None:
  /// all are patched. Between calls only. Throws std::invalid_argument for one that is not
  /// copyable, std::runtime_error without memory.
  void copy_arguments(const std::vector<std::uint32_t>& indices);

  /// Whether a call that failed behind its launch may be made once more by the callable: not if it
  /// has written arguments, or let go of some.
  [[nodiscard]] bool repeatable() const noexcept {
    return !writes_arguments_ && program_.size() == 1;
  }
  /// Whether a launch whose results nobody gets leaves everything as it was.
  [[nodiscard]] bool without_trace() const noexcept { return !writes_arguments_; }

  /// These results, by number, go to a backward and to nobody else. AOTAutograd takes views of
  /// autograd's out of what it saves by detaching them, which leaves the memory and the version
  /// that both count. Views among these results are made so at once. Between calls only. Throws
  /// std::invalid_argument.
  void note_saved(const std::vector<std::uint32_t>& results);

  /// Puts the memory of several results into one block, one behind the other: `groups` are the
  /// blocks of each by number, ascending. A block that is filled by a copy, or is on another device
  /// than the first, stays what it is.
  /// Between calls only. Throws std::invalid_argument.
  void merge_blocks(const std::vector<std::vector<std::uint32_t>>& groups);
  [[nodiscard]] const std::vector<OutputBlock>& blocks() const noexcept { return blocks_; }
  [[nodiscard]] const std::vector<ArgumentSpec>& arguments() const noexcept { return arguments_; }
  [[nodiscard]] const std::vector<ResultSpec>& results() const noexcept { return results_; }
  [[nodiscard]] const std::vector<std::uint32_t>& unwritten() const noexcept { return unwritten_; }

  /// Bytes that the arena is asked for at least, if it is one piece: the programs of one compiled
  /// graph ask for as much as the largest, and get the same memory from torch's allocator.
  void set_least_arena(std::uint64_t bytes) noexcept { least_arena_ = bytes; }
  [[nodiscard]] std::uint64_t least_arena() const noexcept { return least_arena_; }
  /// Bytes of the arena, if it is one piece for all of the graph; 0 if not.
  [[nodiscard]] std::uint64_t arena_in_one_piece() const noexcept {
    return arena_.pieces.size() == 1 && program_.size() == 1 ? arena_.pieces.front().bytes : 0;
  }

  [[nodiscard]] const CallStatistics& statistics() const noexcept { return statistics_; }
  void reset_statistics() noexcept {
    statistics_ = {};
    updates_before_ = program_.updates();
  }
  /// Nodes that were patched since the statistics were reset.
  [[nodiscard]] std::uint64_t updates() const noexcept {
    return program_.updates() - updates_before_;
  }
  [[nodiscard]] const Chain& program() const noexcept { return program_; }

  int traverse(visitproc visit, void* arg) const;

 private:
  struct Borrowed;
  class Workspace;
  class Workspaces;
  class RandomState;
  class InTurn;
  class PeerStreams;

  void bind_arguments(const Arguments& arguments, const Trial& trial, CUstream stream,
                      std::vector<Borrowed>& borrowed, PeerStreams& peers);
  void note_formula(const Formula& formula);
  void note_numbers();
  [[nodiscard]] double formula_number(const Arguments& arguments, std::uint32_t index) const;
  [[nodiscard]] NumberValue number_from(const NumberSource& source,
                                        const Arguments& arguments) const;
  void set_numbers(const Arguments& arguments);
  OwnedTensor stage(const Arguments& arguments, Staging& staging, CUstream stream);
  void fetch(PyObject* results) const;
  void run_part(std::uint32_t part, const Trial& trial, CUstream stream, Workspaces& arena,
                std::vector<OwnedTensor>& blocks, PeerStreams& peers);
  void let_go(const Arguments& arguments, std::uint32_t part,
              const std::vector<Borrowed>& borrowed) const;
  void refuse_visible_copy(const Arguments& arguments, std::size_t index) const;
  void copy_behind(const std::vector<OwnedTensor>& blocks, const std::vector<Borrowed>& borrowed,
                   CUstream stream) const;
  PyObject* make_results(const Arguments& arguments, const std::vector<OwnedTensor>& blocks) const;
  PyObject* make_result(const Arguments& arguments, const std::vector<OwnedTensor>& blocks,
                        std::size_t index, PyObject* earlier) const;
  TensorHandle empty(std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides,
                     std::int32_t dtype, std::int32_t device) const;
  OwnedTensor bytes(std::uint64_t count, std::int32_t device = kOwnDevice) const;
  OwnedTensor allocate_block(std::size_t index) const;
  void fill(CUdeviceptr to, int value, std::uint64_t bytes, CUstream stream) const;
  void copy(CUdeviceptr to, CUdeviceptr from, std::uint64_t bytes, CUstream stream) const;

  const Driver* driver_;
  LaunchLock lock_;
  Chain program_;
  Device device_;
  int device_index_;
  std::vector<Peer> peers_;
  std::vector<EventHandle> arrivals_;  ///< of each peer: behind what its stream was given before
  EventHandle departure_;              ///< with peers: behind the launch
  std::vector<ArgumentSpec> arguments_;
  /// By argument: its region, if nothing is asked of it but that it is a tensor; or kNoRegion.
  std::vector<std::uint32_t> plain_;
  std::vector<OutputBlock> blocks_;
  std::vector<ResultSpec> results_;
  std::vector<FetchedResult> fetched_;
  std::vector<std::uint32_t> unwritten_;
  std::vector<std::int32_t> whole_of_block_;  ///< result that is the whole block, or -1
  ArenaSpec arena_;
  std::uint64_t least_arena_ = 0;
  std::unique_ptr<RandomState> random_;  ///< null: no random numbers and no generators
  std::vector<std::size_t> staged_;      ///< arguments that may come as CPU tensors
  std::size_t computed_ = 0;             ///< how many numbers a call computes for them
  std::vector<NumberSource> numbers_;    ///< host numbers
  std::set<std::uint32_t> doubles_;      ///< tensors on the host that formulas take numbers from
  bool writes_arguments_ = false;
  bool has_static_memory_ = false;  ///< that copies in front of a launch fill, or behind it read
  EventHandle last_call_;           ///< behind the last call, if it has
  CUcontext context_ = nullptr;
  mutable CallStatistics statistics_;
  std::int64_t patience_ = -1;
  std::vector<OwnedTensor> copies_;  ///< of arguments that are copied in place of being patched
  std::uint64_t updates_before_ = 0;
};

}  // namespace pygraph::torch_bridge
