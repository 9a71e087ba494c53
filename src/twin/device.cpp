#include <optional>

#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

constexpr int kDriverVersion = 13000;
constexpr int kDevices = 2;

char& context_at(CUdevice device) {
  static char contexts[kDevices] = {};
  return contexts[device];
}

CUdevice& current_device() {
  thread_local CUdevice current = 0;
  return current;
}

std::optional<CUdevice> device_of(CUcontext context) {
  for (CUdevice device = 0; device < kDevices; ++device) {
    if (context == context_of(device)) {
      return device;
    }
  }
  return std::nullopt;
}

}  // namespace

bool is_device(CUdevice device) { return device >= 0 && device < kDevices; }

CUcontext context_of(CUdevice device) { return reinterpret_cast<CUcontext>(&context_at(device)); }

bool is_context(CUcontext context) { return device_of(context).has_value(); }

namespace entry {

CUresult cuInit(unsigned int flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  if (count == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *count = kDevices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!is_device(ordinal)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (value == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!is_device(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = 0;  // no architecture: nothing compiled for a GPU runs here
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!is_device(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const Lock lock;
  ++state().context_users;
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  if (!is_device(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const Lock lock;
  if (state().context_users == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  --state().context_users;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *context = context_of(current_device());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  const std::optional<CUdevice> device = context == nullptr ? 0 : device_of(context);
  if (!device.has_value()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  current_device() = *device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (device == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  {
    const Lock lock;
    if (const CUresult code = refuse_while_capturing(); code != CUDA_SUCCESS) {
      return code;
    }
  }
  return drain();
}

}  // namespace entry
}  // namespace pygraph::twin
