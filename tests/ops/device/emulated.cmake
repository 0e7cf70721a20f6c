# The device kernels (src/ops/*/*/cuda.cu) compiled as C++ and run on the host, so that they are tested without a GPU.
# tests/doubles is first on the include path: its ops/device/cuda_thread.h and tensor_core.h hide those of src. The CPU
# replaces CUDA's libraries in lancet/backend/cuda (library_doubles.cpp).
file(GLOB cuda_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/*/*/cuda.cu)
set(emulated_sources "")
set(declarations "")
set(rows "")
foreach(file IN LISTS cuda_files)
  file(STRINGS ${file} library_includes REGEX "#include [<\"](cu|backend/cuda)")
  if(library_includes)
    continue()
  endif()
  get_filename_component(folder ${file} DIRECTORY)
  get_filename_component(op ${folder} NAME)
  set(source ${CMAKE_BINARY_DIR}/generated/emulated/${op}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${file}\"\n")
  list(APPEND emulated_sources ${source})
  string(APPEND declarations "std::span<const DeviceKernel> ${op}_cuda();\n")
  string(APPEND rows "      ${op}_cuda(),\n")
endforeach()
configure_file(ops/device/emulated_tables.cpp.in ${CMAKE_BINARY_DIR}/generated/emulated/tables.cpp @ONLY)
add_library(lancet_emulated STATIC ${emulated_sources} ${CMAKE_BINARY_DIR}/generated/emulated/tables.cpp)
set_target_properties(lancet_emulated PROPERTIES UNITY_BUILD ${LANCET_UNITY} UNITY_BUILD_BATCH_SIZE 5)
target_link_libraries(lancet_emulated PUBLIC lancet_ops)
target_include_directories(lancet_emulated PUBLIC ${CMAKE_SOURCE_DIR}/tests/doubles ${CMAKE_SOURCE_DIR}/src
                                                  ${CMAKE_SOURCE_DIR}/tests)
# The flags of the CPU kernels, so that both fuse multiply-adds.
target_compile_options(lancet_emulated PUBLIC -Wno-unknown-pragmas PRIVATE -Wall -Wextra ${LANCET_KERNEL_FLAGS} -O2
                       $<$<BOOL:${LANCET_WERROR}>:-Werror>)
target_precompile_headers(lancet_emulated REUSE_FROM lancet_ops)

file(GLOB device_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/ops/device/*.cpp)
file(GLOB step_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/device/*.cpp)
add_executable(test_ops_device ${device_tests} ${step_tests})
target_link_libraries(test_ops_device PRIVATE lancet_test_main lancet_op_references lancet_emulated lancet_train)
lancet_test_code(test_ops_device)
target_include_directories(test_ops_device PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/ops)
lancet_discover(test_ops_device "ops device" ops)
