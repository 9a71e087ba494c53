#include "pygraph/layout.h"

#include <algorithm>

#include "graphs.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::chain_of;
using testing::graph_of;

bool overlap(const Layout& layout, const std::vector<Buffer>& buffers, std::size_t i,
             std::size_t j) {
  return layout.memory[i] == layout.memory[j] &&
         layout.offsets[i] < layout.offsets[j] + buffers[j].bytes &&
         layout.offsets[j] < layout.offsets[i] + buffers[i].bytes;
}

TEST(Layout, DisjointLivesShareBytes) {
  const std::vector<Buffer> buffers = {{1024, {0, 1}}, {1024, {2, 3}}};
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(4)));
  EXPECT_EQ(layout.offsets[0], layout.offsets[1]);
  EXPECT_EQ(layout.bytes, 1024U);
  EXPECT_EQ(layout.lower_bound, 1024U);
}

TEST(Layout, ANodeThatReadsOneAndWritesTheOtherKeepsThemApart) {
  const std::vector<Buffer> buffers = {{1024, {0, 1}}, {512, {1, 2}}};
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(3)));
  EXPECT_FALSE(overlap(layout, buffers, 0, 1));
  EXPECT_EQ(layout.bytes, 1536U);
  EXPECT_EQ(layout.lower_bound, 1536U);
}

TEST(Layout, IdleInTheMiddleIsNotFree) {
  // The first buffer is not mentioned by node 1, but its contents are needed by node 2.
  const std::vector<Buffer> buffers = {{1024, {0, 2}}, {1024, {1}}};
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(3)));
  EXPECT_FALSE(overlap(layout, buffers, 0, 1));
  EXPECT_EQ(layout.lower_bound, 2048U);
}

TEST(Layout, BranchesDoNotShare) {
  // 0 forks into 1 and 2, which join in 3: the listing puts 1 before 2, execution need not.
  const Image diamond = graph_of(4, {{0, 1}, {0, 2}, {1, 3}, {2, 3}});
  const std::vector<Buffer> buffers = {{1024, {1}}, {1024, {2}}, {1024, {3}}};
  const Layout layout = lay_out(buffers, NodeOrder(diamond));
  EXPECT_FALSE(overlap(layout, buffers, 0, 1));
  EXPECT_EQ(layout.bytes, 2048U) << "what comes after the join reuses either";
}

TEST(Layout, LowerBoundCountsOnlyWhatMustBeLive) {
  // 0 forks into 1 and 2. The first buffer may be done with (0, 2) before 1 starts, or not.
  const std::vector<Buffer> buffers = {{1024, {0, 2}}, {512, {1}}};
  const Layout layout = lay_out(buffers, NodeOrder(graph_of(3, {{0, 1}, {0, 2}})));
  EXPECT_EQ(layout.lower_bound, 1024U);
  EXPECT_EQ(layout.bytes, 1536U);
}

TEST(Layout, NodesWithoutEdgesAreConcurrent) {
  const std::vector<Buffer> buffers = {{512, {0}}, {512, {1}}};
  EXPECT_EQ(lay_out(buffers, NodeOrder(graph_of(2, {}))).bytes, 1024U);
}

TEST(Layout, BuffersWithoutNodesGetNoPlace) {
  const std::vector<Buffer> buffers = {{1 << 20, {}}, {512, {0}}, {4096, {}}};
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(1)));
  EXPECT_EQ(layout.offsets[0], Layout::kNoPlace);
  EXPECT_EQ(layout.offsets[1], 0U);
  EXPECT_EQ(layout.offsets[2], Layout::kNoPlace);
  EXPECT_EQ(layout.bytes, 512U);
}

TEST(Layout, NothingToPlace) {
  const Layout layout = lay_out({}, NodeOrder(chain_of(3)));
  EXPECT_EQ(layout.bytes, 0U);
  EXPECT_EQ(layout.lower_bound, 0U);
  EXPECT_EQ(lay_out({}, NodeOrder(Image{})).bytes, 0U);
}

TEST(Layout, OffsetsAreAligned) {
  const std::vector<Buffer> buffers = {{1, {0, 1}}, {700, {0, 1}}, {3, {0, 1}}, {513, {0, 1}}};
  for (const std::size_t alignment : {std::size_t{1}, std::size_t{256}, std::size_t{512}}) {
    const Layout layout = lay_out(buffers, NodeOrder(chain_of(2)), {.alignment = alignment});
    for (const std::size_t offset : layout.offsets) {
      EXPECT_EQ(offset % alignment, 0U);
    }
    EXPECT_EQ(layout.bytes % alignment, 0U);
    EXPECT_GE(layout.bytes, layout.lower_bound);
  }
}

TEST(Layout, AHoleBetweenNeighboursIsUsed) {
  // In the arena: 0 at the bottom for ever, 1 above it until node 1, 2 above that for ever.
  const std::vector<Buffer> buffers = {
      {4096, {0, 3}}, {2048, {0, 1}}, {1024, {0, 3}}, {1024, {2}}, {1024, {2, 3}}};
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(4)));
  EXPECT_EQ(layout.bytes, 4096U + 2048U + 1024U) << "3 and 4 fit where 1 was";
  EXPECT_EQ(layout.bytes, layout.lower_bound);
}

TEST(Layout, ManyThatLiveAtOnceStandSideBySide) {
  // Lives like those of saved activations, one inside the other; most of 400 live in the middle.
  constexpr std::uint32_t kNodes = 800;
  std::vector<Buffer> buffers;
  for (std::uint32_t i = 0; i < kNodes / 2; ++i) {
    buffers.push_back({std::size_t{512} * (1 + i % 7), {i, kNodes - 1 - i}});
    buffers.push_back({std::size_t{512} * (1 + i % 5), {i}});
  }
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(kNodes)));
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const bool apart = buffers[i].nodes.back() < buffers[j].nodes.front() ||
                         buffers[j].nodes.back() < buffers[i].nodes.front();
      EXPECT_TRUE(apart || !overlap(layout, buffers, i, j)) << "buffers " << i << " and " << j;
    }
  }
  EXPECT_LE(layout.bytes, layout.lower_bound + layout.lower_bound / 50);
}

TEST(Layout, TheSecondOrderIsTakenWhereItIsSmaller) {
  // By size, 0 comes first and 1, which lives longer, has to go on top: 10 units. By size times
  // life it is the other way round, and 9 are enough.
  constexpr std::size_t kUnit = 512;
  const std::vector<Buffer> buffers = {
      {4 * kUnit, {0, 1}}, {4 * kUnit, {1, 3}}, {3 * kUnit, {2, 3}}, {2 * kUnit, {3}}};
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(4)));
  EXPECT_EQ(layout.lower_bound, 9 * kUnit);
  EXPECT_EQ(layout.bytes, 9 * kUnit);
}

TEST(NodeOrder, IsReachability) {
  // More than 64 nodes, so that bit sets take several words.
  const NodeOrder order(chain_of(200));
  EXPECT_TRUE(order.precedes(0, 199));
  EXPECT_TRUE(order.precedes(63, 64));
  EXPECT_FALSE(order.precedes(199, 0));
  EXPECT_FALSE(order.precedes(5, 5));
}

// --- outputs that lend memory, and arenas in pieces ---

/// The options for `lenders`, whatever they lend.
LayoutOptions lending(const std::vector<Lender>& lenders) {
  LayoutOptions options;
  options.lenders = lenders;
  options.smallest_loan = 1;
  return options;
}

TEST(Loans, BuffersStandInAnOutputUntilItIsWritten) {
  // 0 -> 1 -> 2 -> 3 with the output written by 3, which reads the last buffer.
  const std::vector<Buffer> buffers = {{1024, {0, 1}}, {1024, {1, 2}}, {512, {2, 3}}};
  const std::vector<Lender> lenders = {{3000, {3}}};
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(4)), lending(lenders));
  EXPECT_EQ(layout.memory, (std::vector<std::uint32_t>{0, 0, 1}));
  EXPECT_EQ(layout.lent, 2U);
  EXPECT_FALSE(overlap(layout, buffers, 0, 1));
  EXPECT_EQ(layout.pieces, std::vector<std::size_t>{512});
  EXPECT_EQ(layout.bytes, 512U);
  EXPECT_EQ(layout.lower_bound, 512U);
}

TEST(Loans, TheLargestLenderIsAskedFirstAndWhatDoesNotFitGoesOn) {
  const std::vector<Buffer> buffers = {{1024, {0, 1}}, {1024, {0, 1}}, {1024, {0, 1}}};
  const std::vector<Lender> lenders = {{1024, {2}}, {1500, {3}}};
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(4)), lending(lenders));
  EXPECT_EQ(layout.memory, (std::vector<std::uint32_t>{1, 0, 2}));
  EXPECT_EQ(layout.bytes, 1024U);
}

TEST(Loans, BranchesBesideTheOutputGetNothing) {
  // 0 forks into 1 and 2: nothing says that 1 is done before 2 writes the output.
  const std::vector<Buffer> buffers = {{1024, {0, 1}}, {1024, {0}}};
  const std::vector<Lender> lenders = {{4096, {2}}};
  const Layout layout =
      lay_out(buffers, NodeOrder(graph_of(3, {{0, 1}, {0, 2}})), lending(lenders));
  EXPECT_EQ(layout.memory, (std::vector<std::uint32_t>{1, 0}));
}

TEST(Loans, AnOutputIsNeededOnceItIsWritten) {
  const std::vector<Buffer> buffers = {{1024, {1, 2}}};
  const std::vector<Lender> lenders = {{4096, {0}}};
  EXPECT_EQ(lay_out(buffers, NodeOrder(chain_of(3)), lending(lenders)).lent, 0U);
}

TEST(Loans, NothingIsLentForTooLittle) {
  std::vector<Buffer> buffers = {{64 << 10, {0, 1}}, {1 << 10, {0, 1}}};
  const NodeOrder order(chain_of(3));
  const std::vector<Lender> lenders = {{1 << 20, {2}}};
  LayoutOptions options = lending(lenders);
  EXPECT_EQ(lay_out(buffers, order, options).lent, 1U) << "the other is 1/65 of the arena";
  options.smallest_loan = (64 << 10) + 1;
  EXPECT_EQ(lay_out(buffers, order, options).lent, 0U);
  options.smallest_loan = 64 << 10;
  EXPECT_EQ(lay_out(buffers, order, options).lent, 1U);
  const std::vector<Lender> huge = {{std::size_t{65 << 10} * 64, {2}}};
  EXPECT_EQ(lay_out(buffers, order, lending(huge)).lent, 0U) << "less than 1/64 of all memory";
  const std::vector<Lender> near = {{2048, {2}}};
  const std::vector<Buffer> small = {{600, {0}}, {600, {0}}};
  options = lending(near);
  EXPECT_EQ(lay_out(small, order, options).lent, 2U);
  options.smallest_loan = 1000;
  EXPECT_EQ(lay_out(small, order, options).lent, 0U) << "each of them is too small";
  // What is lent does not make this arena smaller: others need as much at another time.
  buffers = {{4096, {0}}, {4096, {2}}};
  EXPECT_EQ(lay_out(buffers, order, lending({lenders})).lent, 0U);
}

TEST(Loans, ApartMeansApartFromOutputsToo) {
  const std::vector<Buffer> buffers = {{1024, {0, 1}}, {512, {2, 3}}};
  const std::vector<Lender> lenders = {{4096, {3}}};
  LayoutOptions options = lending(lenders);
  options.share = false;
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(4)), options);
  EXPECT_EQ(layout.memory, (std::vector<std::uint32_t>{1, 1}));
  EXPECT_EQ(layout.offsets, (std::vector<std::size_t>{0, 1024}));
}

TEST(Pieces, AreAsLargeAsTheLargestBufferInThem) {
  // Four live together: in one piece 3 KiB + 512 bytes; nothing is larger than 2 KiB.
  const std::vector<Buffer> buffers = {{512, {0}}, {2048, {0}}, {500, {0}}, {512, {0}}};
  LayoutOptions options;
  options.in_pieces = true;
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(1)), options);
  EXPECT_EQ(layout.pieces, (std::vector<std::size_t>{2048, 512, 512, 512}));
  EXPECT_EQ(layout.memory, (std::vector<std::uint32_t>{1, 0, 3, 2}));
  EXPECT_EQ(layout.offsets, (std::vector<std::size_t>{0, 0, 0, 0}));
  EXPECT_EQ(layout.bytes, 3584U);
}

TEST(Pieces, AreNotManyWhereBuffersAreSmall) {
  const std::vector<Buffer> buffers(1000, {512, {0}});
  LayoutOptions options;
  options.in_pieces = true;
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(1)), options);
  EXPECT_EQ(layout.pieces, std::vector<std::size_t>(8, std::size_t{125} * 512));
}

TEST(Pieces, AreOfOneDeviceEach) {
  // Three that could share bytes; one of them is on another device.
  const std::vector<Buffer> buffers = {{1024, {0}, 0}, {2048, {1}, 2}, {512, {2}, 0}};
  for (const bool in_pieces : {false, true}) {
    LayoutOptions options;
    options.in_pieces = in_pieces;
    const Layout layout = lay_out(buffers, NodeOrder(chain_of(3)), options);
    EXPECT_EQ(layout.pieces, (std::vector<std::size_t>{1024, 2048}));
    EXPECT_EQ(layout.devices, (std::vector<std::uint32_t>{0, 2}));
    EXPECT_EQ(layout.memory, (std::vector<std::uint32_t>{0, 1, 0}));
    EXPECT_EQ(layout.bytes, 3072U);
    EXPECT_EQ(layout.lower_bound, 3072U);
  }
}

TEST(Pieces, TheGraphsOwnDeviceHasTheFirstThoughItNeedsNone) {
  const std::vector<Buffer> buffers = {{1024, {0}, 1}};
  const Layout layout = lay_out(buffers, NodeOrder(chain_of(1)));
  EXPECT_EQ(layout.pieces, (std::vector<std::size_t>{0, 1024}));
  EXPECT_EQ(layout.devices, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(layout.memory, std::vector<std::uint32_t>{1});
}

TEST(Loans, AreMadeOnTheSameDevice) {
  const std::vector<Lender> lenders = {{4096, {3}, 0}, {4096, {3}, 1}};
  for (const std::uint32_t device : {0U, 1U}) {
    const std::vector<Buffer> buffers = {{4096, {0}, device}};
    LayoutOptions options;
    options.lenders = lenders;
    options.smallest_loan = 1;
    const Layout layout = lay_out(buffers, NodeOrder(chain_of(4)), options);
    EXPECT_EQ(layout.memory, std::vector<std::uint32_t>{device});
    EXPECT_EQ(layout.bytes, 0U);
  }
}

TEST(Pieces, ThereIsAlwaysOne) {
  for (const bool in_pieces : {false, true}) {
    LayoutOptions options;
    options.in_pieces = in_pieces;
    EXPECT_EQ(lay_out({}, NodeOrder(chain_of(1)), options).pieces, std::vector<std::size_t>{0});
  }
}

}  // namespace
}  // namespace pygraph
