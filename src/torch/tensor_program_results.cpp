// The outputs of a call: fresh memory in front of the launch, Python objects behind it.
#include <fmt/format.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "call_scope.h"
#include "python_ref.h"
#include "staging.h"
#include "tensor_program.h"

namespace pygraph::torch_bridge {
namespace {

PyObject* make_number(const ResultSpec& result) {
  const TorchApi& api = torch_api();
  TensorHandle number = nullptr;
  require(api.empty_strided(0, nullptr, nullptr, result.dtype, kCpuDevice, 0, &number),
          "empty_strided of a number on the host");
  const OwnedTensor owner(number);
  void* data = nullptr;
  api.get_data_ptr(number, &data);
  std::memcpy(data, &result.value, result.bytes);
  return api.wrap(number);
}

/// A view of `viewed`, an argument or an earlier result.
PyObject* make_view(const ResultSpec& result, PyObject* viewed) {
  if (!result.saved) {
    return PyObject_CallOneArg(result.object, viewed);
  }
  const TorchApi& api = torch_api();
  TensorHandle view = nullptr;
  require(api.reinterpret_tensor(api.handle(viewed), static_cast<std::int64_t>(result.sizes.size()),
                                 result.sizes.data(), result.strides.data(), result.value, &view),
          "_reinterpret_tensor");
  const OwnedTensor owner(view);
  api.set_version_counter(view, api.version_counter(api.handle(viewed)));
  return api.wrap(view);
}

}  // namespace

void TensorProgram::note_saved(const std::vector<std::uint32_t>& results) {
  for (const std::uint32_t index : results) {
    if (index >= results_.size()) {
      throw std::invalid_argument(
          fmt::format("result {} is saved; there are {}", index, results_.size()));
    }
    results_[index].saved = results_[index].strided && torch_api().can_share_versions();
  }
}

TensorHandle TensorProgram::empty(std::int64_t rank, const std::int64_t* sizes,
                                  const std::int64_t* strides, std::int32_t dtype,
                                  std::int32_t device) const {
  const TorchApi& api = torch_api();
  const std::int32_t type = device_ == Device::kCuda ? api.device_type_cuda() : kCpuDevice;
  TensorHandle handle = nullptr;
  const std::int32_t index = device == kOwnDevice ? device_index_ : device;
  if (api.empty_strided(rank, sizes, strides, dtype, type, index, &handle) != 0) {
    throw MemoryShort("no memory for an output or a copy of an argument");
  }
  return handle;
}

OwnedTensor TensorProgram::bytes(std::uint64_t count, std::int32_t device) const {
  const auto size = static_cast<std::int64_t>(count);
  const std::int64_t stride = 1;
  return OwnedTensor(empty(1, &size, &stride, torch_api().dtype_uint8(), device));
}

OwnedTensor TensorProgram::allocate_block(std::size_t index) const {
  const std::int32_t whole = whole_of_block_[index];
  if (whole >= 0) {
    const ResultSpec& result = results_[static_cast<std::size_t>(whole)];
    return OwnedTensor(empty(static_cast<std::int64_t>(result.sizes.size()), result.sizes.data(),
                             result.strides.data(), result.dtype, blocks_[index].device));
  }
  return bytes(blocks_[index].bytes, blocks_[index].device);
}

PyObject* TensorProgram::make_result(const Arguments& arguments,
                                     const std::vector<OwnedTensor>& blocks, std::size_t index,
                                     PyObject* earlier) const {
  const ResultSpec& result = results_[index];
  const TorchApi& api = torch_api();
  switch (result.kind) {
    case ResultSpec::Kind::kWhole:
      return api.wrap(blocks[result.index].get());
    case ResultSpec::Kind::kView: {
      TensorHandle view = nullptr;
      require(api.alloc_from_pool(blocks[result.index].get(), result.byte_offset, result.dtype,
                                  static_cast<std::int64_t>(result.sizes.size()),
                                  result.sizes.data(), result.strides.data(), &view),
              "_alloc_from_pool");
      const OwnedTensor owner(view);
      return api.wrap(view);
    }
    case ResultSpec::Kind::kArgument:
      return Py_NewRef(arguments[result.index]);
    case ResultSpec::Kind::kAlias:
      return make_view(result, arguments[result.index]);
    case ResultSpec::Kind::kDerived:
      return make_view(result, PyTuple_GET_ITEM(earlier, static_cast<Py_ssize_t>(result.index)));
    case ResultSpec::Kind::kSame:
      return Py_NewRef(PyTuple_GET_ITEM(earlier, static_cast<Py_ssize_t>(result.index)));
    case ResultSpec::Kind::kNumber:
      return make_number(result);
    case ResultSpec::Kind::kConstant:
      break;
  }
  return Py_NewRef(result.object);
}

PyObject* TensorProgram::make_results(const Arguments& arguments,
                                      const std::vector<OwnedTensor>& blocks) const {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(results_.size()));
  for (std::size_t i = 0; tuple != nullptr && i < results_.size(); ++i) {
    PyObject* result = make_result(arguments, blocks, i, tuple);
    if (result == nullptr) {
      Py_CLEAR(tuple);
      break;
    }
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), result);
  }
  if (tuple != nullptr && !fetched_.empty()) {
    PythonRef owner = PythonRef::stolen(tuple);
    fetch(tuple);
    return owner.release();
  }
  return tuple;
}

/// Replaces results that the caller gets on the host by copies there.
void TensorProgram::fetch(PyObject* results) const {
  const TorchApi& api = torch_api();
  const CallScope scope = this->scope();
  std::vector<OwnedTensor> copies;
  std::vector<Staging::Piece> pieces;
  copies.reserve(fetched_.size());
  pieces.reserve(fetched_.size());
  for (const FetchedResult& result : fetched_) {
    TensorHandle copy = nullptr;
    require(api.empty_strided(static_cast<std::int64_t>(result.sizes.size()), result.sizes.data(),
                              result.strides.data(), result.dtype, kCpuDevice, 0, &copy),
            "empty_strided of a result on the host");
    copies.emplace_back(copy);
    if (result.bytes != 0) {
      PyObject* on_device = PyTuple_GET_ITEM(results, static_cast<Py_ssize_t>(result.index));
      void* host = nullptr;
      api.get_data_ptr(copy, &host);
      pieces.push_back({host, address_of(api.data(on_device)), result.bytes});
      statistics_.bytes_fetched += result.bytes;
    }
  }
  staging_of(*driver_, device_ == Device::kTwin, device_index_).fetch(pieces, scope.stream());
  for (std::size_t n = 0; n < fetched_.size(); ++n) {
    PyObject* copy = api.wrap(copies[n].get());
    if (copy == nullptr) {
      throw std::runtime_error("no Python object for a result on the host");
    }
    const auto index = static_cast<Py_ssize_t>(fetched_[n].index);
    Py_DECREF(std::exchange(PySequence_Fast_ITEMS(results)[index], copy));
  }
}

}  // namespace pygraph::torch_bridge
