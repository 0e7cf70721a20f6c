# The scripts that build, start ranks and lead from text to a trained model, run as users run them.
# lancet_script_test(NAME): tests/scripts/NAME_test.py, skipped if it prints "SKIPPED: " and the reason.
function(lancet_script_test name)
  add_test(NAME scripts_${name} COMMAND ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${name}_test.py $<TARGET_FILE:lancet>)
  set_tests_properties(scripts_${name} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: " TIMEOUT ${LANCET_TEST_TIMEOUT} LABELS cli)
endfunction()

lancet_script_test(build)
lancet_script_test(nvidia_wheels)
lancet_script_test(mpirun)
lancet_script_test(emulate_cluster)
lancet_script_test(slurm)
set_tests_properties(scripts_mpirun scripts_emulate_cluster PROPERTIES LABELS "cli;long")
set_tests_properties(scripts_slurm PROPERTIES PROCESSORS 2)  # two ranks train for up to 40 s, until Slurm's signal
lancet_script_test(quickstart)
lancet_script_test(kit)
add_test(NAME scripts_kit_build COMMAND ${CMAKE_CURRENT_LIST_DIR}/kit_test.py $<TARGET_FILE:lancet> --build)
set_tests_properties(scripts_kit_build PROPERTIES TIMEOUT 5400 LABELS long)
