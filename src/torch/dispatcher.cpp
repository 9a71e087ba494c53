#include "dispatcher.h"

#include <algorithm>
#include <exception>

#include "timeline.h"

namespace pygraph::torch_bridge {
namespace {

/// Counts: the call of one thread may be finished while another thread's is being launched.
class Busy {
 public:
  explicit Busy(std::uint32_t& calls) noexcept : calls_(calls) { ++calls_; }
  ~Busy() { --calls_; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::uint32_t& calls_;
};

PythonRef list_of(const Arguments& arguments) {
  PythonRef list = PythonRef::stolen(PyList_New(static_cast<Py_ssize_t>(arguments.count)));
  for (std::size_t i = 0; list && i < arguments.count; ++i) {
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), Py_NewRef(arguments[i]));
  }
  return list;
}

}  // namespace

Dispatcher::Dispatcher(PyObject* miss, PyObject* failed)
    : miss_(Py_NewRef(miss)), failed_(Py_NewRef(failed)) {
  selection::Ledger::open(selection::Clock::now());
}

Dispatcher::~Dispatcher() { release(); }

void Dispatcher::release() noexcept {
  slots_.clear();
  Py_CLEAR(miss_);
  Py_CLEAR(failed_);
  if (bypass_ != nullptr) {
    bypass_->release();
  }
}

int Dispatcher::traverse(visitproc visit, void* arg) const {
  Py_VISIT(miss_);
  Py_VISIT(failed_);
  for (const Slot& each : slots_) {
    if (const int stop = each.program->traverse(visit, arg); stop != 0) {
      return stop;
    }
    if (each.selection != nullptr) {
      each.selection->traverse(visit, arg);
    }
  }
  return bypass_ == nullptr ? 0 : bypass_->traverse(visit, arg);
}

void Dispatcher::add(std::shared_ptr<TensorProgram> program) {
  if (slots_.empty()) {
    sizes_ = Sizes::of(*program);
  }
  const std::size_t hash = Sizes::Hash{}(sizes_.captured(*program));
  last_ = 0;
  slots_.insert(slots_.begin(), {std::move(program), hash, count_});
}

void Dispatcher::select(const std::shared_ptr<TensorProgram>& program, PyObject* judge,
                        bool device_clock, std::uint32_t seed, std::vector<std::uint32_t> copied,
                        bool only_copies) {
  set_selection(program, std::make_shared<Selection>(program->driver(), judge, device_clock, seed,
                                                     std::move(copied), only_copies));
}

Selection* Dispatcher::selection_of(const std::shared_ptr<TensorProgram>& program, PyObject* judge,
                                    bool device_clock, std::uint32_t seed) {
  for (Slot& each : slots_) {
    if (each.program == program) {
      if (each.selection == nullptr) {
        each.selection = std::make_shared<Selection>(program->driver(), judge, device_clock, seed);
      }
      return each.selection.get();
    }
  }
  return nullptr;
}

void Dispatcher::try_past(const std::shared_ptr<TensorProgram>& program, PyObject* judge,
                          bool device_clock, std::uint32_t seed) {
  if (Selection* its = selection_of(program, judge, device_clock, seed); its != nullptr) {
    its->try_past();
  }
}

void Dispatcher::try_early(const std::shared_ptr<TensorProgram>& program, PyObject* judge,
                           bool device_clock, std::uint32_t seed) {
  if (Selection* its = selection_of(program, judge, device_clock, seed); its != nullptr) {
    its->try_early();
  }
}

void Dispatcher::rest(const std::shared_ptr<TensorProgram>& program) {
  set_selection(program, std::make_shared<Selection>());
}

void Dispatcher::set_selection(const std::shared_ptr<TensorProgram>& program,
                               const std::shared_ptr<Selection>& selection) noexcept {
  for (Slot& each : slots_) {
    if (each.program == program) {
      each.selection = selection;
    }
  }
}

Dispatcher::Choice Dispatcher::choose(const Arguments& arguments) {
  std::optional<LaunchLock::Clock::time_point> end;
  while (true) {
    std::shared_ptr<TensorProgram> program = find(arguments);
    LaunchLock::Held held = program == nullptr ? LaunchLock::Held() : program->lock().try_take();
    if (held) [[likely]] {
      return {std::move(program), std::move(held)};
    }
    if (program == nullptr || arguments.made_again) {
      return {};
    }
    if (!end) {
      end = LaunchLock::Clock::now() + LaunchLock::kLongestWait;
    }
    if (!program->lock().wait(*end)) {
      return {};
    }
  }
}

/// The program of a slot with a selection, or null: the callable serves.
std::shared_ptr<TensorProgram> Dispatcher::select(Slot& slot) {
  std::shared_ptr<TensorProgram> program = slot.program;
  selection::Alternative chosen{};
  if (slot.selection->undecided()) {
    const std::shared_ptr<Selection> selection = slot.selection;  // Python may drop the slot
    chosen = selection->choose(*program, this);
    if (selection->graph_for_good()) {
      set_selection(program, nullptr);
    }
  } else {
    chosen = slot.selection->choose(*program, this);
  }
  yielded_ = chosen == selection::Alternative::kOther;
  return yielded_ ? nullptr : program;
}

std::shared_ptr<TensorProgram> Dispatcher::find(const Arguments& arguments) {
  yielded_ = false;
  const Sizes::Key* key = held_ || slots_.empty() ? nullptr : sizes_.read(arguments);
  if (key == nullptr) {
    return nullptr;
  }
  const std::size_t hash = Sizes::Hash{}(*key);
  const auto serves = [&](std::size_t i) {
    return slots_[i].sizes == hash && slots_[i].program->accepts(arguments);
  };
  std::size_t chosen = last_;
  if (chosen >= slots_.size() || !serves(chosen)) {
    chosen = 0;
    while (chosen < slots_.size() && !serves(chosen)) {
      ++chosen;
    }
  }
  if (chosen == slots_.size() || slots_[chosen].program->being_captured()) {
    return nullptr;
  }
  last_ = chosen;
  slots_[chosen].used = count_;
  return slots_[chosen].selection == nullptr ? slots_[chosen].program : select(slots_[chosen]);
}

void Dispatcher::remove(const std::shared_ptr<TensorProgram>& program) noexcept {
  std::erase_if(slots_, [&](const Slot& each) { return each.program == program; });
}

std::vector<Dispatcher::Slot>::const_iterator Dispatcher::find_oldest() const noexcept {
  return std::min_element(slots_.begin(), slots_.end(),
                          [](const Slot& one, const Slot& other) { return one.used < other.used; });
}

std::shared_ptr<TensorProgram> Dispatcher::oldest() const noexcept {
  return slots_.empty() ? nullptr : find_oldest()->program;
}

std::uint64_t Dispatcher::oldest_used() const noexcept {
  return slots_.empty() ? 0 : find_oldest()->used;
}

/// A call that failed behind its launch may be made again by the callable, unless arguments are not
/// what they were: then the caller must hear of it.
PyObject* Dispatcher::disturbed(const Arguments& arguments,
                                const std::shared_ptr<TensorProgram>& program,
                                const char* message) {
  if (program->repeatable()) {
    return failed(arguments, program, message);
  }
  remove(program);
  if (PyErr_Occurred() == nullptr) {
    PyErr_Format(PyExc_RuntimeError,
                 "a CUDA graph ran and wrote its arguments, or let go of them, but its results "
                 "could not be made: %s",
                 message);
  }
  return nullptr;
}

/// Memory ran out between two parts of a graph, where the callable would have run out of it too:
/// the caller is told what torch would tell, and the graph stays.
PyObject* Dispatcher::out_of_memory(const char* message) {
  PyObject* torch = PyImport_ImportModule("torch");
  PyObject* kind = torch == nullptr ? nullptr : PyObject_GetAttrString(torch, "OutOfMemoryError");
  PyErr_SetString(kind == nullptr ? PyExc_MemoryError : kind, message);
  Py_XDECREF(kind);
  Py_XDECREF(torch);
  return nullptr;
}

PyObject* Dispatcher::failed(const Arguments& arguments,
                             const std::shared_ptr<TensorProgram>& program,
                             const std::string& message) {
  remove(program);
  ++missed_;
  PyErr_Clear();
  const PythonRef given = arguments.made_again ? PythonRef::to(Py_None) : list_of(arguments);
  return given ? PyObject_CallFunction(failed_, "Os", given.get(), message.c_str()) : nullptr;
}

template <typename Step>
bool Dispatcher::guarded(const Arguments& arguments, const std::shared_ptr<TensorProgram>& program,
                         PyObject*& result, Step step) {
  try {
    const Busy busy(busy_);
    step();
  } catch (const CallRefused&) {
    return false;
  } catch (const MemoryShortAfterLaunch& error) {
    result = out_of_memory(error.what());
  } catch (const FailedAfterLaunch& error) {
    result = disturbed(arguments, program, error.what());
  } catch (const std::exception& error) {
    result = failed(arguments, program, error.what());
  }
  return true;
}

bool Dispatcher::try_call(const Arguments& arguments, PyObject*& result) {
  Choice choice = choose(arguments);
  if (choice.program == nullptr || !guarded(arguments, choice.program, result, [&] {
        LaunchLock::Held held = std::move(choice.held);  // not while a failure is dealt with
        result = choice.program->run(arguments, {}, &held);
      })) {
    return false;
  }
  ++count_;
  return true;
}

std::optional<Dispatcher::Launch> Dispatcher::launch(Choice& choice, const Arguments& arguments) {
  std::optional<TensorProgram::Launched> launched;
  PyObject* served = nullptr;
  if (!guarded(arguments, choice.program, served, [&] {
        LaunchLock::Held held = std::move(choice.held);
        launched = choice.program->launch(arguments, {}, &held);
        choice.held = std::move(held);
      })) {
    return {};
  }
  return Launch{choice.program, std::move(launched), PythonRef::stolen(served)};
}

std::optional<Dispatcher::Launch> Dispatcher::launch_on_guess(Choice& choice,
                                                              const Arguments& arguments) {
  try {
    const Busy busy(busy_);
    TensorProgram::Launched launched = choice.program->launch(arguments, {}, &choice.held);
    return Launch{choice.program, std::move(launched), {}};
  } catch (const std::exception&) {
    PyErr_Clear();
    return {};
  }
}

PyObject* Dispatcher::finish(Launch launch, const Arguments& arguments) {
  ++count_;
  PyObject* result = launch.served.release();
  if (launch.launched) {
    guarded(arguments, launch.program, result,
            [&] { result = launch.program->finish(arguments, *launch.launched); });
  }
  return result;
}

PyObject* Dispatcher::call(PyObject* arguments) {
  Timeline::note(Layer::kDispatcher, true);
  const Arguments given = Arguments::of_given(arguments);
  PyObject* result = nullptr;
  if (try_call(given, result)) {
    Timeline::note(Layer::kDispatcher, false);
    return consume(arguments, result);
  }
  ++count_;
  ++missed_;
  const bool bypassed = bypass_ != nullptr && !held_ &&
                        (yielded_ ? bypass_->fits(given) : bypass_->takes(given, count_));
  return bypassed ? bypass_->call(arguments) : PyObject_CallOneArg(miss_, arguments);
}

PyObject* Dispatcher::consume(PyObject* arguments, PyObject* result) noexcept {
  if (result != nullptr &&
      PyList_SetSlice(arguments, 0, PyList_GET_SIZE(arguments), nullptr) != 0) {
    Py_CLEAR(result);
  }
  return result;
}

}  // namespace pygraph::torch_bridge
