// The example's device without a GPU: the CPU twin, whose kernels are host functions.
#include "device.h"
#include "pygraph/twin.h"

namespace replay {
namespace {

using pygraph::twin::Launch;

void run_gemm(const Launch& launch) {
  auto* out = reinterpret_cast<float*>(launch.parameter<CUdeviceptr>(0));
  const auto* left = reinterpret_cast<const float*>(launch.parameter<CUdeviceptr>(8));
  const auto* right = reinterpret_cast<const float*>(launch.parameter<CUdeviceptr>(16));
  const auto n = launch.parameter<std::uint32_t>(24);
  for (std::size_t row = 0; row < n; ++row) {
    for (std::size_t column = 0; column < n; ++column) {
      float sum = 0;
      for (std::size_t i = 0; i < n; ++i) {
        sum += left[row * n + i] * right[i * n + column];
      }
      out[row * n + column] = sum;
    }
  }
}

void run_relu(const Launch& launch) {
  auto* out = reinterpret_cast<float*>(launch.parameter<CUdeviceptr>(0));
  const auto* in = reinterpret_cast<const float*>(launch.parameter<CUdeviceptr>(8));
  const auto count = launch.parameter<std::uint32_t>(16);
  for (std::uint32_t i = 0; i < count; ++i) {
    out[i] = in[i] < 0 ? 0 : in[i];  // keeps a NaN
  }
}

}  // namespace

struct Device::Library {
  CUfunction gemm =
      pygraph::twin::register_kernel("gemm", {{0, 8}, {8, 8}, {16, 8}, {24, 4}}, run_gemm);
  CUfunction relu = pygraph::twin::register_kernel("relu", {{0, 8}, {8, 8}, {16, 4}}, run_relu);
};

Device::Device()
    : driver_(&pygraph::twin::driver()),
      name_("CPU twin (its times say nothing about a GPU)"),
      library_(std::make_unique<Library>()) {
  CUstream stream = nullptr;
  driver_->check(driver_->api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  stream_ = pygraph::StreamHandle(*driver_, stream);
}

Device::~Device() = default;

void Device::use_workspace(CUdeviceptr /*workspace*/) {}

void Device::gemm(CUdeviceptr out, CUdeviceptr left, CUdeviceptr right, std::uint32_t n) const {
  launch(driver(), stream(), library_->gemm, n * n, out, left, right, n);
}

void Device::relu(CUdeviceptr out, CUdeviceptr in, std::uint32_t count) const {
  launch(driver(), stream(), library_->relu, count, out, in, count);
}

}  // namespace replay
