#include <dlfcn.h>

#include <fmt/format.h>
#include <fmt/ranges.h>  // join, from fmt 11 on

#include "pygraph/driver.h"

namespace pygraph {
namespace {

#define PYGRAPH_STRING(name) #name
#define PYGRAPH_EXPAND(name) PYGRAPH_STRING(name)

// Looks up every entry point under the name that cuda.h's macros give it; what is required and
// absent is noted by that name.
void load_symbols(void* library, DriverApi& api, std::vector<std::string>& missing) {
#define PYGRAPH_REQUIRED(name)                                                                 \
  api.name =                                                                                   \
      reinterpret_cast<decltype(api.name)>(dlsym(library, PYGRAPH_EXPAND(name))); /* NOLINT */ \
  if (api.name == nullptr)                                                                     \
    missing.emplace_back(PYGRAPH_EXPAND(name));
#define PYGRAPH_OPTIONAL(name) \
  api.name =                   \
      reinterpret_cast<decltype(api.name)>(dlsym(library, PYGRAPH_EXPAND(name))); /* NOLINT */
#include "pygraph/driver_symbols.def"
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

Driver load_driver(const std::string& library, int minimum_version) {
  Driver driver;
  Capabilities& found = driver.capabilities;
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    found.problem = fmt::format(
        "no CUDA driver: {} could not be opened ({}); an NVIDIA driver for CUDA {} or newer is "
        "needed",
        library, dlerror(), version_text(minimum_version));
    return driver;
  }
  found.library = library;

  // The version comes first: on an old driver it is the better explanation for missing symbols.
  using VersionFunction = CUresult (*)(int*);
  auto* get_version =
      reinterpret_cast<VersionFunction>(dlsym(handle, "cuDriverGetVersion"));  // NOLINT
  if (get_version == nullptr) {
    found.missing.emplace_back("cuDriverGetVersion");
    found.problem = fmt::format(
        "{} is not a CUDA driver: it has no cuDriverGetVersion; libcuda for CUDA {} or newer is "
        "needed",
        library, version_text(minimum_version));
    return driver;
  }
  get_version(&found.version);
  if (found.version < minimum_version) {
    found.problem =
        fmt::format("CUDA driver too old: {} supports CUDA {}, needed is CUDA {} or newer", library,
                    version_text(found.version), version_text(minimum_version));
    return driver;
  }

  load_symbols(handle, driver.api, found.missing);
  if (!found.missing.empty()) {
    found.problem =
        fmt::format("CUDA driver {} (CUDA {}) lacks entry points that are needed: {}", library,
                    version_text(found.version), fmt::join(found.missing, ", "));
    return driver;
  }
  if (const CUresult code = driver.api.cuInit(0); code != CUDA_SUCCESS) {
    found.problem = fmt::format("cuInit failed with {}: no usable CUDA device in this process",
                                driver.error_name(code));
    return driver;
  }
  Driver::watch_for_forks();  // from here on the process has a CUDA context to lose
  driver.api.cuDeviceGetCount(&found.device_count);
  if (found.device_count == 0) {
    found.problem = "the CUDA driver works but shows no device (is CUDA_VISIBLE_DEVICES empty?)";
  }
  return driver;
}

const Driver& real_driver() {
  static const Driver driver = load_driver("libcuda.so.1");
  return driver;
}

}  // namespace pygraph
