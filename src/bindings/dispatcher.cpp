#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <utility>

#include "../torch/dispatcher.h"
#include "../torch/early.h"
#include "../torch/entry.h"
#include "bindings.h"
#include "python.h"

namespace nb = nanobind;

namespace pygraph::bindings {
namespace {

using torch_bridge::Arguments;
using torch_bridge::Dispatcher;
using torch_bridge::Uncaptured;

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

Uncaptured& uncaptured_of(const Dispatcher& dispatcher) {
  if (dispatcher.uncaptured() == nullptr) {
    throw std::logic_error("set_uncaptured() was not called");
  }
  return *dispatcher.uncaptured();
}

void require_entry(nb::handle entry) {
  if (!PyObject_TypeCheck(entry.ptr(), torch_bridge::entry_type())) {
    throw nb::type_error("an Entry is needed");
  }
}

void bind_entry(nb::module_& module) {
  module.def(
      "make_entry", [](nb::handle slow) { return stolen(torch_bridge::make_entry(slow.ptr())); },
      nb::arg("slow"), "A callable that goes to `slow` until it is connected; see entry.h.");
  module.def(
      "connect_entry",
      [](nb::handle entry, nb::handle dispatcher, Py_ssize_t argument_count, nb::handle order,
         nb::handle results) {
        require_entry(entry);
        if (!torch_bridge::connect_entry(entry.ptr(), dispatcher.ptr(),
                                         nb::cast<Dispatcher&>(dispatcher), argument_count,
                                         order.ptr(), results.ptr())) {
          throw nb::python_error();
        }
      },
      nb::arg("entry"), nb::arg("dispatcher"), nb::arg("argument_count"), nb::arg("order"),
      nb::arg("results").none());
  module.def(
      "set_entry_slow",
      [](nb::handle entry, nb::handle slow) {
        require_entry(entry);
        torch_bridge::set_entry_slow(entry.ptr(), slow.ptr());
      },
      nb::arg("entry"), nb::arg("slow"));
}

void bind_early(nb::module_& module) {
  module.def(
      "make_early",
      [](nb::handle code, nb::handle wrapper, nb::handle between, nb::handle plain) {
        return stolen(
            torch_bridge::make_early(code.ptr(), wrapper.ptr(), between.ptr(), plain.ptr()));
      },
      nb::arg("code"), nb::arg("wrapper"), nb::arg("between"), nb::arg("plain"),
      "Launches graphs in front of the guards of a compiled callable; see early.h.");
  const auto is_early = [](nb::handle object) {
    return PyObject_TypeCheck(object.ptr(), torch_bridge::early_type()) != 0;
  };
  module.def(
      "allow_early",
      [](nb::handle entry, const std::vector<std::pair<std::uint32_t, std::int64_t>>& bounds,
         bool always) {
        require_entry(entry);
        std::vector<torch_bridge::IndexBound> read;
        read.reserve(bounds.size());
        for (const auto& [argument, below] : bounds) {
          read.push_back({argument, below});
        }
        if (!torch_bridge::allow_early(entry.ptr(), std::move(read), always)) {
          throw nb::python_error();
        }
      },
      nb::arg("entry"), nb::arg("bounds"), nb::arg("always") = false,
      "The entry's graph may be launched in front of guards, once the values of its arguments are "
      "seen to be 0 or more and below what `bounds` says, by argument: where that pays, or "
      "`always`.");
  module.def("is_early", is_early, nb::arg("object"), "Whether make_early() made it.");
  module.def(
      "early_counts",
      [is_early](nb::handle early) {
        if (!is_early(early)) {
          throw nb::type_error("what make_early() makes is needed");
        }
        const torch_bridge::EarlyCounts counts = torch_bridge::early_counts(early.ptr());
        return std::make_tuple(counts.launched, counts.landed, counts.read);
      },
      nb::arg("early"),
      "Graphs that it launched, those whose call came, and calls whose arguments it read.");
}

}  // namespace

void bind_dispatcher(nb::module_& module) {
  bind_entry(module);
  bind_early(module);

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
             return stolen(self.call(arguments.ptr()));
           })
      .def("add", &Dispatcher::add)
      .def("clear", &Dispatcher::clear)
      .def("hold", &Dispatcher::hold, nb::arg("held"))
      .def_prop_ro("busy", &Dispatcher::busy)
      .def(
          "set_uncaptured",
          [](Dispatcher& self, nb::handle function, std::vector<std::uint32_t> integers,
             std::vector<std::uint32_t> aligned, std::uint64_t alignment,
             std::uint64_t first_calls) {
            self.set_uncaptured(std::make_unique<Uncaptured>(function.ptr(), std::move(integers),
                                                             std::move(aligned), alignment - 1,
                                                             first_calls));
          },
          nb::arg("function"), nb::arg("integers"), nb::arg("aligned"), nb::arg("alignment"),
          nb::arg("first_calls"),
          "What serves calls whose signature rests, the values of the arguments `integers`; see "
          "uncaptured.h. `alignment` is a power of two, in bytes.")
      .def(
          "rest",
          [](const Dispatcher& self, nb::handle arguments, std::optional<std::uint64_t> calls) {
            require_list(arguments);
            uncaptured_of(self).rest(Arguments::of_list(arguments.ptr()),
                                     calls.value_or(Uncaptured::kAlways));
          },
          nb::arg("arguments"), nb::arg("calls") = nb::none(),
          "So many calls with this signature are served uncaptured, without `miss`; None: all.")
      .def(
          "listen",
          [](const Dispatcher& self, nb::handle arguments) {
            require_list(arguments);
            uncaptured_of(self).listen(Arguments::of_list(arguments.ptr()));
          },
          nb::arg("arguments"), "`miss` gets the calls with this signature, quiet or not.")
      .def(
          "quiet",
          [](const Dispatcher& self, double seconds, std::uint64_t soon) {
            const auto length = std::chrono::duration_cast<Uncaptured::Clock::duration>(
                std::chrono::duration<double>(seconds));
            uncaptured_of(self).quiet(Uncaptured::Clock::now() + length, soon);
          },
          nb::arg("seconds"), nb::arg("soon") = 0,
          "For so long `miss` gets no calls but those that are listened to, and those whose "
          "signature was called within the `soon` calls before.")
      .def(
          "served",
          [](const Dispatcher& self, nb::handle arguments) {
            require_list(arguments);
            const Uncaptured::Served served =
                uncaptured_of(self).served(Arguments::of_list(arguments.ptr()));
            return std::make_pair(served.calls, served.before);
          },
          nb::arg("arguments"),
          "Calls with this signature that `miss` did not get, since this was asked last; and which "
          "of the graph's calls was the one before the last with this signature, or 0.")
      .def("remove", &Dispatcher::remove, nb::arg("call"))
      .def_prop_ro("oldest", &Dispatcher::oldest, "The call used longest ago, or None.")
      .def_prop_ro("oldest_used", &Dispatcher::oldest_used,
                   "How many calls there had been when that was used.")
      .def_prop_ro("calls", &Dispatcher::calls)
      .def_prop_ro("replays", &Dispatcher::replays, "Calls that a graph served.")
      .def_prop_ro("withdrawn", &Dispatcher::withdrawn,
                   "Launches for calls that did not come (early.h). They are no calls.")
      .def_prop_ro("size", &Dispatcher::size)
      .def_prop_ro("_boxed_call", [](const Dispatcher&) { return true; });
}

}  // namespace pygraph::bindings
