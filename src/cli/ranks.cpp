// Runs a command on every rank: under MPI if a launcher started several ranks, else alone. A rank reports its error
// and, unless all ranks have agreed on it, aborts the job, so that no rank waits for one that failed.
#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "lancet/comm/mpi.h"
#include "signals.h"

namespace lancet::cli {
namespace {

Status guarded(const std::function<Status(comm::Communicator&, int)>& body, comm::Communicator& world,
               int local_ranks) {
  try {
    return all_printed([&] { return body(world, local_ranks); });
  } catch (const std::exception& error) {
    return internal_error(error.what());
  }
}

#ifdef LANCET_HAVE_MPI
// MPI_Init returns once the launcher has started every rank, which may load the program from a slow disk.
constexpr std::chrono::milliseconds least_launch = std::chrono::seconds(30);

int run_mpi(const std::function<Status(comm::Communicator&, int)>& body, const comm::Launch& launch,
            std::chrono::milliseconds timeout) {
  auto session = comm::MpiSession::start(std::max(timeout, least_launch), timeout);
  if (!session.ok()) return report(session.error());
  const auto world = (*session)->world();
  if (world->size() != launch.size || world->rank() != launch.rank) {
    // If MPI does not support this launcher, every process is a world of its own.
    report(config_error(
        fmt::format("expected rank {} of {}, as the launcher says, found rank {} of {} in MPI: start with the mpirun "
                    "of this program's MPI, or srun --mpi=pmix",
                    launch.rank, launch.size, world->rank(), world->size())));
    (*session)->abort_job(static_cast<int>(ExitCode::config));
  }
  const Status status = guarded(body, *world, launch.local_size);
  if (status.ok()) return 0;
  const Error& error = status.error();
  report_no_signals();
  if (!error.agreed || launch.rank == 0) report(error);
  // The other ranks may be waiting for this one.
  if (!error.agreed) (*session)->abort_job(static_cast<int>(error.code));
  return static_cast<int>(error.code);
}
#endif

}  // namespace

int run_ranked(const std::function<Status(comm::Communicator&, int)>& body,
               [[maybe_unused]] std::chrono::milliseconds timeout) {
  const comm::Launch launch = comm::detect_launch();
  if (launch.size > 1) {
#ifdef LANCET_HAVE_MPI
    return run_mpi(body, launch, timeout);
#else
    if (launch.rank > 0) return static_cast<int>(ExitCode::config);
    return report(config_error("expected one rank, since this program was built without MPI (LANCET_MPI=OFF); found " +
                               std::to_string(launch.size)));
#endif
  }
  const auto self = comm::make_self();
  const Status status = guarded(body, *self, 1);
  return status.ok() ? 0 : report(status.error());
}

}  // namespace lancet::cli
