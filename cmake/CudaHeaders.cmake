# Finds cuda.h of CUDA 12.4 or later. Only declarations are needed: libcuda is opened at run time.
#
# Places, in this order: -DPYGRAPH_CUDA_INCLUDE_DIR=..., what find_package(CUDAToolkit) found before,
# $CUDA_HOME and $CUDA_PATH, /usr/local/cuda*, the system's include path, and the headers in NVIDIA's
# wheels (nvidia-cuda-runtime) that ${PYGRAPH_PYTHON} or python3 can import. The first that is recent
# enough is taken.
#
#   include(cmake/CudaHeaders.cmake); pygraph_find_cuda_headers(directory)
#   pygraph_find_cuda_headers(directory MAJOR 13 PROBLEM text)     only CUDA 13; text instead of an error
#   cmake -DPYGRAPH_PYTHON=python3 -P cmake/CudaHeaders.cmake     prints the directory, or fails

function(pygraph_cuda_version directory out)
  set(version 0)
  if(EXISTS "${directory}/cuda.h")
    file(STRINGS "${directory}/cuda.h" line REGEX "^#define[ \t]+CUDA_VERSION[ \t]+[0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+" version "${line}")
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

function(pygraph_find_cuda_headers out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MAJOR;PROBLEM" "")
  set(minimum 12040)
  set(needed "CUDA_VERSION >= ${minimum}")
  if(arg_MAJOR)
    set(needed "${needed} of CUDA ${arg_MAJOR}")
  endif()
  set(found "")

  if(PYGRAPH_CUDA_INCLUDE_DIR)
    set(places "${PYGRAPH_CUDA_INCLUDE_DIR}")
  else()
    set(places ${CUDAToolkit_INCLUDE_DIRS})
    set(roots "")
    foreach(variable CUDA_HOME CUDA_PATH)
      if(DEFINED ENV{${variable}})
        list(APPEND roots "$ENV{${variable}}")
      endif()
    endforeach()
    file(GLOB toolkits LIST_DIRECTORIES true /usr/local/cuda-*)
    list(SORT toolkits COMPARE NATURAL ORDER DESCENDING)
    list(APPEND roots /usr/local/cuda ${toolkits} /opt/cuda)
    foreach(root IN LISTS roots)
      list(APPEND places "${root}/include" "${root}/targets/x86_64-linux/include"
           "${root}/targets/sbsa-linux/include")
    endforeach()
    list(APPEND places /usr/include)

    set(python "${PYGRAPH_PYTHON}")
    if(NOT python)
      set(python python3)
    endif()
    execute_process(
      COMMAND "${python}" -c
              "import glob, nvidia; print(*(d for p in nvidia.__path__ for d in (*sorted(glob.glob(p + '/cu[0-9]*/include'), reverse=True), p + '/cuda_runtime/include')), sep=';')"
      OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
    if(result EQUAL 0)
      list(APPEND places ${wheels})
    endif()
  endif()

  foreach(place IN LISTS places)
    pygraph_cuda_version("${place}" version)
    math(EXPR major "${version} / 1000")
    if(version GREATER_EQUAL minimum AND (NOT arg_MAJOR OR major EQUAL arg_MAJOR))
      set(${out} "${place}" PARENT_SCOPE)
      return()
    elseif(version GREATER 0)
      list(APPEND found "${place} (${version})")
    endif()
  endforeach()
  if(NOT found)
    set(found "none")
  endif()
  list(JOIN found ", " found)
  string(CONCAT problem
    "cuda.h: found ${found}, needed ${needed}. Install a CUDA toolkit 12.4 or later, or "
    "`pip install nvidia-cuda-runtime`, or pass -DPYGRAPH_CUDA_INCLUDE_DIR=<directory of cuda.h>.")
  if(NOT arg_PROBLEM)
    message(FATAL_ERROR "${problem}")
  endif()
  set(${arg_PROBLEM} "${problem}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  pygraph_find_cuda_headers(directory)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "${directory}")
endif()
