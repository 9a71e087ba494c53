#include "lanes.h"

namespace pygraph {

LinkedGraph clone_of(const Driver& driver, const LinkedGraph& linked) {
  CUgraph clone = nullptr;
  driver.check(driver.api.cuGraphClone(&clone, linked.graph.get()), "cuGraphClone",
               "the linked graph");
  const LinkedImage& known = linked;
  LinkedGraph made{known, GraphHandle(driver, clone)};
  for (Node& node : made.image.nodes) {
    driver.check(driver.api.cuGraphNodeFindInClone(&node.handle, node.handle, clone),
                 "cuGraphNodeFindInClone", "the linked graph");
  }
  return made;
}

LinkedGraph in_one_part(const Driver& driver, const LinkedGraph& linked) {
  LinkedGraph made = clone_of(driver, linked);
  made.cuts.clear();
  made.spans.assign(made.spans.size(), {});
  return made;
}

}  // namespace pygraph
