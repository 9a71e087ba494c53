// The parameter block of a kernel whose work is done by the recorder's language (Python): which
// words it holds and where they stand. Nothing here knows Python.
//
// The block starts with the operation's number, 4 bytes and 4 bytes of padding, as a compiler lays
// out an int before a pointer. Then come the words by kind. A truth value takes one byte, so the 7
// bytes behind it are padding, too, unless it is the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pygraph/image.h"

namespace pygraph::twin {

/// The characters that name the kinds of words in a layout.
namespace word {
inline constexpr char kPointer = 'p';
inline constexpr char kAligned = 'a';     ///< a pointer that the kernel wants aligned
inline constexpr char kHidden = 'h';      ///< address of a table that holds the pointer
inline constexpr char kInteger = 'i';     ///< 64 bits, two's complement
inline constexpr char kNumber = 'f';      ///< the bits of a double
inline constexpr char kTruth = 'b';       ///< one byte
inline constexpr char kCoincident = 'c';  ///< a number and its complement: it must never change
}  // namespace word

class KernelLayout {
 public:
  /// `kinds` names the words in order; `alignment` is what aligned pointers must be a multiple of.
  /// Throws std::invalid_argument.
  KernelLayout(std::string_view kinds, std::size_t alignment);

  [[nodiscard]] std::size_t word_count() const noexcept { return kinds_.size(); }
  [[nodiscard]] char kind(std::size_t word) const { return kinds_[word]; }
  /// Of all words with their number in front, by ascending offset, as register_kernel takes them.
  [[nodiscard]] const std::vector<ParameterSlot>& slots() const noexcept { return slots_; }

  /// The block of one launch; padding is zero.
  [[nodiscard]] std::vector<std::byte> pack(std::uint32_t operation,
                                            std::span<const std::uint64_t> words) const;
  /// The words of `block`, hidden pointers fetched from their tables. Throws std::runtime_error
  /// when a pointer is not aligned or a coincident word was changed.
  void unpack(const std::byte* block, std::span<std::uint64_t> words) const;
  static std::uint32_t operation(const std::byte* block) noexcept;

 private:
  std::string kinds_;
  std::size_t alignment_;
  std::vector<ParameterSlot> slots_;
  std::vector<std::uint32_t> offsets_;  ///< per word
};

}  // namespace pygraph::twin
