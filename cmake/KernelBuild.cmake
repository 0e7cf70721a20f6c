# cmake -P: writes OUTPUT from TEMPLATE with a hash of the contents of the SOURCES (a file that lists them) and of OPTIONS.
# Files are hashed by content, so two checkouts of the same sources with the same compiler share their profiles.
file(STRINGS ${SOURCES} files)
set(text "${OPTIONS}")
foreach(file IN LISTS files)
  file(SHA1 ${file} hash)
  string(APPEND text " ${hash}")
endforeach()
string(SHA1 KERNEL_BUILD "${text}")
string(SUBSTRING ${KERNEL_BUILD} 0 16 KERNEL_BUILD)
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
