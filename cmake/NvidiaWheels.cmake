# lancet_nvidia_wheels(OUT NAME): sets OUT to the folders of NVIDIA's Python wheel NAME (cudnn, nccl) for this toolkit's
# major version of CUDA, in the order in which the Pythons of this machine are asked. Libraries for other versions of
# CUDA have the same file names, so the wheel's own record decides. PyTorch brings these wheels, often in a virtual
# environment that only the PATH names.
function(lancet_nvidia_wheels out name)
  set(found "")
  foreach(python IN ITEMS python3 $ENV{VIRTUAL_ENV}/bin/python3 $ENV{CONDA_PREFIX}/bin/python3 /opt/venv/bin/python3
                          /opt/conda/bin/python3 /usr/local/bin/python3 /usr/bin/python3)
    execute_process(COMMAND ${python} -c "import sys; print(';'.join(filter(None, sys.path)))" OUTPUT_VARIABLE folders
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(failed)
      continue()
    endif()
    foreach(folder IN LISTS folders)
      file(GLOB record ${folder}/nvidia_${name}_cu${CUDAToolkit_VERSION_MAJOR}-*.dist-info)
      if(record AND IS_DIRECTORY ${folder}/nvidia/${name})
        list(APPEND found ${folder}/nvidia/${name})
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()
