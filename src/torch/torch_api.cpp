#include "torch_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

namespace pygraph::torch_bridge {
namespace {

/// `import torch` has loaded the library; this only finds it again.
void* loaded(const char* soname) { return dlopen(soname, RTLD_LAZY | RTLD_NOLOAD); }

template <typename Function>
bool find(void* library, const char* symbol, Function& function) {
  function =
      library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, symbol));  // NOLINT
  return function != nullptr;
}

bool find_cuda(TorchApi& api) {
  void* cuda = loaded("libtorch_cuda.so");
  bool found = find(cuda, "aoti_torch_get_current_cuda_stream", api.current_stream);
  found &= find(cuda, "aoti_torch_create_cuda_guard", api.create_guard);
  found &= find(cuda, "aoti_torch_delete_cuda_guard", api.delete_guard);
  found &= find(cuda, "aoti_torch_cuda_caching_allocator_raw_alloc", api.raw_alloc);
  found &= find(cuda, "aoti_torch_cuda_caching_allocator_raw_delete", api.raw_delete);
  return found;
}

constexpr Py_ssize_t kFarthestOffset = 256;
constexpr std::ptrdiff_t kStorageSearch = 64;

/// The byte offset from `object`, in [first, last), of the word that equals `value`; 0 if none.
std::ptrdiff_t offset_of(std::uint64_t value, const void* object, std::ptrdiff_t first,
                         std::ptrdiff_t last) {
  for (std::ptrdiff_t offset = first; offset < last;
       offset += static_cast<std::ptrdiff_t>(sizeof(void*))) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const char*>(object) + offset, sizeof word);
    if (word == value) {
      return offset;
    }
  }
  return 0;
}

/// Behind the place in the metadata where the samples have these values; 0: there is none.
template <typename Value>
std::size_t end_of(const std::vector<MetadataSample>& samples, const std::vector<Value>& values) {
  for (std::size_t at = 0; at + sizeof(Value) <= kMostMetadata; at += alignof(Value)) {
    if (std::equal(values.begin(), values.end(), samples.begin(),
                   [at](const Value& value, const MetadataSample& sample) {
                     return std::memcmp(torch_api().metadata(sample.tensor) + at, &value,
                                        sizeof value) == 0;
                   })) {
      return at + sizeof(Value);
    }
  }
  return 0;
}

}  // namespace

TorchApi& torch_api() noexcept {
  static TorchApi api;
  return api;
}

void require(Status status, const char* what) {
  if (status != 0) {
    throw std::runtime_error(fmt::format("torch's {} failed", what));
  }
}

bool cuda_api_present() noexcept {
  const TorchApi& api = torch_api();
  return api.current_stream != nullptr && api.create_guard != nullptr &&
         api.delete_guard != nullptr && api.raw_alloc != nullptr && api.raw_delete != nullptr;
}

std::string calibrate(PyObject* tensor, std::uint64_t cdata, std::uint64_t storage_cdata,
                      std::uint64_t data_ptr, PyObject* tensor_type) {
  TorchApi& api = torch_api();
  void* cpu = loaded("libtorch_cpu.so");
  void* python = loaded("libtorch_python.so");
  void* c10 = loaded("libc10.so");
  if (cpu == nullptr || python == nullptr || c10 == nullptr) {
    return "libc10.so, libtorch_cpu.so and libtorch_python.so are not loaded; import torch first";
  }
  std::string missing;
  const auto need = [&](void* library, const char* symbol, auto& function) {
    if (!find(library, symbol, function)) {
      missing += (missing.empty() ? "" : ", ") + std::string(symbol);
    }
  };
  need(cpu, "aoti_torch_get_data_ptr", api.get_data_ptr);
  need(cpu, "aoti_torch_get_storage_offset", api.get_storage_offset);
  need(cpu, "aoti_torch_get_dim", api.get_dim);
  need(cpu, "aoti_torch_get_dtype", api.get_dtype);
  need(cpu, "aoti_torch_get_device_type", api.get_device_type);
  need(cpu, "aoti_torch_get_device_index", api.get_device_index);
  need(cpu, "aoti_torch_get_sizes", api.get_sizes);
  need(cpu, "aoti_torch_get_strides", api.get_strides);
  need(cpu, "aoti_torch_empty_strided", api.empty_strided);
  need(cpu, "aoti_torch__alloc_from_pool", api.alloc_from_pool);
  need(cpu, "aoti_torch__reinterpret_tensor", api.reinterpret_tensor);
  need(cpu, "aoti_torch_delete_tensor_object", api.delete_tensor);
  need(cpu, "aoti_torch_get_current_device_index", api.current_device);
  need(cpu, "aoti_torch_dtype_uint8", api.dtype_uint8);
  need(cpu, "aoti_torch_dtype_float32", api.dtype_float32);
  need(cpu, "aoti_torch_dtype_float64", api.dtype_float64);
  need(cpu, "aoti_torch_device_type_cuda", api.device_type_cuda);
  need(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE", api.wrap);
  need(c10, "_ZNK3c1010TensorImpl13requires_gradEv", api.impl_requires_grad);
  find(cpu, "_ZN5torch8autograd4impl15version_counterERKN2at6TensorE", api.version_counter);
  find(cpu, "_ZN5torch8autograd4impl19set_version_counterERKN2at6TensorERKN3c1015VariableVersionE",
       api.set_version_counter);
  find_cuda(api);
  if (!missing.empty()) {
    return fmt::format("this torch lacks {}", missing);
  }

  api.tensor_offset = offset_of(cdata, tensor, static_cast<std::ptrdiff_t>(sizeof(PyObject)),
                                std::min(kFarthestOffset, Py_TYPE(tensor)->tp_basicsize));
  if (api.tensor_offset == 0) {
    return "no word of a Python tensor equals its _cdata";
  }
  // Only a hint hangs on this one, so not to find it is no failure. A TensorImpl is larger than
  // what is looked at.
  api.storage_word =
      offset_of(storage_cdata, reinterpret_cast<const void*>(cdata), 8, kStorageSearch);  // NOLINT
  api.tensor_type = reinterpret_cast<PyTypeObject*>(tensor_type);                         // NOLINT
  if (reinterpret_cast<std::uint64_t>(api.data(tensor)) != data_ptr) {                    // NOLINT
    return fmt::format("the tensor handle found at byte {} does not give the tensor's data_ptr",
                       api.tensor_offset);
  }
  return {};
}

void calibrate_metadata(const std::vector<MetadataSample>& samples) {
  TorchApi& api = torch_api();
  if (api.storage_word == 0 || samples.empty()) {
    return;
  }
  std::vector<std::int64_t> dimensions;
  std::vector<std::uint16_t> dtypes;
  std::vector<std::array<std::int8_t, 2>> devices;
  std::vector<std::uint64_t> keys;
  for (const MetadataSample& sample : samples) {
    std::int32_t type = -1;
    std::int32_t index = -1;
    require(api.get_device_type(api.handle(sample.tensor), &type), "the device of a tensor");
    require(api.get_device_index(api.handle(sample.tensor), &index), "the device of a tensor");
    dimensions.push_back(api.dim(sample.tensor));
    dtypes.push_back(static_cast<std::uint16_t>(api.dtype(sample.tensor)));
    devices.push_back({static_cast<std::int8_t>(type), static_cast<std::int8_t>(index)});
    keys.push_back(sample.keys);
  }
  const auto [first, last] = std::minmax({end_of(samples, dimensions), end_of(samples, dtypes),
                                          end_of(samples, devices), end_of(samples, keys)});
  api.metadata_bytes = first == 0 ? 0 : last;
}

}  // namespace pygraph::torch_bridge
