// Poses as libcuda: a driver for CUDA 12.4 (the least that PyGraph takes) and next to nothing else.
#include <cuda.h>

extern "C" CUresult cuDriverGetVersion(int* version) {
  *version = 12040;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuGetErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR_NO_DEVICE";
  return CUDA_SUCCESS;
}
