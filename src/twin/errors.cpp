#include "twin/entry.h"

namespace pygraph::twin {
namespace {

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

#define PYGRAPH_ERROR(code, text) {code, #code, text}

/// The codes that the twin returns or that tests inject; names and sentences as the driver's.
constexpr ErrorText kErrors[] = {
    PYGRAPH_ERROR(CUDA_SUCCESS, "no error"),
    PYGRAPH_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    PYGRAPH_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    PYGRAPH_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    PYGRAPH_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    PYGRAPH_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    PYGRAPH_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    PYGRAPH_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    PYGRAPH_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    PYGRAPH_ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    PYGRAPH_ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    PYGRAPH_ERROR(CUDA_ERROR_ILLEGAL_STATE,
                  "the operation cannot be performed in the present state"),
    PYGRAPH_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    PYGRAPH_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    PYGRAPH_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    PYGRAPH_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    PYGRAPH_ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    PYGRAPH_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    PYGRAPH_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    PYGRAPH_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    PYGRAPH_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    PYGRAPH_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                  "operation not permitted when stream is capturing"),
    PYGRAPH_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                  "operation failed due to a previous error during capture"),
    PYGRAPH_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE,
                  "operation would result in a merge of separate capture sequences"),
    PYGRAPH_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                  "capture was not ended in the same stream as it began"),
    PYGRAPH_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    PYGRAPH_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                  "dependency created on uncaptured work in another stream"),
    PYGRAPH_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                  "operation would make the legacy stream depend on a capturing blocking stream"),
    PYGRAPH_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                  "attempt to terminate a thread-local capture sequence from another thread"),
    PYGRAPH_ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                  "the graph update was not performed because it included changes which violated "
                  "constraints specific to instantiated graph update"),
    PYGRAPH_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

#undef PYGRAPH_ERROR

const ErrorText* find_error(CUresult code) {
  for (const ErrorText& error : kErrors) {
    if (error.code == code) {
      return &error;
    }
  }
  return nullptr;
}

CUresult give(CUresult code, const char** out, const char* ErrorText::*member) {
  if (out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const ErrorText* error = find_error(code);
  *out = error == nullptr ? nullptr : error->*member;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

CUresult entry::cuGetErrorName(CUresult error, const char** name) {
  return give(error, name, &ErrorText::name);
}

CUresult entry::cuGetErrorString(CUresult error, const char** text) {
  return give(error, text, &ErrorText::text);
}

}  // namespace pygraph::twin
