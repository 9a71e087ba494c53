#include "dispatcher.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace pygraph::torch_bridge {
namespace {

/// Counts: a flight of one thread may land while another thread's call is being launched.
class Busy {
 public:
  explicit Busy(std::uint32_t& calls) noexcept : calls_(calls) { ++calls_; }
  ~Busy() { --calls_; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::uint32_t& calls_;
};

}  // namespace

Dispatcher::Dispatcher(PyObject* miss, PyObject* failed)
    : miss_(Py_NewRef(miss)), failed_(Py_NewRef(failed)) {}

Dispatcher::~Dispatcher() { release(); }

void Dispatcher::release() noexcept {
  graphs_.clear();
  Py_CLEAR(miss_);
  Py_CLEAR(failed_);
  if (uncaptured_ != nullptr) {
    uncaptured_->release();
  }
}

int Dispatcher::traverse(visitproc visit, void* arg) const {
  Py_VISIT(miss_);
  Py_VISIT(failed_);
  for (const Graph& each : graphs_) {
    if (const int stop = each.call->traverse(visit, arg); stop != 0) {
      return stop;
    }
  }
  return uncaptured_ == nullptr ? 0 : uncaptured_->traverse(visit, arg);
}

void Dispatcher::add(std::shared_ptr<TensorProgram> call) {
  if (graphs_.empty()) {
    sizes_ = Sizes::of(*call);
  }
  const std::size_t hash = Sizes::Hash{}(sizes_.captured(*call));
  last_ = 0;
  graphs_.insert(graphs_.begin(), {std::move(call), hash, count_});
}

/// The graph that serves these arguments; null when none does, or when the stream is being captured
/// by somebody.
std::shared_ptr<TensorProgram> Dispatcher::choose(const Arguments& arguments) {
  const Sizes::Key* key = busy_ != 0 || held_ || graphs_.empty() ? nullptr : sizes_.read(arguments);
  if (key == nullptr) {
    return nullptr;
  }
  const std::size_t hash = Sizes::Hash{}(*key);
  const auto serves = [&](std::size_t i) {
    return graphs_[i].sizes == hash && graphs_[i].call->accepts(arguments);
  };
  std::size_t chosen = last_;
  if (chosen >= graphs_.size() || !serves(chosen)) {
    chosen = 0;
    while (chosen < graphs_.size() && !serves(chosen)) {
      ++chosen;
    }
  }
  if (chosen == graphs_.size() || graphs_[chosen].call->being_captured()) {
    return nullptr;
  }
  last_ = chosen;
  graphs_[chosen].used = count_;
  return graphs_[chosen].call;
}

void Dispatcher::remove(const std::shared_ptr<TensorProgram>& call) noexcept {
  const auto is_it = [&](const Graph& each) { return each.call == call; };
  graphs_.erase(std::remove_if(graphs_.begin(), graphs_.end(), is_it), graphs_.end());
}

std::vector<Dispatcher::Graph>::const_iterator Dispatcher::find_oldest() const noexcept {
  return std::min_element(graphs_.begin(), graphs_.end(), [](const Graph& one, const Graph& other) {
    return one.used < other.used;
  });
}

std::shared_ptr<TensorProgram> Dispatcher::oldest() const noexcept {
  return graphs_.empty() ? nullptr : find_oldest()->call;
}

std::uint64_t Dispatcher::oldest_used() const noexcept {
  return graphs_.empty() ? 0 : find_oldest()->used;
}

/// A call that failed behind its launch may be made again by the callable, unless arguments are not
/// what they were: then the caller must hear of it.
PyObject* Dispatcher::disturbed(const Arguments& arguments, const std::shared_ptr<TensorProgram>& call,
                                const char* message) {
  if (call->repeatable()) {
    return failed(arguments, call, message);
  }
  remove(call);
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

PyObject* Dispatcher::failed(const Arguments& arguments, const std::shared_ptr<TensorProgram>& call,
                             const std::string& message) {
  remove(call);
  PyErr_Clear();
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(arguments.count));
  for (std::size_t i = 0; list != nullptr && i < arguments.count; ++i) {
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), Py_NewRef(arguments[i]));
  }
  PyObject* result =
      list == nullptr ? nullptr : PyObject_CallFunction(failed_, "Os", list, message.c_str());
  Py_XDECREF(list);
  return result;
}

template <typename Step>
bool Dispatcher::guarded(const Arguments& arguments, const std::shared_ptr<TensorProgram>& chosen,
                         PyObject*& result, Step step) {
  try {
    const Busy busy(busy_);
    step();
  } catch (const CallRefused&) {
    return false;
  } catch (const MemoryShortAfterLaunch& error) {
    result = out_of_memory(error.what());
  } catch (const FailedAfterLaunch& error) {
    result = disturbed(arguments, chosen, error.what());
  } catch (const std::exception& error) {
    result = failed(arguments, chosen, error.what());
  }
  return true;
}

bool Dispatcher::try_call(const Arguments& arguments, PyObject*& result) {
  const std::shared_ptr<TensorProgram> chosen = choose(arguments);
  if (chosen == nullptr ||
      !guarded(arguments, chosen, result, [&] { result = chosen->run(arguments); })) {
    return false;
  }
  ++count_;
  return true;
}

Dispatcher::Start Dispatcher::start(const Arguments& arguments, Flight& flight) {
  return depart(choose(arguments), arguments, flight);
}

Dispatcher::Start Dispatcher::guess(const Arguments& arguments, Flight& flight,
                                    IndexBounds& bounds) {
  const std::shared_ptr<TensorProgram> chosen = choose(arguments);
  if (chosen == nullptr || !chosen->without_trace()) {
    return Start::kMiss;
  }
  try {
    if (!bounds.bounds().empty() && !chosen->within(bounds, arguments)) {
      return Start::kMiss;
    }
  } catch (const std::exception&) {
    return Start::kMiss;
  }
  return depart(chosen, arguments, flight);
}

bool Dispatcher::idle() const noexcept {
  try {
    return last_ < graphs_.size() && !graphs_[last_].call->being_captured() &&
           graphs_[last_].call->idle();
  } catch (const std::exception&) {
    return false;
  }
}

Dispatcher::Start Dispatcher::depart(const std::shared_ptr<TensorProgram>& chosen,
                                     const Arguments& arguments, Flight& flight) {
  PyObject* result = nullptr;
  bool launched = false;
  const auto launch = [&] {
    flight.depart(chosen, chosen->launch(arguments));
    launched = true;
  };
  if (chosen == nullptr || !guarded(arguments, chosen, result, launch)) {
    return Start::kMiss;
  }
  ++count_;
  if (!launched && result == nullptr) {
    return Start::kError;
  }
  if (!launched) {
    flight.depart(result);
  }
  return Start::kDeparted;
}

PyObject* Dispatcher::land(Flight& flight, const Arguments& arguments) {
  flight.landed_ = true;
  PyObject* result = std::exchange(flight.result_, nullptr);
  if (result == nullptr) {
    guarded(arguments, flight.call_, result,
            [&] { result = flight.call_->finish(arguments, flight.launched_); });
    flight.launched_ = {};
  }
  return result;
}

PyObject* Dispatcher::call(PyObject* arguments) {
  const Arguments given = Arguments::of_given(arguments);
  PyObject* result = nullptr;
  if (Flight* flight = Flight::arriving(*this, given); flight != nullptr) {
    result = land(*flight, given);
  } else if (!try_call(given, result)) {
    ++count_;
    ++missed_;
    const bool rests = uncaptured_ != nullptr && !held_ && uncaptured_->takes(given, count_);
    return rests ? uncaptured_->call(arguments) : PyObject_CallOneArg(miss_, arguments);
  }
  // The callee of a boxed call drops the arguments (torch's _boxed_call contract).
  if (result != nullptr &&
      PyList_SetSlice(arguments, 0, PyList_GET_SIZE(arguments), nullptr) != 0) {
    Py_CLEAR(result);
  }
  return result;
}

}  // namespace pygraph::torch_bridge
