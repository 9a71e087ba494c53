// Numbers of the host that kernels take by value, and how they stand in parameter blocks.
//
// A learning rate or a position in a sequence is not in memory: the launcher writes its bits into
// the kernel's parameter block. When both captures are made with another value of such a number,
// its words are found as those of a region are (relocate.h), and written at each call (program.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

namespace pygraph {

/// What a host number is at a time: floating or an integer, as Python's numbers are.
using NumberValue = std::variant<double, std::int64_t>;

/// A host number, by its values in capture A and in its probe B: both floating or both integers.
struct HostNumber {
  NumberValue a;
  NumberValue b;
};

/// How a number stands in a parameter block: little-endian, aligned to its size.
enum class NumberEncoding : std::uint8_t {
  kFloat64,
  kFloat32,  ///< rounded once, to nearest
  kInt64,
  kInt32,
  /// 4 bytes in front of 4 zeros, in a struct that nobody knows the fields of: an integer of 32
  /// bits or of 64. It holds what is the same in both, 0 to 2^31 - 1.
  kSmallInteger,
};
inline constexpr std::size_t kNumberEncodings = 5;

/// 4 or 8.
constexpr std::uint32_t bytes_of(NumberEncoding encoding) noexcept {
  return encoding == NumberEncoding::kFloat64 || encoding == NumberEncoding::kInt64 ? 8 : 4;
}

/// The bits of one value in every encoding; of 4 bytes, the upper half is 0.
class EncodedNumber {
 public:
  explicit EncodedNumber(NumberValue value) noexcept;

  /// None where the encoding cannot hold the value: a floating one as an integer, an integer that
  /// needs more bits, a finite one beyond the largest float.
  [[nodiscard]] const std::optional<std::uint64_t>& as(NumberEncoding encoding) const noexcept {
    return bits_[static_cast<std::size_t>(encoding)];
  }

 private:
  std::optional<std::uint64_t>& in(NumberEncoding encoding) noexcept {
    return bits_[static_cast<std::size_t>(encoding)];
  }
  void encode(double value) noexcept;
  void encode(std::int64_t value) noexcept;

  std::array<std::optional<std::uint64_t>, kNumberEncodings> bits_;
};

/// "Byte `offset` of node `node`'s block is where number `number` stands, encoded so."
struct NumberWord {
  std::uint32_t node;
  std::uint32_t offset;
  std::uint32_t number;
  NumberEncoding encoding;

  bool operator==(const NumberWord&) const = default;
};

}  // namespace pygraph
