#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cut.h"
#include "pygraph/link.h"

namespace pygraph {
namespace {

/// The words of the nodes [begin, end), which are counted from `begin` on.
template <typename Word>
std::vector<Word> words_of(const std::vector<Word>& whole, std::uint32_t begin, std::uint32_t end) {
  std::vector<Word> found;
  for (const Word& word : whole) {
    if (word.node >= begin && word.node < end) {
      found.push_back(word);
      found.back().node -= begin;
    }
  }
  return found;
}

/// A copy of the graph with the nodes [begin, end) only, in which they have new handles.
LinkedPart part(const Driver& driver, const LinkedGraph& whole, std::uint32_t begin,
                std::uint32_t end) {
  LinkedPart made;
  CUgraph clone = nullptr;
  driver.check(driver.api.cuGraphClone(&clone, whole.graph.get()), "cuGraphClone",
               "a part of the linked graph");
  made.graph = GraphHandle(driver, clone);
  const std::vector<Node>& nodes = whole.image.nodes;
  for (std::uint32_t index = 0; index < nodes.size(); ++index) {
    CUgraphNode found = nullptr;
    driver.check(driver.api.cuGraphNodeFindInClone(&found, nodes[index].handle, clone),
                 "cuGraphNodeFindInClone", fmt::format("node {}", index));
    if (index >= begin && index < end) {
      made.image.nodes.push_back(nodes[index]);
      made.image.nodes.back().handle = found;
    } else {
      driver.check(driver.api.cuGraphDestroyNode(found), "cuGraphDestroyNode",
                   fmt::format("node {}", index));
    }
  }
  made.relocations = words_of(whole.relocations, begin, end);
  made.numbers = words_of(whole.numbers, begin, end);
  return made;
}

}  // namespace

std::vector<PartSpan> LinkedImage::parts_of_regions() const {
  std::vector<PartSpan> found(region_count());
  std::vector<bool> seen(region_count());
  for (const Relocation& relocation :
       relocations) {  // ascending by node, but for copies at the end
    const std::uint32_t part = part_of(relocation.node, cuts);
    PartSpan& span = found[relocation.region];
    span = seen[relocation.region] ? PartSpan{std::min(span.first, part), std::max(span.last, part)}
                                   : PartSpan{part, part};
    seen[relocation.region] = true;
  }
  for (std::size_t region = 0; region < last_nodes.size(); ++region) {
    found[region].last = std::max(found[region].last, part_of(last_nodes[region], cuts));
  }
  return found;
}

std::vector<LinkedPart> take_apart(const Driver& driver, LinkedGraph linked) {
  std::vector<LinkedPart> parts;
  if (linked.cuts.empty()) {
    parts.push_back({std::move(linked.graph), std::move(linked.image),
                     std::move(linked.relocations), std::move(linked.numbers)});
    return parts;
  }
  std::uint32_t begin = 0;
  for (const std::uint32_t end : linked.cuts) {
    parts.push_back(part(driver, linked, begin, end));
    begin = end;
  }
  parts.push_back(
      part(driver, linked, begin, static_cast<std::uint32_t>(linked.image.nodes.size())));
  return parts;
}

}  // namespace pygraph
