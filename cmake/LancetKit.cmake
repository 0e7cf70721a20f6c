# Defines the dependencies from the folder that scripts/gpu-kit.sh collected, under the target names of their packages.
foreach(file IN ITEMS kit.txt include/fmt include/spdlog include/nlohmann include/CLI include/catch2 lib/libpcre2-8.a
                      cmake/Catch.cmake)
  if(NOT EXISTS ${LANCET_KIT}/${file})
    message(FATAL_ERROR "LANCET_KIT: expected a folder that scripts/gpu-kit.sh made, found no ${file} in ${LANCET_KIT}")
  endif()
endforeach()

function(lancet_kit_target name)
  cmake_parse_arguments(ARG "" "" "DEFINES;LINKS" ${ARGN})
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${name} SYSTEM INTERFACE ${LANCET_KIT}/include)
  target_compile_definitions(${name} INTERFACE ${ARG_DEFINES})
  target_link_libraries(${name} INTERFACE ${ARG_LINKS})
endfunction()

lancet_kit_target(fmt::fmt DEFINES FMT_HEADER_ONLY)
lancet_kit_target(spdlog::spdlog DEFINES SPDLOG_FMT_EXTERNAL LINKS fmt::fmt Threads::Threads)
lancet_kit_target(nlohmann_json::nlohmann_json)
lancet_kit_target(CLI11::CLI11)
lancet_kit_target(PkgConfig::PCRE2 DEFINES PCRE2_STATIC LINKS ${LANCET_KIT}/lib/libpcre2-8.a)
# xxHash is header-only and has no target: base finds it in the include folder of fmt.
if(LANCET_TESTS)
  lancet_kit_target(Catch2::Catch2)
  list(APPEND CMAKE_MODULE_PATH ${LANCET_KIT}/cmake)
endif()
