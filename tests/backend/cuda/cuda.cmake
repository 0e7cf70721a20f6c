# The parts of the CUDA backend that can be tested without a GPU. They form a program of their own, since its driver is
# a fake.
add_executable(test_backend_cuda ${CMAKE_CURRENT_LIST_DIR}/cudnn_graphs_test.cpp ${CMAKE_CURRENT_LIST_DIR}/matmul_choices_test.cpp
                                 ${CMAKE_SOURCE_DIR}/src/backend/cuda/matmul_choices.cpp)
target_link_libraries(test_backend_cuda PRIVATE lancet_test_main lancet_base)
target_include_directories(test_backend_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src)
lancet_test_code(test_backend_cuda)
if(CUDNN_FOUND)
  add_library(fake_cuda_driver MODULE ${CMAKE_CURRENT_LIST_DIR}/fake_driver.cpp)
  set_target_properties(fake_cuda_driver PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_options(fake_cuda_driver PRIVATE -Wl,-soname,libcuda.so.1)
  add_dependencies(test_backend_cuda fake_cuda_driver)
  target_sources(test_backend_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src/backend/cuda/cudnn_graph.cpp
                                           ${CMAKE_SOURCE_DIR}/src/backend/cuda/attention_graph.cpp)
  target_compile_definitions(test_backend_cuda PRIVATE LANCET_HAVE_CUDNN LANCET_FAKE_DRIVER="$<TARGET_FILE:fake_cuda_driver>")
  target_link_libraries(test_backend_cuda PRIVATE CUDNN::cudnn CUDA::cudart ${CMAKE_DL_LIBS})
endif()
lancet_discover(test_backend_cuda "backend cuda" backend)
