# Headers that most sources include, compiled once for all modules whose flags allow sharing (-march and -fPIC must
# agree): lancet_share_headers(OWNER module...).
set(LANCET_SHARED_HEADERS
    <algorithm> <array> <chrono> <cmath> <cstdint> <filesystem> <fstream> <functional> <map> <memory> <optional> <set>
    <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>
    <fmt/format.h> <fmt/ranges.h>)
function(lancet_share_headers owner headers)
  target_precompile_headers(${owner} PRIVATE ${LANCET_SHARED_HEADERS} ${headers})
  foreach(target IN LISTS ARGN)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endforeach()
endfunction()

# lancet_module(NAME [DEPENDS module...] [USES target...]): a static library from src/NAME.
function(lancet_module name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;USES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/(backend|runtime)/cuda/|/comm/nccl/")  # sources of the CUDA plugin
  if(NOT LANCET_MPI)
    list(FILTER sources EXCLUDE REGEX "/comm/mpi/")
  endif()
  if(NOT LANCET_ONEDNN)
    list(FILTER sources EXCLUDE REGEX "/backend/cpu/onednn[^/]*$")
  endif()
  add_library(lancet_${name} STATIC ${sources})
  set_target_properties(lancet_${name} PROPERTIES UNITY_BUILD ${LANCET_UNITY})
  target_compile_options(lancet_${name} PRIVATE -Wall -Wextra $<$<BOOL:${LANCET_WERROR}>:-Werror>)
  target_include_directories(lancet_${name} PUBLIC ${CMAKE_SOURCE_DIR}/include)
  foreach(module IN LISTS ARG_DEPENDS)
    target_link_libraries(lancet_${name} PUBLIC lancet_${module})
  endforeach()
  target_link_libraries(lancet_${name} PUBLIC ${ARG_USES})
endfunction()

# Flags of the code that computes: loops vectorise only when math functions set no errno and do not trap
# (results stay IEEE: no -ffast-math).
set(LANCET_KERNEL_FLAGS -O3 -march=${LANCET_ARCH} -fno-math-errno -fno-trapping-math -fopenmp-simd -mprefer-vector-width=512)
function(lancet_kernel_flags)
  foreach(module IN LISTS ARGN)
    target_compile_options(lancet_${module} PRIVATE ${LANCET_KERNEL_FLAGS})
  endforeach()
endfunction()

# A program of a kit build starts on a machine that has only the C library: it brings its own libstdc++ and libgcc. The
# plugin keeps the shared ones, as the CUDA libraries beside it do.
function(lancet_portable target)
  if(LANCET_KIT)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

# One folder, one op family: src/ops/<shelf>/<folder>/op.cpp defines `<folder>_ops()`, cpu.cpp `<folder>_cpu()`.
# This function collects them into the two tables that the other modules read.
function(lancet_op_tables module)
  file(GLOB op_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/*/*/op.cpp)
  set(op_declarations "")
  set(op_rows "")
  set(cpu_declarations "")
  set(cpu_rows "")
  foreach(file IN LISTS op_files)
    get_filename_component(folder ${file} DIRECTORY)
    get_filename_component(op ${folder} NAME)
    string(APPEND op_declarations "std::span<const OpDef> ${op}_ops();\n")
    string(APPEND op_rows "      ${op}_ops(),\n")
    if(EXISTS ${folder}/cpu.cpp)
      string(APPEND cpu_declarations "std::span<const CpuKernel> ${op}_cpu();\n")
      string(APPEND cpu_rows "      ${op}_cpu(),\n")
    endif()
  endforeach()
  if(op_files)
    configure_file(${CMAKE_SOURCE_DIR}/src/ops/tables.cpp.in ${CMAKE_BINARY_DIR}/generated/op_tables.cpp @ONLY)
    target_sources(lancet_${module} PRIVATE ${CMAKE_BINARY_DIR}/generated/op_tables.cpp)
    target_include_directories(lancet_${module} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  endif()
endfunction()

# Options of a test program, and of a library of test code: the same for all, since they share precompiled headers.
function(lancet_test_code target)
  target_compile_definitions(${target} PRIVATE LANCET_SOURCE_DIR="${CMAKE_SOURCE_DIR}" LANCET_BINARY="$<TARGET_FILE:lancet>")
  # Optimising Catch2's macros takes minutes and gains nothing.
  target_compile_options(${target} PRIVATE -Wall -Wextra -O1 -g0 $<$<BOOL:${LANCET_WERROR}>:-Werror>)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LANCET_UNITY})
  if(target STREQUAL test_base)
    lancet_share_headers(test_base "<catch2/catch.hpp>;<nlohmann/json.hpp>")
  else()
    target_precompile_headers(${target} REUSE_FROM test_base)
  endif()
endfunction()

# lancet_discover(TARGET PREFIX LABEL): each case of a Catch2 program is a ctest of its own. It counts as skipped if it
# prints "SKIPPED: " and the reason. Cases with the tag [long] have the label long instead of their own.
function(lancet_discover target prefix label)
  set(properties TIMEOUT ${LANCET_TEST_TIMEOUT} SKIP_REGULAR_EXPRESSION "SKIPPED: ")
  catch_discover_tests(${target} TEST_SPEC "~[long]~[.]" TEST_PREFIX "${prefix}: " PROPERTIES LABELS ${label} ${properties})
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    if(source MATCHES "_test[.]cpp$")
      file(STRINGS ${source} tags REGEX [["\[long\]"]])
      if(tags)
        catch_discover_tests(${target} TEST_SPEC "[long]" TEST_PREFIX "${prefix}: "
                             PROPERTIES LABELS long ${properties})
        return()
      endif()
    endif()
  endforeach()
endfunction()

# lancet_test(MODULE): builds tests/MODULE/*.cpp as one Catch2 program.
function(lancet_test module)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${module}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${module} ${sources})
  target_link_libraries(test_${module} PRIVATE lancet_test_main $<$<NOT:$<STREQUAL:${module},cuda>>:lancet_${module}> ${ARGN})
  lancet_test_code(test_${module})
  target_include_directories(test_${module} PRIVATE ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/src)
  string(REGEX REPLACE "^cuda$" "gpu" label ${module})
  lancet_discover(test_${module} ${module} ${label})
endfunction()

# Sets `out` to the sources that decide the time of an op or a message on a device, with `cuda` including the CUDA
# plugin's.
function(lancet_kernel_sources out cuda)
  set(files "")
  foreach(folder IN ITEMS base backend comm ops)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cpp ${CMAKE_SOURCE_DIR}/src/${folder}/*.h
         ${CMAKE_SOURCE_DIR}/src/${folder}/*.cu ${CMAKE_SOURCE_DIR}/src/${folder}/*.cuh ${CMAKE_SOURCE_DIR}/include/lancet/${folder}/*.h)
    list(APPEND files ${found})
  endforeach()
  if(NOT cuda)
    list(FILTER files EXCLUDE REGEX "/backend/cuda/|/comm/nccl/|/ops/(cuda|device)|[.]cuh?$")
  endif()
  list(SORT files)
  set(${out} "${files}" PARENT_SCOPE)
endfunction()

# Generates generated/NAME.cpp from TEMPLATE with a hash of FILES and OPTIONS, again whenever one of the files changes.
function(lancet_hash_sources name template files options)
  string(REPLACE ";" " " options "${options}")
  set(list ${CMAKE_BINARY_DIR}/generated/${name}.txt)
  string(REPLACE ";" "\n" lines "${files}")
  file(CONFIGURE OUTPUT ${list} CONTENT "${lines}\n" @ONLY)
  set(output ${CMAKE_BINARY_DIR}/generated/${name}.cpp)
  set(script ${CMAKE_SOURCE_DIR}/cmake/KernelBuild.cmake)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DSOURCES=${list} "-DOPTIONS=${options}" -DTEMPLATE=${template} -DOUTPUT=${output} -P ${script}
    DEPENDS ${files} ${list} ${script} ${template}
    VERBATIM)
endfunction()

# Adds the source of cost::kernel_build() to `module`: a hash of all that decides the time of an op or a message, so
# that times measured with other kernels are never used.
function(lancet_kernel_build module)
  lancet_kernel_sources(files OFF)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  set(options "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}"
              "${LANCET_KERNEL_FLAGS} ${LANCET_SANITIZE} ${LANCET_ONEDNN} ${LANCET_MPI}")
  lancet_hash_sources(kernel_build ${CMAKE_SOURCE_DIR}/src/cost/kernel_build.cpp.in "${files}" "${options}")
  target_sources(lancet_${module} PRIVATE ${CMAKE_BINARY_DIR}/generated/kernel_build.cpp)
  add_custom_target(lancet_kernel_build DEPENDS ${CMAKE_BINARY_DIR}/generated/kernel_build.cpp)
  add_dependencies(lancet_${module} lancet_kernel_build)
endfunction()

# Adds the source of run::simulator_build() to `module`: a hash of all that decides the numbers of a plan on a
# declared machine. A recorded point is made again if one of these sources changed, and only then.
function(lancet_simulator_build module)
  # The headers and families of config hold the defaults: ids contain only the fields that a config names.
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/include/lancet/config/*.h)
  list(APPEND files ${CMAKE_SOURCE_DIR}/src/run/planned_step.cpp ${CMAKE_SOURCE_DIR}/src/cli/plan_json.cpp)
  foreach(folder IN ITEMS config/families ir ops cost model passes schedule planner)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cpp ${CMAKE_SOURCE_DIR}/src/${folder}/*.h
         ${CMAKE_SOURCE_DIR}/include/lancet/${folder}/*.h)
    list(FILTER found EXCLUDE REGEX "/ops/(device|cuda|cpu)|/ops/[^/]+/[^/]+/cpu|/ops/kernel")
    list(APPEND files ${found})
  endforeach()
  list(SORT files)
  lancet_hash_sources(simulator_build ${CMAKE_SOURCE_DIR}/src/run/simulator_build.cpp.in "${files}" "")
  target_sources(lancet_${module} PRIVATE ${CMAKE_BINARY_DIR}/generated/simulator_build.cpp)
endfunction()

# lancet_embed(MODULE HEADER NAMESPACE name file name file ...): compiles the text of files into `module` as
# std::string_views, which HEADER declares, again whenever one of the files changes.
function(lancet_embed module header namespace)
  set(output ${CMAKE_BINARY_DIR}/generated/${module}_assets.cpp)
  set(script ${CMAKE_SOURCE_DIR}/cmake/Embed.cmake)
  set(files "")
  set(pairs ${ARGN})
  while(pairs)
    list(POP_FRONT pairs name file)
    list(APPEND files ${CMAKE_SOURCE_DIR}/${file})
  endwhile()
  string(REPLACE ";" "," list "${ARGN}")
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -DFILES=${list} -DHEADER=${header} -DNAMESPACE=${namespace} -DOUTPUT=${output} -P ${script}
    DEPENDS ${files} ${script}
    VERBATIM)
  target_sources(lancet_${module} PRIVATE ${output})
  target_include_directories(lancet_${module} PRIVATE ${CMAKE_SOURCE_DIR}/src)
endfunction()
