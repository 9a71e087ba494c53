// Images that are nothing but nodes and edges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "pygraph/image.h"

namespace pygraph::testing {

using Edge = std::pair<std::uint32_t, std::uint32_t>;

inline Image graph_of(std::size_t nodes, std::vector<Edge> edges) {
  Image image;
  image.nodes.resize(nodes);
  std::sort(edges.begin(), edges.end());
  image.edges = std::move(edges);
  return image;
}

inline Image chain_of(std::uint32_t nodes) {
  std::vector<Edge> edges;
  for (std::uint32_t i = 1; i < nodes; ++i) {
    edges.emplace_back(i - 1, i);
  }
  return graph_of(nodes, std::move(edges));
}

}  // namespace pygraph::testing
