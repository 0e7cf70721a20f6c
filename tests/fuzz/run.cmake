# Builds the fuzz targets in BUILD by the preset `fuzz` and runs them: cmake -D SOURCE=... -D BUILD=... -P run.cmake
find_program(clang clang++)
if(NOT clang)
  message("SKIPPED: no clang++ here: apt-get install clang libclang-rt-14-dev")
  return()
endif()
file(WRITE ${BUILD}/target.cpp "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n")
execute_process(COMMAND ${clang} -fsanitize=fuzzer ${BUILD}/target.cpp -o ${BUILD}/target RESULT_VARIABLE without ERROR_QUIET)
if(without)
  message("SKIPPED: clang++ has no libFuzzer: apt-get install libclang-rt-14-dev")
  return()
endif()

cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
foreach(command IN ITEMS
        "${CMAKE_COMMAND};--preset;fuzz;-S;${SOURCE};-B;${BUILD}"
        "${CMAKE_COMMAND};--build;${BUILD};--target;fuzz;-j;${cores}"
        "${CMAKE_CTEST_COMMAND};--test-dir;${BUILD};--output-on-failure;--no-tests=error;-j;${cores}")
  execute_process(COMMAND ${command} WORKING_DIRECTORY ${SOURCE} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
