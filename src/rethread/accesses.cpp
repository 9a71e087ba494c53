#include <algorithm>

#include "pygraph/rethread.h"

namespace pygraph {
namespace {

constexpr std::uint32_t kNone = ~0U;

/// Which region holds an address of capture A.
class Places {
 public:
  explicit Places(std::span<const Region> places) : places_(places) {
    for (std::uint32_t i = 0; i < places.size(); ++i) {
      if (places[i].bytes != 0) {
        by_address_.push_back(i);
      }
    }
    std::sort(by_address_.begin(), by_address_.end(),
              [this](std::uint32_t left, std::uint32_t right) {
                return places_[left].a < places_[right].a;
              });
  }

  [[nodiscard]] std::uint32_t at(CUdeviceptr address) const {
    auto after = std::upper_bound(
        by_address_.begin(), by_address_.end(), address,
        [this](CUdeviceptr value, std::uint32_t each) { return value < places_[each].a; });
    if (after == by_address_.begin()) {
      return kNone;
    }
    const Region& found = places_[*std::prev(after)];
    return address - found.a < found.bytes ? *std::prev(after) : kNone;
  }

  [[nodiscard]] CUdeviceptr begin_of(std::uint32_t region) const { return places_[region].a; }

 private:
  std::span<const Region> places_;
  std::vector<std::uint32_t> by_address_;
};

bool mentions(const std::vector<Access>& accesses, std::uint32_t region) {
  return std::any_of(accesses.begin(), accesses.end(),
                     [region](const Access& each) { return each.region == region; });
}

/// All of a region is read and written, unless it is known what is done to it.
void add_whole(std::vector<Access>& accesses, std::uint32_t region) {
  if (!mentions(accesses, region)) {
    accesses.push_back({region, true, {}});
  }
}

/// What the nodes of one operator do: the same for each of them, since one may make a table of
/// addresses that the next reads memory through.
std::vector<Access> declared(const KnownNodes& known, const Places& places) {
  std::vector<Access> found;
  for (const Touch& touch : known.touches) {
    const std::uint32_t region = places.at(touch.address);
    if (region == kNone) {  // a tensor of the program's own
      found.push_back({kUnknownMemory, touch.writes, {}});
      continue;
    }
    Access access{region, touch.writes, touch.bytes};
    access.bytes.offset += touch.address - places.begin_of(region);
    found.push_back(std::move(access));
  }
  return found;
}

/// Whether each of these addresses is that of a tensor which the operator is known to have.
bool all_declared(const std::vector<CUdeviceptr>& addresses, const KnownNodes& known) {
  return std::all_of(addresses.begin(), addresses.end(), [&](CUdeviceptr address) {
    return std::any_of(known.touches.begin(), known.touches.end(),
                       [address](const Touch& touch) { return touch.address == address; });
  });
}

bool does_what_no_word_tells(const Node& node) {
  return node.kind == NodeKind::kHost || node.kind == NodeKind::kEventRecord ||
         node.kind == NodeKind::kEventWait;
}

}  // namespace

Accesses accesses_of(const Image& image, std::span<const Relocation> relocations,
                     std::span<const ForeignWord> foreign, std::span<const Region> places,
                     std::span<const KnownNodes> known) {
  const std::size_t count = image.nodes.size();
  std::vector<std::vector<std::uint32_t>> mentioned(count);
  for (const Relocation& relocation : relocations) {
    mentioned[relocation.node].push_back(relocation.region);
  }
  std::vector<std::vector<CUdeviceptr>> unknown(count);
  for (const ForeignWord& word : foreign) {
    unknown[word.node].push_back(word.address);
  }
  Accesses found{.of_node = std::vector<std::vector<Access>>(count),
                 .barrier = std::vector<bool>(count)};
  const std::vector<std::uint32_t> order = image.by_creation();
  const Places index(places);
  std::vector<bool> is_known(count);
  for (const KnownNodes& each : known) {
    const std::size_t end = std::min<std::size_t>(each.end, order.size());
    std::vector<Access> all = declared(each, index);
    if (each.in_order) {
      all.push_back({kOrder, true, {}});
    }
    for (std::size_t i = each.begin; i < end; ++i) {
      for (const std::uint32_t region : mentioned[order[i]]) {
        add_whole(all, region);
      }
      if (!all_declared(unknown[order[i]], each)) {
        all.push_back({kUnknownMemory, true, {}});
      }
    }
    for (std::size_t i = each.begin; i < end; ++i) {
      found.of_node[order[i]] = all;
      is_known[order[i]] = true;
      if (i != each.begin) {
        found.together.emplace_back(order[i - 1], order[i]);
      }
    }
  }
  for (std::uint32_t node = 0; node < count; ++node) {
    found.barrier[node] = does_what_no_word_tells(image.nodes[node]);
    if (is_known[node]) {
      continue;
    }
    for (const std::uint32_t region : mentioned[node]) {
      add_whole(found.of_node[node], region);
    }
    if (!unknown[node].empty()) {
      found.of_node[node].push_back({kUnknownMemory, true, {}});
    }
  }
  return found;
}

}  // namespace pygraph
