// Reads what nccl-tests print (all_reduce_perf, alltoall_perf) into the tables of a hardware file.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::profiler {

struct NcclLog {
  enum class Collective { all_to_all, all_reduce } collective = Collective::all_to_all;
  int ranks = 1, hosts = 1;
  struct Row {
    double bytes = 0, us = 0;  // the size column; the time of an out-of-place call
  };
  std::vector<Row> rows;  // bytes ascending
};

// Recognises the collective by its reduction and its ratio of bus to algorithm bandwidth, and the hosts by the lines of
// the devices. Config errors name the line: no table of times, another collective, wrong results, a row that cannot be
// read, one rank, hosts of unlike numbers of ranks.
Result<NcclLog> parse_nccl_log(std::string_view text, std::string_view origin);

// Returns the text of a hardware file with the log's times in it, so that cost::all_to_all_ms and cost::all_reduce_ms
// give them back: the latency is that of the log's smallest message, and the entries of the log's number of nodes (of
// devices, if it is of one node) are the shares that messages of at least twice that time reach. What is replaced says
// so in its source. `what` names the log there. Config errors: a file that is no hardware file, a log of more ranks a
// host than a node has devices, one whose messages all take about as long as the smallest, or one that is faster than
// the declared rate.
Result<std::string> with_nccl_log(std::string_view hardware, std::string_view origin, const NcclLog& log,
                                  const std::string& what);

}  // namespace lancet::profiler
