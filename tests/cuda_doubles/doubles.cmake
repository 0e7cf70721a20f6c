# The host code of the CUDA plugin with its libraries replaced by test doubles, which play machines that are not at
# hand. The libraries' headers are needed, but neither the libraries nor a driver.
if(LANCET_HAVE_CUDA)
  set(doubles ${CMAKE_CURRENT_LIST_DIR})
  set(backend ${CMAKE_SOURCE_DIR}/src/backend/cuda)
  add_executable(test_cuda_doubles ${doubles}/fake_runtime.cpp ${doubles}/fake_cublas.cpp ${doubles}/device_errors_test.cpp
                                   ${doubles}/matmul_test.cpp ${doubles}/tensor_map_test.cpp ${backend}/device.cpp
                                   ${backend}/matmul.cpp ${backend}/matmul_choices.cpp ${backend}/tensor_map.cpp)
  if(NCCL_FOUND)
    target_sources(test_cuda_doubles PRIVATE ${doubles}/fake_nccl.cpp ${doubles}/nccl_errors_test.cpp
                                             ${CMAKE_SOURCE_DIR}/src/comm/nccl/communicator.cpp)
    target_include_directories(test_cuda_doubles SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
  endif()
  target_link_libraries(test_cuda_doubles PRIVATE lancet_test_main lancet_test_doubles lancet_comm lancet_backend lancet_base
                                                  ${CMAKE_DL_LIBS})
  target_include_directories(test_cuda_doubles SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_include_directories(test_cuda_doubles PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(test_cuda_doubles PRIVATE LANCET_CUDA_ARCHITECTURES="80, 90")
  lancet_test_code(test_cuda_doubles)
  file(GLOB plugin_sources ${backend}/*.cpp ${CMAKE_SOURCE_DIR}/src/comm/nccl/*.cpp)
  set_source_files_properties(${plugin_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  lancet_discover(test_cuda_doubles "cuda doubles" backend)
endif()
