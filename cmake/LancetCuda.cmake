# The CUDA plugin, liblancet_cuda.so: the program loads it when a GPU is requested, and so needs no CUDA library and no
# driver to train on the CPU.

# Sets LANCET_HAVE_CUDA. LANCET_CUDA=AUTO builds the plugin if nvcc is found; ON makes a missing nvcc an error.
macro(lancet_find_cuda)
  set(LANCET_HAVE_CUDA OFF)
  if(NOT LANCET_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "LANCET_CUDA: expected AUTO, ON or OFF, found '${LANCET_CUDA}'")
  endif()
  if(LANCET_CUDA STREQUAL "AUTO" AND LANCET_SANITIZE)
    message(STATUS "CUDA: left out, since LANCET_SANITIZE is set")
  elseif(NOT LANCET_CUDA STREQUAL "OFF")
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90 CACHE STRING "GPU architectures; a bare number also embeds PTX for later ones")
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
    endif()
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      # CMake before 3.25.2 does not know nvcc's option for C++20.
      if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
      endif()
      set(CMAKE_CUDA_STANDARD 20)
      set(CMAKE_CUDA_STANDARD_REQUIRED ON)
      set(CMAKE_CUDA_EXTENSIONS OFF)
      set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
      find_package(CUDAToolkit 12.8 REQUIRED)
      list(APPEND CMAKE_MODULE_PATH ${CMAKE_SOURCE_DIR}/cmake)
      find_package(NCCL 2.20 QUIET)
      find_package(CUDNN 9 QUIET)
      set(LANCET_HAVE_CUDA ON)
      message(STATUS "CUDA: ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
      set(places "not found in the toolkit, the system or a Python wheel")
      set(LANCET_CUDA_LIBRARIES "CUDA ${CUDAToolkit_VERSION}")  # the words of a run's start
      set(LANCET_CUDA_MISSING "")
      if(CUDNN_FOUND)
        message(STATUS "cuDNN: ${CUDNN_VERSION}, ${CUDNN_LIBRARY}")
        string(APPEND LANCET_CUDA_LIBRARIES ", cuDNN ${CUDNN_VERSION}")
      else()
        list(APPEND LANCET_CUDA_MISSING
             "cuDNN: ${places} (CUDNN_ROOT names a folder): attention on the tree's own kernels, which are slow")
        string(APPEND LANCET_CUDA_LIBRARIES ", attention on the tree's own kernels: cuDNN not found")
      endif()
      if(NCCL_FOUND)
        message(STATUS "NCCL: ${NCCL_VERSION}, ${NCCL_LIBRARY}")
        string(APPEND LANCET_CUDA_LIBRARIES ", NCCL ${NCCL_VERSION}")
      else()
        list(APPEND LANCET_CUDA_MISSING
             "NCCL: ${places} (NCCL_ROOT names a folder): messages between GPUs through the host's memory")
        string(APPEND LANCET_CUDA_LIBRARIES ", messages between GPUs through the host's memory: NCCL not found")
      endif()
      foreach(line IN LISTS LANCET_CUDA_MISSING)
        message(STATUS "${line}")
      endforeach()
    elseif(LANCET_CUDA STREQUAL "ON")
      message(FATAL_ERROR "LANCET_CUDA=ON: expected nvcc on the PATH, in CUDACXX or -DCMAKE_CUDA_COMPILER, found none")
    else()
      message(STATUS "CUDA: left out, since no nvcc was found")
    endif()
  endif()
endmacro()

# Builds the plugin from backend/cuda, runtime/cuda, comm/nccl and src/ops/*.cu. The target `program` builds the
# executable and, if this build has it, the plugin; `lancet` builds the executable alone, which trains on the CPU.
function(lancet_cuda_module)
  add_custom_target(program DEPENDS lancet)
  if(NOT LANCET_HAVE_CUDA)
    return()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cpp ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu
       ${CMAKE_SOURCE_DIR}/src/runtime/cuda/*.cpp ${CMAKE_SOURCE_DIR}/src/ops/*.cu)
  if(NCCL_FOUND)
    file(GLOB_RECURSE nccl CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/comm/nccl/*.cpp ${CMAKE_SOURCE_DIR}/src/comm/nccl/*.cu)
    list(APPEND sources ${nccl})
  endif()
  lancet_cuda_tables(tables)
  # The program accepts only a plugin with its own kernel_build(). Measured times of the plugin's kernels are identified
  # by cuda_build().
  lancet_kernel_sources(hashed ON)
  lancet_hash_sources(cuda_build ${CMAKE_SOURCE_DIR}/src/runtime/cuda/cuda_build.cpp.in "${hashed}"
                      "${CMAKE_CUDA_COMPILER_VERSION} ${CMAKE_CUDA_ARCHITECTURES} ${CMAKE_BUILD_TYPE} ${CUDNN_VERSION} ${NCCL_VERSION}")
  # Code for wgmma runs on sm_90 alone, where it takes the place of that architecture's.
  set(warpgroup_sources ${CMAKE_SOURCE_DIR}/src/ops/moe/expert_linear/warpgroup.cu)
  list(REMOVE_ITEM sources ${warpgroup_sources})
  set(warpgroup_architectures ${CMAKE_CUDA_ARCHITECTURES})
  list(TRANSFORM warpgroup_architectures REPLACE "^90-real$" "90a-real")
  list(TRANSFORM warpgroup_architectures REPLACE "^90$" "90a-real;90-virtual")
  add_library(lancet_warpgroup OBJECT ${warpgroup_sources})
  set_target_properties(lancet_warpgroup PROPERTIES CUDA_ARCHITECTURES "${warpgroup_architectures}"
                        POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden)
  if(90a-real IN_LIST warpgroup_architectures)
    target_compile_definitions(lancet_warpgroup PRIVATE LANCET_SM_90A)
  endif()
  target_link_libraries(lancet_warpgroup PRIVATE lancet_base lancet_ir CUDA::cudart)
  add_library(lancet_cuda MODULE ${sources} $<TARGET_OBJECTS:lancet_warpgroup> ${tables}
                                 ${CMAKE_BINARY_DIR}/generated/kernel_build.cpp ${CMAKE_BINARY_DIR}/generated/cuda_build.cpp)
  add_dependencies(lancet_cuda lancet_kernel_build)
  set_target_properties(lancet_base lancet_ir PROPERTIES POSITION_INDEPENDENT_CODE ON)
  set_target_properties(lancet_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} CUDA_VISIBILITY_PRESET hidden
                        CXX_VISIBILITY_PRESET hidden)
  foreach(target lancet_cuda lancet_warpgroup)
    target_include_directories(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${CMAKE_SOURCE_DIR}/third_party/nvcc>
                                                 ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
    target_compile_options(
      ${target}
      PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra $<$<BOOL:${LANCET_WERROR}>:-Werror>>
              "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo;-Xcompiler=-Wall;-Xcompiler=-Wextra;-Werror=cross-execution-space-call;--display-error-number>"
              "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${LANCET_WERROR}>>:-Werror=all-warnings>")
  endforeach()
  target_link_libraries(lancet_cuda PRIVATE lancet_base lancet_ir CUDA::cudart CUDA::cublasLt
                        $<TARGET_NAME_IF_EXISTS:CUDNN::cudnn> $<TARGET_NAME_IF_EXISTS:NCCL::nccl>)
  string(REPLACE ";" ", " architectures "${CMAKE_CUDA_ARCHITECTURES}")
  target_compile_definitions(lancet_cuda PRIVATE $<$<BOOL:${CUDNN_FOUND}>:LANCET_HAVE_CUDNN> $<$<BOOL:${NCCL_FOUND}>:LANCET_HAVE_NCCL>
                             LANCET_CUDA_ARCHITECTURES="${architectures}")
  set_source_files_properties(src/runtime/cuda/module.cpp PROPERTIES
                              COMPILE_DEFINITIONS LANCET_CUDA_LIBRARIES="${LANCET_CUDA_LIBRARIES}")
  foreach(line IN LISTS LANCET_CUDA_MISSING)  # once more where a build ends
    add_custom_command(TARGET lancet_cuda POST_BUILD COMMAND ${CMAKE_COMMAND} -E echo "${line}" VERBATIM)
  endforeach()
  # The modules that the plugin needs are linked into it. It uses no symbol of the program, only what it is passed.
  target_link_options(lancet_cuda PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL)
  add_dependencies(program lancet_cuda)
endfunction()

# The table of the ops that have a cuda.cu, which defines `<folder>_cuda()`.
function(lancet_cuda_tables out)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/*/*/cuda.cu)
  set(cuda_declarations "")
  set(cuda_rows "")
  foreach(file IN LISTS files)
    get_filename_component(folder ${file} DIRECTORY)
    get_filename_component(op ${folder} NAME)
    string(APPEND cuda_declarations "std::span<const DeviceKernel> ${op}_cuda();\n")
    string(APPEND cuda_rows "      ${op}_cuda(),\n")
  endforeach()
  configure_file(${CMAKE_SOURCE_DIR}/src/ops/cuda_tables.cpp.in ${CMAKE_BINARY_DIR}/generated/cuda_tables.cpp @ONLY)
  set(${out} ${CMAKE_BINARY_DIR}/generated/cuda_tables.cpp PARENT_SCOPE)
endfunction()
