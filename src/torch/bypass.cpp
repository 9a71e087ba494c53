#include "bypass.h"

#include <algorithm>
#include <utility>

namespace pygraph::torch_bridge {

Bypass::Bypass(PyObject* function, std::vector<std::uint32_t> integers,
               std::vector<std::uint32_t> aligned, std::uint64_t alignment_mask,
               std::uint64_t first_calls)
    : function_(Py_NewRef(function)),
      sizes_(std::move(integers)),
      aligned_(std::move(aligned)),
      alignment_mask_(alignment_mask),
      first_calls_(first_calls) {}

/// Known from now on; null for arguments without a signature.
Bypass::Known* Bypass::find(const Arguments& arguments) {
  const Sizes::Key* key = sizes_.read(arguments);
  if (key == nullptr) {
    return nullptr;
  }
  if (known_.size() >= kMost && !known_.contains(*key)) {
    known_.clear();
  }
  return &known_.try_emplace(*key, Known{first_calls_, {0, 0}, 0, false}).first->second;
}

void Bypass::open(const Arguments& arguments, std::uint64_t calls) {
  if (Known* known = find(arguments); known != nullptr) {
    known->left = calls;
    known->closed = false;
  }
}

void Bypass::close(const Arguments& arguments) {
  if (Known* known = find(arguments); known != nullptr) {
    known->left = 0;
    known->closed = true;
  }
}

Bypass::Taken Bypass::taken(const Arguments& arguments) {
  const Sizes::Key* key = sizes_.read(arguments);
  const auto found = key == nullptr ? known_.end() : known_.find(*key);
  if (found == known_.end()) {
    return {0, 0};
  }
  Taken& taken = found->second.taken;
  return {std::exchange(taken.calls, 0), taken.before};
}

bool Bypass::all_aligned(const Arguments& arguments) const noexcept {
  const TorchApi& api = torch_api();
  return std::all_of(aligned_.begin(), aligned_.end(), [&](std::uint32_t index) {
    PyObject* argument = index < arguments.count ? arguments[index] : Py_None;
    return !api.is_tensor(argument) || (address_of(api.data(argument)) & alignment_mask_) == 0 ||
           api.on_cpu(argument);
  });
}

bool Bypass::takes(const Arguments& arguments, std::uint64_t number) {
  if (function_ == nullptr || !all_aligned(arguments)) {
    return false;
  }
  Known* known = find(arguments);
  if (known == nullptr) {
    return false;
  }
  const std::uint64_t before = std::exchange(known->last, number);
  known->taken.before = before;
  const bool back_soon = before != 0 && number - before <= soon_;
  if (known->left == 0 && (known->closed || back_soon || Clock::now() >= open_until_)) {
    return false;
  }
  known->left -= known->left == 0 || known->left == kAlways ? 0U : 1U;
  ++known->taken.calls;
  return true;
}

PyObject* Bypass::call(PyObject* arguments) {
  const unsigned long me = PyThread_get_thread_ident();
  inside_.push_back(me);
  PyObject* function = Py_NewRef(function_);  // a collection may clear this object meanwhile
  PyObject* result = PyObject_CallOneArg(function, arguments);
  Py_DECREF(function);
  inside_.erase(std::find(inside_.begin(), inside_.end(), me));
  return result;
}

bool Bypass::occupied_by_others() const noexcept {
  const unsigned long me = PyThread_get_thread_ident();
  return std::any_of(inside_.begin(), inside_.end(),
                     [me](unsigned long thread) { return thread != me; });
}

int Bypass::traverse(visitproc visit, void* arg) const {
  Py_VISIT(function_);
  return 0;
}

}  // namespace pygraph::torch_bridge
