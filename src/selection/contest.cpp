#include "selection/contest.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace pygraph::selection {
namespace {

constexpr std::uint32_t kCallsPerTurn = 2;
constexpr std::uint32_t kCallsPerPair = 2 * kCallsPerTurn;
constexpr double kNever = std::numeric_limits<double>::quiet_NaN();

struct Books {
  std::optional<Clock::time_point> opened;
  Clock::duration spent{0};
};
Books& books() noexcept {
  static Books books;
  return books;
}

/// What this thread is doing.
struct Thread {
  CallClock* innermost = nullptr;
  std::optional<Clock::time_point> announced;
  std::weak_ptr<Contest> contest;      ///< of the sighting
  std::shared_ptr<Sighting> sighting;  ///< the last one, until the next call begins

  void close(Clock::time_point now) noexcept {
    const std::shared_ptr<Sighting> closed = std::exchange(sighting, nullptr);
    if (closed == nullptr) {
      return;
    }
    if (const std::shared_ptr<Contest> its = contest.lock(); its != nullptr) {
      its->end(*closed, now);
    }
    closed->next = now;
  }
};
Thread& this_thread() noexcept {
  thread_local Thread thread;
  return thread;
}

double us(Clock::duration duration) noexcept {
  return std::chrono::duration<double, std::micro>(duration).count();
}

/// What is certain to have been paid for it by somebody.
double least(const Cost& cost) noexcept {
  return std::isnan(cost.device) ? cost.host : std::max(cost.host, cost.device);
}

}  // namespace

void Ledger::open(Clock::time_point now) noexcept {
  if (!books().opened) {
    books().opened = now;
  }
}

void Ledger::spend(Clock::duration cost) noexcept { books().spent += cost; }

bool Ledger::has_credit(Clock::time_point now) noexcept {
  const Books& all = books();
  return all.opened && us(all.spent) <= kShare * us(now - *all.opened);
}

Contest::Contest(const Driver& driver, bool device_clock, std::uint32_t seed, Now now)
    : driver_(&driver), device_clock_(device_clock), now_(now), random_(seed) {
  ++under_way_;
}

Contest::~Contest() { --under_way_; }

/// Takes the oldest sighting in, if all of its clocks have stopped. False: none.
bool Contest::collect() {
  if (open_.empty()) {
    return false;
  }
  const std::shared_ptr<Sighting> seen = open_.front();
  double device = kNever;
  if (seen->first && seen->last) {
    const CUresult passed = driver_->api.cuEventQuery(seen->last.get());
    if (passed == CUDA_ERROR_NOT_READY) {
      return false;
    }
    float milliseconds = 0;
    if (passed == CUDA_SUCCESS &&
        driver_->api.cuEventElapsedTime(&milliseconds, seen->first.get(), seen->last.get()) ==
            CUDA_SUCCESS) {
      device = 1e3 * static_cast<double>(milliseconds);
    }
  }
  open_.pop_front();
  take(*seen, device);
  return true;
}

void Contest::take(const Sighting& sighting, double device) {
  if (!sighting.counts) {
    return;
  }
  const auto until = [&](const std::optional<Clock::time_point>& then) {
    return then ? us(*then - sighting.began) : kNever;
  };
  const Cost cost{until(sighting.returned), device, until(sighting.next), sighting.idle};
  (sighting.alternative == Alternative::kGraph ? graph_ : other_) = cost;
  if (!graph_ || !other_) {
    return;
  }
  const double more = kCallsPerTurn * std::abs(least(*graph_) - least(*other_));
  Ledger::spend(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(more)));
  if (!std::exchange(cold_, false)) {
    pairs_.push_back({*graph_, *other_});
    due_ = pairs_.size() == kLooks[look_];
    look_ += due_ ? 1 : 0;
  }
  graph_.reset();
  other_.reset();
}

/// Whether one more call is to be clocked. A turn that has begun goes on with the very next call,
/// and a pair that has begun is finished whatever it costs.
bool Contest::may_begin() {
  if (last_ != nullptr && !last_->returned) {
    return false;
  }
  if (calls_ % kCallsPerTurn != 0) {
    return true;
  }
  while (!due_ && collect()) {
  }
  if (due_ || over() || open_.size() >= kMostOpen) {
    return false;
  }
  return calls_ % kCallsPerPair != 0 || Ledger::has_credit(now_());
}

std::shared_ptr<Sighting> Contest::begin(Clock::time_point began, CUstream stream) {
  due_ = false;
  const Clock::time_point asked = now_();
  if (!may_begin()) {
    return nullptr;
  }
  const std::uint32_t call = calls_++ % kCallsPerPair;
  if (call == 0) {
    graph_first_ = (random_() >> 4U) % 2 == 0;
  }
  auto sighting = std::make_shared<Sighting>();
  sighting->alternative =
      (call < kCallsPerTurn) == graph_first_ ? Alternative::kGraph : Alternative::kOther;
  sighting->counts = call % kCallsPerTurn == kCallsPerTurn - 1;
  sighting->began = began;
  sighting->stream = stream;
  sighting->number = number_;
  if (sighting->counts) {
    sighting->idle = driver_->api.cuStreamQuery(stream) == CUDA_SUCCESS;
    open_.push_back(sighting);
  }
  if (device_clock_) {
    if (sighting->counts) {
      start_device_clock(*sighting);
    }
    sighting->last = make_event();
  }
  last_ = sighting;
  const Clock::duration looked = now_() - asked;
  sighting->began += looked;  // that is not what the call costs
  Ledger::spend(looked);
  return sighting;
}

/// `sighting` counts, and `last_` is the first call of its turn. That one's last event stays where
/// it is if the device went from one call to the other, and is recorded again if it may have
/// waited.
void Contest::start_device_clock(Sighting& sighting) const {
  sighting.first = std::move(last_->last);
  const bool follows = sighting.first && last_->number + 1 == sighting.number &&
                       last_->stream == sighting.stream && !sighting.idle &&
                       driver_->api.cuEventQuery(sighting.first.get()) == CUDA_ERROR_NOT_READY;
  if (follows) {
    return;
  }
  if (!sighting.first) {
    sighting.first = make_event();
  }
  driver_->check(driver_->api.cuEventRecord(sighting.first.get(), sighting.stream),
                 "cuEventRecord");
}

EventHandle Contest::make_event() const {
  CUevent event = nullptr;
  driver_->check(driver_->api.cuEventCreate(&event, CU_EVENT_DEFAULT), "cuEventCreate");
  return {*driver_, event};
}

void Contest::end(Sighting& sighting, Clock::time_point now) noexcept {
  if (sighting.returned) {
    return;
  }
  sighting.returned = now;
  if (sighting.last &&
      driver_->api.cuEventRecord(sighting.last.get(), sighting.stream) != CUDA_SUCCESS) {
    sighting.last.reset();
  }
}

// --------------------------------------------------------------------------------- a call, watched

CallClock* CallClock::of(const void* graph) noexcept {
  CallClock* watch = this_thread().innermost;
  while (watch != nullptr && watch->graph_ != graph) {
    watch = watch->outer_;
  }
  return watch;
}

void CallClock::announce_now() noexcept {
  Thread& thread = this_thread();
  if (thread.innermost != nullptr) {
    return;  // it is within one that has begun
  }
  const Clock::time_point now = Clock::now();
  thread.close(now);
  thread.announced = now;
}

void CallClock::withdraw() noexcept {
  if (Contest::under_way() != 0) [[unlikely]] {
    this_thread().announced.reset();
  }
}

void CallClock::begin(const void* graph) noexcept {
  if (of(graph) != nullptr) {
    return;
  }
  Thread& thread = this_thread();
  const Clock::time_point now = Clock::now();
  thread.close(now);
  Contest::count_call();
  began_ = std::exchange(thread.announced, std::nullopt).value_or(now);
  graph_ = graph;
  outer_ = std::exchange(thread.innermost, this);
  active_ = true;
}

void CallClock::end() noexcept {
  Thread& thread = this_thread();
  thread.innermost = outer_;
  if (alternative_ && thread.sighting != nullptr) {
    if (const std::shared_ptr<Contest> contest = thread.contest.lock(); contest != nullptr) {
      contest->end(*thread.sighting, Clock::now());
    }
  }
}

void CallClock::discard() noexcept {
  if (alternative_ && this_thread().sighting != nullptr) {
    this_thread().sighting->counts = false;
  }
}

Alternative CallClock::alternative(const std::shared_ptr<Contest>& contest, CUstream stream) {
  if (!alternative_) {
    alternative_ = Alternative::kGraph;
    if (std::shared_ptr<Sighting> sighting = contest->begin(began_, stream); sighting != nullptr) {
      alternative_ = sighting->alternative;
      Thread& thread = this_thread();
      thread.sighting = std::move(sighting);
      thread.contest = contest;
    }
  }
  return *alternative_;
}

}  // namespace pygraph::selection
