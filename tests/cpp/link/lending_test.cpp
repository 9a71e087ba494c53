// Scratch that stands in outputs, and arenas in pieces.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "graph_builder.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::holds;
using testing::Regions;
using testing::Runnable;

constexpr std::uint32_t kFloats = 200;
constexpr std::size_t kBytes = kFloats * sizeof(float);
constexpr std::size_t kPlace = 1024;  // what kBytes take in an arena
constexpr LinkOptions kLending{.smallest_loan = 1};
constexpr std::uint32_t kOutput = 5;

/// r0 -> s1 -> s2 -> s3 -> s4 -> r5, a chain.
class Lending : public testing::OnBothDrivers {
 protected:
  void SetUp() override {
    OnBothDrivers::SetUp();
    if (!IsSkipped()) {
      given_.emplace(driver(), kOutput + 1, kBytes);
      given_->scratch(1).scratch(2).scratch(3).scratch(4).fresh(kOutput);
    }
  }
  void TearDown() override {
    given_.reset();
    OnBothDrivers::TearDown();
  }
  Regions::Make chain() {
    return [this](const std::vector<CUdeviceptr>& at) {
      return bed().capture([&] {
        for (std::size_t i = 0; i < kOutput; ++i) {
          bed().affine({at[i + 1], at[i], 2, 1, kFloats});
        }
      });
    };
  }
  /// Regions that `node` mentions in the linked graph, each once.
  static std::vector<std::uint32_t> mentioned(const LinkedGraph& linked, std::uint32_t node) {
    std::vector<std::uint32_t> regions;
    for (const Relocation& relocation : linked.relocations) {
      if (relocation.node == node) {
        regions.push_back(relocation.region);
      }
    }
    std::sort(regions.begin(), regions.end());
    regions.erase(std::unique(regions.begin(), regions.end()), regions.end());
    return regions;
  }
  /// Runs it on two sets of memory, with everything but the input full of NaNs.
  void expect_right(LinkedGraph linked, std::uint32_t output) {
    const std::size_t regions = linked.arena;
    Runnable runnable(bed(), std::move(linked));
    for (const float start : {1.0F, -3.0F}) {
      given_->space().poison(0xFF);
      const DeviceMemory in(driver(), kBytes);
      const DeviceMemory out(driver(), kBytes);
      const DeviceMemory copied(driver(), kBytes);
      in.write(std::vector<float>(kFloats, start));
      out.write(std::vector<float>(kFloats, NAN));
      std::vector<CUdeviceptr> at(regions, 0);
      at[0] = in.address();
      at[kOutput] = out.address();
      at[output] = output == kOutput ? out.address() : copied.address();
      runnable.run(bed(), at);
      EXPECT_TRUE(holds(out, 32 * start + 31));
      EXPECT_TRUE(given_->space().intact(0xFF));
    }
  }

  std::optional<Regions> given_;
};

TEST_P(Lending, ScratchStandsInTheOutputUntilItIsWritten) {
  // Of s1, s2, s3 two fit beside each other nowhere: the output lends its place to one or two that
  // do not meet, s1 and s3; s4 is read by the node that writes it.
  LinkedGraph linked = given_->link(chain(), {}, kLending);
  ASSERT_TRUE(linked.table.sound());
  EXPECT_EQ(linked.layout.lent, 2U);
  EXPECT_EQ(linked.layout.bytes, kPlace);
  EXPECT_EQ(mentioned(linked, 0), (std::vector<std::uint32_t>{0, kOutput}));
  EXPECT_EQ(mentioned(linked, 4), (std::vector<std::uint32_t>{kOutput, linked.arena}));
  expect_right(std::move(linked), kOutput);
}

TEST_P(Lending, OnlyFreshRegionsLendAndOnlyForALot) {
  EXPECT_EQ(given_->link(chain()).layout.lent, 0U) << "less than the smallest loan by default";
  EXPECT_EQ(given_->link(chain(), {}, {.share_scratch = false, .smallest_loan = 1}).layout.lent,
            0U);
  Regions own(driver(), kOutput + 1, kBytes);
  own.scratch(1).scratch(2).scratch(3).scratch(4);
  const LinkedGraph linked = own.link(chain(), {}, kLending);
  EXPECT_EQ(linked.layout.lent, 0U);
  EXPECT_EQ(linked.layout.bytes, 2 * kPlace);
}

TEST_P(Lending, DestinationsOfCopiesLendUntilTheCopy) {
  Regions given(driver(), kOutput + 1, kBytes);
  given.scratch(1).scratch(2).scratch(3).scratch(4);
  const auto lent = [&](bool fresh, std::uint32_t source) {
    const CopyOut copy{source, 0, kBytes, fresh};
    return given.link(chain(), {copy}, kLending).layout;
  };
  EXPECT_EQ(lent(false, kOutput).lent, 0U);
  EXPECT_EQ(lent(true, kOutput).lent, 2U);
  const Layout layout = lent(true, 1);
  EXPECT_EQ(layout.lent, 2U);
  EXPECT_EQ(layout.memory[0], 1U) << "what is copied at the end is needed until then";
  LinkedGraph linked = given_->link(chain(), {{kOutput, 0, kBytes, true}}, kLending);
  EXPECT_EQ(linked.layout.bytes, 0U) << "two that meet stand in two outputs";
  const std::uint32_t destination = linked.first_copy;
  expect_right(std::move(linked), destination);
}

TEST_P(Lending, TheWholeOperatorThatWritesAnOutputCounts) {
  // 0 writes s1, which 1 and, beside it, 2 read; 3, behind both, writes the output. 2 and 3 are one
  // operator: 2 may write the output too, by an address in a table, while 1 still writes s2.
  const auto make = [this](const std::vector<CUdeviceptr>& at) {
    testing::GraphBuilder graph(bed());
    const CUgraphNode first = graph.affine({at[1], at[0], 2, 1, kFloats});
    const CUgraphNode beside = graph.affine({at[2], at[1], 2, 1, kFloats});
    const CUgraphNode begin = graph.affine({at[3], at[1], 2, 1, kFloats});
    const CUgraphNode end = graph.affine({at[kOutput], at[3], 2, 1, kFloats});
    graph.edge(first, beside);
    graph.edge(first, begin);
    graph.edge(begin, end);
    graph.edge(beside, end);
    return graph.take();
  };
  EXPECT_EQ(given_->link(make, {}, kLending).layout.lent, 1U);
  EXPECT_EQ(given_->link(make, {}, kLending, {{2, 4}}).layout.lent, 0U);
}

TEST_P(Lending, OperatorsAreKnownInAGraphWithCopies) {
  const std::vector<CopyOut> copies = {{kOutput, 0, kBytes, false}};
  Regions given(driver(), kOutput + 1, kBytes);
  given.scratch(1).scratch(2).scratch(3).scratch(4);
  EXPECT_EQ(given.link(chain(), copies).layout.bytes, 2 * kPlace);
  EXPECT_EQ(given.link(chain(), copies, {}, {{1, 4}}).layout.bytes, 4 * kPlace);
}

TEST_P(Lending, AKernelThatStartsEarlyKeepsScratchOutOfItsOutput) {
  // With a programmatic edge from the fourth kernel to the last, that may write the output while
  // the fourth still reads s3.
  const auto make = [&](bool early) {
    return [&, early](const std::vector<CUdeviceptr>& at) {
      testing::GraphBuilder graph(bed());
      CUgraphNode before = graph.affine({at[1], at[0], 2, 1, kFloats});
      for (std::size_t i = 1; i < kOutput; ++i) {
        const CUgraphNode node = graph.affine({at[i + 1], at[i], 2, 1, kFloats});
        graph.edge(before, node, early && i == 4 ? testing::programmatic() : CUgraphEdgeData{});
        before = node;
      }
      return graph.take();
    };
  };
  const auto in_output = [&](bool early) {
    return given_->link(make(early), {}, kLending).layout.memory;
  };
  EXPECT_EQ(in_output(false)[2], 0U);
  EXPECT_EQ(in_output(true)[2], 1U);
}

TEST_P(Lending, AnArenaInPiecesIsBoundPieceByPiece) {
  LinkedGraph linked = given_->link(chain(), {}, {.arena_in_pieces = true});
  EXPECT_EQ(linked.pieces(), (std::vector<std::size_t>{kPlace, kPlace}));
  EXPECT_EQ(linked.arena, kOutput + 1);
  EXPECT_EQ(linked.region_count(), std::size_t{kOutput} + 3);
  expect_right(std::move(linked), kOutput);
}

PYGRAPH_ON_BOTH_DRIVERS(Lending);

}  // namespace
}  // namespace pygraph
