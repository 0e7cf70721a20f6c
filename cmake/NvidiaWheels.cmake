# lancet_nvidia_wheels(OUT name...): sets OUT to the folders into which NVIDIA's Python wheels of these names were
# unpacked.
function(lancet_nvidia_wheels out)
  set(found "")
  foreach(name IN LISTS ARGN)
    foreach(prefix IN ITEMS /usr /usr/local /opt/conda /opt/venv $ENV{VIRTUAL_ENV} $ENV{CONDA_PREFIX} $ENV{HOME}/.local)
      file(GLOB folders ${prefix}/lib/python3*/site-packages/nvidia/${name} ${prefix}/lib/python3*/dist-packages/nvidia/${name}
           ${prefix}/lib/python3/dist-packages/nvidia/${name})
      list(APPEND found ${folders})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()
