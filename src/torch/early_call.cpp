#include "early_call.h"

#include <algorithm>
#include <utility>

#include "dispatcher.h"
#include "frames.h"

namespace pygraph::torch_bridge {
namespace {

constexpr std::size_t kMostRoutes = 4;      // training and inference, two shapes each
constexpr int kBetween = 2;                 // frames of torch.nn.Module's
constexpr unsigned kLongestPause = 10;      // 2 to the power of that, in calls
constexpr std::uint64_t kLessons = 8;       // in a row that led to nothing; then
constexpr std::uint64_t kLessonEvery = 64;  // one in so many calls
// Of what follows the answer, so much is Dynamo's, at most. The rest is the user's, behind a graph
// break, and may wait for the graph.
constexpr std::chrono::microseconds kDynamosEnd{10};
// A wait for the GPU takes so long even if there is nothing left to wait for: 4.7 us through
// torch.cuda.synchronize() on an H200's host.
constexpr std::chrono::microseconds kWait{5};

}  // namespace

bool Knowledge::may_learn() const noexcept {
  return lessons < kLessons || calls % kLessonEvery == 0;
}

EarlyCall*& EarlyCall::innermost() noexcept {
  thread_local EarlyCall* call = nullptr;
  return call;
}

EarlyCall::EarlyCall(PyObject* owner, Knowledge& knowledge, PythonRef frame)
    : owner_(PythonRef::to(owner)),
      knowledge_(knowledge),
      frame_(std::move(frame)),
      outer_(innermost()) {
  ++knowledge_.calls;
  if (knowledge_.pause > 0) {
    --knowledge_.pause;
    arrived_ = true;
  } else if (knowledge_.routes.empty() && !knowledge_.may_learn()) {
    arrived_ = true;
  } else {
    begin();
  }
  innermost() = this;  // here, where nothing can be thrown any more
}

void EarlyCall::begin() {
  began_ = Clock::now();
  positional_ = variable(frame_.get(), "args");
  named_ = variable(frame_.get(), "kwargs");
  ++knowledge_.counts.read;
  readable_ = positional_ && named_ && leaves_.read(positional_.get(), named_.get());
  if (!readable_) {
    ++knowledge_.lessons;
  } else if (guess()) {
    ++knowledge_.counts.launched;
  }
}

EarlyCall::~EarlyCall() {
  EarlyCall** link = &innermost();
  while (*link != this) {
    link = &(*link)->outer_;
  }
  *link = outer_;
  if (!flight_) {
    return;
  }
  if (flight_->landed()) {
    ++knowledge_.counts.landed;
    knowledge_.lessons = 0;
    see_what_is_left_to_the_host(*flight_);
    if (pays_) {
      knowledge_.misses = 0;
    } else {
      pause();
    }
    if (route_ < knowledge_.routes.size()) {
      std::rotate(knowledge_.routes.begin(),
                  knowledge_.routes.begin() + static_cast<std::ptrdiff_t>(route_),
                  knowledge_.routes.begin() + static_cast<std::ptrdiff_t>(route_) + 1);
    }
  } else {
    drop();
  }
}

/// The guess was wrong.
void EarlyCall::drop() noexcept {
  destination_.dispatcher->withdraw();
  flight_.reset();
  pause();
}

/// The next guess is made some calls later.
void EarlyCall::pause() noexcept {
  knowledge_.pause = 1ULL << std::min(knowledge_.misses, kLongestPause);
  ++knowledge_.misses;
}

bool EarlyCall::guess() {
  for (std::size_t i = 0; i < knowledge_.routes.size(); ++i) {
    if (knowledge_.routes[i].fits(leaves_)) {
      route_ = i;
      return launch(knowledge_.routes[i]);
    }
  }
  return false;
}

bool EarlyCall::launch(const Route& route) {
  entry_ = route.entry();
  if (!entry_ || !worth_a_guess(entry_.get())) {
    return false;
  }
  kept_ = route.arguments(leaves_);
  if (kept_.empty()) {
    return false;
  }
  destination_ = entry_destination(entry_.get(), kept_);
  if (destination_.dispatcher == nullptr) {
    return false;
  }
  worth_ = route.worth();
  EarlyPermit& permit = *destination_.permit;
  const bool timed = is_to_be_timed(permit);
  view_ = {destination_.graphs.data(), nullptr, destination_.graphs.size()};
  flight_.emplace(*destination_.dispatcher, view_, false);
  cost_ = Clock::now() - began_;
  switch (destination_.dispatcher->guess(view_, *flight_, permit.bounds)) {
    case Dispatcher::Start::kDeparted:
      stream_ = flight_->stream();
      cost_ += permit.bounds.last_look();
      departed_ = Clock::now();
      if (timed) {
        see_how_long_it_runs();
      }
      return true;
    case Dispatcher::Start::kError:
      PyErr_Clear();  // the call itself will meet it
      [[fallthrough]];
    case Dispatcher::Start::kMiss:
      flight_.reset();
      pause();
  }
  return false;
}

bool EarlyCall::is_to_be_timed(const EarlyPermit& permit) noexcept {
  if (permit.always || !worth_->rest || worth_->outlasts) {
    return false;
  }
  if (!permit.bounds.bounds().empty()) {
    return true;  // worth_a_guess() has asked the stream
  }
  const Clock::time_point asked = Clock::now();
  const bool idle = destination_.dispatcher->idle();
  began_ += Clock::now() - asked;  // that is not what a guess costs
  return idle;
}

/// A guess makes the caller wait: arguments are read, indices looked at. What it brings is that the
/// GPU runs while the guards do: no longer than they take, and no longer than it has work beyond
/// the rest of the call and the caller's wait, during which it runs in any case. So both must be
/// longer than the guess. The one is seen here, once, which takes no longer than all that; the
/// other when the call arrives.
void EarlyCall::see_how_long_it_runs() {
  const Clock::duration least =
      cost_ + worth_->rest.value_or(Clock::duration::zero()) + Clock::duration{kWait};
  while (!worth_->outlasts) {
    // Before the stream is asked: this thread may be held up at any time.
    const bool late = Clock::now() - departed_ > least;
    if (destination_.dispatcher->idle()) {
      break;
    }
    worth_->outlasts = late;
  }
  pays_ = worth_->outlasts;
  departed_ = Clock::now();
}

/// Another thread may run in between, so the least is kept.
void EarlyCall::see_what_is_left_to_the_host(const Flight& flight) noexcept {
  if (const std::optional<Clock::time_point> answered = flight.answered()) {
    const Clock::duration end = std::min<Clock::duration>(Clock::now() - *answered, kDynamosEnd);
    const Clock::duration rest = *answered - arrival_ + end;
    worth_->rest = std::min(worth_->rest.value_or(rest), rest);
  }
}

/// Whether nothing of the user's has run since the callable was called. From the call outwards: the
/// wrapper that Dynamo puts around a backend's function; the frame that Dynamo compiled; where the
/// callable is a module, what calls its forward if it has no hooks; the frame that runs the
/// callable.
bool EarlyCall::comes_directly() const {
  PythonRef frame =
      PythonRef::stolen(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  if (frame && code_of(frame.get()).get() == knowledge_.wrapper.get()) {
    frame = back(frame.get());
  }
  if (frame) {
    frame = back(frame.get());
  }
  const auto passes_on = [&](PyObject* code) {
    return PySequence_Contains(knowledge_.between.get(), code) == 1;
  };
  for (int depth = 0; depth < kBetween && frame && frame.get() != frame_.get() &&
                      passes_on(code_of(frame.get()).get());
       ++depth) {
    frame = back(frame.get());
  }
  return frame && frame.get() == frame_.get();
}

Flight* EarlyCall::arrive(PyObject* entry, PyObject* const* arguments, Py_ssize_t count,
                          const Arguments& view, bool may_learn) {
  if (std::exchange(arrived_, true)) {
    return nullptr;
  }
  const bool directly = comes_directly();
  if (flight_) {
    if (directly && entry == entry_.get() && flight_->stream() == stream_ &&
        flight_->expect(view)) {
      arrival_ = Clock::now();
      pays_ =
          destination_.permit->always || !worth_->rest || (pays_ && arrival_ - departed_ > cost_);
      return &*flight_;
    }
    drop();
  }
  if (may_learn && directly && readable_ && knowledge_.may_learn()) {
    learn(entry, arguments, count);
  }
  return nullptr;
}

void EarlyCall::learn(PyObject* entry, PyObject* const* arguments, Py_ssize_t count) {
  ++knowledge_.lessons;
  std::optional<Route> route =
      Route::learn(entry, arguments, static_cast<std::size_t>(count), leaves_, knowledge_.plain);
  if (!route) {
    return;
  }
  std::vector<Route>& routes = knowledge_.routes;
  routes.erase(std::remove_if(routes.begin(), routes.end(),
                              [&](const Route& each) {
                                const PythonRef its = each.entry();
                                return !its || (its.get() == entry && each.fits(leaves_));
                              }),
               routes.end());
  routes.insert(routes.begin(), std::move(*route));
  if (routes.size() > kMostRoutes) {
    routes.pop_back();
  }
}

}  // namespace pygraph::torch_bridge
