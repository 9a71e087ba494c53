#include "twin/testbed.h"

#include "pygraph/twin.h"
#include "twin/samples.h"

namespace pygraph::twin {
namespace {

constexpr unsigned int kThreads = 128;

// Product and sum are rounded apart, as the twin's host code does it: results are bit-equal.
constexpr const char* kPtx = R"(
.version 7.0
.target sm_52
.address_size 64

.visible .entry affine(.param .u64 out, .param .u64 in, .param .f32 scale, .param .f32 shift,
                       .param .u32 count)
{
  .reg .pred %p;
  .reg .f32 %f<5>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<6>;
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p, %r5, %r1;
  @%p bra DONE;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [in];
  ld.param.f32 %f1, [scale];
  ld.param.f32 %f2, [shift];
  mul.wide.u32 %rd3, %r5, 4;
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  add.u64 %rd4, %rd2, %rd3;
  add.u64 %rd5, %rd1, %rd3;
  ld.global.f32 %f3, [%rd4];
  mul.rn.f32 %f3, %f3, %f1;
  add.rn.f32 %f4, %f3, %f2;
  st.global.f32 [%rd5], %f4;
DONE:
  ret;
}
)";

const Driver& driver_of(Testbed::Kind kind) {
  return kind == Testbed::Kind::kTwin ? driver() : real_driver();
}

void make_context_current(const Driver& driver) {
  static const CUcontext context = [&driver] {
    CUdevice device = 0;
    CUcontext primary = nullptr;
    driver.check(driver.api.cuDeviceGet(&device, 0), "cuDeviceGet");
    driver.check(driver.api.cuDevicePrimaryCtxRetain(&primary, device), "cuDevicePrimaryCtxRetain");
    return primary;
  }();
  driver.check(driver.api.cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

}  // namespace

std::string Testbed::problem(Kind kind) { return driver_of(kind).capabilities.problem; }

Testbed::Testbed(Kind kind) : driver_(driver_of(kind)) {
  if (kind == Kind::kTwin) {
    affine_ = samples::functions().affine;
  } else {
    make_context_current(driver_);
    CUmodule module = nullptr;
    driver_.check(driver_.api.cuModuleLoadData(&module, kPtx), "cuModuleLoadData", "affine");
    module_ = ModuleHandle(driver_, module);
    driver_.check(driver_.api.cuModuleGetFunction(&affine_, module, "affine"),
                  "cuModuleGetFunction", "affine");
  }
  CUstream stream = nullptr;
  driver_.check(driver_.api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  stream_ = StreamHandle(driver_, stream);
}

void Testbed::affine(const AffineBlock& given, ParameterOrder order) const {
  AffineBlock block = given;
  // The block ends with its last parameter: the driver refuses the struct's trailing padding.
  std::size_t bytes = offsetof(AffineBlock, count) + sizeof block.count;
  void* parameters[] = {&block.out, &block.in, &block.scale, &block.shift, &block.count};
  void* pointer_first[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE,
                           &bytes, CU_LAUNCH_PARAM_END};
  void* size_first[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_BUFFER_POINTER, &block,
                        CU_LAUNCH_PARAM_END};
  void** extra = order == ParameterOrder::kPointerThenSize ? pointer_first : size_first;
  const bool array = order == ParameterOrder::kArray;
  const unsigned int grid = (block.count + kThreads - 1) / kThreads;
  driver_.check(driver_.api.cuLaunchKernel(affine_, grid, 1, 1, kThreads, 1, 1, 0, stream_.get(),
                                           array ? parameters : nullptr, array ? nullptr : extra),
                "cuLaunchKernel", "affine");
}

GraphHandle Testbed::capture(const std::function<void()>& work) const {
  driver_.check(
      driver_.api.cuStreamBeginCapture(stream_.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
      "cuStreamBeginCapture");
  work();
  CUgraph graph = nullptr;
  driver_.check(driver_.api.cuStreamEndCapture(stream_.get(), &graph), "cuStreamEndCapture");
  return {driver_, graph};
}

void Testbed::synchronize() const {
  driver_.check(driver_.api.cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
}

}  // namespace pygraph::twin
