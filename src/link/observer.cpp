#include <algorithm>
#include <stdexcept>

#include "copies.h"
#include "lanes.h"

namespace pygraph {
namespace {

/// Copies begin at multiples of this, as memory of torch's does.
constexpr std::uint64_t kStep = kArenaAlignment;

/// Whether nothing of the region stays what it was.
bool cover(std::span<const ByteSet> writes, std::uint64_t bytes) {
  return std::any_of(writes.begin(), writes.end(), [bytes](const ByteSet& each) {
    std::uint64_t elements = 1;
    for (const ByteSet::Dimension& dimension : each.dimensions) {
      elements *= dimension.size;
    }
    const bool dense = elements != 0 && each.offset == 0 && each.end() == bytes &&
                       elements * each.item_bytes == bytes;
    return each.whole() || dense;
  });
}

}  // namespace

Observer::Observer(const LinkedGraph& linked, std::uint32_t first, std::uint64_t most) {
  if (linked.independence == nullptr) {
    throw std::invalid_argument("it is not known what the nodes of this graph write");
  }
  const Independence& known = *linked.independence;
  std::vector<bool> addressed(known.mentions.size());  // others have no place when it runs
  for (const Relocation& relocation : known.relocations) {
    addressed[relocation.region] = true;
  }
  for (std::uint32_t region = first; region < known.mentions.size(); ++region) {
    const std::vector<Mention>& mentions = known.mentions[region];
    const bool written = std::any_of(mentions.begin(), mentions.end(),
                                     [](const Mention& each) { return !each.writes.empty(); });
    const bool looked_at = addressed[region] && (written || !known.kept[region]);
    if (!looked_at || known.bytes[region] == 0) {
      continue;
    }
    const std::size_t copies = copies_.size();
    const std::size_t pairs = pairs_.size();
    const std::uint64_t bytes = bytes_;
    look_at(region, known.bytes[region], mentions);
    if (bytes_ > most && copies != 0) {
      copies_.resize(copies);
      pairs_.resize(pairs);
      bytes_ = bytes;
      next_ = region;
      break;
    }
  }
  std::stable_sort(copies_.begin(), copies_.end(),
                   [](const Copy& left, const Copy& right) { return left.node < right.node; });
}

std::size_t Observer::copy(std::uint32_t region, std::uint32_t node, std::uint64_t bytes) {
  copies_.push_back({region, node, bytes, bytes_});
  bytes_ += round_up(bytes, kStep);
  return copies_.size() - 1;
}

void Observer::look_at(std::uint32_t region, std::uint64_t bytes,
                       std::span<const Mention> mentions) {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t last = kNone;  // the copy that tells what it holds now
  // Nothing is said to write it between that copy and the node.
  const auto unchanged_until = [&](std::uint32_t node) {
    if (last == kNone) {
      last = copy(region, node, bytes);
    } else if (copies_[last].node != node) {
      const Copy before = copies_[last];
      last = copy(region, node, bytes);
      pairs_.push_back({before.offset, copies_[last].offset, bytes, {}, before.node, node - 1});
    }
  };
  for (const Mention& each : mentions) {
    if (each.writes.empty()) {
      if (last == kNone) {
        unchanged_until(each.first);
      }
      continue;
    }
    const bool whole = cover(each.writes, bytes);
    if (last != kNone || !whole) {
      unchanged_until(each.first);
    }
    const std::size_t before = last;
    last = copy(region, each.last + 1, bytes);
    if (!whole) {
      pairs_.push_back({copies_[before].offset, copies_[last].offset, bytes, each.writes,
                        each.first, each.last});
    }
  }
  unchanged_until(mentions.back().last + 1);
}

LinkedGraph Observer::observed(const Driver& driver, const LinkedGraph& linked,
                               CUdeviceptr memory) const {
  const Independence& known = *linked.independence;
  LinkedGraph made = in_one_part(driver, linked);
  CUgraph graph = made.graph.get();
  CUcontext context = nullptr;
  driver.check(driver.api.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  made.relocations = known.relocations;
  Image& image = made.image;
  const auto nodes = static_cast<std::uint32_t>(image.nodes.size());
  // One after the other: the nodes as they are listed, and in front of each its copies.
  std::vector<std::uint32_t> order;
  auto next = copies_.begin();
  for (std::uint32_t node = 0; node <= nodes; ++node) {
    for (; next != copies_.end() && next->node == node; ++next) {
      const auto index = static_cast<std::uint32_t>(image.nodes.size());
      Node made_copy = add_copy(driver, graph, {}, memory + next->offset, next->bytes, context);
      made.relocations.push_back({index, made_copy.words.front(), next->region, 0});
      image.nodes.push_back(std::move(made_copy));
      order.push_back(index);
    }
    if (node != nodes) {
      order.push_back(node);
    }
  }
  image.created.clear();  // it is no capture any more
  image.edges.clear();
  for (std::size_t i = 1; i < order.size(); ++i) {
    image.edges.emplace_back(order[i - 1], order[i]);
  }
  image.programmatic.clear();
  thread(driver, made, image.edges);
  fold_scratch(known.scratch, made);
  return made;
}

}  // namespace pygraph
