# What `cmake --install` puts in place for projects that build on ours: libraries, headers and a CMake package.
# All of it is of the component `development`; what a machine needs that only runs bundles is of the component `loader`; tools
# and the plugin are in the unnamed one.
include(CMakePackageConfigHelpers)
set(DIFFATTN_CMAKE_DIR lib/cmake/DiffAttn)

get_property(libraries GLOBAL PROPERTY DIFFATTN_LIBRARIES)
set(exported ${libraries} DiffAttnRuntime)
foreach(library ${exported})
  install(TARGETS ${library} EXPORT DiffAttnTargets
    ARCHIVE DESTINATION lib COMPONENT development
    LIBRARY DESTINATION lib COMPONENT development)
endforeach()
if(TARGET DiffAttnOneDnn)
  install(TARGETS DiffAttnOneDnn LIBRARY DESTINATION lib COMPONENT development)
endif()
if(TARGET DiffAttnC)
  install(TARGETS DiffAttnC EXPORT DiffAttnTargets LIBRARY DESTINATION lib COMPONENT development)
endif()
install(EXPORT DiffAttnTargets NAMESPACE DiffAttn:: DESTINATION ${DIFFATTN_CMAKE_DIR} COMPONENT development)

install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/ DESTINATION include COMPONENT development
  FILES_MATCHING PATTERN "*.h" PATTERN "*.td")
install(DIRECTORY ${CMAKE_BINARY_DIR}/include/ DESTINATION include COMPONENT development
  FILES_MATCHING PATTERN "*.inc")

configure_package_config_file(cmake/DiffAttnConfig.cmake.in ${CMAKE_BINARY_DIR}/DiffAttnConfig.cmake
  INSTALL_DESTINATION ${DIFFATTN_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/DiffAttnConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/DiffAttnConfig.cmake ${CMAKE_BINARY_DIR}/DiffAttnConfigVersion.cmake
  DESTINATION ${DIFFATTN_CMAKE_DIR} COMPONENT development)

install(TARGETS DiffAttnBundle DiffAttnRuntime LIBRARY DESTINATION lib COMPONENT loader)
if(TARGET DiffAttnOneDnn)
  install(TARGETS DiffAttnOneDnn LIBRARY DESTINATION lib COMPONENT loader)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/include/diffattn-c/Bundle.h ${CMAKE_SOURCE_DIR}/include/diffattn-c/Types.h
  DESTINATION include/diffattn-c COMPONENT loader)
install(FILES ${CMAKE_SOURCE_DIR}/include/DiffAttn/Runtime/ElementType.h DESTINATION include/DiffAttn/Runtime COMPONENT loader)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/python/diffattn DESTINATION python COMPONENT loader FILES_MATCHING PATTERN "*.py")
