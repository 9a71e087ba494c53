#include "pygraph/layout.h"

#include <algorithm>
#include <random>

#include "support.h"

namespace pygraph {
namespace {

using Edge = std::pair<std::uint32_t, std::uint32_t>;

Image graph_of(std::size_t nodes, std::vector<Edge> edges) {
  Image image;
  image.nodes.resize(nodes);
  std::sort(edges.begin(), edges.end());
  image.edges = std::move(edges);
  return image;
}

Image chain_of(std::uint32_t nodes) {
  std::vector<Edge> edges;
  for (std::uint32_t i = 1; i < nodes; ++i) {
    edges.emplace_back(i - 1, i);
  }
  return graph_of(nodes, std::move(edges));
}

bool overlap(const Layout& layout, const std::vector<Buffer>& buffers, std::size_t i,
             std::size_t j) {
  return layout.offsets[i] < layout.offsets[j] + buffers[j].bytes &&
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
    const Layout layout = lay_out(buffers, NodeOrder(chain_of(2)), alignment);
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

// --- property test: any layout of any graph is sound ---

/// Reachability by depth-first search: no code shared with NodeOrder.
std::vector<std::vector<bool>> reach_by_search(const Image& image) {
  const std::size_t count = image.nodes.size();
  std::vector<std::vector<bool>> reach(count, std::vector<bool>(count, false));
  for (std::uint32_t start = 0; start < count; ++start) {
    std::vector<std::uint32_t> open = {start};
    while (!open.empty()) {
      const std::uint32_t node = open.back();
      open.pop_back();
      for (const auto& [from, to] : image.edges) {
        if (from == node && !reach[start][to]) {
          reach[start][to] = true;
          open.push_back(to);
        }
      }
    }
  }
  return reach;
}

/// Whether every node of one comes before every node of the other.
bool separated(const std::vector<std::vector<bool>>& reach, const Buffer& first,
               const Buffer& second) {
  for (const std::uint32_t before : first.nodes) {
    for (const std::uint32_t after : second.nodes) {
      if (!reach[before][after]) {
        return false;
      }
    }
  }
  return true;
}

/// What the layout was before it was made fast: greedy by size alone, every pair compared.
std::size_t bytes_of_plain_greedy(const std::vector<Buffer>& buffers,
                                  const std::vector<std::vector<bool>>& reach,
                                  std::size_t alignment) {
  std::vector<std::size_t> by_size;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i].nodes.empty()) {
      by_size.push_back(i);
    }
  }
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](auto i, auto j) { return buffers[i].bytes > buffers[j].bytes; });
  std::vector<std::pair<std::size_t, std::size_t>> placed;  // offset, buffer
  std::size_t bytes = 0;
  for (const std::size_t i : by_size) {
    std::size_t offset = 0;
    for (const auto& [start, j] : placed) {
      if (start < offset + buffers[i].bytes && !separated(reach, buffers[i], buffers[j]) &&
          !separated(reach, buffers[j], buffers[i])) {
        offset =
            std::max(offset, (start + buffers[j].bytes + alignment - 1) / alignment * alignment);
      }
    }
    placed.emplace_back(offset, i);
    std::sort(placed.begin(), placed.end());
    bytes = std::max(bytes, (offset + buffers[i].bytes + alignment - 1) / alignment * alignment);
  }
  return bytes;
}

/// The bytes that must be live at the worst node, straight from the definition.
std::size_t live_by_definition(const std::vector<Buffer>& buffers,
                               const std::vector<std::vector<bool>>& reach, std::size_t alignment) {
  std::size_t maximum = 0;
  for (std::uint32_t node = 0; node < reach.size(); ++node) {
    std::size_t live = 0;
    for (const Buffer& buffer : buffers) {
      const auto any = [&](auto&& test) {
        return std::any_of(buffer.nodes.begin(), buffer.nodes.end(), test);
      };
      if (any([&](auto user) { return user == node; }) ||
          (any([&](auto user) { return reach[user][node]; }) &&
           any([&](auto user) { return reach[node][user]; }))) {
        live += (buffer.bytes + alignment - 1) / alignment * alignment;
      }
    }
    maximum = std::max(maximum, live);
  }
  return maximum;
}

/// A series-parallel graph: chains that fork into branches and join again, as streams make them.
/// Branches are listed one after the other. Appends about `nodes` nodes behind `entry` and returns
/// the last.
template <typename Below>
std::uint32_t series_parallel(std::vector<Edge>& edges, std::uint32_t& next, std::uint32_t entry,
                              std::uint32_t nodes, const Below& below) {
  while (nodes > 0) {
    const std::uint32_t part = 1 + below(nodes);
    nodes -= part;
    const std::uint32_t branches = part > 4 ? 1 + below(3) : 1;
    std::vector<std::uint32_t> ends;
    for (std::uint32_t i = 0; i < branches; ++i) {
      edges.emplace_back(entry, next);
      std::uint32_t end = next++;
      if (branches > 1) {
        end = series_parallel(edges, next, end, part / branches - 1, below);
      }
      ends.push_back(end);
    }
    entry = ends.front();
    if (branches > 1) {
      entry = next++;
      for (const std::uint32_t end : ends) {
        edges.emplace_back(end, entry);
      }
    }
  }
  return entry;
}

class RandomLayout : public ::testing::TestWithParam<unsigned int> {};

TEST_P(RandomLayout, BuffersThatMayLiveTogetherNeverOverlap) {
  std::mt19937 random(GetParam());
  const auto below = [&](std::uint32_t limit) {
    return static_cast<std::uint32_t>(random() % limit);
  };
  std::uint32_t nodes = 1 + below(70);
  std::vector<Edge> edges;
  if (GetParam() % 4 == 1) {  // up to 4 streams that wait for each other now and then
    const std::uint32_t streams = 1 + below(4);
    nodes += 32 * streams;
    std::vector<std::uint32_t> last(streams, nodes);
    for (std::uint32_t node = 0; node < nodes; ++node) {
      std::uint32_t& before = last[below(streams)];
      if (before != nodes) {
        edges.emplace_back(before, node);
      }
      if (const std::uint32_t other = last[below(streams)];
          below(5) == 0 && other != nodes && other != before) {
        edges.emplace_back(other, node);
      }
      before = node;
    }
  } else if (GetParam() % 2 == 0) {
    const std::uint32_t density = 1 + below(100);  // from nearly no edges to nearly all
    for (std::uint32_t to = 1; to < nodes; ++to) {
      for (std::uint32_t from = 0; from < to; ++from) {
        if (below(100) < density && below(8) == 0) {
          edges.emplace_back(from, to);
        }
      }
    }
  } else {
    std::uint32_t next = 1;
    series_parallel(edges, next, 0, 2 * nodes, below);
    nodes = next;
  }
  const Image image = graph_of(nodes, std::move(edges));
  std::vector<Buffer> buffers(below(GetParam() % 3 == 0 ? 150 : 40));
  for (Buffer& buffer : buffers) {
    buffer.bytes = below(10) == 0 ? 0 : 1 + below(5000);
    for (std::uint32_t i = below(5); i > 0; --i) {
      buffer.nodes.push_back(below(nodes));
    }
    std::sort(buffer.nodes.begin(), buffer.nodes.end());
    buffer.nodes.erase(std::unique(buffer.nodes.begin(), buffer.nodes.end()), buffer.nodes.end());
  }

  const NodeOrder order(image);
  const auto reach = reach_by_search(image);
  for (std::uint32_t i = 0; i < nodes; ++i) {
    for (std::uint32_t j = 0; j < nodes; ++j) {
      ASSERT_EQ(order.precedes(i, j), reach[i][j]) << i << " before " << j;
      EXPECT_TRUE(j < order.all_after(i) || reach[i][j]) << i << " before all from " << j;
      EXPECT_TRUE(j >= order.all_before(i) || reach[j][i]) << j << " before " << i;
    }
  }
  const Layout layout = lay_out(buffers, order, 256);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(layout.offsets[i] == Layout::kNoPlace, buffers[i].nodes.empty());
    if (buffers[i].nodes.empty()) {
      continue;
    }
    EXPECT_EQ(layout.offsets[i] % 256, 0U);
    EXPECT_LE(layout.offsets[i] + buffers[i].bytes, layout.bytes);
    for (std::size_t j = 0; j < i; ++j) {
      if (!buffers[j].nodes.empty() && !separated(reach, buffers[i], buffers[j]) &&
          !separated(reach, buffers[j], buffers[i])) {
        EXPECT_FALSE(overlap(layout, buffers, i, j)) << "buffers " << i << " and " << j;
      }
    }
  }
  EXPECT_GE(layout.bytes, layout.lower_bound);
  EXPECT_EQ(layout.lower_bound, live_by_definition(buffers, reach, 256));
  EXPECT_LE(layout.bytes, bytes_of_plain_greedy(buffers, reach, 256));
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayout, ::testing::Range(0U, 200U));

}  // namespace
}  // namespace pygraph
