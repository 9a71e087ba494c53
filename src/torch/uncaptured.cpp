#include "uncaptured.h"

#include <algorithm>
#include <utility>

namespace pygraph::torch_bridge {

Uncaptured::Uncaptured(PyObject* function, std::vector<std::uint32_t> integers,
                       std::vector<std::uint32_t> aligned, std::uint64_t alignment_mask,
                       std::uint64_t first_calls)
    : function_(Py_NewRef(function)),
      sizes_(std::move(integers)),
      aligned_(std::move(aligned)),
      alignment_mask_(alignment_mask),
      first_calls_(first_calls) {}

/// Known from now on; null for arguments without a signature.
Uncaptured::Rest* Uncaptured::find(const Arguments& arguments) {
  const Sizes::Key* key = sizes_.read(arguments);
  if (key == nullptr) {
    return nullptr;
  }
  if (known_.size() >= kMost && !known_.contains(*key)) {
    known_.clear();
  }
  return &known_.try_emplace(*key, Rest{first_calls_, {0, 0}, 0, false}).first->second;
}

void Uncaptured::rest(const Arguments& arguments, std::uint64_t calls) {
  if (Rest* rest = find(arguments); rest != nullptr) {
    rest->left = calls;
    rest->listened_to = false;
  }
}

void Uncaptured::listen(const Arguments& arguments) {
  if (Rest* rest = find(arguments); rest != nullptr) {
    rest->left = 0;
    rest->listened_to = true;
  }
}

Uncaptured::Served Uncaptured::served(const Arguments& arguments) {
  const Sizes::Key* key = sizes_.read(arguments);
  const auto found = key == nullptr ? known_.end() : known_.find(*key);
  if (found == known_.end()) {
    return {0, 0};
  }
  Served& served = found->second.served;
  return {std::exchange(served.calls, 0), served.before};
}

bool Uncaptured::all_aligned(const Arguments& arguments) const noexcept {
  const TorchApi& api = torch_api();
  return std::all_of(aligned_.begin(), aligned_.end(), [&](std::uint32_t index) {
    PyObject* argument = index < arguments.count ? arguments[index] : Py_None;
    return !api.is_tensor(argument) || (address_of(api.data(argument)) & alignment_mask_) == 0 ||
           api.on_cpu(argument);
  });
}

bool Uncaptured::takes(const Arguments& arguments, std::uint64_t number) {
  if (function_ == nullptr || !all_aligned(arguments)) {
    return false;
  }
  Rest* rest = find(arguments);
  if (rest == nullptr) {
    return false;
  }
  const std::uint64_t before = std::exchange(rest->last, number);
  rest->served.before = before;
  const bool back_soon = before != 0 && number - before <= soon_;
  if (rest->left == 0 && (rest->listened_to || back_soon || Clock::now() >= quiet_)) {
    return false;
  }
  rest->left -= rest->left == 0 || rest->left == kAlways ? 0U : 1U;
  ++rest->served.calls;
  return true;
}

PyObject* Uncaptured::call(PyObject* arguments) {
  const unsigned long me = PyThread_get_thread_ident();
  inside_.push_back(me);
  PyObject* function = Py_NewRef(function_);  // a collection may clear this object meanwhile
  PyObject* result = PyObject_CallOneArg(function, arguments);
  Py_DECREF(function);
  inside_.erase(std::find(inside_.begin(), inside_.end(), me));
  return result;
}

bool Uncaptured::occupied_by_others() const noexcept {
  const unsigned long me = PyThread_get_thread_ident();
  return std::any_of(inside_.begin(), inside_.end(),
                     [me](unsigned long thread) { return thread != me; });
}

int Uncaptured::traverse(visitproc visit, void* arg) const {
  Py_VISIT(function_);
  return 0;
}

}  // namespace pygraph::torch_bridge
