// SectionGraphs: recorded sections of a plan's stream (device_stream.h), each of which is launched as one graph.
#pragma once
#include <memory>
#include <vector>

#include "device_stream.h"
#include "lancet/backend/device.h"
#include "lancet/base/log.h"

namespace lancet::runtime {

class SectionGraphs {
 public:
  // Records the sections of a stream on its idle device stream, `queue`. enqueue(section) puts the section's
  // instructions there. A section that cannot be recorded is logged and has no graph.
  template <class Enqueue>
  void record(const std::vector<Section>& sections, const std::vector<StreamStep>& steps, backend::Stream& queue,
              const Enqueue& enqueue) {
    graphs_.resize(sections.size());
    for (std::size_t i = 0; i < sections.size(); ++i) {
      const Section& section = sections[i];
      if (!section.recordable || section.end - section.begin == 1) continue;  // a graph of one instruction is no gain
      auto graph = recorded(queue, [&] { return enqueue(section); });
      if (graph.ok())
        graphs_[i] = std::move(graph).value();
      else
        log::warn("stream compute: instructions {} to {} are not recorded: {}", steps[section.begin].instruction,
                  steps[section.end - 1].instruction, graph.error().message);
    }
  }
  // Null if the section has none.
  backend::Graph* find(std::size_t section) const { return graphs_[section].get(); }

 private:
  // Ends the recording even if an instruction fails.
  template <class Enqueue>
  static Result<std::unique_ptr<backend::Graph>> recorded(backend::Stream& queue, const Enqueue& enqueue) {
    LANCET_TRY(queue.begin_capture());
    const Status enqueued = enqueue();
    auto graph = queue.end_capture();
    if (!enqueued.ok()) return enqueued.error();
    return graph;
  }

  std::vector<std::unique_ptr<backend::Graph>> graphs_;  // by section
};

}  // namespace lancet::runtime
