// What a point came to, and the file of such records: points.jsonl, one JSON object a line.
#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "lancet/experiment/experiment.h"

namespace lancet::experiment {

// Milliseconds of one step; of a measured run medians over its steps. communication: a communication stream is busy;
// exposed: and the compute stream is not.
struct Times {
  double step = 0, compute = 0, all_to_all = 0, all_reduce = 0, communication = 0, exposed = 0;
};

struct Outcome {
  std::string status = "ok";  // or "out of memory", "failed"
  std::string why;            // it failed, in one line
  int exit_code = 0;          // of the run that failed; 0: it has none
  std::string runs;           // the policy that runs: sequential where the one asked for gains nothing
  int parts = 1;              // k: the most that an instruction is split in
  Times times;                // unless it is out of memory or failed
  std::optional<double> predicted_ms, predicted_compute_ms;  // of a measured run; of its compute stream
  std::optional<double> predicted_communication_ms;          // communication streams are predicted to be busy
  std::optional<double> least_step_ms, most_step_ms;         // of the steps that the medians are of
  std::optional<double> imbalance;                           // measured: the fullest expert over the mean
  std::optional<double> forward_ms, experts_ms;              // simulated: the forward pass; all work of experts
  double memory_gib = 0;              // of a rank: simulated: parameters, states and arena; measured: its arena
  std::optional<double> planning_ms;  // processor time of the thread that planned, measured here
  int steps = 0;                      // that the medians are of
  std::string profile;  // of simulated points: what measured costs went before the hardware file's; empty: none
  std::string place;    // measured runs: the machine; simulated: the one that planned where planning was timed
};

// One line, without its end. commit: of the sources.
std::string to_line(const Experiment& experiment, const Point& point, const Outcome& outcome,
                    const std::string& commit);

// The file of a sweep, and its folder, which no other sweep can take meanwhile. Records are appended whole; what an
// interruption left of a last line is dropped.
class RecordFile {
 public:
  // Reads what is there. Records of points that are not of `points` (another simulator, other settings), a point's
  // second ones, and with `fresh` the file as it is, are set aside in FILE.1 or the next number that is free; those of
  // failed points are dropped. Data errors: a line that is no record, a folder that cannot be written to or that
  // another sweep has.
  static Result<RecordFile> open(const std::filesystem::path& path, const std::vector<Point>& points,
                                 bool fresh = false);
  RecordFile(RecordFile&& other) noexcept;
  RecordFile& operator=(RecordFile&&) = delete;
  ~RecordFile();
  // That a line was dropped; empty: none was.
  const std::string& note() const { return note_; }
  bool has(const std::string& id) const { return ids_.contains(id); }
  std::size_t size() const { return ids_.size(); }
  Status append(const std::string& id, const std::string& line);

 private:
  explicit RecordFile(std::filesystem::path path) : path_(std::move(path)) {}
  Status take();
  Status read(const std::string& text, const std::vector<Point>& points);
  std::filesystem::path path_;
  std::string note_;
  std::set<std::string> ids_;
  int lock_ = -1;  // the folder
};

}  // namespace lancet::experiment
