#include "twin/recorded_kernel.h"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

namespace pygraph::twin {
namespace {

constexpr std::uint32_t kWordBytes = 8;

template <typename T>
T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace

KernelLayout::KernelLayout(std::string_view kinds, std::size_t alignment)
    : kinds_(kinds), alignment_(alignment), slots_{{0, sizeof(std::uint32_t)}} {
  if (alignment == 0) {
    throw std::invalid_argument("an alignment of 0 bytes");
  }
  std::uint32_t offset = kWordBytes;
  for (const char kind : kinds_) {
    offsets_.push_back(offset);
    switch (kind) {
      case word::kTruth:
        slots_.push_back({offset, 1});
        break;
      case word::kCoincident:
        slots_.push_back({offset, kWordBytes});
        offset += kWordBytes;
        slots_.push_back({offset, kWordBytes});
        break;
      case word::kPointer:
      case word::kAligned:
      case word::kHidden:
      case word::kInteger:
      case word::kNumber:
        slots_.push_back({offset, kWordBytes});
        break;
      default:
        throw std::invalid_argument(fmt::format("no word is of kind '{}'", kind));
    }
    offset += kWordBytes;
  }
}

std::vector<std::byte> KernelLayout::pack(std::uint32_t operation,
                                          std::span<const std::uint64_t> words) const {
  if (words.size() != kinds_.size()) {
    throw std::invalid_argument(
        fmt::format("{} words for a block of {}", words.size(), kinds_.size()));
  }
  std::vector<std::byte> block(slots_.back().offset + slots_.back().size);
  std::memcpy(block.data(), &operation, sizeof operation);
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::byte* to = block.data() + offsets_[i];
    if (kinds_[i] == word::kTruth) {
      *to = words[i] != 0 ? std::byte{1} : std::byte{0};
      continue;
    }
    std::memcpy(to, &words[i], kWordBytes);
    if (kinds_[i] == word::kCoincident) {
      const std::uint64_t complement = ~words[i];
      std::memcpy(to + kWordBytes, &complement, kWordBytes);
    }
  }
  return block;
}

void KernelLayout::unpack(const std::byte* block, std::span<std::uint64_t> words) const {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::byte* from = block + offsets_[i];
    if (kinds_[i] == word::kTruth) {
      words[i] = *from != std::byte{0} ? 1 : 0;
      continue;
    }
    words[i] = load<std::uint64_t>(from);
    if (kinds_[i] == word::kHidden) {
      words[i] = load<std::uint64_t>(reinterpret_cast<const void*>(words[i]));
    } else if (kinds_[i] == word::kAligned && words[i] % alignment_ != 0) {
      throw std::runtime_error(fmt::format("word {}: the address {:#x} is not a multiple of {}", i,
                                           words[i], alignment_));
    } else if (kinds_[i] == word::kCoincident &&
               load<std::uint64_t>(from + kWordBytes) != ~words[i]) {
      throw std::runtime_error(fmt::format(
          "word {}: a number that only looks like an address became {:#x}", i, words[i]));
    }
  }
}

std::uint32_t KernelLayout::operation(const std::byte* block) noexcept {
  return load<std::uint32_t>(block);
}

}  // namespace pygraph::twin
