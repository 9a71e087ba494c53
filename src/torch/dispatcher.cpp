#include "dispatcher.h"

#include <algorithm>
#include <exception>

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
}

int Dispatcher::traverse(visitproc visit, void* arg) const {
  Py_VISIT(miss_);
  Py_VISIT(failed_);
  for (const auto& call : calls_) {
    if (const int stop = call->traverse(visit, arg); stop != 0) {
      return stop;
    }
  }
  return 0;
}

void Dispatcher::add(std::shared_ptr<GraphCall> call) { calls_.insert(calls_.begin(), std::move(call)); }

PyObject* Dispatcher::call(PyObject* arguments) {
  ++count_;
  if (!busy_) {
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (!calls_[i]->accepts(arguments)) {
        continue;
      }
      if (calls_[i]->being_captured()) {
        break;
      }
      if (i != 0) {
        std::rotate(calls_.begin(), calls_.begin() + static_cast<std::ptrdiff_t>(i),
                    calls_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
      const std::shared_ptr<GraphCall> chosen = calls_.front();
      PyObject* result = nullptr;
      try {
        const Busy busy(busy_);
        result = chosen->run(arguments);
      } catch (const std::exception& error) {
        calls_.erase(std::remove(calls_.begin(), calls_.end(), chosen), calls_.end());
        PyErr_Clear();
        return PyObject_CallFunction(failed_, "Os", arguments, error.what());
      }
      // The callee of a boxed call drops the arguments (torch's _boxed_call contract).
      if (result != nullptr &&
          PyList_SetSlice(arguments, 0, PyList_GET_SIZE(arguments), nullptr) != 0) {
        Py_CLEAR(result);
      }
      return result;
    }
  }
  return PyObject_CallOneArg(miss_, arguments);
}

}  // namespace pygraph::torch_bridge
