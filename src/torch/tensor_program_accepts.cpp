// Which calls a graph can serve: looked at before anything is done.
#include <algorithm>
#include <cstring>
#include <optional>

#include "python_number.h"
#include "random_state.h"
#include "tensor_program.h"

namespace pygraph::torch_bridge {
namespace {

bool is_number(const TorchApi& api, PyObject* tensor, const ArgumentSpec& spec) noexcept {
  if (!api.on_cpu(tensor) || api.dim(tensor) != 0 || api.dtype(tensor) != spec.dtype) {
    return false;
  }
  const void* data = api.data(tensor);
  return data != nullptr && std::memcmp(data, &spec.value, spec.bytes) == 0;
}

/// Whether an argument is what a formula takes.
bool is_double(const TorchApi& api, PyObject* argument) noexcept {
  return api.is_tensor(argument) && api.on_cpu(argument) && api.dim(argument) == 0 &&
         api.dtype(argument) == kDouble && api.data(argument) != nullptr;
}

}  // namespace

bool TensorProgram::accepts(const Arguments& arguments) const noexcept {
  if (arguments.count != arguments_.size()) {
    return false;
  }
  const TorchApi& api = torch_api();
  if (!std::all_of(doubles_.begin(), doubles_.end(),
                   [&](std::uint32_t index) { return is_double(api, arguments[index]); })) {
    return false;
  }
  const PyTypeObject* tensor = nullptr;  // the type seen last, which most arguments share
  const auto is_tensor = [&](PyObject* argument) {
    if (Py_TYPE(argument) != tensor) {
      if (!api.is_tensor(argument)) {
        return false;
      }
      tensor = Py_TYPE(argument);
    }
    return true;
  };
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    PyObject* argument = arguments[i];
    if (plain_[i] != kNoRegion) [[likely]] {
      if (!is_tensor(argument)) {
        return false;
      }
      continue;
    }
    const ArgumentSpec& spec = arguments_[i];
    if (spec.staged && PyLong_CheckExact(argument)) {
      int overflow = 0;
      PyLong_AsLongLongAndOverflow(argument, &overflow);
      if (overflow != 0) {
        return false;
      }
    } else if (spec.is_tensor()) {
      if (!is_tensor(argument) ||
          (spec.stays() && address_of(api.data(argument)) != spec.address) ||
          (spec.elsewhere && api.on_cpu(argument)) ||
          (spec.storage_offset >= 0 && api.storage_offset(argument) != spec.storage_offset)) {
        return false;
      }
    } else if (spec.kind == ArgumentSpec::Kind::kInteger) {
      int overflow = 0;
      if (!PyLong_Check(argument) ||
          PyLong_AsLongLongAndOverflow(argument, &overflow) != spec.value || overflow != 0) {
        return false;
      }
    } else if (spec.kind == ArgumentSpec::Kind::kNumber) {
      if (!is_tensor(argument) || !is_number(api, argument, spec)) {
        return false;
      }
    } else if (spec.kind == ArgumentSpec::Kind::kObject) {
      if (reinterpret_cast<std::intptr_t>(argument) != spec.value) {
        return false;
      }
    } else if (spec.kind == ArgumentSpec::Kind::kHostNumber) {
      const std::optional<NumberValue> number = python_number(argument);
      if (!number.has_value() || std::holds_alternative<double>(*number) != spec.floating) {
        return false;
      }
    }
  }
  return random_ == nullptr || random_->accepts(arguments);
}

bool TensorProgram::moved(const Arguments& arguments) const noexcept {
  const TorchApi& api = torch_api();
  for (std::size_t i = 0; i < arguments_.size() && i < arguments.count; ++i) {
    if (arguments_[i].stays() && api.is_tensor(arguments[i]) &&
        address_of(api.data(arguments[i])) != arguments_[i].address) {
      return true;
    }
  }
  return false;
}

bool TensorProgram::offsets_differ(const Arguments& arguments) const noexcept {
  const TorchApi& api = torch_api();
  for (std::size_t i = 0; i < arguments_.size() && i < arguments.count; ++i) {
    if (arguments_[i].storage_offset >= 0 && api.is_tensor(arguments[i]) &&
        api.storage_offset(arguments[i]) != arguments_[i].storage_offset) {
      return true;
    }
  }
  return false;
}

bool TensorProgram::less_aligned(const Arguments& arguments) const noexcept {
  const TorchApi& api = torch_api();
  for (std::size_t i = 0; i < arguments_.size() && i < arguments.count; ++i) {
    if (arguments_[i].kind == ArgumentSpec::Kind::kPatched && api.is_tensor(arguments[i]) &&
        arguments_[i].less_aligned(address_of(api.data(arguments[i])))) {
      return true;
    }
  }
  return false;
}

void* TensorProgram::current_stream() const noexcept {
  void* stream = nullptr;
  if (device_ != Device::kTwin) {
    torch_api().current_stream(device_index_, &stream);
  }
  return stream;
}

bool TensorProgram::being_captured() const noexcept {
  const auto captured = [&](std::int32_t device) {
    void* stream = nullptr;
    if (torch_api().current_stream(device, &stream) != 0) {
      return false;
    }
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    driver_->api.cuStreamIsCapturing(static_cast<CUstream>(stream), &status);
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  };
  return device_ == Device::kCuda &&
         (captured(device_index_) ||
          std::any_of(peers_.begin(), peers_.end(),
                      [&](const Peer& peer) { return captured(peer.index); }));
}

}  // namespace pygraph::torch_bridge
