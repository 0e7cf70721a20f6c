// A fiber: a stack of its own on the host, for a GPU thread that the host emulates. On x86-64 a switch is a few
// instructions of assembler; elsewhere it is swapcontext(), which makes two system calls per switch.
#pragma once
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <cstddef>
#include <cstdint>
#include <memory>

namespace lancet::ops::device::emulated {

class Fiber {
 public:
  using Entry = void (*)();  // never returns

  // Prepares the fiber to run `entry` when it is first switched to.
  void start(Entry entry) {
    if (!stack_) stack_.reset(new std::byte[stack_bytes]);
#if defined(__x86_64__)
    const auto top = reinterpret_cast<std::uintptr_t>(stack_.get() + stack_bytes) / 64 * 64 - 64;
    *reinterpret_cast<Entry*>(top) = entry;  // the first switch jumps there, with the stack as after a call
    at_ = reinterpret_cast<void*>(top);
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = stack_bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#endif
  }

  // Suspends `from`, which is running, and resumes `to`. noipa makes callers assume that all registers are lost.
  [[gnu::noipa]] static void change(Fiber& from, Fiber& to) {
#if defined(__x86_64__)
    void** save = &from.at_;
    void* load = to.at_;
    asm volatile(
        "subq $128, %%rsp\n\t"  // the red zone, in which the caller may keep values
        "pushq %%rbp\n\t"
        "leaq 1f(%%rip), %%rax\n\t"
        "pushq %%rax\n\t"
        "movq %%rsp, (%%rdi)\n\t"
        "movq %%rsi, %%rsp\n\t"
        "popq %%rax\n\t"
        "jmp *%%rax\n"
        "1:\n\t"
        "popq %%rbp\n\t"
        "addq $128, %%rsp\n\t"
        : "+D"(save), "+S"(load)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
#else
    swapcontext(&from.context_, &to.context_);
#endif
  }

 private:
  static constexpr std::size_t stack_bytes = 64 * 1024;
  std::unique_ptr<std::byte[]> stack_;
#if defined(__x86_64__)
  void* at_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace lancet::ops::device::emulated
