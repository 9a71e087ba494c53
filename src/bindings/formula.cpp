#include "../torch/formula.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <utility>
#include <vector>

#include "bindings.h"

namespace nb = nanobind;

namespace pygraph::bindings {

using torch_bridge::Formula;

void bind_formula(nb::module_& module) {
  nb::class_<Formula> formula(module, "Formula", "See src/torch/formula.h.");
  nb::enum_<Formula::Operation>(formula, "Operation")
      .value("ARGUMENT", Formula::Operation::kArgument)
      .value("CONSTANT", Formula::Operation::kConstant)
      .value("ADD", Formula::Operation::kAdd)
      .value("SUBTRACT", Formula::Operation::kSubtract)
      .value("MULTIPLY", Formula::Operation::kMultiply)
      .value("DIVIDE", Formula::Operation::kDivide)
      .value("POWER", Formula::Operation::kPower)
      .value("SQUARE_ROOT", Formula::Operation::kSquareRoot);
  nb::class_<Formula::Step>(formula, "Step")
      .def(
          "__init__",
          [](Formula::Step* self, Formula::Operation operation, std::uint32_t argument,
             double constant) { new (self) Formula::Step{operation, argument, constant}; },
          nb::arg("operation"), nb::kw_only(), nb::arg("argument") = Formula::Step{}.argument,
          nb::arg("constant") = Formula::Step{}.constant)
      .def_ro("operation", &Formula::Step::operation)
      .def_ro("argument", &Formula::Step::argument)
      .def_ro("constant", &Formula::Step::constant);
  formula.def(nb::init<std::vector<Formula::Step>>(), nb::arg("steps"))
      .def_prop_ro("steps", &Formula::steps)
      .def_prop_ro("arguments", &Formula::arguments,
                   "The arguments that it takes, by number, each once.")
      .def_prop_ro_static("DEEPEST", [](nb::handle) { return Formula::kDeepest; })
      .def(
          "evaluate",
          [](const Formula& self, const std::map<std::uint32_t, double>& numbers) {
            return self.evaluate([&](std::uint32_t index) { return numbers.at(index); });
          },
          nb::arg("numbers"), "The value, for arguments by their number.");
}

}  // namespace pygraph::bindings
