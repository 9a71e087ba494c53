// Linking: from two captures to a graph that refers to nothing until it is bound.
//
// The pipeline in one place: read both captures (image), compare them (relocate), give every
// scratch region its place in the arena (layout), and fold the scratch relocations into relocations
// of the one arena region. What comes out is ready to become a Program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pygraph/handles.h"
#include "pygraph/image.h"
#include "pygraph/layout.h"
#include "pygraph/relocate.h"

namespace pygraph {

enum class RegionRole : std::uint8_t {
  kOwn,      ///< stays a region of its own: an input, a constant, an output
  kScratch,  ///< becomes part of the arena
};

/// A region as the linker takes it: its two places, what becomes of it, and how many of its bytes
/// are ever used (scratch only; the rest of a segment needs no room in the arena).
struct LinkRegion {
  Region place;
  RegionRole role = RegionRole::kOwn;
  std::size_t used_bytes = 0;
};

struct LinkedGraph {
  GraphHandle graph;  ///< clone of capture A, from which `image` was read
  Image image;
  LinkTable table;                      ///< as compared, before scratch was folded
  std::vector<Relocation> relocations;  ///< regions: the given order; scratch folded to `arena`
  std::uint32_t arena = 0;              ///< region index of the arena: the number of given regions
  Layout layout;                        ///< of the scratch regions, in their given order
  std::vector<std::size_t> mentions;    ///< per given region: words that refer to it

  [[nodiscard]] std::size_t region_count() const noexcept { return arena + std::size_t{1}; }
};

/// Links capture `a` with its probe `b`; both stay the caller's. Never throws for captures that
/// cannot be linked: look at `table.problems`, and use nothing else when there are any. Throws
/// UnsupportedGraph, DriverError, std::invalid_argument as the steps do.
LinkedGraph link(const Driver& driver, CUgraph a, CUgraph b, std::span<const LinkRegion> regions,
                 CUdeviceptr phantom_begin, CUdeviceptr phantom_end);

}  // namespace pygraph
