// What Inductor calls in place of a compiled graph: the programs linked for it, the one used last
// first, the callable itself where the bypass is open, and the Python side for everything else.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bypass.h"
#include "launch_lock.h"
#include "python_ref.h"
#include "selection.h"
#include "sizes.h"
#include "tensor_program.h"

namespace pygraph::torch_bridge {

/// Guarded by the GIL. Calls of several threads are served side by side, but for their launches
/// (launch_lock.h). Not for recursion: a call made inside of a launch takes the slow path.
class Dispatcher {
 public:
  /// `miss(arguments)` serves calls that no program accepts (warming, capturing, falling back);
  /// `failed(arguments, message)` serves a call whose program failed, after that was taken out. It
  /// is given None in place of arguments, and returns None, for one that is made_again.
  Dispatcher(PyObject* miss, PyObject* failed);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  /// Makes `program` serve the calls it accepts from now on.
  void add(std::shared_ptr<TensorProgram> program);
  void clear() noexcept { slots_.clear(); }
  /// From now on `judge` decides whether `program` or the callable serves the calls that the
  /// program accepts (selection.h). `seed`: of the order of turns. Nothing when the program is not
  /// there.
  /// `copied`: arguments that may be copied in place of being patched; `only_copies`: nothing else
  /// is to be found out.
  void select(const std::shared_ptr<TensorProgram>& program, PyObject* judge, bool device_clock,
              std::uint32_t seed, std::vector<std::uint32_t> copied, bool only_copies);
  /// One more question for it: whether calls go past the guards to the program, or launch it before
  /// them.
  void try_past(const std::shared_ptr<TensorProgram>& program, PyObject* judge, bool device_clock,
                std::uint32_t seed);
  /// Whether the call that this thread is in goes past them.
  [[nodiscard]] bool goes_past() const noexcept {
    return last_ >= slots_.size() || slots_[last_].selection == nullptr ||
           slots_[last_].selection->goes_past(*slots_[last_].program, this);
  }
  /// In place of that: whether the program is launched before the guards or behind them.
  void try_early(const std::shared_ptr<TensorProgram>& program, PyObject* judge, bool device_clock,
                 std::uint32_t seed);
  /// Whether a program may be launched before the guards of the call that this thread is in.
  [[nodiscard]] bool launches_early() const noexcept {
    return last_ >= slots_.size() || slots_[last_].selection == nullptr ||
           slots_[last_].selection->launches_early(*slots_[last_].program, this);
  }
  /// From now on the callable serves the calls that `program` accepts.
  void rest(const std::shared_ptr<TensorProgram>& program);
  /// Whether it is being found out who serves calls like the last one.
  [[nodiscard]] bool undecided() const noexcept {
    return last_ < slots_.size() && slots_[last_].selection != nullptr &&
           slots_[last_].selection->undecided();
  }
  /// Whether the program that accepts the call last looked at leaves it to the callable.
  [[nodiscard]] bool yielded() const noexcept { return yielded_; }
  /// While held, no program serves a call: everything misses.
  void hold(bool held) noexcept { held_ = held; }
  /// Whether a call is being served right now, on another thread that has lost the GIL: by a
  /// program, or by the callable without Python.
  [[nodiscard]] bool busy() const noexcept {
    return busy_ != 0 || (bypass_ != nullptr && bypass_->occupied_by_others());
  }
  /// Serves the calls that it takes, unless held. Once.
  void set_bypass(std::unique_ptr<Bypass> bypass) noexcept { bypass_ = std::move(bypass); }
  /// Null before it was set.
  [[nodiscard]] Bypass* bypass() const noexcept { return bypass_.get(); }
  /// Takes `program` out again; nothing when it is not there.
  void remove(const std::shared_ptr<TensorProgram>& program) noexcept;
  /// The program that was used last; null when it is not there any more.
  [[nodiscard]] const TensorProgram* last() const noexcept {
    return last_ < slots_.size() ? slots_[last_].program.get() : nullptr;
  }
  /// The one that was used longest ago; null when there is none.
  [[nodiscard]] std::shared_ptr<TensorProgram> oldest() const noexcept;
  /// How many calls there had been when it was; 0 when there is none.
  [[nodiscard]] std::uint64_t oldest_used() const noexcept;

  /// One call: `arguments` is a list, cleared when a program served it. Returns a new reference, or
  /// null with a Python error set.
  PyObject* call(PyObject* arguments);
  /// Clears the list of a call that a program served, and returns its result: the callee of a boxed
  /// call drops the arguments (torch's _boxed_call contract).
  static PyObject* consume(PyObject* arguments, PyObject* result) noexcept;

  /// One call that only a program may serve. False: none accepts the arguments, and nothing was
  /// done. True: `result` is a new reference, or null with a Python error set.
  bool try_call(const Arguments& arguments, PyObject*& result);

  // The same in steps.

  /// A program that serves a call, or none, and the right to launch it.
  struct Choice {
    std::shared_ptr<TensorProgram> program;
    LaunchLock::Held held;
  };
  /// The program that serves these arguments; none when none does, when the callable is to, when
  /// the stream is being captured by somebody, or when another thread launches it and is not done
  /// in time. Where the call is made_again, that is at once: who makes it would have to look at its
  /// arguments once more.
  Choice choose(const Arguments& arguments);
  /// The first half of a call that it was chosen for.
  struct Launch {
    std::shared_ptr<TensorProgram> program;
    std::optional<TensorProgram::Launched> launched;
    /// In place of that, from `failed`: the results, or None; null: a Python error is set.
    PythonRef served;
  };
  /// Launches a program. None: the call must be made another way, and nothing was done. The lock is
  /// left to `choice` where random numbers are drawn: they are the next call's, too, until this one
  /// is finished.
  std::optional<Launch> launch(Choice& choice, const Arguments& arguments);
  /// The same for a call that may not come, which nothing may serve in place of the graph: None
  /// also where it failed, as it will when the call has come.
  std::optional<Launch> launch_on_guess(Choice& choice, const Arguments& arguments);
  /// The other half, which makes a call of it and counts that: what `result` is in try_call(), or
  /// None where the call is to be made again.
  PyObject* finish(Launch launch, const Arguments& arguments);

  [[nodiscard]] std::uint64_t calls() const noexcept { return count_; }
  /// Those that a program served.
  [[nodiscard]] std::uint64_t replays() const noexcept { return count_ - missed_; }
  [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
  int traverse(visitproc visit, void* arg) const;
  void release() noexcept;

 private:
  /// Runs `step`, which calls `program`, and turns what it throws into what the caller gets: false
  /// for a call that must be made another way.
  template <typename Step>
  bool guarded(const Arguments& arguments, const std::shared_ptr<TensorProgram>& program,
               PyObject*& result, Step step);
  PyObject* failed(const Arguments& arguments, const std::shared_ptr<TensorProgram>& program,
                   const std::string& message);
  PyObject* disturbed(const Arguments& arguments, const std::shared_ptr<TensorProgram>& program,
                      const char* message);
  static PyObject* out_of_memory(const char* message);

  struct Slot {
    std::shared_ptr<TensorProgram> program;
    std::size_t sizes;                       ///< hash of the integers that it was captured with
    std::uint64_t used;                      ///< calls that there had been
    std::shared_ptr<Selection> selection{};  ///< null: the program serves
  };

  std::shared_ptr<TensorProgram> find(const Arguments& arguments);  ///< may run Python
  std::vector<Slot>::const_iterator find_oldest() const noexcept;
  std::shared_ptr<TensorProgram> select(Slot& slot);
  /// Of `program`; one that the graph serves by, where there was none. Null: no such program.
  Selection* selection_of(const std::shared_ptr<TensorProgram>& program, PyObject* judge,
                          bool device_clock, std::uint32_t seed);
  void set_selection(const std::shared_ptr<TensorProgram>& program,
                     const std::shared_ptr<Selection>& selection) noexcept;

  PyObject* miss_;
  PyObject* failed_;
  std::vector<Slot> slots_;  ///< looked through in each call: kept small, and in one piece
  std::size_t last_ = 0;     ///< used last
  Sizes sizes_;
  std::unique_ptr<Bypass> bypass_;
  std::uint64_t count_ = 0;
  std::uint64_t missed_ = 0;
  bool yielded_ = false;
  std::uint32_t busy_ = 0;  ///< calls that programs serve right now, on any thread
  bool held_ = false;
};

}  // namespace pygraph::torch_bridge
