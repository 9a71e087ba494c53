#include "operators.h"

#include <algorithm>

namespace pygraph {
namespace {

/// A region as evidence: it was allocated, or freed, at a time, before (or behind) which a node was
/// created.
struct Evidence {
  std::uint64_t time;
  std::uint32_t created;
};

void sort_by_time(std::vector<Evidence>& evidence) {
  std::sort(evidence.begin(), evidence.end(),
            [](const Evidence& left, const Evidence& right) { return left.time < right.time; });
}

}  // namespace

Operators::Operators(const Image& image, std::span<const OperatorSpan> spans)
    : image_(image), operator_of_(image.nodes.size(), kNone) {
  const std::vector<std::uint32_t> by_creation = image.by_creation();
  for (const OperatorSpan& span : spans) {
    const std::size_t end = std::min<std::size_t>(span.end, by_creation.size());
    if (span.begin + std::size_t{1} >= end) {
      continue;
    }
    std::vector<std::uint32_t>& nodes = nodes_.emplace_back(
        by_creation.begin() + span.begin, by_creation.begin() + static_cast<std::ptrdiff_t>(end));
    std::sort(nodes.begin(), nodes.end());
    for (const std::uint32_t node : nodes) {
      operator_of_[node] = static_cast<std::uint32_t>(nodes_.size() - 1);
    }
  }
}

void Operators::complete(std::vector<std::uint32_t>& nodes, CreationSpan span) const {
  std::vector<std::uint32_t> added;
  std::uint32_t last = kNone;
  for (const std::uint32_t node : nodes) {
    const std::uint32_t found = operator_of_[node];
    if (found != kNone && found != last) {
      std::copy_if(nodes_[found].begin(), nodes_[found].end(), std::back_inserter(added),
                   [&](std::uint32_t other) {
                     return image_.created[other] >= span.begin && image_.created[other] < span.end;
                   });
    }
    last = found;
  }
  if (!added.empty()) {
    nodes.insert(nodes.end(), added.begin(), added.end());
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  }
}

std::vector<CreationSpan> possible_use(const Image& image, std::span<const Times> times,
                                       std::span<const std::vector<std::uint32_t>> mentions) {
  std::vector<CreationSpan> found(times.size());
  if (image.created.size() != image.nodes.size()) {
    return found;
  }
  std::vector<Evidence> allocated;
  std::vector<Evidence> freed;
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i].allocated == 0 || mentions[i].empty()) {
      continue;
    }
    const auto created = [&](std::uint32_t node) { return image.created[node]; };
    std::uint32_t first = created(mentions[i].front());
    std::uint32_t last = first;
    for (const std::uint32_t node : mentions[i]) {
      first = std::min(first, created(node));
      last = std::max(last, created(node));
    }
    allocated.push_back({times[i].allocated, first});
    if (times[i].freed != Times::kNever) {
      freed.push_back({times[i].freed, last});
    }
  }
  // From here on: the first node that mentions anything allocated at a time or later, and the last
  // that mentions anything freed at a time or before.
  sort_by_time(allocated);
  sort_by_time(freed);
  for (std::size_t i = allocated.size(); i-- > 1;) {
    allocated[i - 1].created = std::min(allocated[i - 1].created, allocated[i].created);
  }
  for (std::size_t i = 1; i < freed.size(); ++i) {
    freed[i].created = std::max(freed[i].created, freed[i - 1].created);
  }
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i].allocated == 0) {
      continue;
    }
    const auto later =
        std::upper_bound(allocated.begin(), allocated.end(), times[i].freed,
                         [](std::uint64_t time, const Evidence& each) { return time < each.time; });
    if (later != allocated.end()) {
      found[i].end = later->created;
    }
    const auto before =
        std::lower_bound(freed.begin(), freed.end(), times[i].allocated,
                         [](const Evidence& each, std::uint64_t time) { return each.time < time; });
    if (before != freed.begin()) {
      found[i].begin = std::prev(before)->created + 1;
    }
  }
  return found;
}

}  // namespace pygraph
