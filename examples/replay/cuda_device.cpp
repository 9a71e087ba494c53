// The example's device on a GPU: cuBLAS, and a kernel as PTX, which the driver compiles for
// whatever GPU there is. Everything else goes through PyGraph's table of the driver.
#include <cublas_v2.h>

#include <stdexcept>

#include "device.h"

namespace replay {
namespace {

constexpr const char* kRelu = R"(
.version 7.0
.target sm_52
.address_size 64

.visible .entry relu(.param .u64 out, .param .u64 in, .param .u32 count)
{
  .reg .pred %p<3>;
  .reg .f32 %f<3>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<6>;
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [in];
  mul.wide.u32 %rd3, %r5, 4;
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  add.u64 %rd4, %rd2, %rd3;
  add.u64 %rd5, %rd1, %rd3;
  ld.global.f32 %f1, [%rd4];
  setp.lt.f32 %p2, %f1, 0f00000000;
  selp.f32 %f2, 0f00000000, %f1, %p2;
  st.global.f32 [%rd5], %f2;
DONE:
  ret;
}
)";

void check(cublasStatus_t status, const char* operation) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(operation) + ": " + cublasGetStatusString(status));
  }
}

}  // namespace

struct Device::Library {
  cublasHandle_t cublas = nullptr;
  pygraph::ModuleHandle module;
  CUfunction relu = nullptr;

  ~Library() {
    if (cublas != nullptr) {
      cublasDestroy(cublas);
    }
  }
};

Device::Device() : driver_(&pygraph::real_driver()), library_(std::make_unique<Library>()) {
  if (!driver_->capabilities.usable()) {
    throw std::runtime_error(driver_->capabilities.problem);
  }
  const pygraph::DriverApi& api = driver_->api;
  CUdevice device = 0;
  CUcontext context = nullptr;  // the primary one, which the process keeps
  driver_->check(api.cuDeviceGet(&device, 0), "cuDeviceGet");
  driver_->check(api.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  driver_->check(api.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  name_ = "GPU, CUDA " + std::to_string(driver_->capabilities.version / 1000) + "." +
          std::to_string(driver_->capabilities.version % 1000 / 10);

  CUmodule module = nullptr;
  driver_->check(api.cuModuleLoadData(&module, kRelu), "cuModuleLoadData", "relu");
  library_->module = pygraph::ModuleHandle(*driver_, module);
  driver_->check(api.cuModuleGetFunction(&library_->relu, module, "relu"), "cuModuleGetFunction");
  CUstream stream = nullptr;
  driver_->check(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  stream_ = pygraph::StreamHandle(*driver_, stream);
  check(cublasCreate(&library_->cublas), "cublasCreate");
  check(cublasSetStream(library_->cublas, stream), "cublasSetStream");
}

Device::~Device() = default;

void Device::use_workspace(CUdeviceptr workspace) {
  check(cublasSetWorkspace(library_->cublas, reinterpret_cast<void*>(workspace), kWorkspaceBytes),
        "cublasSetWorkspace");
}

void Device::gemm(CUdeviceptr out, CUdeviceptr left, CUdeviceptr right, std::uint32_t n) const {
  const float one = 1;
  const float zero = 0;
  const auto size = static_cast<int>(n);
  // cuBLAS goes column by column, so it is given the transposed product: right * left.
  check(
      cublasSgemm(library_->cublas, CUBLAS_OP_N, CUBLAS_OP_N, size, size, size, &one,
                  reinterpret_cast<const float*>(right), size, reinterpret_cast<const float*>(left),
                  size, &zero, reinterpret_cast<float*>(out), size),
      "cublasSgemm");
}

void Device::relu(CUdeviceptr out, CUdeviceptr in, std::uint32_t count) const {
  launch(driver(), stream(), library_->relu, count, out, in, count);
}

}  // namespace replay
