// The twin's implementation of every driver entry point, one function per line of
// driver_symbols.def and of exactly its type. A symbol that is added there and not here fails the
// build. Inside this namespace the functions carry the names that cuda.h's macros give them.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace pygraph::twin::entry {

#define PYGRAPH_REQUIRED(name) decltype(::name) name;
#define PYGRAPH_OPTIONAL(name) decltype(::name) name;
#include "pygraph/driver_symbols.def"

}  // namespace pygraph::twin::entry

namespace pygraph::twin {

/// The entry points, numbered.
enum class Symbol : std::size_t {
#define PYGRAPH_REQUIRED(name) name,
#define PYGRAPH_OPTIONAL(name) name,
#include "pygraph/driver_symbols.def"
  kCount
};

/// The plain name of cuda.h ("cuMemAlloc", not "cuMemAlloc_v2").
const char* symbol_name(Symbol symbol);

/// The error that the test asked for on this call of `symbol`, or CUDA_SUCCESS.
CUresult injected_fault(Symbol symbol);

}  // namespace pygraph::twin
