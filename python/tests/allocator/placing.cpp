// The allocator of c10 on the processor, backed by two functions that are called as PyTorch calls CUDA's.
//
// Invariant: every block handed out is in one table, and a block that overlaps another one in it is counted, whatever
// the functions know about each other. If they fail, they throw.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

namespace {

using Alloc = void* (*)(std::ptrdiff_t, int, void*);
using Free = void (*)(void*, std::ptrdiff_t, int, void*);

// The device number by which the functions know host memory.
constexpr int host = -1;

Alloc alloc = nullptr;
Free give_back = nullptr;

// Never destroyed: tensors are freed until the process has ended.
auto& mutex = *new std::mutex;
auto& out = *new std::map<std::uintptr_t, std::size_t>;
std::int64_t live = 0;
std::int64_t overlaps = 0;

void enter(void* data, std::size_t bytes) {
  const std::lock_guard<std::mutex> guard(mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto above = out.lower_bound(begin);
  bool taken = above != out.end() && above->first < begin + bytes;
  if (above != out.begin()) {
    const auto below = std::prev(above);
    taken = taken || below->first + below->second > begin;
  }
  overlaps += taken ? 1 : 0;
  out[begin] = bytes;
  live += static_cast<std::int64_t>(bytes);
}

void release(void* data) {
  if (data == nullptr) {
    return;
  }
  std::size_t bytes = 0;
  {
    // Removed from the table before another thread can be given the address.
    const std::lock_guard<std::mutex> guard(mutex);
    const auto found = out.find(reinterpret_cast<std::uintptr_t>(data));
    bytes = found->second;
    live -= static_cast<std::int64_t>(bytes);
    out.erase(found);
  }
  c10::profiledCPUMemoryReporter().Delete(data);
  give_back(data, static_cast<std::ptrdiff_t>(bytes), host, nullptr);
}

struct Placing final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    void* data = alloc(static_cast<std::ptrdiff_t>(bytes), host, nullptr);
    if (data != nullptr) {
      enter(data, bytes);
      c10::profiledCPUMemoryReporter().New(data, bytes);
    }
    return {data, data, &release, device};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Placing placing;

} // namespace

extern "C" {

void tightfit_place(void* first, void* second) {
  alloc = reinterpret_cast<Alloc>(first);
  give_back = reinterpret_cast<Free>(second);
  c10::SetCPUAllocator(&placing, 255);
}

std::int64_t tightfit_live() {
  const std::lock_guard<std::mutex> guard(mutex);
  return live;
}

std::int64_t tightfit_overlaps() {
  const std::lock_guard<std::mutex> guard(mutex);
  return overlaps;
}
}
