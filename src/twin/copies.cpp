// Copies that are put on a stream, of all kinds.
#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

CUresult put_copy(const CUDA_MEMCPY3D& copy, CUstream stream) {
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) {
    return CUDA_SUCCESS;
  }
  const Lock lock;
  const CUresult code = check_copy(copy);
  return code == CUDA_SUCCESS ? put(stream, copy) : code;
}

CUDA_MEMCPY3D flat(std::size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  copy.Depth = 1;
  return copy;
}

}  // namespace

namespace entry {

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  CUDA_MEMCPY3D copy = flat(bytes);
  copy.srcDevice = from;
  copy.dstDevice = to;
  return put_copy(copy, stream);
}

// Outside a capture the driver reads pageable memory before it returns; the twin's queue would read
// it later, so it is not lazy here.
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  CUDA_MEMCPY3D copy = flat(bytes);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.dstDevice = to;
  if (const CUresult code = put_copy(copy, stream); code != CUDA_SUCCESS) {
    return code;
  }
  {
    const Lock lock;
    if (capturing(stream) != nullptr) {
      return CUDA_SUCCESS;
    }
  }
  return drain();
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  CUDA_MEMCPY3D copy = flat(bytes);
  copy.srcDevice = from;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = to;
  return put_copy(copy, stream);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* params, CUstream stream) {
  if (params == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUDA_MEMCPY3D copy{};
  copy.srcXInBytes = params->srcXInBytes;
  copy.srcY = params->srcY;
  copy.srcMemoryType = params->srcMemoryType;
  copy.srcHost = params->srcHost;
  copy.srcDevice = params->srcDevice;
  copy.srcPitch = params->srcPitch;
  copy.dstXInBytes = params->dstXInBytes;
  copy.dstY = params->dstY;
  copy.dstMemoryType = params->dstMemoryType;
  copy.dstHost = params->dstHost;
  copy.dstDevice = params->dstDevice;
  copy.dstPitch = params->dstPitch;
  copy.WidthInBytes = params->WidthInBytes;
  copy.Height = params->Height;
  copy.Depth = 1;
  return put_copy(copy, stream);
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D* params, CUstream stream) {
  return params == nullptr ? CUDA_ERROR_INVALID_VALUE : put_copy(*params, stream);
}

}  // namespace entry
}  // namespace pygraph::twin
