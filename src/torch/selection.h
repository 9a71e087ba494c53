// Who serves the calls of one program: the graph, or the callable as it is; and if the graph does,
// whether some of its arguments are patched or copied, and whether calls go past Dynamo's guards,
// or launch it before them or behind them.
//
// Each question is a stage, one after the other: two ways take turns (selection/contest.h), until
// `judge`, which is Python's (decide/selection.py), has seen enough. A
// decision that holds only as long as the caller is behind the device, or only as long as it is
// ahead, is looked at again when that has changed.
#pragma once

#include <Python.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "../selection/contest.h"
#include "python_ref.h"
#include "tensor_program.h"

namespace pygraph::torch_bridge {

/// Guarded by the GIL.
class Selection {
 public:
  /// Calls from one look at the stream to the next, and looks in a row that found it otherwise than
  /// in the contest until there is another one: no rare event opens one.
  static constexpr std::uint64_t kCallsPerLook = 1024;
  /// Calls that a new program serves before anybody looks: its first ones find the host's caches,
  /// the allocator and the device's clocks cold.
  static constexpr std::uint32_t kSettling = 64;
  static constexpr std::uint32_t kLooks = 4;

  /// `judge(pairs, over, stage)` is given a list of pairs, (graph, other), each a tuple (host,
  /// device, period, idle) in us; `over`: there will be no more. By stage, the other is the
  /// callable, the graph with the arguments `copied` copied, before the guards in place of past
  /// them, or behind the guards in place of before them ("callable", "copies", "past", "early"). It
  /// returns None to go on, or a tuple (whether the graph serves, idle): `idle` is whether the
  /// stream must go on to be found idle by calls, None: the decision stands. `seed`: of the order
  /// of turns.
  Selection(const Driver& driver, PyObject* judge, bool device_clock, std::uint32_t seed,
            std::vector<std::uint32_t> copied, bool only_copies);
  /// The graph serves, and there are no stages but those to come.
  Selection(const Driver& driver, PyObject* judge, bool device_clock, std::uint32_t seed);
  /// The callable serves, and nobody looks.
  Selection() noexcept : rests_(true) {}

  /// Who serves the call of `graph` that this thread is in, with a program that accepts it and on a
  /// stream that nobody captures. May run Python while undecided.
  selection::Alternative choose(TensorProgram& program, const void* graph);

  /// One more stage: calls may go past the guards.
  void try_past();
  /// Whether the call of `graph` that this thread is in does: no call while there is another stage.
  bool goes_past(const TensorProgram& program, const void* graph) noexcept;
  /// One more stage, in place of that: the graph may be launched before the guards.
  void try_early();
  /// Whether it may be in the call of `graph` that this thread is in.
  bool launches_early(const TensorProgram& program, const void* graph) noexcept;

  /// Whether two ways still take turns.
  [[nodiscard]] bool undecided() const noexcept { return contest_ != nullptr; }
  /// Whether the graph serves, and nobody looks any more.
  [[nodiscard]] bool graph_for_good() const noexcept { return !undecided() && !rests_ && !idle_; }

  int traverse(visitproc visit, void* arg) const;
  void release() noexcept { judge_ = PythonRef(); }

 private:
  enum class Stage : std::uint8_t { kCopies, kCallable, kPast, kEarly };

  void add(Stage stage);
  /// The way of the call of `graph` that this thread is in, if that is a stage's question.
  std::optional<selection::Alternative> way(Stage stage, const TensorProgram& program,
                                            const void* graph);
  void next();
  void open();
  void ask(TensorProgram& program);
  void copy(TensorProgram& program, bool on);
  void look(const TensorProgram& program);

  const Driver* driver_ = nullptr;
  PythonRef judge_;
  std::vector<std::uint32_t> copied_;
  bool copying_ = false;  ///< they are copied now
  Stage stage_ = Stage::kCallable;
  std::deque<Stage> later_;
  bool device_clock_ = false;
  std::uint32_t seed_ = 0;
  std::shared_ptr<selection::Contest> contest_;  ///< null: decided
  bool rests_ = false;                           ///< the callable serves
  std::optional<bool> idle_;                     ///< what a look must find
  std::uint32_t settling_ = kSettling;
  std::uint64_t calls_ = 0;
  std::uint32_t otherwise_ = 0;  ///< looks in a row
};

}  // namespace pygraph::torch_bridge
