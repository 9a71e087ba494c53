#include <random>
#include <set>

#include "pygraph/rethread.h"
#include "support.h"

namespace pygraph {
namespace {

ByteSet view(std::uint64_t offset, std::vector<ByteSet::Dimension> dimensions) {
  return {.offset = offset, .item_bytes = 4, .dimensions = std::move(dimensions)};
}

std::set<std::uint64_t> all_bytes(const ByteSet& bytes) {
  std::set<std::uint64_t> starts{bytes.offset};
  for (const ByteSet::Dimension& each : bytes.dimensions) {
    std::set<std::uint64_t> more;
    for (std::uint64_t i = 0; i < each.size; ++i) {
      for (const std::uint64_t start : starts) {
        more.insert(start + i * each.stride);
      }
    }
    starts = std::move(more);
  }
  std::set<std::uint64_t> found;
  for (const std::uint64_t start : starts) {
    for (std::uint64_t i = 0; i < bytes.item_bytes; ++i) {
      found.insert(start + i);
    }
  }
  return found;
}

TEST(ByteSet, ChannelsOfAConcatenationAreApart) {
  // (2, 3, 4, 4) and (2, 5, 4, 4) of one (2, 8, 4, 4) tensor: interleaved, since there are two
  // images.
  const ByteSet first = view(0, {{2, 512}, {3, 64}, {4, 16}, {4, 4}});
  const ByteSet second = view(192, {{2, 512}, {5, 64}, {4, 16}, {4, 4}});
  EXPECT_FALSE(overlap(first, second));
  EXPECT_TRUE(overlap(first, view(128, {{2, 512}, {5, 64}, {4, 16}, {4, 4}})));
}

TEST(ByteSet, ColumnsOfAMatrixAreApart) {
  EXPECT_FALSE(overlap(view(0, {{8, 64}, {3, 4}}), view(12, {{8, 64}, {13, 4}})));
  EXPECT_TRUE(overlap(view(0, {{8, 64}, {4, 4}}), view(12, {{8, 64}, {13, 4}})));
}

TEST(ByteSet, RowsThatRunIntoEachOtherMayOverlap) {
  // 20 elements in rows of 16: the last ones are the next row's first.
  EXPECT_TRUE(overlap(view(0, {{4, 64}, {20, 4}}), view(32, {{4, 64}, {2, 4}})));
}

TEST(ByteSet, TheWholeRegionOverlapsAll) {
  EXPECT_TRUE(overlap({}, view(400, {{4, 4}})));
  EXPECT_TRUE(overlap({}, {}));
}

TEST(ByteSet, NothingOverlapsWhatHasNoElements) { EXPECT_FALSE(overlap(view(0, {{0, 4}}), {})); }

TEST(ByteSet, WhatIsBroadcastOverlapsWhereItReaches) {
  EXPECT_TRUE(overlap(view(0, {{8, 0}}), view(0, {{8, 4}})));
  EXPECT_FALSE(overlap(view(0, {{8, 0}}), view(4, {{8, 4}})));
}

TEST(ByteSet, IsNeverSaidToBeApartWhereItIsNot) {
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same in each run
  const auto draw = [&](std::uint64_t below) { return random() % below; };
  int apart = 0;
  int tight = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    std::vector<ByteSet> pair;
    const std::uint64_t row = 4 * (1 + draw(6));
    for (int each = 0; each < 2; ++each) {
      const std::uint64_t stride = draw(3) == 0 ? 4 * (1 + draw(12)) : row * (1 + draw(2));
      pair.push_back(
          view(4 * draw(40), {{1 + draw(4), stride}, {1 + draw(6), 4}, {1 + draw(2), row * 8}}));
    }
    const std::set<std::uint64_t> left = all_bytes(pair[0]);
    const std::set<std::uint64_t> right = all_bytes(pair[1]);
    const bool shared = std::any_of(left.begin(), left.end(),
                                    [&](std::uint64_t byte) { return right.contains(byte); });
    const bool told = overlap(pair[0], pair[1]);
    ASSERT_TRUE(told || !shared) << turn;
    apart += shared ? 0 : 1;
    tight += told ? 0 : 1;
  }
  EXPECT_GT(tight, apart / 2) << "most that are apart are told apart";
}

}  // namespace
}  // namespace pygraph
