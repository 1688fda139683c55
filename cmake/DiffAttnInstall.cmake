# Components of `cmake --install`. Without --component all are installed:
#   tools        the tools and the plugin
#   loader       what a machine needs that only runs bundles: library, headers, Python package, CMake package and pkg-config file
#   development  on top of the loader, the compiler's libraries, headers, CMake package and pkg-config file
# The prefix may be moved: libraries and packages are found from where they lie themselves.
include(CMakePackageConfigHelpers)
set(DIFFATTN_CMAKE_DIR lib/cmake/DiffAttn)
set(DIFFATTN_BUNDLE_CMAKE_DIR lib/cmake/DiffAttnBundle)

# The runtime, and what it opens beside itself: neither of the two works without.
foreach(component tools loader)
  install(TARGETS DiffAttnRuntime LIBRARY DESTINATION lib COMPONENT ${component})
  if(TARGET DiffAttnOneDnn)
    install(TARGETS DiffAttnOneDnn LIBRARY DESTINATION lib COMPONENT ${component})
  endif()
endforeach()

# diffattn_install_pc(NAME COMPONENT): NAME.pc from its template.
function(diffattn_install_pc name component)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/${name}.pc.in ${CMAKE_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${name}.pc DESTINATION lib/pkgconfig COMPONENT ${component})
endfunction()

# ---- the loader of bundles: find_package(DiffAttnBundle), which needs neither MLIR nor C++. The compiler's package is on top of it.
install(TARGETS DiffAttnBundle DiffAttnRuntime EXPORT DiffAttnBundleTargets LIBRARY DESTINATION lib COMPONENT loader)
configure_package_config_file(cmake/DiffAttnBundleConfig.cmake.in ${CMAKE_BINARY_DIR}/DiffAttnBundleConfig.cmake
  INSTALL_DESTINATION ${DIFFATTN_BUNDLE_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/DiffAttnBundleConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(EXPORT DiffAttnBundleTargets NAMESPACE DiffAttn:: DESTINATION ${DIFFATTN_BUNDLE_CMAKE_DIR} COMPONENT loader)
install(FILES ${CMAKE_BINARY_DIR}/DiffAttnBundleConfig.cmake ${CMAKE_BINARY_DIR}/DiffAttnBundleConfigVersion.cmake
  DESTINATION ${DIFFATTN_BUNDLE_CMAKE_DIR} COMPONENT loader)
diffattn_install_pc(diffattn-bundle loader)
install(FILES ${CMAKE_SOURCE_DIR}/include/diffattn-c/Bundle.h ${CMAKE_SOURCE_DIR}/include/diffattn-c/Types.h
  DESTINATION include/diffattn-c COMPONENT loader)
install(FILES ${CMAKE_SOURCE_DIR}/include/DiffAttn/Runtime/ABI/ElementType.h DESTINATION include/DiffAttn/Runtime/ABI COMPONENT loader)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/python/diffattn DESTINATION python COMPONENT loader
  FILES_MATCHING PATTERN "*.py" PATTERN "py.typed")
# For `pip install -e PREFIX/python`, which brings the command `diffattn`.
install(FILES ${CMAKE_SOURCE_DIR}/python/pyproject.toml ${CMAKE_SOURCE_DIR}/python/README.md DESTINATION python COMPONENT loader)

# ---- the compiler: find_package(DiffAttn), whose component C is the C API alone.
get_property(libraries GLOBAL PROPERTY DIFFATTN_LIBRARIES)
install(TARGETS ${libraries} EXPORT DiffAttnTargets ARCHIVE DESTINATION lib COMPONENT development)
install(EXPORT DiffAttnTargets NAMESPACE DiffAttn:: DESTINATION ${DIFFATTN_CMAKE_DIR} COMPONENT development)
install(TARGETS DiffAttnC EXPORT DiffAttnCTargets LIBRARY DESTINATION lib COMPONENT development)
install(EXPORT DiffAttnCTargets NAMESPACE DiffAttn:: DESTINATION ${DIFFATTN_CMAKE_DIR} COMPONENT development)
diffattn_install_pc(diffattn development)
# Headers that other projects may use: what is said of them changes with a note in CHANGELOG.md. The others are our own.
set(DIFFATTN_PUBLIC_HEADERS
  DiffAttn/InitAll.h
  DiffAttn/InitCore.h
  DiffAttn/Codegen/NVVM/Ptxas.h
  DiffAttn/Codegen/Passes.h
  DiffAttn/Conversion/DiffAttnToLinalg.h
  DiffAttn/Conversion/Passes.h
  DiffAttn/Model/PassEnums.h
  DiffAttn/Model/Passes.h
  DiffAttn/Model/Patterns.h
  DiffAttn/Model/Pipelines/Pipelines.h
  DiffAttn/Model/Schedule/BatchInvariance.h
  DiffAttn/Pipelines/AttentionPipeline.h
  DiffAttn/Schedule/Passes.h
  DiffAttn/Target/CpuTarget.h
  DiffAttn/Target/GpuTarget.h
  DiffAttn/Transforms/Passes.h
  DiffAttn/Transforms/Patterns.h)
foreach(header ${DIFFATTN_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${CMAKE_SOURCE_DIR}/include/${header} DESTINATION include/${folder} COMPONENT development)
endforeach()
# Whole folders: the dialect; the compiler as a library, and the programs that it makes; what compiled code and its callers agree on; C.
foreach(folder DiffAttn/IR DiffAttn/Compiler DiffAttn/Runtime/ABI DiffAttn/Runtime/Program DiffAttn/Runtime/Support diffattn-c)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/${folder}/ DESTINATION include/${folder} COMPONENT development
    FILES_MATCHING PATTERN "*.h" PATTERN "*.td" PATTERN "*.def")
endforeach()
install(DIRECTORY ${CMAKE_BINARY_DIR}/include/ DESTINATION include COMPONENT development
  FILES_MATCHING PATTERN "*.h.inc")
configure_package_config_file(cmake/DiffAttnConfig.cmake.in ${CMAKE_BINARY_DIR}/DiffAttnConfig.cmake
  INSTALL_DESTINATION ${DIFFATTN_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/DiffAttnConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/DiffAttnConfig.cmake ${CMAKE_BINARY_DIR}/DiffAttnConfigVersion.cmake
  DESTINATION ${DIFFATTN_CMAKE_DIR} COMPONENT development)
