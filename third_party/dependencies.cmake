# Every dependency, found once. third_party/README.md says what each is for.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40)
if(LANCET_ONEDNN)
  find_package(dnnl REQUIRED)
  find_package(OpenMP REQUIRED COMPONENTS CXX)  # oneDNN's threads, which are told to be one
endif()
if(LANCET_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # no deprecated MPI C++ bindings
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
if(LANCET_TESTS)
  find_package(Catch2 2.13 REQUIRED)
endif()
