#include "guess.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "../torch/call_scope.h"
#include "frames.h"

namespace pygraph::torch_bridge::speculation {
namespace {

constexpr std::size_t kMostShapes = 4;      // training and inference, two shapes each
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

/// Whether the stream of the program that was used last has nothing left to do, as far as can be
/// told: not while somebody captures it.
bool is_idle(const Dispatcher& dispatcher) noexcept {
  const TensorProgram* program = dispatcher.last();
  try {
    if (program == nullptr || program->being_captured()) {
      return false;
    }
    const CallScope scope = program->scope();
    const Relaxed around(program->driver());
    return program->driver().api.cuStreamQuery(scope.stream()) == CUDA_SUCCESS;
  } catch (const std::exception&) {
    return false;
  }
}

/// Whether its graph may be launched in front of guards and that is worth something now: what has
/// indices to look at would wait for the stream, if that has work to do.
bool is_worth_a_guess(const Target& target) noexcept {
  return target.permit != nullptr &&
         (target.permit->bounds.bounds().empty() || is_idle(target.dispatcher));
}

/// Whether `object` is a number like `expected`: an integer of the same value, or a tensor of the
/// same type with the same one.
bool is_same_number(PyObject* object, PyObject* expected, const Number& number) noexcept {
  if (object == expected) {
    return true;
  }
  if (!number.value) {
    const bool integers = PyLong_CheckExact(object) && PyLong_CheckExact(expected);
    return integers && PyObject_RichCompareBool(object, expected, Py_EQ) == 1;
  }
  const TorchApi& api = torch_api();
  const std::optional<double> value = float_in(api, object);
  return value && same_bits(*value, *number.value) && api.dtype(object) == api.dtype(expected);
}

}  // namespace

bool Knowledge::may_learn() const noexcept {
  return lessons < kLessons || calls % kLessonEvery == 0;
}

Guess*& Guess::innermost() noexcept {
  thread_local Guess* guess = nullptr;
  return guess;
}

Guess::Guess(PyObject* owner, Knowledge& knowledge, PythonRef frame)
    : owner_(PythonRef::to(owner)),
      knowledge_(knowledge),
      frame_(std::move(frame)),
      outer_(innermost()) {
  ++knowledge_.calls;
  selection::CallClock::announce();
  if (knowledge_.pause > 0) {
    --knowledge_.pause;
    arrived_ = true;
  } else if (knowledge_.shapes.empty() && !knowledge_.may_learn()) {
    arrived_ = true;
  } else {
    begin();
  }
  innermost() = this;  // here, where nothing can be thrown any more
}

void Guess::begin() {
  began_ = Clock::now();
  positional_ = variable(frame_.get(), PyTuple_GET_ITEM(knowledge_.variables.get(), 0));
  named_ = variable(frame_.get(), PyTuple_GET_ITEM(knowledge_.variables.get(), 1));
  ++knowledge_.counts.read;
  readable_ = positional_ && named_ && leaves_.read(positional_.get(), named_.get());
  if (!readable_) {
    ++knowledge_.lessons;
  } else if (find_shape()) {
    ++knowledge_.counts.launched;
  }
}

Guess::~Guess() {
  Guess** link = &innermost();
  while (*link != this) {
    link = &(*link)->outer_;
  }
  *link = outer_;
  selection::CallClock::withdraw();
  if (knowledge_.at_end) {
    const PythonRef at_end = std::move(knowledge_.at_end);
    const PythonRef done = PythonRef::stolen(PyObject_CallNoArgs(at_end.get()));
    if (!done) {
      PyErr_WriteUnraisable(at_end.get());
    }
  }
  if (!launch_) {
    return;
  }
  if (launch_->claimed()) {
    ++knowledge_.counts.claimed;
    knowledge_.lessons = 0;
    see_what_is_left_to_the_host(*launch_);
    if (pays_) {
      knowledge_.misses = 0;
    } else {
      pause();
    }
    if (shape_ < knowledge_.shapes.size()) {
      std::rotate(knowledge_.shapes.begin(),
                  knowledge_.shapes.begin() + static_cast<std::ptrdiff_t>(shape_),
                  knowledge_.shapes.begin() + static_cast<std::ptrdiff_t>(shape_) + 1);
    }
  } else {
    drop();
  }
}

/// The guess was wrong.
void Guess::drop() noexcept {
  if (watch_) {
    watch_->discard();
  }
  launch_.reset();
  pause();
}

/// The next guess is made some calls later.
void Guess::pause() noexcept {
  knowledge_.pause = 1ULL << std::min(knowledge_.misses, kLongestPause);
  ++knowledge_.misses;
}

bool Guess::find_shape() {
  for (std::size_t i = 0; i < knowledge_.shapes.size(); ++i) {
    if (knowledge_.shapes[i].fits(leaves_)) {
      shape_ = i;
      return launch(knowledge_.shapes[i]);
    }
  }
  return false;
}

bool Guess::launch(const CallShape& shape) {
  target_ = shape.target();
  if (target_ == nullptr) {
    return false;
  }
  watch_.emplace(&target_->dispatcher);
  if (!target_->dispatcher.launches_early() || !is_worth_a_guess(*target_)) {
    return false;
  }
  Given given = shape.given(leaves_);
  if (given.arguments.empty()) {
    return false;
  }
  kept_ = std::move(given.arguments);
  numbers_ = std::move(given.numbers);
  target_owner_ = PythonRef::to(target_->owner.get());
  arguments_.reserve(target_->order.size());
  for (const std::uint32_t index : target_->order) {
    arguments_.push_back(kept_[index].get());
  }
  benefit_ = shape.benefit();
  const bool timed = is_to_be_timed(*target_->permit);
  view_ = {arguments_.data(), nullptr, arguments_.size()};
  PendingLaunch& pending = launch_.emplace(*target_, view_, false);
  cost_ = Clock::now() - began_;
  IndexBounds& bounds = target_->permit->bounds;
  switch (start(pending, bounds)) {
    case PendingLaunch::Start::kLaunched:
      stream_ = pending.stream();
      cost_ += bounds.last_look();
      launched_ = Clock::now();
      if (timed) {
        see_how_long_it_runs();
      }
      return true;
    case PendingLaunch::Start::kError:
    case PendingLaunch::Start::kMiss:
      launch_.reset();
      if (!target_->dispatcher.yielded() || !target_->dispatcher.undecided()) {
        pause();
      }
  }
  return false;
}

/// Only a program that leaves no trace may be launched, so that it can be dropped.
PendingLaunch::Start Guess::start(PendingLaunch& launch, IndexBounds& bounds) {
  Dispatcher::Choice choice = target_->dispatcher.choose(view_);
  if (choice.program == nullptr || !choice.program->without_trace()) {
    return PendingLaunch::Start::kMiss;
  }
  const bool within = bounds.admit(*choice.program, view_);
  target_->counts->bytes_looked_at = bounds.bytes_looked_at();
  return within ? launch.launch(std::move(choice)) : PendingLaunch::Start::kMiss;
}

bool Guess::is_to_be_timed(const Permit& permit) noexcept {
  if (permit.always || !benefit_->remainder || benefit_->outlasts) {
    return false;
  }
  if (!permit.bounds.bounds().empty()) {
    return true;  // is_worth_a_guess() has asked the stream
  }
  const Clock::time_point asked = Clock::now();
  const bool idle = is_idle(target_->dispatcher);
  began_ += Clock::now() - asked;  // that is not what a guess costs
  return idle;
}

/// A guess makes the caller wait: arguments are read, indices looked at. What it brings is that the
/// GPU runs while the guards do: no longer than they take, and no longer than it has work beyond
/// the rest of the call and the caller's wait, during which it runs in any case. So both must be
/// longer than the guess. The one is seen here, once, which takes no longer than all that; the
/// other when the call arrives.
void Guess::see_how_long_it_runs() {
  const Clock::duration least =
      cost_ + benefit_->remainder.value_or(Clock::duration::zero()) + Clock::duration{kWait};
  while (!benefit_->outlasts) {
    // Before the stream is asked: this thread may be held up at any time.
    const bool late = Clock::now() - launched_ > least;
    if (is_idle(target_->dispatcher)) {
      break;
    }
    benefit_->outlasts = late;
  }
  pays_ = benefit_->outlasts;
  launched_ = Clock::now();
}

/// Another thread may run in between, so the least is kept.
void Guess::see_what_is_left_to_the_host(const PendingLaunch& claimed) noexcept {
  if (const std::optional<Clock::time_point> answered = claimed.answered()) {
    const Clock::duration end = std::min<Clock::duration>(Clock::now() - *answered, kDynamosEnd);
    const Clock::duration remainder = *answered - arrival_ + end;
    benefit_->remainder = std::min(benefit_->remainder.value_or(remainder), remainder);
  }
}

/// Whether nothing of the user's has run since the callable was called. From the call outwards: the
/// wrapper that Dynamo puts around a backend's function; the frame that Dynamo compiled; where the
/// callable is a module, what calls its forward if it has no hooks; the frame that runs the
/// callable.
bool Guess::comes_directly() const {
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

/// The call's arguments. The numbers of the guess that are the same are those objects from now on.
const Arguments& Guess::with_numbers_of(const Arrival& call) {
  for (const Number& number : numbers_) {
    PyObject* arrived = call.arguments[number.index];
    if (is_same_number(arrived, kept_[number.index].get(), number)) {
      put(number, arrived);
    }
  }
  return call.view;
}

void Guess::put(const Number& number, PyObject* object) {
  kept_[number.index] = PythonRef::to(object);
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    if (target_->order[i] == number.index) {
      arguments_[i] = object;
    }
  }
}

PendingLaunch* Guess::arrive(const Arrival& call) {
  if (std::exchange(arrived_, true)) {
    return nullptr;
  }
  if (watch_ && call.target != target_) {
    watch_->discard();
  }
  const bool directly = comes_directly();
  if (launch_) {
    if (directly && call.target == target_ && launch_->stream() == stream_ &&
        launch_->expect(with_numbers_of(call))) {
      arrival_ = Clock::now();
      pays_ = target_->permit == nullptr || target_->permit->always || !benefit_->remainder ||
              (pays_ && arrival_ - launched_ > cost_);
      return &*launch_;
    }
    drop();
  }
  if (call.target->permit != nullptr && directly && readable_ && knowledge_.may_learn()) {
    learn(call.target, call.arguments);
  }
  return nullptr;
}

void Guess::learn(const std::shared_ptr<Target>& target, PyObject* const* arguments) {
  ++knowledge_.lessons;
  std::optional<CallShape> shape = CallShape::learn(target, arguments, leaves_, knowledge_.plain);
  if (!shape) {
    return;
  }
  std::vector<CallShape>& shapes = knowledge_.shapes;
  std::erase_if(shapes, [&](const CallShape& each) {
    const std::shared_ptr<Target> its = each.target();
    return its == nullptr || (its == target && each.fits(leaves_));
  });
  shapes.insert(shapes.begin(), std::move(*shape));
  if (shapes.size() > kMostShapes) {
    shapes.pop_back();
  }
}

}  // namespace pygraph::torch_bridge::speculation
