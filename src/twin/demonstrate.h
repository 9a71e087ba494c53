// The whole engine on one page of output, on a machine without a GPU: a small network is captured
// on the CPU twin in phantom memory, probed, linked, proven on third addresses and moved twice.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pygraph::twin {

struct Demonstration {
  std::vector<std::string> lines;  ///< the story, in plain words, with the figures below
  std::size_t nodes = 0;
  std::size_t relocations = 0;
  std::size_t coincidences = 0;
  std::size_t noise = 0;
  std::size_t arena_bytes = 0;
  std::size_t lower_bound_bytes = 0;
  std::string proof;  ///< "passed", or what went wrong
  bool proven = false;
  bool moved_equal = false;  ///< both moves gave, bit for bit, what the uncaptured launches give
};

/// Turns the twin's padding noise on while it captures, and off afterwards. Throws what the engine
/// throws; on a sound engine nothing.
Demonstration demonstrate();

}  // namespace pygraph::twin
