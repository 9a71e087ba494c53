#include "early.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "dispatcher.h"
#include "entry.h"
#include "flight.h"
#include "frames.h"
#include "python_ref.h"
#include "route.h"

namespace pygraph::torch_bridge {
namespace {

constexpr std::size_t kMostRoutes = 4;      // training and inference, two shapes each
constexpr int kBetween = 2;                 // frames of torch.nn.Module's
constexpr unsigned kLongestPause = 10;      // 2 to the power of that, in calls
constexpr std::uint64_t kLessons = 8;       // in a row that led to nothing; then
constexpr std::uint64_t kLessonEvery = 64;  // one in so many calls

/// What is known of one compiled callable.
struct Knowledge {
  PythonRef code;
  PythonRef wrapper;
  PythonRef between;
  PythonRef plain_tuple;
  PlainTypes plain;
  std::vector<Route> routes;  ///< last used first
  EarlyCounts counts;
  std::uint64_t calls = 0;
  std::uint64_t lessons = 0;  ///< since something landed
  std::uint64_t pause = 0;    ///< calls until the next guess
  unsigned misses = 0;        ///< in a row

  [[nodiscard]] bool may_learn() const { return lessons < kLessons || calls % kLessonEvery == 0; }
};

struct EarlyObject {
  PyObject_HEAD Knowledge* knowledge;
};

/// One call of a compiled callable, from before its guards to its end.
class EarlyCall {
 public:
  /// `frame` is the one that runs the callable.
  EarlyCall(PyObject* owner, PythonRef frame);
  ~EarlyCall();
  EarlyCall(const EarlyCall&) = delete;
  EarlyCall& operator=(const EarlyCall&) = delete;

  static EarlyCall*& innermost() noexcept {
    thread_local EarlyCall* call = nullptr;
    return call;
  }
  Flight* arrive(PyObject* entry, PyObject* const* arguments, Py_ssize_t count,
                 const Arguments& view, bool may_learn);

 private:
  void begin();
  bool guess();
  bool launch(const Route& route);
  bool comes_directly() const;
  void learn(PyObject* entry, PyObject* const* arguments, Py_ssize_t count);
  void drop() noexcept;
  void pause() noexcept;

  PythonRef owner_;  ///< keeps the knowledge
  Knowledge& knowledge_;
  PythonRef frame_;
  PythonRef positional_;
  PythonRef named_;
  Leaves leaves_;
  bool readable_ = false;
  bool arrived_ = false;
  EarlyCall* outer_;

  std::size_t route_ = 0;  ///< the guess
  PythonRef entry_;
  std::vector<PythonRef> kept_;  ///< the graph's arguments, in the order of its caller
  Destination destination_;
  Arguments view_{};
  std::optional<Flight> flight_;
  void* stream_ = nullptr;
};

EarlyCall::EarlyCall(PyObject* owner, PythonRef frame)
    : owner_(PythonRef::to(owner)),
      knowledge_(*reinterpret_cast<EarlyObject*>(owner)->knowledge),  // NOLINT
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
  positional_ = variable(frame_.get(), "args");
  named_ = variable(frame_.get(), "kwargs");
  readable_ = positional_ && named_ && leaves_.read(positional_.get(), named_.get());
  if (readable_ && guess()) {
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
    knowledge_.misses = 0;
    knowledge_.lessons = 0;
    if (route_ < knowledge_.routes.size()) {
      std::rotate(knowledge_.routes.begin(),
                  knowledge_.routes.begin() + static_cast<std::ptrdiff_t>(route_),
                  knowledge_.routes.begin() + static_cast<std::ptrdiff_t>(route_) + 1);
    }
  } else {
    drop();
  }
}

/// The guess was wrong: the next one is made some calls later.
void EarlyCall::drop() noexcept {
  destination_.dispatcher->withdraw();
  flight_.reset();
  pause();
}

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
  view_ = {destination_.graphs.data(), nullptr, destination_.graphs.size()};
  flight_.emplace(*destination_.dispatcher, view_, false);
  switch (destination_.dispatcher->guess(view_, *flight_, *destination_.bounds)) {
    case Dispatcher::Start::kDeparted:
      stream_ = flight_->stream();
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

// ------------------------------------------------------------------- as Python sees it

/// What torch calls at the end; the call ends with it even if torch never does.
struct EndObject {
  PyObject_HEAD EarlyCall* call;
};

void end(PyObject* self) {
  delete std::exchange(reinterpret_cast<EndObject*>(self)->call, nullptr);
}

PyObject* call_end(PyObject* self, PyObject* /*arguments*/, PyObject* /*names*/) {
  end(self);
  Py_RETURN_NONE;
}

void deallocate_end(PyObject* self) {
  end(self);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyTypeObject* end_type() {
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(call_end)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_end)},
                                {0, nullptr}};
  static PyType_Spec spec = {"pygraph._engine.EndOfCall", sizeof(EndObject), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return reinterpret_cast<PyTypeObject*>(type);  // NOLINT
}

PyObject* call_early(PyObject* self, PyObject* /*arguments*/, PyObject* /*names*/) {
  PyTypeObject* type = end_type();
  PyObject* made = type == nullptr ? nullptr : type->tp_alloc(type, 0);
  if (made == nullptr) {
    return nullptr;
  }
  PythonRef frame =
      frame_of(reinterpret_cast<EarlyObject*>(self)->knowledge->code.get());  // NOLINT
  if (frame) {
    try {
      reinterpret_cast<EndObject*>(made)->call = new EarlyCall(self, std::move(frame));  // NOLINT
    } catch (const std::exception&) {  // no memory: then nothing is launched early
      PyErr_Clear();
    }
  }
  return made;
}

void deallocate_early(PyObject* self) {
  delete reinterpret_cast<EarlyObject*>(self)->knowledge;  // NOLINT
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

}  // namespace

PyTypeObject* early_type() {
  static PyType_Slot slots[] = {
      {Py_tp_call, reinterpret_cast<void*>(call_early)},
      {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_early)},
      {Py_tp_doc, const_cast<char*>("Launches graphs before guards run; see early.h.")},  // NOLINT
      {0, nullptr}};
  static PyType_Spec spec = {"pygraph._engine.Early", sizeof(EarlyObject), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return reinterpret_cast<PyTypeObject*>(type);  // NOLINT
}

PyObject* make_early(PyObject* code, PyObject* wrapper, PyObject* between, PyObject* plain) {
  if (!PyCode_Check(code) || !PyCode_Check(wrapper) || !PyTuple_Check(between) ||
      !PyTuple_Check(plain)) {
    PyErr_SetString(PyExc_TypeError, "two code objects and two tuples are needed");
    return nullptr;
  }
  PyTypeObject* type = early_type();
  PyObject* self = type == nullptr ? nullptr : type->tp_alloc(type, 0);
  if (self == nullptr) {
    return nullptr;
  }
  auto knowledge = std::make_unique<Knowledge>();
  knowledge->code = PythonRef::to(code);
  knowledge->wrapper = PythonRef::to(wrapper);
  knowledge->between = PythonRef::to(between);
  knowledge->plain_tuple = PythonRef::to(plain);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain); ++i) {
    knowledge->plain.push_back(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(plain, i)));
  }
  reinterpret_cast<EarlyObject*>(self)->knowledge = knowledge.release();  // NOLINT
  return self;
}

EarlyCounts early_counts(PyObject* early) noexcept {
  return reinterpret_cast<EarlyObject*>(early)->knowledge->counts;  // NOLINT
}

Flight* early_arrival(PyObject* entry, PyObject* const* arguments, Py_ssize_t count,
                      const Arguments& view, bool may_learn) noexcept {
  EarlyCall* call = EarlyCall::innermost();
  if (call == nullptr) {
    return nullptr;
  }
  try {
    return call->arrive(entry, arguments, count, view, may_learn);
  } catch (const std::exception&) {
    return nullptr;  // no memory to learn
  }
}

}  // namespace pygraph::torch_bridge
