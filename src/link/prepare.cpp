#include "prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace pygraph {
namespace {

Prepared prepare_flattened(const Driver& driver, CUgraph capture, const ReadOptions& options) {
  FlatGraph flat = flatten(driver, capture);
  Image image = read_image(driver, flat.graph.get(), options);
  image.created.clear();  // the order of another graph
  for (StandIn& stand_in : flat.stand_ins) {
    for (Node& node : image.nodes) {
      if (node.handle == stand_in.node) {
        node.block = std::move(stand_in.parameters);
      }
    }
  }
  return {std::move(flat.graph), std::move(image), std::move(flat.allocations), true};
}

bool overlap(CUdeviceptr left, std::size_t left_bytes, CUdeviceptr right, std::size_t right_bytes) {
  return left < right + right_bytes && right < left + left_bytes;
}

bool same_amount(const Region& left, const Region& right) {
  return left.b - left.a == right.b - right.a;
}

/// Grows `cell` to hold `more`, which is displaced by the same amount.
void join(Region& cell, const Region& more) {
  const CUdeviceptr end = std::max(cell.a + cell.bytes, more.a + more.bytes);
  if (more.a < cell.a) {
    cell.a = more.a;
    cell.b = more.b;
  }
  cell.bytes = end - cell.a;
}

}  // namespace

Prepared prepare_probe(const Driver& driver, CUgraph capture, const ReadOptions& options) {
  if (std::optional<Image> image = read_if_flat(driver, capture, options)) {
    return {{}, std::move(*image), {}};
  }
  return prepare_flattened(driver, capture, options);
}

Prepared prepare_copy(const Driver& driver, CUgraph capture, const ReadOptions& options) {
  CUgraph clone = nullptr;
  if (const CUresult code = driver.api.cuGraphClone(&clone, capture); code != CUDA_SUCCESS) {
    // Graphs with memory nodes cannot be cloned; any other failure is one.
    if (!read_if_flat(driver, capture, options)) {
      return prepare_flattened(driver, capture, options);
    }
    driver.check(code, "cuGraphClone", "the captured graph");
  }
  GraphHandle owner(driver, clone);
  if (std::optional<Image> image = read_if_flat(driver, clone, options)) {
    return {std::move(owner), std::move(*image), {}};
  }
  return prepare_flattened(driver, capture, options);
}

std::vector<Region> own_memory(const std::vector<GraphAllocation>& a,
                               const std::vector<GraphAllocation>& b,
                               std::vector<std::string>& problems) {
  std::vector<Region> cells;
  if (a.size() != b.size()) {
    problems.push_back(
        fmt::format("capture A allocates {} times, its probe {}", a.size(), b.size()));
    return cells;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].bytes != b[i].bytes) {
      problems.push_back(
          fmt::format("{} allocates {} bytes, in the probe {}", a[i].node, a[i].bytes, b[i].bytes));
      return cells;
    }
    if (a[i].address == b[i].address) {
      problems.push_back(fmt::format(
          "{} allocates at {:#x} in both captures: the words that address it cannot be told from "
          "numbers; keep capture A while B is captured",
          a[i].node, a[i].address));
      return cells;
    }
    Region region{a[i].address, b[i].address, a[i].bytes};
    // A join may reach further cells, so look again until nothing overlaps.
    for (auto cell = cells.begin(); cell != cells.end();) {
      if (!overlap(cell->a, cell->bytes, region.a, region.bytes) &&
          !overlap(cell->b, cell->bytes, region.b, region.bytes)) {
        ++cell;
        continue;
      }
      if (!same_amount(*cell, region)) {
        problems.push_back(
            fmt::format("{} shares memory with an earlier allocation in one capture and not, or "
                        "elsewhere, in the other",
                        a[i].node));
        return cells;
      }
      join(region, *cell);
      cells.erase(cell);
      cell = cells.begin();
    }
    cells.push_back(region);
  }
  return cells;
}

}  // namespace pygraph
