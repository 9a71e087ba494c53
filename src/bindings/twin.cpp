#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../twin/demonstrate.h"
#include "../twin/samples.h"
#include "bindings.h"
#include "pygraph/twin.h"

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
      .def_ro("proven", &Demonstration::proven)
      .def_ro("moved_equal", &Demonstration::moved_equal);
  // Sample kernels of the twin, launched on a stream handle, so that Python can capture something.
  module.def(
      "twin_saxpy",
      [](std::uint64_t stream, std::uint64_t out, std::uint64_t x, std::uint64_t y, float a,
         std::uint32_t n) {
        twin::samples::saxpy(twin::driver(), reinterpret_cast<CUstream>(stream),  // NOLINT
                             {out, x, y, a, n});
      },
      nb::arg("stream"), nb::arg("out"), nb::arg("x"), nb::arg("y"), nb::arg("a"), nb::arg("n"),
      "out = a * x + y over n floats.");
  module.def(
      "twin_relu",
      [](std::uint64_t stream, std::uint64_t out, std::uint64_t in, std::uint32_t n) {
        twin::samples::relu(twin::driver(), reinterpret_cast<CUstream>(stream), out, in,  // NOLINT
                            n);
      },
      nb::arg("stream"), nb::arg("out"), nb::arg("input"), nb::arg("n"),
      "out = max(input, 0) over n floats.");
  module.def(
      "twin_fail",
      [](const std::string& symbol, int code, int nth, bool lasting) {
        twin::Faults::fail(symbol, static_cast<CUresult>(code), nth, lasting);
      },
      nb::arg("symbol"), nb::arg("code"), nb::arg("nth") = 1, nb::arg("lasting") = false,
      "See twin.h, Faults::fail.");
  module.def(
      "twin_slow",
      [](const std::string& symbol, std::int64_t microseconds) {
        twin::Faults::slow(symbol, std::chrono::microseconds(microseconds));
      },
      nb::arg("symbol"), nb::arg("microseconds"), "See twin.h, Faults::slow.");
  module.def("twin_pageable_memory_access", &twin::pageable_memory_access, nb::arg("on"),
             "See twin.h: CPU tensors stand in for device memory.");
  module.def("twin_count_calls", &twin::Faults::count_calls, nb::arg("on"),
             "See twin.h, Faults::count_calls.");
  module.def("twin_calls", &twin::Faults::calls,
             "Calls by entry point since twin_count_calls(True).");
  module.def(
      "twin_census",
      [] {
        const twin::Census now = twin::census();
        return std::map<std::string, std::size_t>{{"allocations", now.allocations},
                                                  {"allocated_bytes", now.allocated_bytes},
                                                  {"graphs", now.graphs},
                                                  {"execs", now.execs},
                                                  {"streams", now.streams},
                                                  {"mappings", now.mappings},
                                                  {"reservations", now.reservations}};
      },
      "The twin's live objects by kind, to test for leaks.");
  module.def("twin_reset_faults", &twin::Faults::reset);
  module.def("demonstrate_twin", &twin::demonstrate,
             "Captures, links, proves and moves a small network on the CPU twin.");
}

}  // namespace pygraph::bindings
