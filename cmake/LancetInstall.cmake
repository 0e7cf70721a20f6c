# What goes with the program, found beside it wherever it is started (lancet/base/shipped_files.h): a build tree links its sources,
# `cmake --install build --prefix PREFIX` copies to PREFIX/share/lancet.
function(lancet_shipped_files)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/lancet)
  foreach(folder IN ITEMS configs scripts)
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${folder} ${CMAKE_BINARY_DIR}/share/lancet/${folder} SYMBOLIC)
  endforeach()
  install(TARGETS lancet DESTINATION bin)
  if(TARGET lancet_cuda)
    install(TARGETS lancet_cuda DESTINATION bin)  # which the program looks for beside itself
  endif()
  install(DIRECTORY configs DESTINATION share/lancet)
  install(PROGRAMS scripts/mpirun.sh scripts/emulate-cluster.sh DESTINATION share/lancet/scripts)
endfunction()
