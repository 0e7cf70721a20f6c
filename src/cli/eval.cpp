#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "lancet/base/json.h"
#include "lancet/comm/collect.h"
#include "load_config.h"
#include "numbers.h"

namespace lancet::cli {
namespace {

struct EvalArguments {
  std::shared_ptr<FromArguments> model;
  models::EvaluateOptions options;
  bool json = false;
};

Status evaluate(const EvalArguments& arguments, comm::Communicator& world, int local_ranks) {
  LANCET_ASSIGN(const auto model,
                models::LoadedModel::load(arguments.model->from, world, arguments.model->options(local_ranks)));
  models::EvaluateOptions options = arguments.options;
  if (options.data.empty()) options.data = model->config().data.eval;
  if (options.data.empty())
    return Error{ExitCode::config,
                 fmt::format("expected --data FILE, since the run in {} names no data.eval", arguments.model->from),
                 true};
  LANCET_ASSIGN(const models::EvaluateResult result, models::evaluate(*model, world, options));
  if (world.rank() != 0) return {};
  if (arguments.json)
    return print(json_text(nlohmann::ordered_json{{"loss", result.loss},
                                                  {"perplexity", result.perplexity()},
                                                  {"sequences", result.sequences},
                                                  {"tokens", result.tokens},
                                                  {"data", options.data},
                                                  {"checkpoint", model->name()},
                                                  {"step", model->step()}}) +
                 "\n");
  return print(fmt::format("loss {:.6f} | perplexity {:.4f} | {} sequences of {} tokens | step {}\n", result.loss,
                           result.perplexity(), result.sequences, model->config().train.seq_len, model->step()));
}

}  // namespace

void add_eval(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand(
      "eval", "Loss and perplexity on a token file: lancet eval --from runs/quickstart --data data/eval.bin");
  auto arguments = std::make_shared<EvalArguments>();
  arguments->model = add_from_arguments(*command);
  command->add_option("--data", arguments->options.data, "Token file; default: the run's data.eval")->type_name("FILE");
  command
      ->add_option("--max-sequences", arguments->options.max_sequences,
                   "Evaluate only this number of sequences, from the first; default: all")
      ->check(whole_between(1, std::int64_t(1) << 40));
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments, command, &selection] {
    selection.ranked = [arguments, command](comm::Communicator& world, int local_ranks) -> Status {
      LANCET_TRY(comm::agree_on(world, "the same options", command->config_to_str()));
      return evaluate(*arguments, world, local_ranks);
    };
  });
}

}  // namespace lancet::cli
