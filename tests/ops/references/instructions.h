// The instructions that device kernels state themselves (inline assembly and approximations), held against a model of
// what the PTX ISA says of them: of the values, not of the code that gives them. The same kernel
// (tests/ops/device/run_instructions.h) runs on a GPU and, by the tests' doubles, on the host.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lancet::test {

// The operands and results of one block of two warps. One object of memory, so that a copy takes it to a GPU and back.
struct Instructions {
  static constexpr int warps = 2, threads = 32 * warps, values = 1024, copies = 4, matrix_rows = 64;

  // mma.sync.m16n8k16: the registers of each thread; c is also d.
  std::uint32_t a[threads][4], b[threads][2];
  float c[threads][4];
  // ldmatrix.x4, for each warp: rows of 8 elements, the row to which each thread points, and the registers.
  alignas(16) std::uint16_t matrix[warps][matrix_rows][8];
  std::int32_t row[threads];
  std::uint32_t plain[threads][4], transposed[threads][4];
  // cp.async: each thread copies 16 bytes per group, or zeros if not `there`. arrived[i]: what group i has brought
  // when as many groups as follow it may be in flight.
  alignas(16) std::uint32_t source[copies][threads][4];
  std::int32_t there[copies][threads];
  std::uint32_t arrived[copies][threads][4];
  // cvt.rn.bf16x2, by the bits of x and y; ex2.approx and division, of `exponent`, `dividend` and `divisor`.
  std::uint32_t x[values], y[values], pair[values];
  float exponent[values], power[values], dividend[values], divisor[values], quotient[values];
  // Shuffles of `number`: from the thread `from` of the warp; from the thread whose number differs by XOR `distance`;
  // from the thread `distance` below.
  std::int32_t number[threads], from[threads], distance;
  std::int32_t shuffled[threads], mixed[threads], upper[threads];
  // Atomics on shared memory: the value before each addition, and at the end; and the maximum.
  std::int32_t before[threads], sum, maximum;
  // Words: set to and loaded as the bits of `number`; counted by all threads; waits for them (wait_word).
  std::uint32_t set[threads], loaded[threads], counted;
  std::uint32_t ahead, behind, stop;  // ahead has reached `target`, counted modulo 2^32; behind has not
  std::uint32_t target;
  std::int32_t reached, stopped;
};

// Random operands; results are bytes of 0xee. The products of warp 0 are exact in any order, the other's are not.
Instructions instruction_operands(std::uint64_t seed);

// Each result that differs from the model, in words. Results are exact but for sums of mma.sync, e^x and quotients.
std::vector<std::string> instruction_faults(const Instructions& given, const Instructions& found);

}  // namespace lancet::test
