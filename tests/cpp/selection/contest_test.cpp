// Turns, clocks and what they may cost. The clock is the test's own.
#include "selection/contest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
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

}  // namespace
}  // namespace pygraph::selection
