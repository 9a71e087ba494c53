// A package of AOTInductor as a program: captured in C++ without Python, proven, and bound to other
// memory for every input. compare.py makes the package and its inputs, and looks at the outputs.
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/MemPool.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <array>
#include <cstdio>
#include <deque>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "pygraph/capture.h"

namespace {

using pygraph::WorkMemory;

// The model of compare.py: one input, one output, both of floats.
constexpr std::array<std::int64_t, 2> kInput = {64, 256};
constexpr std::array<std::int64_t, 2> kOutput = {64, 128};
constexpr std::size_t kInputBytes = sizeof(float) * kInput[0] * kInput[1];
constexpr std::size_t kOutputBytes = sizeof(float) * kOutput[0] * kOutput[1];

const c10::Device kDevice(c10::kCUDA, 0);
const c10::TensorOptions kFloats = c10::TensorOptions(kDevice).dtype(at::kFloat);

CUdeviceptr address_of(const at::Tensor& tensor) {
  return reinterpret_cast<CUdeviceptr>(tensor.data_ptr());
}

at::Tensor tensor_at(CUdeviceptr address, at::IntArrayRef sizes) {
  return at::for_blob(reinterpret_cast<void*>(address), sizes)
      .options(kFloats)
      .target_device(kDevice)
      .make_tensor();
}

/// While it lives, what torch allocates in this thread is scratch of the captured work: so it has
/// addresses of its own in either capture. cuBLAS keeps its workspace, unless it is made to let go.
class ScratchForTorch {
 public:
  explicit ScratchForTorch(at::cuda::MemPool& pool) : pool_(pool) {
    at::cuda::clearCublasWorkspaces();
    c10::cuda::CUDACachingAllocator::beginAllocateToPool(
        kDevice.index(), pool.id(), [mine = std::this_thread::get_id()](cudaStream_t) {
          return std::this_thread::get_id() == mine;
        });
  }
  ~ScratchForTorch() {
    at::cuda::clearCublasWorkspaces();
    c10::cuda::CUDACachingAllocator::endAllocateToPool(kDevice.index(), pool_.id());
    c10::cuda::CUDACachingAllocator::releasePool(kDevice.index(), pool_.id());  // begin counted it
  }
  ScratchForTorch(const ScratchForTorch&) = delete;
  ScratchForTorch& operator=(const ScratchForTorch&) = delete;

 private:
  at::cuda::MemPool& pool_;
};

/// A package as work with two buffers, its input and its output.
class Model {
 public:
  // Single-threaded: else a run asks whether the one before has finished, which a capture forbids.
  Model(const std::string& package, const c10::cuda::CUDAStream& stream)
      : loader_(package, "model", /*run_single_threaded=*/true, 1, kDevice.index()),
        stream_(stream) {}

  void run(const at::Tensor& input, at::Tensor output) {
    const std::vector<at::Tensor> results = loader_.run({input}, stream_.stream());
    output.copy_(results.at(0));  // the package allocates its results itself
  }

  void operator()(CUstream /*of torch*/, const WorkMemory& at) {
    // One per run. torch's allocator frees nothing while a capture is under way, so they stay; what
    // they still count as theirs is gone by then, and is not given back.
    at::cuda::MemPool& pool =
        pools_.emplace_back(torch::cuda::CUDAPluggableAllocator::createCustomAllocator(
                                [&at](std::size_t bytes, int, cudaStream_t) {
                                  return reinterpret_cast<void*>(at.scratch(bytes));
                                },
                                [](void*, std::size_t, int, cudaStream_t) {}),
                            /*is_user_created=*/true, /*use_on_oom=*/false, /*no_split=*/true);
    const ScratchForTorch scratch(pool);
    run(tensor_at(at[0], kInput), tensor_at(at[1], kOutput));
  }

 private:
  torch::inductor::AOTIModelPackageLoader loader_;
  c10::cuda::CUDAStream stream_;
  std::deque<at::cuda::MemPool> pools_;
};

std::vector<at::Tensor> read_inputs(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<at::Tensor> inputs;
  std::vector<char> bytes(kInputBytes);
  while (file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    inputs.push_back(at::from_blob(bytes.data(), kInput, at::kFloat).to(kDevice));
  }
  return inputs;
}

void write(std::ofstream& file, const at::Tensor& output) {
  const at::Tensor host = output.cpu();
  file.write(static_cast<const char*>(host.data_ptr()), kOutputBytes);
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 4) {
    throw std::invalid_argument("usage: aotinductor PACKAGE INPUTS OUTPUTS");
  }
  const c10::InferenceMode inference;
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, kDevice.index());
  const c10::cuda::CUDAStreamGuard guard(stream);
  const std::vector<at::Tensor> inputs = read_inputs(arguments[2]);
  Model model(arguments[1], stream);
  const at::Tensor output = at::empty(kOutput, kFloats);
  model.run(inputs.at(0),
            output);  // loads kernels and folds constants, which a capture must not do

  pygraph::CapturedWork captured = pygraph::capture(
      pygraph::real_driver(), stream.stream(), {kInputBytes, kOutputBytes}, std::ref(model),
      {.proof = {{address_of(inputs.at(0)), address_of(output)}}});
  const at::Tensor arena =
      at::empty(static_cast<std::int64_t>(captured.arena_bytes), kFloats.dtype(at::kByte));
  std::ofstream file(arguments[3], std::ios::binary);
  for (const at::Tensor& input : inputs) {
    const at::Tensor fresh = at::empty(kOutput, kFloats);
    captured.bind(std::array{address_of(input), address_of(fresh)}, address_of(arena));
    captured.program.launch(stream.stream());
    write(file, fresh);
  }
  std::printf("%zu nodes, %zu bytes of arena, %zu addresses of constants, %zu inputs\n",
              captured.program.node_count(), captured.arena_bytes, captured.foreign.size(),
              inputs.size());
} catch (const std::exception& error) {
  std::fprintf(stderr, "aotinductor: %s\n", error.what());
  return 1;
}
