// Encodes in rounds: the calling thread reads one chunk per worker, and the workers encode them in parallel. Each
// writes its ids when those before it are done; one with millions of ids, as of a long line, waits for that. A chunk
// ends at a position that no pre-token spans (Tokenizer::cut_before), so the ids do not depend on the chunks; a text of
// a tokenizer of which no such positions are known is one chunk. The
// held-out part is cut off first: the last eval_fraction of all bytes, from the start of the next line on. Both outputs
// are on the disk before either gets its name.
#include "lancet/data/tokenize.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "lancet/base/files.h"
#include "lancet/base/log.h"
#include "lancet/data/token_file.h"
#include "text.h"

namespace lancet::data {
namespace {

// One thread's work: a chunk, the encoder with its cache, the ids that are not written yet.
struct Worker {
  Encoder encoder;
  std::string chunk = {};
  std::uint64_t first_byte = 0;
  bool continues = false;  // the chunk before it
  std::vector<TokenId> ids = {};
  Status encoded = {}, written = {};
  std::exception_ptr failure = {};
};

class Job {
 public:
  Job(const Tokenizer& tokenizer, const TokenizeOptions& options, std::uint64_t total_bytes)
      : options_(options), tokenizer_(tokenizer), eos_(tokenizer.eos()) {
    for (int i = 0; i < std::max(options.threads, 1); ++i)
      workers_.push_back(Worker{.encoder = Encoder(tokenizer, options.special)});
    for (const AddedToken& token : tokenizer.added()) {
      knows_end_of_text_ = knows_end_of_text_ || token.content == kEndOfText;
      if (options.special == SpecialTokens::text) continue;
      if (last_safe_cut(token.content, kWhiteSpace) > 0) uncut_.push_back(token.content);
      // Behind it: it may take the space, or the tokenizer may put another before what follows.
      for (const char space : tokenizer.cut_before()) uncut_.push_back(token.content + space);
    }
    progress_.total_bytes = total_bytes;
  }

  std::uint64_t bytes() const { return progress_.bytes; }

  Status encode(const TextPart& part, TokenWriter& writer) {
    LANCET_ASSIGN(TextReader reader, TextReader::open(part, options_.chunk_bytes, tokenizer_.cut_before(), uncut_));
    ended_ = false;
    begun_ = !tokenizer_.adds_bos();
    for (;;) {
      std::size_t filled = 0;
      for (; filled < workers_.size(); ++filled) {
        workers_[filled].first_byte = reader.position();
        workers_[filled].continues = reader.position() > part.begin;
        LANCET_TRY(reader.next(workers_[filled].chunk));
        if (workers_[filled].chunk.empty()) break;
      }
      if (filled == 0) break;
      run_workers(filled, writer);
      for (std::size_t i = 0; i < filled; ++i) LANCET_TRY(finish(workers_[i], part));
      if (options_.progress) options_.progress(progress_);
    }
    return eos_ < 0 || ended_ ? Status() : writer.append(std::span(&eos_, 1));
  }

 private:
  void run_workers(std::size_t count, TokenWriter& writer) {
    turn_ = 0;
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < count; ++i) threads.emplace_back([this, i, &writer] { run(i, writer); });
    run(0, writer);
  }

  // A worker that fails passes its turn on, too; what those after it write is lost with the file.
  void run(std::size_t i, TokenWriter& writer) {
    Worker& worker = workers_[i];
    const auto write_in_turn = [&] {
      for (std::size_t turn = turn_; turn != i; turn = turn_) turn_.wait(turn);
      const TokenId bos = tokenizer_.bos();
      if (!begun_ && !worker.ids.empty() && worker.ids.front() != bos)
        worker.written = writer.append(std::span(&bos, 1));
      begun_ = begun_ || !worker.ids.empty();
      if (worker.written.ok()) worker.written = writer.append(worker.ids);
      const auto last = std::find_if(worker.ids.rbegin(), worker.ids.rend(), [&](TokenId id) {
        return id == eos_ || tokenizer_.bytes(id).find_first_not_of(kWhiteSpace) != std::string_view::npos;
      });
      if (last != worker.ids.rend()) ended_ = *last == eos_;
      worker.ids.clear();
    };
    try {
      worker.encoded =
          worker.encoder.encode(worker.chunk, worker.ids, worker.first_byte, write_in_turn, worker.continues);
      write_in_turn();
    } catch (...) {  // the calling thread rethrows it
      worker.failure = std::current_exception();
      for (std::size_t turn = turn_; turn != i; turn = turn_) turn_.wait(turn);
    }
    turn_ = i + 1;
    turn_.notify_all();
  }

  Status finish(Worker& worker, const TextPart& part) {
    if (worker.failure) std::rethrow_exception(worker.failure);
    if (!worker.encoded) return data_error(fmt::format("{}: {}", part.path.string(), worker.encoded.error().message));
    LANCET_TRY(worker.written);
    if (!knows_end_of_text_ && worker.chunk.find(kEndOfText) != std::string::npos) {
      log::warn("{}: the tokenizer has no token {}, so it is read as text and does not separate documents",
                part.path.string(), kEndOfText);
      knows_end_of_text_ = true;  // one warning is enough
    }
    progress_.bytes += worker.chunk.size();
    return {};
  }

  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  TokenId eos_;
  std::vector<std::string> uncut_;  // texts with an added token that a chunk could end in
  bool knows_end_of_text_ = false;
  bool begun_ = false;  // the token that begins the text was written, or needs not be
  bool ended_ = false;  // nothing but white space was written since the last eos_
  std::vector<Worker> workers_;
  std::atomic<std::size_t> turn_ = 0;  // the worker that writes
  TokenizeProgress progress_;
};

struct Halves {
  std::vector<TextPart> train, eval;
};

Result<Halves> split(const std::vector<TextPart>& parts, std::uint64_t total, const TokenizeOptions& options) {
  Halves out;
  if (options.eval_fraction == 0) {
    out.train = parts;
    return out;
  }
  const auto held_out = static_cast<std::uint64_t>(std::llround(double(total) * options.eval_fraction));
  std::uint64_t left = total - std::min(held_out, total);  // bytes left for train
  for (const TextPart& part : parts) {
    const std::uint64_t size = part.end - part.begin;
    if (left >= size || !out.eval.empty()) {
      (out.eval.empty() && left > 0 ? out.train : out.eval).push_back(part);
      left -= std::min(left, size);
      continue;
    }
    std::uint64_t cut = part.begin;
    if (left > 0) {
      LANCET_ASSIGN(cut, next_line(part, part.begin + left));
    }
    if (cut > part.begin) out.train.push_back({part.path, part.begin, cut});
    if (cut < part.end) out.eval.push_back({part.path, cut, part.end});
    left = 0;
  }
  if (out.train.empty() || out.eval.empty())
    return data_error(fmt::format("{}: expected a line to begin near the last {} of {} bytes, found {} part empty",
                                  parts.back().path.string(), options.eval_fraction, total,
                                  out.eval.empty() ? "the held-out" : "the training"));
  return out;
}

Status check(const std::vector<std::filesystem::path>& texts, const std::filesystem::path& out,
             const TokenizeOptions& options) {
  if (texts.empty()) return config_error("expected a text to tokenize, found none");
  if (!(options.eval_fraction >= 0 && options.eval_fraction < 1))
    return config_error(fmt::format("expected a held-out part in [0, 1), found {}", options.eval_fraction));
  auto same = [](const auto& a, const auto& b) {  // the files need not exist
    std::error_code ignored;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(behind_links(a), ignored), ignored) ==
           std::filesystem::weakly_canonical(std::filesystem::absolute(behind_links(b), ignored), ignored);
  };
  for (const std::filesystem::path& text : texts)
    if (same(text, out) || (options.eval_fraction > 0 && same(text, options.eval_out)))
      return config_error(
          fmt::format("expected an output that is not a text to read, found \"{}\" as both", text.string()));
  if (options.eval_fraction == 0 && !options.eval_out.empty())
    return config_error(fmt::format("expected a held-out part above 0 (--eval-fraction) for \"{}\", found 0",
                                    options.eval_out.string()));
  if (options.eval_fraction > 0 && (options.eval_out.empty() || same(options.eval_out, out)))
    return config_error(
        fmt::format("expected a file of its own for the held-out part, found \"{}\"", options.eval_out.string()));
  return {};
}

}  // namespace

Result<TokenizeResult> tokenize_files(const std::vector<std::filesystem::path>& texts, const Tokenizer& tokenizer,
                                      const std::filesystem::path& out, const TokenizeOptions& options) {
  LANCET_TRY(check(texts, out, options));
  std::vector<TextPart> parts;
  std::uint64_t total_bytes = 0;
  for (const auto& path : texts) {
    LANCET_ASSIGN(TextPart part, whole_text(path));
    if (part.is_stream() && options.eval_fraction > 0)
      return config_error(fmt::format(
          "{}: expected a file for a held-out part, since its size must be known, found a stream", path.string()));
    total_bytes = part.is_stream() || total_bytes == TextPart::unknown ? TextPart::unknown : total_bytes + part.end;
    parts.push_back(std::move(part));
  }
  LANCET_ASSIGN(const Halves halves, split(parts, total_bytes, options));
  if (tokenizer.eos() < 0 && parts.size() > 1)
    log::warn("the tokenizer has no token that ends a text, so the {} texts are not separated", parts.size());
  Job job(tokenizer, options, total_bytes);
  LANCET_ASSIGN(TokenWriter train, TokenWriter::create(out, tokenizer.vocab_size(), tokenizer.hash()));
  std::optional<TokenWriter> eval;
  if (!halves.eval.empty()) {
    LANCET_ASSIGN(TokenWriter writer, TokenWriter::create(options.eval_out, tokenizer.vocab_size(), tokenizer.hash()));
    eval.emplace(std::move(writer));
  }
  for (const TextPart& part : halves.train) LANCET_TRY(job.encode(part, train));
  for (const TextPart& part : halves.eval) LANCET_TRY(job.encode(part, *eval));
  const TokenizeResult result{job.bytes(), train.size(), eval ? eval->size() : 0};
  LANCET_TRY(train.sync());  // both are on the disk before either gets its name
  if (eval) LANCET_TRY(eval->finish());
  LANCET_TRY(train.finish());
  return result;
}

}  // namespace lancet::data
