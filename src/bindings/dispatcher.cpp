#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <utility>

#include "../speculation/speculation.h"
#include "../torch/dispatcher.h"
#include "bindings.h"
#include "python.h"

namespace nb = nanobind;

namespace pygraph::bindings {
namespace {

using torch_bridge::Arguments;
using torch_bridge::Bypass;
using torch_bridge::Dispatcher;
namespace speculation = torch_bridge::speculation;

// The garbage collector must see through both classes: a dispatcher holds the Python object that
// holds the dispatcher, and a call may hold tensors.
int traverse_dispatcher(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Dispatcher>(self)->traverse(visit, arg) : 0;
}

int clear_dispatcher(PyObject* self) {
  nb::inst_ptr<Dispatcher>(self)->release();
  return 0;
}

PyType_Slot dispatcher_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_dispatcher)},
                                  {Py_tp_clear, reinterpret_cast<void*>(clear_dispatcher)},
                                  {0, nullptr}};

Bypass& bypass_of(const Dispatcher& dispatcher) {
  if (dispatcher.bypass() == nullptr) {
    throw std::logic_error("set_bypass() was not called");
  }
  return *dispatcher.bypass();
}

}  // namespace

void bind_dispatcher(nb::module_& module) {
  module.def(
      "grant_exploration",
      [](double seconds) {
        selection::Ledger::spend(-std::chrono::duration_cast<selection::Clock::duration>(
            std::chrono::duration<double>(seconds)));
      },
      nb::arg("seconds"),
      "Contests may cost so much more than their share of the time: for tests, which do not wait.");
  nb::class_<Dispatcher>(module, "Dispatcher", nb::type_slots(dispatcher_slots),
                         "Serves the calls of one compiled graph; see dispatcher.h.")
      .def(
          "__init__",
          [](Dispatcher* self, nb::handle miss, nb::handle failed) {
            new (self) Dispatcher(miss.ptr(), failed.ptr());
          },
          nb::arg("miss"), nb::arg("failed"))
      .def("__call__",
           [](Dispatcher& self, nb::handle arguments) {
             require_list(arguments);
             return stolen(speculation::serve(self, arguments.ptr()));
           })
      .def("add", &Dispatcher::add)
      .def(
          "select",
          [](Dispatcher& self, const std::shared_ptr<torch_bridge::TensorProgram>& program,
             nb::handle judge, bool device_clock, std::uint32_t seed,
             std::vector<std::uint32_t> copied, bool only_copies) {
            self.select(program, judge.ptr(), device_clock, seed, std::move(copied), only_copies);
          },
          nb::arg("program"), nb::arg("judge"), nb::arg("device_clock"), nb::arg("seed"),
          nb::arg("copied") = std::vector<std::uint32_t>(), nb::arg("only_copies") = false,
          "From now on `judge(pairs, over, stage)` decides whether the program or the callable "
          "serves the "
          "calls that the program accepts; see selection.h.")
      .def(
          "try_past",
          [](Dispatcher& self, const std::shared_ptr<torch_bridge::TensorProgram>& program,
             nb::handle judge, bool device_clock,
             std::uint32_t seed) { self.try_past(program, judge.ptr(), device_clock, seed); },
          nb::arg("program"), nb::arg("judge"), nb::arg("device_clock"), nb::arg("seed"),
          "`judge` decides, too, whether calls go past the guards or launch the program before "
          "them.")
      .def(
          "try_early",
          [](Dispatcher& self, const std::shared_ptr<torch_bridge::TensorProgram>& program,
             nb::handle judge, bool device_clock,
             std::uint32_t seed) { self.try_early(program, judge.ptr(), device_clock, seed); },
          nb::arg("program"), nb::arg("judge"), nb::arg("device_clock"), nb::arg("seed"),
          "In place of that `judge` decides whether the program is launched before the guards or "
          "behind them.")
      .def("rest", &Dispatcher::rest, nb::arg("program"),
           "From now on the callable serves the calls that the program accepts.")
      .def("clear", &Dispatcher::clear)
      .def("hold", &Dispatcher::hold, nb::arg("held"))
      .def_prop_ro("busy", &Dispatcher::busy)
      .def(
          "set_bypass",
          [](Dispatcher& self, nb::handle function, std::vector<std::uint32_t> integers,
             std::vector<std::uint32_t> aligned, std::uint64_t alignment,
             std::uint64_t first_calls) {
            self.set_bypass(std::make_unique<Bypass>(function.ptr(), std::move(integers),
                                                     std::move(aligned), alignment - 1,
                                                     first_calls));
          },
          nb::arg("function"), nb::arg("integers"), nb::arg("aligned"), nb::arg("alignment"),
          nb::arg("first_calls"),
          "`function` serves calls without `miss`, as the bypass is open to their signature, the "
          "values of the arguments `integers`; see bypass.h. `alignment` is a power of two, in "
          "bytes.")
      .def(
          "open_bypass",
          [](const Dispatcher& self, nb::handle arguments, std::optional<std::uint64_t> calls) {
            require_list(arguments);
            bypass_of(self).open(Arguments::of_list(arguments.ptr()),
                                 calls.value_or(Bypass::kAlways));
          },
          nb::arg("arguments"), nb::arg("calls") = nb::none(),
          "So many calls with this signature are served without `miss`; None: all.")
      .def(
          "close_bypass",
          [](const Dispatcher& self, nb::handle arguments) {
            require_list(arguments);
            bypass_of(self).close(Arguments::of_list(arguments.ptr()));
          },
          nb::arg("arguments"),
          "`miss` gets the calls with this signature, even while the bypass is open to all.")
      .def(
          "open_bypass_to_all",
          [](const Dispatcher& self, double seconds, std::uint64_t soon) {
            const auto length = std::chrono::duration_cast<Bypass::Clock::duration>(
                std::chrono::duration<double>(seconds));
            bypass_of(self).open_to_all(Bypass::Clock::now() + length, soon);
          },
          nb::arg("seconds"), nb::arg("soon") = 0,
          "For so long `miss` gets no calls but those of signatures that it was closed to, or that "
          "were called within the `soon` calls before.")
      .def(
          "bypassed",
          [](const Dispatcher& self, nb::handle arguments) {
            require_list(arguments);
            const Bypass::Taken taken = bypass_of(self).taken(Arguments::of_list(arguments.ptr()));
            return std::make_pair(taken.calls, taken.before);
          },
          nb::arg("arguments"),
          "Calls with this signature that `miss` did not get, since this was asked last; and which "
          "of the graph's calls was the one before the last with this signature, or 0.")
      .def_prop_ro(
          "sizes",
          [](const Dispatcher& self) {
            return self.bypass() == nullptr ? 0 : self.bypass()->size();
          },
          "Signatures that the bypass has seen; 0: it was not set.")
      .def("remove", &Dispatcher::remove, nb::arg("program"))
      .def_prop_ro("oldest", &Dispatcher::oldest, "The program used longest ago, or None.")
      .def_prop_ro("oldest_used", &Dispatcher::oldest_used,
                   "How many calls there had been when that was used.")
      .def_prop_ro("undecided", &Dispatcher::undecided,
                   "Whether it is being found out who serves calls like the last one.")
      .def_prop_ro("calls", &Dispatcher::calls)
      .def_prop_ro("replays", &Dispatcher::replays, "Calls that a program served.")
      .def_prop_ro("size", &Dispatcher::size);
}

}  // namespace pygraph::bindings
