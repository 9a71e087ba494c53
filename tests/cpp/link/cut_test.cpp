// Where graphs are cut, and what scratch becomes of graphs that are.
#include "link/cut.h"

#include <algorithm>
#include <random>

#include "graphs.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::chain_of;

constexpr std::size_t kPlenty = ~std::size_t{0};

/// What is needed at the worst node of [begin, end), by adding up at every node all that is there:
/// what lives at it, and all that does not share or lives beyond the part, from its start to its
/// end.
std::size_t needed_by_part(const std::vector<Tenant>& tenants, std::uint32_t begin,
                           std::uint32_t end) {
  std::size_t most = 0;
  for (std::uint32_t node = begin; node < end; ++node) {
    std::size_t now = 0;
    for (const Tenant& tenant : tenants) {
      const bool in_part = tenant.first < end && tenant.last >= begin;
      const bool at_node = tenant.first <= node && tenant.last >= node;
      const bool whole_life = tenant.first >= begin && tenant.last < end;
      now += (tenant.share && whole_life ? at_node : in_part) ? tenant.bytes : 0;
    }
    most = std::max(most, now);
  }
  return most;
}

/// The same for the worst part.
std::size_t peak(const std::vector<Tenant>& tenants, std::uint32_t nodes,
                 const std::vector<std::uint32_t>& cuts) {
  std::size_t most = 0;
  std::uint32_t begin = 0;
  for (std::size_t part = 0; part <= cuts.size(); ++part) {
    const std::uint32_t end = part < cuts.size() ? cuts[part] : nodes;
    most = std::max(most, needed_by_part(tenants, begin, end));
    begin = end;
  }
  return most;
}

/// What no cutting can go below: each node a part of its own.
std::size_t least(const std::vector<Tenant>& tenants, std::uint32_t nodes) {
  std::size_t most = 0;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    most = std::max(most, needed_by_part(tenants, node, node + 1));
  }
  return most;
}

void expect_cuts(const std::vector<std::uint32_t>& cuts, std::uint32_t nodes) {
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    EXPECT_GT(cuts[i], i == 0 ? 0 : cuts[i - 1]);
    EXPECT_LT(cuts[i], nodes);
  }
}

/// A backward: node k reads activation k for the last time and makes gradient k.
std::vector<Tenant> backward(std::uint32_t nodes, std::size_t bytes) {
  std::vector<Tenant> tenants;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    tenants.push_back({bytes, 0, node, false});
    tenants.push_back({bytes, node, nodes - 1, false});
    tenants.push_back({bytes / 2, node, std::min(node + 1, nodes - 1), true});
  }
  return tenants;
}

TEST(ChooseCuts, NoneWhereNothingIsGained) {
  EXPECT_TRUE(choose_cuts({}, 100, 1).empty());
  EXPECT_TRUE(choose_cuts({}, 0, 1).empty());
  const std::vector<Tenant> tenants = backward(40, 1000);
  const std::size_t gain = peak(tenants, 40, {}) - least(tenants, 40);
  EXPECT_TRUE(choose_cuts(tenants, 40, gain).empty());
  EXPECT_FALSE(choose_cuts(tenants, 40, gain - 1).empty());
  EXPECT_TRUE(choose_cuts(tenants, 0, 1).empty());
}

TEST(ChooseCuts, NoSlackIsTooLarge) {
  const std::vector<Tenant> tenants = backward(40, 1000);
  EXPECT_TRUE(choose_cuts(tenants, 40, kPlenty, 41).empty());
  EXPECT_TRUE(choose_cuts(tenants, 40, kPlenty - 5, 41).empty());
}

TEST(ChooseCuts, OneNodeIsOnePart) {
  EXPECT_TRUE(choose_cuts(std::vector<Tenant>{{1000, 0, 0, false}}, 1, 1).empty());
  EXPECT_TRUE(choose_cuts(backward(1, 1000), 1, 0).empty());
}

TEST(ChooseCuts, ABackwardHandsMemoryOn) {
  constexpr std::uint32_t kNodes = 40;
  const std::vector<Tenant> tenants = backward(kNodes, 1000);
  for (const std::size_t slack : {std::size_t{4000}, std::size_t{8000}, std::size_t{16000}}) {
    ASSERT_GT(peak(tenants, kNodes, {}), least(tenants, kNodes) + slack);
    const std::vector<std::uint32_t> cuts = choose_cuts(tenants, kNodes, slack);
    ASSERT_FALSE(cuts.empty());
    EXPECT_LT(cuts.size(), 12U);
    expect_cuts(cuts, kNodes);
    EXPECT_LE(peak(tenants, kNodes, cuts), least(tenants, kNodes) + slack);
    EXPECT_GT(needed_by_part(tenants, 0, cuts[0] + 1), least(tenants, kNodes) + slack)
        << "the first part could be longer";
  }
}

TEST(ChooseCuts, TooManyPartsTakeMoreSlack) {
  constexpr std::uint32_t kNodes = 40;
  const std::vector<Tenant> tenants = backward(kNodes, 1000);
  const std::size_t bound = least(tenants, kNodes) + 1;
  const std::vector<std::uint32_t> exact = choose_cuts(tenants, kNodes, 1, kNodes);
  EXPECT_LE(peak(tenants, kNodes, exact), bound);
  for (const std::size_t most : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{12}}) {
    ASSERT_GT(exact.size() + 1, most);
    const std::vector<std::uint32_t> few = choose_cuts(tenants, kNodes, 1, most);
    EXPECT_LT(few.size(), most);
    EXPECT_GT(peak(tenants, kNodes, few), bound) << most;
    // Of a peak that is lower by more than the slack, a part more would be needed: greedily.
    const std::size_t lower = peak(tenants, kNodes, few) - least(tenants, kNodes) - 2;
    EXPECT_GE(choose_cuts(tenants, kNodes, lower, kNodes).size(), most) << most;
    if (most > 1) {
      EXPECT_FALSE(few.empty()) << most;
      EXPECT_LT(peak(tenants, kNodes, few), peak(tenants, kNodes, {})) << most;
    }
  }
}

TEST(ChooseCuts, BuffersThatShareInALongerPartAreNoReasonToCut) {
  // A part that ends with node 2 needs both, since the second lives on; all four nodes need one.
  const std::vector<Tenant> tenants = {{1000, 0, 1, true}, {1000, 2, 3, true}};
  ASSERT_EQ(needed_by_part(tenants, 0, 3), 2000U);
  EXPECT_TRUE(choose_cuts(tenants, 4, 1).empty());
}

TEST(OnePart, IsEnoughWhereTheWholeIsHardlyMoreThanANode) {
  // What does not share is 1000 and 500 bytes; at node 0 are 1000 + 700, at node 3 1500.
  const std::vector<Tenant> tenants = {
      {1000, 0, 3, false}, {500, 3, 3, false}, {700, 0, 0, true}, {700, 1, 2, true}};
  ASSERT_EQ(least(tenants, 4), 1700U);
  EXPECT_TRUE(one_part_is_enough(tenants, 4, 0, 0)) << "less than the nodes: what shares is lent";
  EXPECT_TRUE(one_part_is_enough(tenants, 4, 200, 0));
  EXPECT_FALSE(one_part_is_enough(tenants, 4, 201, 0));
  EXPECT_TRUE(one_part_is_enough(tenants, 4, 700, 500));
  EXPECT_FALSE(one_part_is_enough(tenants, 4, 700, 499));
  EXPECT_TRUE(one_part_is_enough(tenants, 4, 700, kPlenty));
  EXPECT_TRUE(one_part_is_enough({}, 4, 0, 0));
}

TEST(ChooseCuts, PartsOfRandomTenantsNeedLittleMoreThanTheNodes) {
  std::mt19937 random(7);
  const auto below = [&](std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random);
  };
  int cut = 0;
  int enlarged = 0;
  for (int repeat = 0; repeat < 200; ++repeat) {
    const std::uint32_t nodes = 1 + below(60);
    std::vector<Tenant> tenants(below(80));
    for (Tenant& tenant : tenants) {
      const std::uint32_t first = below(3) == 0 ? 0 : below(nodes);
      const std::uint32_t last = below(3) == 0 ? nodes - 1 : first + below(nodes - first);
      tenant = {1 + below(1000), first, last, below(2) == 0};
    }
    const std::size_t slack = below(2) == 0 ? 1 : 1 + below(3000);
    const std::size_t bound = least(tenants, nodes) + slack;
    const std::vector<std::uint32_t> exact = choose_cuts(tenants, nodes, slack, nodes + 1);
    expect_cuts(exact, nodes);
    EXPECT_LE(peak(tenants, nodes, exact), bound) << repeat;
    if (peak(tenants, nodes, {}) <= bound) {
      EXPECT_TRUE(exact.empty()) << repeat;
    }
    const std::size_t most = 1 + below(6);
    const std::vector<std::uint32_t> cuts = choose_cuts(tenants, nodes, slack, most);
    expect_cuts(cuts, nodes);
    EXPECT_LT(cuts.size(), most);
    if (exact.size() < most) {
      EXPECT_EQ(cuts, exact) << repeat;
    }
    cut += exact.empty() ? 0 : 1;
    enlarged += exact.size() < most ? 0 : 1;
  }
  EXPECT_GT(cut, 50) << "too few cases say anything";
  EXPECT_GT(enlarged, 5);
}

TEST(PartOf, CutsBeginParts) {
  const std::vector<std::uint32_t> cuts = {2, 5};
  std::vector<std::uint32_t> parts;
  for (std::uint32_t node = 0; node < 7; ++node) {
    parts.push_back(part_of(node, cuts));
  }
  EXPECT_EQ(parts, (std::vector<std::uint32_t>{0, 0, 1, 1, 1, 2, 2}));
  EXPECT_EQ(part_of(9, {}), 0U);
}

TEST(MostAtOnce, IsOfThePartThatNeedsMost) {
  const std::vector<std::size_t> pieces = {10, 4, 7, 1};
  EXPECT_EQ(most_at_once(pieces, std::vector<PartSpan>(4)), 22U);
  EXPECT_EQ(most_at_once(pieces, std::vector<PartSpan>{{0, 0}, {1, 1}, {1, 2}, {0, 2}}), 12U);
  EXPECT_EQ(most_at_once({}, {}), 0U);
}

// --- the layout ---

constexpr std::size_t kBytes = 1024;

/// Scratch regions, each with the nodes of a chain that mention it, behind `lenders` outputs.
struct Given {
  Given(std::vector<std::vector<std::uint32_t>> nodes, std::uint32_t chain, std::size_t lenders = 0)
      : image(chain_of(chain)),
        scratch(regions_of(nodes.size(), lenders), {}, {},
                static_cast<std::uint32_t>(nodes.size() + lenders)) {
    std::vector<Relocation> relocations;
    for (std::uint32_t node = 0; node < chain; ++node) {
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (std::find(nodes[i].begin(), nodes[i].end(), node) != nodes[i].end()) {
          relocations.push_back({node, 0, static_cast<std::uint32_t>(i + lenders), 0});
        }
      }
    }
    scratch.find_nodes(relocations, image, {});
  }

  static std::vector<LinkRegion> regions_of(std::size_t buffers, std::size_t lenders) {
    std::vector<LinkRegion> regions(lenders, LinkRegion{{}, RegionRole::kFresh, kBytes});
    regions.resize(lenders + buffers, LinkRegion{{}, RegionRole::kScratch, kBytes});
    return regions;
  }

  Image image;
  Scratch scratch;
};

TEST(LayOutParts, OnlyBuffersOfTheSamePartsShareAPiece) {
  const Given given({{0}, {1}, {1, 2}, {3}, {4}, {5}, {0, 5}, {}, {2, 3}}, 6);
  const std::vector<PartSpan> expected = {{0, 0}, {0, 0}, {0, 1}, {1, 1}, {2, 2},
                                          {2, 2}, {0, 2}, {},     {1, 1}};
  const std::vector<std::uint32_t> cuts = {2, 4};
  std::vector<PartSpan> spans = {{7, 7}};
  const Layout layout = lay_out_parts(given.scratch, NodeOrder(given.image), cuts, spans);
  ASSERT_EQ(spans.size(), layout.pieces.size());
  EXPECT_EQ(spans.size(), 5U);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (i == 7) {
      EXPECT_EQ(layout.offsets[i], Layout::kNoPlace);
      EXPECT_EQ(layout.memory[i], Layout::kNoMemory);
      continue;
    }
    ASSERT_LT(layout.memory[i], spans.size());
    EXPECT_EQ(spans[layout.memory[i]], expected[i]) << i;
    EXPECT_LE(layout.offsets[i] + kBytes, layout.pieces[layout.memory[i]]) << i;
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_EQ(layout.memory[i] == layout.memory[j], j != 7 && expected[i] == expected[j])
          << i << " and " << j;
    }
  }
  EXPECT_EQ(layout.offsets[0], layout.offsets[1]) << "one after the other, they share bytes";
  EXPECT_EQ(layout.offsets[4], layout.offsets[5]);
  EXPECT_NE(layout.offsets[3], layout.offsets[8]) << "node 3 needs both";
  EXPECT_EQ(layout.bytes, 6 * kBytes);
  EXPECT_EQ(layout.lower_bound, 2 * kBytes);
}

TEST(LayOutParts, PiecesAreNumberedBehindTheOutputs) {
  const Given given({{0}, {2}}, 3, 4);
  ASSERT_EQ(given.scratch.lenders().size(), 4U);
  std::vector<PartSpan> spans;
  const Layout layout =
      lay_out_parts(given.scratch, NodeOrder(given.image), std::vector<std::uint32_t>{1}, spans);
  EXPECT_EQ(layout.memory, (std::vector<std::uint32_t>{4, 5}));
  EXPECT_EQ(layout.lent, 0U);
  EXPECT_EQ(spans, (std::vector<PartSpan>{{0, 0}, {1, 1}}));
}

TEST(LayOutParts, ThereIsAlwaysOnePiece) {
  const Given given({{}}, 2);
  std::vector<PartSpan> spans;
  const Layout layout =
      lay_out_parts(given.scratch, NodeOrder(given.image), std::vector<std::uint32_t>{1}, spans);
  EXPECT_EQ(layout.pieces, std::vector<std::size_t>{0});
  EXPECT_EQ(spans, std::vector<PartSpan>{{}});
  EXPECT_EQ(layout.bytes, 0U);
}

}  // namespace
}  // namespace pygraph
