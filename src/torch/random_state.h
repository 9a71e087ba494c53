// The states of random generators, where the kernels of a graph read them.
//
// A kernel of torch that draws random numbers is captured with two pointers, to its generator's
// seed and to its offset at the start of the graph (torch, aten/src/ATen/cuda/CUDAGeneratorImpl.h,
// "Note [CUDA Graph-safe RNG states]"). torch's own replay fills both with a kernel each and moves
// the generator on; the same is done here for all generators, with 4-byte fills of the words that
// have changed (as a rule one for each, the lower half of the offset), or one copy of many. They
// are moved on when the launch has become a call: one that nobody claims (speculation.h) has drawn
// nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "python_ref.h"
#include "tensor_program.h"

namespace pygraph::torch_bridge {

/// The generators that one launch draws from, in the order of the draws, and the states that they
/// were found in. Guarded by the GIL.
class RandomTurn {
 public:
  struct Drawn {
    PythonRef generator;
    // Its kernels read the state from memory:
    std::uint64_t seed = 0;
    std::uint64_t offset = 0;
    std::uint64_t next = 0;  ///< offset behind the launch
    // Its operators find it by generator_of_calls():
    PythonRef found{};  ///< its state; null: not so
    PythonRef left{};   ///< the same behind the launch
    [[nodiscard]] bool by_address() const noexcept { return static_cast<bool>(found); }
  };

  explicit RandomTurn(std::vector<Drawn> drawn);
  ~RandomTurn() { close(); }
  RandomTurn(const RandomTurn&) = delete;
  RandomTurn& operator=(const RandomTurn&) = delete;

  /// All that was launched has run, as it has on the twin, whose operators draw by themselves: the
  /// generators are put back to where they were found. Throws std::runtime_error.
  void ran();
  /// Whether the generators are where they were found.
  [[nodiscard]] bool stands() const noexcept;
  /// Moves them on, as the graph's kernels would have; once. Throws std::runtime_error.
  void advance();

 private:
  void close() noexcept;

  std::vector<Drawn> drawn_;
  bool open_ = true;  ///< operators may still be running
  bool advanced_ = false;
};

/// Guarded by the GIL, like the call that it belongs to. Every stream has memory of its own, so
/// that calls on streams that are not ordered against each other do not change each other's
/// numbers.
class TensorProgram::RandomState {
 public:
  /// Throws std::invalid_argument for a draw from an argument that is no generator.
  RandomState(const Driver& driver, Device device, const std::vector<ArgumentSpec>& arguments,
              RandomSpec spec);
  ~RandomState();
  RandomState(const RandomState&) = delete;
  RandomState& operator=(const RandomState&) = delete;

  /// Whether the generators among `arguments` are generators of the device, and the same object
  /// where the linked call had one.
  [[nodiscard]] bool accepts(const Arguments& arguments) const noexcept;

  /// Brings the states in the device's memory up to the generators', on `stream`, and binds the
  /// regions to them. Null: nothing is drawn. Throws DriverError, MemoryShort, CallRefused (two of
  /// the generators share a state, as torch's graphsafe_get_state() makes them), std::runtime_error
  /// (a generator refused).
  std::shared_ptr<RandomTurn> set(const Arguments& arguments, Chain& program, CUstream stream);

  /// What the launches of all graphs that draw take.
  static const LaunchLock& lock();

  int traverse(visitproc visit, void* arg) const;

 private:
  static constexpr std::size_t kWords = 4;      ///< of 4 bytes: seed, offset; lower half first
  static constexpr std::size_t kMostFills = 8;  ///< of words; more are copied together

  struct Generator {
    std::uint32_t argument;
    std::int64_t same_as;  ///< an argument up to this one; negative: the default generator
  };
  struct Place {
    CUstream stream;
    void* memory;
    std::vector<std::uint32_t> words;
    bool filled;
  };

  [[nodiscard]] bool accepts(const Arguments& arguments, const Generator& generator) const;
  [[nodiscard]] std::vector<RandomTurn::Drawn> look(const Arguments& arguments) const;
  Place& place_on(CUstream stream);
  void fill(Place& place, const std::vector<std::uint32_t>& words);

  const Driver* driver_;
  Device device_;
  RandomSpec spec_;
  PyObject* torch_device_;  ///< of the default generator
  PyObject* unnumbered_;    ///< what torch.Generator("cuda") has as its device
  std::vector<Generator> generators_;
  std::vector<Place> places_;
};

/// The generator object at `address`, borrowed, if a running call draws from it by its address (see
/// Draw); else null. Needs the GIL.
PyObject* generator_of_calls(std::uint64_t address) noexcept;

}  // namespace pygraph::torch_bridge
