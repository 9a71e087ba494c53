#include "layout/life.h"

#include <algorithm>

namespace pygraph {
namespace {

Life life_of(const std::vector<std::uint32_t>& nodes, const NodeOrder& order) {
  Life life{};
  if (nodes.empty()) {
    return life;
  }
  life.first = nodes.front();
  life.end = nodes.back() + 1;
  life.all_before = order.all_before(life.first);
  for (const std::uint32_t node : nodes) {
    life.all_after = std::max(life.all_after, order.all_after(node));
  }
  // Nodes ascend in topological order: only those found so far can precede the next.
  for (const std::uint32_t node : nodes) {
    if (std::none_of(life.earliest.begin(), life.earliest.end(),
                     [&](std::uint32_t other) { return order.precedes(other, node); })) {
      life.earliest.push_back(node);
    }
  }
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    if (std::none_of(life.latest.begin(), life.latest.end(),
                     [&](std::uint32_t other) { return order.precedes(*node, other); })) {
      life.latest.push_back(*node);
    }
  }
  return life;
}

/// Whether what the buffer holds is needed while `node`, which does not mention it, runs.
bool live_between(const Life& life, std::uint32_t node, const NodeOrder& order) {
  return std::any_of(life.earliest.begin(), life.earliest.end(),
                     [&](std::uint32_t user) { return order.precedes(user, node); }) &&
         std::any_of(life.latest.begin(), life.latest.end(),
                     [&](std::uint32_t user) { return order.precedes(node, user); });
}

}  // namespace

std::vector<Life> lives_of(std::span<const Buffer> buffers, const NodeOrder& order) {
  std::vector<Life> lives;
  lives.reserve(buffers.size());
  for (const Buffer& buffer : buffers) {
    lives.push_back(life_of(buffer.nodes, order));
  }
  return lives;
}

bool branches_allow(const Life& first, const Life& second, const NodeOrder& order) {
  return std::all_of(first.latest.begin(), first.latest.end(), [&](std::uint32_t before) {
    return std::all_of(second.earliest.begin(), second.earliest.end(),
                       [&](std::uint32_t after) { return order.precedes(before, after); });
  });
}

std::size_t live_maximum(std::span<const Buffer> buffers, std::span<const Life> lives,
                         std::span<const std::uint32_t> chosen, const NodeOrder& order,
                         std::size_t alignment) {
  // Bytes that begin or, wrapping around, cease to be live at each node.
  std::vector<std::size_t> change(order.size() + 1, 0);
  for (const std::uint32_t i : chosen) {
    const Life& life = lives[i];
    const std::size_t bytes = round_up(buffers[i].bytes, alignment);
    const auto add = [&](std::uint32_t begin, std::uint32_t end) {
      change[begin] += bytes;
      change[end] -= bytes;
    };
    // The nodes in the middle are after some node of its and before some other, for certain. Those
    // at the edges are asked one by one.
    std::uint32_t begin = life.end;
    std::uint32_t end = life.first;
    for (const std::uint32_t node : life.earliest) {
      begin = std::min(begin, order.all_after(node));
    }
    for (const std::uint32_t node : life.latest) {
      end = std::max(end, order.all_before(node));
    }
    begin = std::max(begin, life.first);
    end = std::max(begin, std::min(end, life.end));
    add(begin, end);
    auto user = buffers[i].nodes.begin();
    for (std::uint32_t node = life.first; node < life.end; ++node) {
      if (node == begin && begin != end) {
        node = end;
        user = std::lower_bound(user, buffers[i].nodes.end(), node);
        if (node >= life.end) {
          break;
        }
      }
      const bool uses = user != buffers[i].nodes.end() && *user == node;
      if (uses || live_between(life, node, order)) {
        add(node, node + 1);
      }
      user += uses ? 1 : 0;
    }
  }
  std::size_t live = 0;
  std::size_t maximum = 0;
  for (const std::size_t bytes : change) {
    live += bytes;
    maximum = std::max(maximum, live);
  }
  return maximum;
}

}  // namespace pygraph
