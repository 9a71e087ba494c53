#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

constexpr int kDriverVersion = 13000;
constexpr CUdevice kDevice = 0;

}  // namespace

CUcontext the_context() {
  static char context = 0;
  return reinterpret_cast<CUcontext>(&context);
}

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
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (ordinal != 0) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *device = kDevice;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (value == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (device != kDevice) {
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
  if (device != kDevice) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const Lock lock;
  ++state().context_users;
  *context = the_context();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  if (device != kDevice) {
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
  *context = the_context();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return context == nullptr || context == the_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (device == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *device = kDevice;
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
