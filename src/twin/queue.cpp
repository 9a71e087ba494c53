// The queue: launches wait here, in the order they were made, until something synchronises.
//
// Work runs without the state's lock, so a kernel may call the driver. A second thread that
// synchronises meanwhile waits for the first to finish (`running`), so order is kept; a kernel that
// synchronises finds its own thread running and returns at once.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>

#include "twin/state.h"
#include "twin/waiting.h"

namespace pygraph::twin {
namespace {

std::mutex& running() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

std::atomic<Waiter>& waiter() {
  static std::atomic<Waiter> instance{nullptr};
  return instance;
}

/// Waits for the thread that runs the queue.
std::unique_lock<std::mutex> take_turn() {
  std::unique_lock turn(running(), std::try_to_lock);
  if (!turn.owns_lock()) {
    const auto wait = [](void* lock) { static_cast<std::unique_lock<std::mutex>*>(lock)->lock(); };
    if (const Waiter around = waiter().load(); around != nullptr) {
      around(wait, &turn);
    } else {
      wait(&turn);
    }
  }
  return turn;
}

void run_copy(const CUDA_MEMCPY3D& copy) {
  const auto base = [](CUmemorytype type, const void* host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? static_cast<const char*>(host)
                                      : static_cast<const char*>(host_pointer(device));
  };
  const char* from = base(copy.srcMemoryType, copy.srcHost, copy.srcDevice);
  char* to = copy.dstMemoryType == CU_MEMORYTYPE_HOST
                 ? static_cast<char*>(copy.dstHost)
                 : static_cast<char*>(host_pointer(copy.dstDevice));
  for (std::size_t z = 0; z < copy.Depth; ++z) {
    for (std::size_t y = 0; y < copy.Height; ++y) {
      const std::size_t source =
          ((copy.srcZ + z) * copy.srcHeight + copy.srcY + y) * copy.srcPitch + copy.srcXInBytes;
      const std::size_t target =
          ((copy.dstZ + z) * copy.dstHeight + copy.dstY + y) * copy.dstPitch + copy.dstXInBytes;
      std::memmove(to + target, from + source, copy.WidthInBytes);
    }
  }
}

void run_fill(const CUDA_MEMSET_NODE_PARAMS& fill) {
  for (std::size_t row = 0; row < fill.height; ++row) {
    char* to = static_cast<char*>(host_pointer(fill.dst)) + row * fill.pitch;
    for (std::size_t i = 0; i < fill.width; ++i) {
      std::memcpy(to + i * fill.elementSize, &fill.value, fill.elementSize);
    }
  }
}

struct Runner {
  CUresult operator()(std::monostate) const { return CUDA_SUCCESS; }

  CUresult operator()(const KernelWork& work) const {
    Launch launch{};
    launch.block = work.block.data();
    std::copy(std::begin(work.grid), std::end(work.grid), launch.grid);
    std::copy(std::begin(work.threads), std::end(work.threads), launch.threads);
    try {
      work.kernel->run(launch);
    } catch (const std::exception&) {
      return CUDA_ERROR_LAUNCH_FAILED;
    }
    return CUDA_SUCCESS;
  }

  // Memory may have gone since the launch: then the copy is an illegal access, not a crash.
  CUresult operator()(const CUDA_MEMCPY3D& copy) const {
    const Lock lock;
    if (check_copy(copy) != CUDA_SUCCESS) {
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    run_copy(copy);
    return CUDA_SUCCESS;
  }

  CUresult operator()(const CUDA_MEMSET_NODE_PARAMS& fill) const {
    const Lock lock;
    if (check_fill(fill) != CUDA_SUCCESS) {
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    run_fill(fill);
    return CUDA_SUCCESS;
  }

  CUresult operator()(const CUDA_HOST_NODE_PARAMS& host) const {
    host.fn(host.userData);
    return CUDA_SUCCESS;
  }

  // What was in the memory before an allocation or after a free is nobody's.
  CUresult operator()(const MemoryAllocation& allocation) const {
    const Lock lock;
    std::memset(host_pointer(allocation.memory->address), 0xFF, allocation.memory->bytes);
    return CUDA_SUCCESS;
  }

  CUresult operator()(const MemoryFree& free) const {
    const Lock lock;
    const std::size_t* bytes = find(state().allocations, free.address);
    if (bytes == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::memset(host_pointer(free.address), 0xFF, *bytes);
    return CUDA_SUCCESS;
  }

  CUresult operator()(const EventWork&) const { return CUDA_SUCCESS; }

  CUresult operator()(const ChildGraph& child) const {
    CUresult failed = CUDA_SUCCESS;
    for (const std::shared_ptr<const Work>& work : child.works->list) {
      const CUresult code = std::visit(*this, *work);
      failed = failed == CUDA_SUCCESS ? code : failed;
    }
    return failed;
  }

  CUresult operator()(const UnknownWork&) const { return CUDA_ERROR_NOT_SUPPORTED; }
};

}  // namespace

void enqueue(std::shared_ptr<const WorkList> works) { state().queue.push_back(std::move(works)); }

CUresult drain() {
  static thread_local bool inside = false;
  if (inside) {
    return CUDA_SUCCESS;
  }
  const std::unique_lock order = take_turn();
  State& now = state();
  inside = true;
  while (true) {
    std::shared_ptr<const WorkList> works;
    {
      const Lock lock;
      if (now.queue.empty()) {
        break;
      }
      works = now.queue.front();
      now.queue.pop_front();
    }
    CUresult failed = CUDA_SUCCESS;
    for (const std::shared_ptr<const Work>& work : *works) {
      const CUresult code = std::visit(Runner{}, *work);
      failed = failed == CUDA_SUCCESS ? code : failed;
    }
    // Given up under the lock: an exec copies the list unless it is the only owner (exec.cpp).
    const Lock lock;
    works.reset();
    now.failed = now.failed == CUDA_SUCCESS ? failed : now.failed;
  }
  inside = false;
  const Lock lock;
  return std::exchange(now.failed, CUDA_SUCCESS);
}

void set_waiter(Waiter chosen) { waiter() = chosen; }

void synchronize() { (void)drain(); }

}  // namespace pygraph::twin
