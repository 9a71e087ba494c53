// What Python holds between linking and running: a linked graph and the driver it belongs to.
#pragma once

#include "pygraph/link.h"
#include "pygraph/program.h"

namespace pygraph::bindings {

struct CapturedGraph {
  GraphHandle graph;
};

struct Linked {
  const Driver* driver;
  LinkedGraph graph;

  /// The programs of its parts. Throws std::logic_error the second time, and when linking found
  /// problems.
  std::vector<Program> take_programs();

  /// The same of a graph that is not cut. Throws std::logic_error for one that is.
  Program take_program();
};

}  // namespace pygraph::bindings
