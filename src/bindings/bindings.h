// The parts of pygraph._engine, one function per subject; module.cpp calls them in order.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "../torch/torch_api.h"
#include "pygraph/driver.h"

namespace pygraph::bindings {

/// The real driver, or the twin: what Python names with `twin=True`.
const Driver& choose_driver(bool twin);

/// The primary contexts of devices, which somebody must keep: torch does those that it uses. Throws
/// DriverError.
std::vector<CUcontext> primary_contexts(const Driver& driver, const std::vector<int>& devices);

/// torch's functions. Throws std::logic_error before they were found.
const torch_bridge::TorchApi& calibrated_api();

void bind_driver(nanobind::module_& module);
void bind_phantom(nanobind::module_& module);
void bind_link(nanobind::module_& module);
void bind_formula(nanobind::module_& module);
void bind_tensor_program(nanobind::module_& module);
void bind_dispatcher(nanobind::module_& module);
void bind_entry_point(nanobind::module_& module);
void bind_callable(nanobind::module_& module);
void bind_timeline(nanobind::module_& module);
void bind_twin(nanobind::module_& module);
void bind_twin_recorder(nanobind::module_& module);

}  // namespace pygraph::bindings
