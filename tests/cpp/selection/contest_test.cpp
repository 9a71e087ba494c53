// Turns, clocks and what they may cost. The clock is the test's own.
#include "selection/contest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "pygraph/twin.h"

namespace pygraph::selection {
namespace {

using std::chrono::microseconds;

Clock::time_point time_now;
Clock::time_point now() { return time_now; }

class ContestTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // The books are the process's, and what earlier tests spent stays: the time goes far ahead.
    time_now = std::max(time_now, Clock::now()) + std::chrono::hours(1);
    Ledger::open(Clock::now());
  }

  /// One call of the caller's: `us` by who serves, and the time until the next call.
  Alternative call(double graph_us, double other_us, int pause_us = 5) {
    const std::shared_ptr<Sighting> sighting = contest.begin(time_now, nullptr);
    const Alternative chosen = sighting == nullptr ? Alternative::kGraph : sighting->alternative;
    const double took = chosen == Alternative::kGraph ? graph_us : other_us;
    time_now += std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double, std::micro>(took));
    if (sighting != nullptr) {
      ++seen[chosen];
      contest.end(*sighting, time_now);
    }
    time_now += microseconds(pause_us);
    if (sighting != nullptr) {
      sighting->next = time_now;
    }
    return chosen;
  }

  Contest contest{twin::driver(), false, 7, &now};
  std::map<Alternative, int> seen;
};

TEST_F(ContestTest, BothTakeTheSameNumberOfTurnsAndAreClocked) {
  for (int i = 0; i < 4 * 13 + 1; ++i) {
    call(10, 7);
  }
  ASSERT_EQ(contest.pairs().size(), 12U);  // one of thirteen is thrown away
  EXPECT_EQ(seen[Alternative::kOther], 26);
  for (const ClockedPair& pair : contest.pairs()) {
    EXPECT_DOUBLE_EQ(pair.graph.host, 10);
    EXPECT_DOUBLE_EQ(pair.other.host, 7);
    EXPECT_DOUBLE_EQ(pair.graph.period, 15);
    EXPECT_DOUBLE_EQ(pair.other.period, 12);
    EXPECT_TRUE(std::isnan(pair.graph.device));  // the twin's events tell no time
    EXPECT_TRUE(pair.graph.idle);
  }
}

TEST_F(ContestTest, TheFirstCallOfATurnDoesNotCount) {
  for (int i = 0; i < 4 * 13 + 1; ++i) {  // slow right behind the other way, as caches make it
    const int took = i % 2 == 0 ? 100 : 10;
    call(took, took);
  }
  ASSERT_FALSE(contest.pairs().empty());
  for (const ClockedPair& pair : contest.pairs()) {
    EXPECT_DOUBLE_EQ(pair.graph.host, 10);
    EXPECT_DOUBLE_EQ(pair.other.host, 10);
  }
}

TEST_F(ContestTest, TheOrderOfTurnsIsDrawn) {
  std::vector<Alternative> firsts;
  for (int pair = 0; pair < 12; ++pair) {  // up to the first look
    for (int i = 0; i < 4; ++i) {
      const Alternative chosen = call(10, 10);
      if (i == 0) {
        firsts.push_back(chosen);
      }
    }
  }
  const auto graphs = std::count(firsts.begin(), firsts.end(), Alternative::kGraph);
  EXPECT_GT(graphs, 1);
  EXPECT_LT(graphs, 11);
  EXPECT_EQ(seen[Alternative::kOther], 24);
}

TEST_F(ContestTest, IsDueWhenALookIsReachedAndOverBehindTheLast) {
  std::vector<std::size_t> looks;
  for (int i = 0; i < 4 * 80; ++i) {
    call(10, 10);
    if (contest.due()) {
      looks.push_back(contest.pairs().size());
    }
  }
  EXPECT_EQ(looks,
            std::vector<std::size_t>(std::begin(Contest::kLooks), std::end(Contest::kLooks)));
  EXPECT_TRUE(contest.over());
  const int all = seen[Alternative::kGraph] + seen[Alternative::kOther];
  call(10, 10);
  EXPECT_EQ(seen[Alternative::kGraph] + seen[Alternative::kOther], all);
}

TEST_F(ContestTest, CostsAHundredthOfTheTime) {
  // The callable takes a second: a pair costs two, and the next is due 200 s later.
  Ledger::spend(std::chrono::duration_cast<Clock::duration>(
      (time_now - Clock::now()) * Ledger::kShare));  // what is left of the hour
  const Clock::time_point began = time_now;
  Clock::duration spent{0};
  for (int i = 0; i < 20'000; ++i) {
    if (call(1'000, 1'000'000) == Alternative::kOther) {
      spent += microseconds(999'000);
    }
  }
  const double share =
      static_cast<double>(spent.count()) / static_cast<double>((time_now - began).count());
  EXPECT_GT(seen[Alternative::kOther], 0);
  // One pair may be under way beyond the credit.
  EXPECT_LT(static_cast<double>(spent.count()) - 2.1e9,
            Ledger::kShare * static_cast<double>((time_now - began).count()))
      << share;
}

TEST_F(ContestTest, OneSightingIsUnderWayAtATime) {
  const std::shared_ptr<Sighting> first = contest.begin(time_now, nullptr);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(contest.begin(time_now, nullptr), nullptr);  // another thread's call meanwhile
  contest.end(*first, time_now);
  EXPECT_NE(contest.begin(time_now, nullptr), nullptr);  // and one behind it
}

TEST_F(ContestTest, APeriodThatNobodyEndedIsNotKnown) {
  for (int i = 0; i < 4 * 13; ++i) {  // each call on a thread that makes no other
    const std::shared_ptr<Sighting> sighting = contest.begin(time_now, nullptr);
    ASSERT_NE(sighting, nullptr);
    contest.end(*sighting, time_now);
  }
  EXPECT_EQ(contest.begin(time_now, nullptr), nullptr);  // which takes the last one in: a look
  ASSERT_FALSE(contest.pairs().empty());
  EXPECT_TRUE(std::isnan(contest.pairs().front().graph.period));
}

TEST_F(ContestTest, ACallIsSeenFromItsOutermostPlace) {
  auto shared = std::make_shared<Contest>(twin::driver(), false, 1);
  int graph = 0;
  int other = 0;
  {
    const CallClock outer(&graph);
    const CallClock inner(&graph);
    CallClock* watch = CallClock::of(&graph);
    ASSERT_NE(watch, nullptr);
    EXPECT_EQ(CallClock::of(&other), nullptr);
    const Alternative once = watch->alternative(shared, nullptr);
    EXPECT_EQ(watch->alternative(shared, nullptr), once);
    {
      const CallClock nested(&other);
      EXPECT_NE(CallClock::of(&other), nullptr);
      EXPECT_EQ(CallClock::of(&graph), watch);
    }
    std::thread([&] { EXPECT_EQ(CallClock::of(&graph), nullptr); }).join();
  }
  EXPECT_EQ(CallClock::of(&graph), nullptr);
}

TEST_F(ContestTest, ACallThatWasAnotherTeachesNothing) {
  auto shared = std::make_shared<Contest>(twin::driver(), false, 1);
  int graph = 0;
  for (int i = 0; i < 4 * 12; ++i) {
    const CallClock watch(&graph);
    CallClock::of(&graph)->alternative(shared, nullptr);
    CallClock::of(&graph)->discard();
  }
  EXPECT_TRUE(shared->pairs().empty());
}

/// A device with one stream at a time, behind a driver's table; it keeps the test's time.
struct Device {
  Clock::time_point free;  ///< when it has done all it was given
  std::map<CUevent, Clock::time_point> recorded;
  std::map<std::string, int> calls;
};
Device device;

Clock::time_point reached() { return std::max(device.free, time_now); }
Clock::duration us(double value) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::micro>(value));
}

const Driver& clocking_driver() {
  static const Driver driver = [] {
    Driver made = twin::driver();
    made.api.cuStreamQuery = [](CUstream) {
      ++device.calls["query"];
      return device.free > time_now ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    };
    made.api.cuEventCreate = [](CUevent* event, unsigned flags) {
      ++device.calls["create"];
      return twin::driver().api.cuEventCreate(event, flags);
    };
    made.api.cuEventDestroy = [](CUevent event) {
      ++device.calls["destroy"];
      return twin::driver().api.cuEventDestroy(event);
    };
    made.api.cuEventRecord = [](CUevent event, CUstream) {
      ++device.calls["record"];
      device.recorded[event] = reached();
      return CUDA_SUCCESS;
    };
    made.api.cuEventQuery = [](CUevent event) {
      ++device.calls["query"];
      return device.recorded.at(event) > time_now ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    };
    made.api.cuEventElapsedTime = [](float* milliseconds, CUevent first, CUevent last) {
      ++device.calls["elapsed"];
      const auto between = device.recorded.at(last) - device.recorded.at(first);
      *milliseconds = std::chrono::duration<float, std::milli>(between).count();
      return CUDA_SUCCESS;
    };
    return made;
  }();
  return driver;
}

/// The host needs 10 us per call, and is in no other call of a graph unless it says so.
class DeviceClockTest : public ContestTest {
 protected:
  static constexpr double kHost = 10;
  static constexpr double kPause = 5;     ///< from call to call
  static constexpr double kGap = 12;      ///< that the device leaves behind a call
  static constexpr double kAhead = 5000;  ///< that the driver lets the host be

  void SetUp() override {
    ContestTest::SetUp();
    device = {};
  }

  /// Who served; and whether the call was clocked.
  struct Served {
    Alternative alternative;
    bool clocked;
    bool counts;
  };
  /// One call, that the device needs so long for, by who serves.
  Served call(double graph_us, double other_us, CUstream stream = nullptr) {
    Contest::count_call();
    const std::shared_ptr<Sighting> sighting = contest.begin(time_now, stream);
    const Alternative chosen = sighting == nullptr ? Alternative::kGraph : sighting->alternative;
    time_now += us(kHost);
    device.free = reached() + us(chosen == Alternative::kGraph ? graph_us : other_us);
    if (sighting != nullptr) {
      contest.end(*sighting, time_now);
    }
    device.free += us(kGap);
    time_now = std::max(time_now + us(kPause), device.free - us(kAhead));
    if (sighting != nullptr) {
      sighting->next = time_now;
    }
    return {chosen, sighting != nullptr, sighting != nullptr && sighting->counts};
  }
  /// Until the device is done.
  static void wait() { time_now = reached(); }
  /// Calls until the first look is reached; `between` them something else happens.
  template <typename Between>
  void look(double graph_us, double other_us, Between&& between) {
    for (int i = 0; i < 10'000 && !contest.due(); ++i) {
      call(graph_us, other_us);
      between();
    }
    ASSERT_EQ(contest.pairs().size(), 12U);
  }
  /// Of a caller who waits after so many calls, up to the first look.
  double driver_calls_per_turn(int calls_per_wait) {
    constexpr int kTurns = 24;
    for (int i = 0; i < 2 * kTurns; ++i) {
      call(16, 16);
      if (i % calls_per_wait == calls_per_wait - 1) {
        wait();
      }
    }
    int all = 0;
    for (const auto& [name, count] : device.calls) {
      all += count;
    }
    return static_cast<double>(all) / kTurns;
  }
  void expect(double graph_us, double other_us) {
    for (const ClockedPair& pair : contest.pairs()) {
      EXPECT_NEAR(pair.graph.device, graph_us, 0.01);
      EXPECT_NEAR(pair.other.device, other_us, 0.01);
    }
  }

  Contest contest{clocking_driver(), true, 7, &now};
};

TEST_F(DeviceClockTest, TheGapBetweenTwoCallsIsPartOfTheSecond) {
  look(100, 80, [] {});
  expect(100 + kGap, 80 + kGap);
  EXPECT_FALSE(contest.pairs().front().graph.idle);
}

TEST_F(DeviceClockTest, AsItIsOfWatchedCalls) {
  auto watched = std::make_shared<Contest>(clocking_driver(), true, 7, &now);
  int graph = 0;
  for (int i = 0; i < 100 && !watched->due(); ++i) {
    {
      const CallClock outer(&graph);
      const CallClock inner(&graph);
      CallClock::of(&graph)->alternative(watched, nullptr);
      device.free = reached() + us(100);
    }
    device.free += us(kGap);
    time_now = device.free - us(kGap + 10);
  }
  ASSERT_TRUE(watched->due());
  for (const ClockedPair& pair : watched->pairs()) {
    EXPECT_NEAR(pair.graph.device, 100 + kGap, 0.01);
  }
}

TEST_F(DeviceClockTest, WhatTheDeviceIsIdleForIsNot) {
  look(100, 80, [] {
    wait();
    time_now += us(1000);
  });
  expect(kHost + 100, kHost + 80);  // from when it is asked for
  EXPECT_TRUE(contest.pairs().front().graph.idle);
}

TEST_F(DeviceClockTest, NorIsItWhereTheCallerHasGivenTheDeviceSomethingSince) {
  look(100, 80, [] {
    wait();
    time_now += us(1000);
    device.free = reached() + us(30);
  });
  expect(100, 80);
  EXPECT_FALSE(contest.pairs().front().graph.idle);
}

TEST_F(DeviceClockTest, ACallOfAnotherGraphBetweenIsNotPartOfIt) {
  int other = 0;
  look(100, 80, [&] {
    const CallClock watch(&other);
    device.free = reached() + us(50);
  });
  expect(100, 80);
}

TEST_F(DeviceClockTest, NorIsOneOnAnotherStream) {
  int which = 0;
  for (int i = 0; i < 10'000 && !contest.due(); ++i) {
    call(100, 80, reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(++which % 2 + 1)));
  }
  ASSERT_EQ(contest.pairs().size(), 12U);
  expect(100, 80);
}

TEST_F(DeviceClockTest, NoCallComesBetweenTheTwoOfATurn) {
  // The device is soon behind by all turns that may be, and sometimes done with all in their midst.
  std::minstd_rand random(1);
  std::optional<Alternative> first;
  int skipped = 0;
  for (int i = 0; i < 20'000 && !contest.over(); ++i) {
    const Served served = call(150, 140);
    skipped += served.clocked ? 0 : 1;
    if (first) {
      ASSERT_TRUE(served.clocked && served.counts);
      EXPECT_EQ(served.alternative, *first);
      first.reset();
    } else if (served.clocked) {
      ASSERT_FALSE(served.counts);
      first = served.alternative;
    }
    if (first && random() % 4 == 0) {
      wait();
    }
  }
  ASSERT_TRUE(contest.over());
  EXPECT_GT(skipped, std::ssize(Contest::kLooks));  // else it was not behind
}

TEST_F(DeviceClockTest, ATurnTakesTenCallsOfTheDriverOfACallerWhoWaits) {
  EXPECT_LE(driver_calls_per_turn(1), 10);
}

TEST_F(DeviceClockTest, AndElevenOfOneWhoIsAhead) { EXPECT_LE(driver_calls_per_turn(12), 11); }

}  // namespace
}  // namespace pygraph::selection
