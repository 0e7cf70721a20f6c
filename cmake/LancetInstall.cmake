# Places the files that come with the program where it finds them (lancet/base/files.h): a build tree links its
# sources, `cmake --install build --prefix PREFIX` copies them to PREFIX/share/lancet.
function(lancet_shipped_files)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/lancet)
  foreach(folder IN ITEMS configs scripts)
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${folder} ${CMAKE_BINARY_DIR}/share/lancet/${folder} SYMBOLIC)
  endforeach()
  set(programs lancet)
  if(TARGET lancet_cuda)
    list(APPEND programs lancet_cuda)  # the program looks for it beside itself
  endif()
  # Both search the folders of the libraries that they are linked to, built or installed. Search paths that an install
  # rewrites end in an empty entry, which stands for the current folder.
  set_target_properties(${programs} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS ${programs} DESTINATION bin)
  install(DIRECTORY configs DESTINATION share/lancet)
  install(PROGRAMS scripts/mpirun.sh scripts/emulate-cluster.sh scripts/hardware_links.py scripts/hardware_table.py
          DESTINATION share/lancet/scripts)
endfunction()
