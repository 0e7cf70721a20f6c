# The scripts that start ranks and take them from text to a trained model, run as users run them.
add_test(NAME scripts_build COMMAND ${CMAKE_CURRENT_LIST_DIR}/build_test.py)
set_tests_properties(scripts_build PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: " TIMEOUT ${LANCET_TEST_TIMEOUT} LABELS cli)
add_test(NAME scripts_mpirun COMMAND ${CMAKE_CURRENT_LIST_DIR}/mpirun_test.py $<TARGET_FILE:lancet>)
set_tests_properties(scripts_mpirun PROPERTIES TIMEOUT ${LANCET_TEST_TIMEOUT} LABELS cli)
add_test(NAME scripts_emulate_cluster COMMAND ${CMAKE_CURRENT_LIST_DIR}/emulate_cluster_test.py $<TARGET_FILE:lancet>)
set_tests_properties(scripts_emulate_cluster PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: " TIMEOUT ${LANCET_TEST_TIMEOUT} LABELS cli)
# Two ranks train for up to 40 s under it, until Slurm sends its signal.
add_test(NAME scripts_slurm COMMAND ${CMAKE_CURRENT_LIST_DIR}/slurm_test.py $<TARGET_FILE:lancet>)
set_tests_properties(scripts_slurm PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: " PROCESSORS 2 TIMEOUT ${LANCET_TEST_TIMEOUT} LABELS cli)
