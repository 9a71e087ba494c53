#include "dispatcher.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace pygraph::torch_bridge {
namespace {

class Busy {
 public:
  explicit Busy(bool& flag) noexcept : flag_(flag) { flag_ = true; }
  ~Busy() { flag_ = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  bool& flag_;
};

}  // namespace

Dispatcher::Dispatcher(PyObject* miss, PyObject* failed)
    : miss_(Py_NewRef(miss)), failed_(Py_NewRef(failed)) {}

Dispatcher::~Dispatcher() { release(); }

void Dispatcher::release() noexcept {
  calls_.clear();
  Py_CLEAR(miss_);
  Py_CLEAR(failed_);
  if (uncaptured_ != nullptr) {
    uncaptured_->release();
  }
}

int Dispatcher::traverse(visitproc visit, void* arg) const {
  Py_VISIT(miss_);
  Py_VISIT(failed_);
  for (const Served& each : calls_) {
    if (const int stop = each.call->traverse(visit, arg); stop != 0) {
      return stop;
    }
  }
  return uncaptured_ == nullptr ? 0 : uncaptured_->traverse(visit, arg);
}

void Dispatcher::add(std::shared_ptr<GraphCall> call) {
  calls_.insert(calls_.begin(), {std::move(call), count_});
}

/// The graph that serves these arguments, moved to the front; null when none does, or when the
/// stream is being captured by somebody.
std::shared_ptr<GraphCall> Dispatcher::choose(const Arguments& arguments) {
  for (std::size_t i = 0; i < calls_.size() && !busy_ && !held_; ++i) {
    if (!calls_[i].call->accepts(arguments)) {
      continue;
    }
    if (calls_[i].call->being_captured()) {
      break;
    }
    if (i != 0) {
      const auto chosen = calls_.begin() + static_cast<std::ptrdiff_t>(i);
      std::rotate(calls_.begin(), chosen, chosen + 1);
    }
    calls_.front().used = count_;
    return calls_.front().call;
  }
  return nullptr;
}

void Dispatcher::remove(const std::shared_ptr<GraphCall>& call) noexcept {
  const auto is_it = [&](const Served& each) { return each.call == call; };
  calls_.erase(std::remove_if(calls_.begin(), calls_.end(), is_it), calls_.end());
}

/// A call that failed behind its launch may be made again by the callable, unless arguments are not
/// what they were: then the caller must hear of it.
PyObject* Dispatcher::disturbed(const Arguments& arguments, const std::shared_ptr<GraphCall>& call,
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

PyObject* Dispatcher::failed(const Arguments& arguments, const std::shared_ptr<GraphCall>& call,
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
bool Dispatcher::guarded(const Arguments& arguments, const std::shared_ptr<GraphCall>& chosen,
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
  const std::shared_ptr<GraphCall> chosen = choose(arguments);
  if (chosen == nullptr ||
      !guarded(arguments, chosen, result, [&] { result = chosen->run(arguments); })) {
    return false;
  }
  ++count_;
  return true;
}

Dispatcher::Start Dispatcher::start(const Arguments& arguments, Flight& flight) {
  const std::shared_ptr<GraphCall> chosen = choose(arguments);
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
    const bool rests = uncaptured_ != nullptr && !held_ && uncaptured_->takes(given);
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
