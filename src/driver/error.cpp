#include <fmt/format.h>

#include "pygraph/driver.h"

namespace pygraph {
namespace {

std::string message(std::string_view code_name, std::string_view operation, std::string_view object,
                    std::string_view remedy) {
  std::string text = fmt::format("{} failed with {}", operation, code_name);
  if (!object.empty()) {
    text += fmt::format(" on {}", object);
  }
  if (!remedy.empty()) {
    text += fmt::format("; {}", remedy);
  }
  return text;
}

}  // namespace

DriverError::DriverError(CUresult code, std::string_view code_name, std::string_view operation,
                         std::string_view object, std::string_view remedy)
    : std::runtime_error(message(code_name, operation, object, remedy)),
      code_(code),
      operation_(operation),
      object_(object) {}

std::string Driver::error_name(CUresult code) const {
  const char* name = nullptr;
  if (api.cuGetErrorName != nullptr && api.cuGetErrorName(code, &name) == CUDA_SUCCESS &&
      name != nullptr) {
    return name;
  }
  return fmt::format("CUresult {}", static_cast<int>(code));
}

void Driver::fail(CUresult code, std::string_view operation, std::string_view object,
                  std::string_view remedy) const {
  throw DriverError(code, error_name(code), operation, object, remedy);
}

}  // namespace pygraph
