#include "twin/recorded_kernel.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace pygraph::twin {
namespace {

TEST(RecordedKernel, WordsComeBackAndPaddingIsDeclared) {
  const KernelLayout layout("pbif", 1);
  const std::array<std::uint64_t, 4> words{
      0x1000, 1, std::bit_cast<std::uint64_t>(std::int64_t{-3}), std::bit_cast<std::uint64_t>(2.5)};
  const std::vector<std::byte> block = layout.pack(7, words);
  std::array<std::uint64_t, 4> found{};
  layout.unpack(block.data(), found);
  EXPECT_EQ(found, words);
  EXPECT_EQ(KernelLayout::operation(block.data()), 7U);
  EXPECT_EQ(block.size(), 40U);
  // Four bytes of number, then a hole; one byte of truth, then a hole.
  const std::vector<ParameterSlot>& slots = layout.slots();
  ASSERT_EQ(slots.size(), 5U);
  EXPECT_EQ(slots[0].size, 4U);
  EXPECT_EQ(slots[1].offset, 8U);
  EXPECT_EQ(slots[2].size, 1U);
  EXPECT_EQ(slots[3].offset, 24U);
}

TEST(RecordedKernel, PaddingIsNotRead) {
  const KernelLayout layout("bb", 1);
  const std::array<std::uint64_t, 2> words{0, 1};
  std::vector<std::byte> block = layout.pack(3, words);
  for (const std::size_t hole : {4U, 7U, 9U, 15U}) {
    block.at(hole) = std::byte{0xA5};
  }
  std::array<std::uint64_t, 2> found{};
  layout.unpack(block.data(), found);
  EXPECT_EQ(found, words);
  EXPECT_EQ(KernelLayout::operation(block.data()), 3U);
}

TEST(RecordedKernel, AHiddenPointerIsFetchedFromItsTable) {
  const KernelLayout layout("h", 1);
  std::uint64_t table = 0x1234;
  const std::array<std::uint64_t, 1> words{reinterpret_cast<std::uint64_t>(&table)};
  std::array<std::uint64_t, 1> found{};
  layout.unpack(layout.pack(0, words).data(), found);
  EXPECT_EQ(found[0], 0x1234U);
}

TEST(RecordedKernel, DemandsAreChecked) {
  std::array<std::uint64_t, 1> found{};
  const KernelLayout aligned("a", 64);
  EXPECT_NO_THROW(aligned.unpack(aligned.pack(0, std::array<std::uint64_t, 1>{128}).data(), found));
  EXPECT_THROW(aligned.unpack(aligned.pack(0, std::array<std::uint64_t, 1>{144}).data(), found),
               std::runtime_error);

  const KernelLayout coincident("c", 1);
  std::vector<std::byte> block = coincident.pack(0, std::array<std::uint64_t, 1>{0x7000});
  EXPECT_NO_THROW(coincident.unpack(block.data(), found));
  const std::uint64_t moved = 0x9000;
  std::memcpy(block.data() + 8, &moved, sizeof moved);
  EXPECT_THROW(coincident.unpack(block.data(), found), std::runtime_error);
}

TEST(RecordedKernel, WrongUseIsRefused) {
  EXPECT_THROW(KernelLayout("px", 1), std::invalid_argument);
  EXPECT_THROW(KernelLayout("p", 0), std::invalid_argument);
  EXPECT_THROW((void)KernelLayout("pp", 1).pack(0, std::array<std::uint64_t, 1>{1}),
               std::invalid_argument);
}

}  // namespace
}  // namespace pygraph::twin
