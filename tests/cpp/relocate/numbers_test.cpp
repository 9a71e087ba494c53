// Host numbers found by comparing blocks that are built by hand.
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "pygraph/relocate.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::message_of;

constexpr CUdeviceptr kPhantom = 0x7000'0000'0000;
constexpr CUdeviceptr kPhantomEnd = kPhantom + 0x1'0000'0000;

const std::vector<Region> kRegions = {{kPhantom + 0x1000, kPhantom + 0x8000'2000, 0x100}};
const HostNumber kRate{0.1, 0.3};
const HostNumber kPosition{std::int64_t{5}, std::int64_t{9}};

/// The bytes of values, one behind the other: a block without gaps.
template <typename... Values>
std::vector<std::byte> block_of(Values... values) {
  std::vector<std::byte> block;
  const auto append = [&](auto value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    block.insert(block.end(), bytes, bytes + sizeof value);
  };
  (append(values), ...);
  return block;
}

/// One kernel: in array form with parameters of these sizes, packed without.
Image kernel(std::vector<std::byte> block, const std::vector<std::uint32_t>& sizes = {}) {
  Node node;
  node.kind = NodeKind::kKernel;
  node.form = sizes.empty() ? ParameterForm::kPacked : ParameterForm::kArray;
  node.block = std::move(block);
  for (std::uint32_t offset = 0; offset + 8 <= node.block.size(); offset += 8) {
    node.words.push_back(offset);
  }
  std::uint32_t offset = 0;
  for (const std::uint32_t size : sizes) {
    node.parameters.push_back({offset, size});
    offset += size;
  }
  Image image;
  image.nodes.push_back(std::move(node));
  return image;
}

LinkTable compare(const Image& a, const Image& b, const std::vector<HostNumber>& numbers) {
  return relocate(a, b, kRegions, kPhantom, kPhantomEnd, {}, numbers);
}

/// Of one packed block in both captures, which must be sound.
LinkTable found(const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                const std::vector<HostNumber>& numbers) {
  LinkTable table = compare(kernel(a), kernel(b), numbers);
  EXPECT_EQ(table.problems, std::vector<std::string>());
  return table;
}

TEST(NumberWords, OfAFloatingNumberAreDoubleOrFloat) {
  const LinkTable table =
      found(block_of(0.1, 0.1F, 7U, 7U, 0.1F), block_of(0.3, 0.3F, 7U, 7U, 0.3F), {kRate});
  EXPECT_EQ(table.numbers, (std::vector<NumberWord>{{0, 0, 0, NumberEncoding::kFloat64},
                                                    {0, 8, 0, NumberEncoding::kFloat32},
                                                    {0, 20, 0, NumberEncoding::kFloat32}}));
  EXPECT_EQ(table.noise, 0U);
  EXPECT_EQ(table.words, 3U);
}

TEST(NumberWords, OfAnIntegerAreIntegersOrItsValueAsAFloat) {
  const HostNumber negative{std::int64_t{-5}, std::int64_t{9}};
  const LinkTable table = found(block_of(std::int64_t{-5}, -5, 1, 1, -5, -5.0, -5.0F, 0),
                                block_of(std::int64_t{9}, 9, 1, 1, 9, 9.0, 9.0F, 0), {negative});
  EXPECT_EQ(table.numbers, (std::vector<NumberWord>{{0, 0, 0, NumberEncoding::kInt64},
                                                    {0, 8, 0, NumberEncoding::kInt32},
                                                    {0, 20, 0, NumberEncoding::kInt32},
                                                    {0, 24, 0, NumberEncoding::kFloat64},
                                                    {0, 32, 0, NumberEncoding::kFloat32}}));
  EXPECT_EQ(table.noise, 0U);
}

TEST(NumberWords, OfAnIntegerThatNeedsMoreAre64Bits) {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 40) + 7;
  const HostNumber large{kLarge, 3 * kLarge};
  // The halves that would be the low ones of the integer are none of it.
  const LinkTable table =
      found(block_of(kLarge, static_cast<std::int32_t>(kLarge), 1),
            block_of(3 * kLarge, static_cast<std::int32_t>(3 * kLarge), 1), {large});
  EXPECT_EQ(table.numbers, (std::vector<NumberWord>{{0, 0, 0, NumberEncoding::kInt64}}));
  EXPECT_EQ(table.noise, 1U);
}

TEST(NumberWords, AnIntegerInFrontOfZerosIsOfEitherWidth) {
  const LinkTable table = found(block_of(5, 0), block_of(9, 0), {kPosition});
  EXPECT_EQ(table.numbers, (std::vector<NumberWord>{{0, 0, 0, NumberEncoding::kSmallInteger}}));
  EXPECT_EQ(table.noise, 0U);
}

TEST(NumberWords, ParametersTellTheWidthOfAnInteger) {
  const auto encoding = [](const std::vector<std::uint32_t>& sizes) {
    const LinkTable table = compare(kernel(block_of(5, 0, 1, 1), sizes),
                                    kernel(block_of(9, 0, 1, 1), sizes), {kPosition});
    EXPECT_TRUE(table.sound());
    EXPECT_EQ(table.numbers.size(), 1U);
    return table.numbers.empty() ? NumberEncoding::kFloat64 : table.numbers[0].encoding;
  };
  EXPECT_EQ(encoding({8, 8}), NumberEncoding::kInt64);
  EXPECT_EQ(encoding({4, 4, 8}), NumberEncoding::kInt32);
  EXPECT_EQ(encoding({16}), NumberEncoding::kSmallInteger);
}

TEST(NumberWords, AParameterOfTwoFloatsIsNoNumberOf8Bytes) {
  const LinkTable table =
      compare(kernel(block_of(0.1F, 0.1F), {8}), kernel(block_of(0.3F, 0.3F), {8}), {kRate});
  EXPECT_TRUE(table.sound());
  EXPECT_EQ(table.numbers, (std::vector<NumberWord>{{0, 0, 0, NumberEncoding::kFloat32},
                                                    {0, 4, 0, NumberEncoding::kFloat32}}));
}

TEST(NumberWords, ANumberLiesInOneParameter) {
  // Single bytes, a gap and a parameter, of which two make up the number's bits.
  EXPECT_TRUE(compare(kernel(block_of(5, 0), {1, 7}), kernel(block_of(9, 0), {1, 7}), {kPosition})
                  .numbers.empty());
  EXPECT_TRUE(compare(kernel(block_of(0.1, 1, 1), {4, 4, 8}),
                      kernel(block_of(0.3, 1, 1), {4, 4, 8}), {kRate})
                  .numbers.empty());
}

TEST(NumberWords, TheOtherHalfMayBeAnythingElse) {
  const LinkTable table =
      found(block_of(0.1F, 5, 0.1F, 0x11U, 0x11U, 0.1F, 0x22U, 0x33U),
            block_of(0.3F, 9, 0.3F, 0x99U, 0x88U, 0.3F, 0x77U, 0x33U), {kRate, kPosition});
  EXPECT_EQ(table.numbers, (std::vector<NumberWord>{{0, 0, 0, NumberEncoding::kFloat32},
                                                    {0, 4, 1, NumberEncoding::kInt32},
                                                    {0, 8, 0, NumberEncoding::kFloat32},
                                                    {0, 20, 0, NumberEncoding::kFloat32}}));
  EXPECT_EQ(table.noise, 3U) << "two halves beside numbers, and a word of none";
}

TEST(NumberWords, HalfAWordMayEndPackedParameters) {
  const LinkTable table = found(block_of(1, 1, 5), block_of(1, 1, 9), {kPosition});
  EXPECT_EQ(table.numbers, (std::vector<NumberWord>{{0, 8, 0, NumberEncoding::kInt32}}));
  const auto three_bytes = [](std::uint8_t first) {
    return block_of(1, 1, first, std::uint8_t{0}, std::uint8_t{0});
  };
  EXPECT_TRUE(found(three_bytes(5), three_bytes(9), {kPosition}).numbers.empty());
}

TEST(NumberWords, WhatDoesNotChangeInBothIsNone) {
  const LinkTable table = found(block_of(0.1, 0.1, 0.2), block_of(0.1, 0.2, 0.3), {kRate});
  EXPECT_TRUE(table.numbers.empty());
  EXPECT_EQ(table.noise, 2U);
}

TEST(NumberWords, ARegionGoesFirst) {
  const Region& region = kRegions[0];
  const HostNumber like_it{static_cast<std::int64_t>(region.a + 8),
                           static_cast<std::int64_t>(region.b + 8)};
  const LinkTable table = found(block_of(region.a + 8), block_of(region.b + 8), {like_it});
  EXPECT_EQ(table.relocations, (std::vector<Relocation>{{0, 0, 0, 8}}));
  EXPECT_TRUE(table.numbers.empty());
}

TEST(NumberWords, AnAddressThatNobodyExplainsStaysAProblem) {
  const std::uint64_t stale = kPhantom + 0x4000'0000;
  EXPECT_FALSE(
      compare(kernel(block_of(stale)), kernel(block_of(stale + 0x1'0000'0000)), {kRate}).sound());
}

TEST(NumberWords, OfTwoNumbersAreAProblem) {
  const auto problem = [](const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                          const std::vector<HostNumber>& numbers) {
    const LinkTable table = compare(kernel(a), kernel(b), numbers);
    return table.problems.size() == 1 ? table.problems[0] : "";
  };
  const std::string twice = problem(block_of(1.0, 0.1), block_of(1.0, 0.3), {kRate, kRate});
  EXPECT_NE(twice.find("node 0 offset 8"), std::string::npos) << twice;
  EXPECT_NE(twice.find("0 (8 bytes at 8), 1 (8 bytes at 8)"), std::string::npos) << twice;
  // One number as a double, another as the float that is the double's upper half.
  const HostNumber short_double{0.75, 1.5};
  const HostNumber upper_half{std::bit_cast<float>(0x3fe80000), std::bit_cast<float>(0x3ff80000)};
  EXPECT_NE(problem(block_of(0.75), block_of(1.5), {short_double, upper_half}), "");
  EXPECT_EQ(problem(block_of(0.75), block_of(1.5), {short_double}), "");
  const HostNumber negative{std::int64_t{-5}, std::int64_t{-9}};
  EXPECT_NE(problem(block_of(-5, -1), block_of(-9, -1), {negative}), "") << "64 bits or 32";
  // The same values as an integer and as a float are told apart by their bits.
  const HostNumber floating{5.0, 9.0};
  EXPECT_EQ(problem(block_of(5, 1), block_of(9, 1), {kPosition, floating}), "");
  EXPECT_NE(problem(block_of(5.0), block_of(9.0), {kPosition, floating}), "");
}

TEST(NumberWords, AreOfKernelsOnly) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.elementSize = 4;
  fill.width = fill.height = 1;
  const auto filled = [&](unsigned int value) {
    fill.value = value;
    Node node;
    node.kind = NodeKind::kMemset;
    node.form = ParameterForm::kStruct;
    node.block.resize(sizeof fill);
    std::memcpy(node.block.data(), &fill, sizeof fill);
    node.words = {offsetof(CUDA_MEMSET_NODE_PARAMS, dst)};
    Image image;
    image.nodes.push_back(node);
    return image;
  };
  EXPECT_FALSE(compare(filled(5), filled(9), {kPosition}).sound());
  Image a = filled(5);
  Image b = filled(5);
  const std::uint64_t in_a = 5;
  const std::uint64_t in_b = 9;
  std::memcpy(a.nodes[0].block.data(), &in_a, sizeof in_a);
  std::memcpy(b.nodes[0].block.data(), &in_b, sizeof in_b);
  EXPECT_TRUE(compare(a, b, {kPosition}).numbers.empty());
}

TEST(NumberWords, WithoutNumbersAreNone) {
  const LinkTable table = compare(kernel(block_of(0.1, 5)), kernel(block_of(0.3, 9)), {});
  EXPECT_TRUE(table.numbers.empty());
  EXPECT_EQ(table.noise, 1U);
}

TEST(NumberWords, OfWhatDoesNotDifferCannotBeFound) {
  const auto refusal = [](const HostNumber& number) {
    return message_of<std::invalid_argument>(
        [&] { (void)compare(kernel({}), kernel({}), {kRate, number}); });
  };
  const std::string same = refusal({2.0, 2.0});
  EXPECT_NE(same.find("host number 1 has the same 8 bytes"), std::string::npos) << same;
  const std::string rounded = refusal({1.0, 1.0 + 1e-12});
  EXPECT_NE(rounded.find("the same 4 bytes"), std::string::npos) << rounded;
  EXPECT_NE(refusal({std::int64_t{1} << 60, (std::int64_t{1} << 60) + 1}), "");
  const std::string mixed = refusal({1.0, std::int64_t{2}});
  EXPECT_NE(mixed.find("an integer in the other"), std::string::npos) << mixed;
}

TEST(EncodedNumber, HasTheBitsOfItsValue) {
  const EncodedNumber floating(-0.1);
  EXPECT_EQ(floating.as(NumberEncoding::kFloat64), std::bit_cast<std::uint64_t>(-0.1));
  EXPECT_EQ(floating.as(NumberEncoding::kFloat32), std::bit_cast<std::uint32_t>(-0.1F));
  for (const NumberEncoding encoding :
       {NumberEncoding::kInt64, NumberEncoding::kInt32, NumberEncoding::kSmallInteger}) {
    EXPECT_FALSE(floating.as(encoding).has_value());
  }
  const EncodedNumber integer(std::int64_t{-3});
  EXPECT_EQ(integer.as(NumberEncoding::kInt64), ~std::uint64_t{2});
  EXPECT_EQ(integer.as(NumberEncoding::kInt32), 0xFFFF'FFFDU);
  EXPECT_EQ(integer.as(NumberEncoding::kFloat64), std::bit_cast<std::uint64_t>(-3.0));
  EXPECT_EQ(integer.as(NumberEncoding::kFloat32), std::bit_cast<std::uint32_t>(-3.0F));
  EXPECT_FALSE(integer.as(NumberEncoding::kSmallInteger).has_value());
  // Rounded once: through a double it would be a tie, and rounded down.
  const std::int64_t tie = (std::int64_t{1} << 60) + (std::int64_t{1} << 36) + 1;
  EXPECT_EQ(EncodedNumber(tie).as(NumberEncoding::kFloat32),
            std::bit_cast<std::uint32_t>(std::nextafter(0x1p60F, 0x1p61F)));
}

TEST(EncodedNumber, DoesNotFitEverywhere) {
  constexpr auto kLargest = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  EXPECT_EQ(EncodedNumber(kLargest).as(NumberEncoding::kSmallInteger), 0x7FFF'FFFFU);
  for (const std::int64_t value : {kLargest + 1, -kLargest - 2, std::int64_t{1} << 32}) {
    const EncodedNumber wide(value);
    EXPECT_FALSE(wide.as(NumberEncoding::kInt32).has_value()) << value;
    EXPECT_FALSE(wide.as(NumberEncoding::kSmallInteger).has_value()) << value;
    EXPECT_TRUE(wide.as(NumberEncoding::kInt64).has_value()) << value;
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(EncodedNumber(1e300).as(NumberEncoding::kFloat32).has_value());
  EXPECT_TRUE(EncodedNumber(1e300).as(NumberEncoding::kFloat64).has_value());
  EXPECT_EQ(EncodedNumber(-kInfinity).as(NumberEncoding::kFloat32), 0xFF80'0000U);
  EXPECT_TRUE(EncodedNumber(std::nan("")).as(NumberEncoding::kFloat32).has_value());
}

}  // namespace
}  // namespace pygraph
