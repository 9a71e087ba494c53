# What every target of ours has in common, so that CMakeLists.txt reads as a list of parts.

# Looked up by name at run time, hence never to be stripped or hidden.
set(PYGRAPH_EXPORTS pygraph_phantom_alloc pygraph_phantom_free)

# The .cpp files of some folders. A new file, or a new folder of the list, needs no edit here.
function(pygraph_sources out)
  set(patterns "")
  foreach(folder IN LISTS ARGN)
    list(APPEND patterns "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
  endforeach()
  file(GLOB files CONFIGURE_DEPENDS ${patterns})
  set(${out} "${files}" PARENT_SCOPE)
endfunction()

function(pygraph_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wshadow)
  if(PROJECT_IS_TOP_LEVEL)  # a later compiler's new warning must not stop somebody else's build
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(PYGRAPH_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${PYGRAPH_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${PYGRAPH_SANITIZE})
  endif()
endfunction()

function(pygraph_library target)
  set(sources ${ARGN})
  if(NOT sources)  # CMake refuses a library without sources
    set(empty "${PROJECT_BINARY_DIR}/empty.cpp")
    if(NOT EXISTS "${empty}")
      file(WRITE "${empty}" "")
    endif()
    set(sources "${empty}")
  endif()
  add_library(${target} STATIC ${sources})
  pygraph_options(${target})
  target_include_directories(${target} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
endfunction()

# fmt without its shared library, compiled once. Header-only in every file costs 7 s per file, and
# 60 s under sanitizers; the shared one would have to be shipped. So one file is compiled with fmt's
# definitions inline and GCC told to keep them, and the others see declarations only. Other
# compilers cannot keep inline functions and pay.
function(pygraph_fmt target)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE $<BUILD_INTERFACE:fmt::fmt-header-only>)
    return()
  endif()
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/fmt.cpp" CONTENT "#include <fmt/format.h>\n")
  add_library(${target} STATIC "${PROJECT_BINARY_DIR}/fmt.cpp")
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} SYSTEM PUBLIC
    $<BUILD_INTERFACE:$<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>>)
  # No time is spent in messages: compile them fast.
  target_compile_options(${target} PRIVATE -fkeep-inline-functions -ffunction-sections -g0 -O0)
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY=1)
  target_link_options(${target} INTERFACE $<BUILD_INTERFACE:LINKER:--gc-sections>)
endfunction()

# Needs no newer system at run time than glibc 2.28, whatever it is linked on: libstdc++ is inside,
# and the few functions of glibc that are newer are taken in their old version. auditwheel refuses
# the wheel if a later compiler adds others. libgcc_s stays shared: exceptions and the end of a
# thread pass through frames of ours and of others.
function(pygraph_portable target)
  target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/glibc_2_28.cpp")
  target_link_options(${target} PRIVATE -static-libstdc++)
  foreach(symbol dlopen dlsym dlerror pthread_once pthread_mutex_trylock)
    target_link_options(${target} PRIVATE "LINKER:--wrap=${symbol}")
  endforeach()
  # Where these functions were before glibc 2.34.
  target_link_libraries(${target} PRIVATE -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0
                                          -Wl,--as-needed)
endfunction()

function(pygraph_python_module target)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
                  OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  find_package(nanobind CONFIG REQUIRED)
  set(symbols "")
  if(PYGRAPH_SYMBOLS)
    set(symbols NOSTRIP)
  endif()
  # NOMINSIZE: these bindings run on every call, speed before size.
  nanobind_add_module(${target} NB_STATIC NOMINSIZE NB_SUPPRESS_WARNINGS ${symbols} ${ARGN})
  pygraph_options(${target})
  target_link_libraries(${target} PRIVATE pygraph_engine pygraph_twin)
  # Nothing else is exported: torch carries its own fmt, and the process its own libstdc++.
  list(JOIN PYGRAPH_EXPORTS "; " exports)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/exports.map"
       CONTENT "{ global: PyInit_${target}; ${exports}; local: *; };\n")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${PROJECT_BINARY_DIR}/exports.map")
  if(PYGRAPH_PORTABLE)
    pygraph_portable(${target})
  endif()
  install(TARGETS ${target} LIBRARY DESTINATION pygraph COMPONENT python)

  # Type annotations, generated from the module itself.
  set(stub "${PROJECT_BINARY_DIR}/${target}.pyi")
  nanobind_add_stub(${target}_stub MODULE ${target} OUTPUT "${stub}" DEPENDS ${target}
                    PYTHON_PATH "$<TARGET_FILE_DIR:${target}>"
                    PATTERN_FILE "${PROJECT_SOURCE_DIR}/src/bindings/stub.pattern")
  install(FILES "${stub}" DESTINATION pygraph COMPONENT python)

  add_custom_target(extension ALL DEPENDS "${stub}")
  if(PYGRAPH_IN_PLACE)
    # Removed first: a process may be running the old one.
    set(package "${PROJECT_SOURCE_DIR}/python/pygraph")
    set(copies "${package}/${target}${NB_SUFFIX}" "${package}/${target}.pyi")
    add_custom_command(OUTPUT ${copies} DEPENDS ${target} "${stub}" VERBATIM
      COMMAND "${CMAKE_COMMAND}" -E rm -f ${copies}
      COMMAND "${CMAKE_COMMAND}" -E copy "$<TARGET_FILE:${target}>" "${stub}" "${package}"
      COMMENT "Putting ${target} into python/pygraph")
    add_custom_target(in_place ALL DEPENDS ${copies})
    add_dependencies(in_place ${target}_stub)
    add_dependencies(extension in_place)
  endif()
endfunction()

function(pygraph_tests target)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  add_executable(${target} ${ARGN})
  pygraph_options(${target})
  target_link_libraries(${target} PRIVATE pygraph_engine pygraph_twin GTest::gtest GTest::gtest_main)
  target_precompile_headers(${target} PRIVATE <gtest/gtest.h>)  # most of a test's compile time
  # The rest of it is the optimiser, which tests do not need: the code under test has it. Under
  # UndefinedBehaviorSanitizer it takes three quarters.
  if(NOT PYGRAPH_SANITIZE)
    target_compile_options(${target} PRIVATE -O1)
    gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 120)
    return()
  endif()
  target_compile_options(${target} PRIVATE -O0)
  # Several hundred processes would take longer to start than the tests themselves. What crashes
  # takes the rest of its shard along, and its name is the last in the output.
  set(shards 8)
  math(EXPR last "${shards} - 1")
  foreach(shard RANGE ${last})
    add_test(NAME ${target}.${shard} COMMAND ${target})
    set_tests_properties(${target}.${shard} PROPERTIES TIMEOUT 300
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()

function(pygraph_benchmarks target)
  find_package(benchmark REQUIRED)
  add_executable(${target} ${ARGN})
  pygraph_options(${target})
  target_link_libraries(${target} PRIVATE pygraph_engine pygraph_twin benchmark::benchmark benchmark::benchmark_main)
endfunction()
