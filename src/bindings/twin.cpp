#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../twin/demonstrate.h"
#include "bindings.h"

namespace nb = nanobind;

namespace pygraph::bindings {

void bind_twin(nb::module_& module) {
  using twin::Demonstration;
  nb::class_<Demonstration>(module, "Demonstration")
      .def_ro("lines", &Demonstration::lines)
      .def_ro("nodes", &Demonstration::nodes)
      .def_ro("relocations", &Demonstration::relocations)
      .def_ro("coincidences", &Demonstration::coincidences)
      .def_ro("noise", &Demonstration::noise)
      .def_ro("arena_bytes", &Demonstration::arena_bytes)
      .def_ro("lower_bound_bytes", &Demonstration::lower_bound_bytes)
      .def_ro("proof", &Demonstration::proof)
      .def_ro("moved_equal", &Demonstration::moved_equal);
  module.def("demonstrate_twin", &twin::demonstrate,
             "Captures, links, proves and moves a small network on the CPU twin.");
}

}  // namespace pygraph::bindings
