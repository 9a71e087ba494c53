#include <exception>
#include <new>

#include "pygraph/twin.h"
#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

/// An entry point with what all have in common: injected faults, and no exception crosses the C
/// interface.
template <Symbol kSymbol, auto kFunction>
struct Guarded;

template <Symbol kSymbol, typename... Arguments, CUresult (*kFunction)(Arguments...)>
struct Guarded<kSymbol, kFunction> {
  static CUresult call(Arguments... arguments) noexcept {
    if (Driver::in_forked_child()) [[unlikely]] {
      return CUDA_ERROR_NOT_INITIALIZED;  // as the driver says it; the lock may be held for ever
    }
    if (const CUresult fault = injected_fault(kSymbol); fault != CUDA_SUCCESS) {
      return fault;
    }
    try {
      return kFunction(arguments...);
    } catch (const std::bad_alloc&) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (const std::exception&) {
      return CUDA_ERROR_UNKNOWN;
    }
  }
};

Driver make_driver() {
  Driver twin;
#define PYGRAPH_REQUIRED(name) twin.api.name = &Guarded<Symbol::name, &entry::name>::call;
#define PYGRAPH_OPTIONAL(name) twin.api.name = &Guarded<Symbol::name, &entry::name>::call;
#include "pygraph/driver_symbols.def"
  Driver::watch_for_forks();
  twin.capabilities.library = "CPU twin";
  twin.api.cuDriverGetVersion(&twin.capabilities.version);
  twin.api.cuDeviceGetCount(&twin.capabilities.device_count);
  return twin;
}

}  // namespace

const Driver& driver() {
  static const Driver twin = make_driver();
  return twin;
}

State& state() {
  static State& instance = *new State;
  return instance;
}

const char* symbol_name(Symbol symbol) {
  static constexpr const char* kNames[] = {
#define PYGRAPH_REQUIRED(name) #name,
#define PYGRAPH_OPTIONAL(name) #name,
#include "pygraph/driver_symbols.def"
  };
  return kNames[static_cast<std::size_t>(symbol)];
}

Census census() {
  const Lock lock;
  const State& now = state();
  return {now.allocations.size() + now.physical.size(),
          now.allocated_bytes,
          now.graphs.size(),
          now.execs.size(),
          now.streams.size(),
          now.events.size(),
          now.mappings.size(),
          now.reservations.size()};
}

}  // namespace pygraph::twin
