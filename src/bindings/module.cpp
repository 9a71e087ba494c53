#include "bindings.h"

#ifndef PYGRAPH_VERSION
#error "the build passes PYGRAPH_VERSION"
#endif

NB_MODULE(_engine, module) {
  module.doc() = "PyGraph's engine: captured CUDA graphs made relocatable, bound and launched.";
  // Compiled models live in Dynamo's caches until the interpreter is gone; nanobind would call that
  // a leak.
  nanobind::set_leak_warnings(false);
  module.attr("version") = PYGRAPH_VERSION;
  pygraph::bindings::bind_driver(module);
  pygraph::bindings::bind_phantom(module);
  pygraph::bindings::bind_link(module);
  pygraph::bindings::bind_formula(module);
  pygraph::bindings::bind_tensor_program(module);
  pygraph::bindings::bind_dispatcher(module);
  pygraph::bindings::bind_entry_point(module);
  pygraph::bindings::bind_callable(module);
  pygraph::bindings::bind_timeline(module);
  pygraph::bindings::bind_twin(module);
  pygraph::bindings::bind_twin_recorder(module);
}
