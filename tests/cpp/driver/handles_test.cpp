#include "pygraph/handles.h"

#include "support.h"

namespace pygraph {
namespace {

class Handles : public testing::OnTwin {
 protected:
  GraphHandle make() {
    CUgraph graph = nullptr;
    driver().check(driver().api.cuGraphCreate(&graph, 0), "cuGraphCreate");
    return {driver(), graph};
  }
  static std::size_t live() { return twin::census().graphs; }
};

TEST_F(Handles, DestroyOnceAtTheEndOfLife) {
  const std::size_t before = live();
  {
    const GraphHandle graph = make();
    EXPECT_TRUE(graph);
    EXPECT_EQ(live(), before + 1);
  }
  EXPECT_EQ(live(), before);
}

TEST_F(Handles, MoveLeavesNothingBehind) {
  const std::size_t before = live();
  GraphHandle first = make();
  const CUgraph handle = first.get();
  GraphHandle second(std::move(first));
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that is the point
  EXPECT_EQ(second.get(), handle);
  GraphHandle third = make();
  third = std::move(second);
  EXPECT_EQ(third.get(), handle);
  EXPECT_EQ(live(), before + 1) << "the graph that was assigned over is gone";
  third.reset();
  third.reset();
  EXPECT_EQ(live(), before);
}

TEST_F(Handles, SelfMoveKeepsTheObject) {
  GraphHandle graph = make();
  GraphHandle& same = graph;
  graph = std::move(same);
  EXPECT_TRUE(graph);
}

TEST_F(Handles, DestructorSurvivesAFailingDriver) {
  CUgraph kept = nullptr;
  {
    const GraphHandle graph = make();
    kept = graph.get();
    twin::Faults::fail("cuGraphDestroy", CUDA_ERROR_UNKNOWN);
  }
  EXPECT_EQ(driver().api.cuGraphDestroy(kept), CUDA_SUCCESS) << "the failed call destroyed nothing";
}

}  // namespace
}  // namespace pygraph
