// What MPI says about one of its error codes.
#pragma once
#include <fmt/format.h>
#include <mpi.h>

#include <string>

namespace lancet::comm::mpi {

inline std::string error_text(int mpi_code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(mpi_code, text, &length) != MPI_SUCCESS) return fmt::format("MPI error {}", mpi_code);
  return std::string(text, static_cast<std::size_t>(length));
}

}  // namespace lancet::comm::mpi
