// A few kernels for the twin, with the parameter layouts a compiler would give them. They are what
// the tests and the demonstration capture.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "pygraph/driver.h"

namespace pygraph::twin::samples {

/// Passed by value to `add`, so the bytes after `scale` and after `tag` are padding that a caller
/// leaves uninitialised.
struct AddArguments {
  float scale;
  CUdeviceptr left;
  CUdeviceptr right;
  CUdeviceptr out;
  std::uint16_t tag;     ///< not used
  std::uint64_t count;   ///< elements of `out` and `left`
  std::uint64_t period;  ///< elements of `right`, which repeats: a bias per column
};

/// The block of `packed_matmul`, handed over in `extra` as cuBLAS does it.
struct MatmulBlock {
  std::uint32_t rows, columns, inner;
  std::uint32_t padding;
  CUdeviceptr out;
  CUdeviceptr left;
  std::uint64_t seed;  ///< not used: a number that may look like an address
  CUdeviceptr right;
};

struct SaxpyArguments {
  CUdeviceptr out, x, y;
  float a;
  std::uint32_t n;
};

struct MatmulArguments {
  CUdeviceptr out, left, right;
  std::uint32_t rows, columns, inner;
};

/// Function handles, registered on first use; they live as long as the process. Floats throughout.
struct Functions {
  CUfunction saxpy;          ///< (out, x, y, float a, u32 n): out = a * x + y
  CUfunction affine;         ///< (out, x, float a, float b, u32 n): out = a * x + b
  CUfunction relu;           ///< (out, in, u32 n)
  CUfunction matmul;         ///< (out, left, right, u32 rows, columns, inner), row-major
  CUfunction packed_matmul;  ///< MatmulBlock in `extra`
  CUfunction add;            ///< AddArguments: out = scale * left + right[i % period]
  CUfunction copy;           ///< (out, in, u32 n): launched with a pointer into the middle
};
const Functions& functions();

// One launch each; sizes in elements. They throw DriverError.
void saxpy(const Driver& driver, CUstream stream, SaxpyArguments arguments);
void relu(const Driver& driver, CUstream stream, CUdeviceptr out, CUdeviceptr in, std::uint32_t n);
void matmul(const Driver& driver, CUstream stream, MatmulArguments arguments);
/// `size_first` chooses the order of pointer and size in `extra`.
void packed_matmul(const Driver& driver, CUstream stream, MatmulBlock block,
                   bool size_first = false);
void add(const Driver& driver, CUstream stream, AddArguments arguments);
void copy(const Driver& driver, CUstream stream, CUdeviceptr out, CUdeviceptr in, std::uint32_t n);

}  // namespace pygraph::twin::samples
