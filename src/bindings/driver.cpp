#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "pygraph/twin.h"
#include "selection/machine.h"

namespace nb = nanobind;

namespace pygraph::bindings {

const Driver& choose_driver(bool twin) { return twin ? twin::driver() : real_driver(); }

std::vector<CUcontext> primary_contexts(const Driver& driver, const std::vector<int>& devices) {
  std::vector<CUcontext> contexts;
  for (const int device : devices) {
    CUcontext& context = contexts.emplace_back();
    driver.check(driver.api.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain",
                 fmt::format("device {}", device));
    driver.check(driver.api.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease",
                 fmt::format("device {}", device));
  }
  return contexts;
}

void bind_driver(nb::module_& module) {
  // The object registers the type and is not needed any more.
  // NOLINTNEXTLINE(bugprone-unused-raii,bugprone-throw-keyword-missing)
  nb::exception<DriverError>(module, "DriverError", PyExc_RuntimeError);

  nb::class_<Capabilities>(module, "Capabilities", "What a CUDA driver can do; see driver.h.")
      .def_ro("library", &Capabilities::library)
      .def_ro("version", &Capabilities::version)
      .def_ro("device_count", &Capabilities::device_count)
      .def_ro("missing", &Capabilities::missing)
      .def_ro("problem", &Capabilities::problem)
      .def_prop_ro("usable", &Capabilities::usable);

  module.def(
      "capabilities",
      [](bool twin) -> const Capabilities& { return choose_driver(twin).capabilities; },
      nb::arg("twin") = false, nb::rv_policy::reference,
      "Capabilities of the real driver (opened on first use) or of the CPU twin. Never raises.");
  module.def(
      "capabilities_of",
      [](const std::string& library, int minimum) {
        return load_driver(library, minimum).capabilities;
      },
      nb::arg("library"), nb::arg("minimum_version") = Capabilities::kMinimumVersion,
      "Opens another driver library, to see what it lacks.");
  module.def("in_forked_child", &Driver::in_forked_child,
             "Whether this process was forked from one that had opened a driver.");
  module.def(
      "measure_machine",
      [] {
        const selection::MachineCosts costs = selection::measure_machine(real_driver());
        nb::dict made;
        made["launch"] = costs.launch;
        made["graph"] = costs.graph;
        made["patch"] = costs.patch;
        made["copy"] = costs.copy;
        made["bytes_per_us"] = costs.bytes_per_us;
        return made;
      },
      "What driver calls cost this host, on the current device: see machine.h. Raises "
      "DriverError.");
  module.def(
      "memory_info",
      [] {
        const Driver& driver = real_driver();
        std::size_t free = 0;
        std::size_t total = 0;
        driver.check(driver.api.cuMemGetInfo(&free, &total), "cuMemGetInfo");
        return nb::make_tuple(free, total);
      },
      "Free and total bytes of the current device, from the driver (not torch's statistics).");
}

}  // namespace pygraph::bindings
