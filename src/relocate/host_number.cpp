#include "pygraph/host_number.h"

#include <bit>
#include <cmath>
#include <limits>

namespace pygraph {

EncodedNumber::EncodedNumber(NumberValue value) noexcept {
  if (const double* floating = std::get_if<double>(&value)) {
    encode(*floating);
  } else {
    encode(*std::get_if<std::int64_t>(&value));
  }
}

void EncodedNumber::encode(double value) noexcept {
  in(NumberEncoding::kFloat64) = std::bit_cast<std::uint64_t>(value);
  // Who converts checks for this too, and raises (torch, c10/util/TypeCast.h, checked_convert).
  if (!std::isfinite(value) || std::abs(value) <= std::numeric_limits<float>::max()) {
    in(NumberEncoding::kFloat32) = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  }
}

void EncodedNumber::encode(std::int64_t value) noexcept {
  in(NumberEncoding::kInt64) = std::bit_cast<std::uint64_t>(value);
  in(NumberEncoding::kFloat64) = std::bit_cast<std::uint64_t>(static_cast<double>(value));
  in(NumberEncoding::kFloat32) = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const auto narrow = static_cast<std::int32_t>(value);
  if (narrow == value) {
    in(NumberEncoding::kInt32) = std::bit_cast<std::uint32_t>(narrow);
    if (narrow >= 0) {
      in(NumberEncoding::kSmallInteger) = std::bit_cast<std::uint32_t>(narrow);
    }
  }
}

}  // namespace pygraph
