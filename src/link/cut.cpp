// A compiled backward frees what the forward saved for it as it goes, and takes memory for
// gradients instead. One graph cannot: all of its memory must be there when it is launched, so
// activations and gradients would be held at once. Cut into parts, memory changes hands between two
// launches, which costs some microseconds of the host and about one of the GPU per part. Few parts
// are enough: the first ends when the gradients have taken up the slack, the next ones can give out
// what the parts before have freed, which is more and more.
#include "cut.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace pygraph {
namespace {

/// The most that tenants need at one node of [begin, end), those that pass `counts`.
template <typename Counts>
std::size_t highest(std::span<const Tenant> tenants, std::uint32_t begin, std::uint32_t end,
                    Counts counts) {
  std::vector<std::ptrdiff_t> change(end - begin + std::size_t{1});
  for (const Tenant& tenant : tenants) {
    if (counts(tenant)) {
      change[tenant.first - begin] += static_cast<std::ptrdiff_t>(tenant.bytes);
      change[tenant.last + 1 - begin] -= static_cast<std::ptrdiff_t>(tenant.bytes);
    }
  }
  std::ptrdiff_t now = 0;
  std::ptrdiff_t most = 0;
  for (const std::ptrdiff_t step : change) {
    now += step;
    most = std::max(most, now);
  }
  return static_cast<std::size_t>(most);
}

/// What a part of the nodes [begin, end) needs while it runs.
std::size_t needed(std::span<const Tenant> tenants, std::uint32_t begin, std::uint32_t end) {
  const auto inside = [&](const Tenant& tenant) {
    return tenant.share && tenant.first >= begin && tenant.last < end;
  };
  std::size_t held = 0;
  for (const Tenant& tenant : tenants) {
    if (tenant.first < end && tenant.last >= begin && !inside(tenant)) {
      held += tenant.bytes;
    }
  }
  return held + highest(tenants, begin, end, inside);
}

/// The end of a part that begins with `begin` and needs no more than `limit`: the last node, if
/// that can be, else found by halving. (A longer part may need less, for tenants that end in it
/// share.)
std::uint32_t longest(std::span<const Tenant> tenants, std::uint32_t begin, std::uint32_t nodes,
                      std::size_t limit) {
  if (needed(tenants, begin, nodes) <= limit) {
    return nodes;
  }
  std::uint32_t good = begin + 1;
  std::uint32_t bad = nodes;
  while (bad - good > 1) {
    const std::uint32_t middle = good + (bad - good) / 2;
    (needed(tenants, begin, middle) <= limit ? good : bad) = middle;
  }
  return good;
}

}  // namespace

bool one_part_is_enough(std::span<const Tenant> tenants, std::uint32_t nodes, std::size_t whole,
                        std::size_t slack) {
  const std::size_t least = highest(tenants, 0, nodes, [](const Tenant&) { return true; });
  for (const Tenant& tenant : tenants) {
    whole += tenant.share ? 0 : tenant.bytes;
  }
  return whole <= least || whole - least <= slack;
}

std::vector<std::uint32_t> choose_cuts(std::span<const Tenant> tenants, std::uint32_t nodes,
                                       std::size_t slack, std::size_t most) {
  if (nodes == 0) {
    return {};
  }
  const std::size_t least = highest(tenants, 0, nodes, [](const Tenant&) { return true; });
  const auto cuts_with = [&](std::size_t more) {
    const std::size_t limit = least + std::min(more, ~least);
    std::vector<std::uint32_t> cuts;
    std::uint32_t end = longest(tenants, 0, nodes, limit);
    while (end < nodes && cuts.size() < most) {
      cuts.push_back(end);
      end = longest(tenants, end, nodes, limit);
    }
    return cuts;
  };
  const std::size_t step = std::max<std::size_t>(slack, 1);
  std::size_t little = 0;
  std::size_t enough = step;
  std::vector<std::uint32_t> cuts = cuts_with(enough);
  while (cuts.size() >= most) {
    little = std::exchange(enough, 2 * enough);
    cuts = cuts_with(enough);
  }
  while (little != 0 && enough - little > step) {
    const std::size_t between = little + (enough - little) / 2;
    if (std::vector<std::uint32_t> found = cuts_with(between); found.size() < most) {
      cuts = std::move(found);
      enough = between;
    } else {
      little = between;
    }
  }
  return cuts;
}

std::uint32_t part_of(std::uint32_t node, std::span<const std::uint32_t> cuts) {
  return static_cast<std::uint32_t>(std::upper_bound(cuts.begin(), cuts.end(), node) -
                                    cuts.begin());
}

Layout lay_out_parts(const Scratch& scratch, const NodeOrder& order,
                     std::span<const std::uint32_t> cuts, std::vector<PartSpan>& spans) {
  const std::span<const Buffer> buffers = scratch.buffers();
  std::map<PartSpan, std::vector<std::size_t>> together;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i].nodes.empty()) {
      together[{part_of(buffers[i].nodes.front(), cuts), part_of(buffers[i].nodes.back(), cuts)}]
          .push_back(i);
    }
  }
  const auto first_piece = static_cast<std::uint32_t>(scratch.lenders().size());
  Layout layout;
  layout.offsets.assign(buffers.size(), Layout::kNoPlace);
  layout.memory.assign(buffers.size(), Layout::kNoMemory);
  spans.clear();
  for (const auto& [span, members] : together) {
    std::vector<Buffer> chosen;
    chosen.reserve(members.size());
    for (const std::size_t member : members) {
      chosen.push_back(buffers[member]);
    }
    const Layout one = lay_out(chosen, order);
    for (std::size_t i = 0; i < members.size(); ++i) {
      layout.offsets[members[i]] = one.offsets[i];
      layout.memory[members[i]] = first_piece + static_cast<std::uint32_t>(spans.size());
    }
    layout.pieces.push_back(one.bytes);
    layout.devices.push_back(0);
    layout.bytes += one.bytes;
    layout.lower_bound = std::max(layout.lower_bound, one.lower_bound);
    spans.push_back(span);
  }
  if (layout.pieces.empty()) {  // at least one piece
    layout.pieces.push_back(0);
    layout.devices.push_back(0);
    spans.push_back({});
  }
  return layout;
}

std::size_t most_at_once(std::span<const std::size_t> pieces, std::span<const PartSpan> spans) {
  std::vector<std::size_t> by_part(1);
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
    by_part.resize(std::max(by_part.size(), spans[piece].last + std::size_t{1}));
    for (std::size_t part = spans[piece].first; part <= spans[piece].last; ++part) {
      by_part[part] += pieces[piece];
    }
  }
  return *std::max_element(by_part.begin(), by_part.end());
}

}  // namespace pygraph
