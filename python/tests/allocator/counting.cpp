// The allocator of c10 on the processor, with exact counts of the requested bytes.
//
// Invariant: every block carries its own size in front of it, so counts need neither a table nor a lock; a block is
// counted from before its address is handed out until after it was freed. `highest` is the largest value that `live`
// ever had since it was last reset, whichever threads allocate at once.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace {

// c10 aligns blocks to 64 bytes; so is what follows a front of 64.
constexpr std::size_t front = 64;

std::atomic<std::int64_t> live{0};
std::atomic<std::int64_t> highest{0};
std::atomic<std::int64_t> served{0};

void grow(std::size_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  const std::int64_t now = live.fetch_add(size) + size;
  std::int64_t seen = highest.load();
  // A failed exchange loads what another thread wrote meanwhile.
  while (now > seen && !highest.compare_exchange_weak(seen, now)) {
  }
  served.fetch_add(1, std::memory_order_relaxed);
}

void release(void* data) {
  if (data == nullptr) {
    return;
  }
  void* block = static_cast<char*>(data) - front;
  std::size_t bytes = 0;
  std::memcpy(&bytes, block, sizeof bytes);
  c10::profiledCPUMemoryReporter().Delete(data);
  c10::free_cpu(block);
  live.fetch_sub(static_cast<std::int64_t>(bytes));
}

struct Counting final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0) {
      return {nullptr, nullptr, &release, device};
    }
    TORCH_CHECK(bytes <= std::numeric_limits<std::size_t>::max() - front, "cannot allocate ", bytes, " bytes");
    void* block = c10::alloc_cpu(bytes + front);
    std::memcpy(block, &bytes, sizeof bytes);
    grow(bytes);
    void* data = static_cast<char*>(block) + front;
    // As c10's own allocator does: reports it to PyTorch's profiler, if that is active.
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &release, device};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Counting counting;

} // namespace

extern "C" {

void tightfit_install() {
  c10::SetCPUAllocator(&counting, 255);
}

std::int64_t tightfit_current() {
  return live.load();
}

std::int64_t tightfit_peak() {
  return highest.load();
}

std::int64_t tightfit_served() {
  return served.load();
}

void tightfit_reset_peak() {
  highest.store(live.load());
}
}
