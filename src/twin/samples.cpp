#include "twin/samples.h"

#include "pygraph/twin.h"
#include "twin/kernels.h"

namespace pygraph::twin::samples {
namespace {

const float* input(CUdeviceptr address) { return reinterpret_cast<const float*>(address); }
float* output(CUdeviceptr address) { return reinterpret_cast<float*>(address); }

void multiply(float* out, const float* left, const float* right, std::uint32_t rows,
              std::uint32_t columns, std::uint32_t inner) {
  for (std::uint32_t row = 0; row < rows; ++row) {
    for (std::uint32_t column = 0; column < columns; ++column) {
      float sum = 0;
      for (std::uint32_t i = 0; i < inner; ++i) {
        sum += left[row * inner + i] * right[i * columns + column];
      }
      out[row * columns + column] = sum;
    }
  }
}

void run_saxpy(const Launch& launch) {
  float* out = output(launch.parameter<CUdeviceptr>(0));
  const float* x = input(launch.parameter<CUdeviceptr>(8));
  const float* y = input(launch.parameter<CUdeviceptr>(16));
  const auto a = launch.parameter<float>(24);
  const auto n = launch.parameter<std::uint32_t>(28);
  for (std::uint32_t i = 0; i < n; ++i) {
    out[i] = a * x[i] + y[i];
  }
}

void run_affine(const Launch& launch) {
  float* out = output(launch.parameter<CUdeviceptr>(0));
  const float* x = input(launch.parameter<CUdeviceptr>(8));
  const auto a = launch.parameter<float>(16);
  const auto b = launch.parameter<float>(20);
  const auto n = launch.parameter<std::uint32_t>(24);
  for (std::uint32_t i = 0; i < n; ++i) {
    out[i] = a * x[i] + b;
  }
}

void run_relu(const Launch& launch) {
  float* out = output(launch.parameter<CUdeviceptr>(0));
  const float* in = input(launch.parameter<CUdeviceptr>(8));
  const auto n = launch.parameter<std::uint32_t>(16);
  for (std::uint32_t i = 0; i < n; ++i) {
    out[i] = in[i] < 0 ? 0 : in[i];  // keeps a NaN
  }
}

void run_matmul(const Launch& launch) {
  multiply(output(launch.parameter<CUdeviceptr>(0)), input(launch.parameter<CUdeviceptr>(8)),
           input(launch.parameter<CUdeviceptr>(16)), launch.parameter<std::uint32_t>(24),
           launch.parameter<std::uint32_t>(28), launch.parameter<std::uint32_t>(32));
}

void run_packed_matmul(const Launch& launch) {
  const auto block = launch.parameter<MatmulBlock>(0);
  multiply(output(block.out), input(block.left), input(block.right), block.rows, block.columns,
           block.inner);
}

void run_add(const Launch& launch) {
  const auto arguments = launch.parameter<AddArguments>(0);
  float* out = output(arguments.out);
  for (std::uint64_t i = 0; i < arguments.count; ++i) {
    out[i] =
        arguments.scale * input(arguments.left)[i] + input(arguments.right)[i % arguments.period];
  }
}

void run_copy(const Launch& launch) {
  float* out = output(launch.parameter<CUdeviceptr>(0));
  const float* in = input(launch.parameter<CUdeviceptr>(8));
  const auto n = launch.parameter<std::uint32_t>(16);
  for (std::uint32_t i = 0; i < n; ++i) {
    out[i] = in[i];
  }
}

Functions make_functions() {
  constexpr std::uint32_t kScaleEnd = sizeof(float);
  constexpr std::uint32_t kTagEnd = offsetof(AddArguments, tag) + sizeof(std::uint16_t);
  Functions made{};
  made.saxpy =
      register_kernel("sample_saxpy", {{0, 8}, {8, 8}, {16, 8}, {24, 4}, {28, 4}}, run_saxpy);
  made.affine =
      register_kernel("sample_affine", {{0, 8}, {8, 8}, {16, 4}, {20, 4}, {24, 4}}, run_affine);
  made.relu = register_kernel("sample_relu", {{0, 8}, {8, 8}, {16, 4}}, run_relu);
  made.matmul = register_kernel("sample_matmul",
                                {{0, 8}, {8, 8}, {16, 8}, {24, 4}, {28, 4}, {32, 4}}, run_matmul);
  made.packed_matmul = register_kernel_with_padding(
      "sample_packed_matmul", {{0, sizeof(MatmulBlock)}},
      {{offsetof(MatmulBlock, padding), sizeof(std::uint32_t)}}, run_packed_matmul);
  made.add = register_kernel_with_padding("sample_add", {{0, sizeof(AddArguments)}},
                                          {{kScaleEnd, offsetof(AddArguments, left) - kScaleEnd},
                                           {kTagEnd, offsetof(AddArguments, count) - kTagEnd}},
                                          run_add);
  made.copy = register_kernel("sample_copy", {{0, 8}, {8, 8}, {16, 4}}, run_copy);
  return made;
}

/// Launches with one block; the twin's kernels loop themselves.
template <typename... Parameters>
void launch_array(const Driver& driver, CUstream stream, CUfunction function, const char* name,
                  Parameters... parameters) {
  void* pointers[] = {&parameters...};
  driver.check(
      driver.api.cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, stream, pointers, nullptr),
      "cuLaunchKernel", name);
}

}  // namespace

const Functions& functions() {
  static const Functions made = make_functions();
  return made;
}

void saxpy(const Driver& driver, CUstream stream, SaxpyArguments arguments) {
  const auto [out, x, y, a, n] = arguments;
  launch_array(driver, stream, functions().saxpy, "sample_saxpy", out, x, y, a, n);
}

void relu(const Driver& driver, CUstream stream, CUdeviceptr out, CUdeviceptr in, std::uint32_t n) {
  launch_array(driver, stream, functions().relu, "sample_relu", out, in, n);
}

void matmul(const Driver& driver, CUstream stream, MatmulArguments arguments) {
  const auto [out, left, right, rows, columns, inner] = arguments;
  launch_array(driver, stream, functions().matmul, "sample_matmul", out, left, right, rows, columns,
               inner);
}

void packed_matmul(const Driver& driver, CUstream stream, MatmulBlock block, bool size_first) {
  std::size_t bytes = sizeof block;
  void* pointer_then_size[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE,
                               &bytes, CU_LAUNCH_PARAM_END};
  void* size_then_pointer[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_BUFFER_POINTER,
                               &block, CU_LAUNCH_PARAM_END};
  driver.check(
      driver.api.cuLaunchKernel(functions().packed_matmul, 1, 1, 1, 128, 1, 1, 0, stream, nullptr,
                                size_first ? size_then_pointer : pointer_then_size),
      "cuLaunchKernel", "sample_packed_matmul");
}

void add(const Driver& driver, CUstream stream, AddArguments arguments) {
  launch_array(driver, stream, functions().add, "sample_add", arguments);
}

void copy(const Driver& driver, CUstream stream, CUdeviceptr out, CUdeviceptr in, std::uint32_t n) {
  launch_array(driver, stream, functions().copy, "sample_copy", out, in, n);
}

}  // namespace pygraph::twin::samples
