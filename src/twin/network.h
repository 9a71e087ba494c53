// The network that demonstrate.cpp captures: three layers of matmul, bias and relu, with a fill and
// a copy, launched on the addresses it is given.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pygraph/driver.h"

namespace pygraph::twin::network {

/// The pieces of memory the network works on: arguments first, then the output, then scratch.
enum Piece : std::size_t {
  kInput,
  kWeight1,
  kBias1,
  kWeight2,
  kBias2,
  kWeight3,
  kBias3,
  kOutput,
  kProduct1,
  kBiased1,
  kHidden1,
  kProduct2,
  kBiased2,
  kHidden2,
  kProduct3,
  kBiased3,
  kTotal,
  kPieces
};

using Addresses = std::array<CUdeviceptr, kPieces>;

/// Size of a piece in floats.
std::size_t floats(std::size_t piece);
inline std::size_t bytes(std::size_t piece) { return floats(piece) * sizeof(float); }
constexpr bool is_argument(std::size_t piece) { return piece < kOutput; }
constexpr bool is_scratch(std::size_t piece) { return piece > kOutput; }

/// Launches everything on `stream`. `seed` is a number that one kernel is given and ignores.
void launch(const Driver& driver, CUstream stream, const Addresses& at, std::uint64_t seed);

/// Reproducible contents for `piece`; another `round` gives others.
std::vector<float> contents(std::size_t piece, std::uint32_t round);

}  // namespace pygraph::twin::network
