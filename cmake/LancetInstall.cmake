# Places the files that come with the program where it finds them (lancet/base/shipped_files.h): a build tree links its
# sources, `cmake --install build --prefix PREFIX` copies them to PREFIX/share/lancet.
function(lancet_shipped_files)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/lancet)
  foreach(folder IN ITEMS configs scripts)
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${folder} ${CMAKE_BINARY_DIR}/share/lancet/${folder} SYMBOLIC)
  endforeach()
  install(TARGETS lancet DESTINATION bin)
  if(TARGET lancet_cuda)
    install(TARGETS lancet_cuda DESTINATION bin)  # the program looks for it beside itself
  endif()
  install(DIRECTORY configs DESTINATION share/lancet)
  install(PROGRAMS scripts/mpirun.sh scripts/emulate-cluster.sh scripts/hardware_links.py DESTINATION share/lancet/scripts)
endfunction()
