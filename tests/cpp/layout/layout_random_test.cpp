// Any layout of any graph is sound.
#include <algorithm>
#include <functional>
#include <random>

#include "graphs.h"
#include "pygraph/layout.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::Edge;
using testing::graph_of;

constexpr std::size_t kAlignment = 256;

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

using Below = std::function<std::uint32_t(std::uint32_t)>;

/// Numbers below a limit, always the same for a seed.
Below seeded(unsigned int seed) {
  return [random = std::mt19937(seed)](std::uint32_t limit) mutable {
    return static_cast<std::uint32_t>(random() % limit);
  };
}

/// Fewer than `limit` of `count` nodes.
std::vector<std::uint32_t> some_nodes(std::uint32_t count, std::uint32_t limit,
                                      const Below& below) {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t i = below(limit); i > 0; --i) {
    nodes.push_back(below(count));
  }
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

/// A graph and its buffers, drawn by a seed.
struct Drawn {
  Image image;
  std::vector<Buffer> buffers;
};

Drawn draw(unsigned int seed, const Below& below) {
  std::uint32_t nodes = 1 + below(70);
  std::vector<Edge> edges;
  if (seed % 4 == 1) {  // up to 4 streams that wait for each other now and then
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
  } else if (seed % 2 == 0) {
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
  std::vector<Buffer> buffers(below(seed % 3 == 0 ? 150 : 40));
  for (Buffer& buffer : buffers) {
    buffer.bytes = below(10) == 0 ? 0 : 1 + below(5000);
    buffer.nodes = some_nodes(nodes, 5, below);
  }
  return {image, buffers};
}

/// The same with each buffer on one of three devices.
std::vector<Buffer> spread(std::vector<Buffer> buffers, const Below& below) {
  for (Buffer& buffer : buffers) {
    buffer.device = below(3);
  }
  return buffers;
}

/// Everything with nodes has a place inside its memory, and shares it with nothing at the same
/// time.
void expect_sound(const Layout& layout, const std::vector<Buffer>& buffers,
                  const std::vector<Lender>& lenders, const std::vector<std::vector<bool>>& reach) {
  std::size_t bytes = 0;
  for (const std::size_t piece : layout.pieces) {
    EXPECT_EQ(piece % kAlignment, 0U);
    bytes += piece;
  }
  EXPECT_EQ(bytes, layout.bytes);
  std::size_t lent = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(layout.offsets[i] == Layout::kNoPlace, buffers[i].nodes.empty());
    EXPECT_EQ(layout.memory[i] == Layout::kNoMemory, buffers[i].nodes.empty());
    if (buffers[i].nodes.empty()) {
      continue;
    }
    EXPECT_EQ(layout.offsets[i] % kAlignment, 0U);
    const std::size_t memory = layout.memory[i];
    ASSERT_LT(memory, lenders.size() + layout.pieces.size());
    const bool is_lent = memory < lenders.size();
    lent += is_lent ? 1 : 0;
    EXPECT_EQ(buffers[i].device,
              is_lent ? lenders[memory].device : layout.devices[memory - lenders.size()]);
    EXPECT_LE(layout.offsets[i] + buffers[i].bytes,
              is_lent ? lenders[memory].bytes : layout.pieces[memory - lenders.size()]);
    if (is_lent) {
      EXPECT_TRUE(separated(reach, buffers[i], {0, lenders[memory].nodes})) << "buffer " << i;
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (!buffers[j].nodes.empty() && layout.memory[j] == memory &&
          !separated(reach, buffers[i], buffers[j]) && !separated(reach, buffers[j], buffers[i])) {
        EXPECT_TRUE(layout.offsets[i] + buffers[i].bytes <= layout.offsets[j] ||
                    layout.offsets[j] + buffers[j].bytes <= layout.offsets[i])
            << "buffers " << i << " and " << j;
      }
    }
  }
  EXPECT_EQ(layout.lent, lent);
}

class RandomLayout : public ::testing::TestWithParam<unsigned int> {};

TEST_P(RandomLayout, BuffersThatMayLiveTogetherNeverOverlap) {
  const Below below = seeded(GetParam());
  const auto [image, buffers] = draw(GetParam(), below);
  const NodeOrder order(image);
  const auto reach = reach_by_search(image);
  const auto nodes = static_cast<std::uint32_t>(image.nodes.size());
  for (std::uint32_t i = 0; i < nodes; ++i) {
    for (std::uint32_t j = 0; j < nodes; ++j) {
      ASSERT_EQ(order.precedes(i, j), reach[i][j]) << i << " before " << j;
      EXPECT_TRUE(j < order.all_after(i) || reach[i][j]) << i << " before all from " << j;
      EXPECT_TRUE(j >= order.all_before(i) || reach[j][i]) << j << " before " << i;
    }
  }
  const Layout layout = lay_out(buffers, order, {.alignment = kAlignment});
  expect_sound(layout, buffers, {}, reach);
  EXPECT_EQ(layout.pieces, std::vector<std::size_t>{layout.bytes});
  EXPECT_GE(layout.bytes, layout.lower_bound);
  EXPECT_EQ(layout.lower_bound, live_by_definition(buffers, reach, kAlignment));
  EXPECT_LE(layout.bytes, bytes_of_plain_greedy(buffers, reach, kAlignment));
}

TEST_P(RandomLayout, LendersAndPiecesKeepThemApartToo) {
  const Below below = seeded(GetParam());
  const auto [image, buffers] = draw(GetParam(), below);
  const NodeOrder order(image);
  const auto reach = reach_by_search(image);
  std::vector<Lender> lenders(1 + below(3));
  for (Lender& lender : lenders) {
    lender.bytes = below(12000);
    lender.nodes = some_nodes(static_cast<std::uint32_t>(image.nodes.size()), 3, below);
  }
  LayoutOptions options{.alignment = kAlignment, .lenders = lenders, .smallest_loan = 1};
  const Layout alone = lay_out(buffers, order, {.alignment = kAlignment});
  const Layout lent = lay_out(buffers, order, options);
  expect_sound(lent, buffers, lenders, reach);
  EXPECT_LE(lent.bytes, alone.bytes);
  EXPECT_EQ(lent.lent != 0, lent.bytes != alone.bytes);
  std::vector<Buffer> in_arena = buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (lent.memory[i] < lenders.size()) {
      in_arena[i].nodes.clear();
    }
  }
  EXPECT_EQ(lent.lower_bound, live_by_definition(in_arena, reach, kAlignment));
  options.in_pieces = true;
  const Layout pieces = lay_out(buffers, order, options);
  expect_sound(pieces, buffers, lenders, reach);
  EXPECT_EQ(pieces.lent, lent.lent);
  EXPECT_LE(pieces.pieces.size(), 16U);
  std::size_t largest = lent.bytes / 8;
  for (const Buffer& buffer : buffers) {
    largest = std::max(largest, buffer.nodes.empty() ? 0 : buffer.bytes);
  }
  for (const std::size_t bytes : pieces.pieces) {
    EXPECT_LE(bytes, largest + kAlignment - 1);
  }
}

TEST_P(RandomLayout, DevicesAreLaidOutEachForItself) {
  const Below below = seeded(GetParam());
  const auto [image, drawn] = draw(GetParam(), below);
  const std::vector<Buffer> buffers = spread(drawn, below);
  const NodeOrder order(image);
  std::vector<Lender> lenders(1 + below(3));
  for (Lender& lender : lenders) {
    lender.bytes = below(12000);
    lender.nodes = some_nodes(static_cast<std::uint32_t>(image.nodes.size()), 3, below);
    lender.device = below(3);
  }
  const LayoutOptions options{.alignment = kAlignment, .lenders = lenders, .smallest_loan = 1};
  const Layout layout = lay_out(buffers, order, options);
  expect_sound(layout, buffers, lenders, reach_by_search(image));
  ASSERT_EQ(layout.devices.size(), layout.pieces.size());
  std::size_t bytes = 0;
  for (std::uint32_t device = 0; device < 3; ++device) {
    std::vector<Buffer> own;
    std::vector<Lender> of_own;
    for (const Buffer& buffer : buffers) {
      if (buffer.device == device) {
        own.push_back({buffer.bytes, buffer.nodes, 0});
      }
    }
    for (const Lender& lender : lenders) {
      if (lender.device == device) {
        of_own.push_back({lender.bytes, lender.nodes, 0});
      }
    }
    LayoutOptions alone = options;
    alone.lenders = of_own;
    bytes += lay_out(own, order, alone).bytes;
  }
  EXPECT_EQ(layout.bytes, bytes);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayout, ::testing::Range(0U, 200U));

}  // namespace
}  // namespace pygraph
