#include "twin/kernels.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

constexpr std::uint32_t kMaximumThreads = 1024;

const Kernel* find_kernel(CUfunction function) {
  auto* kernel = find(state().kernels, function);
  return kernel == nullptr ? nullptr : kernel->get();
}

/// The twin's functions and kernels (CUkernel) are the same things under two types.
CUfunction function_of(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

/// Bytes between the parameters, and those that the registration names inside them.
std::vector<ParameterSlot> all_padding(const std::vector<ParameterSlot>& parameters,
                                       std::vector<ParameterSlot> inside) {
  std::uint32_t end = 0;
  for (const ParameterSlot& parameter : parameters) {
    if (parameter.offset < end || parameter.size == 0) {
      throw std::invalid_argument("kernel parameters must ascend, not overlap and not be empty");
    }
    if (parameter.offset > end) {
      inside.push_back({end, parameter.offset - end});
    }
    end = parameter.offset + parameter.size;
  }
  return inside;
}

/// Finds pointer and size in `extra`, in either order; null unless both are there.
const void* packed_block(void** extra, std::size_t& bytes) {
  const void* pointer = nullptr;
  bool sized = false;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      pointer = extra[1];
    } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = *static_cast<const std::size_t*>(extra[1]);
      sized = true;
    } else {
      return nullptr;
    }
  }
  return sized ? pointer : nullptr;
}

CUresult give_parameter(const Kernel* kernel, std::size_t index, std::size_t* offset,
                        std::size_t* size) {
  if (kernel == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (offset == nullptr || index >= kernel->parameters.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *offset = kernel->parameters[index].offset;
  if (size != nullptr) {
    *size = kernel->parameters[index].size;
  }
  return CUDA_SUCCESS;
}

CUresult give_name(const Kernel* kernel, const char** name) {
  if (name == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (kernel == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *name = kernel->name.c_str();
  return CUDA_SUCCESS;
}

}  // namespace

CUfunction register_kernel(const std::string& name, std::vector<ParameterSlot> parameters,
                           HostKernel run) {
  return register_kernel_with_padding(name, std::move(parameters), {}, run);
}

CUfunction register_kernel_with_padding(const std::string& name,
                                        std::vector<ParameterSlot> parameters,
                                        std::vector<ParameterSlot> padding, HostKernel run) {
  auto kernel = std::make_unique<Kernel>();
  kernel->name = name;
  kernel->padding = all_padding(parameters, std::move(padding));
  kernel->block_bytes =
      parameters.empty() ? 0 : std::size_t{parameters.back().offset} + parameters.back().size;
  kernel->parameters = std::move(parameters);
  kernel->run = run;
  const Lock lock;
  const auto handle = state().make_handle<CUfunction>();
  state().kernels.emplace(handle, std::move(kernel));
  return handle;
}

CUkernel kernel_handle(CUfunction function) { return reinterpret_cast<CUkernel>(function); }

CUresult make_kernel_work(const CUDA_KERNEL_NODE_PARAMS& launch, KernelWork& work) {
  work.function = launch.func;
  work.kernel_handle = launch.func == nullptr ? launch.kern : nullptr;
  work.kernel = find_kernel(launch.func != nullptr ? launch.func : function_of(launch.kern));
  if (work.kernel == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const std::uint32_t grid[3] = {launch.gridDimX, launch.gridDimY, launch.gridDimZ};
  const std::uint32_t threads[3] = {launch.blockDimX, launch.blockDimY, launch.blockDimZ};
  std::uint64_t block_threads = 1;
  for (int i = 0; i < 3; ++i) {
    block_threads *= threads[i];
    if (grid[i] == 0 || threads[i] == 0 || block_threads > kMaximumThreads) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  std::copy(std::begin(grid), std::end(grid), work.grid);
  std::copy(std::begin(threads), std::end(threads), work.threads);
  work.shared_bytes = launch.sharedMemBytes;
  if (launch.kernelParams != nullptr && launch.extra != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }

  if (launch.extra != nullptr) {
    std::size_t bytes = 0;
    const void* block = packed_block(launch.extra, bytes);
    if (block == nullptr || bytes < work.kernel->block_bytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    work.form = ParameterForm::kPacked;
    work.block.resize(bytes);
    std::memcpy(work.block.data(), block, bytes);
    return CUDA_SUCCESS;
  }
  work.form = ParameterForm::kArray;
  work.block.assign(work.kernel->block_bytes, std::byte{0});
  if (launch.kernelParams == nullptr) {
    return work.kernel->parameters.empty() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  for (std::size_t i = 0; i < work.kernel->parameters.size(); ++i) {
    if (launch.kernelParams[i] == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::memcpy(work.block.data() + work.kernel->parameters[i].offset, launch.kernelParams[i],
                work.kernel->parameters[i].size);
  }
  return CUDA_SUCCESS;
}

namespace entry {

// The twin runs registered host functions; there is no code to load.
CUresult cuModuleLoadData(CUmodule*, const void*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuModuleUnload(CUmodule) { return CUDA_ERROR_INVALID_HANDLE; }
CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char*) {
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetParamInfo(CUfunction function, std::size_t index, std::size_t* offset,
                            std::size_t* size) {
  const Lock lock;
  return give_parameter(find_kernel(function), index, offset, size);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, std::size_t index, std::size_t* offset,
                              std::size_t* size) {
  const Lock lock;
  return give_parameter(find_kernel(function_of(kernel)), index, offset, size);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute, int) {
  const Lock lock;
  return find_kernel(function) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel kernel, CUdevice) {
  const Lock lock;
  return find_kernel(function_of(kernel)) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

/// No kernel fills the twin: they run one after the other.
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int,
                                                     std::size_t) {
  const Lock lock;
  if (find_kernel(function) == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *blocks = std::numeric_limits<int>::max();
  return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  const Lock lock;
  return give_name(find_kernel(function), name);
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  const Lock lock;
  return give_name(find_kernel(function_of(kernel)), name);
}

}  // namespace entry
}  // namespace pygraph::twin
