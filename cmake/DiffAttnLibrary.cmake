# One precompiled header for every library: MLIR's usual headers take longer to parse than most of our files.
add_library(DiffAttnPCH STATIC ${CMAKE_SOURCE_DIR}/cmake/pch.cpp)
target_precompile_headers(DiffAttnPCH PRIVATE ${CMAKE_SOURCE_DIR}/cmake/pch.h)
target_compile_options(DiffAttnPCH PUBLIC $<$<COMPILE_LANGUAGE:CXX>:-fpch-instantiate-templates>)
# Without it the precompiled header holds the times of the headers, and ccache finds nothing again after a checkout.
target_compile_options(DiffAttnPCH PRIVATE $<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>)

# diffattn_rpath(TARGET RPATH...): where TARGET looks for libraries, beside MLIR's folder. It is the same in the build folder and where
# TARGET is installed, so nothing is edited at installation: CMake would pad the path with a colon for that, and to the loader an
# empty entry is the current folder.
function(diffattn_rpath target)
  set_target_properties(${target} PROPERTIES
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${ARGN}" INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()

# diffattn_no_undefined(TARGET): the linker refuses undefined symbols in a shared library. Functions of sanitizers are undefined there: the
# program that loads the library has them.
function(diffattn_no_undefined target)
  if(NOT DIFFATTN_SANITIZE AND NOT DIFFATTN_FUZZERS AND NOT DIFFATTN_TSAN)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
endfunction()

# diffattn_precompiled_headers(PROGRAM): for a program of files that include MLIR.
function(diffattn_precompiled_headers name)
  target_precompile_headers(${name} REUSE_FROM DiffAttnPCH)
  # -fPIC and not an executable's -fPIE: the precompiled header is shared with the libraries.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC $<$<COMPILE_LANGUAGE:CXX>:-fpch-instantiate-templates>)
endfunction()

# diffattn_library(NAME sources... [LINK libs...] [DEPENDS targets...])
# A static library of one layer. LINK names the layers that it may use; the include-direction test checks the same.
function(diffattn_library name)
  cmake_parse_arguments(ARG "" "" "LINK;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_precompile_headers(${name} REUSE_FROM DiffAttnPCH)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-instantiate-templates>)
  target_link_libraries(${name} PUBLIC ${ARG_LINK} MLIR LLVM)
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:include>)
  add_dependencies(${name} DiffAttnHeaders ${ARG_DEPENDS})
  set_property(GLOBAL APPEND PROPERTY DIFFATTN_LIBRARIES ${name})
endfunction()

# diffattn_alone(FILES...): a unity build compiles each of these by itself: they name things of their own as their neighbours do, or
# are left out of what is linked elsewhere.
function(diffattn_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# diffattn_main(NAME FUNCTION): the program NAME is this function of tools/EntryPoints.h.
function(diffattn_main name function)
  target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tools/Main.cpp)
  diffattn_alone(${CMAKE_SOURCE_DIR}/tools/Main.cpp)
  target_compile_definitions(${name} PRIVATE DIFFATTN_MAIN=${function})
endfunction()

# diffattn_tool(NAME sources... [MAIN function] [LINK libs...])
function(diffattn_tool name)
  cmake_parse_arguments(ARG "" "MAIN" "LINK" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  if(ARG_MAIN)
    diffattn_main(${name} ${ARG_MAIN})
  endif()
  diffattn_precompiled_headers(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} MLIR LLVM)
  add_dependencies(${name} DiffAttnHeaders)
  diffattn_rpath(${name} "$ORIGIN/../lib")
  install(TARGETS ${name} RUNTIME DESTINATION bin COMPONENT tools)
endfunction()
