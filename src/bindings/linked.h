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

  /// Instantiates. Throws std::logic_error the second time, and when linking found problems.
  Program take_program();
};

}  // namespace pygraph::bindings
