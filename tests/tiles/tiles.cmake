# Plans with signals on emulated ranks. The catalogue is the program's, with the ops of tests/tiles/ops.cpp as well: this
# table of ops takes the place of the library's.
file(READ ${CMAKE_BINARY_DIR}/generated/op_tables.cpp tables)
string(REPLACE "std::vector<std::span<const OpDef>> op_folders() {\n  return {\n"
               "std::span<const OpDef> tiles_ops();\n\nstd::vector<std::span<const OpDef>> op_folders() {\n  return {\n      tiles_ops(),\n"
               tables "${tables}")
set(table ${CMAKE_BINARY_DIR}/generated/tiles_op_tables.cpp)
file(CONFIGURE OUTPUT ${table} CONTENT "${tables}" @ONLY)
add_executable(test_tiles tiles/ops.cpp tiles/tiles_test.cpp ops/device/emulated_kernels.cpp
               ops/device/library_doubles.cpp ${table})
target_link_libraries(test_tiles PRIVATE lancet_test_main lancet_emulated lancet_train)
target_compile_options(test_tiles PRIVATE -Wall -Wextra -O1 -g0 $<$<BOOL:${LANCET_WERROR}>:-Werror>)
catch_discover_tests(test_tiles TEST_PREFIX "tiles: " PROPERTIES LABELS runtime TIMEOUT ${LANCET_TEST_TIMEOUT})
