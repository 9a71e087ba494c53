#include "number_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

namespace pygraph {
namespace {

constexpr std::uint32_t kWord = 8;
constexpr std::uint32_t kHalf = 4;

ComparedBits low_half(ComparedBits bits) {
  constexpr std::uint64_t kMask = 0xFFFF'FFFF;
  return {bits.a & kMask, bits.b & kMask, kHalf};
}

ComparedBits high_half(ComparedBits bits) { return {bits.a >> 32U, bits.b >> 32U, kHalf}; }

/// The parameter that holds the byte at `offset`; null where the layout is not known, or in a gap.
const ParameterSlot* parameter_at(const Node& node, std::uint32_t offset) {
  const auto after = std::upper_bound(
      node.parameters.begin(), node.parameters.end(), offset,
      [](std::uint32_t value, const ParameterSlot& slot) { return value < slot.offset; });
  if (after == node.parameters.begin()) {
    return nullptr;
  }
  const ParameterSlot& slot = *std::prev(after);
  return offset < slot.offset + slot.size ? &slot : nullptr;
}

/// Whether these bytes can be one number of a kernel's parameters.
bool may_be_number(const Node& node, std::uint32_t offset, std::uint32_t bytes) {
  if (node.form == ParameterForm::kPacked) {
    return true;
  }
  const ParameterSlot* slot = parameter_at(node, offset);
  return slot != nullptr && offset + bytes <= slot->offset + slot->size;
}

bool is_parameter_of_a_word(const Node& node, std::uint32_t offset) {
  const ParameterSlot* slot = parameter_at(node, offset);
  return slot != nullptr && slot->offset == offset && slot->size == kWord;
}

/// Whether a number of 64 bits and the same of 32 bits in front of zeros explain `bits`.
bool is_of_either_width(const std::vector<NumberWord>& whole, const std::vector<NumberWord>& low,
                        ComparedBits bits) {
  return whole.size() == 1 && low.size() == 1 && whole[0].number == low[0].number &&
         whole[0].encoding == NumberEncoding::kInt64 && low[0].encoding == NumberEncoding::kInt32 &&
         high_half(bits).a == 0 && high_half(bits).b == 0;
}

}  // namespace

NumberIndex::NumberIndex(std::span<const HostNumber> numbers) {
  for (std::uint32_t number = 0; number < numbers.size(); ++number) {
    const HostNumber& given = numbers[number];
    if (given.a.index() != given.b.index()) {
      throw std::invalid_argument(fmt::format(
          "host number {} is floating in one capture and an integer in the other", number));
    }
    const EncodedNumber a(given.a);
    const EncodedNumber b(given.b);
    for (const NumberEncoding encoding : {NumberEncoding::kFloat64, NumberEncoding::kFloat32,
                                          NumberEncoding::kInt64, NumberEncoding::kInt32}) {
      const std::optional<std::uint64_t>& in_a = a.as(encoding);
      const std::optional<std::uint64_t>& in_b = b.as(encoding);
      if (!in_a.has_value() || !in_b.has_value()) {
        continue;
      }
      if (*in_a == *in_b) {
        throw std::invalid_argument(fmt::format(
            "host number {} has the same {} bytes in both captures, {:#x}: its words cannot be "
            "found",
            number, bytes_of(encoding), *in_a));
      }
      candidates_.push_back({{*in_a, *in_b, bytes_of(encoding)}, number, encoding});
    }
  }
}

std::vector<NumberWord> NumberIndex::find(std::uint32_t offset, ComparedBits bits) const {
  std::vector<NumberWord> found;
  for (const Candidate& candidate : candidates_) {
    if (candidate.bits.a == bits.a && candidate.bits.b == bits.b &&
        candidate.bits.bytes == bits.bytes) {
      found.push_back({0, offset, candidate.number, candidate.encoding});
    }
  }
  return found;
}

NumberIndex::Explanation NumberIndex::explain(const Node& node, std::uint32_t offset,
                                              ComparedBits bits) const {
  const auto find_number = [&](std::uint32_t at, ComparedBits part) {
    return may_be_number(node, at, part.bytes) ? find(at, part) : std::vector<NumberWord>();
  };
  const ComparedBits low_bits = low_half(bits);
  const ComparedBits high_bits = high_half(bits);
  std::vector<NumberWord> whole;
  if (bits.bytes == kWord) {
    whole = find_number(offset, bits);
  }
  std::vector<NumberWord> low = find_number(offset, low_bits);
  std::vector<NumberWord> high = find_number(offset + kHalf, high_bits);
  const bool halves_explain =
      (low_bits.a == low_bits.b || !low.empty()) && (high_bits.a == high_bits.b || !high.empty());
  if (!whole.empty() && (!halves_explain || is_parameter_of_a_word(node, offset))) {
    low.clear();
    high.clear();
  } else if (is_of_either_width(whole, low, bits)) {
    whole.clear();
    low[0].encoding = NumberEncoding::kSmallInteger;
  }
  Explanation found;
  found.complete = halves_explain || !whole.empty();
  found.ambiguous = whole.size() + std::max(low.size(), high.size()) > 1;
  for (const std::vector<NumberWord>* part : {&whole, &low, &high}) {
    found.words.insert(found.words.end(), part->begin(), part->end());
  }
  return found;
}

}  // namespace pygraph
