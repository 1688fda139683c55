# The libraries and programs of the wheel (scripts/build-wheel.sh): the objects of the build, linked once more, for machines with
# neither MLIR nor LLVM and a glibc from 2.34. Built by the target DiffAttnWheel alone; `cmake --install --component wheel` puts them
# in place. One library holds MLIR, LLVM and LLVM's linker; Python loads it, and programs are functions of it.
find_package(LLD REQUIRED CONFIG HINTS ${LLVM_LIBRARY_DIR}/cmake/lld)
find_library(DIFFATTN_ZLIB_ARCHIVE libz.a REQUIRED)
find_library(DIFFATTN_ZSTD_ARCHIVE libzstd.a REQUIRED)
find_library(DIFFATTN_OPENCL NAMES OpenCL libOpenCL.so.1 REQUIRED)
if(NOT TARGET DiffAttnOneDnn)
  message(FATAL_ERROR "expected oneDNN 2 for a wheel (Debian: libdnnl-dev), but found none")
endif()
set(DIFFATTN_WHEEL_DIR ${CMAKE_BINARY_DIR}/wheel)
add_custom_target(DiffAttnWheel)

# libgcc_s of GCC 11 has no conversions of half floats: they come from the archive. Unwinding stays with the shared one, which a
# process must have once.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} --rtlib=libgcc -print-libgcc-file-name
                OUTPUT_VARIABLE DIFFATTN_LIBGCC_ARCHIVE OUTPUT_STRIP_TRAILING_WHITESPACE)

# diffattn_wheel_target(TARGET NAME FOLDER RPATH): where TARGET goes, and how it is linked.
function(diffattn_wheel_target target name folder rpath)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE CXX
    LIBRARY_OUTPUT_DIRECTORY ${DIFFATTN_WHEEL_DIR}/${folder} RUNTIME_OUTPUT_DIRECTORY ${DIFFATTN_WHEEL_DIR}/${folder}
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${rpath}")
  target_link_options(${target} PRIVATE -static-libstdc++ -Wl,--exclude-libs,ALL -Wl,--gc-sections -Wl,--strip-all -Wl,-z,defs
    -Wl,--build-id=sha1)
  add_dependencies(DiffAttnWheel ${target})
  install(TARGETS ${target} LIBRARY DESTINATION ${folder} COMPONENT wheel EXCLUDE_FROM_ALL
    RUNTIME DESTINATION ${folder} COMPONENT wheel EXCLUDE_FROM_ALL)
endfunction()

# diffattn_wheel_library(LIBRARY sources... [LINK libs...]): LIBRARY again, of the objects that it is made of, and others.
function(diffattn_wheel_library library)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_library(${library}Wheel SHARED EXCLUDE_FROM_ALL ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${library}Wheel PRIVATE ${ARG_LINK} ${DIFFATTN_LIBGCC_ARCHIVE} ${CMAKE_DL_LIBS})
  diffattn_wheel_target(${library}Wheel ${library} lib "$ORIGIN")
endfunction()

diffattn_wheel_library(DiffAttnRuntime $<TARGET_OBJECTS:DiffAttnRuntime> LINK ${DIFFATTN_GOMP})
diffattn_wheel_library(DiffAttnOneDnn $<TARGET_OBJECTS:DiffAttnOneDnn> LINK DiffAttnRuntimeWheel ${DIFFATTN_DNNL} ${DIFFATTN_GOMP})
diffattn_wheel_library(DiffAttnBundle $<TARGET_OBJECTS:DiffAttnBundle> LINK DiffAttnRuntimeWheel
  $<TARGET_FILE:DiffAttnBundleLoader> $<TARGET_FILE:DiffAttnProgram> $<TARGET_FILE:DiffAttnSupport>)
target_link_options(DiffAttnBundleWheel PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/lib/Runtime/Bundle/exports.map)
add_dependencies(DiffAttnBundleWheel DiffAttnBundleLoader)

# LLVM's linker initializes every target, for link-time optimization, which nothing of ours needs: these do nothing, and their code
# is not in the library.
set(without "")
foreach(target ${LLVM_TARGETS_TO_BUILD})
  if(NOT target MATCHES "^(X86|NVPTX)$")
    foreach(part TargetInfo Target TargetMC AsmPrinter AsmParser)
      string(APPEND without "void LLVMInitialize${target}${part}(void) {}\n")
    endforeach()
  endif()
endforeach()
file(CONFIGURE OUTPUT ${DIFFATTN_WHEEL_DIR}/OtherTargets.c CONTENT "${without}" @ONLY)

# Archives of every layer, of MLIR and LLVM: the linker takes what is needed. By file, for as targets they would bring libMLIR.so.
get_property(layers GLOBAL PROPERTY DIFFATTN_LIBRARIES)
list(REMOVE_DUPLICATES layers)
list(TRANSFORM layers REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE archives)
file(GLOB upstream ${LLVM_LIBRARY_DIR}/libMLIR*.a ${LLVM_LIBRARY_DIR}/libLLVM*.a ${LLVM_LIBRARY_DIR}/liblld*.a)
diffattn_wheel_library(DiffAttnC
  # Without what hands our dialect to MLIR's C API, which is not in the library.
  $<FILTER:$<TARGET_OBJECTS:DiffAttnC>,EXCLUDE,Dialect.cpp>
  $<FILTER:$<TARGET_OBJECTS:diffattn-opt>,EXCLUDE,Main.cpp>
  $<FILTER:$<TARGET_OBJECTS:diffattn-run>,EXCLUDE,Main.cpp>
  $<TARGET_OBJECTS:DiffAttnToolSupport>
  ${CMAKE_SOURCE_DIR}/tools/wheel/Linker.cpp ${CMAKE_SOURCE_DIR}/tools/wheel/OlderLibc.c ${DIFFATTN_WHEEL_DIR}/OtherTargets.c
  LINK DiffAttnRuntimeWheel -Wl,--start-group ${archives} ${upstream} -Wl,--end-group ${DIFFATTN_ZLIB_ARCHIVE} ${DIFFATTN_ZSTD_ARCHIVE})
target_include_directories(DiffAttnCWheel SYSTEM PRIVATE ${LLD_INCLUDE_DIRS})
target_link_options(DiffAttnCWheel PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/lib/CAPI/exports.map)
set_target_properties(DiffAttnCWheel PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/lib/CAPI/exports.map)
add_dependencies(DiffAttnCWheel ${layers})

foreach(program opt run ld)
  add_executable(diffattn-${program}-wheel EXCLUDE_FROM_ALL)
  diffattn_main(diffattn-${program}-wheel diffattn_${program}_main)
  target_link_libraries(diffattn-${program}-wheel PRIVATE DiffAttnCWheel)
  diffattn_wheel_target(diffattn-${program}-wheel diffattn-${program} bin "$ORIGIN/../lib")
endforeach()

# Libraries that ours need beside the C library, by the names that they ask for.
foreach(library ${DIFFATTN_DNNL} ${DIFFATTN_GOMP} ${DIFFATTN_OPENCL})
  execute_process(COMMAND ${CMAKE_READELF} -d ${library} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "\\(SONAME\\)[^\n]*\\[([^]]+)\\]" soname "${dynamic}")
  file(REAL_PATH ${library} file)
  install(FILES ${file} DESTINATION lib RENAME ${CMAKE_MATCH_1} COMPONENT wheel EXCLUDE_FROM_ALL
    PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
endforeach()
foreach(header diffattn-c/DiffAttn.h diffattn-c/Bundle.h diffattn-c/Types.h DiffAttn/Runtime/ABI/ElementType.h)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${CMAKE_SOURCE_DIR}/include/${header} DESTINATION include/${folder} COMPONENT wheel EXCLUDE_FROM_ALL)
endforeach()
install(FILES ${CMAKE_BINARY_DIR}/diffattn.pc ${CMAKE_BINARY_DIR}/diffattn-bundle.pc DESTINATION lib/pkgconfig COMPONENT wheel
  EXCLUDE_FROM_ALL)
