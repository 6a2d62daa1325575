#include "allocator.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "machine.h"

namespace bench {
namespace {

constexpr size_t kMiB = 1024 * 1024;
constexpr size_t kRound = 512;
constexpr size_t kSmall = kMiB;  // smaller blocks are cut from segments of 2 MiB, others of 20

using Stats = c10::CachingDeviceAllocator::DeviceStats;
using Change = c10::CachingAllocator::Stat;

struct Block {
  size_t size;
  char* segment;
  bool is_free;
};

struct Memory {
  std::map<char*, Block> blocks;  // by address: neighbors are next to each other
  std::map<char*, size_t> segments;
  Stats stats;
};

void all(c10::CachingAllocator::StatArray& stats, void (Change::*change)(size_t), size_t amount) {
  (stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].*change)(amount);
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t wanted) override {
    touch();
    const int device = current_device();
    const c10::Device place(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (wanted == 0) return {nullptr, nullptr, &release, place};
    const size_t size = (wanted + kRound - 1) / kRound * kRound;
    std::lock_guard<std::mutex> lock(mutex_);
    auto& memory = memories_[device];
    auto found = find(memory, size);
    if (found == memory.blocks.end()) found = grow(memory, size, place);
    auto& [address, block] = *found;
    if (block.size - size >= kRound) {
      memory.blocks[address + size] = {block.size - size, block.segment, true};
      block.size = size;
    }
    block.is_free = false;
    all(memory.stats.allocation, &Change::increase, 1);
    all(memory.stats.allocated_bytes, &Change::increase, size);
    all(memory.stats.active_bytes, &Change::increase, size);
    report(memory, address, static_cast<int64_t>(size), place);
    return {address, address, &release, place};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }

  bool initialized() override { return is_touched(); }

  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& memory : memories_) give_back(memory);
  }

  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  Stats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return memories_[device].stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = memories_[device].stats;
    for (auto* one : {&stats.allocation, &stats.allocated_bytes, &stats.reserved_bytes})
      for (auto& stat : *one) stat.reset_accumulated();
    stats.num_alloc_retries = stats.num_ooms = 0;
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = memories_[device].stats;
    for (auto* one : {&stats.allocation, &stats.allocated_bytes, &stats.reserved_bytes,
                      &stats.active_bytes})
      for (auto& stat : *one) stat.reset_peak();
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return {capacity_ - reserved(memories_[device]), capacity_};
  }

  void set_capacity(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    capacity_ = bytes;
  }

 private:
  using Found = std::map<char*, Block>::iterator;

  static size_t reserved(const Memory& memory) {
    size_t bytes = 0;
    for (const auto& [_, size] : memory.segments) bytes += size;
    return bytes;
  }

  static Found find(Memory& memory, size_t size) {
    auto best = memory.blocks.end();
    for (auto at = memory.blocks.begin(); at != memory.blocks.end(); ++at) {
      const Block& block = at->second;
      const bool is_small = memory.segments[block.segment] == 2 * kMiB;
      if (!block.is_free || block.size < size || is_small != (size < kSmall)) continue;
      if (best == memory.blocks.end() || block.size < best->second.size) best = at;
    }
    return best;
  }

  Found grow(Memory& memory, size_t size, c10::Device place) {
    const size_t segment = size < kSmall ? 2 * kMiB : std::max(20 * kMiB, size);
    if (reserved(memory) + segment > capacity_) {
      ++memory.stats.num_alloc_retries;
      give_back(memory);
    }
    if (reserved(memory) + segment > capacity_) {
      ++memory.stats.num_ooms;
      c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size), 0, reserved(memory), place);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "bench out of memory. Tried to allocate ", size,
                       " bytes of ", capacity_, " on device ", place.index());
    }
    char* address = static_cast<char*>(std::malloc(segment));
    TORCH_CHECK(address != nullptr, "the host has no memory left for the bench");
    memory.segments[address] = segment;
    all(memory.stats.segment, &Change::increase, 1);
    all(memory.stats.reserved_bytes, &Change::increase, segment);
    return memory.blocks.emplace(address, Block{segment, address, true}).first;
  }

  static void give_back(Memory& memory) {
    for (auto at = memory.segments.begin(); at != memory.segments.end();) {
      const auto block = memory.blocks.find(at->first);
      if (!block->second.is_free || block->second.size != at->second) {
        ++at;
        continue;
      }
      all(memory.stats.segment, &Change::decrease, 1);
      all(memory.stats.reserved_bytes, &Change::decrease, at->second);
      std::free(at->first);
      memory.blocks.erase(block);
      at = memory.segments.erase(at);
    }
  }

  static void join_next(Memory& memory, Found at) {
    const auto next = std::next(at);
    if (next == memory.blocks.end() || !next->second.is_free) return;
    if (next->second.segment != at->second.segment) return;
    at->second.size += next->second.size;
    memory.blocks.erase(next);
  }

  static void release(void* pointer);

  void release_here(char* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int device = 0; device < kDevices; ++device) {
      auto& memory = memories_[device];
      auto at = memory.blocks.find(address);
      if (at == memory.blocks.end() || at->second.is_free) continue;
      const size_t size = at->second.size;
      at->second.is_free = true;
      all(memory.stats.allocation, &Change::decrease, 1);
      all(memory.stats.allocated_bytes, &Change::decrease, size);
      all(memory.stats.active_bytes, &Change::decrease, size);
      report(memory, address, -static_cast<int64_t>(size),
             {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)});
      join_next(memory, at);
      if (at != memory.blocks.begin() && std::prev(at)->second.is_free) {
        const auto before = std::prev(at);
        if (before->second.segment == at->second.segment) join_next(memory, before);
      }
      return;
    }
  }

  static void report(Memory& memory, void* address, int64_t change, c10::Device place) {
    const auto& bytes = memory.stats.allocated_bytes[0].current;
    c10::reportMemoryUsageToProfiler(address, change, static_cast<size_t>(bytes),
                                     reserved(memory), place);
  }

  std::mutex mutex_;
  Memory memories_[kDevices];
  size_t capacity_ = 1024 * kMiB;
};

Allocator& the_allocator() {
  static auto* allocator = new Allocator;  // lives on: tensors are freed at the very end
  return *allocator;
}

void Allocator::release(void* pointer) {
  if (pointer != nullptr) the_allocator().release_here(static_cast<char*>(pointer));
}

const bool registered = [] {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &the_allocator());
  return true;
}();

}  // namespace

void set_capacity(size_t bytes) { the_allocator().set_capacity(bytes); }
c10::DeviceAllocator* allocator() { return &the_allocator(); }

}  // namespace bench
