#include "../torch/timeline.h"

#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <vector>

#include "bindings.h"

namespace nb = nanobind;

namespace pygraph::bindings {

using torch_bridge::Timeline;

void bind_timeline(nb::module_& module) {
  nb::class_<Timeline>(module, "Timeline",
                       "When the layers of a call begin and end; see timeline.h.")
      .def(nb::init<>())
      .def("listen", &Timeline::listen)
      .def_static("stop", &Timeline::stop)
      .def_prop_ro(
          "marks",
          [](const Timeline& self) {
            std::vector<std::tuple<std::string_view, bool, std::int64_t, std::uint64_t>> marks;
            for (const Timeline::Mark& mark : self.marks()) {
              marks.emplace_back(name_of(mark.layer), mark.begins, mark.nanoseconds, mark.thread);
            }
            return marks;
          },
          "(layer, whether it begins or ends, nanoseconds of the steady clock, thread) in order.");
}

}  // namespace pygraph::bindings
