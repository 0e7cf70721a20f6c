// Hugging Face's format: values of another implementation, and round trips.
#include "lancet/models/hugging_face.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "doubles/host_queue.h"
#include "good.h"
#include "host_accelerator.h"
#include "lancet/checkpoint/safetensors.h"
#include "lancet/data/token_file.h"
#include "lancet/data/tokenize.h"
#include "lancet/model/transformer.h"
#include "lancet/models/loaded_model.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/run_folder.h"
#include "models/files.h"
#include "temporary_folder.h"
#include "text.h"
#include "train/hugging_face_files.h"
#include "train/support.h"

using namespace lancet;
using namespace lancet::models;
using namespace lancet::test::hf;

namespace {

std::vector<std::byte> halves(const std::vector<float>& values, const std::function<std::uint16_t(float)>& f) {
  std::vector<std::byte> bytes(values.size() * 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = f(values[i]);
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  return bytes;
}

}  // namespace

TEST_CASE("imported models give the logits of a PyTorch implementation") {
  const std::string name = GENERATE(from_range(test::reference_models()));
  HuggingFaceModel model = import_ok(fixture(name));
  CHECK(model.config.train.seq_len == 32);
  CHECK(model.config.train.dtype == DType::f32);
  CHECK(!model.imported.tokenizer());
  double scale = 0;
  const double most = difference(model, model.store, File::read(fixture(name) / "logits.safetensors"), scale);
  INFO(name << ": largest difference " << most << " of logits up to " << scale);
  CHECK(scale > 1);
  CHECK(most < 1e-5 * scale);
}

TEST_CASE("export, import and export give the same bytes") {
  const std::string name = GENERATE("gpt2", "gpt2_moe", "gpt2_moe_shared", "gpt2_moe_sigmoid", "gpt2_moe_hash");
  const std::int64_t shard_bytes = GENERATE(std::int64_t(1) << 40, std::int64_t(20000));
  const test::TemporaryFolder folder;
  HuggingFaceModel first = import_ok(fixture(name));
  const HuggingFaceExport options{.shard_bytes = shard_bytes};
  REQUIRE(export_hugging_face(first.config.model, values_of(first.store), folder / "a", options).ok());
  HuggingFaceModel again = import_ok(folder / "a");
  REQUIRE(export_hugging_face(again.config.model, values_of(again.store), folder / "b", options).ok());
  std::size_t files = 0, tensors = 0;
  for (const auto& entry : fs::directory_iterator(folder / "a")) {
    const std::string file = entry.path().filename();
    CHECK(text(entry.path()) == text(fs::path(folder / "b") / file));
    ++files;
    if (file.ends_with(".safetensors")) tensors += File::read(entry.path()).tensors.size();
  }
  CHECK(files == std::size_t(std::distance(fs::directory_iterator(folder / "b"), {})));
  CHECK((shard_bytes > 20000 ? files == 2 : files > 4));

  // Every tensor is the original's, bit for bit.
  const File original = File::read(fixture(name) / "model.safetensors");
  std::size_t compared = 0;
  for (const auto& entry : fs::directory_iterator(folder / "a")) {
    if (entry.path().extension() != ".safetensors") continue;
    const File exported = File::read(entry.path());
    for (const auto& tensor : exported.tensors) {
      REQUIRE(tensor.name.starts_with("transformer."));
      std::string plain = tensor.name.substr(12);
      if (!original.bytes.count(plain)) plain = tensor.name;
      CHECK(original.bytes.at(plain) == exported.bytes.at(tensor.name));
      ++compared;
    }
  }
  CHECK(compared == tensors);
}

TEST_CASE("the route of several experts a token is in an export's config") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2_moe"));
  CHECK_FALSE(model.config.model.norm_topk_prob);  // the file does not say it
  model.config.model.router = config::Router::top_k;
  model.config.model.num_experts_per_tok = 2;
  model.config.model.norm_topk_prob = true;
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "s", {}).ok());
  CHECK(import_ok(folder / "s").config.model == model.config.model);
}

TEST_CASE("shared experts, narrow experts and dense first blocks are read from a config and written to it") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2_moe_shared"));
  const config::Model& m = model.config.model;
  CHECK(m.n_shared_experts == 2);
  CHECK(m.moe_intermediate_size == 12);
  CHECK(m.first_k_dense_replace == 1);
  CHECK(m.num_experts_per_tok == 2);
  CHECK(m.norm_topk_prob);
  CHECK(m.router == config::Router::top_k);
  REQUIRE(export_hugging_face(m, values_of(model.store), folder / "s", {}).ok());
  CHECK(import_ok(folder / "s").config.model == m);
  const File exported = File::read(fs::path(folder / "s") / "model.safetensors");
  CHECK(exported.bytes.contains("transformer.h.0.mlp.c_fc.weight"));
  CHECK(exported.bytes.at("transformer.h.2.moe.shared_experts.c_fc.weight").size() == 4 * 16 * 24);  // [D,G]
  CHECK(exported.bytes.at("transformer.h.2.moe.experts.3.c_proj.weight").size() == 4 * 12 * 16);
}

TEST_CASE("sigmoid scores and the bias that balances them are in an export") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2_moe"));
  config::Model& m = model.config.model;
  m.router = config::Router::sigmoid;
  m.router_bias_update_rate = 0.01;
  m.router_groups = 2;
  m.router_topk_groups = 1;
  m.routed_scaling_factor = 2.5;
  m.router_z_loss_coef = 0.001;
  runtime::TensorStore made = models::reserve_whole_store(m);
  const std::string name = "h.0.moe.gate.bias";
  for (const auto& [each, tensor] : made.all())
    if (each.ends_with(".gate.bias"))
      std::ranges::fill(tensor.memory.span<float>(), 0.25F);
    else
      std::ranges::copy(model.store[each].memory.span<const float>(), tensor.memory.span<float>().begin());
  REQUIRE(export_hugging_face(m, values_of(made), folder / "s", {}).ok());
  const HuggingFaceModel again = import_ok(folder / "s");
  CHECK(again.config.model == m);
  for (const float value : again.store[name].memory.span<const float>()) CHECK(value == 0.25F);
}

TEST_CASE("what a gate draws is in an export's config") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2_moe"));
  config::Model& config = model.config.model;
  config.router = config::Router::gshard;
  config.num_experts_per_tok = 2;
  config.router_second_expert = config::SecondExpert::always;
  config.router_skipped_slots = config::SkippedSlots::free;
  config.router_aux_loss_form = config::AuxLossForm::gshard;
  config.router_jitter_noise = 0.01;
  REQUIRE(export_hugging_face(config, values_of(model.store), folder / "s", {}).ok());
  CHECK(import_ok(folder / "s").config.model == config);
}

TEST_CASE("a model whose router has no scores is exported and imported without a gate") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2_moe"));
  model.config.model.router = GENERATE(config::Router::hash, config::Router::random);
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "s", {}).ok());
  const HuggingFaceModel again = import_ok(folder / "s");
  CHECK(again.config.model == model.config.model);
  CHECK(model.store.find("h.0.moe.gate.weight") != nullptr);
  CHECK(again.store.find("h.0.moe.gate.weight") == nullptr);
  CHECK(again.store.find("h.0.moe.experts.c_fc.weight") != nullptr);
}

TEST_CASE("files with and without prefix, with old buffers, a tied head, and in half precision") {
  const File original = File::read(fixture("gpt2") / "model.safetensors");
  const auto reference = import_ok(fixture("gpt2"));
  auto same = [&](const Changed& changed, float tolerance) {
    HuggingFaceModel model = import_ok(changed.folder / "");
    for (const auto& [name, tensor] : reference.store.all()) {
      const auto expected = tensor.memory.span<const float>(), found = model.store[name].memory.span<const float>();
      REQUIRE(expected.size() == found.size());
      for (std::size_t i = 0; i < found.size(); ++i)
        if (std::abs(found[i] - expected[i]) > tolerance * std::abs(expected[i]) + tolerance * 1e-4f)
          FAIL(name << " element " << i << ": " << found[i] << ", not " << expected[i]);
    }
    return model.config.train.dtype;
  };
  CHECK(same(Changed("gpt2",
                     [](File& file) {
                       for (std::size_t i = 0; i < file.tensors.size(); ++i)
                         file.rename(file.tensors[i].name, "transformer." + file.tensors[i].name);
                     }),
             0) == DType::f32);
  same(Changed("gpt2",
               [](File& file) {
                 file.tensors.push_back({"lm_head.weight", "F32", file["wte.weight"].shape});
                 file.bytes["lm_head.weight"] = file.bytes["wte.weight"];
               }),
       0);
  // The same function and the same head under other names.
  same(Changed(
           "gpt2",
           [](File& file) {
             file.tensors.push_back({"lm_head.weight", "F32", file["wte.weight"].shape});
             file.bytes["lm_head.weight"] = file.bytes["wte.weight"];
           },
           [](nlohmann::json& config) {
             config["tie_word_embeddings"] = false;
             config["activation_function"] = "gelu_pytorch_tanh";
           }),
       0);
  auto narrow = [](const char* dtype, const std::function<std::uint16_t(float)>& f) {
    return [=](File& file) {
      for (auto& tensor : file.tensors) {
        file.bytes[tensor.name] = halves(file.values<float>(tensor.name), f);
        tensor.dtype = dtype;
      }
    };
  };
  CHECK(same(Changed("gpt2", narrow("BF16", [](float x) { return from_f32<bf16>(x).bits; })), 0x1p-8f) == DType::bf16);
  CHECK(same(Changed("gpt2", narrow("F16",
                                    [](float x) {
                                      const _Float16 half = _Float16(x);
                                      std::uint16_t bits;
                                      std::memcpy(&bits, &half, 2);
                                      return bits;
                                    })),
             0x1p-10f) == DType::f32);
}

TEST_CASE("tensors that carry no weights are passed over, and an export leaves them out") {
  const auto [name, tensor] = GENERATE(table<std::string, std::string>(
      {{"gpt2", "h.2.attn.masked_bias"}, {"llama", "model.layers.0.self_attn.rotary_emb.inv_freq"}}));
  const Changed changed(name, [tensor = tensor](File& file) {
    if (file.bytes.contains(tensor)) return;
    file.tensors.push_back({tensor, "F32", {1}});
    file.bytes[tensor].resize(4);
  });
  const HuggingFaceModel model = import_ok(changed.folder / "");
  const test::TemporaryFolder out;
  const HuggingFaceExport options{.types = model.imported.folder().types()};
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), out / "out", options).ok());
  std::set<std::string> expected, found;
  for (const auto& each : File::read(fixture(name) / "model.safetensors").tensors)
    if (!each.name.ends_with(".attn.bias") && !each.name.ends_with(".attn.masked_bias")) expected.insert(each.name);
  for (const auto& each : File::read(out / "out/model.safetensors").tensors) found.insert(each.name);
  CHECK(found == expected);
}

TEST_CASE("a model of any number of shards is read with few free descriptors, whatever the order of its shards") {
  const std::string name = GENERATE("gpt2", "gpt2_moe");
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture(name));
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "s", {.shard_bytes = 1}).ok());
  REQUIRE(std::distance(fs::directory_iterator(folder / "s"), {}) > 20);
  // Neighbours in the model are in different ones of three files.
  auto listed = test::json_in(text(folder / "s/model.safetensors.index.json"));
  std::map<std::string, File> thirds;
  for (std::size_t number = 0; auto& [tensor, file] : listed["weight_map"].items()) {
    File single = File::read(fs::path(folder / "s") / file.get<std::string>());
    file = fmt::format("{}.safetensors", number++ % 3);
    thirds[file].tensors.push_back(single[tensor]);
    thirds[file].bytes[tensor] = single.bytes.at(tensor);
  }
  fs::create_directory(folder / "t");
  fs::copy_file(folder / "s/config.json", folder / "t/config.json");
  for (const auto& [file, third] : thirds) third.write(fs::path(folder / "t") / file);
  std::ofstream(folder / "t/model.safetensors.index.json") << json_text(listed);

  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int free = ::open("/dev/null", O_RDONLY);
  ::close(free);
  const rlimit few{rlim_t(free) + 8, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  auto singles = import_hugging_face(folder / "s"), mixed = import_hugging_face(folder / "t");
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  for (auto* read : {&singles, &mixed}) {
    test::good(read->ok() ? Status() : Status(read->error()));
    for (const auto& [parameter, tensor] : model.store.all())
      CHECK(*(*read)->store.read<float>(parameter) == *model.store.read<float>(parameter));
  }
}

TEST_CASE("the index of shards names every tensor's file and the sum of all bytes") {
  const std::string name = GENERATE("gpt2", "gpt2_moe");
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture(name));
  constexpr std::int64_t most = 20'000;
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "s",
                              {.dtype = dtype, .shard_bytes = most})
              .ok());
  const auto index = test::json_in(text(fs::path(folder / "s") / "model.safetensors.index.json"));
  std::map<std::string, File> files;
  for (const auto& entry : fs::directory_iterator(folder / "s"))
    if (entry.path().extension() == ".safetensors") files[entry.path().filename().string()] = File::read(entry.path());
  REQUIRE(files.size() > 2);
  std::size_t number = 0, tensors = 0;
  std::int64_t all = 0;
  for (const auto& [file, content] : files) {
    CHECK(file == fmt::format("model-{:05}-of-{:05}.safetensors", ++number, files.size()));
    std::int64_t bytes = 0;
    for (const auto& tensor : content.tensors) {
      CHECK(index["weight_map"].value(tensor.name, "none") == file);
      bytes += std::int64_t(tensor.bytes());
      ++tensors;
    }
    CHECK((bytes <= most || content.tensors.size() == 1));
    all += bytes;
  }
  CHECK(index["weight_map"].size() == tensors);
  CHECK(index["metadata"]["total_size"] == all);
  CHECK_FALSE(fs::exists(fs::path(folder / "s") / "model.safetensors"));

  // Gathered: one file, no index, the same tensors.
  const auto whole = std::numeric_limits<std::int64_t>::max();
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "g",
                              {.dtype = dtype, .shard_bytes = whole})
              .ok());
  const File gathered = File::read(fs::path(folder / "g") / "model.safetensors");
  CHECK(gathered.tensors.size() == tensors);
  for (const auto& [file, content] : files)
    for (const auto& [tensor, bytes] : content.bytes) CHECK(gathered.bytes.at(tensor) == bytes);
  CHECK_FALSE(fs::exists(fs::path(folder / "g") / "model.safetensors.index.json"));
}

TEST_CASE("16-bit values of every kind are read exactly") {
  // Every bit pattern: normal, subnormal, zeros, infinities, NaNs.
  std::vector<std::uint16_t> bits(65536);
  std::iota(bits.begin(), bits.end(), std::uint16_t(0));
  std::vector<float> values(bits.size());
  lancet::models::to_floats("F16", std::as_bytes(std::span(bits)), values);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const int exponent = int(i >> 10 & 31), mantissa = int(i & 1023);
    const double sign = i & 0x8000 ? -1 : 1;
    double expected = sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
    if (exponent == 31) expected = mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    if (std::isnan(expected) ? !std::isnan(values[i]) : double(values[i]) != expected) FAIL(i << ": " << values[i]);
    if (std::signbit(values[i]) != (i >= 0x8000)) FAIL(i << ": sign");
  }
  lancet::models::to_floats("BF16", std::as_bytes(std::span(bits)), values);
  for (std::size_t i = 0; i < bits.size(); ++i)
    if (std::bit_cast<std::uint32_t>(values[i]) != std::uint32_t(i) << 16) FAIL(i << ": " << values[i]);
}

TEST_CASE("a model on a device is loaded, exported and saved as on the host") {
  const std::string name = GENERATE("gpt2", "gpt2_moe", "gpt2_moe_shared");
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture(name));
  const auto device = test::make_host_queue({});  // its addresses trap in the host's threads
  runtime::TensorStore store;
  store.place_on(*device);
  store.add(planner::rank_forward(model.config, model::Mode::generate, 1).value());
  REQUIRE(save(folder / "host", model.config, model.store).ok());
  const auto self = comm::make_self();
  const auto loaded = test::good(run::load_newest(folder / "host", *self, [&](const run::ModelFolder& found) {
    return run::load_parameters(found.checkpoint, store);
  }));
  REQUIRE(save(folder / "device", model.config, store).ok());
  const char* weights = "checkpoints/step-000000/model.safetensors";
  CHECK(text(fs::path(folder / "host") / weights) == text(fs::path(folder / "device") / weights));
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string host = folder / ("h" + std::to_string(int(dtype))),
                      there = folder / ("d" + std::to_string(int(dtype)));
    REQUIRE(export_hugging_face(model.config.model, values_of(model.store), host, {.dtype = dtype}).ok());
    REQUIRE(export_hugging_face(model.config.model, values_of(store), there, {.dtype = dtype}).ok());
    CHECK(text(fs::path(host) / "model.safetensors") == text(fs::path(there) / "model.safetensors"));
  }
}

TEST_CASE("an export needs a new folder and removes its files on failure") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2"));
  folder.write("there", "a file");
  const auto size = folder.names().size();
  check_error(export_hugging_face(model.config.model, values_of(model.store), folder / "", {}).error(),
              ExitCode::config, {"files in it"});
  check_error(export_hugging_face(model.config.model, values_of(model.store), folder / "there", {}).error(),
              ExitCode::config, {"something else"});
  HuggingFaceExport options;
  options.tokenizer = {folder / "no-tokenizer", *data::train_tokenizer("a text", {.vocab_size = 257, .progress = {}})};
  check_error(export_hugging_face(model.config.model, values_of(model.store), folder / "out", options).error(),
              ExitCode::data, {"vocab.json"});
  CHECK(folder.names().size() == size);
}

TEST_CASE("an export refuses a weight that rounds to infinity") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2"));
  model.store["ln_f.bias"].memory.as<float>()[3] = -std::numeric_limits<float>::max();
  check_error(
      export_hugging_face(model.config.model, values_of(model.store), folder / "bf16", {.dtype = DType::bf16}).error(),
      ExitCode::data,
      {"transformer.ln_f.bias: expected numbers that bf16 holds, found -3.4028235e+38 at element 3; fp32 holds "
       "it"});
  CHECK(folder.names().empty());
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "fp32", {}).ok());
  import_ok(folder / "fp32");
}

TEST_CASE("an export names the tokens at which texts begin and end, whichever file of the tokenizer did") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2"));
  const std::string tok = folder / "tok", out = folder / "out";
  REQUIRE(data::train_tokenizer("a text", {.vocab_size = 257, .progress = {}})->save(tok).ok());
  std::ofstream(tok + "/config.json") << R"({"eos_token_id": [256, 65], "bos_token_id": 66, "n_layer": 1})";
  std::ofstream(tok + "/generation_config.json") << R"({"temperature": 0.5})";
  std::ofstream(tok + "/added_tokens.json") << R"({"<pad>": 257})";
  const auto tokenizer = data::Tokenizer::load(tok);
  REQUIRE(tokenizer.ok());
  const HuggingFaceExport options{.bounds = {66, {256, 65}}, .tokenizer = run::ModelTokenizer{tok, *tokenizer}};
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), out, options).ok());
  const auto written = test::json_in(text(out + "/generation_config.json"));
  CHECK(written == test::json_in(R"({"temperature": 0.5, "bos_token_id": 66, "eos_token_id": [256, 65]})"));
  const auto config = test::json_in(text(out + "/config.json"));
  CHECK(config["eos_token_id"] == test::json_in("[256, 65]"));
  CHECK(config["bos_token_id"] == 66);
  const auto again = data::Tokenizer::load(out);
  REQUIRE(again.ok());
  CHECK(again->vocab_size() == 258);
  CHECK(std::ranges::equal(again->ends(), std::vector<data::TokenId>{256, 65}));
}

TEST_CASE("a saved model or a folder is loaded at any number of ranks and evaluates to the same loss") {
  const std::string name = GENERATE("gpt2", "gpt2_moe", "mixtral", "qwen3_moe");
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture(name));
  config::Config trained = model.config;  // for GPUs, which need not be present
  trained.device = config::Device::cuda;
  trained.comm.transport = config::Transport::nccl;
  trained.comm.device_all_to_all = config::DeviceAllToAll::windows;
  REQUIRE(save(folder / "run", trained, model.store).ok());
  CHECK_FALSE(save(folder / "run", model.config, model.store).ok());

  // The tokens as a file, and the loss of the other implementation's logits for its one window.
  const File expected = File::read(fixture(name) / "logits.safetensors");
  auto tokens = expected.values<std::int32_t>("tokens");
  const auto logits = expected.values<float>("logits");
  auto writer = test::good(data::TokenWriter::create(folder / "tokens.bin", 71, 0));
  for (int copy = 0; copy < 5; ++copy) REQUIRE(writer->append(tokens).ok());
  REQUIRE(writer->append(std::span(tokens).first(1)).ok());
  REQUIRE(writer->finish().ok());
  double loss = 0;
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    const float* row = logits.data() + s * 71;
    double sum = 0;
    for (int v = 0; v < 71; ++v) sum += std::exp(double(row[v]));
    loss += (std::log(sum) - double(row[tokens[(s + 1) % tokens.size()]])) / double(tokens.size());
  }
  const bool streams = GENERATE(false, true);  // on a host queue device
  const std::string from = GENERATE(false, true) ? fixture(name).string() : folder / "run";
  for (int ranks : {1, 2, 4}) {
    double found = 0;
    std::int64_t sequences = 0;
    test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
      test::HostAccelerator accelerator;
      LANCET_ASSIGN(const auto loaded, models::LoadedModel::load(from, world,
                                                                 {.local_ranks = ranks,
                                                                  .threads = 1,
                                                                  .dtype = {},
                                                                  .device = config::Device::cpu,
                                                                  .accelerator = streams ? &accelerator : nullptr}));
      LANCET_ASSIGN(const auto result, models::evaluate(*loaded, world, {.data = folder / "tokens.bin"}));
      if (world.rank() == 0) found = result.loss, sequences = result.sequences;
      return {};
    }));
    CHECK(sequences == 5);
    CHECK(found == Approx(loss).epsilon(1e-6));
  }
}

TEST_CASE("an upcycled model's experts are copies of its FFNs with different noise") {
  HuggingFaceModel dense = import_ok(fixture("gpt2"));
  const auto with = [&](double noise, std::uint64_t seed) {
    return import_ok(fixture("gpt2"), Upcycle{.experts = 3, .layer_freq = 2, .noise = noise, .seed = seed});
  };
  HuggingFaceModel plain = with(0, 1), noisy = with(0.02, 1), same = with(0.02, 1), other = with(0.02, 2);
  CHECK(plain.config.model.num_local_experts == 3);
  CHECK(plain.config.model.is_moe(0));
  CHECK_FALSE(plain.config.model.is_moe(1));
  auto values = [](HuggingFaceModel& m, const char* name) {
    const auto span = m.store[name].memory.span<float>();
    return std::vector<float>(span.begin(), span.end());
  };
  CHECK(values(plain, "h.1.mlp.c_fc.weight") == values(dense, "h.1.mlp.c_fc.weight"));
  for (const char* part : {"c_fc.weight", "c_fc.bias", "c_proj.weight", "c_proj.bias"}) {
    const auto ffn = values(dense, (std::string("h.2.mlp.") + part).c_str());
    const std::string name = std::string("h.2.moe.experts.") + part;
    const auto copies = values(plain, name.c_str()), found = values(noisy, name.c_str());
    REQUIRE(copies.size() == 3 * ffn.size());
    double squares = 0, changes = 0;
    for (std::size_t i = 0; i < copies.size(); ++i) {
      CHECK(copies[i] == ffn[i % ffn.size()]);
      squares += double(copies[i]) * double(copies[i]);
      changes += std::pow(double(found[i]) - double(copies[i]), 2);
    }
    const bool weight = std::string(part).ends_with("weight");
    CHECK(std::sqrt(changes / squares) == Approx(weight ? 0.02 : 0).epsilon(0.05));
    CHECK(found == values(same, name.c_str()));
    if (!weight) continue;
    CHECK(found != values(other, name.c_str()));
    CHECK(std::vector<float>(found.begin(), found.begin() + std::ptrdiff_t(ffn.size())) !=
          std::vector<float>(found.end() - std::ptrdiff_t(ffn.size()), found.end()));
  }
  const auto gate = values(plain, "h.0.moe.gate.weight");
  CHECK(std::any_of(gate.begin(), gate.end(), [](float x) { return x != 0; }));
  check_error(import_hugging_face(fixture("gpt2_moe"), Upcycle{.experts = 2}).error(), ExitCode::config, {"dense"});
}
