// The result of a point, and the file of a sweep's records: points.jsonl, one JSON object per line.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "lancet/base/descriptor.h"
#include "lancet/experiment/experiment.h"

namespace lancet::experiment {

// Milliseconds of one step; for a measured run, medians over its steps. communication: at least one communication
// stream is busy. exposed: a communication stream is busy and the compute stream is idle.
struct Times {
  double step = 0, compute = 0, all_to_all = 0, all_reduce = 0, communication = 0, exposed = 0;
};

struct Outcome {
  std::string status = "ok";  // or "out of memory", "failed"
  std::string why;            // the reason of a failure, in one line
  int exit_code = 0;          // of the run that failed; 0: it has none
  std::string runs;           // the policy that runs: sequential if the requested one gains nothing
  int parts = 1;              // k: the largest number of parts of an instruction
  Times times;                // set if the status is "ok"
  std::optional<double> predicted_ms, predicted_compute_ms;  // measured: of the step; of its compute stream
  std::optional<double> predicted_communication_ms;          // measured: at least one communication stream is busy
  std::optional<double> least_step_ms, most_step_ms;         // measured: among the steps of the medians
  std::optional<double> imbalance;                           // measured: tokens of the fullest expert over the mean
  std::optional<double> forward_ms, experts_ms;              // simulated: the forward pass; all work of experts
  std::optional<double> bound_ms;     // simulated: a lower bound on the step under any policy (planner::LowerBound)
  double memory_gib = 0;              // of a rank; simulated: parameters, states and arena; measured: its arena
  std::optional<double> planning_ms;  // processor time of the planning thread, measured on this machine
  int steps = 0;                      // number of steps in the medians
  std::string profile;                // simulated: the measured costs that override the hardware file's; empty: none
  std::string place;                  // the machine of a measured run, or of a planning time
};

// Returns the record as one line, without '\n'. commit: of the sources.
std::string to_line(const Experiment& experiment, const Point& point, const Outcome& outcome,
                    const std::string& commit);

// The file of a sweep's records. While it is open, its folder is locked against other sweeps. A last line that an
// interruption cut short is dropped when the file is opened.
class RecordFile {
 public:
  // Opens or creates the file and reads its records. Records of points that are not in `points` (another simulator,
  // other settings) and second records of a point are moved to FILE.1 or the next free number; with `fresh`, all
  // records are. Records of failed points are dropped. Data errors: a line that is no record, a folder that cannot be
  // written to or that another sweep has locked.
  static Result<RecordFile> open(const std::filesystem::path& path, const std::vector<Point>& points,
                                 bool fresh = false);
  // A message about a dropped last line; empty if none was dropped.
  const std::string& note() const { return note_; }
  bool has(const std::string& id) const { return results_.contains(id); }
  // By point's id, its step in ms, as "12.3", or the status of a point without one.
  const std::map<std::string, std::string>& results() const { return results_; }
  // Writes the line, a record with an id, through to the disk. Data error: it cannot be written.
  Status append(const std::string& line);

 private:
  explicit RecordFile(std::filesystem::path path) : path_(std::move(path)) {}
  Status lock();
  Status read(const std::string& text, const std::vector<Point>& points);
  std::filesystem::path path_;
  std::string note_;
  std::map<std::string, std::string> results_;
  Descriptor lock_;  // of the folder
};

}  // namespace lancet::experiment
