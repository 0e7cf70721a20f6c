// Any two texts as vocab.json and merges.txt (with a zero byte between them) give a tokenizer that decodes any encoded
// text, or an error of one line.
#include <spdlog/spdlog.h>

#include "fuzz/fuzz.h"
#include "lancet/base/log.h"
#include "lancet/data/tokenizer.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::ScratchFolder folder;
  spdlog::set_level(spdlog::level::off);
  const auto [vocabulary, merges] = test::halves(data, size);
  folder.write("vocab.json", vocabulary);
  folder.write("merges.txt", merges);
  const test::AllocationLimit limit(size, 512);
  const auto tokenizer = data::Tokenizer::load(folder.path());
  if (!test::is_read(tokenizer, ExitCode::data)) return 0;
  const std::string text = "The caf\xc3\xa9 of 1984,  \xe4\xb8\xad\n";
  const auto ids = tokenizer->encode(text);
  if (!ids.ok() || tokenizer->decode(*ids).value() != text) abort();
  return 0;
}
