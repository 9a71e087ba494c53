# The C++ library as a CMake package: `cmake --install BUILD --component development --prefix PREFIX`,
# then find_package(pygraph) and the targets pygraph::engine and pygraph::twin.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package "${CMAKE_INSTALL_LIBDIR}/cmake/pygraph")
set_target_properties(pygraph_engine PROPERTIES EXPORT_NAME engine)
set_target_properties(pygraph_twin PROPERTIES EXPORT_NAME twin)
set_target_properties(pygraph_fmt PROPERTIES EXPORT_NAME fmt)  # messages; no header of ours shows it
install(TARGETS pygraph_engine pygraph_twin pygraph_fmt EXPORT pygraphTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/pygraph" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
install(EXPORT pygraphTargets NAMESPACE pygraph:: DESTINATION "${package}" COMPONENT development)

# The headers' types follow cuda.h, and that differs between major versions.
pygraph_cuda_version("${cuda_include}" PYGRAPH_CUDA_VERSION)
math(EXPR PYGRAPH_CUDA_MAJOR "${PYGRAPH_CUDA_VERSION} / 1000")
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/pygraphConfig.cmake.in" "${PROJECT_BINARY_DIR}/pygraphConfig.cmake"
  INSTALL_DESTINATION "${package}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/pygraphConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/pygraphConfig.cmake"
              "${PROJECT_BINARY_DIR}/pygraphConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/CudaHeaders.cmake"
        DESTINATION "${package}" COMPONENT development)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
        COMPONENT development)
