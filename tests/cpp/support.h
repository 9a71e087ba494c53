// What the tests share: fixtures over {twin, real driver}, device memory, chains of kernels.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "pygraph/phantom.h"
#include "pygraph/program.h"
#include "pygraph/relocate.h"
#include "pygraph/twin.h"
#include "twin/device_memory.h"
#include "twin/testbed.h"

namespace pygraph::twin {

/// For messages of failed tests.
inline void PrintTo(const Census& census, std::ostream* out) {
  *out << census.allocations << " allocations of " << census.allocated_bytes << " bytes, "
       << census.graphs << " graphs, " << census.execs << " execs, " << census.streams
       << " streams, " << census.events << " events, " << census.mappings << " mappings, "
       << census.reservations << " reservations";
}

}  // namespace pygraph::twin

namespace pygraph::testing {

using twin::AffineBlock;
using twin::DeviceMemory;
using twin::ParameterOrder;
using twin::Testbed;

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Small enough for every sanitizer.
inline PhantomSpace::Options small_phantom() { return {1024 * kMiB, 2 * kMiB}; }

/// Ends every planned misbehaviour of the twin, whatever the test does.
struct FaultGuard {
  FaultGuard() { twin::Faults::reset(); }
  ~FaultGuard() { twin::Faults::reset(); }
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
};

/// A test that runs on the twin, and must leave nothing behind there.
class OnTwin : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = twin::census();
    bed_.emplace(Testbed::Kind::kTwin);
  }
  void TearDown() override {
    bed_.reset();
    EXPECT_EQ(twin::census(), before_) << "driver objects leaked";
  }

  [[nodiscard]] const Testbed& bed() const { return *bed_; }
  [[nodiscard]] const Driver& driver() const { return bed_->driver(); }

 private:
  FaultGuard faults_;
  twin::Census before_{};
  std::optional<Testbed> bed_;
};

/// A test that runs on the twin and, where there is one, on the real driver.
class OnBothDrivers : public ::testing::TestWithParam<Testbed::Kind> {
 protected:
  void SetUp() override {
    if (const std::string problem = Testbed::problem(GetParam()); !problem.empty()) {
      GTEST_SKIP() << problem;
    }
    before_ = twin::census();
    bed_.emplace(GetParam());
  }
  void TearDown() override {
    if (bed_) {
      bed_.reset();
      EXPECT_EQ(twin::census(), before_) << "driver objects leaked";
    }
  }

  [[nodiscard]] const Testbed& bed() const { return *bed_; }
  [[nodiscard]] const Driver& driver() const { return bed_->driver(); }
  [[nodiscard]] bool on_twin() const { return GetParam() == Testbed::Kind::kTwin; }

 private:
  FaultGuard faults_;
  twin::Census before_{};
  std::optional<Testbed> bed_;
};

inline std::string kind_name(const ::testing::TestParamInfo<Testbed::Kind>& info) {
  return info.param == Testbed::Kind::kTwin ? "twin" : "real";
}

#define PYGRAPH_ON_BOTH_DRIVERS(Suite)                                                  \
  INSTANTIATE_TEST_SUITE_P(Drivers, Suite,                                              \
                           ::testing::Values(::pygraph::testing::Testbed::Kind::kTwin,  \
                                             ::pygraph::testing::Testbed::Kind::kReal), \
                           ::pygraph::testing::kind_name)

/// The message of the `Error` that `work` throws; a test failure when it throws none.
template <typename Error, typename Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// Two captures of one chain of kernels, linked: node i is out[i + 1] = 2 * out[i] + i, and region
/// i is out[i], so inner nodes mention two regions each.
struct Chain {
  static constexpr float kScale = 2;

  std::size_t nodes;
  std::uint32_t floats;
  GraphHandle graph;  ///< capture A
  Image image;
  LinkTable table;

  [[nodiscard]] std::size_t regions() const { return nodes + 1; }
  [[nodiscard]] std::size_t bytes() const { return floats * sizeof(float); }

  /// What the last region holds after a run over `start`.
  [[nodiscard]] float expected(float start) const {
    for (std::size_t i = 0; i < nodes; ++i) {
      start = kScale * start + static_cast<float>(i);
    }
    return start;
  }

  /// The program; takes the graph.
  [[nodiscard]] Program program(const Driver& driver) {
    return {driver, std::move(graph), image, table.relocations, regions()};
  }
};

Chain make_chain(const Testbed& bed, std::size_t nodes, std::uint32_t floats = 64);

/// Memory for every region of a chain; the first holds `start` in every element.
std::vector<DeviceMemory> chain_memory(const Testbed& bed, const Chain& chain, float start);

/// Binds region i to memory[i].
void bind_all(Program& program, const std::vector<DeviceMemory>& memory);

/// Whether every float of `memory` is `value`.
::testing::AssertionResult holds(const DeviceMemory& memory, float value);

}  // namespace pygraph::testing
