#include <algorithm>

#include "pygraph/rethread.h"

namespace pygraph {
namespace {

using Dimension = ByteSet::Dimension;

/// Those with more than one element, the largest stride first.
std::vector<Dimension> sorted(const ByteSet& bytes) {
  std::vector<Dimension> found;
  std::copy_if(bytes.dimensions.begin(), bytes.dimensions.end(), std::back_inserter(found),
               [](const Dimension& each) { return each.size > 1; });
  std::sort(found.begin(), found.end(), [](const Dimension& left, const Dimension& right) {
    return left.stride > right.stride;
  });
  return found;
}

bool empty(const ByteSet& bytes) {
  return !bytes.whole() && std::any_of(bytes.dimensions.begin(), bytes.dimensions.end(),
                                       [](const Dimension& each) { return each.size == 0; });
}

/// How far elements reach along a stride that one of the sets has, from the start of the region.
struct Reach {
  std::uint64_t first;
  std::uint64_t end;
};

/// Takes a set apart by strides, the largest first: along each it is a range of steps, and what is
/// left lies within the smallest. Nothing where a range reaches into the next larger stride: then
/// two elements with other steps may be one place.
std::vector<Reach> along(const ByteSet& bytes, std::span<const std::uint64_t> strides) {
  std::vector<Dimension> left = sorted(bytes);
  std::uint64_t offset = bytes.offset;
  std::uint64_t larger = 0;
  std::vector<Reach> found;
  for (const std::uint64_t stride : strides) {
    Reach reach{offset / stride, offset / stride + 1};
    offset %= stride;
    if (!left.empty() && left.front().stride == stride) {
      reach.end += left.front().size - 1;
      left.erase(left.begin());
    }
    if (larger != 0 && reach.end * stride > larger) {
      return {};
    }
    larger = stride;
    found.push_back(reach);
  }
  if (!left.empty() || offset + bytes.item_bytes > larger) {
    return {};
  }
  return found;
}

}  // namespace

std::uint64_t ByteSet::end() const noexcept {
  std::uint64_t last = offset;
  for (const Dimension& each : dimensions) {
    last += (each.size - 1) * each.stride;
  }
  return last + item_bytes;
}

bool overlap(const ByteSet& left, const ByteSet& right) {
  if (empty(left) || empty(right)) {
    return false;
  }
  if (left.whole() || right.whole()) {
    return true;
  }
  if (left.end() <= right.offset || right.end() <= left.offset) {
    return false;
  }
  std::vector<std::uint64_t> strides;
  for (const ByteSet* each : {&left, &right}) {
    for (const Dimension& dimension : sorted(*each)) {
      if (dimension.stride == 0) {
        return true;
      }
      strides.push_back(dimension.stride);
    }
  }
  std::sort(strides.rbegin(), strides.rend());
  strides.erase(std::unique(strides.begin(), strides.end()), strides.end());
  const std::vector<Reach> one = along(left, strides);
  const std::vector<Reach> other = along(right, strides);
  if (one.empty() || other.empty()) {
    return true;
  }
  for (std::size_t i = 0; i < strides.size(); ++i) {
    if (one[i].end <= other[i].first || other[i].end <= one[i].first) {
      return false;
    }
  }
  return true;
}

}  // namespace pygraph
