// Values that cross from one pipeline stage to a neighbour. Each op has a stream of its own, so that no direction and
// no side waits for another one (ir/groups.h); sends and receives of two neighbours match in order.
//   send_next(x), send_previous(x): to the stage after this one, or before it
//   receive_next() {dtype, shape}, receive_previous() {dtype, shape} -> x: from there; shape="8,128,256"
//   no_share() {dtype, shape}: zeros, what a stage adds to a sum over all stages of which it has no summand
// They need no gradient rules, since they enter a program after its backward pass. A rank alone sends to no one, and
// receives zeros.
#include "lancet/ops/op.h"

#include <charconv>
#include <optional>

#include "ops/describe.h"

namespace lancet::ops {

// The type that an op without operands gives its result, by the attributes dtype="f32" and shape="8,128"; none if they
// do not say one.
std::optional<TensorType> type_of_stage_value(const Attributes& attributes) {
  if (!attributes.has("dtype") || !attributes.has("shape")) return std::nullopt;
  const auto dtype = parse_dtype(attributes.text("dtype"));
  if (!dtype) return std::nullopt;
  TensorType type{*dtype, {}};
  for (std::string_view text = attributes.text("shape"); !text.empty();) {
    std::int64_t extent = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (error != std::errc() || extent < 1 || type.shape.rank() == Shape::max_rank) return std::nullopt;
    type.shape.push_back(extent);
    text.remove_prefix(std::size_t(end - text.data()));
    if (text.empty()) break;
    if (text[0] != ',' || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  return type;
}

namespace {

Inferred infer_send(const OpInput&) { return Types{}; }

Inferred infer_receive(const OpInput& in) {
  const auto type = type_of_stage_value(in.attributes);
  if (!type) return expected("the attributes dtype and shape, the type of what is received");
  return Types{*type};
}

Inferred infer_no_share(const OpInput& in) {
  const auto type = type_of_stage_value(in.attributes);
  if (!type || !is_activation(type->dtype)) return expected("the attributes dtype and shape, of f32 or bf16");
  return Types{*type};
}

Work work_send(const OpInput& in) { return {.bytes = bytes_of(in), .sent = bytes_of(in)}; }
Work work_receive(const OpInput& in) { return {.bytes = double(ir::bytes(*type_of_stage_value(in.attributes)))}; }

OpDef sender(std::string_view name, ir::Stream stream) {
  return {.name = name,
          .required = 1,
          .infer = infer_send,
          .work = work_send,
          .samples = {{{f32({2, 6, 5})}, {}}, {{bf16({4, 3, 7})}, {}}},
          .stream = stream,
          .kind = Kind::send};
}

OpDef receiver(std::string_view name, ir::Stream stream) {
  return {.name = name,
          .infer = infer_receive,
          .work = work_receive,
          .samples = {{{}, {{"dtype", "f32"}, {"shape", "2,6,5"}}}, {{}, {{"dtype", "bf16"}, {"shape", "4,3,7"}}}},
          .stream = stream,
          .kind = Kind::receive};
}

const OpDef table[] = {
    sender("send_next", ir::Stream::send_next),
    sender("send_previous", ir::Stream::send_previous),
    receiver("receive_next", ir::Stream::receive_next),
    receiver("receive_previous", ir::Stream::receive_previous),
    {.name = "no_share",
     .infer = infer_no_share,
     .work = work_receive,
     .samples = {{{}, {{"dtype", "f32"}, {"shape", "9,7"}}}, {{}, {{"dtype", "bf16"}, {"shape", "3,5,8"}}}}},
};

}  // namespace

std::span<const OpDef> stage_transfer_ops() { return table; }

}  // namespace lancet::ops
