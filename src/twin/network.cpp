#include "twin/network.h"

#include <random>

#include "twin/samples.h"

namespace pygraph::twin::network {
namespace {

constexpr std::uint32_t kBatch = 16;
constexpr std::uint32_t kWidth0 = 32;
constexpr std::uint32_t kWidth1 = 64;
constexpr std::uint32_t kWidth2 = 48;
constexpr std::uint32_t kWidth3 = 10;

void add_bias(const Driver& driver, CUstream stream, CUdeviceptr out, CUdeviceptr in,
              CUdeviceptr bias, std::uint32_t width) {
  samples::AddArguments arguments{};
  arguments.scale = 1;
  arguments.left = in;
  arguments.right = bias;
  arguments.out = out;
  arguments.count = std::uint64_t{kBatch} * width;
  arguments.period = width;
  samples::add(driver, stream, arguments);
}

}  // namespace

std::size_t floats(std::size_t piece) {
  switch (piece) {
    case kInput:
      return kBatch * kWidth0;
    case kWeight1:
      return kWidth0 * kWidth1;
    case kBias1:
      return kWidth1;
    case kWeight2:
      return kWidth1 * kWidth2;
    case kBias2:
      return kWidth2;
    case kWeight3:
      return kWidth2 * kWidth3;
    case kBias3:
      return kWidth3;
    case kProduct1:
    case kBiased1:
    case kHidden1:
      return kBatch * kWidth1;
    case kProduct2:
    case kBiased2:
    case kHidden2:
      return kBatch * kWidth2;
    default:
      return kBatch * kWidth3;
  }
}

void launch(const Driver& driver, CUstream stream, const Addresses& at, std::uint64_t seed) {
  driver.check(driver.api.cuMemsetD8Async(at[kTotal], 0, bytes(kTotal), stream), "cuMemsetD8Async",
               "the running total");

  samples::MatmulBlock first{};
  first.rows = kBatch;
  first.columns = kWidth1;
  first.inner = kWidth0;
  first.out = at[kProduct1];
  first.left = at[kInput];
  first.right = at[kWeight1];
  first.seed = seed;
  samples::packed_matmul(driver, stream, first);
  add_bias(driver, stream, at[kBiased1], at[kProduct1], at[kBias1], kWidth1);
  samples::relu(driver, stream, at[kHidden1], at[kBiased1], kBatch * kWidth1);

  samples::matmul(driver, stream,
                  {at[kProduct2], at[kHidden1], at[kWeight2], kBatch, kWidth2, kWidth1});
  add_bias(driver, stream, at[kBiased2], at[kProduct2], at[kBias2], kWidth2);
  samples::relu(driver, stream, at[kHidden2], at[kBiased2], kBatch * kWidth2);

  samples::matmul(driver, stream,
                  {at[kProduct3], at[kHidden2], at[kWeight3], kBatch, kWidth3, kWidth2});
  add_bias(driver, stream, at[kBiased3], at[kProduct3], at[kBias3], kWidth3);
  samples::saxpy(driver, stream, {at[kTotal], at[kBiased3], at[kTotal], 1, kBatch * kWidth3});
  driver.check(driver.api.cuMemcpyDtoDAsync(at[kOutput], at[kTotal], bytes(kOutput), stream),
               "cuMemcpyDtoDAsync", "the output");
}

std::vector<float> contents(std::size_t piece, std::uint32_t round) {
  std::mt19937 generator(static_cast<std::uint32_t>(piece) + 1000 * round);
  std::vector<float> values(floats(piece));
  for (float& value : values) {
    // Built from the generator's bits, since distributions differ between standard libraries.
    value = static_cast<float>(generator() >> 8) / static_cast<float>(1U << 23) - 1;
  }
  return values;
}

}  // namespace pygraph::twin::network
