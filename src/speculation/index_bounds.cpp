#include "index_bounds.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "../torch/call_scope.h"

namespace pygraph::torch_bridge::speculation {
namespace {

constexpr std::int32_t kInt32 = 3;  // c10::ScalarType
constexpr std::int32_t kInt64 = 4;

template <typename Integer>
bool all_below(const char* values, std::uint64_t bytes, std::int64_t below) {
  bool good = true;
  for (std::uint64_t at = 0; at < bytes; at += sizeof(Integer)) {
    Integer value = 0;
    std::memcpy(&value, values + at, sizeof value);
    good = good && value >= 0 && value < below;
  }
  return good;
}

}  // namespace

struct IndexBounds::Values {
  CUdeviceptr address;
  std::uint64_t bytes;
  bool wide;
  bool on_host;
};

IndexBounds::~IndexBounds() { release(); }

void IndexBounds::release() noexcept {
  if (host_ != nullptr) {
    const Relaxed around(*driver_);
    driver_->api.cuMemFreeHost(host_);
    host_ = nullptr;
    capacity_ = 0;
  }
}

bool IndexBounds::reserve(const Driver& driver, std::uint64_t bytes) noexcept {
  if (bytes <= capacity_ && driver_ == &driver) {
    return true;
  }
  release();
  driver_ = &driver;
  if (driver.api.cuMemAllocHost(&host_, bytes) != CUDA_SUCCESS) {
    host_ = nullptr;
    return false;
  }
  capacity_ = bytes;
  return true;
}

/// Where the values stand; false if one is not an integer, or they do not stand side by side.
bool IndexBounds::read(const TensorProgram& program, const Arguments& arguments,
                       std::vector<Values>& values) const {
  const TorchApi& api = torch_api();
  values.reserve(bounds_.size());
  for (const IndexBound& bound : bounds_) {
    PyObject* tensor = arguments[bound.argument];
    if (!api.is_tensor(tensor)) {
      return false;
    }
    const std::int32_t dtype = api.dtype(tensor);
    const std::int64_t rank = api.dim(tensor);
    std::int64_t* sizes = nullptr;
    std::int64_t* strides = nullptr;
    if ((dtype != kInt32 && dtype != kInt64) || rank < 0 ||
        api.get_sizes(api.handle(tensor), &sizes) != 0 ||
        api.get_strides(api.handle(tensor), &strides) != 0) {
      return false;
    }
    std::int64_t count = 1;
    for (std::int64_t i = rank; i-- > 0;) {
      if (sizes[i] != 1 && strides[i] != count) {
        return false;
      }
      count *= sizes[i];
    }
    const bool wide = dtype == kInt64;
    const bool on_host = program.arguments()[bound.argument].staged && api.on_cpu(tensor);
    values.push_back({address_of(api.data(tensor)),
                      static_cast<std::uint64_t>(count) * (wide ? 8U : 4U), wide, on_host});
  }
  return true;
}

bool IndexBounds::admit(const TensorProgram& program, const Arguments& arguments) noexcept {
  const std::vector<ArgumentSpec>& specs = program.arguments();
  const auto is_tensor = [&](const IndexBound& bound) {
    return bound.argument < specs.size() && specs[bound.argument].is_tensor();
  };
  try {
    return bounds_.empty() ||
           (std::all_of(bounds_.begin(), bounds_.end(), is_tensor) && look(program, arguments));
  } catch (const std::exception&) {
    return false;
  }
}

bool IndexBounds::look(const TensorProgram& program, const Arguments& arguments) {
  const CallScope scope = program.scope();
  const auto started = std::chrono::steady_clock::now();
  std::vector<Values> values;
  if (!read(program, arguments, values)) {
    return false;
  }
  std::uint64_t total = 0;
  for (const Values& each : values) {
    total += each.bytes;
  }
  if (total > kMostBytes ||
      (total > 0 && !fetch(program.driver(), values, total, scope.stream()))) {
    return false;
  }
  bytes_looked_at_ += total;
  const char* at = static_cast<const char*>(host_);
  bool within = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto below = values[i].wide ? all_below<std::int64_t> : all_below<std::int32_t>;
    within = within && below(at, values[i].bytes, bounds_[i].below);
    at += values[i].bytes;
  }
  last_look_ = std::chrono::steady_clock::now() - started;
  return within;
}

/// Brings `total` bytes of values to the host, one behind another.
bool IndexBounds::fetch(const Driver& driver, const std::vector<Values>& values,
                        std::uint64_t total, CUstream stream) {
  const Relaxed around(driver);
  if (!reserve(driver, total)) {
    return false;
  }
  char* at = static_cast<char*>(host_);
  bool copied = true;
  bool waits = false;
  for (const Values& each : values) {
    if (each.on_host) {
      std::memcpy(at, reinterpret_cast<const void*>(each.address), each.bytes);  // NOLINT
    } else if (each.bytes != 0) {
      waits = true;
      copied = copied &&
               driver.api.cuMemcpyDtoHAsync(at, each.address, each.bytes, stream) == CUDA_SUCCESS;
    }
    at += each.bytes;
  }
  if (!waits) {
    return true;
  }
  // Waited for in any case: a copy that is under way must not find other memory.
  return driver.api.cuStreamSynchronize(stream) == CUDA_SUCCESS && copied;
}

}  // namespace pygraph::torch_bridge::speculation
