#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "../entry/entry_point.h"
#include "../speculation/speculation.h"
#include "bindings.h"
#include "python.h"

namespace nb = nanobind;

namespace pygraph::bindings {
namespace {

using torch_bridge::Dispatcher;
namespace speculation = torch_bridge::speculation;

void require_entry_point(nb::handle entry) {
  if (!PyObject_TypeCheck(entry.ptr(), torch_bridge::entry_point_type())) {
    throw nb::type_error("an entry point is needed");
  }
}

void bind_hook(nb::module_& module) {
  module.def(
      "make_speculation_hook",
      [](nb::handle code, nb::handle variables, nb::handle wrapper, nb::handle between,
         nb::handle plain) {
        return stolen(speculation::make_hook(code.ptr(), variables.ptr(), wrapper.ptr(),
                                             between.ptr(), plain.ptr()));
      },
      nb::arg("code"), nb::arg("variables"), nb::arg("wrapper"), nb::arg("between"),
      nb::arg("plain"),
      "Launches graphs in front of the guards of a compiled callable; see speculation.h.");
  const auto is_hook = [](nb::handle object) {
    return PyObject_TypeCheck(object.ptr(), speculation::hook_type()) != 0;
  };
  module.def(
      "allow_speculation",
      [](nb::handle entry, const std::vector<std::pair<std::uint32_t, std::int64_t>>& bounds,
         bool always) {
        require_entry_point(entry);
        std::vector<speculation::IndexBound> read;
        read.reserve(bounds.size());
        for (const auto& [argument, below] : bounds) {
          read.push_back({argument, below});
        }
        speculation::Target* target = torch_bridge::target_of(entry.ptr());
        if (target == nullptr || !speculation::allow(*target, std::move(read), always)) {
          throw nb::python_error();
        }
      },
      nb::arg("entry_point"), nb::arg("bounds"), nb::arg("always") = false,
      "The entry point's graph may be launched before the guards, once the values of its "
      "arguments are seen to be 0 or more and below what `bounds` says, by argument: where that "
      "pays, or `always`.");
  module.def(
      "forbid_speculation",
      [](nb::handle entry) {
        require_entry_point(entry);
        if (speculation::Target* target = torch_bridge::target_of(entry.ptr()); target != nullptr) {
          speculation::forbid(*target);
        }
        PyErr_Clear();
      },
      nb::arg("entry_point"), "Its graph is launched behind the guards from now on.");
  module.def(
      "call_at_end",
      [is_hook](nb::handle hook, nb::handle callable) {
        if (!is_hook(hook)) {
          throw nb::type_error("what make_speculation_hook() makes is needed");
        }
        speculation::call_at_end(hook.ptr(), callable.ptr());
      },
      nb::arg("hook"), nb::arg("callable"),
      "At the end of the hook's next call `callable()` is called.");
  module.def(
      "count_permits",
      [is_hook](nb::handle hook, std::int64_t change) {
        if (!is_hook(hook)) {
          throw nb::type_error("what make_speculation_hook() makes is needed");
        }
        return speculation::count_permits(hook.ptr(), change);
      },
      nb::arg("hook"), nb::arg("change"),
      "So many more entry points have their graphs launched by it, or fewer: how many that are.");
  module.def("is_speculation_hook", is_hook, nb::arg("object"),
             "Whether make_speculation_hook() made it.");
  module.def(
      "speculation_counts",
      [is_hook](nb::handle hook) {
        if (!is_hook(hook)) {
          throw nb::type_error("what make_speculation_hook() makes is needed");
        }
        const speculation::Counts counts = speculation::counts_of(hook.ptr());
        return std::make_tuple(counts.launched, counts.claimed, counts.read);
      },
      nb::arg("hook"),
      "Graphs that it launched, those that were claimed, and calls whose arguments it read.");
}

}  // namespace

void bind_entry_point(nb::module_& module) {
  nb::class_<speculation::LaunchCounts>(module, "LaunchCounts", "See speculation.h.")
      .def_ro("dropped", &speculation::LaunchCounts::dropped,
              "Launches for calls that did not come. They are no calls.")
      .def_ro("bytes_looked_at", &speculation::LaunchCounts::bytes_looked_at,
              "Of indices, brought to the host in front of launches.");
  module.def(
      "make_entry_point",
      [](nb::handle slow) { return stolen(torch_bridge::make_entry_point(slow.ptr())); },
      nb::arg("slow"), "A callable that goes to `slow` until it is connected; see entry_point.h.");
  module.def(
      "connect_entry_point",
      [](nb::handle entry, nb::handle dispatcher, Py_ssize_t argument_count, nb::handle order,
         nb::handle results, nb::handle parts, nb::handle counted, nb::handle count_up) {
        require_entry_point(entry);
        const torch_bridge::Handover handover{argument_count, order.ptr(),   results.ptr(),
                                              parts.ptr(),    counted.ptr(), count_up.ptr()};
        if (!torch_bridge::connect_entry_point(entry.ptr(), dispatcher.ptr(),
                                               nb::cast<Dispatcher&>(dispatcher), handover)) {
          throw nb::python_error();
        }
        return torch_bridge::target_of(entry.ptr())->counts;
      },
      nb::arg("entry_point"), nb::arg("dispatcher"), nb::arg("argument_count"), nb::arg("order"),
      nb::arg("results").none(), nb::kw_only(), nb::arg("parts") = nb::make_tuple(),
      nb::arg("counted") = nb::make_tuple(), nb::arg("count_up") = nb::none(),
      "What is counted of its launches; see Handover in entry_point.h.");
  module.def(
      "set_slow",
      [](nb::handle entry, nb::handle slow) {
        require_entry_point(entry);
        torch_bridge::set_slow(entry.ptr(), slow.ptr());
      },
      nb::arg("entry_point"), nb::arg("slow"));
  module.def(
      "set_watcher",
      [](nb::handle entry, nb::handle watcher) {
        require_entry_point(entry);
        torch_bridge::set_watcher(entry.ptr(), watcher.is_none() ? nullptr : watcher.ptr());
      },
      nb::arg("entry_point"), nb::arg("watcher").none(),
      "`watcher(arguments, results)` is called behind each call; None: no one is any more.");
  bind_hook(module);
}

}  // namespace pygraph::bindings
