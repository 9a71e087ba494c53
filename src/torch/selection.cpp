#include "selection.h"

#include <exception>
#include <utility>

#include "call_scope.h"

namespace pygraph::torch_bridge {
namespace {

using selection::Alternative;
using selection::Cost;

PyObject* as_tuple(const Cost& cost) {
  return Py_BuildValue("(dddO)", cost.host, cost.device, cost.period,
                       cost.idle ? Py_True : Py_False);
}

PythonRef as_list(const std::vector<selection::ClockedPair>& pairs) {
  PythonRef list = PythonRef::stolen(PyList_New(static_cast<Py_ssize_t>(pairs.size())));
  for (std::size_t i = 0; list && i < pairs.size(); ++i) {
    PyObject* pair = Py_BuildValue("(NN)", as_tuple(pairs[i].graph), as_tuple(pairs[i].other));
    if (pair == nullptr) {
      return {};
    }
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), pair);
  }
  return list;
}

}  // namespace

Selection::Selection(const Driver& driver, PyObject* judge, bool device_clock, std::uint32_t seed)
    : driver_(&driver), judge_(PythonRef::to(judge)), device_clock_(device_clock), seed_(seed) {}

Selection::Selection(const Driver& driver, PyObject* judge, bool device_clock, std::uint32_t seed,
                     std::vector<std::uint32_t> copied, bool only_copies)
    : Selection(driver, judge, device_clock, seed) {
  copied_ = std::move(copied);
  if (!copied_.empty()) {
    later_.push_back(Stage::kCopies);
  }
  if (!only_copies) {
    later_.push_back(Stage::kCallable);
  }
  next();
}

int Selection::traverse(visitproc visit, void* arg) const {
  Py_VISIT(judge_.get());
  return 0;
}

void Selection::next() {
  if (!later_.empty()) {
    stage_ = later_.front();
    later_.pop_front();
    open();
  }
}

void Selection::open() {
  contest_ = std::make_shared<selection::Contest>(*driver_, device_clock_, seed_++);
  otherwise_ = 0;
}

void Selection::add(Stage stage) {
  later_.push_back(stage);
  if (!undecided() && !rests_) {
    next();
  }
}

void Selection::try_past() { add(Stage::kPast); }

void Selection::try_early() {
  std::erase(later_, Stage::kPast);
  add(Stage::kEarly);
}

std::optional<Alternative> Selection::way(Stage stage, const TensorProgram& program,
                                          const void* graph) {
  selection::CallClock* watch = selection::CallClock::of(graph);
  if (contest_ == nullptr || stage_ != stage || watch == nullptr || settling_ != 0 ||
      program.being_captured()) {
    return {};
  }
  const CallScope scope = program.scope();
  const Relaxed around(*driver_);
  return watch->alternative(contest_, scope.stream());
}

bool Selection::goes_past(const TensorProgram& program, const void* graph) noexcept {
  try {
    return way(Stage::kPast, program, graph)
               .value_or(undecided() || rests_ ? Alternative::kOther : Alternative::kGraph) ==
           Alternative::kGraph;
  } catch (const std::exception&) {
    contest_.reset();
    return true;
  }
}

bool Selection::launches_early(const TensorProgram& program, const void* graph) noexcept {
  try {
    return way(Stage::kEarly, program, graph).value_or(Alternative::kGraph) == Alternative::kGraph;
  } catch (const std::exception&) {
    contest_.reset();
    return true;
  }
}

void Selection::copy(TensorProgram& program, bool on) {
  const LaunchLock::Held held = on == copying_ ? LaunchLock::Held() : program.lock().try_take();
  if (held) {  // else another thread launches it: this call is served as the last one was
    program.copy_arguments(on ? copied_ : std::vector<std::uint32_t>{});
    copying_ = on;
  }
}

Alternative Selection::choose(TensorProgram& program, const void* graph) {
  try {
    if (contest_ != nullptr) [[unlikely]] {
      selection::CallClock* watch = selection::CallClock::of(graph);
      if (watch == nullptr || settling_ != 0) {
        settling_ -= settling_ != 0 ? 1U : 0U;
        return Alternative::kGraph;
      }
      const CallScope scope = program.scope();
      const Relaxed around(*driver_);
      Alternative chosen = watch->alternative(contest_, scope.stream());
      if (stage_ == Stage::kCopies) {
        copy(program, chosen == Alternative::kOther);
      }
      if (stage_ != Stage::kCallable) {
        chosen = Alternative::kGraph;
      }
      if (contest_->due()) {
        ask(program);
      }
      return chosen;
    }
    if (idle_ && ++calls_ % kCallsPerLook == 0) [[unlikely]] {
      look(program);
    }
  } catch (const std::exception&) {  // a clock or memory was refused: then the graph serves
    contest_.reset();
    rests_ = false;
  }
  return rests_ ? Alternative::kOther : Alternative::kGraph;
}

void Selection::ask(TensorProgram& program) {
  const selection::Clock::time_point asked = selection::Clock::now();
  const bool over = contest_->over();
  const PythonRef pairs = as_list(contest_->pairs());
  const PythonRef judge = PythonRef::to(judge_.get());  // it may let go of this
  constexpr const char* kStages[] = {"copies", "callable", "past", "early"};
  const PythonRef answer = judge && pairs
                               ? PythonRef::stolen(PyObject_CallFunction(
                                     judge.get(), "OOs", pairs.get(), over ? Py_True : Py_False,
                                     kStages[static_cast<std::size_t>(stage_)]))
                               : PythonRef();
  selection::Ledger::spend(selection::Clock::now() - asked);
  if (PyErr_Occurred() != nullptr) {
    PyErr_WriteUnraisable(judge.get());
  }
  if (answer && answer.get() == Py_None && !over) {
    return;
  }
  contest_.reset();
  bool other = false;
  std::optional<bool> idle;
  if (answer && PyTuple_Check(answer.get()) && PyTuple_GET_SIZE(answer.get()) == 2) {
    other = PyTuple_GET_ITEM(answer.get(), 0) == Py_False;
    if (PyObject* found = PyTuple_GET_ITEM(answer.get(), 1); found != Py_None) {
      idle.emplace(found == Py_True);
    }
  }
  if (stage_ == Stage::kCallable) {
    rests_ = other;
    idle_ = idle;
  } else if (stage_ == Stage::kCopies) {
    copy(program, other);
  }
  if (!rests_) {
    next();
  }
}

void Selection::look(const TensorProgram& program) {
  const CallScope scope = program.scope();
  const Relaxed around(*driver_);
  const bool idle = driver_->api.cuStreamQuery(scope.stream()) == CUDA_SUCCESS;
  otherwise_ = idle_ == idle ? 0 : otherwise_ + 1;
  if (otherwise_ == kLooks) {
    stage_ = Stage::kCallable;
    open();
  }
}

}  // namespace pygraph::torch_bridge
