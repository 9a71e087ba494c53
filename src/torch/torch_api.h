// torch, reached without linking libtorch.
//
// The engine takes torch's stable C shim (torch/csrc/inductor/aoti_torch/c/shim.h) and one function
// of libtorch_python out of the libraries that `import torch` has loaded. A Python tensor holds its
// TensorImpl pointer at a fixed offset of the object; the address of that word is a valid
// AtenTensorHandle (it is where the object's at::Tensor member stands). The offset is found by
// calibration against `tensor._cdata`, not assumed.
#pragma once

#include <Python.h>
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pygraph::torch_bridge {

using TensorHandle = void*;   ///< AtenTensorHandle: an at::Tensor*
using Status = std::int32_t;  ///< AOTITorchError: 0 is success

inline constexpr std::int32_t kCpuDevice = 0;  ///< c10::DeviceType::CPU
inline constexpr std::int32_t kDouble = 7;     ///< c10::ScalarType::Double

/// What TorchApi::metadata_bytes is at most: an implementation of a tensor is not smaller.
inline constexpr std::size_t kMostMetadata = 168;

/// How many tensors ahead storages are prefetched; implementations twice that.
inline constexpr std::size_t kPrefetchDistance = 8;

/// Functions taken from torch's libraries. Filled once at import; null pointers mean absent.
struct TorchApi {
  // libtorch_cpu: the stable C shim
  Status (*get_data_ptr)(TensorHandle, void**) = nullptr;
  Status (*get_storage_offset)(TensorHandle, std::int64_t*) = nullptr;
  Status (*get_dim)(TensorHandle, std::int64_t*) = nullptr;
  Status (*get_dtype)(TensorHandle, std::int32_t*) = nullptr;
  Status (*get_device_type)(TensorHandle, std::int32_t*) = nullptr;
  Status (*get_device_index)(TensorHandle, std::int32_t*) = nullptr;
  Status (*get_sizes)(TensorHandle, std::int64_t**) = nullptr;
  Status (*get_strides)(TensorHandle, std::int64_t**) = nullptr;
  Status (*empty_strided)(std::int64_t, const std::int64_t*, const std::int64_t*, std::int32_t,
                          std::int32_t, std::int32_t, TensorHandle*) = nullptr;
  Status (*alloc_from_pool)(TensorHandle, std::int64_t, std::int32_t, std::int64_t,
                            const std::int64_t*, const std::int64_t*, TensorHandle*) = nullptr;
  Status (*reinterpret_tensor)(TensorHandle, std::int64_t, const std::int64_t*, const std::int64_t*,
                               std::int64_t, TensorHandle*) = nullptr;
  Status (*delete_tensor)(TensorHandle) = nullptr;
  Status (*current_device)(std::int32_t*) = nullptr;
  std::int32_t (*dtype_uint8)() = nullptr;
  std::int32_t (*dtype_float32)() = nullptr;
  std::int32_t (*dtype_float64)() = nullptr;
  std::int32_t (*device_type_cuda)() = nullptr;
  // libtorch_cpu: torch::autograd::impl, by references. How often a tensor was written, a count
  // that views share. Absent: views are made by Python.
  const void* (*version_counter)(TensorHandle) = nullptr;
  void (*set_version_counter)(TensorHandle, const void*) = nullptr;
  // libtorch_cuda: absent from CPU builds
  Status (*current_stream)(std::int32_t, void**) = nullptr;
  Status (*create_guard)(std::int32_t, void**) = nullptr;
  Status (*delete_guard)(void*) = nullptr;
  Status (*raw_alloc)(std::uint64_t, void**) = nullptr;
  Status (*raw_delete)(void*) = nullptr;
  // libtorch_python: THPVariable_Wrap(const at::TensorBase&)
  PyObject* (*wrap)(TensorHandle) = nullptr;
  // libc10: c10::TensorImpl::requires_grad() const. Python's attribute takes ten times as long.
  bool (*impl_requires_grad)(const void* implementation) = nullptr;

  PyTypeObject* tensor_type = nullptr;  ///< torch._C.TensorBase, borrowed for the process's life
  std::ptrdiff_t tensor_offset = 0;     ///< of the TensorImpl pointer in a Python tensor
  std::ptrdiff_t storage_word = 0;      ///< of the StorageImpl pointer in a TensorImpl; 0: unknown
  std::size_t metadata_bytes = 0;       ///< of metadata(); 0: unknown

  /// The handle of a Python tensor, borrowed from it.
  [[nodiscard]] TensorHandle handle(PyObject* tensor) const noexcept {
    return reinterpret_cast<char*>(tensor) + tensor_offset;  // NOLINT
  }
  [[nodiscard]] bool can_share_versions() const noexcept {
    return version_counter != nullptr && set_version_counter != nullptr;
  }
  [[nodiscard]] bool is_tensor(PyObject* object) const noexcept {
    return PyType_IsSubtype(Py_TYPE(object), tensor_type) != 0;
  }
  /// Fetch hints for data(): first the tensor's implementation, some tensors later its storage.
  /// With a thousand parameters these are the cache misses that a call is made of.
  void prefetch_tensor(PyObject* tensor) const noexcept {
    const char* implementation = *reinterpret_cast<char**>(handle(tensor));  // NOLINT
    __builtin_prefetch(implementation);
    __builtin_prefetch(implementation + 64);
  }
  void prefetch_storage(PyObject* tensor) const noexcept {
    if (storage_word != 0) {
      __builtin_prefetch(*reinterpret_cast<char* const*>(metadata(tensor)));  // NOLINT
    }
  }
  /// The part of a TensorImpl that begins with the pointer to its storage and ends behind the last
  /// one of: number of dimensions, dtype, device, dispatch keys. Where sizes and strides are within
  /// as well, these bytes are all that torch knows of them: if they are the same, so is what torch
  /// says. What is behind pointers is not: memory, requires_grad.
  [[nodiscard]] const char* metadata(PyObject* tensor) const noexcept {
    return *reinterpret_cast<char**>(handle(tensor)) + storage_word;  // NOLINT
  }
  [[nodiscard]] bool requires_grad(PyObject* tensor) const noexcept {
    return impl_requires_grad(*static_cast<void**>(handle(tensor)));
  }
  /// Whether a tensor is in the host's memory.
  [[nodiscard]] bool on_cpu(PyObject* tensor) const noexcept {
    std::int32_t type = -1;
    get_device_type(handle(tensor), &type);
    return type == kCpuDevice;
  }
  [[nodiscard]] std::int64_t dim(PyObject* tensor) const noexcept {
    std::int64_t dimensions = -1;
    get_dim(handle(tensor), &dimensions);
    return dimensions;
  }
  [[nodiscard]] std::int32_t dtype(PyObject* tensor) const noexcept {
    std::int32_t dtype = -1;
    get_dtype(handle(tensor), &dtype);
    return dtype;
  }
  /// Elements from the start of a tensor's storage to its first one.
  [[nodiscard]] std::int64_t storage_offset(PyObject* tensor) const noexcept {
    std::int64_t offset = -1;
    get_storage_offset(handle(tensor), &offset);
    return offset;
  }
  [[nodiscard]] void* data(PyObject* tensor) const noexcept {
    void* address = nullptr;
    get_data_ptr(handle(tensor), &address);
    return address;
  }
};

/// The table; usable after calibrate() returned "".
TorchApi& torch_api() noexcept;

/// Looks the functions up and finds the offset, with `tensor` (any CPU tensor with storage) as the
/// sample, `cdata` and `storage_cdata` as its and its storage's `_cdata`, and `tensor_type` as
/// torch._C.TensorBase. Returns "" on success, else what is missing, in
/// a sentence. Needs the GIL.
std::string calibrate(PyObject* tensor, std::uint64_t cdata, std::uint64_t storage_cdata,
                      std::uint64_t data_ptr, PyObject* tensor_type);

/// A tensor, and its dispatch keys as torch._C._dispatch_keys() tells them.
struct MetadataSample {
  PyObject* tensor;
  std::uint64_t keys;
};

/// Finds TorchApi::metadata_bytes, which stays 0 if one of the facts is not found. `samples` have
/// sizes, dtypes, devices and keys of all kinds. Behind calibrate().
void calibrate_metadata(const std::vector<MetadataSample>& samples);

/// Whether the functions of libtorch_cuda were found as well.
bool cuda_api_present() noexcept;

/// An owned AtenTensorHandle.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  explicit OwnedTensor(TensorHandle handle) noexcept : handle_(handle) {}
  ~OwnedTensor() { reset(); }
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;
  OwnedTensor(OwnedTensor&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  OwnedTensor& operator=(OwnedTensor&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = other.handle_;
      other.handle_ = nullptr;
    }
    return *this;
  }
  [[nodiscard]] TensorHandle get() const noexcept { return handle_; }

 private:
  void reset() noexcept {
    if (handle_ != nullptr) {
      torch_api().delete_tensor(handle_);
    }
  }
  TensorHandle handle_ = nullptr;
};

/// Throws std::runtime_error naming `what` unless `status` is success.
void require(Status status, const char* what);

/// A pointer as the driver's kind of address.
[[nodiscard]] inline CUdeviceptr address_of(void* pointer) noexcept {
  return reinterpret_cast<CUdeviceptr>(pointer);  // NOLINT
}

/// The address of an owned tensor's first element.
[[nodiscard]] inline CUdeviceptr data_of(const OwnedTensor& tensor) noexcept {
  void* address = nullptr;
  torch_api().get_data_ptr(tensor.get(), &address);
  return address_of(address);
}

}  // namespace pygraph::torch_bridge
