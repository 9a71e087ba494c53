// What the numbers of a call are: host numbers, and what formulas take.
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <stdexcept>

#include "python_number.h"
#include "tensor_program.h"

namespace pygraph::torch_bridge {
namespace {

/// Of an argument that is one if accepts() was asked, which a proof does not do.
NumberValue host_number(PyObject* argument) {
  const std::optional<NumberValue> number = python_number(argument);
  if (!number.has_value()) {
    throw std::invalid_argument("an argument is no host number");
  }
  return *number;
}

}  // namespace

void TensorProgram::note_formula(const Formula& formula) {
  for (const std::uint32_t index : formula.arguments()) {
    if (index >= arguments_.size()) {
      throw std::invalid_argument(
          fmt::format("a formula takes argument {}; there are {}", index, arguments_.size()));
    }
    if (arguments_[index].kind != ArgumentSpec::Kind::kHostNumber) {
      doubles_.insert(index);
    }
  }
}

void TensorProgram::note_numbers() {
  if (numbers_.size() != program_.number_count()) {
    throw std::invalid_argument(fmt::format("{} host numbers were linked, and {} are specified",
                                            program_.number_count(), numbers_.size()));
  }
  for (std::size_t number = 0; number < numbers_.size(); ++number) {
    if (const auto* formula = std::get_if<Formula>(&numbers_[number])) {
      note_formula(*formula);
      continue;
    }
    const std::uint32_t index = std::get<std::uint32_t>(numbers_[number]);
    if (index >= arguments_.size() || arguments_[index].kind != ArgumentSpec::Kind::kHostNumber) {
      throw std::invalid_argument(
          fmt::format("host number {} is argument {}, which is no host number", number, index));
    }
  }
}

double TensorProgram::formula_number(const Arguments& arguments, std::uint32_t index) const {
  if (arguments_[index].kind == ArgumentSpec::Kind::kHostNumber) {
    return std::visit([](auto value) { return static_cast<double>(value); },
                      host_number(arguments[index]));
  }
  return *static_cast<const double*>(torch_api().data(arguments[index]));
}

NumberValue TensorProgram::number_from(const NumberSource& source,
                                       const Arguments& arguments) const {
  if (const auto* index = std::get_if<std::uint32_t>(&source)) {
    return host_number(arguments[*index]);
  }
  const double value = std::get<Formula>(source).evaluate(
      [&](std::uint32_t index) { return formula_number(arguments, index); });
  if (!std::isfinite(value)) {
    throw CallRefused(fmt::format("a formula of host numbers is {}", value));
  }
  return value;
}

void TensorProgram::set_numbers(const Arguments& arguments) {
  for (std::uint32_t number = 0; number < numbers_.size(); ++number) {
    const NumberValue value = number_from(numbers_[number], arguments);
    try {
      program_.set_number(number, value);
    } catch (const std::out_of_range& error) {
      throw CallRefused(error.what());
    }
  }
}

}  // namespace pygraph::torch_bridge
