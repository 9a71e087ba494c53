// Every entry point of the list, failing as on a machine without a device. Weak, so that those of
// version.cpp win; named by assembler label, since cuda.h has declared the names with other types.
#include <cuda.h>

#define FAKE_STRING(name) #name
#define FAKE_EXPAND(name) FAKE_STRING(name)
#define PYGRAPH_REQUIRED(name)                                                    \
  extern "C" CUresult fake_##name() asm(FAKE_EXPAND(name)) __attribute__((weak)); \
  extern "C" CUresult fake_##name() { return CUDA_ERROR_NO_DEVICE; }
#define PYGRAPH_OPTIONAL(name) PYGRAPH_REQUIRED(name)
#include "pygraph/driver_symbols.def"
