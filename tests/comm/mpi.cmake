# The transport contract over MPI: real processes, started as users start them.
add_executable(test_comm_mpi ${CMAKE_CURRENT_LIST_DIR}/mpi/main.cpp)
target_link_libraries(test_comm_mpi PRIVATE lancet_comm)
target_include_directories(test_comm_mpi PRIVATE ${CMAKE_CURRENT_LIST_DIR}/..)
target_compile_options(test_comm_mpi PRIVATE -Wall -Wextra $<$<BOOL:${LANCET_WERROR}>:-Werror>)

# lancet_mpi_test(CASE RANKS CODE): mpirun must end within 10 s (60 s with sanitizers), with this exit code; "failure"
# is any but 0. After MPI_Abort, Open MPI 4.1's mpirun once in a hundred runs reports 1 instead of the code: then it is
# run again.
function(lancet_mpi_test case ranks code)
  set(limit 10)
  if(LANCET_SANITIZE)
    set(limit 60)
  endif()
  set(check "test $code -eq ${code}")
  if(code STREQUAL "failure")
    set(check "test $code -ne 0 -a $code -ne 124")
  endif()
  set(run "timeout ${limit} ${CMAKE_SOURCE_DIR}/scripts/mpirun.sh ${ranks} $<TARGET_FILE:test_comm_mpi> ${case}; code=$?; echo exit code $code")
  set(name "comm: mpi ${case} (${ranks} ranks)")
  add_test(NAME ${name} COMMAND sh -c "${run}; if test $code -eq 1; then ${run}; fi; ${check}")
  set_tests_properties(${name} PROPERTIES LABELS comm PROCESSORS 2 TIMEOUT 150)
endfunction()

lancet_mpi_test(contract 1 0)
lancet_mpi_test(contract 2 0)
lancet_mpi_test(contract 4 0)
lancet_mpi_test(timeouts 2 42)
lancet_mpi_test(timeouts 3 42)
lancet_mpi_test(mismatches 2 42)
lancet_mpi_test(aborts 2 42)
lancet_mpi_test(absent 2 5)
lancet_mpi_test(returned 2 failure)
lancet_mpi_test(killed 2 failure)
