# The target replay_cublas: the toolkit's cuBLAS, or else that of NVIDIA's wheels (which torch brings
# along) beside ${PYGRAPH_PYTHON} or python3. Without either, replay_cublas_problem says so.
# The example calls no CUDA runtime, so nothing else is needed.

if(TARGET CUDA::cublas)
  add_library(replay_cublas INTERFACE)
  target_link_libraries(replay_cublas INTERFACE CUDA::cublas)
  message(STATUS "replay: cuBLAS of the CUDA toolkit")
  return()
endif()

set(python "${PYGRAPH_PYTHON}")
if(NOT python)
  set(python python3)
endif()
execute_process(COMMAND "${python}" -c "import nvidia; print(*nvidia.__path__, sep=';')"
                OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
foreach(wheel IN LISTS wheels)
  # nvidia/cu13/{include,lib}, and nvidia/cublas/{include,lib} before CUDA 13. The library's name
  # ends in its major version: wheels have no libcublas.so.
  file(GLOB headers "${wheel}/*/include/cublas_v2.h")
  foreach(header IN LISTS headers)
    cmake_path(GET header PARENT_PATH include)
    file(GLOB libraries "${include}/../lib/libcublas.so.*")
    if(libraries AND NOT TARGET replay_cublas)
      list(GET libraries 0 library)
      cmake_path(NORMAL_PATH library)
      add_library(replay_cublas INTERFACE)
      target_include_directories(replay_cublas SYSTEM INTERFACE "${include}")
      target_link_libraries(replay_cublas INTERFACE "${library}")
      foreach(cuda IN ITEMS ${include} ${pygraph_CUDA_INCLUDE_DIR})  # <nv/target> of CUDA 13
        if(EXISTS "${cuda}/cccl")
          target_include_directories(replay_cublas SYSTEM INTERFACE "${cuda}/cccl")
        endif()
      endforeach()
      message(STATUS "replay: cuBLAS ${library}")
    endif()
  endforeach()
endforeach()
if(NOT TARGET replay_cublas)
  set(replay_cublas_problem
      "cuBLAS: found neither in a CUDA toolkit nor in the packages of ${python} (nvidia/*/include/cublas_v2.h)")
endif()
